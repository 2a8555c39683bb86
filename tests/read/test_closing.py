"""Closing a file while another thread reads it: the read ends with the right bytes, a new one is refused."""

from __future__ import annotations

import io
import os
import threading

import gguf_bytes as gb
import numpy as np
import pytest
from gguf_bytes import File
from labelled import add

import ggufx
from ggufx import GGUFError
from ggufx.read import sources

pytestmark = pytest.mark.skipif(not hasattr(os, "preadv"), reason="reads are slowed down at preadv")


@pytest.fixture
def model(tmp_path):
    """A path, the values of its tensors, and the path of another file that is as long and holds only zeros."""
    file = File().add("general.architecture", gb.STRING, b"x")
    values = {
        "stack_exps": add(file, "stack_exps", (8, 40, 256), 8),
        "rows": add(file, "rows", (64, 32), 0),
    }
    for k in range(3):
        values[f"blk.0.ffn_up.{k}.weight"] = add(file, f"blk.0.ffn_up.{k}.weight", (4, 32), 0)
    path, other = tmp_path / "model.gguf", tmp_path / "other.gguf"
    path.write_bytes(file.bytes())
    other.write_bytes(bytes(path.stat().st_size))
    return path, values, other


class Midway:
    """Runs a call in a thread, which waits before its n-th read until :meth:`go_on`."""

    def __init__(self, monkeypatch, name, owner, call, n=1):
        self.reached, self.wake = threading.Event(), threading.Event()
        original = getattr(owner, name)
        left = [n]

        def slowly(*args, **options):
            if threading.current_thread() is not threading.main_thread():
                left[0] -= 1
                if left[0] == 0:
                    self.reached.set()
                    assert self.wake.wait(20)
            return original(*args, **options)

        monkeypatch.setattr(owner, name, slowly)
        self.found: list[object] = []
        self.thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self.thread.start()
        assert self.reached.wait(20)

    def _run(self, call):
        try:
            self.found.append(call())
        except BaseException as error:
            self.found.append(error)

    def go_on(self):
        self.wake.set()
        self.thread.join(20)
        (found,) = self.found
        if isinstance(found, BaseException):
            raise found
        return found


