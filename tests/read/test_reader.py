"""Opening files: what a good one says, in every version, byte order and value type, and how its handles behave."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path

import gguf_bytes as gb
import numpy as np
import pytest
from gguf_bytes import Array, File

import ggufx
from ggufx import GGUFError, QType
from ggufx.read import walk
from ggufx.read.metadata import FieldType, ValueType

BYTES = bytes(range(251))


@pytest.fixture(params=["native", "python"], autouse=True)
def walker(request, monkeypatch):
    """Both walkers of the header: the compiled one and the Python one."""
    if request.param == "python":
        for name in ("walk_strings", "walk_arrays", "walk_tensors"):
            monkeypatch.setattr(walk, name, getattr(walk, "python_" + name))
    elif walk.walk_strings is walk.python_walk_strings:
        pytest.skip("built without the C extension")
    return request.param


@pytest.fixture(params=["r", "c", "read"])
def mode(request):
    return request.param


@pytest.fixture(params=[(1, False), (2, False), (3, False), (3, True), (2, True), (1, True)], ids=str)
def kind(request):
    """Version and byte order."""
    return request.param


SCALARS = [
    (gb.U8, 200), (gb.I8, -100), (gb.U16, 60000), (gb.I16, -30000), (gb.U32, 1 << 31), (gb.I32, -(1 << 30)),
    (gb.F32, 0.25), (gb.BOOL, 1), (gb.U64, 1 << 63), (gb.I64, -(1 << 62)), (gb.F64, 1e300),
]  # fmt: skip


def sample(version=3, big=False):
    """Make a file with every value type as a scalar and as an array, and a few tensors."""
    file = File(version, big).add("general.architecture", gb.STRING, b"llama")
    for code, value in SCALARS:
        file.add(f"one.{code}", code, value)
        file.add(f"many.{code}", gb.ARRAY, Array(code, [value, 0, 1]))
        file.add(f"none.{code}", gb.ARRAY, Array(code, []))
    file.add("empty", gb.STRING, b"")
    file.add("bad", gb.STRING, b"a\xff\xfeb")
    file.add("tokens", gb.ARRAY, Array(gb.STRING, [b"", b"a", b"\xc3\xa9", b"\xff", b"last"]))
    file.add("no.tokens", gb.ARRAY, Array(gb.STRING, []))
    file.add("nest", gb.ARRAY, Array(gb.ARRAY, [
        Array(gb.U8, [1, 2]), Array(gb.STRING, [b"x", b"yz"]),
        Array(gb.ARRAY, [Array(gb.F32, [0.5]), Array(gb.I64, [])]),
    ]))  # fmt: skip
    file.add(b"k\xff", gb.U8, 7)
    for name, shape, code in (
        ("a", (3, 64), 2),
        ("b", (5,), 0),
        ("c", (2, 3, 4), 25),
        ("d", (0,), 0),
        ("e", (2, 7), 1),
    ):
        file.tensor(name, shape, code)
    return file


def test_every_value(tmp_path, kind, mode):
    path = sample(*kind).write(tmp_path / "m.gguf")
    with ggufx.open(path, mode=mode) as f:
        assert (f.version, f.byteorder) == (kind[0], "big" if kind[1] else "little")
        assert (f.alignment, f.path) == (32, str(path))
        m = f.metadata
        assert m["general.architecture"] == "llama"
        for code, value in SCALARS:
            got = m[f"one.{code}"]
            assert type(got) is (bool if code == gb.BOOL else float if code in (gb.F32, gb.F64) else int)
            assert got == value
            assert m.types[f"one.{code}"] == FieldType(ValueType(code))
            many = m[f"many.{code}"]
            assert type(many) is np.ndarray
            assert not many.flags.writeable
            dtype = np.dtype("?" if code == gb.BOOL else gb.CODES[code].replace("i", "i").replace("I", "u4"))
            assert many.dtype.kind == dtype.kind
            assert many.dtype.itemsize == struct.calcsize("<" + gb.CODES[code])
            assert many.tolist() == [value, 0, 1]
            assert m.types[f"many.{code}"] == FieldType(ValueType.ARRAY, ValueType(code), 3)
            assert m[f"none.{code}"].shape == (0,)
            assert m[f"none.{code}"].dtype == many.dtype
            assert m.types[f"none.{code}"].item == code
        assert m["empty"] == ""
        assert m["bad"] == "a\udcff\udcfeb"
        assert m.raw("bad").tobytes() == b"a\xff\xfeb"
        assert m["k\udcff"] == 7
        assert next(iter(m)) == "general.architecture"
        assert list(m)[-1] == "k\udcff"
        assert len(m) == len(m.types) == 1 + 3 * len(SCALARS) + 6
        assert "tokens" in m
        assert "nothing" not in m
        with pytest.raises(KeyError, match="nothing"):
            m["nothing"]


def test_string_arrays(tmp_path, kind, mode):
    with ggufx.open(sample(*kind).write(tmp_path / "m.gguf"), mode=mode) as f:
        tokens = f.metadata["tokens"]
        want = ["", "a", "é", "\udcff", "last"]
        assert list(tokens) == want
        assert tokens == want
        assert tokens != want[:-1]
        assert [tokens[i] for i in range(-5, 5)] == want + want
        assert list(tokens.bytes) == [b"", b"a", b"\xc3\xa9", b"\xff", b"last"]
        assert tokens.bytes[3] == b"\xff"
        assert tokens[1:3] == ["a", "é"]
        assert tokens.bytes[::-2] == [b"last", b"\xc3\xa9", b""]
        assert "last" in tokens
        assert tokens.index("é") == 2
        with pytest.raises(IndexError):
            tokens[5]
        assert "5" in repr(tokens)
        assert len(f.metadata["no.tokens"]) == 0
        assert list(f.metadata["no.tokens"]) == []
        assert f.metadata.types["no.tokens"].item == ValueType.STRING
        copied = pickle.loads(pickle.dumps(tokens))
        assert copied == want
        assert copied.bytes == tokens.bytes
    assert tokens == want, "valid after close()"


def test_nested_arrays(tmp_path, kind, mode):
    with ggufx.open(sample(*kind).write(tmp_path / "m.gguf"), mode=mode) as f:
        nest = f.metadata["nest"]
        assert len(nest) == 3
        assert nest[0].tolist() == [1, 2]
        assert nest[0].dtype == np.uint8
        assert nest[1] == ["x", "yz"]
        assert nest[2][0].tolist() == [0.5]
        assert nest[-1][1].shape == (0,)
        assert nest[-1][1].dtype.kind + str(nest[-1][1].dtype.itemsize) == "i8"
        assert nest.field_type(0) == FieldType(ValueType.ARRAY, ValueType.UINT8, 2)
        assert len(nest[1:]) == 2
        assert "UINT8[2]" in repr(nest)
        with pytest.raises(IndexError):
            nest[3]


def test_tensors(tmp_path, kind, mode):
    file = sample(*kind)
    with ggufx.open(file.write(tmp_path / "m.gguf"), mode=mode) as f:
        assert list(f) == list(f.tensors) == ["a", "b", "c", "d", "e"]
        assert len(f) == len(f.tensors) == 5
        assert "a" in f
        assert "z" not in f
        assert f["a"] is f.tensors["a"]
        with pytest.raises(KeyError, match="'z'"):
            f["z"]
        a = f["a"]
        assert (a.name, a.qtype, a.shape, a.ggml_shape, a.size) == ("a", QType.Q4_0, (3, 64), (64, 3), 192)
        assert a.nbytes == 3 * 36
        assert a.offset == f.data_offset + file.infos[0].offset
        assert a.data.shape == (3, 36)
        assert a.data.dtype == np.uint8
        assert a.data.tobytes() == bytes(i % 251 for i in range(108))
        assert f["b"].data.shape == (5,)
        assert f["b"].data.dtype == np.dtype(">f4" if kind[1] else "<f4")
        assert f["c"].data.dtype == np.dtype(">i2" if kind[1] else "<i2")
        assert f["c"].data.shape == (2, 3, 4)
        assert f["d"].data.shape == (0,)
        assert f["d"].size == 0
        assert f["e"].data.dtype == np.dtype(">f2" if kind[1] else "<f2")
        for tensor in f.tensors.values():
            assert type(tensor.data) is np.ndarray
            assert tensor.data.nbytes == tensor.nbytes
            assert tensor.data.flags.writeable == (mode != "r")
            assert tensor.is_aligned
            assert tensor.problem is None
        assert f.problems == ()


def test_values(tmp_path):
    """dequantize, __array__ and load agree; big-endian files hold the same values."""
    rng = np.random.default_rng(1)
    floats = rng.standard_normal((4, 64)).astype(np.float32)
    scales = rng.standard_normal((2, 2)).astype(np.float16)
    codes = rng.integers(0, 256, (2, 2, 16), np.uint8)
    found = []
    for big in (False, True):
        order = ">" if big else "<"
        blocks = np.concatenate([scales.astype(order + "f2")[..., None].view(np.uint8), codes], axis=-1)
        file = File(big=big)
        file.tensor("f32", (4, 64), 0, floats.astype(order + "f4").tobytes())
        file.tensor("f16", (4, 64), 1, floats.astype(order + "f2").tobytes())
        file.tensor("i32", (4, 2), 26, np.arange(8).astype(order + "i4").tobytes())
        file.tensor("q", (2, 64), 2, blocks.tobytes())
        path = file.write(tmp_path / f"{big}.gguf")
        with ggufx.open(path) as f:
            values = {name: np.asarray(tensor) for name, tensor in f.tensors.items()}
            assert (values["f32"] == floats).all()
            assert (values["f16"] == floats.astype(np.float16).astype(np.float32)).all()
            assert values["i32"].dtype == np.int32
            assert values["i32"].tolist() == np.arange(8).reshape(4, 2).tolist()
            nibbles = np.concatenate([codes & 15, codes >> 4], axis=-1).astype(np.float32) - 8
            assert (values["q"].reshape(2, 2, 32) == nibbles * scales.astype(np.float32)[..., None]).all()
            out = np.empty((2, 64), np.float16)
            assert f["q"].dequantize(out=out) is out
            assert (out == values["q"].astype(np.float16)).all()
            assert f["q"].dequantize("bfloat16", threads=1).dtype == np.uint16
            assert np.asarray(f["f32"], dtype=np.float64).dtype == np.float64
            assert np.asarray(f["i32"], dtype=np.int64).tolist() == values["i32"].tolist()
            assert np.asarray(f["q"], dtype=np.float16).dtype == np.float16
        for threads in (None, 1, 3):
            loaded = ggufx.load(path, threads=threads)
            assert list(loaded) == ["f32", "f16", "i32", "q"]
            for name, value in loaded.items():
                assert value.dtype == values[name].dtype
                assert (value == values[name]).all()
                assert value.ctypes.data % 64 == 0
                assert value.flags.writeable
        found.append(values)
    assert all((found[0][name] == found[1][name]).all() for name in found[0])


def test_array_without_copy(tmp_path):
    with ggufx.open(sample().write(tmp_path / "m.gguf")) as f:
        if np.lib.NumpyVersion(np.__version__) >= "2.0.0":
            assert not np.asarray(f["b"], copy=False).flags.owndata
            with pytest.raises(ValueError, match="copy=False"):
                np.asarray(f["a"], copy=False)
        assert f["b"].__array__(copy=False).ctypes.data == f["b"].data.ctypes.data


@pytest.mark.parametrize("names", [["a", "e"], "a", "[ab]", ["*"], ["b", "*b*"], []], ids=str)
def test_load_names(tmp_path, names):
    path = sample().write(tmp_path / "m.gguf")
    want = {"a": ["a"], "[ab]": ["a", "b"]}.get(names) if isinstance(names, str) else {
        1: list("abcde"), 2: ["a", "e"] if "a" in names else ["b"], 0: []}[len(names)]  # fmt: skip
    assert list(ggufx.load(path, names=names)) == want


@pytest.mark.parametrize("names", ["z", ["a", "z"], "z*", ["a", "[xyz]"]], ids=str)
def test_load_missing_names(tmp_path, names):
    path = sample().write(tmp_path / "m.gguf")
    with pytest.raises(GGUFError, match=r"m\.gguf.*z.*5 tensors"):
        ggufx.load(path, names=names)


@pytest.mark.parametrize("names", [[5], [None], b"a", [b"a"]], ids=str)
def test_load_names_are_strings(tmp_path, names):
    path = sample().write(tmp_path / "m.gguf")
    with pytest.raises(TypeError, match="names should be a str or an iterable of str"):
        ggufx.load(path, names=names)


def test_load_dtype_none_is_float32(tmp_path):
    path = sample().write(tmp_path / "m.gguf")
    for name, array in ggufx.load(path, dtype=None).items():
        want = ggufx.load(path)[name]
        assert array.dtype == want.dtype
        assert array.tobytes() == want.tobytes()


def test_load_name_that_looks_like_a_pattern(tmp_path):
    path = File().tensor("x[0]", (2,), 0).tensor("x0", (2,), 0).write(tmp_path / "m.gguf")
    assert list(ggufx.load(path, names="x[0]")) == ["x[0]"]


def test_load_dtypes(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    path = sample().write(tmp_path / "m.gguf")
    full = ggufx.load(path)
    for dtype in (np.float16, "float16", "bfloat16", ml_dtypes.bfloat16):
        loaded = ggufx.load(path, dtype)
        assert loaded["c"].dtype == np.int16
        if dtype == "bfloat16":
            assert loaded["b"].dtype == np.uint16
            loaded["b"] = loaded["b"].view(ml_dtypes.bfloat16)
        assert (
            loaded["b"].astype(np.float32).tobytes() == full["b"].astype(loaded["b"].dtype).astype(np.float32).tobytes()
        )
    with pytest.raises((TypeError, ValueError)):
        ggufx.load(path, np.int32)


def test_arena_segments(tmp_path, monkeypatch):
    """Arrays spread over several mappings, huge-page ones included, are still all there and don't overlap."""
    from ggufx.model import loading

    monkeypatch.setattr(loading, "SEGMENT_BYTES", 5 << 20)
    file = File()
    for i in range(7):
        file.tensor(str(i), (1 << i, 3000), 0, np.full((1 << i, 3000), i, np.float32).tobytes())
    loaded = ggufx.load(file.write(tmp_path / "m.gguf"), threads=2)
    for i in range(7):
        assert loaded[str(i)].shape == (1 << i, 3000)
        assert (loaded[str(i)] == i).all()


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps"), reason="needs /proc")
def test_arena_asks_for_huge_pages():
    """The mapping is private (shared memory gets none) and advised."""
    from ggufx.model.loading import Arena

    array = Arena([8 << 20]).take((2 << 20,), np.float32)
    where, inside = array.ctypes.data, False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        fields = line.split()
        if "-" in fields[0]:
            start, stop = (int(part, 16) for part in fields[0].split("-"))
            inside = start <= where < stop
            assert not inside or fields[1] == "rw-p"
        elif inside and fields[0] == "VmFlags:":
            assert "hg" in fields
            return
    pytest.fail("the array's mapping isn't listed")


