"""What people do with a file that ought to work, or to be told what to do instead."""

from __future__ import annotations

import errno
import io
import mmap
import os

import gguf_bytes as gb
import numpy as np
import pytest
from gguf_bytes import Array, File
from labelled import add

import ggufx
from ggufx import GGUFError
from ggufx.model import loading
from ggufx.read import sources


def model(**changes):
    file = File().add("general.architecture", gb.STRING, b"x")
    file.add("numbers", gb.ARRAY, Array(gb.I32, changes.get("numbers", [1, 2, 3])))
    file.add("floats", gb.ARRAY, Array(gb.F32, [0.5, float("nan")])).add("one", gb.F32, float("nan"))
    file.add("words", gb.ARRAY, Array(gb.STRING, [b"a", b"b"])).add("none", gb.ARRAY, Array(gb.I32, []))
    file.add("nested", gb.ARRAY, Array(gb.ARRAY, [Array(gb.F32, [1.0, float("nan")]), Array(gb.STRING, [b"x"])]))
    add(file, "q", (4, 32), 8)
    add(file, "x", (4, 32), 0)
    return file


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(model().bytes())
    return path


def test_metadata_compare(path, tmp_path):
    (tmp_path / "big.gguf").write_bytes(File(big=True, fields=model().fields).bytes())
    (tmp_path / "other.gguf").write_bytes(model(numbers=[1, 2, 4]).bytes())
    (tmp_path / "longer.gguf").write_bytes(model(numbers=[1, 2, 3, 4]).bytes())
    with ggufx.open(path) as f:
        assert f.metadata == f.metadata
        assert f.metadata == dict(f.metadata)
        assert dict(f.metadata) == f.metadata
        as_lists = dict(f.metadata) | {"numbers": [1, 2, 3], "none": []}
        assert f.metadata == as_lists
        for key, value in (
            ("numbers", 1),
            ("numbers", "123"),
            ("numbers", [1, 2]),
            ("words", ["a", "c"]),
            ("floats", [0.5, 0.5]),
            ("one", 1.0),
        ):
            assert f.metadata != as_lists | {key: value}
        assert f.metadata != {k: v for k, v in as_lists.items() if k != "one"}
        assert f.metadata != as_lists | {"more": 1}
        assert f.metadata != 1
        with pytest.raises(TypeError, match="unhashable"):
            hash(f.metadata)
        for other, same in (("model", True), ("big", True), ("other", False), ("longer", False)):
            with ggufx.open(tmp_path / f"{other}.gguf") as g:
                assert (f.metadata == g.metadata) is same, other


class Silent(io.BytesIO):
    """A file object whose seek() says nothing, and that reads into bytearrays."""

    def seek(self, *args):
        super().seek(*args)

    def read(self, n=-1):
        return bytearray(super().read(n))


def test_file_objects_that_say_nothing(path):
    with ggufx.open(Silent(path.read_bytes())) as f, ggufx.open(path) as g:
        assert f.size == g.size
        assert np.array_equal(f["q"].dequantize(), g["q"].dequantize())


def test_text_mode_is_explained(path):
    with open(path, encoding="latin-1") as text, pytest.raises(TypeError, match=r"model\.gguf: .* open\(path, 'rb'\)"):
        ggufx.open(text)
    with open(path, encoding="utf-8") as text, pytest.raises(TypeError, match="open it in binary mode"):
        ggufx.open(text)
    with pytest.raises(TypeError, match="open it in binary mode"):
        ggufx.open(io.StringIO("GGUF"))


def test_hasattr(path):
    with ggufx.open(path) as f:
        tensor = f["q"]
        assert not hasattr(tensor, "T")
        assert getattr(tensor, "T", None) is None
        with pytest.raises(GGUFError, match=r"model\.gguf: tensor 'q': packed rows can't be transposed") as error:
            tensor.T  # noqa: B018
        assert isinstance(error.value, AttributeError)
        with pytest.raises(GGUFError, match="can't be transposed"):
            tensor.transpose()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM])
