"""Wrong files, one fault at a time: each is refused with a message that names the culprit, in little memory."""

from __future__ import annotations

import os
import resource
import struct
import tracemalloc

import gguf_bytes as gb
import pytest
from gguf_bytes import Array, File, Info

import ggufx
from ggufx import GGUFError
from ggufx.read import walk


@pytest.fixture(params=["native", "python"], autouse=True)
def walker(request, monkeypatch):
    """Both walkers of the header."""
    if request.param == "python":
        for name in ("walk_strings", "walk_arrays", "walk_tensors"):
            monkeypatch.setattr(walk, name, getattr(walk, "python_" + name))
    elif walk.walk_strings is walk.python_walk_strings:
        pytest.skip("built without the C extension")
    return request.param


def descriptors():
    return len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0


def refused(path, match, **options):
    """Check that opening fails with a GGUFError that names the file, takes little memory, and leaves nothing open."""
    for mode in ("r", "read"):
        before = descriptors()
        tracemalloc.start()
        try:
            with pytest.raises(GGUFError, match=match) as caught:
                ggufx.open(path, mode=mode, **options)
            assert tracemalloc.get_traced_memory()[1] < 4 << 20
        finally:
            tracemalloc.stop()
        assert str(path) in str(caught.value)
        assert descriptors() == before
        if os.path.exists("/proc/self/maps"):
            with open("/proc/self/maps", encoding="utf-8") as maps:
                assert str(path) not in maps.read()


def nested(depth):
    value = Array(gb.U8, [1])
    for _ in range(depth - 1):
        value = Array(gb.ARRAY, [value])
    return value


def array_head(kind, count):
    return struct.pack("<IQ", kind, count)


BIG = 1 << 62