@pytest.mark.parametrize("alignment", [1, 2, 4, 8, 64, 4096, 1 << 16])
def test_alignment(tmp_path, alignment):
    file = (
        File(alignment=alignment).add("general.alignment", gb.U32, alignment).tensor("x", (7,), 0).tensor("y", (9,), 0)
    )
    with ggufx.open(file.write(tmp_path / "m.gguf")) as f:
        assert f.alignment == alignment
        assert f.data_offset % alignment == 0
        assert f["y"].data.tobytes() == bytes(i % 251 for i in range(36))
        assert np.asarray(f["y"]).tobytes() == f["y"].data.tobytes()


def test_no_dimensions_and_long_names(tmp_path):
    file = File().tensor("x", (), 0, struct.pack("<f", 2.5)).tensor("n" * 300, (1, 1, 1, 2), 0)
    with ggufx.open(file.write(tmp_path / "m.gguf")) as f:
        assert f["x"].shape == ()
        assert f["x"].size == 1
        assert f["x"].data.shape == ()
        assert float(np.asarray(f["x"])) == 2.5
        assert f["n" * 300].shape == (1, 1, 1, 2)
        with pytest.raises(TypeError):
            len(f["x"])
        assert len(f["n" * 300]) == 1


def test_no_tensors_and_trailing_bytes(tmp_path):
    path = File(pad=False).add("a", gb.U8, 1).write(tmp_path / "m.gguf")
    with ggufx.open(path) as f:
        assert len(f) == 0
        assert f  # an open file is true, however empty
    path = File().tensor("x", (3,), 0).write(tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes() + b"tail" * 100)
    with ggufx.open(path) as f:
        assert f["x"].nbytes == 12


