"""Every ``out=`` of a file's tensors: exact or refused with the tensor's name, and never the memory that is read."""

from __future__ import annotations

import gguf_bytes as gb
import ml_dtypes
import numpy as np
import pytest
from gguf_bytes import File
from labelled import add

import ggufx

N = 4


@pytest.fixture
def path(tmp_path):
    file = File().add("general.architecture", gb.STRING, b"x").add("x.expert_count", gb.U32, N)
    add(file, "blk.0.ffn_up_exps.weight", (N, 6, 32), 0)
    add(file, "blk.0.ffn_down_exps.weight", (N, 6, 32), 8)
    for k in range(N):
        add(file, f"blk.1.ffn_up.{k}.weight", (6, 32), 0)
    add(file, "spare", (2, N, 6, 32), 0)
    add(file, "ids", (6,), 26)
    path = tmp_path / "model.gguf"
    path.write_bytes(file.bytes())
    return path


STACK = "blk.0.ffn_up_exps.weight"
CALLS = {
    "dequantize": (lambda f, out: f[STACK].dequantize(out=out), STACK),
    "take": (lambda f, out: f[STACK].take([3, 1, 0, 2], out=out), STACK),
    "experts": (lambda f, out: f[STACK].experts([3, 1, 0, 2], out=out), STACK),
    "stacked": (lambda f, out: f.moe[0]["up"].decode([3, 1, 0, 2], out=out), STACK),
    "separate": (lambda f, out: f.moe[1]["up"].decode([3, 1, 0, 2], out=out), "blk.1.ffn_up.0.weight"),
    "an expert layer": (lambda f, out: f.moe[1].decode([3, 1, 0, 2], out={"up": out})["up"], "blk.1.ffn_up.0.weight"),
}
SHAPE = (N, 6, 32)


@pytest.mark.parametrize("name", CALLS)
def test_a_right_one_is_returned(path, name):
    call, _ = CALLS[name]
    with ggufx.open(path, mode="c") as f:
        out = np.empty(SHAPE, np.float32)
        assert call(f, out) is out
        order = slice(None) if name == "dequantize" else [3, 1, 0, 2]
        tensors = [f[f"blk.1.ffn_up.{k}.weight"].dequantize() for k in range(N)]
        whole = np.stack(tensors) if CALLS[name][1].startswith("blk.1") else f["blk.0.ffn_up_exps.weight"].dequantize()
        assert np.array_equal(out, whole[order])


def read_only():
    out = np.empty(SHAPE, np.float32)
    out.flags.writeable = False
    return out


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    ("error", "match", "make"),
    [
        (TypeError, "out must be a numpy array, not list", lambda: [0.0]),
        (TypeError, "out has dtype float64", lambda: np.empty(SHAPE)),
        (TypeError, "out has dtype >f4", lambda: np.empty(SHAPE, ">f4")),
        (TypeError, "out is a masked array", lambda: np.ma.zeros(SHAPE, np.float32)),
        (ValueError, r"out has shape \(4, 6, 31\), the values have \(4, 6, 32\)", lambda: np.empty((4, 6, 31), "f4")),
        (ValueError, "out isn't C-contiguous", lambda: np.empty((32, 6, 4), np.float32).T),
        (ValueError, "out isn't C-contiguous", lambda: np.empty((8, 6, 32), np.float32)[::2]),
        (ValueError, "out is read-only", read_only),
        (
            ValueError,
            "out isn't aligned to its 4-byte items",
            lambda: np.empty(4 * 4 * 6 * 32 + 4, np.uint8)[1:-3].view(np.float32).reshape(SHAPE),
        ),
    ],
)
def test_others_are_refused_by_the_tensor_s_name(path, name, error, match, make):
    call, tensor = CALLS[name]
    with ggufx.open(path) as f, pytest.raises(error, match=rf"model.gguf: tensor '{tensor}': {match}"):
        call(f, make())


def test_dtypes_that_contradict(path):
    with ggufx.open(path) as f:
        tensor = f["blk.0.ffn_up_exps.weight"]
        for call in (tensor.dequantize, lambda **o: tensor.take([0, 1, 2, 3], **o)):
            with pytest.raises(TypeError, match=r"ffn_up_exps.weight': out has dtype float32, but dtype=bfloat16 was"):
                call(dtype="bfloat16", out=np.empty(SHAPE, np.float32))
            for stored in (np.uint16, ml_dtypes.bfloat16):
                out = np.empty(SHAPE, stored)
                assert call(dtype="bfloat16", out=out) is out
        with pytest.raises(TypeError, match="tensor 'ids': out must be a native int32 array for I32, not float32"):
            f["ids"].dequantize(out=np.empty(6, np.float32))
        for nothing in (tensor.take, tensor.experts):
            with pytest.raises(TypeError, match=r"ffn_up_exps.weight': out has dtype float64"):
                nothing([], out=np.empty((0, 6, 32)))


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("where", ["itself", "beside"])
def test_the_file_s_own_memory_is_refused(path, name, where):
    call, tensor = CALLS[name]
    with ggufx.open(path, mode="c") as f:
        before = f["spare"].data[0].copy(), f[tensor].data.copy()
        own = f["spare"].data[1]
        if where == "itself":  # from the middle of what is read into what lies behind it
            start = f[tensor].offset + 64
            own = f[tensor]._source.read(start, start + own.nbytes).view(np.float32).reshape(SHAPE)
        with pytest.raises(ValueError, match=rf"model.gguf: tensor '{tensor}'.*: out lies in the file's own memory"):
            call(f, own)
        assert np.array_equal(f["spare"].data[0], before[0])
        assert np.array_equal(f[tensor].data, before[1])


def test_a_layer_s_arrays(path):
    with ggufx.open(path, mode="c") as f:
        layer = f.layers()[1]
        out = layer.dequantize()
        assert layer.dequantize(out=out) is out
        with pytest.raises(ValueError, match=r"ffn_up.0.weight': out lies in the file's own memory"):
            layer.dequantize(out=out | {"ffn_up.3.weight": layer["ffn_up.0.weight"].data})
        with pytest.raises(ValueError, match=r"out\['ffn_up.1.weight'\] and out\['ffn_up.2.weight'\] overlap"):
            layer.dequantize(out=out | {"ffn_up.2.weight": out["ffn_up.1.weight"]})
        with pytest.raises(TypeError, match=r"ffn_up.2.weight': out must be a numpy array, not list"):
            layer.dequantize(out=out | {"ffn_up.2.weight": [0.0]})


def test_an_expert_layer_s_arrays(path):
    with ggufx.open(path, mode="c") as f:
        moe = f.moe[0]
        out = moe.decode([1, 2])
        assert moe.decode([2, 1], out=out) is out
        with pytest.raises(ValueError, match=r"out\['up'\] and out\['down'\] overlap"):
            moe.decode([1, 2], out=dict.fromkeys(("up", "down"), out["up"]))
        with pytest.raises(ValueError, match="out lies in the file's own memory"):
            moe.decode([1, 2], out=out | {"down": f["spare"].data[0, :2]})


def test_indices_are_not_written_over(path):
    memory = np.zeros(3 * 6 * 32, np.int32)
    with ggufx.open(path) as f, pytest.raises(ValueError, match=r"ffn_down_exps.weight': out overlaps the indices"):
        f["blk.0.ffn_down_exps.weight"].take(memory[:3], out=memory.view(np.float32).reshape(3, 6, 32))
