"""Options of a conversion, and what the metadata says of names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_checkpoints import checkpoint

import ggufx


@pytest.fixture
def lfm2(tmp_path: Path) -> Path:
    return checkpoint("tiny-lfm2", tmp_path / "in")


def test_the_given_name(lfm2: Path, tmp_path: Path) -> None:
    ggufx.convert(lfm2, tmp_path / "out.gguf", "f16", pre="lfm2", name="Given Name 7B", sync=False)
    with ggufx.open(tmp_path / "out.gguf") as f:
        assert f.metadata["general.name"] == "Given Name 7B"


def test_queries_keys_and_values_as_one(tmp_path: Path) -> None:
    llama = checkpoint("Tiny-Llama-3.2-1B-Instruct", tmp_path / "in")
    ggufx.convert(llama, tmp_path / "apart.gguf", "f16", pre="llama-bpe", sync=False)
    ggufx.convert(llama, tmp_path / "one.gguf", "f16", pre="llama-bpe", fuse_qkv=True, sync=False)
    with ggufx.open(tmp_path / "apart.gguf") as apart, ggufx.open(tmp_path / "one.gguf") as one:
        parts = [apart[f"blk.1.attn_{part}.weight"].data for part in "qkv"]
        assert np.array_equal(one["blk.1.attn_qkv.weight"].data, np.concatenate(parts))
        assert "blk.1.attn_q.weight" not in one.tensors
        names = [name for name in apart.tensors if name.startswith("blk.0.")]
        last = max(names.index(f"blk.0.attn_{part}.weight") for part in "qkv")
        names[last] = "blk.0.attn_qkv.weight"
        assert [n for n in names if n[-8] not in "qkv" or "_qkv" in n] == [n for n in one.tensors if "blk.0." in n]


def test_queries_keys_and_values_only_where_a_layer_has_them(lfm2: Path, tmp_path: Path) -> None:
    ggufx.convert(lfm2, tmp_path / "out.gguf", "f16", pre="lfm2", fuse_qkv=True, sync=False)
    with ggufx.open(tmp_path / "out.gguf") as f:
        assert [name for name in f.tensors if "qkv" in name] == ["blk.1.attn_qkv.weight"]


def test_gates_and_inputs_as_one_are_not_for_all(lfm2: Path, tmp_path: Path) -> None:
    with pytest.raises(ggufx.GGUFError, match="lfm2 models can't have gates"):
        ggufx.convert(lfm2, tmp_path / "out.gguf", "f16", pre="lfm2", fuse_gate_up=True)
    assert not (tmp_path / "out.gguf").exists()
