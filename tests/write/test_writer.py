"""Writing: values, shapes, splits, byte orders; the gguf package reads what we write."""

import itertools
import os
import struct
import sys
from array import array
from pathlib import Path

import numpy as np
import pytest

import ggufx
from ggufx import GGUFError, GGUFWarning, QType
from ggufx.codec.decode import swap_bytes
from ggufx.formats.value_types import ValueType
from ggufx.write.serialize import Layout
from ggufx.write.writer import Writer, write

gguf = pytest.importorskip("gguf")


def fields(path: Path) -> dict:
    return {key: f for key, f in gguf.GGUFReader(path).fields.items() if not key.startswith("GGUF.")}


def declared(path: Path, key: str) -> list[str]:
    return [t.name for t in fields(path)[key].types]


@pytest.mark.parametrize(
    ("value", "vtype", "types", "contents"),
    [
        (True, None, ["BOOL"], True),
        (np.bool_(False), None, ["BOOL"], False),
        (7, None, ["UINT32"], 7),
        (-7, None, ["INT32"], -7),
        (2**40, None, ["INT64"], 2**40),
        (2**63, None, ["UINT64"], 2**63),
        (7, "uint8", ["UINT8"], 7),
        (7, ValueType.INT16, ["INT16"], 7),
        (np.uint16(7), None, ["UINT16"], 7),
        (np.int8(-7), None, ["INT8"], -7),
        (np.array(5, np.int64), None, ["INT64"], 5),
        (0.5, None, ["FLOAT32"], 0.5),
        (3, "float64", ["FLOAT64"], 3.0),
        (np.float64(0.1), None, ["FLOAT64"], 0.1),
        ("text", None, ["STRING"], "text"),
        ("", None, ["STRING"], ""),
        (b"bytes", None, ["STRING"], "bytes"),
        ([1, 2], None, ["ARRAY", "INT32"], [1, 2]),
        ([1, 2**31], None, ["ARRAY", "UINT32"], [1, 2**31]),
        ([1, -(2**40)], None, ["ARRAY", "INT64"], [1, -(2**40)]),
        ([1, 0.5], None, ["ARRAY", "FLOAT32"], [1, 0.5]),
        ([True, False], None, ["ARRAY", "BOOL"], [True, False]),
        (["a", "", "é"], None, ["ARRAY", "STRING"], ["a", "", "é"]),
        ((3, 4), "uint8", ["ARRAY", "UINT8"], [3, 4]),
        (range(3), None, ["ARRAY", "INT32"], [0, 1, 2]),
        ([np.uint32(4)], None, ["ARRAY", "UINT32"], [4]),
        (np.arange(3, dtype=np.uint64), None, ["ARRAY", "UINT64"], [0, 1, 2]),
        (np.arange(3, dtype=">i2"), None, ["ARRAY", "INT16"], [0, 1, 2]),
        (np.array([True, False]), None, ["ARRAY", "BOOL"], [True, False]),
        (memoryview(b"\x01\xff"), None, ["ARRAY", "UINT8"], [1, 255]),
        (array("d", [0.1]), None, ["ARRAY", "FLOAT64"], [0.1]),
    ],
)
def test_values_keep_their_type(tmp_path: Path, value: object, vtype: object, types: list, contents: object) -> None:
    path = tmp_path / "f.gguf"
    with Writer(path) as w:
        w.set("k", value, vtype)
    assert declared(path, "k") == types
    assert fields(path)["k"].contents() == contents


def test_empty_arrays_and_nested_ones_keep_their_type() -> None:
    layout = Layout()
    assert layout.encode("k", np.zeros(0, np.int16)).payload == struct.pack("<IQ", ValueType.INT16, 0)
    assert layout.encode("k", [], ValueType.STRING).payload == struct.pack("<IQ", ValueType.STRING, 0)
    nested = layout.encode("k", [[1], [2, 3]], ValueType.UINT8)
    inner = struct.pack("<IQB", ValueType.UINT8, 1, 1) + struct.pack("<IQBB", ValueType.UINT8, 2, 2, 3)
    assert nested.payload == struct.pack("<IQ", ValueType.ARRAY, 2) + inner
    assert layout.encode("k", np.array([[1, 2]], np.int32)) == layout.encode("k", [[1, 2]], ValueType.INT32)


