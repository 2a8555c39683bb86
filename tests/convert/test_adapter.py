"""LoRA adapters: the reference's bytes, and what they mean to the converted model."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from tiny_checkpoints import adapter, checkpoint, vectors, weights, write_safetensors

import ggufx
from ggufx.cli import main

WANTED = {
    "f32": "5f35a81ade7544bd24d0879eb3d1ec01d8a262b7c3ace834779180c92caa3bbb",
    "f16": "8772b80a5ac5380f40a720267e694ba14abe4028ff658415e5e8422319bd6a1d",
    "q8_0": "d1f61de07df88891c083e2b740a31cadbf7ffcc5047980e2dcf49d5e78bbea11",
}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return checkpoint("tiny-llama-bf16", tmp_path)


@pytest.mark.parametrize("kind", sorted(WANTED))
def test_whole_files(kind: str, base: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    done = ggufx.convert(adapter(tmp_path / "tiny-lora"), out, kind, base=base, sync=False)
    assert hashlib.sha256(out.read_bytes()).hexdigest() == WANTED[kind]
    assert (done.arch, done.tensors) == ("llama", 12)


def test_the_command(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = adapter(tmp_path / "tiny-lora"), tmp_path / "out.gguf"
    assert main(["convert", str(folder), str(out), "--type", "f32", "--base", str(base)]) == 0
    assert hashlib.sha256(out.read_bytes()).hexdigest() == WANTED["f32"]
    assert main(["convert", str(folder), str(out)]) == 1
    assert "--base" in capsys.readouterr().err


def test_its_product_is_the_change_of_the_weight(base: Path, tmp_path: Path) -> None:
    folder = adapter(tmp_path / "lora")
    ggufx.convert(folder, tmp_path / "lora.gguf", "f32", base=base, sync=False)
    tensors = {}
    for name, _, shape in vectors()["checkpoints"]["tiny-llama-bf16"]["tensors"]:
        data = weights(name, "F32", tuple(shape))
        stem = "lora/base_model.model." + name.removesuffix(".weight")
        if ("q_proj" in name or "k_proj" in name or "down_proj" in name) and "layers" in name:
            a = np.frombuffer(weights(stem + ".lora_A.weight", "F32", (4, shape[1])), np.float32).reshape(4, -1)
            b = np.frombuffer(weights(stem + ".lora_B.weight", "F32", (shape[0], 4)), np.float32).reshape(-1, 4)
            data = (b @ a).tobytes()
        tensors[name] = ("F32", tuple(shape), data)
    write_safetensors(base / "model.safetensors", tensors)
    ggufx.convert(base, tmp_path / "whole.gguf", "f32", sync=False)
    with ggufx.open(tmp_path / "lora.gguf") as lora, ggufx.open(tmp_path / "whole.gguf") as whole:
        for name in ("blk.0.attn_q.weight", "blk.1.attn_k.weight", "blk.0.ffn_down.weight"):
            product = lora[f"{name}.lora_b"].data @ lora[f"{name}.lora_a"].data
            np.testing.assert_allclose(product, whole[name].data, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"), "other half"),
        (
            lambda t: t.update({"base_model.model.model.layers.0.x_proj.lora_A.weight": t.popitem()[1]}),
            "other half|such",
        ),
        (lambda t: t.update({"base_model.model.lm_head.weight": ("F32", (2, 2), bytes(16))}), "neither lora_A"),
    ],
)
def test_broken_ones(change, message: str, base: Path, tmp_path: Path) -> None:
    folder = adapter(tmp_path / "lora")
    tensors = {}
    for block in range(2):
        for module, shape in {"q": (64, 64), "k": (32, 64)}.items():
            for part, size in (("A", (4, shape[1])), ("B", (shape[0], 4))):
                name = f"base_model.model.model.layers.{block}.self_attn.{module}_proj.lora_{part}.weight"
                tensors[name] = ("F32", size, bytes(4 * size[0] * size[1]))
    change(tensors)
    write_safetensors(folder / "adapter_model.safetensors", tensors)
    with pytest.raises(ggufx.GGUFError, match=message):
        ggufx.convert(folder, tmp_path / "out.gguf", "f16", base=base)
    assert not (tmp_path / "out.gguf").exists()


def test_a_mix_is_no_type_for_an_adapter(base: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no type for an adapter"):
        ggufx.convert(adapter(tmp_path / "lora"), tmp_path / "out.gguf", "Q4_K_M", base=base)


def test_alpha_is_needed(base: Path, tmp_path: Path) -> None:
    folder = adapter(tmp_path / "lora")
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    with pytest.raises(ggufx.GGUFError, match="lora_alpha is None"):
        ggufx.convert(folder, tmp_path / "out.gguf", "f16", base=base)