def test_empty_tensors_may_lie_anywhere(tmp_path):
    file = File().tensor("x", (8,), 0)
    file.infos += [gb.Info(b"in", [0], 0, 0), gb.Info(b"far", [5, 0], 0, 1 << 40), gb.Info(b"two", [0, 4], 2, 4)]
    with ggufx.open(file.write(tmp_path / "m.gguf")) as f:
        assert f["in"].data.shape == (0,)
        assert f["far"].data.shape == (0, 5)
        assert np.asarray(f["two"]).shape == (4, 0)
        assert not f.problems


def test_unknown_type(tmp_path):
    file = File().tensor("a", (8,), 0)
    file.tensor("b", (8,), 0).tensor("c", (8,), 0)
    file.infos[1].kind = 4711
    file.infos[2].kind = 5
    with ggufx.open(file.write(tmp_path / "m.gguf")) as f:
        b, c = f["b"], f["c"]
        assert (b.qtype, type(b.qtype), b.nbytes, b.shape) == (4711, int, 32, (8,))
        assert b.data.tobytes() == bytes(range(32))
        assert (c.qtype, c.nbytes) == (5, 32)
        for call in (b.dequantize, lambda: np.asarray(b)):
            with pytest.raises(GGUFError, match=r"tensor 'b'.*4711"):
                call()
        assert "4711" in repr(b)
        assert np.asarray(f["a"]).tobytes() == bytes(range(32))
    with pytest.raises(GGUFError, match="4711"):
        ggufx.load(tmp_path / "m.gguf")
    assert list(ggufx.load(tmp_path / "m.gguf", names=["a"])) == ["a"]