@pytest.mark.parametrize(
    ("value", "vtype", "error", "message"),
    [
        (None, None, TypeError, "'k'.*NoneType"),
        ({}, None, TypeError, "'k'.*dict"),
        (1 + 2j, None, TypeError, "'k'.*complex"),
        (np.float16(1), None, TypeError, "'k'"),
        ([], None, TypeError, "'k'.*empty list"),
        ([1, "a"], None, TypeError, "'k'"),
        (["a", 1], None, TypeError, "'k'.*element 1"),
        ([[1], 2], None, TypeError, "'k'.*element 1"),
        ([True, 1], None, TypeError, "'k'.*one type"),
        ("7", "uint32", TypeError, "'k'.*uint32 was declared"),
        (7.0, "uint32", TypeError, "'k'.*uint32 was declared"),
        (True, "uint32", TypeError, "'k'.*uint32 was declared"),
        (1, "bool", TypeError, "'k'.*bool was declared"),
        (1, "string", TypeError, "'k'.*string was declared"),
        (1, "array", TypeError, "'k'.*array was declared"),
        (256, "uint8", ValueError, "256 doesn't fit uint8"),
        (-1, "uint64", ValueError, "-1 doesn't fit uint64"),
        (2**64, None, ValueError, "'k'.*no integer type"),
        (1e39, "float32", ValueError, "doesn't fit float32"),
        ("a\ud800", None, ValueError, "at 1 of a string has no UTF-8 form"),
        (["a", "\ud800"], None, ValueError, "has no UTF-8 form"),
        (1, "int128", ValueError, "'k': 'int128' is no GGUF value type"),
        (1, 99, ValueError, "'k': 99"),
        (np.zeros(2, np.complex64), None, TypeError, "'k'.*complex64"),
    ],
)
def test_wrong_values_are_refused_at_the_call(
    tmp_path: Path, value: object, vtype: object, error: type, message: str
) -> None:
    w = Writer(tmp_path / "f.gguf")
    with pytest.raises(error, match=message):
        w.set("k", value, vtype)
    assert "k" not in w


def test_keys_are_checked(tmp_path: Path) -> None:
    w = Writer(tmp_path / "f.gguf")
    for key in ("", 3, None):
        with pytest.raises(TypeError):
            w.set(key, 1)
    with pytest.raises(ValueError, match="longer"):
        w.set("k" * 70000, 1)
    with pytest.raises(ValueError, match=r"'k\\ud800' has no UTF-8 form"):
        w.set("k\ud800", 1)
    for big in (2**32, 48):
        with pytest.raises(ValueError, match=f"{big} is no power of two below"):
            w.set("general.alignment", big)
    w.set("general.alignment", np.int16(64))
    assert w.alignment == 64
    with pytest.raises(TypeError, match="alignment"):
        w.set("general.alignment", "64")


TYPED = {
    "f32": np.arange(6, dtype=np.float32).reshape(2, 3),
    "f16": np.arange(4, dtype=np.float16),
    "f64": np.arange(3, dtype=np.float64),
    "i8": np.arange(5, dtype=np.int8),
    "i16": np.arange(5, dtype=np.int16),
    "i32": np.arange(5, dtype=np.int32),
    "i64": np.arange(5, dtype=np.int64).reshape(1, 5, 1, 1),
}


@pytest.mark.parametrize("alignment", [None, 1, 8, 32, 4096])
def test_typed_arrays_read_back_by_gguf(tmp_path: Path, alignment: int | None) -> None:
    path = tmp_path / "f.gguf"
    with Writer(path, alignment=alignment) as w:
        for name, array in TYPED.items():
            w.add(name, array)
    reader = gguf.GGUFReader(path)
    assert reader.alignment == (alignment or 32)
    for t, (name, array) in zip(reader.tensors, TYPED.items(), strict=True):
        assert (t.name, t.tensor_type.name) == (name, name.upper())
        np.testing.assert_array_equal(t.data, array)


