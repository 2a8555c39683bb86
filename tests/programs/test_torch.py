"""ggufx.torch: values, storage that is shared rather than copied, and safetensors' names."""

from __future__ import annotations

import io
import warnings

import numpy as np
import pytest
from gguf_bytes import File
from labelled import add

import ggufx
from ggufx import GGUFError

torch = pytest.importorskip("torch", reason="torch (extra `torch`) is not installed")
from ggufx import torch as gtorch  # noqa: E402

NUMPY = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    file, values = File(), {}
    for name, shape, kind in (
        ("q8", (6, 64), 8), ("q4", (2, 3, 32), 2), ("f32", (5,), 0), ("f16", (4, 4), 1), ("ids", (3,), 26),
        ("none", (0, 32), 8),
        ("blk.0.ffn_up_exps.weight", (4, 3, 32), 8),
    ):  # fmt: skip
        values[name] = add(file, name, shape, kind)
    file.tensor("one", (), 0, np.float32(2.5).tobytes())
    values["one"] = np.float32(2.5)
    return file.write(tmp_path_factory.mktemp("torch") / "m.gguf"), values


@pytest.fixture(autouse=True)
def _no_warnings():
    """Torch warns about read-only arrays, for one; nothing here may cause that."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("dtype", [None, *NUMPY])
def test_load_file(model, dtype):
    path, values = model
    loaded = gtorch.load_file(path, dtype=dtype, threads=2)
    assert list(loaded) == list(values)
    for name, value in values.items():
        tensor = loaded[name]
        assert tensor.shape == np.shape(value)
        assert tensor.dtype == (torch.int32 if name == "ids" else dtype or torch.float32)
        assert (tensor.double().numpy() == value).all()
        if tensor.numel():
            tensor += 1  # writable
    assert list(gtorch.load_file(path, names=["q*"])) == ["q8", "q4"]
    with pytest.raises(GGUFError, match="nothing"):
        gtorch.load_file(path, names="nothing")
    with pytest.raises(TypeError, match="float64"):
        gtorch.load_file(path, dtype=torch.float64)


@pytest.mark.parametrize("dtype", NUMPY)
def test_bits(model, dtype):
    """The same bits as dequantize, bfloat16 included."""
    path, _ = model
    with ggufx.open(path) as f:
        for name in ("q8", "q4", "f32", "f16", "one"):
            want = np.atleast_1d(f[name].dequantize(NUMPY[dtype]))
            got = torch.atleast_1d(f[name].to_torch(dtype=dtype)).view(
                torch.int32 if dtype == torch.float32 else torch.int16
            )
            assert (got.numpy() == want.view(got.numpy().dtype)).all()


def test_no_second_copy(model, monkeypatch):
    """The memory decoded into is the tensor's own."""
    path, _ = model
    seen = []
    inner = gtorch.decode_all
    monkeypatch.setattr(gtorch, "decode_all", lambda *a: seen.append(inner(*a)) or seen[-1])
    for dtype in NUMPY:
        loaded = gtorch.load_file(path, dtype=dtype)
        for name, array in seen.pop().items():
            if array.size:
                assert loaded[name].data_ptr() == array.ctypes.data


def test_out(model):
    path, values = model
    with ggufx.open(path) as f:
        for dtype in NUMPY:
            out = torch.empty((6, 64), dtype=dtype)
            assert gtorch.to_torch(f["q8"], out=out) is out
            assert (out.double().numpy() == values["q8"]).all()
            parameter = torch.nn.Parameter(torch.empty((6, 64), dtype=dtype))
            gtorch.to_torch(f["q8"], out=parameter)
            assert (parameter.detach().double().numpy() == values["q8"]).all()
        with pytest.raises(ValueError, match="contiguous"):
            gtorch.to_torch(f["q8"], out=torch.empty((64, 6)).T)
        with pytest.raises(TypeError, match="asked for"):
            gtorch.to_torch(f["q8"], dtype=torch.float16, out=torch.empty((6, 64)))
        with pytest.raises(ValueError, match="shape"):
            gtorch.to_torch(f["q8"], out=torch.empty((6, 65)))


def test_slices_and_experts(model):
    path, values = model
    with ggufx.open(path) as f:
        assert (f["q8"][2:4].to_torch().numpy() == values["q8"][2:4]).all()
        expert = f["blk.0.ffn_up_exps.weight"].expert(2).to_torch(dtype=torch.bfloat16)
        assert (expert.float().numpy() == values["blk.0.ffn_up_exps.weight"][2]).all()
        with pytest.raises(TypeError, match="integers"):
            f["ids"].to_torch(dtype=torch.float32)
        assert f["ids"].to_torch().tolist() == values["ids"].tolist()


def test_safe_open(model):
    path, values = model
    with gtorch.safe_open(path, framework="pt", device="cpu", dtype=torch.float16) as f:
        assert f.keys() == list(values)
        assert f.get_tensor("q8").dtype == torch.float16
        assert (f.get_tensor("q8").float().numpy() == values["q8"]).all()
        part = f.get_slice("q8")
        assert part.get_shape() == [6, 64]
        assert (part[1:3].float().numpy() == values["q8"][1:3]).all()
        assert f.get_tensor("ids").dtype == torch.int32
    with gtorch.safe_open(path, framework="np") as f:
        assert type(f.get_tensor("q4")) is np.ndarray
        assert f.metadata() == {}
    with pytest.raises(ValueError, match="framework"):
        gtorch.safe_open(path, framework="tf")


def test_writable_arrays_without_copying_the_file(model):
    """torch.from_numpy over a copy-on-write map: no warning, nothing reaches the file."""
    path, values = model
    with ggufx.open(path, mode="c") as f:
        tensor = torch.from_numpy(f["f32"].data)
        tensor += 1
        assert (tensor.numpy() == values["f32"] + 1).all()
    with ggufx.open(path) as f:
        assert (f["f32"].data == values["f32"]).all()


def test_other_devices(model):
    """The meta device stands in for an accelerator: tensors go there one at a time."""
    path, values = model
    loaded = gtorch.load_file(path, device="meta", dtype=torch.bfloat16)
    assert list(loaded) == list(values)
    assert all(t.device.type == "meta" for t in loaded.values())
    assert loaded["q8"].dtype == torch.bfloat16
    assert loaded["ids"].dtype == torch.int32


def test_dlpack_and_round_trip(model):
    path, values = model
    with ggufx.open(path) as f:
        array = f["q8"].dequantize()
        assert torch.from_dlpack(array).data_ptr() == array.ctypes.data
        buffer = io.BytesIO()
        torch.save(f["q8"].to_torch(), buffer)
        buffer.seek(0)
        assert (torch.load(buffer).numpy() == values["q8"]).all()