def test_misaligned_offset_is_flagged(tmp_path):
    file = File().tensor("a", (8,), 0, np.arange(8, dtype="<f4").tobytes())
    file.data = b"\0" * 5 + file.data
    file.infos[0].offset = 5
    with ggufx.open(file.write(tmp_path / "m.gguf")) as f:
        assert not f["a"].is_aligned
        assert [(p.kind, p.name) for p in f.problems] == [("misaligned", "a")]
        assert "alignment 32" in str(f.problems[0])
        assert f["a"].data.tolist() == list(range(8))
        assert np.asarray(f["a"]).tolist() == list(range(8))


def test_sparse_file_over_4_gib(tmp_path):
    path = tmp_path / "m.gguf"
    file = File().tensor("first", (8,), 0)
    file.infos.append(gb.Info(b"big", [1 << 20, 1 << 10], 0, 32))
    file.infos.append(gb.Info(b"last", [8], 0, 32 + (1 << 32)))
    file.write(path)
    with path.open("r+b") as out:
        out.seek(len(file.bytes()) + (1 << 32))
        out.write(np.arange(8, dtype="<f4").tobytes())
    with ggufx.open(path) as f:
        assert f["big"].nbytes == 1 << 32
        assert f["big"].data.shape == (1 << 10, 1 << 20)
        assert f["last"].data.tolist() == list(range(8))
    with path.open("r+b") as out:
        out.truncate(path.stat().st_size - 1)
    with pytest.raises(GGUFError, match="'last'"):
        ggufx.open(path)


