"""Threads, and child processes of each kind, with the patches installed."""

from __future__ import annotations

import threading

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