CASES = {
    "n_fields": (lambda: File(n_fields=BIG), "metadata fields.*truncated"),
    "n_tensors": (lambda: File(n_tensors=BIG).tensor("x", (8,), 0), "tensors, which take"),
    "n_tensors wraps": (lambda: File(n_tensors=(1 << 64) // 24 + 1).tensor("x", (8,), 0), "tensors, which take"),
    "key length": (
        lambda: File(n_fields=1, n_tensors=0, pad=False, data=struct.pack("<Q", BIG) + b"\0" * 99),
        "key of",
    ),
    "key beyond the end": (
        lambda: File(n_fields=1, pad=False, data=struct.pack("<Q", 9999) + b"\0" * 99),
        "ends at byte",
    ),
    "value type": (lambda: File().add("some.key", 13, b"\0" * 64), "'some.key' has value type 13"),
    "item type": (
        lambda: File().add("k", gb.ARRAY, array_head(99, 1) + b"\0" * 64),
        "'k' is an array of value type 99",
    ),
    "string length": (lambda: File().add("k", gb.ARRAY, array_head(gb.STRING, 1) + b"\xff" * 8), "'k'.*element 0"),
    "one string length": (
        lambda: File().add("some", 8, b"x").add("other", 4, struct.pack("<I", 1)),
        None,
    ),
    "numbers": (lambda: File().add("k", gb.ARRAY, array_head(gb.F64, 1000)), "'k' .an array of 1000 FLOAT64"),
    "numbers wrap": (lambda: File().add("k", gb.ARRAY, array_head(gb.F64, 1 << 61)), "'k'.*max_array_elements"),
    "strings": (lambda: File().add("k", gb.ARRAY, array_head(gb.STRING, 1 << 20) + b"\0" * 800), "'k'"),
    "strings wrap": (lambda: File().add("k", gb.ARRAY, array_head(gb.STRING, (1 << 64) - 1)), "'k'"),
    "arrays": (lambda: File().add("k", gb.ARRAY, array_head(gb.ARRAY, 1 << 20)), "'k'"),
    "depth": (lambda: File().add("k", gb.ARRAY, nested(17)), "'k'.*nested deeper.*16"),
    "depth bomb": (lambda: File().add("k", gb.ARRAY, array_head(gb.ARRAY, 1) * 100_000), "'k'.*nested deeper"),
    "inner type": (
        lambda: File().add("k", gb.ARRAY, array_head(gb.ARRAY, 1) + array_head(77, 0)),
        "'k'.*unknown value",
    ),
    "inner count": (
        lambda: File().add("k", gb.ARRAY, array_head(gb.ARRAY, 1) + array_head(gb.U8, 1 << 40)),
        "'k'.*max_array_elements",
    ),
    "inner numbers": (lambda: File().add("k", gb.ARRAY, array_head(gb.ARRAY, 1) + array_head(gb.U8, 1 << 20)), "'k'"),
    "inner strings": (
        lambda: File().add("k", gb.ARRAY, array_head(gb.ARRAY, 1) + array_head(gb.STRING, 2) + b"\xff" * 8),
        "'k'",
    ),
    "no key": (lambda: File().add("", gb.U8, 1), "a metadata field has a key of no bytes"),
    "twice a key": (lambda: File().add("k", gb.U8, 1).add("k", gb.U8, 1), "'k' is there twice"),
    "alignment 0": (lambda: File().add("general.alignment", gb.U32, 0), "alignment' is 0"),
    "alignment 3": (lambda: File().add("general.alignment", gb.U32, 48), "alignment' is 48"),
    "alignment large": (lambda: File().add("general.alignment", gb.U64, 1 << 32), "alignment' is 4294967296"),
    "alignment negative": (lambda: File().add("general.alignment", gb.I32, -32), "alignment' is -32"),
    "alignment text": (lambda: File().add("general.alignment", gb.STRING, b"32"), "alignment' has type STRING"),
    "five dimensions": (lambda: File(infos=[Info(b"deep", [1] * 5, 0, 0)]), "'deep' has 5 dimensions"),
    "many dimensions": (lambda: File(infos=[Info(b"deep", [1], 0, 0, n_dims=1 << 31)]), "'deep' has 2147483648 dim"),
    "name length": (lambda: File(infos=[Info(b"x", [1], 0, 0, name_length=BIG)]), "tensor 0 of 1.*name of"),
    "name beyond the end": (lambda: File(infos=[Info(b"x", [1], 0, 0, name_length=9999)]), "tensor 0 of 1.*truncated"),
    "short infos": (
        lambda: File(infos=[Info(b"x", [1], 0, 0)], n_tensors=2, pad=False, data=b"\0" * 20),
        "tensor 1 of 2.*'x'",
    ),
    "elements wrap": (
        lambda: File(infos=[Info(b"wrap", [1 << 32, 1 << 32, 1], 0, 0)], data=b"\0" * 64),
        "'wrap'.*4294967296.*any file",
    ),
    "elements wrap to 8": (
        lambda: File(infos=[Info(b"wrap", [(1 << 61) + 1, 8], 0, 0)], data=b"\0" * 64),
        "'wrap'.*any file",
    ),
    "bytes wrap": (lambda: File(infos=[Info(b"wrap", [1 << 62], 0, 0)], data=b"\0" * 64), "'wrap'.*any file"),
    "empty but huge": (lambda: File(infos=[Info(b"e", [0, 1 << 40, 1 << 40], 0, 0)]), "'e'.*any file"),
    "largest dimensions": (lambda: File(infos=[Info(b"x", [(1 << 64) - 1] * 4, 12, 0)]), "'x'.*Q4_K.*any file"),
    "offset wraps": (
        lambda: File(infos=[Info(b"off", [8], 0, (1 << 64) - 32)], data=b"\0" * 64),
        "'off'.*F32.*ends at",
    ),
    "offset": (lambda: File(infos=[Info(b"off", [8], 0, 64)], data=b"\0" * 64), "'off'.*ends at"),
    "size": (lambda: File(infos=[Info(b"off", [17], 0, 0)], data=b"\0" * 64), r"'off' \(F32, shape \(17,\), byte sha"),
    "unknown type outside": (lambda: File(infos=[Info(b"new", [8], 99, 64)], data=b"\0" * 64), "'new' .type id 99"),
    "row not in blocks": (
        lambda: File(infos=[Info(b"row", [48, 2], 2, 0)], data=b"\0" * 99),
        r"'row' \(Q4_0, shape \(2, 48\)\) has rows of 48",
    ),
    "no dimensions in blocks": (lambda: File(infos=[Info(b"row", [], 2, 0)], data=b"\0" * 99), "'row'"),
    "twice a name": (lambda: File().tensor("same", (8,), 0).tensor("same", (8,), 0), "'same' is there twice"),
    "overlap": (
        lambda: File(infos=[Info(b"a", [16], 0, 0), Info(b"b", [8], 0, 32)], data=b"\0" * 64),
        "'b' lies.*overlaps tensor 'a'",
    ),
    "overlap inside": (
        lambda: File(infos=[Info(b"a", [64], 0, 0), Info(b"b", [8], 0, 32), Info(b"c", [8], 0, 96)], data=b"\0" * 256),
        "'b' lies.*overlaps tensor 'a'",
    ),
    "same place": (lambda: File(infos=[Info(b"a", [8], 0, 0), Info(b"b", [8], 0, 0)], data=b"\0" * 64), "overlaps"),
    "unknown types in one place": (
        lambda: File(infos=[Info(b"a", [8], 99, 0), Info(b"b", [8], 99, 0)], data=b"\0" * 64),
        "overlaps",
    ),
    "version 0": (lambda: File(version=0), "version 0"),
    "version 4": (lambda: File(version=4), "version 4 isn't known"),
    "version 4 big-endian": (lambda: File(version=4, big=True), "version 4 isn't known"),
    "magic": (lambda: File(magic=b"ABCD"), "begins with b'ABCD'"),
    "old magic": (lambda: File(magic=b"tjgg"), "GGJT"),
    "zip": (lambda: File(magic=b"PK\x03\x04"), "zip"),
}


@pytest.mark.parametrize("case", CASES)
def test_hostile(tmp_path, case):
    make, match = CASES[case]
    path = make().write(tmp_path / "m.gguf")
    if match is None:
        ggufx.open(path).close()
    else:
        refused(path, match)


@pytest.mark.parametrize(
    "text", [b"", b"G", b"GGUF", b"GGUF\x03\0\0", b"<!DOCTYPE html>", b"version https://git-lfs.x"]
)
def test_not_even_a_header(tmp_path, text):
    path = tmp_path / "m.gguf"
    path.write_bytes(text)
    refused(path, "empty|ends at byte|HTML|LFS")


def test_every_truncation(tmp_path):
    """Cut anywhere, a file is refused; the message says where it ends."""
    file = File().add("a", gb.STRING, b"text").add("t", gb.ARRAY, Array(gb.STRING, [b"one", b"two"]))
    file.add("n", gb.ARRAY, Array(gb.ARRAY, [Array(gb.U16, [1]), Array(gb.STRING, [b"x"])]))
    whole = file.tensor("x", (8,), 0).tensor("y", (2, 32), 8).bytes()
    path = tmp_path / "m.gguf"
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        for mode in ("r", "read"):
            with pytest.raises(
                GGUFError, match=rf"ends at (byte )?{end}\b|file is empty|at byte {end};|it begins with"
            ):
                ggufx.open(path, mode=mode)
    path.write_bytes(whole)
    ggufx.open(path).close()


def test_truncated_download(tmp_path):
    file = File().tensor("x", (8,), 0).tensor("y", (1024,), 0).tensor("z", (1024,), 0)
    path = file.write(tmp_path / "m.gguf")
    size = path.stat().st_size
    os.truncate(path, size - 5000)
    with pytest.raises(GGUFError) as caught:
        ggufx.open(path)
    text = str(caught.value)
    start = size - 8192
    assert f"tensor 'y' (F32, shape (1024,), byte shape (4096,)) needs bytes {start} to {start + 4096}" in text
    assert f"ends at {size - 5000}; 1 more of its 3 tensors lie beyond it" in text
    assert f"A complete file has {size} bytes or more" in text


def test_not_strict(tmp_path):
    infos = [
        Info(b"good", [8], 0, 0), Info(b"over", [16], 0, 32), Info(b"lap", [8], 0, 64), Info(b"out", [8], 0, 1 << 40),
        Info(b"row", [33], 2, 0), Info(b"huge", [1 << 63, 4], 0, 0), Info(b"twin", [8], 0, 96),
        Info(b"twin", [8], 0, 128),
        Info(b"tail", [8], 0, 160), Info(b"new", [8], 99, 192), Info(b"crooked", [1], 0, 225),
    ]  # fmt: skip
    file = File(infos=infos, data=bytes(range(232))).add("k", gb.U8, 1).add("k", gb.U8, 2)
    path = file.write(tmp_path / "m.gguf")
    with pytest.raises(GGUFError):
        ggufx.open(path)
    with ggufx.open(path, strict=False) as f:
        assert f.metadata["k"] == 1
        found = {(p.kind, p.name) for p in f.problems}
        assert found == {
            ("duplicate key", "k"), ("overlap", "over"), ("overlap", "lap"), ("outside", "out"), ("shape", "row"),
            ("shape", "huge"), ("duplicate", "twin"), ("misaligned", "crooked"),
        }  # fmt: skip
        assert list(f) == ["good", "over", "lap", "out", "row", "huge", "twin", "tail", "new", "crooked"]
        for name in ("over", "lap", "out", "row", "huge", "twin"):
            tensor = f[name]
            assert name in tensor.problem
            assert "faulty" in repr(tensor)
            for use in (lambda t=tensor: t.data, tensor.dequantize):
                with pytest.raises(GGUFError, match=f"'{name}'.*can't be read"):
                    use()
        for name in ("good", "tail", "new", "crooked"):
            assert f[name].problem is None
            assert f[name].data.tobytes() == file.data[f[name].offset - f.data_offset :][: f[name].nbytes]
        assert f["good"].nbytes == 32
        assert "8 problems" not in repr(f) or len(f.problems) == 8


def test_a_key_without_a_name_is_a_problem(tmp_path):
    path = File().add("", gb.U8, 1).add("k", gb.U8, 2).add("", gb.U8, 3).write(tmp_path / "m.gguf")
    with ggufx.open(path, strict=False) as f:
        assert [(p.kind, p.name) for p in f.problems] == [("empty key", ""), ("duplicate key", "")]
        assert dict(f.metadata) == {"": 1, "k": 2}


def test_all_that_a_tensor_covers_is_flagged(tmp_path):
    """The third overlaps the first although the second, between them, ended before it."""
    infos = [Info(b"a", [64], 0, 0), Info(b"b", [8], 0, 32), Info(b"c", [8], 0, 96), Info(b"d", [8], 0, 256)]
    with ggufx.open(File(infos=infos, data=b"\0" * 288).write(tmp_path / "m.gguf"), strict=False) as f:
        assert [name for name in f if f[name].problem] == ["a", "b", "c"]


def test_limits(tmp_path):
    path = (
        File().add("k", gb.ARRAY, nested(4)).add("t", gb.ARRAY, Array(gb.STRING, [b"abc"] * 50)).write(tmp_path / "a")
    )
    ggufx.open(path, max_nesting=4, max_array_elements=50).close()
    refused(path, "'k'.*max_nesting=3", max_nesting=3)
    refused(path, "'k'.*max_nesting=1", max_nesting=1)
    refused(path, "'t'.*max_array_elements=49", max_array_elements=49)
    refused(path, "max_header_bytes=100", max_header_bytes=100)
    path = File().tensor("x", (8,), 0).tensor("y", (8,), 0).write(tmp_path / "b")
    ggufx.open(path, max_tensors=2).close()
    refused(path, "2 tensors.*max_tensors=1", max_tensors=1)


def sparse(path, head, size):
    path.write_bytes(head)
    os.truncate(path, size)
    return path


SIZE = 1 << 36


ONE_ARRAY = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<QcI", 1, b"k", gb.ARRAY)
ONE_STRING = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<QcI", 1, b"k", gb.STRING)


@pytest.mark.parametrize(
    ("head", "match"),
    [
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 20, 0), "'' is there twice"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 30, 0), "max_tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 31), "a key of no bytes"),
        (ONE_ARRAY + array_head(8, 1 << 30), "'k'"),
        (ONE_ARRAY + array_head(9, 1 << 30), "'k'"),
        (ONE_ARRAY + array_head(10, 1 << 30), "'k'"),
        (ONE_STRING + struct.pack("<Q", 1 << 35), "max_header"),
    ],
    ids=["tensors", "more tensors", "fields", "strings", "arrays", "numbers", "string"],
)
def test_sparse_giants(tmp_path, head, match):
    """A file of 64 GiB of holes in which counts that fit promise a great deal."""
    path = sparse(tmp_path / "m.gguf", head, SIZE)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(path, match)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


def test_what_is_not_a_regular_file(tmp_path):
    with pytest.raises(GGUFError, match="directory"):
        ggufx.open(tmp_path)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(GGUFError, match="not a regular file"):
        ggufx.open(fifo)
    with pytest.raises(GGUFError, match="not a regular file"):
        ggufx.open("/dev/null")


def test_reading_a_file_that_shrank(tmp_path):
    path = File().tensor("x", (8,), 0).write(tmp_path / "m.gguf")
    with ggufx.open(path, mode="read") as f:
        os.truncate(path, 80)
        with pytest.raises(GGUFError, match="became shorter"):
            f["x"].data  # noqa: B018