@pytest.mark.parametrize("kind_of_path", [str, Path, os.fsencode])
def test_paths(tmp_path, kind_of_path):
    path = sample().write(tmp_path / "m\u00e9.gguf")
    with ggufx.open(kind_of_path(path)) as f:
        assert f.path == str(path)
    with pytest.raises(TypeError, match="path"):
        ggufx.open(3)
    with pytest.raises(FileNotFoundError):
        ggufx.open(tmp_path / "nothing")
    with pytest.raises(ValueError, match="mode"):
        ggufx.open(path, mode="w")
    with pytest.raises(ValueError, match="max_nesting"):
        ggufx.open(path, max_nesting=100)


def open_files():
    return os.listdir("/proc/self/fd")


def mapped(path):
    return str(path) in Path("/proc/self/maps").read_text(encoding="utf-8")


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="needs /proc")
def test_close(tmp_path, mode):
    before = open_files()
    path = sample().write(tmp_path / "m.gguf")
    f = ggufx.open(path, mode=mode)
    assert f.is_mapped == (mode != "read")
    tensor, metadata = f["a"], f.metadata
    tokens, numbers, data = f.metadata["tokens"], f.metadata["many.4"], tensor.data
    f.close()
    f.close()
    assert f.closed
    for use in (
        lambda: f["a"], lambda: f.metadata, lambda: f.tensors, lambda: len(f), lambda: tensor.data, lambda: iter(f),
        lambda: tensor.dequantize(), lambda: metadata["empty"], lambda: metadata["tokens"], f.__enter__,
    ):  # fmt: skip
        with pytest.raises(GGUFError, match="closed"):
            use()
    assert (tensor.name, tensor.shape) == ("a", (3, 64))
    assert "closed" in repr(f)
    assert "closed" in repr(tensor)
    assert data.tobytes() == bytes(i % 251 for i in range(108))
    assert numbers.tolist() == [1 << 31, 0, 1]
    assert tokens[4] == "last"
    if mode != "read":
        assert f.is_mapped
        assert "keeps its map" in repr(f)
        assert mapped(path)
    del data, numbers, tokens
    gc.collect()
    assert not f.is_mapped
    assert not mapped(path)
    assert open_files() == before


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="needs /proc")
def test_a_forgotten_file_is_unmapped_without_the_garbage_collector(tmp_path):
    path = sample().write(tmp_path / "m.gguf")
    gc.disable()
    try:
        tensor = ggufx.open(path)["a"]
        assert tensor.data.size
        assert mapped(path)
        del tensor
        assert not mapped(path)
    finally:
        gc.enable()


