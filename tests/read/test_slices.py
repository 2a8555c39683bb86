"""Slices, rows and chosen entries of packed tensors against numpy on the decoded whole."""

from __future__ import annotations

import numpy as np
import pytest
from gguf_bytes import File
from hypothesis import given, settings
from hypothesis import strategies as st
from labelled import add

import ggufx
from ggufx import GGUFError
from ggufx.model import permute

SHAPES = {"m": (6, 64), "deep": (3, 5, 96), "four": (2, 3, 4, 32), "v": (128,), "one": (1, 32)}
KINDS = {"f32": 0, "f16": 1, "q4": 2, "q8": 8, "i32": 26}


@pytest.fixture(scope="module", params=["r", "read"])
def pairs(request, tmp_path_factory):
    """An open file, and the values of its tensors."""
    file, values = File(), {}
    for kind, code in KINDS.items():
        for name, shape in SHAPES.items():
            values[f"{kind}.{name}"] = add(file, f"{kind}.{name}", shape, code)
    path = file.write(tmp_path_factory.mktemp("slices") / "m.gguf")
    with ggufx.open(path, mode=request.param) as f:
        yield f, values


KEYS = [
    0, -1, slice(1, 3), slice(None), slice(0, 0), slice(2, 100), (1, 2), (0, slice(1, 3)), (..., 1, slice(0, 32)), (2,),
    (1, ..., slice(32, 64)), (slice(1, 2), slice(0, 2)), (slice(1, 2), 3), (0, 0, slice(32, 96)), (-1, -1, slice(None)),
    (slice(5, 3), 0), (), ..., (1, 1, 1), np.int64(1),
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_same_as_numpy(pairs, key):
    """Whatever is given out is what numpy gives; what can't be is refused."""
    f, values = pairs
    outcomes = set()
    for name, value in values.items():
        block = 32 if name.startswith("q") else 1
        try:
            places = np.arange(value.size).reshape(value.shape)[key]
        except IndexError:
            with pytest.raises(IndexError):
                f[name][key]
            continue
        run = np.ravel(places)
        if block > 1 and not run.size and places.shape[1:] != value.shape[1:]:
            continue  # nothing is nothing: whether cutting it out of blocks is refused doesn't matter
        whole = run.size == 0 or (places.ndim > 0 and places.shape[-1] % block == 0 and run[0] % block == 0)
        if (np.diff(run) == 1).all() and (whole or block == 1):
            part = f[name][key]
            assert part.shape == places.shape
            got = part.dequantize()
            assert got.dtype == value.dtype
            assert (got == value[key]).all()
            assert part.data.nbytes == part.nbytes
            assert name in part.name
            outcomes.add("given")
        else:
            with pytest.raises(GGUFError, match=r"block|next to each other"):
                f[name][key]
            outcomes.add("refused")
    assert outcomes


def test_refusals(pairs):
    f, _ = pairs
    with pytest.raises(GGUFError, match=r"'q8\.m'.* 40 isn't on a block boundary.*32 and 64"):
        f["q8.m"][0, 0:40]
    with pytest.raises(GGUFError, match=r"'q4\.v'.* 5 isn't on a block boundary.*0 and 32"):
        f["q4.v"][5:]
    with pytest.raises(GGUFError, match=r"one value can't be cut out.*32:64"):
        f["q8.m"][0, 40]
    with pytest.raises(GGUFError, match="next to each other"):
        f["q8.m"][:, 0:32]
    with pytest.raises(GGUFError, match="next to each other"):
        f["f32.deep"][:, 1]
    with pytest.raises(GGUFError, match="step 2"):
        f["q8.m"][::2]
    for key in ([0, 1], "x", 1.5, None, np.array([1]), True):
        with pytest.raises(TypeError, match=r"take\(\)"):
            f["q8.m"][key]
    for key in (6, -7, (0, 0, 0), (..., ...)):
        with pytest.raises(IndexError):
            f["q8.m"][key]
    for call in (f["q8.m"].transpose, lambda: f["f32.m"].T):
        with pytest.raises(GGUFError, match=r"dequantize\(\)"):
            call()


def test_views_of_views(pairs):
    f, values = pairs
    part = f["q8.four"][1][2][1:3]
    assert part.name == "q8.four[1][2][1:3]"
    assert (part.dequantize() == values["q8.four"][1, 2, 1:3]).all()
    assert [t.shape for t in f["q8.deep"]] == [(5, 96)] * 3


def test_rows(pairs):
    f, values = pairs
    for name in ("q8.deep", "f32.deep", "q4.deep", "i32.deep"):
        flat = values[name].reshape(15, 96)
        for start, stop in ((0, 15), (4, 9), (14, 15), (3, 3)):
            part = f[name].rows(start, stop)
            assert part.shape == (stop - start, 96)
            assert (part.dequantize() == flat[start:stop]).all()
        for start, stop in ((-1, 2), (0, 16), (5, 4)):
            with pytest.raises(IndexError, match="there are 15"):
                f[name].rows(start, stop)


def test_reshape(pairs):
    f, values = pairs
    for shape in ((15, 96), (-1, 32), (5, 3, 96), (1440,), [3, -1]):
        wanted = shape if isinstance(shape, tuple) else tuple(shape)
        part = f["q8.deep"].reshape(*wanted)
        want = values["q8.deep"].reshape(wanted)
        assert part.shape == want.shape
        assert (part.dequantize() == want).all()
    assert f["q8.deep"].reshape((45, 32)).shape == (45, 32)
    with pytest.raises(GGUFError, match="multiple of 32"):
        f["q8.deep"].reshape(90, 16)
    for wrong in ((7, 96), (-1, 7), (-1, -1), (-3, -480)):
        with pytest.raises(GGUFError, match="1440 values"):
            f["q8.deep"].reshape(*wrong)


INDICES = [[0], [5, 0, 5, -1], [], [[1, 2], [3, -6]], 3, np.array([2, 1], np.uint8), range(6), np.array([4], np.int8)]


@pytest.mark.parametrize("indices", INDICES, ids=str)
@pytest.mark.parametrize("direct", [False, True])
def test_take(pairs, indices, direct, monkeypatch):
    from ggufx.read import gathering

    monkeypatch.setattr(gathering, "DIRECT_BYTES", 1 if direct else 1 << 16)
    monkeypatch.setattr(gathering, "GATHER_BYTES", 100)
    f, values = pairs
    chosen = np.asarray(indices) if np.size(indices) else np.zeros(0, int)
    for name in ("q8.m", "q4.m", "f32.m", "f16.m", "i32.m", "f32.v"):
        want = values[name][chosen]
        got = f[name].take(indices)
        assert got.shape == want.shape
        assert got.dtype == want.dtype
        assert (got == want).all()
        out = np.empty_like(want, order="C")
        if isinstance(out, np.ndarray) and want.ndim:
            assert f[name].take(indices, out=out, threads=1) is out
            assert (out == want).all()
    assert f["q8.m"].take(indices, dtype="float16").dtype == np.float16


def test_take_refusals(pairs):
    f, _ = pairs
    t = f["q8.m"]
    for bad in ([6], [-7], [0, 100]):
        with pytest.raises(IndexError, match="size 6"):
            t.take(bad)
    for bad in ([0.5], [True, False], ["a"]):
        with pytest.raises(TypeError, match="integers"):
            t.take(bad)
    with pytest.raises(GGUFError, match="one row of blocks"):
        f["q8.v"].take([0])
    with pytest.raises(ValueError, match="shape"):
        t.take([0, 1], out=np.empty((3, 64), np.float32))
    with pytest.raises(ValueError, match="contiguous"):
        t.take([0, 1], out=np.empty((64, 2), np.float32).T)
    with pytest.raises(TypeError):
        t.take([0, 1], out=np.empty((2, 64), np.int32))
    with pytest.raises(TypeError):
        t.take([], dtype=np.int32)
    with pytest.raises(TypeError):
        t.take([0], out=[0])


def test_wide_index_dtypes(tmp_path):
    """An index of a narrow dtype reaches entries that the dtype's own arithmetic couldn't."""
    file = File()
    values = add(file, "x", (300, 32), 8)
    with ggufx.open(file.write(tmp_path / "m.gguf")) as f:
        assert (f["x"].take(np.array([255, 3], np.uint8)) == values[[255, 3]]).all()
        assert (f["x"].take(np.array([-1], np.int8)) == values[[-1]]).all()


def test_big_endian(tmp_path):
    file = File(big=True)
    values = add(file, "x", (3, 64), 8, big=True)
    with ggufx.open(file.write(tmp_path / "m.gguf")) as f:
        assert (f["x"][1:].dequantize() == values[1:]).all()
        assert (f["x"].take([2, 0]) == values[[2, 0]]).all()


def test_no_dimensions(tmp_path):
    file = File().tensor("x", (), 0)
    with ggufx.open(file.write(tmp_path / "m.gguf")) as f:
        assert f["x"][()].shape == ()
        for call in (lambda t: t.rows(0, 1), lambda t: t.take([0])):
            with pytest.raises(GGUFError, match="no dimensions"):
                call(f["x"])
        with pytest.raises(IndexError):
            f["x"][0]


def test_faulty_and_unknown_tensors(tmp_path):
    file = File().tensor("new", (4, 8), 0).tensor("out", (4, 8), 0)
    file.infos[0].kind = 99
    file.infos[1].offset = 1 << 40
    with ggufx.open(file.write(tmp_path / "m.gguf"), strict=False) as f:
        for name in ("new", "out"):
            for use in (lambda t: t[0], lambda t: t.rows(0, 1), lambda t: t.take([0]), lambda t: t.reshape(-1)):
                with pytest.raises(GGUFError, match=f"'{name}'"):
                    use(f[name])


@settings(max_examples=60, deadline=None)
@given(heads=st.integers(1, 5), kv=st.integers(1, 3), half=st.integers(1, 4), width=st.sampled_from([1, 32]))
def test_permute_is_undone_by_unpermute(heads, kv, half, width):
    """The order is that of llama.cpp's converters: reshape(heads, 2, half, ...).swapaxes(1, 2)."""
    for n, args in ((heads, (heads,)), (kv, (heads, kv))):
        rows = np.arange(n * 2 * half * width).reshape(n * 2 * half, width)
        stored = permute.permute(rows, *args)
        assert (stored == rows.reshape(n, 2, half, width).swapaxes(1, 2).reshape(rows.shape)).all()
        assert (permute.unpermute(stored, *args) == rows).all()
        assert (permute.permute(permute.unpermute(rows, *args), *args) == rows).all()


def test_unpermute_packed_and_decoded(pairs):
    f, values = pairs
    for name in ("q8.m", "f32.m"):
        want = permute.unpermute(values[name], 1)
        assert (f[name].unpermute(1) == want).all()
        assert not (want == values[name]).all()
    packed = permute.unpermute(f["q8.m"].data, 3, 1)
    assert (ggufx.dequantize(packed, "q8_0") == f["q8.m"].unpermute(3, 1)).all()
    with pytest.raises(ValueError, match="4 heads"):
        f["q8.m"].unpermute(4)
