"""From a GGUF file back to a checkpoint: the same bits, and a configuration that gives the same file again."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from tiny_checkpoints import checkpoint, vectors

import ggufx
from ggufx.cli import main
from ggufx.convert.architectures import architecture_of
from ggufx.convert.checkpoint import Checkpoint
from ggufx.convert.hparams import Config

CHECKPOINTS = vectors()["checkpoints"]
# Forms of names that others have too, or what a conversion loses: rows of positions, and what multipliers round.
OTHER_FORMS = ("-bare", "-images", "-masked")
LOSING = ("tiny-roberta", "falcon-h1-multipliers", "tiny-gpt-oss", "tiny-bitnet")
MODELS = sorted(name for name in CHECKPOINTS if not name.endswith(OTHER_FORMS) and name not in LOSING)
# Whose configuration doesn't follow from the file, so that the original is needed.
WITHOUT_CONFIG = {
    "falcon-mamba",
    "granite-hybrid-attention",
    "granite-hybrid-dense",
    "hunyuan-dynamic",
    "tiny-bamba",
    "tiny-deepseek-v2",
    "tiny-deepseek-v3",
    "tiny-falcon-h1",
    "tiny-gemma3n",
    "tiny-granite-hybrid",
    "tiny-mamba",
    "tiny-mamba2",
    "tiny-modernbert",
    "tiny-nomic-bert",
}


def converted(model: str, folder: Path, kind: str = "") -> tuple[Path, Path]:
    """A checkpoint and the GGUF file made of it."""
    source, out = checkpoint(model, folder / "source"), folder / f"{model}.gguf"
    dtype = CHECKPOINTS[model]["tensors"][0][1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ggufx.GGUFWarning)
        ggufx.convert(
            source, out, kind or ("bf16" if dtype == "BF16" else "f32"), pre=CHECKPOINTS[model].get("pre"), sync=False
        )
    return source, out


@pytest.mark.parametrize("model", MODELS)
def test_the_same_bits_come_back(model: str, tmp_path: Path) -> None:
    source, file = converted(model, tmp_path)
    back = tmp_path / model
    done = ggufx.save_checkpoint(file, back, config=source / "config.json", sync=False)
    config = Config.read(source)
    row = architecture_of(config)
    before, after = Checkpoint(source), Checkpoint(back)
    dropped = {name for name in before if name not in after}
    assert all("pooler" in name or "lm_head" in name or "shared.weight" in name for name in dropped), dropped
    assert done.class_name == config.class_name
    assert row.name == done.arch
    for name, tensor in after.items():
        if tensor.dtype == before[name].dtype:
            assert tensor.bits().tobytes() == before[name].bits().tobytes(), name
        else:
            assert np.array_equal(tensor.values(), before[name].values()), name


@pytest.mark.parametrize("model", MODELS)
def test_the_derived_configuration_gives_the_same_file(model: str, tmp_path: Path) -> None:
    _, file = converted(model, tmp_path)
    back = tmp_path / "back" / model
    if model in WITHOUT_CONFIG:
        with pytest.raises(ggufx.GGUFError, match="--config"):
            ggufx.save_checkpoint(file, back, sync=False)
        return
    done = ggufx.save_checkpoint(file, back, sync=False)
    if done.tokenizer:
        assert "can't be turned back" in done.tokenizer
        return
    again = tmp_path / "again.gguf"
    kind = {"BF16": "bf16", "F32": "f32"}[CHECKPOINTS[model]["tensors"][0][1]]
    ggufx.convert(back, again, kind, pre=CHECKPOINTS[model].get("pre"), sync=False)
    with ggufx.open(file) as one, ggufx.open(again) as two:
        assert {n: t.qtype for n, t in one.tensors.items()} == {n: t.qtype for n, t in two.tensors.items()}
        for name in one.tensors:
            assert np.array_equal(one[name].data, two[name].data), name
        assert set(one.metadata) == set(two.metadata)
        for key in one.metadata:
            assert str(one.metadata[key]) == str(two.metadata[key]), key


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, file = converted("tiny-qwen3", tmp_path)
    assert main(["to-hf", str(file), str(tmp_path / "out"), "--no-progress"]) == 0
    assert "Qwen3ForCausalLM, bfloat16" in capsys.readouterr().out
    names = {p.name for p in (tmp_path / "out").iterdir()}
    assert names == {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert json.loads((tmp_path / "out" / "config.json").read_text())["num_hidden_layers"] == 2


def test_a_quantized_file_is_decoded(tmp_path: Path) -> None:
    _, file = converted("tiny-mixtral", tmp_path, "q8_0")
    ggufx.save_checkpoint(file, tmp_path / "out", dtype="f32", sync=False)
    back = Checkpoint(tmp_path / "out")
    with ggufx.open(file) as f:
        experts = f["blk.1.ffn_up_exps.weight"].dequantize()
        for number in range(3):
            name = f"model.layers.1.block_sparse_moe.experts.{number}.w3.weight"
            assert np.array_equal(back[name].values(), experts[number])


def test_transformers_computes_the_same(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch (extra `torch`) is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    for model in ("tiny-qwen3", "tiny-llama-bf16", "tiny-mixtral", "tiny-granite"):
        source, file = converted(model, tmp_path)
        ggufx.save_checkpoint(file, tmp_path / "back" / model, sync=False)
        logits = []
        for folder in (source, tmp_path / "back" / model):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
            with torch.no_grad():
                logits.append(loaded(torch.arange(12)[None]).logits)
        assert torch.equal(*logits), model


def test_what_has_no_way_back(tmp_path: Path) -> None:
    with ggufx.Writer(tmp_path / "x.gguf", sync=False) as w:
        w.set("general.architecture", "nobody")
        w.add("token_embd.weight", np.zeros((4, 32), np.float32))
    with pytest.raises(ggufx.GGUFError, match="'nobody' have no way back"):
        ggufx.save_checkpoint(tmp_path / "x.gguf", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    _, file = converted("tiny-qwen3", tmp_path)
    with pytest.raises(ValueError, match="dtype is 'int8'"):
        ggufx.save_checkpoint(file, tmp_path / "out", dtype="int8")
    llama = checkpoint("tiny-llama-bf16", tmp_path / "other")
    with pytest.raises(ggufx.GGUFError, match="is llama, the file is qwen3"):
        ggufx.save_checkpoint(file, tmp_path / "out", config=llama / "config.json")