def test_packed_blocks_read_back_by_gguf(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    q4_k = rng.integers(0, 256, (3, 2 * 144), np.uint8)
    with Writer(tmp_path / "f.gguf") as w:
        w.add("a", q4_k, shape=(3, 512), qtype=QType.Q4_K)
        w.add("b", q4_k.tobytes(), shape=(3, 512), qtype="q4_k")
        w.add("c", lambda: q4_k, shape=(3, 512), qtype=12)
        w.add("d", lambda: iter(q4_k), shape=(3, 512), qtype=12)
        w.add("e", q4_k[:, ::1][::-1], shape=(3, 512), qtype=12)
    for t in gguf.GGUFReader(tmp_path / "f.gguf").tensors:
        assert tuple(reversed(t.shape)) == (3, 512)
        np.testing.assert_array_equal(t.data, q4_k[::-1] if t.name == "e" else q4_k)


@pytest.mark.parametrize(
    ("data", "options", "error", "message"),
    [
        (np.zeros((4, 60), np.uint8), {"qtype": QType.Q4_1, "shape": (4, 60)}, ValueError, r"in bytes.*\(4, 96\)"),
        (np.zeros((4, 60), np.uint8), {"qtype": QType.Q4_1}, TypeError, r"packed bytes need shape.*\(4, 96\)"),
        (np.zeros((4, 60), np.uint8), {"shape": (4, 96)}, TypeError, "packed bytes need qtype"),
        (np.zeros((4, 60), np.uint8), {"qtype": QType.Q4_1, "shape": (4, 64)}, ValueError, r"160 bytes.*\(4, 96\)"),
        (np.zeros((4, 60), np.uint8), {"qtype": QType.Q4_1, "shape": (4, 50)}, ValueError, "whole number of blocks"),
        (np.zeros((4, 61), np.uint8), {"qtype": QType.Q4_1, "shape": (4, 61)}, ValueError, "shape in bytes"),
        (b"1234", {"qtype": "f32", "shape": (2,)}, ValueError, "8 bytes, but 4 are given"),
        (bytes(240), {"qtype": QType.Q4_1, "shape": (4, 60)}, ValueError, r"in bytes.*\(4, 96\)"),
        (bytes(24), {"qtype": "f32", "shape": (2, 12)}, ValueError, r"in bytes.*\(2, 3\)"),
        (lambda: b"", {"qtype": QType.Q4_1, "shape": (4, 60)}, ValueError, r"if \(4, 60\) counts bytes.*\(4, 96\)"),
        (b"1234", {"qtype": "q9", "shape": (1,)}, ValueError, "'t': unknown tensor type 'q9'"),
        (b"1234", {"qtype": 4, "shape": (1,)}, ValueError, "'t': tensor type id 4"),
        (b"1234", {"qtype": "f32", "shape": (1.0,)}, TypeError, "'t': a shape of integers"),
        (b"1234", {"qtype": "f33", "shape": (1,)}, ValueError, "unknown tensor type 'f33'"),
        (np.zeros(4, np.complex64), {}, TypeError, "complex64"),
        (np.zeros(4, np.bool_), {}, TypeError, "bool"),
        (np.zeros(32, np.int32), {"qtype": QType.Q8_0}, TypeError, "can't become Q8_0"),
        (np.zeros(32, np.float32), {"qtype": QType.I8}, TypeError, "'t': I8 isn't a type to quantize to"),
        (np.zeros(32, np.float32), {"qtype": QType.F64}, TypeError, "'t': F64 isn't a type to quantize to"),
        (np.zeros(256, np.float32), {"qtype": QType.IQ1_S}, ValueError, "'t': IQ1_S needs an importance matrix"),
        ([1.0, 2.0], {}, TypeError, "'t': an array, a buffer, a tensor or a callable was expected, not list"),
        (np.zeros(4, np.float32), {"shape": (2, 2)}, ValueError, r"\(2, 2\).*\(4,\)"),
        (np.zeros((1, 1, 1, 1, 1), np.float32), {}, ValueError, "5 dimensions"),
        (lambda: b"", {"shape": (2,)}, TypeError, "needs shape and qtype"),
        (lambda: b"", {"shape": (-2,), "qtype": "f32"}, ValueError, "negative"),
    ],
)  # fmt: skip
def test_shape_confusion_is_refused(tmp_path: Path, data: object, options: dict, error: type, message: str) -> None:
    w = Writer(tmp_path / "f.gguf")
    with pytest.raises(error, match=message):
        w.add("t", data, **options)


def test_types_of_copied_tensors_are_checked(tmp_path: Path) -> None:
    with Writer(tmp_path / "a.gguf") as w:
        w.add("ints", np.arange(256, dtype=np.int16))
        w.add("floats", np.ones(256, np.float32))
    with ggufx.open(tmp_path / "a.gguf") as f:
        w = Writer(tmp_path / "b.gguf")
        for name, qtype, error in (
            ("ints", "Q8_0", TypeError),
            ("ints", "I32", TypeError),
            ("floats", "I16", TypeError),
            ("floats", "IQ2_XS", ValueError),
        ):
            with pytest.raises(error, match=f"'x'.*{qtype}"):
                w.add("x", f[name], qtype=qtype)


def test_names_are_checked(tmp_path: Path) -> None:
    w = Writer(tmp_path / "f.gguf")
    w.add("t", TYPED["f32"])
    with pytest.raises(ValueError, match="there already"):
        w.add("t", TYPED["f32"])
    for name in ("", None):
        with pytest.raises(TypeError):
            w.add(name, TYPED["f32"])


@pytest.mark.parametrize("escaped", ["\udcc3\udca9", "a\udcc3\udca9"])
def test_one_name_in_two_spellings_is_refused(tmp_path: Path, escaped: str) -> None:
    w = Writer(tmp_path / "f.gguf")
    plain = escaped.encode("utf-8", "surrogateescape").decode()
    for call in (lambda: w.set(escaped, 1), lambda: w.add(escaped, TYPED["f32"]), lambda: w.update({escaped: 1})):
        with pytest.raises(ValueError, match=f"spells UTF-8 as escaped bytes; '{plain}' is the same name"):
            call()
    w.set("\udcc3", 1)  # no UTF-8, so this is its only spelling
    w.set(plain, 1)


def test_names_that_llama_cpp_refuses_are_warned_of(tmp_path: Path) -> None:
    write(tmp_path / "f.gguf", {}, {"n" * 63: TYPED["f32"]})
    for count, rest in ((1, "' is"), (3, "' and 2 more tensor names are")):
        with pytest.warns(GGUFWarning, match=f"n{rest} longer than 63 bytes, which llama.cpp refuses"):
            write(tmp_path / "f.gguf", {}, {f"{k}{'n' * 63}": TYPED["f32"] for k in range(count)})


def test_zero_elements_and_no_dimensions(tmp_path: Path) -> None:
    path = tmp_path / "f.gguf"
    write(path, {"a": 1}, {"none": np.zeros((0,), np.float32), "one": np.float32(3) * np.ones(()), "x": TYPED["f32"]})
    with ggufx.open(path) as f:
        found = [(t.name, t.shape, t.size) for t in f.tensors.values()]
        assert found == [("none", (0,), 0), ("one", (), 1), ("x", (2, 3), 6)]
        assert f["one"].dequantize() == 3


def test_a_source_that_gives_the_wrong_number_of_bytes_is_named(tmp_path: Path) -> None:
    for bad in (b"123", b"12345", [b"1234", b"1"]):
        with pytest.raises(GGUFError, match=r"'t'.*4 were planned"), Writer(tmp_path / "f.gguf") as w:
            w.add("t", lambda bad=bad: bad, shape=(1,), qtype="f32")
        assert list(tmp_path.iterdir()) == []
    with pytest.raises(TypeError, match=r"'t': its source gave NoneType, not bytes"), Writer(tmp_path / "f.gguf") as w:
        w.add("t", lambda: None, shape=(1,), qtype="f32")


@pytest.mark.parametrize("qtype", [t for t in QType if t.is_quantized or t in (QType.BF16, QType.F16, QType.I64)])
def test_big_endian_blocks_read_back(tmp_path: Path, qtype: QType) -> None:
    rng = np.random.default_rng(int(qtype))
    packed = rng.integers(0, 256, 8 * qtype.block_bytes, np.uint8)
    path = tmp_path / "f.gguf"
    with Writer(path, byteorder="big") as w:
        w.set("n", 1)
        w.add("t", packed.tobytes(), shape=(8 * qtype.block_size,), qtype=qtype)
    assert path.read_bytes()[4:8] == b"\0\0\0\3"
    with ggufx.open(path) as f:
        assert (f.byteorder, f.metadata["n"]) == ("big", 1)
        want = ggufx.dequantize(packed, qtype) if qtype is not QType.I64 else packed.view(np.int64)
        got = f["t"].dequantize() if qtype is not QType.I64 else f["t"].data
        np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(swap_bytes(swap_bytes(packed, qtype), qtype), packed)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_versions_read_back(tmp_path: Path, version: int) -> None:
    path = tmp_path / "f.gguf"
    with Writer(path, version=version) as w:
        w.set("names", ["a", "bc"])
        w.add("t", TYPED["f32"])
    with ggufx.open(path) as f:
        assert (f.version, list(f.metadata["names"])) == (version, ["a", "bc"])
        np.testing.assert_array_equal(f["t"].dequantize(), TYPED["f32"])


def test_wrong_options_are_refused(tmp_path: Path) -> None:
    for options in ({"byteorder": "middle"}, {"version": 4}, {"version": 2, "byteorder": "big"}, {"alignment": 3}):
        with pytest.raises(ValueError, match=r"."):
            Writer(tmp_path / "f.gguf", **options)
    for options in ({"split_max_bytes": 0}, {"split_max_tensors": -1}):
        with pytest.raises(ValueError, match="split_max"):
            Writer(tmp_path / "f.gguf", **options)


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({"split_max_tensors": 2}, [2, 2, 1]),
        ({"split_max_tensors": 5}, None),
        ({"split_max_bytes": 96}, [3, 2]),
        ({"split_max_bytes": 1}, [1, 1, 1, 1, 1]),
        ({"split_max_tensors": 2, "split_first_empty": True}, [0, 2, 2, 1]),
        ({"split_max_tensors": 9, "split_always": True}, [5]),
    ],
)
def test_splits(tmp_path: Path, options: dict, sizes: list[int] | None) -> None:
    with Writer(tmp_path / "m.gguf", **options) as w:
        w.set("general.name", "whole")
        for n in range(5):
            w.add(f"t{n}", np.full(6, n, np.float32))
        if options.get("split_max_bytes") == 1:
            with pytest.warns(GGUFWarning, match=r"'t0' alone has 32 bytes.* the limit of 1 \(5 tensors are over it\)"):
                paths = w.close()
        else:
            paths = w.close()
    if sizes is None:
        assert [Path(p).name for p in paths] == ["m.gguf"]
        assert "split.count" not in fields(paths[0])
        return
    assert [Path(p).name for p in paths] == [f"m-{i + 1:05d}-of-{len(sizes):05d}.gguf" for i in range(len(sizes))]
    for number, (path, size) in enumerate(zip(paths, sizes, strict=True)):
        reader = gguf.GGUFReader(path)
        assert len(reader.tensors) == size
        keys = {k: f.contents() for k, f in reader.fields.items() if k.startswith("split.")}
        assert keys == {"split.no": number, "split.count": len(sizes), "split.tensors.count": 5}
        assert [reader.fields[k].types[0].name for k in keys] == ["UINT16", "UINT16", "INT32"]
        assert ("general.name" in reader.fields) == (number == 0)


