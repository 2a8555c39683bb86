"""Files behind URLs and file objects: what is fetched, how often, and what happens when the other side misbehaves."""

from __future__ import annotations

import gc
import io
import logging
import os
import tempfile
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from traceback import format_exception

import gguf_bytes as gb
import numpy as np
import pytest
from gguf_bytes import Array, File
from labelled import add
from range_server import RangeServer

import ggufx
from ggufx import GGUFError
from ggufx.cli import main
from ggufx.read import remote, sources

fsspec = pytest.importorskip("fsspec", reason="fsspec (extra `remote`) is not installed")
pytest.importorskip("aiohttp", reason="aiohttp (extra `remote`) is not installed")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """No pauses between tries; a small first piece, so that small files show how the header grows."""
    monkeypatch.setattr(remote, "PAUSE", 0.0)
    monkeypatch.setattr(sources.PieceSource, "first", 256)


@pytest.fixture
def server():
    """A fresh server; fsspec's cached file systems are dropped with it."""
    from fsspec.implementations.http import HTTPFileSystem

    server = RangeServer()
    yield server
    for system in list(HTTPFileSystem._cache.values()):
        HTTPFileSystem.close_session(system.loop, system._session) if system._session else None
    HTTPFileSystem.clear_instance_cache()
    server.close()


@pytest.fixture(scope="module")
def model():
    """A model with a vocabulary and eight experts: the bytes, the values, the header's length."""
    file = File().add("general.architecture", gb.STRING, b"x").add("x.expert_count", gb.U32, 8)
    file.add("tokens", gb.ARRAY, Array(gb.STRING, [b"token%d" % i for i in range(3000)]))
    values = {
        "token_embd.weight": add(file, "token_embd.weight", (100, 256), 8),
        "blk.0.ffn_up_exps.weight": add(file, "blk.0.ffn_up_exps.weight", (8, 100, 256), 8),
        "last": add(file, "last", (5,), 0),
    }
    return file.bytes(), values, len(file.header())


def test_info_of_a_url(server, model, capsys):
    raw, _, _ = model
    server.files["m.gguf"] = raw
    assert main(["info", server.url("m.gguf")]) == 0
    assert f"({len(raw):,} bytes)" in capsys.readouterr().out


def test_only_what_is_asked_for_is_fetched(server, model):
    raw, values, header = model
    server.files["m.gguf"] = raw
    with ggufx.open(server.url("m.gguf")) as f:
        assert f.path == server.url("m.gguf")
        assert server.sent <= 4 * header + 256
        assert len([r for r in server.requests if r[2] is not None]) <= 8
        assert not [r for r in server.requests if r[0] == "GET" and r[2] is None]
        assert f.metadata["tokens"][2999] == "token2999"
        server.reset()
        experts = f["blk.0.ffn_up_exps.weight"]
        each = experts.nbytes // 8
        assert (experts.expert(5).dequantize() == values["blk.0.ffn_up_exps.weight"][5]).all()
        assert server.sent == each
        assert len(server.requests) == 1
        server.reset()
        assert (f.moe[0]["up"].decode([6, 2]) == values["blk.0.ffn_up_exps.weight"][[6, 2]]).all()
        assert server.sent == 2 * each
        server.reset()
        rows = f["token_embd.weight"].take([7, 8, 9, 50, 7])
        assert (rows == values["token_embd.weight"][[7, 8, 9, 50, 7]]).all()
        assert server.sent == 4 * f["token_embd.weight"].nbytes // 100
        assert len(server.requests) == 2, "neighbours in one request, repeats once"
        server.reset()
        assert (f["last"].data == values["last"]).all()
        assert server.sent == 20
        assert f["last"].data.flags.writeable
    with pytest.raises(GGUFError, match="closed"):
        f["last"].data  # noqa: B018