def test_system_errors_name_the_file(path, monkeypatch, number):
    def full(*args, **options):
        raise OSError(number, os.strerror(number))

    f = ggufx.open(path, mode="read")
    monkeypatch.setattr(sources.mmap, "mmap", full)
    monkeypatch.setattr(sources.os, "preadv", full)
    for call in (lambda: ggufx.open(path), lambda: f["q"].data):
        with pytest.raises(OSError, match=os.strerror(number)) as error:
            call()
        assert error.value.errno == number
        assert error.value.filename == str(path)
    f.close()


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs a limit of descriptors and their list")
def test_out_of_descriptors(path):
    import resource

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 3, limits[1]))
    held = []
    try:
        with pytest.raises(OSError, match="Too many open files") as error:
            held.extend(ggufx.open(path, mode="read") for _ in range(50))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert error.value.filename == str(path)


def test_no_memory_to_load_into(path, monkeypatch):
    """As numpy says it, and not with whatever the system says."""

    def full(*args, **options):
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    if not hasattr(mmap, "MADV_HUGEPAGE"):
        pytest.skip("memory comes from numpy here")
    monkeypatch.setattr(loading, "HUGE_PAGE", 64)
    monkeypatch.setattr(loading.mmap, "mmap", full)
    with pytest.raises(MemoryError, match="1024 bytes of memory for decoded values aren't to be had"):
        loading.aligned_memory(1024)
    with pytest.raises(MemoryError, match=r"model\.gguf: the system has no memory to map the file into"):
        ggufx.load(path)


def test_as_many_experts_as_no_memory_holds(tmp_path):
    file = File().add("general.architecture", gb.STRING, b"x")
    file.tensor("blk.0.ffn_up_exps.weight", (1 << 63, 0, 32), 0, b"")
    (tmp_path / "f.gguf").write_bytes(file.bytes())
    with ggufx.open(tmp_path / "f.gguf", strict=False) as f, pytest.raises(GGUFError, match="is no stack of experts"):
        f.moe  # noqa: B018


def test_files_of_long_names(path, tmp_path):
    """Names may have 255 bytes, which leaves none for the hidden file's ending."""
    for name in ("x" * 250 + ".gguf", "\u00e4" * 122 + ".gguf", "y" * 242 + ".gguf"):
        target = tmp_path / "long" / name
        target.parent.mkdir(exist_ok=True)
        with ggufx.open(path) as f:
            assert ggufx.write(target, f.metadata, f.tensors.values()) == [str(target)]
        ggufx.edit(target, set={"general.name": "other"})
        ggufx.edit(target, set={"general.name": "x" * 5000})
        with ggufx.open(target) as g:
            assert g.metadata["general.name"] == "x" * 5000
        assert os.listdir(target.parent) == [name]
        target.unlink()


def test_tensors_know_their_names(path, tmp_path):
    with ggufx.open(path) as f:
        for given in (list(f.tensors.values()), (t for t in f.tensors.values()), f.tensors, f):
            ggufx.write(tmp_path / "out.gguf", f.metadata, given)
            with ggufx.open(tmp_path / "out.gguf") as g:
                assert list(g) == list(f)
                assert g.metadata == f.metadata
                assert np.array_equal(g["q"].data, f["q"].data)
        with pytest.raises(TypeError, match="an unnamed ndarray was given"):
            ggufx.write(tmp_path / "out.gguf", {}, [np.zeros(4, np.float32)])
        with pytest.raises(ValueError, match="'q'"):
            ggufx.write(tmp_path / "out.gguf", {}, [f["q"], f["q"]])


def test_file_objects_that_will_not_do(path):
    with (
        os.fdopen(os.pipe()[0], "rb") as pipe,
        pytest.raises(io.UnsupportedOperation, match=r"read it into io\.BytesIO"),
    ):
        ggufx.open(pipe)
    memory = io.BytesIO(path.read_bytes())
    f = ggufx.open(memory)
    memory.close()
    with pytest.raises(GGUFError, match="BytesIO: the file object was closed"):
        f["q"].dequantize()


@pytest.mark.parametrize("argument", ["set", "rename", "types"])
def test_edits_are_mappings(path, argument):
    with pytest.raises(TypeError, match=f"{argument} should be a mapping with keys of the file, not str"):
        ggufx.edit(path, **{argument: "one"})


def test_one_key_to_delete(path):
    ggufx.edit(path, delete="one")
    with ggufx.open(path) as f:
        assert "one" not in f.metadata
        assert "none" in f.metadata
