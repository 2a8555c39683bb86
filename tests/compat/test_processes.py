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
    """Readers and decoders in many threads at once, the first ones among them, when both ways are compared."""
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

    compat.install()
    threads = [threading.Thread(target=work) for _ in range(4)]
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