CALLS = {
    "data": (1, lambda f: f["rows"].data, lambda v: v["rows"]),
    "dequantize": (1, lambda f: f["stack_exps"].dequantize(), lambda v: v["stack_exps"]),
    "take": (2, lambda f: f["stack_exps"].take([5, 1, 5]), lambda v: v["stack_exps"][[5, 1, 5]]),
    "experts": (2, lambda f: f["stack_exps"].experts([7, 0]), lambda v: v["stack_exps"][[7, 0]]),
    "separate experts": (
        2,
        lambda f: f.moe[0]["up"].decode([2, 0]),
        lambda v: np.stack([v["blk.0.ffn_up.2.weight"], v["blk.0.ffn_up.0.weight"]]),
    ),
    "a layer": (
        2,
        lambda f: f.layers()[0].dequantize()["ffn_up.1.weight"],
        lambda v: v["blk.0.ffn_up.1.weight"],
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_descriptors_live_until_readers_are_done(model, monkeypatch, name):
    path, values, other = model
    n, call, want = CALLS[name]
    f = ggufx.open(path, mode="read")
    assert f.moe  # needs the metadata; found before
    (fd,) = f["rows"]._source._descriptor
    reading = Midway(monkeypatch, "preadv", os, lambda: call(f), n)
    f.close()
    f.close()
    assert f.closed
    # Another file takes the number of whatever descriptor is free.
    taken = [os.open(other, os.O_RDONLY) for _ in range(4)]
    try:
        assert fd not in taken
        with pytest.raises(GGUFError, match=r"model.gguf: the file is closed"):
            f["rows"]
        assert np.array_equal(reading.go_on(), want(values))
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
    finally:
        for number in taken:
            os.close(number)


def test_the_last_of_several_readers_closes(model, monkeypatch):
    path, values, _ = model
    f = ggufx.open(path, mode="read")
    tensor = f["rows"]
    (fd,) = tensor._source._descriptor
    first = Midway(monkeypatch, "preadv", os, lambda: tensor.data)
    second = Midway(monkeypatch, "preadv", os, lambda: tensor.dequantize())
    f.close()
    assert np.array_equal(second.go_on(), values["rows"])
    os.fstat(fd)
    assert np.array_equal(first.go_on(), values["rows"])
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    with pytest.raises(GGUFError, match="the file is closed"):
        tensor.dequantize()


def test_a_failed_read_counts_as_done(model, monkeypatch):
    path, _, _ = model
    f = ggufx.open(path, mode="read")
    tensor = f["rows"]
    (fd,) = tensor._source._descriptor
    os.truncate(path, tensor.offset)
    reading = Midway(monkeypatch, "preadv", os, lambda: tensor.data)
    f.close()
    with pytest.raises(GGUFError, match="became shorter while it was open"):
        reading.go_on()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_forgotten_file_closes(model):
    f = ggufx.open(model[0], mode="read")
    (fd,) = f["rows"]._source._descriptor
    del f
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


@pytest.mark.parametrize("name", CALLS)
def test_a_file_object_can_be_closed_once_close_returned(model, monkeypatch, name):
    path, values, _ = model
    _, call, want = CALLS[name]

    class Watched(io.BytesIO):
        def read(self, n=-1):
            return super().read(n)

    raw = Watched(path.read_bytes())
    f = ggufx.open(raw)
    assert f.moe
    reading = Midway(monkeypatch, "read", Watched, lambda: call(f))
    closing = threading.Thread(target=lambda: (f.close(), raw.close()), daemon=True)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()  # it waits for the reader
    assert np.array_equal(reading.go_on(), want(values))
    closing.join(20)
    assert raw.closed
    with pytest.raises(GGUFError, match="the file is closed"):
        f["rows"]


def test_a_remote_read_ends_with_its_bytes(model, monkeypatch):
    pytest.importorskip("fsspec")
    from fsspec.implementations.memory import MemoryFileSystem

    path, values, _ = model
    system = MemoryFileSystem()
    system.pipe_file("/closing/model.gguf", path.read_bytes())
    f = ggufx.open("memory://closing/model.gguf")
    tensor = f["stack_exps"]
    reading = Midway(monkeypatch, "cat_file", MemoryFileSystem, lambda: tensor.take([3, 6]))
    f.close()
    with pytest.raises(GGUFError, match="the file is closed"):
        tensor.take([0])
    assert np.array_equal(reading.go_on(), values["stack_exps"][[3, 6]])
    system.rm("/closing", recursive=True)


@pytest.mark.parametrize("mode", ["r", "c"])
def test_maps_last_as_long(model, monkeypatch, mode):
    path, values, _ = model
    f = ggufx.open(path, mode=mode)
    layer = f.layers()[0]
    reading = Midway(monkeypatch, "read", sources.MapSource, layer.dequantize, 2)
    f.close()
    with pytest.raises(GGUFError, match="the file is closed"):
        layer["ffn_up.0.weight"].dequantize()
    assert f.is_mapped
    found = reading.go_on()
    assert np.array_equal(found["ffn_up.2.weight"], values["blk.0.ffn_up.2.weight"])
    assert not f.is_mapped


def test_racing_readers(model):
    """Many threads read while the file is closed and others open theirs: right bytes, or an error that says closed."""
    path, values, other = model
    wrong: list[object] = []

    def read(f, barrier):
        barrier.wait()
        for _ in range(20):
            try:
                if not np.array_equal(f["rows"].dequantize(), values["rows"]):
                    wrong.append("other bytes")
            except GGUFError as error:
                if "is closed" not in str(error):
                    wrong.append(error)
            except BaseException as error:
                wrong.append(error)

    for _ in range(20):
        barrier = threading.Barrier(4)
        f = ggufx.open(path, mode="read")
        threads = [threading.Thread(target=read, args=(f, barrier)) for _ in range(3)]
        for thread in threads:
            thread.start()
        barrier.wait()
        f.close()
        taken = [os.open(other, os.O_RDONLY) for _ in range(3)]
        for thread in threads:
            thread.join()
        for number in taken:
            os.close(number)
    assert not wrong
