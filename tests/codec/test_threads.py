"""Threads of a call: how many, when they start, that they end, and what becomes of their errors."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from oracle import make_blocks
from samples import assert_same, large_sample, sample, specified

import ggufx
from ggufx import QType, dequantize
from ggufx.codec import decode as decoding
from ggufx.codec import dispatch
from ggufx.codec import threads as threading_rules

pytestmark = pytest.mark.usefixtures("threads_pay_early")

BLOCKS = make_blocks(QType.Q4_0, np.random.default_rng(0), 6)[:6]
VALUES = specified(BLOCKS, QType.Q4_0, "float32")


def test_threads_must_be_positive_integers():
    for wrong, error in ((0, ValueError), (-1, ValueError), (1.0, TypeError), ("2", TypeError), (True, TypeError)):
        with pytest.raises(error, match="threads must be"):
            dequantize(BLOCKS, QType.Q4_0, threads=wrong)
    assert_same(dequantize(BLOCKS, QType.Q4_0, threads=np.int64(5)), VALUES)


def test_threads_from_the_environment(monkeypatch):
    monkeypatch.setattr(threading_rules, "available_cpus", lambda: 6)
    for value, want in (("", 6), ("1", 1), ("4", 4), ("64", 6)):
        monkeypatch.setenv("GGUFX_THREADS", value)
        assert threading_rules.thread_count(None) == want
        assert threading_rules.thread_count(9) == 9  # an explicit number is the caller's business
    monkeypatch.delenv("GGUFX_THREADS")
    assert threading_rules.thread_count(None) == 6
    large = np.zeros((2 * decoding.VALUES_PER_THREAD // 32, 18), np.uint8)
    for value in ("0", "-1", "two", "1.5", " "):
        monkeypatch.setenv("GGUFX_THREADS", value)
        with pytest.raises(ValueError, match="GGUFX_THREADS must be a positive integer, not"):
            dequantize(large, QType.Q4_0)


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({}, 16),
        ({"cpu.max": "max 100000\n"}, 16),
        ({"cpu.max": "400000 100000\n"}, 4),
        ({"cpu.max": "150000 100000\n"}, 1),
        ({"cpu.max": "250000 100000\n"}, 2),
        ({"cpu.max": "120000 100000\n"}, 1),
        ({"cpu.max": "1000 100000\n"}, 1),
        ({"cpu.max": "6400000 100000\n"}, 16),
        ({"cpu.max": "0 0\n"}, 16),
        ({"cpu.max": ""}, 16),
        ({"self": "0::/a/b\n", "a/b/cpu.max": "max 100000\n", "a/cpu.max": "300000 100000\n"}, 3),
        ({"self": "0::/a/b\n", "a/b/cpu.max": "200000 100000\n", "cpu.max": "400000 100000\n"}, 2),
        ({"self": "0::/elsewhere\n", "a/cpu.max": "200000 100000\n"}, 16),
        (
            {
                "self": "4:memory:/m\n3:cpu,cpuacct:/a\n",
                "cpu/a/cpu.cfs_quota_us": "500000\n",
                "cpu/a/cpu.cfs_period_us": "100000\n",
                "cpu/m/cpu.cfs_quota_us": "100000\n",
                "cpu/m/cpu.cfs_period_us": "100000\n",
            },
            5,
        ),
        ({"cpu.max": "nonsense 1"}, 16),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 16),
        ({"cpu/cpu.cfs_quota_us": "300000\n"}, 16),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "0\n"}, 16),
    ],
)
def test_cpus_are_the_least_of_affinity_and_quota(files, cpus, monkeypatch, tmp_path):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)

    def elsewhere(name: str) -> io.StringIO:
        there = name.replace("/sys/fs/cgroup", str(tmp_path)).replace("/proc/self/cgroup", str(tmp_path / "self"))
        return io.StringIO(Path(there).read_text(encoding="utf-8"))

    monkeypatch.setattr(threading_rules, "open", elsewhere, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)
    assert threading_rules.available_cpus() == cpus


@pytest.fixture
def started(monkeypatch) -> list[threading.Thread]:
    """Threads that were started."""
    found: list[threading.Thread] = []
    start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", lambda self: (found.append(self), start(self))[1])
    return found


def test_one_thread_starts_none(started, monkeypatch):
    blocks, _ = large_sample(QType.Q4_K, "float32")
    dequantize(blocks, QType.Q4_K, threads=1)
    dequantize(blocks[:3], QType.Q4_K, threads=8)  # nothing to share
    monkeypatch.setenv("GGUFX_THREADS", "1")
    dequantize(blocks, QType.Q4_K)
    assert not started


def test_threads_end_with_the_call(started):
    blocks, _ = large_sample(QType.Q4_K, "float32")
    if ggufx.paths() == ("numpy",):
        pytest.skip("numpy decodes on one thread")
    for threads in (2, 3):
        started.clear()
        dequantize(blocks, QType.Q4_K, threads=threads)
        assert len(started) == threads - 1  # the caller's works too
        assert not any(thread.is_alive() for thread in started)


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="this system doesn't list a process's threads")
def test_the_system_knows_no_thread_afterwards():
    """In a process of its own: other tests' libraries keep threads."""
    code = """
import os, time, numpy as np, ggufx
tasks = lambda: len(os.listdir("/proc/self/task"))
before, blocks = tasks(), np.zeros((1 << 16, 144), np.uint8)
ggufx.dequantize(blocks, "Q4_K", threads=3)
deadline = time.monotonic() + 10
while tasks() > before and time.monotonic() < deadline:
    time.sleep(0.001)  # the system may learn of an end a moment after Python
assert tasks() == before, (tasks(), before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_fork_after_threads():
    blocks, want = large_sample(QType.Q4_K, "float32")
    dequantize(blocks, QType.Q4_K, threads=3)
    child = os.fork()
    if not child:
        try:
            signal.alarm(20)  # a child that hangs is ended, which the parent sees
            assert_same(dequantize(blocks, QType.Q4_K, threads=3), want)
            os._exit(0)
        finally:
            os._exit(4)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert_same(dequantize(blocks, QType.Q4_K, threads=3), want)


def fails_at(call: int, error: BaseException) -> types.SimpleNamespace:
    """Stand for the extension; the given call of decode() fails."""
    native = dispatch.native
    calls = iter(range(1, 1000))

    def decode(*arguments: object) -> None:
        if next(calls) == call:
            raise error
        native.decode(*arguments)

    return types.SimpleNamespace(decodes=native.decodes, decode=decode)


@pytest.mark.parametrize("call", [1, 2, 3, 7])
@pytest.mark.parametrize("error", [MemoryError("injected"), KeyboardInterrupt("injected")], ids=lambda e: repr(e))
def test_errors_of_worker_threads_surface(call, error, started, monkeypatch):
    if dispatch.native is None:
        pytest.skip("numpy decodes on one thread")
    blocks, want = large_sample(QType.Q4_K, "float32")
    with monkeypatch.context() as patch:
        patch.setattr(dispatch, "native", fails_at(call, error))
        with pytest.raises(type(error), match="injected"):
            dequantize(blocks, QType.Q4_K, threads=3)
    assert not any(thread.is_alive() for thread in started)
    assert_same(dequantize(blocks, QType.Q4_K, threads=3), want)


def test_run_does_everything_once():
    seen: list[int] = []
    lock = threading.Lock()

    def note(item: int) -> None:
        with lock:
            seen.append(item)

    for threads in (1, 2, 5):
        seen.clear()
        threading_rules.run(note, range(100), threads)
        assert sorted(seen) == list(range(100))


def test_run_stops_at_the_first_error():
    seen: list[int] = []

    def fail(item: int) -> None:
        seen.append(item)
        raise RuntimeError(f"item {item}")

    for threads in (1, 3):
        seen.clear()
        with pytest.raises(RuntimeError, match="item "):
            threading_rules.run(fail, range(1000), threads)
        assert len(seen) <= threads


def test_concurrent_callers(path):
    """Calls share nothing: many at once, each with its own output, under one source."""
    blocks, want = sample(QType.IQ2_XS, "float32")
    wrong: list[object] = []

    def work(check: Callable[[np.ndarray], bool]) -> None:
        for _ in range(20):
            try:
                if not check(dequantize(blocks, QType.IQ2_XS, path=path, threads=2)):
                    wrong.append("other bits")
            except BaseException as error:
                wrong.append(error)

    nan = np.isnan(want)
    callers = [
        threading.Thread(target=work, args=(lambda got: np.array_equal(got[~nan], want[~nan]),)) for _ in range(4)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


def test_recent_thread_count(monkeypatch):
    """Files are read once a second; the environment counts at once, and so does a change of it back."""
    from ggufx.codec import threads

    asked = []
    monkeypatch.setattr(threads, "available_cpus", lambda: asked.append(1) or 5)
    monkeypatch.setattr(threads, "_recent", (0.0, None, 0))
    monkeypatch.delenv("GGUFX_THREADS", raising=False)
    assert [threads.recent_thread_count() for _ in range(10)] == [5] * 10
    assert len(asked) == 1
    monkeypatch.setenv("GGUFX_THREADS", "3")
    assert threads.recent_thread_count() == 3
    monkeypatch.delenv("GGUFX_THREADS")
    assert threads.recent_thread_count() == 5
    before = len(asked)
    monkeypatch.setattr(threads.time, "monotonic", lambda: threads._recent[0] + 2)
    threads.recent_thread_count()
    assert len(asked) == before + 1
