"""Threads of a call: how many, when they start, that they end, and what becomes of their errors."""

from __future__ import annotations

import gc
import io
import os
import signal
import subprocess
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable
from contextlib import suppress
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


@pytest.fixture
def set_limit(monkeypatch):
    """Set GGUFX_THREADS as it is found at the first use."""

    def change(value: str) -> None:
        monkeypatch.setenv("GGUFX_THREADS", value)
        threading_rules.check_environment.cache_clear()

    yield change
    threading_rules.check_environment.cache_clear()


def test_threads_from_the_environment(monkeypatch, set_limit):
    monkeypatch.setattr(threading_rules, "available_cpus", lambda: 6)
    for value, want in (("", 6), ("1", 1), ("4", 4), ("64", 6)):
        set_limit(value)
        assert threading_rules.thread_count(None) == want
        assert threading_rules.thread_count(9) == 9  # an explicit number is the caller's business
    set_limit("")
    assert threading_rules.thread_count(None) == 6
    large = np.zeros((2 * decoding.VALUES_PER_THREAD // 32, 18), np.uint8)
    values = np.ones((1, 32), np.float32)
    for value in ("0", "-1", "two", "1.5", " ", "abc"):
        set_limit(value)
        for call in (
            lambda: dequantize(large, QType.Q4_0),
            lambda: dequantize(BLOCKS, QType.Q4_0),
            lambda: ggufx.quantize(values, "Q8_0"),
            lambda: ggufx.matmul(values, BLOCKS, qtype="Q4_0"),
        ):
            with pytest.raises(ValueError, match="GGUFX_THREADS must be a positive integer, not"):
                call()
        assert_same(dequantize(BLOCKS, QType.Q4_0, threads=1), VALUES)


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

    def elsewhere(name: str, **options: str) -> io.StringIO:
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


def test_one_thread_starts_none(started, set_limit):
    blocks, _ = large_sample(QType.Q4_K, "float32")
    dequantize(blocks, QType.Q4_K, threads=1)
    dequantize(blocks[:3], QType.Q4_K, threads=8)  # nothing to share
    set_limit("1")
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


@pytest.fixture
def no_collection():
    """No garbage collection: what remains is what reference cycles keep."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_nothing_outlives_an_error(no_collection):
    """What the work holds goes when the caller has dropped the error, whichever thread it comes from."""
    for failing in ({3}, set(range(50)), {0}, {49}):
        memory = np.zeros(1000)
        left = weakref.ref(memory)

        def work(i, memory=memory, failing=failing):
            if i in failing:
                raise ValueError(f"item {i}, {memory.size}")

        with suppress(ValueError):
            threading_rules.run(work, range(50), 4)
        del work, memory
        assert left() is None


def test_nothing_outlives_an_error_of_a_call(no_collection, monkeypatch):
    from ggufx.codec import encode as encoding

    monkeypatch.setattr(encoding, "_PIECE", 1 << 10)
    values = np.ones((64, 256), np.float32)
    values[50, 3] = np.nan
    for kind in ("Q8_0", "Q4_K", "F16"):
        given = values.copy()
        left = weakref.ref(given)
        with pytest.raises(ggufx.GGUFError, match=r"x\[50, 3\] is nan"):
            ggufx.quantize(given, kind, threads=3)
        del given
        assert left() is None, kind


def test_nothing_outlives_an_interrupted_load(no_collection, monkeypatch, tmp_path):
    from ggufx.model import loading

    ggufx.write(tmp_path / "f.gguf", {}, {name: np.ones((64, 256), np.float32) for name in "abcd"})
    monkeypatch.setattr(loading, "TASK_VALUES", 1 << 10)
    seen: list[weakref.ref] = []

    def interrupted(*args, out, **options):
        seen.append(weakref.ref(out.base))
        if len(seen) == 20:
            raise KeyboardInterrupt

    monkeypatch.setattr(loading, "dequantize", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ggufx.load(tmp_path / "f.gguf", threads=3)
    assert 20 <= len(seen) < 30
    assert all(ref() is None for ref in seen)


def test_an_interrupt_between_items_stops_the_workers(monkeypatch):
    """No thread goes on writing into what the caller has been told is over."""
    done: list[int] = []
    join = threading.Thread.join
    interrupts = iter([KeyboardInterrupt])

    def interrupted(self, timeout=None):
        for kind in interrupts:
            raise kind
        join(self, timeout)

    def work(i):
        if threading.current_thread() is threading.main_thread():
            time.sleep(0.005)
        else:
            time.sleep(0.05)
        done.append(i)

    monkeypatch.setattr(threading.Thread, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        threading_rules.run(work, range(4), 2)
    monkeypatch.undo()
    assert not [t for t in threading.enumerate() if t.name.startswith("ggufx")]


def test_an_interrupt_while_threads_start_leaves_none_working(monkeypatch):
    """The thread runs already when start() is interrupted, waiting for it to say so."""
    original = threading.Thread.start
    begun: list[int] = []

    def interrupted(self):
        original(self)
        raise KeyboardInterrupt

    def work(i):
        begun.append(i)
        time.sleep(0.02)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        threading_rules.run(work, range(200), 3)
    count = len(begun)
    time.sleep(0.1)
    assert len(begun) == count < 5
    from ggufx.requantize.slabs import ordered

    with pytest.raises(KeyboardInterrupt):
        list(ordered(work, range(200), 3))
    assert not [t for t in threading.enumerate() if t.name.startswith("ggufx")]


@pytest.fixture(params=[0, 1])
def few_threads(request, monkeypatch):
    """A system that gives only so many threads."""
    left = [request.param]
    original = threading.Thread.start

    def start(self):
        if not left[0]:
            raise RuntimeError("can't start new thread")
        left[0] -= 1
        original(self)

    monkeypatch.setattr(threading.Thread, "start", start)
    return left


@pytest.mark.usefixtures("few_threads")
def test_threads_that_cannot_start_are_done_without(tmp_path):
    blocks, want = large_sample(QType.Q4_K, "float32")
    assert_same(dequantize(blocks, QType.Q4_K, threads=8), want)
    values = np.linspace(-1, 1, 1 << 18, dtype=np.float32).reshape(-1, 256)
    packed = ggufx.quantize(values, "Q4_K", threads=1)
    assert np.array_equal(ggufx.quantize(values, "Q4_K", threads=8), packed)
    ggufx.write(tmp_path / "f.gguf", {}, {f"blk.{k}.x": values + k for k in range(3)})
    loaded = ggufx.load(tmp_path / "f.gguf", threads=8)
    with ggufx.open(tmp_path / "f.gguf") as f:
        for number, arrays in f.layers().decoded(threads=8):
            assert np.array_equal(arrays["x"], values + number)
            assert np.array_equal(loaded[f"blk.{number}.x"], values + number)


@pytest.mark.usefixtures("few_threads")
def test_results_come_in_order_with_fewer_threads():
    from ggufx.requantize.slabs import ordered

    assert list(ordered(lambda n: n * n, range(50), 4)) == [n * n for n in range(50)]
    with pytest.raises(ZeroDivisionError):
        list(ordered(lambda n: 1 // (3 - n), range(50), 4))
    assert not [t for t in threading.enumerate() if t.name.startswith("ggufx")]
