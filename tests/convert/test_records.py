"""Tensors and the architecture's metadata against what llama.cpp's converter wrote for the same checkpoints."""

from __future__ import annotations

import hashlib
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggufx
from ggufx.convert.job import PLAIN, Job
from ggufx.formats.file_types import FileType
from ggufx.formats.tensor_types import QType
from ggufx.formats.value_types import ValueType

VECTORS = Path(__file__).parent.parent / "vectors" / "convert"
MODELS = sorted(path.name for path in VECTORS.iterdir())
GENERAL = {"general.name": ("Tiny", ValueType.STRING)}
VOCABULARY = {"tokenizer.ggml.model": ("none", ValueType.STRING)}


def record(model: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((VECTORS / model / "record.json").read_text())
    return found


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def written(model: str, kind: str, folder: Path) -> Path:
    job, path = Job(VECTORS / model), folder / "out.gguf"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ggufx.GGUFWarning)
        job.write(path, job.resolve(kind), GENERAL, VOCABULARY, 2, sync=False)
    return path


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "q8_0", "auto"])
def test_tensors_are_the_converters(model: str, kind: str, tmp_path: Path) -> None:
    expected = record(model)
    column = expected["outtypes"].index(kind)
    with ggufx.open(written(model, kind, tmp_path)) as f:
        assert list(f.tensors) == [t["n"] for t in expected["tensors"]]
        for t in expected["tensors"]:
            tensor = f[t["n"]]
            assert (tensor.qtype.name, list(tensor.ggml_shape)) == (t["t"][column], t["ne"]), t["n"]
            digest = hashlib.sha256(np.ascontiguousarray(tensor.data).tobytes()).hexdigest()
            assert digest[:32] == t["sha"][t["t"][column]], t["n"]


@pytest.mark.parametrize("kind", ["f32", "q8_0"])
def test_metadata_is_the_converters(model: str, kind: str, tmp_path: Path) -> None:
    expected = record(model)
    values = {key: value for key, _, value in expected["kv"]}
    values |= {key: value for key, _, value in expected["kv_differs"].get(kind, [])}
    own = [k for k in values if not k.startswith("general.") or k in ("general.file_type", "general.architecture")]
    with ggufx.open(written(model, kind, tmp_path)) as f:
        have = {k: f.metadata[k] for k in f.metadata if k in own or k.split(".")[0] == values["general.architecture"]}
        assert list(have) == own
        for key, value in have.items():
            assert (value.tolist() if isinstance(value, np.ndarray) else value) == values[key], key


def test_a_mix_is_what_requantizing_makes(tmp_path: Path) -> None:
    from ggufx.requantize.job import requantize

    plain = written("tiny-mixtral", "f32", tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ggufx.GGUFWarning)
        requantize(plain, other / "wanted.gguf", "Q4_K_M", sync=False)
    direct = written("tiny-mixtral", "Q4_K_M", other)
    assert direct.read_bytes() == (other / "wanted.gguf").read_bytes()


def test_auto_says_that_float32_becomes_f16(tmp_path: Path) -> None:
    job = Job(float32_copy(tmp_path))
    with pytest.warns(ggufx.GGUFWarning, match="into F16"):
        assert job.resolve("auto") == "F16"


def test_infinities_are_said(tmp_path: Path) -> None:
    folder = float32_copy(tmp_path, scale=1e30)
    with pytest.warns(ggufx.GGUFWarning, match="infinite in 'token_embd"):
        ggufx.convert(folder, tmp_path / "out.gguf", "f16", pre="llama-bpe", sync=False)


def float32_copy(folder: Path, scale: float = 1) -> Path:
    from ggufx.convert.checkpoint import Checkpoint

    source = Checkpoint(VECTORS / "Tiny-Llama-3.2-1B-Instruct")
    header, data = {}, b""
    for name, tensor in source.items():
        values = (tensor.values() * np.float32(scale)).tobytes()
        entry = {"dtype": "F32", "shape": tensor.shape, "data_offsets": [len(data), len(data) + len(values)]}
        header[name], data = entry, data + values
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((source.folder / name).read_bytes())
    return folder


def test_plain_types_are_file_types() -> None:
    assert all(int(FileType.parse(name)) == number for name, (_, number) in PLAIN.items())


def test_norms_of_more_than_one_dimension_stay_float32() -> None:
    job = Job(VECTORS / "tiny-mixtral")
    norm = job.planned[0]._replace(name="blk.0.attn_q_norm.weight", shape=(4, 32))
    assert job.plain_type(norm, QType.Q8_0) is QType.F32
