"""Threads, and child processes of each kind, with the patches installed."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import numpy as np
import pytest
from compat_runs import run

from ggufx import compat

gguf = pytest.importorskip("gguf")


def test_threads(good_files):
    """Readers and decoders in many threads at once, while others install and uninstall."""
    raw = np.random.default_rng(1).integers(0, 60, (64, 144 * 8), np.uint8)
    want = gguf.dequantize(raw, gguf.GGMLQuantizationType.Q4_K)
    failures: list[object] = []

    def work() -> None:
        try:
            for _ in range(10):
                assert gguf.GGUFReader(good_files[0]).fields["many words"].contents()[1] == "word"
                assert (gguf.dequantize(raw, gguf.GGMLQuantizationType.Q4_K) == want).all()
        except BaseException as error:
            failures.append(error)

    def flip() -> None:
        for _ in range(10):
            compat.install()
            compat.uninstall()

    threads = [threading.Thread(target=work) for _ in range(4)] + [threading.Thread(target=flip)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    compat.uninstall()
    assert not failures


FORKING = """
import os, sys, numpy as np, ggufx.compat, gguf, multiprocessing
ggufx.compat.install()
raw = np.random.default_rng(0).integers(0, 256, (4096, 1152), np.uint8)
def work(_=None):
    reader = gguf.GGUFReader(sys.argv[1])
    return float(np.nansum(gguf.dequantize(raw, 12)[:, ::97])), reader.fields["many words"].contents()[1]
def main():
    want = work()
    child = os.fork()
    if not child:
        os._exit(0 if work() == want else 1)
    assert os.waitpid(child, 0)[1] == 0
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert pool.map(work, range(4)) == [want] * 4, method
    print("done")
if __name__ == "__main__":
    main()
"""


def test_fork_and_spawn(good_files, tmp_path):
    """Children of a process that has decoded on threads decode too, however they are started."""
    program = tmp_path / "forking.py"
    program.write_text(FORKING)
    done = run("-W", "ignore", program, good_files[0], timeout=100)
    assert done.stdout == "done\n", done.stderr


HOLDING = """
import os, signal, threading, ggufx.compat as compat
held, done = threading.Event(), threading.Event()
def hold():
    with compat._lock:
        held.set()
        done.wait()
thread = threading.Thread(target=hold, daemon=True)
thread.start()
held.wait()
child = os.fork()
if not child:
    signal.alarm(20)  # ends a child that waits
    compat.install()
    os._exit(0 if compat.status().installed else 1)
assert os.waitpid(child, 0)[1] == 0
done.set()
thread.join()
print("done")
"""


def test_fork_while_another_thread_installs():
    """The child doesn't wait for a thread that it doesn't have."""
    done = run("-W", "ignore", "-c", HOLDING, timeout=60)
    assert done.stdout == "done\n", done.stderr


def is_patched() -> bool:
    return hasattr(gguf.GGUFReader._build_fields, "__wrapped__")


@contextmanager
def block_of_another_thread():
    """Run a block of `patched` in a thread; yields what ends it."""
    inside, ending = threading.Event(), threading.Event()

    def work() -> None:
        with compat.patched():
            inside.set()
            ending.wait()

    thread = threading.Thread(target=work)
    thread.start()
    inside.wait()

    def end() -> None:
        ending.set()
        thread.join()

    try:
        yield end
    finally:
        end()


def test_blocks_and_calls_of_different_threads():
    """Patches stay as long as anybody wants them, in whatever order they come and go."""
    assert not is_patched()
    with block_of_another_thread() as end:
        compat.install()
        end()
        assert is_patched()
        assert compat.status().installed
    with block_of_another_thread() as end:
        compat.uninstall()
        assert is_patched()
        end()
        assert not is_patched()
        assert compat.status() == (False, {}, ())
    with block_of_another_thread() as end, compat.patched():
        end()
        assert is_patched()
    assert not is_patched()
    with block_of_another_thread() as end:
        with compat.patched():
            pass
        assert is_patched()
        end()
        assert not is_patched()


FORKED = """
import os, signal, sys, threading, gguf, ggufx.compat as compat
from ggufx.compat import gguf_package
within, way = threading.Event(), sys.argv[1]
if way != "block":
    compat.install()
def forever(*_):
    within.set()
    threading.Event().wait()
def block():
    with compat.patched():
        forever()
def midway():
    # The package's reader is patched, and not its quants.
    gguf_package._patch_quants = forever
    compat.uninstall()
    compat.install()
work = midway if way == "midway" else block
patch_quants = gguf_package._patch_quants
threading.Thread(target=work, daemon=True).start()
within.wait()
child = os.fork()
if not child:
    signal.alarm(20)
    gguf_package._patch_quants = patch_quants
    found = hasattr(gguf.GGUFReader._build_fields, "__wrapped__"), compat.status().installed
    want = {"block": (False, False), "block and install": (True, True), "midway": (False, True)}[way]
    assert found == want, found
    state = compat.install()
    assert set(state.packages["gguf"].values()) == {"patched"}, state
    compat.uninstall()
    assert not hasattr(gguf.GGUFReader._build_fields, "__wrapped__")
    assert not hasattr(gguf.TensorNameMap.__init__, "__wrapped__")
    print("done", flush=True)
    os._exit(0)
os._exit(os.waitpid(child, 0)[1])
"""


@pytest.mark.parametrize("way", ["block", "block and install", "midway"])
def test_fork_beside_another_threads_patches(way):
    """A child has what `install` patched; not what another thread was patching, nor what its block has patched."""
    done = run("-W", "ignore", "-c", FORKED, way, timeout=60)
    assert done.stdout == "done\n", done.stderr


IMPORTING = """
import sys, threading, ggufx.compat as compat
way = sys.argv[1]
midway, going_on = threading.Event(), threading.Event()
class Pausing:
    def find_spec(self, name, path=None, target=None):
        if name == ("gguf" if way == "found" else "gguf.quants") and not midway.is_set():
            if way == "same thread":
                assert compat.install().waiting == compat.WATCHED
            midway.set()
            going_on.wait()
            if way == "failing":
                raise ImportError("failing")
sys.meta_path.insert(0, Pausing())
def work():
    if way == "failing":
        try:
            import gguf
        except ImportError:
            sys.modules.pop("gguf", None)
    else:
        import gguf
thread = threading.Thread(target=work)
thread.start()
midway.wait()
state = compat.install() if way != "same thread" else compat.status()
assert state == (True, {}, compat.WATCHED), state
assert compat.install() == state
going_on.set()
thread.join()
if way == "failing":
    assert compat.status() == state
    import gguf
state = compat.status()
assert set(state.packages["gguf"].values()) == {"patched"}, state
assert "gguf" not in state.waiting
gguf = sys.modules["gguf"]
assert hasattr(gguf.GGUFReader._build_fields, "__wrapped__")
assert type(gguf.__spec__) is type(sys.__spec__)
assert not gguf.__spec__._initializing
compat.uninstall()
assert not hasattr(gguf.GGUFReader._build_fields, "__wrapped__")
print("done")
"""


@pytest.mark.parametrize("way", ["other thread", "same thread", "failing", "found"])
def test_install_while_gguf_is_being_imported(way):
    """It is patched as soon as it has been imported, whoever is doing that and from where install() is called."""
    done = run("-c", IMPORTING, way, timeout=60)
    assert (done.stdout, done.stderr) == ("done\n", "")