def test_every_shard_knows_the_alignment(tmp_path: Path) -> None:
    with Writer(tmp_path / "m.gguf", alignment=128, split_max_tensors=1) as w:
        for name in ("f32", "f16", "i32"):
            w.add(name, TYPED[name])
        paths = w.close()
    for path, name in zip(paths, ("f32", "f16", "i32"), strict=True):
        (tensor,) = gguf.GGUFReader(path).tensors
        np.testing.assert_array_equal(tensor.data, TYPED[name])


def test_the_files_of_copied_tensors_are_inputs(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write(path, {}, {"t": TYPED["f32"]})
    before = path.read_bytes()
    with ggufx.open(path) as f, pytest.raises(ValueError, match="output is the input"):
        write(path, {}, {"t": f["t"]})
    assert path.read_bytes() == before


def test_a_source_without_an_end_is_stopped(tmp_path: Path) -> None:
    with pytest.raises(GGUFError, match=r"'t'.*4 were planned"), Writer(tmp_path / "f.gguf") as w:
        w.add("t", lambda: itertools.repeat(b"1234"), shape=(1,), qtype="f32")


def test_breaks_by_hand(tmp_path: Path) -> None:
    with Writer(tmp_path / "m.gguf") as w:
        for n in range(3):
            w.new_shard()
            w.add(f"t{n}", TYPED["f32"])
        assert [len(s) for s in w.shards()] == [1, 1, 1]


def test_progress_reaches_the_total(tmp_path: Path) -> None:
    seen = []
    with Writer(tmp_path / "m.gguf", progress=lambda *a: seen.append(a)) as w:
        for name, array in TYPED.items():
            w.add(name, array)
    assert [s[0] for s in seen] == list(TYPED)
    assert seen[-1][1] == seen[-1][2] == sum(a.nbytes for a in TYPED.values())


def test_quantized_on_the_way(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((4, 256)).astype(np.float32)
    with Writer(tmp_path / "m.gguf") as w:
        w.add("a", x, qtype=QType.Q8_0)
        w.add("b", x, qtype=QType.F16)
    with ggufx.open(tmp_path / "m.gguf") as f:
        np.testing.assert_array_equal(np.asarray(f["a"].data).reshape(4, -1), ggufx.quantize(x, QType.Q8_0))
        np.testing.assert_array_equal(f["b"].data, x.astype(np.float16))


@pytest.mark.parametrize("qtype", ["F16", "Q8_0"])
def test_overflow_on_the_way_names_the_tensor(tmp_path: Path, qtype: str) -> None:
    with pytest.warns(GGUFWarning, match=f"'big': {qtype}: .* become infinite") as caught:
        write(tmp_path / "m.gguf", {}, {"big": (np.full((2, 32), 1e8, np.float32), None, qtype)})
    assert len(caught) == 1


def test_keys_in_order_replaced_and_deleted(tmp_path: Path) -> None:
    with Writer(tmp_path / "m.gguf") as w:
        for key in "abc":
            w.set(key, 1)
        w.set("a", "other")
        w.delete("b")
        with pytest.raises(KeyError):
            w.delete("b")
    assert list(fields(tmp_path / "m.gguf")) == ["a", "c"]


def test_keys_of_an_opened_file_keep_their_types_in_a_writer(tmp_path: Path) -> None:
    write(tmp_path / "a.gguf", {"n": np.uint64(1), "list": np.array([1], np.int8), "new": 1}, {})
    with ggufx.open(tmp_path / "a.gguf") as f, Writer(tmp_path / "b.gguf") as w:
        w.update(f.metadata)
        w.set("n", 2)
        w.set("list", [3, 4])
        for key, value in (("n", "text"), ("n", [1]), ("list", 5)):
            with pytest.raises(TypeError, match=f"'{key}'"):
                w.set(key, value)
        w.set("new", "text", "string")
        w.set("new", 3)
    with ggufx.open(tmp_path / "b.gguf") as f:
        assert {key: str(kind) for key, kind in f.metadata.types.items()} == {
            "n": "UINT64", "list": "INT8[2]", "new": "UINT32"
        }  # fmt: skip


def test_a_closed_writer_takes_nothing_more(tmp_path: Path) -> None:
    with Writer(tmp_path / "m.gguf") as w:
        w.set("a", 1)
    with pytest.raises(ValueError, match="closed"):
        w.set("b", 1)
    assert w.close() == []


@pytest.mark.parametrize(
    "kind", ["uint8", "uint16", "int32", "uint64", "float32", "string", "array", ValueType.UINT8, 0]
)
def test_alignment_has_one_type(tmp_path: Path, kind: object) -> None:
    w = Writer(tmp_path / "m.gguf")
    with pytest.raises(TypeError, match=r"general\.alignment.*uint32"):
        w.set("general.alignment", 64, kind)
    w.set("general.alignment", 64, "uint32")
    assert w.alignment == 64


def test_a_type_that_is_zero_is_a_type(tmp_path: Path) -> None:
    with Writer(tmp_path / "m.gguf") as w:
        w.set("a", 1, "uint8")
        w.set("b", [1], ValueType.UINT8)
        w.set("c", [], 0)
        w.add("t", np.zeros(4, np.float32).tobytes(), shape=(4,), qtype=0)
    with ggufx.open(tmp_path / "m.gguf") as f:
        assert [str(f.metadata.types[key]) for key in "abc"] == ["UINT8", "UINT8[1]", "UINT8[0]"]
        assert f["t"].qtype == 0


def test_a_number_beyond_floats_names_the_key(tmp_path: Path) -> None:
    w = Writer(tmp_path / "m.gguf")
    for kind in ("float32", "float64", "uint8"):
        with pytest.raises(ValueError, match="metadata key 'big'"):
            w.set("big", 10**5000, kind)


def test_close_after_a_failure_says_so(tmp_path: Path) -> None:
    w = Writer(tmp_path / "m.gguf")
    w.add("t", lambda: b"short", shape=(4,), qtype="F32")
    with pytest.raises(GGUFError, match="5 bytes"):
        w.close()
    for _ in range(2):
        with pytest.raises(ValueError, match=r"m\.gguf: writing it failed"):
            w.close()
    assert list(tmp_path.iterdir()) == []


def test_close_again_writes_nothing(tmp_path: Path) -> None:
    w = Writer(tmp_path / "m.gguf")
    w.set("a", 1)
    assert w.close() == [str(tmp_path / "m.gguf")]
    inode = (tmp_path / "m.gguf").stat().st_ino
    assert w.close() == []
    assert (tmp_path / "m.gguf").stat().st_ino == inode
    aborted = Writer(tmp_path / "n.gguf")
    aborted.abort()
    assert aborted.close() == []


@pytest.mark.parametrize("as_dict", [False, True])
@pytest.mark.parametrize("stored", [32, None])
def test_an_alignment_given_wins_over_copied_metadata(tmp_path: Path, stored: int | None, as_dict: bool) -> None:
    source, out = tmp_path / "a.gguf", tmp_path / "b.gguf"
    write(source, {"general.architecture": "x"}, TYPED, sync=False, **({"alignment": stored} if stored else {}))
    with ggufx.open(source) as f:
        write(out, dict(f.metadata) if as_dict else f.metadata, f.tensors, alignment=256, sync=False)
    with ggufx.open(out) as f:
        assert (f.alignment, f.metadata["general.alignment"]) == (256, 256)
        assert all(t.offset % 256 == 0 for t in f.tensors.values())
    assert gguf.GGUFReader(out).alignment == 256
    w = Writer(tmp_path / "c.gguf")
    with pytest.raises(TypeError, match="uint32, not float32"):
        w.set("general.alignment", 64, "float32")


@pytest.mark.parametrize("byteorder", ["little", "big"])
def test_what_a_callable_gives_is_checked_and_converted(tmp_path: Path, byteorder: str) -> None:
    path, x = tmp_path / "f.gguf", np.arange(8, dtype=np.float32)
    given = {
        "native": (lambda: x, "F32"),
        "big": (lambda: x.astype(">f4"), "F32"),
        "pieces": (lambda: iter([x[:3].astype(">f4"), x[3:]]), "F32"),
        "bytes": (lambda: x.astype("<f4").tobytes(), "F32"),
        "half": (lambda: x.astype(">f2"), "F16"),
        "bf16": (lambda: (x.view(np.uint32) >> 16).astype(">u2"), "BF16"),
        "int": (lambda: np.arange(8, dtype=">i2"), "I16"),
    }
    with Writer(path, byteorder=byteorder, sync=False) as w:
        for name, (source, qtype) in given.items():
            w.add(name, source, shape=(8,), qtype=qtype)
    with ggufx.open(path) as f:
        for name in given:
            values = f[name].data if name == "int" else f[name].dequantize()
            np.testing.assert_array_equal(values, x, name)


@pytest.mark.parametrize(
    ("array", "qtype", "message"),
    [
        (np.arange(8, dtype=np.int32), "F32", "gave an array of int32, where F32 needs float32"),
        (np.arange(4, dtype=np.float64), "F32", "gave an array of float64"),
        (np.arange(8, dtype=np.float32), "I32", "where I32 needs int32"),
        (np.arange(8, dtype=np.uint16), "F16", "where F16 needs float16"),
        (np.arange(4, dtype=np.float32), "BF16", "where BF16 needs bfloat16 or uint16"),
        (np.zeros(18, np.int8), "Q4_0", "where Q4_0 needs packed bytes"),
        (np.ma.array(np.ones(8, np.float32), mask=[1] + 7 * [0]), "F32", "1 of 8 values are masked"),
    ],
)
def test_an_array_of_another_type_from_a_callable_is_refused(
    tmp_path: Path, array: np.ndarray, qtype: str, message: str
) -> None:
    for source in (lambda: array, lambda: [array], lambda: iter([array])):
        w = Writer(tmp_path / "f.gguf", sync=False)
        w.add("a", source, shape=(32,) if qtype == "Q4_0" else (8,), qtype=qtype)
        with pytest.raises((TypeError, ValueError), match=f"'a'.*{message}"):
            w.close()
    assert not list(tmp_path.iterdir())


MATRIX = np.arange(6, dtype=np.float32).reshape(2, 3)
STACK = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
BLOCKS = np.zeros((4, 36), np.uint8)  # 4 rows of 64 values as Q4_0


@pytest.mark.parametrize(
    ("given", "shape", "qtype", "found"),
    [
        (MATRIX.T, (2, 3), "F32", r"\(3, 2\), where shape \(2, 3\)"),
        ([MATRIX.T], (2, 3), "F32", r"\(3, 2\), where shape \(2, 3\)"),
        (iter([MATRIX.T[:2], MATRIX.T[2:]]), (2, 3), "F32", r"\(2, 2\), where shape \(2, 3\)"),
        (STACK.transpose(1, 0, 2), (2, 3, 4), "F32", r"\(3, 2, 4\), where"),
        (MATRIX[..., None], (2, 3), "F32", r"\(2, 3, 1\), where"),
        (BLOCKS.reshape(2, 72), (4, 64), "Q4_0", r"\(2, 72\), where shape \(4, 36\) \(in bytes; \(4, 64\) values"),
        (MATRIX.T.copy().view(np.uint8), (2, 3), "F32", r"\(3, 8\), where shape \(2, 12\) \(in bytes"),
    ],
)
def test_an_array_of_another_shape_from_a_callable_is_refused(
    tmp_path: Path, given: object, shape: tuple, qtype: str, found: str
) -> None:
    w = Writer(tmp_path / "f.gguf", sync=False)
    w.add("a", lambda: given, shape=shape, qtype=qtype)
    with pytest.raises(GGUFError, match=f"'a'.*{found}"):
        w.close()
    assert not list(tmp_path.iterdir())


def test_packed_arrays_of_another_shape_are_refused(tmp_path: Path) -> None:
    w = Writer(tmp_path / "f.gguf")
    with pytest.raises(ValueError, match=r"'a': shape is \(2, 128\).*\(4, 36\) holds Q4_0 values of shape \(4, 64\)"):
        w.add("a", BLOCKS, shape=(2, 128), qtype="Q4_0")


def test_whole_rows_and_matrices_of_the_planned_shape_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "f.gguf"
    given = {
        "whole": lambda: STACK,
        "flat": lambda: STACK.reshape(-1),
        "rows": lambda: STACK.reshape(6, 4),
        "matrices": lambda: iter(STACK),
        "pieces": lambda: [STACK.reshape(6, 4)[:5], STACK[1, 2]],
        "ones": lambda: STACK[None],
        "bytes": lambda: STACK.view(np.uint8),
        "strided": lambda: np.asfortranarray(STACK),
    }
    with Writer(path, sync=False) as w:
        for name, source in given.items():
            w.add(name, source, shape=(2, 3, 4), qtype="F32")
        w.add("packed", BLOCKS.reshape(-1), shape=(2, 2, 64), qtype="Q4_0")
        w.add("more", BLOCKS, shape=(2, 2, 64), qtype="Q4_0")
    with ggufx.open(path) as f:
        for name in given:
            np.testing.assert_array_equal(f[name].data, STACK, name)


def test_shapes_beyond_any_file_are_refused(tmp_path: Path) -> None:
    w = Writer(tmp_path / "f.gguf")
    for shape, qtype, message in (
        ((2**62, 4), "F32", "more values than"),
        ((2**61, 3), "F32", "more bytes than"),
        ((0, 2**64), "I8", "more values than"),
    ):
        with pytest.raises(ValueError, match=f"'a'.*{message}"):
            w.add("a", bytes, shape=shape, qtype=qtype)
    for name in "ab":
        w.add(name, bytes, shape=(2**60, 6), qtype="I8")
    with pytest.raises(ValueError, match=r"'b'.*beyond the largest offset"):
        w.close()
    with pytest.raises(ValueError, match=r"'a'.*version 1"):
        Writer(tmp_path / "f.gguf", version=1).add("a", bytes, shape=(2**32,), qtype="I8")


def test_limits_of_shards_are_sizes_and_counts(tmp_path: Path) -> None:
    tensors = {f"t{i}": np.zeros(256, np.float32) for i in range(4)}
    for limit in (2048, "2KiB", "2K", np.int64(2048)):
        assert len(write(tmp_path / "f.gguf", {}, tensors, split_max_bytes=limit, sync=False)) == 2
    for option, value, error, message in (
        ("split_max_bytes", 1.5e9, TypeError, "split_max_bytes is 1500000000.0.*'4GiB'"),
        ("split_max_bytes", True, TypeError, "split_max_bytes is True"),
        ("split_max_bytes", "4X", ValueError, "split_max_bytes: '4X' is no size"),
        ("split_max_bytes", "0.2", ValueError, "split_max_bytes is 0"),
        ("split_max_tensors", 1.5, TypeError, "split_max_tensors is 1.5"),
        ("split_max_tensors", "2", TypeError, "split_max_tensors is '2'"),
        ("split_max_tensors", 0, ValueError, "split_max_tensors is 0"),
    ):
        with pytest.raises(error, match=message):
            Writer(tmp_path / "f.gguf", **{option: value})


@pytest.mark.parametrize("path", ["", "sub/", ".gguf", "sub/.gguf"])
def test_a_path_without_a_name_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="names no file"):
        Writer(path, split_max_tensors=1)
    if not path.endswith(".gguf"):
        with pytest.raises(ValueError, match="names no file"):
            Writer(path)


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_masks_and_matrices(tmp_path: Path) -> None:
    w = Writer(tmp_path / "f.gguf")
    hidden = np.ma.array([1, 2, 3], mask=[0, 1, 0])
    for value in (hidden, np.ma.masked, [hidden], [1, np.ma.masked], np.ma.array(1, mask=True)):
        with pytest.raises(ValueError, match=r"'k'.*masked"):
            w.set("k", value)
    with pytest.raises(ValueError, match=r"'t'.*1 of 3 values are masked"):
        w.add("t", hidden.astype(np.int32))
    layout = Layout()
    assert layout.encode("k", np.ma.array([1, 2])) == layout.encode("k", np.array([1, 2]))
    for matrix in (np.asmatrix([[1, 2], [3, 4]]), [np.asmatrix([1, 2])]):
        assert layout.encode("k", matrix) == layout.encode("k", np.asarray(matrix))


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ([-1, 2**63], f"both -1 and {2**63}"),
        ([-1, 2**64], str(2**64)),
        ([1, -(2**63) - 1], str(-(2**63) - 1)),
        (2**64, str(2**64)),
    ],
)
def test_integers_beyond_all_types_are_named(value: object, what: str) -> None:
    with pytest.raises(ValueError, match=f"no integer type holds {what}$"):
        Layout().encode("k", value)