def test_large_reads_go_in_parts_at_once(server, model, monkeypatch):
    raw, values, _ = model
    server.files["m.gguf"] = raw
    monkeypatch.setattr(remote, "PART_BYTES", 10_000)
    with ggufx.open(server.url("m.gguf")) as f:
        server.reset()
        tensor = f["blk.0.ffn_up_exps.weight"]
        assert (tensor.dequantize() == values[tensor.name]).all()
        assert server.sent == tensor.nbytes
        asked = sorted(r[2:] for r in server.requests)
        assert len(asked) == -(-tensor.nbytes // 10_000)
        assert all(a[1] == b[0] for a, b in pairwise(asked))
    assert not [t for t in threading.enumerate() if t.name.startswith("ggufx")]


def test_load(server, model):
    raw, values, _ = model
    server.files["m.gguf"] = raw
    loaded = ggufx.load(server.url("m.gguf"))
    assert list(loaded) == list(values)
    assert all((loaded[name] == value).all() for name, value in values.items())


def test_failures_are_tried_again(server, model):
    raw, values, _ = model
    server.files["m.gguf"] = raw
    with ggufx.open(server.url("m.gguf")) as f:
        for what in ("failures", "short"):
            server.reset()
            setattr(server, what, 2)
            assert (f["last"].dequantize() == values["last"]).all()
            assert len(server.requests) == 3
        server.failures = remote.TRIES
        with pytest.raises(OSError, match=r"m\.gguf: reading bytes \d+ to \d+ failed 4 times.*status 503"):
            f["last"].dequantize()
        server.short = remote.TRIES
        with pytest.raises(GGUFError, match="gave 19 bytes instead of 20"):
            f["last"].dequantize()


def test_failures_while_opening(server, model):
    """Whatever fails first: the size, the question for ranges or the header."""
    raw, values, _ = model
    server.files["m.gguf"] = raw
    url = server.url("m.gguf") + "?signature=swordfish"
    for server.failures, server.refusals in ((2, 0), (0, 4)):
        with ggufx.open(url) as f:
            assert (f["last"].dequantize() == values["last"]).all()
    server.refusals = 2
    with ggufx.open(url, download=True) as f:
        assert (f["last"].dequantize() == values["last"]).all()
    for status, kind in ((403, PermissionError), (401, PermissionError), (404, FileNotFoundError), (500, OSError)):
        for server.failures, server.refusals in ((100, 0), (0, 100)):
            server.status = status
            for download in (False, True) if server.refusals else (False,):
                with pytest.raises(OSError, match=r"m\.gguf") as caught:
                    ggufx.open(url, download=download)
                assert type(caught.value) is kind
                assert "swordfish" not in "".join(format_exception(caught.value)).replace(url, "")
    server.failures = server.refusals = 0
    with pytest.raises(OSError, match=r"asking for the file's size failed 4 times, the last time with \w+") as caught:
        ggufx.open("http://127.0.0.1:1/m.gguf?signature=swordfish")
    assert type(caught.value) is OSError
    assert "swordfish" not in str(caught.value)


def test_servers_without_ranges_or_sizes(server, model):
    raw, values, _ = model
    server.files["m.gguf"] = raw
    before = set(os.listdir(tempfile.gettempdir()))
    for server.ranges, server.sizes in ((False, True), (True, False), (False, False)):
        server.reset()
        with pytest.raises(GGUFError, match=r"m\.gguf: the server .*download it first, .*download=True"):
            ggufx.open(server.url("m.gguf"))
        for mode in ("r", "c", "read"):
            with ggufx.open(server.url("m.gguf"), download=True, mode=mode) as f:
                assert f.path == server.url("m.gguf")
                assert (f["last"].dequantize() == values["last"]).all()
    left = set(os.listdir(tempfile.gettempdir())) - before
    assert not [name for name in left if name.endswith(".gguf")]


def test_what_is_not_there(server, model):
    with pytest.raises(FileNotFoundError, match=r"nothing\.gguf"):
        ggufx.open(server.url("nothing.gguf"))
    with pytest.raises(FileNotFoundError, match=r"nothing\.gguf"):
        ggufx.open(server.url("nothing.gguf"), download=True)
    server.files["empty.gguf"] = b""
    with pytest.raises(GGUFError, match="empty"):
        ggufx.open(server.url("empty.gguf"))
    server.files["text.gguf"] = b"<!DOCTYPE html><p>Not here</p>"
    with pytest.raises(GGUFError, match=r"text\.gguf: this is an HTML page"):
        ggufx.open(server.url("text.gguf"))
    server.files["cut.gguf"] = model[0][:-1]
    with pytest.raises(GGUFError, match=r"cut\.gguf: tensor 'last'.*truncated"):
        ggufx.open(server.url("cut.gguf"))
    with pytest.raises(ValueError, match="nosuch"):
        ggufx.open("nosuch://host/m.gguf")


def test_headers_pass_through_and_nothing_is_logged(server, model, caplog):
    raw, _, _ = model
    server.files["m.gguf"] = raw
    server.password = "Bearer swordfish"
    caplog.set_level(logging.INFO)
    url = server.url("m.gguf") + "?signature=swordfish"
    options = {"headers": {"Authorization": "Bearer swordfish"}}
    with ggufx.open(url, storage_options=options) as f:
        assert all(headers["Authorization"] == "Bearer swordfish" for headers in server.headers)
        shown = [f.path, repr(f), f["last"].label]
        server.failures = 100
        with pytest.raises(OSError, match="failed") as caught:
            f["last"].data  # noqa: B018
        server.failures = 0
        shown += [str(caught.value), repr(caught.value.__cause__)]
        server.password = "another"
        with pytest.raises(OSError, match=r"m\.gguf") as caught:
            f["last"].data  # noqa: B018
        shown.append(str(caught.value))
    with pytest.raises(OSError, match=r"m\.gguf") as caught:
        ggufx.open(url, storage_options=options)
    shown += [str(caught.value), caplog.text]
    assert "swordfish" not in "\n".join(shown)
    assert caught.value.__suppress_context__
    assert remote.shown("https://me:secret@host:1/a/b.gguf?x=y#z") == "https://host:1/a/b.gguf"


def test_split_models(server):
    for i in range(2):
        file = File().add("split.no", gb.U16, i).add("split.count", gb.U16, 2)
        add(file, f"t{i}", (2, 32), 8)
        server.files[f"m-{i + 1:05}-of-00002.gguf"] = file.bytes()
    with ggufx.open(server.url("m-00002-of-00002.gguf")) as f:
        assert list(f) == ["t0", "t1"]
        assert f["t0"].dequantize().shape == (2, 32)
    del server.files["m-00001-of-00002.gguf"]
    with pytest.raises(GGUFError, match=r"m-00001-of-00002\.gguf: the first shard.*missing"):
        ggufx.open(server.url("m-00002-of-00002.gguf"))
    with ggufx.open(server.url("m-00002-of-00002.gguf"), shards=False) as f:
        assert list(f) == ["t1"]


@pytest.mark.parametrize("query", ["?download=true", "?sig=a-00001-of-00009.gguf&x=1", "?a#b"])
def test_split_models_behind_a_query(server, query):
    """What follows the name in a URL goes to every shard, and into no message."""
    for i in range(2):
        file = File().add("split.no", gb.U16, i).add("split.count", gb.U16, 2)
        add(file, f"t{i}", (2, 32), 8)
        server.files[f"m-{i + 1:05}-of-00002.gguf"] = file.bytes()
    for number in (1, 2):
        with ggufx.open(server.url(f"m-{number:05}-of-00002.gguf") + query) as f:
            assert list(f) == ["t0", "t1"]
            assert [shard.path for shard in f.shards] == [server.url(f"m-{i:05}-of-00002.gguf") for i in (1, 2)]
            assert f["t1"].dequantize().shape == (2, 32)
    assert {q for _, q in server.queries} == {query[1:].partition("#")[0]}
    del server.files["m-00001-of-00002.gguf"]
    with pytest.raises(GGUFError, match=r"m-00001-of-00002\.gguf: the first shard.*missing") as error:
        ggufx.open(server.url("m-00002-of-00002.gguf") + query)
    assert "?" not in str(error.value)


def test_a_failed_fetch_leaves_nothing(model, monkeypatch):
    """No memory waits for a garbage collection after requests that fail for good."""
    from fsspec.implementations.memory import MemoryFileSystem

    raw, _, _ = model
    MemoryFileSystem().pipe_file("/failing/m.gguf", raw)
    made: list[weakref.ref] = []

    def empty(*args):
        made.append(weakref.ref(array := original(*args)))
        return array

    original = np.empty
    with ggufx.open("memory://failing/m.gguf") as f:
        tensor = f["token_embd.weight"]
        monkeypatch.setattr(MemoryFileSystem, "cat_file", lambda *args, **options: 1 / 0)
        monkeypatch.setattr(remote.np, "empty", empty)
        gc.collect()
        gc.disable()
        try:
            with pytest.raises(OSError, match="failed 4 times, the last time with ZeroDivisionError"):
                tensor.dequantize()
            assert made
            assert all(ref() is None for ref in made)
        finally:
            gc.enable()


def test_other_file_systems(tmp_path, model):
    raw, values, _ = model
    memory = fsspec.filesystem("memory")
    memory.pipe("/models/m.gguf", raw)
    (tmp_path / "m.gguf").write_bytes(raw)
    for url in ("memory://models/m.gguf", f"file://{tmp_path}/m.gguf", f"local://{tmp_path}/m.gguf"):
        with ggufx.open(url) as f:
            assert f.is_mapped == (not url.startswith("memory"))
            assert (f["last"].dequantize() == values["last"]).all()
    with pytest.raises(FileNotFoundError):
        ggufx.open("memory://models/nothing.gguf")
    with pytest.raises(GGUFError, match="directory"):
        ggufx.open("memory://models")
    memory.rm("/models", recursive=True)


def test_file_objects(tmp_path, model):
    raw, values, _ = model
    (tmp_path / "m.gguf").write_bytes(raw)
    with (tmp_path / "m.gguf").open("rb") as file:
        for thing in (io.BytesIO(raw), file):
            with ggufx.open(thing) as f:
                assert not f.is_mapped
                with ThreadPoolExecutor(4) as pool:
                    loaded = list(pool.map(lambda t: t.dequantize(), [f["token_embd.weight"], f["last"]] * 10))
                assert all((array == values["token_embd.weight"]).all() for array in loaded[::2])
                assert all((array == values["last"]).all() for array in loaded[1::2])
            assert not thing.closed
            with pytest.raises(GGUFError, match="closed"):
                f["last"]
        assert "m.gguf" in ggufx.open(file).path
    with pytest.raises(GGUFError, match="empty"):
        ggufx.open(io.BytesIO())
    with pytest.raises(TypeError, match="binary"):
        ggufx.open(io.StringIO("GGUF and so on"))
    with pytest.raises(GGUFError, match="BytesIO: not a GGUF file"):
        ggufx.open(io.BytesIO(b"not a model"))


def test_merged_ranges():
    assert remote.merged([]) == []
    assert remote.merged([(5, 7), (0, 2), (2, 4), (6, 9), (5, 7)]) == [(0, 4), (5, 9)]
    assert np.array(remote.merged([(0, 10), (2, 3)])).tolist() == [[0, 10]]


def test_without_fsspec(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(ImportError, match=r"ggufx\[remote\]"):
        ggufx.open("https://user:swordfish@host/m.gguf")
