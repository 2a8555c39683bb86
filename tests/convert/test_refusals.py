"""What can't be converted is refused by name, before a file is begun."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_checkpoints import checkpoint

from ggufx import GGUFError
from ggufx.convert.checkpoint import Checkpoint
from ggufx.convert.job import Job

Header = dict[str, Any]


@pytest.fixture
def mixtral(tmp_path: Path) -> Path:
    return checkpoint("tiny-mixtral", tmp_path)


def with_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def with_header(folder: Path, change: Callable[[Header], object]) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + whole[8 + length :])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["NobodysForCausalLM"]}, "NobodysForCausalLM"),
        ({"architectures": []}, "architectures"),
        ({"num_hidden_layers": 1}, "its block is 1"),
        ({"num_hidden_layers": 3}, "block 2 has no tensor"),
        ({"num_local_experts": 4}, "12 were expected"),
        ({"num_local_experts": 2}, "2 experts"),
        ({"num_attention_heads": 2}, "hidden_size 64, 2 heads"),
        ({"hidden_size": 32}, "rows of 64, hidden_size is 32"),
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "'bitsandbytes'"),
        ({"rope_parameters": {"rope_type": "spiral"}}, "'spiral'"),
        ({"max_position_embeddings": -1}, "context_length"),
    ],
)
def test_configurations(mixtral: Path, changes: dict[str, Any], message: str) -> None:
    with_config(mixtral, **changes)
    with pytest.raises(GGUFError, match=message):
        Job(mixtral).metadata(0, {}, {})


def renamed(old: str, new: str) -> Callable[[Header], object]:
    return lambda header: header.update({new: header.pop(old)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (renamed("model.norm.weight", "model.nerm.weight"), "no such tensor"),
        (lambda h: h.pop("model.embed_tokens.weight"), "no token embeddings"),
        (lambda h: h.pop("model.layers.1.self_attn.o_proj.weight"), "blk.1 has no attn_output.weight"),
        (lambda h: h.pop("model.layers.0.block_sparse_moe.experts.1.w2.weight"), "8 tensors of experts"),
        (lambda h: h["model.norm.weight"].update(shape=[63]), "63,"),
        (lambda h: h["model.norm.weight"].update(dtype="F7"), "'F7'"),
        (lambda h: h["model.norm.weight"].update(data_offsets=[1 << 40, (1 << 40) + 128]), "model.norm.weight"),
        (lambda h: h["model.norm.weight"].update(shape=[-64]), "header entry"),
        (lambda h: h["model.norm.weight"].pop("dtype"), "header entry"),
    ],
)
def test_weights(mixtral: Path, change: Callable[[Header], object], message: str) -> None:
    with_header(mixtral, change)
    with pytest.raises(GGUFError, match=message):
        Job(mixtral)


def test_a_folder_without_weights(mixtral: Path) -> None:
    (mixtral / "model.safetensors").unlink()
    with pytest.raises(GGUFError, match="no weights"):
        Job(mixtral)


def test_a_file_that_is_cut_off(mixtral: Path) -> None:
    path = mixtral / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(GGUFError, match="the header says"):
        Job(mixtral)


@pytest.mark.parametrize("junk", [b"", b"1234567", b"\xff" * 64, (2).to_bytes(8, "little") + b"[]"])
def test_no_safetensors_file(mixtral: Path, junk: bytes) -> None:
    (mixtral / "model.safetensors").write_bytes(junk)
    with pytest.raises(GGUFError, match=r"model\.safetensors"):
        Job(mixtral)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({"model.norm.weight": "model.safetensors"}, "not in the index"),
        ({"model.norm.weight": "model-2.safetensors"}, "isn't in the folder"),
        ({"model.norm.weight": "../model.safetensors"}, "isn't in the folder"),
        (None, "weight_map"),
    ],
)
def test_indexes(mixtral: Path, index: object, message: str) -> None:
    (mixtral / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    with pytest.raises(GGUFError, match=message):
        Checkpoint(mixtral)


def test_a_tensor_in_two_files(mixtral: Path) -> None:
    shutil.copy(mixtral / "model.safetensors", mixtral / "model-2.safetensors")
    with pytest.raises(GGUFError, match="too"):
        Checkpoint(mixtral)
