"""The types a conversion gives, mixes in the same pass, and what it says of values that don't survive."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from tiny_checkpoints import checkpoint, vectors, weights, write_safetensors

import ggufx
from ggufx.convert.job import Job
from ggufx.convert.types import PLAIN, plain_type
from ggufx.formats.file_types import FileType
from ggufx.formats.tensor_types import QType


@pytest.mark.parametrize("mix", ["Q4_K_M", "Q5_0", "IQ4_NL"])
def test_a_mix_is_what_requantizing_makes(mix: str, tmp_path: Path) -> None:
    folder = checkpoint("tiny-mixtral", tmp_path)
    ggufx.convert(folder, tmp_path / "plain.gguf", "f32", sync=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ggufx.GGUFWarning)  # rows of 64 have no K types
        ggufx.requantize(tmp_path / "plain.gguf", tmp_path / "wanted.gguf", mix, sync=False)
        ggufx.convert(folder, tmp_path / "direct.gguf", mix, sync=False)
    assert (tmp_path / "direct.gguf").read_bytes() == (tmp_path / "wanted.gguf").read_bytes()


def test_importance_and_single_types_are_as_in_requantizing(tmp_path: Path) -> None:
    folder = checkpoint("tiny-bitnet", tmp_path)
    ggufx.convert(folder, tmp_path / "plain.gguf", "f32", sync=False)
    rng = np.random.default_rng(1)
    with ggufx.open(tmp_path / "plain.gguf") as f:
        matrix = {t.name: rng.random(t.shape[-1], np.float32) for t in f.tensors.values() if len(t.shape) == 2}
    options = {"imatrix": matrix, "tensor_types": [("ffn_up", ggufx.QType.Q6_K)], "output_type": ggufx.QType.Q8_0}
    for mix in ("IQ2_XXS", "Q3_K_M"):
        ggufx.requantize(tmp_path / "plain.gguf", tmp_path / "wanted.gguf", mix, sync=False, **options)
        ggufx.convert(folder, tmp_path / "direct.gguf", mix, sync=False, **options)
        assert (tmp_path / "direct.gguf").read_bytes() == (tmp_path / "wanted.gguf").read_bytes()


@pytest.mark.parametrize("model", ["tiny-mixtral", "tiny-gpt-oss-bf16", "tiny-qwen2-moe"])
def test_importance_of_experts(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ggufx.convert.encoding.SLAB", 1 << 9)  # several parts of each expert
    folder, pre = checkpoint(model, tmp_path), vectors()["checkpoints"][model].get("pre")
    ggufx.convert(folder, tmp_path / "plain.gguf", "f32", pre=pre, sync=False)
    rng = np.random.default_rng(1)
    with ggufx.open(tmp_path / "plain.gguf") as f:
        shapes = {t.name: (*t.shape[:-2], t.shape[-1]) for t in f.tensors.values() if len(t.shape) > 1}
    matrix = {name: rng.random(shape, np.float32) for name, shape in shapes.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ggufx.GGUFWarning)
        ggufx.requantize(tmp_path / "plain.gguf", tmp_path / "wanted.gguf", "IQ4_NL", imatrix=matrix, sync=False)
        ggufx.convert(folder, tmp_path / "direct.gguf", "IQ4_NL", pre=pre, imatrix=matrix, sync=False)
    assert (tmp_path / "direct.gguf").read_bytes() == (tmp_path / "wanted.gguf").read_bytes()


def test_plain_types_take_no_importance(tmp_path: Path) -> None:
    folder = checkpoint("tiny-mixtral", tmp_path)
    with pytest.raises(ValueError, match="for mixes"):
        ggufx.convert(folder, tmp_path / "out.gguf", "q8_0", imatrix={"output.weight": np.ones(64, np.float32)})
    with pytest.raises(ValueError, match="for mixes"):
        ggufx.convert(folder, tmp_path / "out.gguf", "f16", pure=True)


def as_float32(folder: Path, scale: float = 1) -> Path:
    """A checkpoint with other values, in float32."""
    path = folder / "model.safetensors"
    entry = vectors()["checkpoints"][folder.name]
    shapes = {name: tuple(shape) for name, _, shape in entry["tensors"]}
    write_safetensors(path, {n: ("F32", s, weights(n, "F32", s, scale)) for n, s in shapes.items()})
    return folder


def test_auto_says_that_float32_becomes_f16(tmp_path: Path) -> None:
    job = Job(as_float32(checkpoint("tiny-mixtral", tmp_path)))
    with pytest.warns(ggufx.GGUFWarning, match="into F16"):
        assert job.resolve("auto") == "F16"


def test_auto_is_the_checkpoints_own_half(tmp_path: Path) -> None:
    assert Job(checkpoint("tiny-mixtral", tmp_path)).resolve("auto") == "BF16"


def test_infinities_are_said(tmp_path: Path) -> None:
    folder = as_float32(checkpoint("tiny-mixtral", tmp_path), scale=1e6)
    with pytest.warns(ggufx.GGUFWarning, match="infinite in 'output.weight"):
        ggufx.convert(folder, tmp_path / "out.gguf", "f16", sync=False)
    with ggufx.open(tmp_path / "out.gguf") as f:
        assert np.isinf(f["token_embd.weight"].data).any()


def test_plain_types_are_file_types() -> None:
    assert all(int(FileType.parse(name)) == number for name, (_, number) in PLAIN.items())


def test_norms_of_more_than_one_dimension_stay_float32(tmp_path: Path) -> None:
    job = Job(checkpoint("tiny-mixtral", tmp_path))
    norm = job.planned[0]._replace(name="blk.0.attn_q_norm.weight", shape=(4, 32))
    assert plain_type(norm, QType.Q8_0) is QType.F32


def test_a_type_that_needs_importance_is_refused(tmp_path: Path) -> None:
    folder = checkpoint("tiny-llama-256", tmp_path) if "tiny-llama-256" in vectors()["checkpoints"] else None
    if folder is None:
        folder = checkpoint("tiny-bitnet", tmp_path)
    with pytest.raises(ggufx.GGUFError, match="importance matrix"):
        ggufx.convert(folder, tmp_path / "out.gguf", "IQ2_XXS", sync=False)
    assert [p.name for p in tmp_path.iterdir()] == [folder.name]


def test_a_pickled_checkpoint_gives_the_same_file(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch (extra `torch`) is not installed")
    folder = checkpoint("tiny-qwen3", tmp_path)
    pre = vectors()["checkpoints"]["tiny-qwen3"]["pre"]
    ggufx.convert(folder, tmp_path / "a.gguf", "q8_0", pre=pre, sync=False)
    state = {}
    for name, _, shape in vectors()["checkpoints"]["tiny-qwen3"]["tensors"]:
        bits = np.frombuffer(weights(name, "BF16", tuple(shape)), np.int16).reshape(shape)
        state[name] = torch.from_numpy(bits.copy()).view(torch.bfloat16)
    torch.save(state, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    ggufx.convert(folder, tmp_path / "b.gguf", "q8_0", pre=pre, sync=False)
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_shards_change_the_order_alone(tmp_path: Path) -> None:
    folder = checkpoint("tiny-mixtral", tmp_path)
    ggufx.convert(folder, tmp_path / "one.gguf", "q8_0", sync=False)
    (folder / "model.safetensors").unlink()
    names = [(n, d, tuple(s)) for n, d, s in vectors()["checkpoints"]["tiny-mixtral"]["tensors"]]
    files = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    for n, file in enumerate(files):
        write_safetensors(folder / file, {name: (d, s, weights(name, d, s)) for name, d, s in names[n::2]})
    index = {name: files[n % 2] for n, (name, _, _) in enumerate(names)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    ggufx.convert(folder, tmp_path / "two.gguf", "q8_0", sync=False)
    with ggufx.open(tmp_path / "one.gguf") as one, ggufx.open(tmp_path / "two.gguf") as two:
        assert list(one.tensors) != list(two.tensors)
        assert sorted(one.tensors) == sorted(two.tensors)
        assert all(np.array_equal(one[name].data, two[name].data) for name in one.tensors)