def test_private_mode_leaves_the_file_alone(tmp_path):
    path = sample().write(tmp_path / "m.gguf")
    before = path.read_bytes()
    with ggufx.open(path, mode="c") as f:
        f["b"].data[:] = 7
        assert f["b"].data.tolist() == [7] * 5
        with pytest.raises(ValueError, match="read-only"):
            f.metadata["many.4"][0] = 1
    assert path.read_bytes() == before


def test_copies_and_pickles(tmp_path):
    with ggufx.open(sample().write(tmp_path / "m.gguf")) as f:
        assert copy.copy(f["a"]) is f["a"]
        assert copy.deepcopy({"x": f["a"]})["x"] is f["a"]
        for thing in (f, f["a"]):
            with pytest.raises(TypeError, match="pickled"):
                pickle.dumps(thing)
        plain = pickle.loads(pickle.dumps(f.metadata))
        assert list(plain) == list(f.metadata)
        assert plain["many.0"].dtype == np.uint8
        assert plain["tokens"] == f.metadata["tokens"]


def test_reprs(tmp_path):
    with ggufx.open(sample().write(tmp_path / "m.gguf")) as f:
        assert "version 3, little-endian, 40 metadata fields, 5 tensors" in repr(f)
        assert repr(f["a"]) == "<Tensor 'a' Q4_0 (3, 64), 108 bytes>"
        assert repr(f.tensors) == "<5 tensors: a, b, c, d, ...>"
        assert "'general.architecture': 'llama'" in repr(f.metadata)
        assert "'tokens': <STRING[5]>" in repr(f.metadata)
        assert "'tokens': STRING[5]" in repr(f.metadata.types)


def test_opening_takes_little_memory_and_decodes_nothing(tmp_path):
    file = File().add("tokens", gb.ARRAY, Array(gb.STRING, [b"token%d" % i for i in range(50000)]))
    path = (
        file.add("scores", gb.ARRAY, Array(gb.F32, [0.0] * 50000)).tensor("x", (1 << 16, 32), 0).write(tmp_path / "m")
    )
    tracemalloc.start()
    f = ggufx.open(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200_000
    assert f.metadata["tokens"][-1] == "token49999"


def test_many_tensors(tmp_path):
    file = File()
    for i in range(40000):  # more than one chunk of the walk
        file.infos.append(gb.Info(b"blk.%d.weight" % i, [8], 0, 32 * i))
    file.data = np.repeat(np.arange(40000, dtype="<f4"), 8).tobytes()
    with ggufx.open(file.write(tmp_path / "m.gguf")) as f:
        assert len(f) == 40000
        for i in (0, 1, 16383, 16384, 39999):
            assert f[f"blk.{i}.weight"].data.tolist() == [i] * 8


def test_import_is_light():
    code = (
        "import sys, numpy; before = set(sys.modules); import ggufx; new = set(sys.modules) - before\n"
        "print([m for m in ('concurrent.futures', 'asyncio', 'json', 'fsspec') if m in new])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