@pytest.mark.skipif(sys.platform == "win32", reason="limits of open files are POSIX's")
@pytest.mark.parametrize("first_empty", [False, True])
def test_more_shards_than_files_may_be_open(tmp_path: Path, first_empty: bool) -> None:
    import resource

    tensors = {f"t{i}": np.full(8, i, np.int8) for i in range(100)}
    options = {"split_max_tensors": 1, "split_first_empty": first_empty, "sync": False}
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 200
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 12, limits[1]))
    try:
        paths = write(tmp_path / "m.gguf", {"general.architecture": "x"}, tensors, **options)
        before = {p: Path(p).read_bytes() for p in paths}

        def broken() -> bytes:
            raise RuntimeError

        with pytest.raises(RuntimeError):
            write(tmp_path / "m.gguf", {}, tensors | {"t99": (broken, (8,), "I8")}, **options)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert {p.name for p in tmp_path.iterdir()} == {os.path.basename(p) for p in paths}
    assert {p: Path(p).read_bytes() for p in paths} == before
    with ggufx.open(paths[0]) as f:
        for name, x in tensors.items():
            np.testing.assert_array_equal(f[name].data, x)


@pytest.mark.parametrize("how", ["gone", "another", "longer", "locked"])
def test_a_shard_that_another_process_touches_is_noticed(tmp_path: Path, how: str) -> None:
    partial = tmp_path / ".m-00002-of-00003.gguf.partial"
    held = []

    def touch() -> bytes:
        if how in ("gone", "another"):
            partial.unlink()
        if how == "another":
            partial.write_bytes(b"x")
        if how == "longer":
            with partial.open("ab") as file:
                file.write(b"x")
        if how == "locked":
            fcntl = pytest.importorskip("fcntl")
            held.append(partial.open("rb"))
            fcntl.flock(held[0], fcntl.LOCK_EX)
        return bytes(8)

    tensors = {"a": np.zeros(8, np.int8), "b": np.zeros(8, np.int8), "c": (touch, (8,), "I8")}
    with pytest.raises(OSError, match="another process wrote this file") as caught:
        write(tmp_path / "m.gguf", {}, tensors, split_max_tensors=1, sync=False)
    assert caught.value.filename == str(tmp_path / "m-00002-of-00003.gguf")
    for file in held:
        file.close()
    left = {p.name for p in tmp_path.iterdir()}
    assert left == (set() if how == "gone" else {partial.name})  # the other's file isn't ours to remove
