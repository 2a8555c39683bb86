"""Layer loops: grouping, recycled buffers, decoding ahead, flat memory."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from gguf_bytes import File
from labelled import add

import ggufx
from ggufx import GGUFError
from ggufx.model.layers import BufferPool


@pytest.fixture
def model(tmp_path):
    """A file of ten blocks, written out of order, and its values."""
    file, values = File(), {}
    values["token_embd.weight"] = add(file, "token_embd.weight", (8, 32), 8)
    for block in (3, 10, 0, 1, 2, 4, 5, 6, 7, 8):
        for name, shape, kind in (
            ("attn_q.weight", (block + 1, 64), 8),
            ("ffn_norm.weight", (64,), 0),
            ("idx", (3,), 26),
        ):
            key = f"blk.{block}.{name}"
            values[key] = add(file, key, shape, kind) + 0
    values["large"] = add(file, "large", (64, 256), 0)
    values["v.blk.0.x"] = add(file, "v.blk.0.x", (2, 32), 0)
    return file.write(tmp_path / "m.gguf"), values


def test_grouping(model):
    path, values = model
    with ggufx.open(path) as f:
        layers = f.layers()
        assert [layer.number for layer in layers] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 10]
        assert set(layers.outside) == {"token_embd.weight", "large", "v.blk.0.x"}
        layer = layers[-1]
        assert list(layer) == ["attn_q.weight", "ffn_norm.weight", "idx"]
        assert layer["attn_q.weight"] is layer["blk.10.attn_q.weight"] is f["blk.10.attn_q.weight"]
        for name, array in layer.dequantize().items():
            assert (array == values[f"blk.10.{name}"]).all()
        assert [layer.number for layer in f.layers("v.blk")] == [0]
        assert len(f.layers("none")) == 0
        assert list(f.layers("none").decoded()) == []


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("dtype", [None, "float16"])
def test_decoded(model, ahead, dtype):
    path, values = model
    with ggufx.open(path) as f:
        seen, memory = [], set()
        for number, arrays in f.layers().decoded(dtype, ahead=ahead):
            seen.append(number)
            memory.add(min(array.ctypes.data for array in arrays.values()))
            for name, array in arrays.items():
                want = values[f"blk.{number}.{name}"]
                assert array.dtype == (np.int32 if name == "idx" else np.dtype(dtype or "float32"))
                assert array.ctypes.data % 64 == 0
                assert (array == want).all()
                array[...] = 0  # the caller may scribble
        assert seen == [0, 1, 2, 3, 4, 5, 6, 7, 8, 10]
        assert len(memory) == (2 if ahead else 1)
    assert not [t for t in threading.enumerate() if t.name == "ggufx-ahead"]


def test_stopping_early_gives_everything_back(model):
    path, _ = model
    pool = BufferPool()
    with ggufx.open(path) as f:
        loop = f.layers().decoded(pool=pool)
        next(loop)
        loop.close()
        assert not pool._taken
        assert not [t for t in threading.enumerate() if t.name == "ggufx-ahead"]


@pytest.mark.parametrize("ahead", [True, False])
def test_errors_arrive_in_the_loop(tmp_path, ahead):
    file = File()
    for block in range(3):
        file.tensor(f"blk.{block}.x", (2, 32), 0)
    file.infos[2].offset = 1 << 40
    with ggufx.open(file.write(tmp_path / "m.gguf"), strict=False) as f, pytest.raises(GGUFError, match=r"blk\.2\.x"):
        list(f.layers().decoded(ahead=ahead))
    with ggufx.open(tmp_path / "m.gguf", strict=False) as f:
        loop = f.layers().decoded(ahead=ahead, pool=BufferPool())
        assert [next(loop)[0], next(loop)[0]] == [0, 1]
        with pytest.raises(GGUFError, match=r"blk\.2\.x"):
            next(loop)


def test_out_dictionaries(model):
    path, values = model
    with ggufx.open(path) as f:
        first, second = f.layers()[0], f.layers()[1]
        out = first.dequantize()
        assert first.dequantize(out=out) is out
        with pytest.raises(ValueError, match="shape"):
            second.dequantize(out=out)
        with pytest.raises(ValueError, match="block 0 has"):
            first.dequantize(out={})
        assert (out["idx"] == values["blk.0.idx"]).all()


def test_pool():
    pool = BufferPool()
    small, large = {"a": ((3,), "f4")}, {"a": ((100,), "f4"), "b": ((7, 2), "f2")}
    first = pool.take(small)
    second = pool.take(large)
    assert not np.shares_memory(first["a"], second["a"])
    assert not np.shares_memory(second["a"], second["b"])
    where = second["a"].ctypes.data
    pool.give(second)
    with pytest.raises(ValueError, match="given back"):
        pool.give(second)
    third = pool.take(large)
    assert third["a"].ctypes.data == where
    pool.give(first)
    pool.give(third)
    assert len(pool._free) == 2
    pool.take({"a": ((5000,), "f4")})
    assert len(pool._free) == 1, "one too small was let go for the larger"
    empty = BufferPool().take({"x": ((0, 4), "f4")})
    assert empty["x"].shape == (0, 4)


PEAK = """
import sys, resource, ggufx
def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024
f = ggufx.open(sys.argv[1])
before = peak()
for number, arrays in f.layers().decoded(threads=1):
    assert arrays["w.weight"][0, 0] == number + 1
print(peak() - before)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs /proc")
def test_peak_memory_is_two_layers(tmp_path):
    """Twelve layers of 8 MiB, decoded: the process never holds more than two of them and the packed bytes of one."""
    file = File()
    for block in range(12):
        values = np.full((2048, 1024), block + 1, np.float32)
        file.tensor(f"blk.{block}.w.weight", values.shape, 1, values.astype("<f2").tobytes())
    path = file.write(tmp_path / "m.gguf")
    del file
    gc.collect()
    run = subprocess.run([sys.executable, "-c", PEAK, path], capture_output=True, text=True, check=True)
    layer, packed = 8 << 20, 4 << 20
    assert int(run.stdout) < 2 * layer + 2 * packed + (3 << 20)


def test_advice(model):
    path, values = model
    for mode in ("r", "c", "read"):
        with ggufx.open(path, mode=mode) as f:
            for hint in ("normal", "sequential", "random", "willneed", "dontneed"):
                f.advise(hint)
                f["blk.10.attn_q.weight"].advise(hint)
            if mode == "c":
                f["large"].data[...] = 5
                f.advise("dontneed")
                assert (f["large"].data == 5).all(), "advice never loses what was written"
            assert (f["blk.10.attn_q.weight"].dequantize() == values["blk.10.attn_q.weight"]).all()
            with pytest.raises(ValueError, match="hint"):
                f["blk.10.idx"].advise("remove")
    with pytest.raises(GGUFError, match="closed"):
        f.advise("normal")
