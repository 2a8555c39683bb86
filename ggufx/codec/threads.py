"""How many threads a call may use, and running them. Threads belong to the call: nothing survives it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import TypeVar

__all__ = ["available_cpus", "check_environment", "recent_thread_count", "run", "start_threads", "thread_count"]

T = TypeVar("T")


def _numbers(*files: str) -> list[str]:
    """Return the words of some files, or nothing where one can't be read."""
    words: list[str] = []
    try:
        for name in files:
            with open(name, encoding="utf-8") as f:
                words += f.read().split()
    except OSError:
        return []
    return words


def _cgroup_quota() -> float | None:
    """CPUs' worth of time the container may use, or None without a limit."""
    # Version 2 keeps quota and period in one file, version 1 in two. The limits of this group and of all above it
    # count; a container sees its own group as the root.
    least = None
    for line in ["0::/", "0:cpu:/", *_numbers("/proc/self/cgroup")]:
        _, controllers, group = [*line.split(":", 2), "", ""][:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        while True:
            if controllers:
                folder = "/sys/fs/cgroup/cpu" + group.rstrip("/")
                words = _numbers(f"{folder}/cpu.cfs_quota_us", f"{folder}/cpu.cfs_period_us")
            else:
                words = _numbers("/sys/fs/cgroup" + group.rstrip("/") + "/cpu.max")
            if len(words) == 2 and all(word.isdecimal() and int(word) for word in words):
                quota = int(words[0]) / int(words[1])
                least = quota if least is None else min(least, quota)
            if group in ("", "/"):
                break
            group = group.rpartition("/")[0]
    return least


def available_cpus() -> int:
    """CPUs this process may keep busy: the least of its affinity and its cgroup's quota, at least 1."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup_quota()
    return max(1, cpus if quota is None else min(cpus, int(quota)))


def thread_count(threads: int | None) -> int:
    """Threads a call may use.

    Parameters
    ----------
    threads : int or None
        None means the least of CPU affinity, the cgroup's quota and GGUFX_THREADS.

    Raises
    ------
    ValueError
        If `threads` or GGUFX_THREADS isn't a positive integer.
    """
    if threads is not None:
        if isinstance(threads, bool) or not hasattr(threads, "__index__"):
            raise TypeError(f"threads must be an integer or None, not {type(threads).__name__}")
        if threads < 1:
            raise ValueError(f"threads must be at least 1, not {threads}")
        return int(threads)
    limit = environment_limit()
    return available_cpus() if limit is None else min(limit, available_cpus())


@cache
def check_environment() -> None:
    """Raise ValueError if GGUFX_THREADS was no positive integer at the first use; for calls too small for threads."""
    environment_limit()


def environment_limit() -> int | None:
    """What GGUFX_THREADS says; None where it isn't set.

    Raises
    ------
    ValueError
        If it isn't a positive integer.
    """
    limit = os.environ.get("GGUFX_THREADS")
    if not limit:
        return None
    if not limit.isdecimal() or int(limit) < 1:
        raise ValueError(f"GGUFX_THREADS must be a positive integer, not {limit!r}")
    return int(limit)


def start_threads(target: Callable[[], object], count: int, started: list[threading.Thread]) -> None:
    """Start up to `count` threads; fewer where the system gives no more (a limit of processes or of memory).

    They are appended to `started` one by one, so that an interrupt leaves none out.
    """
    for i in range(1, count + 1):
        started.append(threading.Thread(target=target, name=f"ggufx-{i}", daemon=True))
        try:
            started[-1].start()
        except (RuntimeError, MemoryError, OSError):
            started.pop()
            return


_recent: tuple[float, str | None, int] = (0.0, None, 0)


def recent_thread_count() -> int:
    """``thread_count(None)``, asked of the system at most once a second.

    It reads several files, which takes longer than many a call that wants to know.
    """
    global _recent
    asked, limit, count = _recent
    now, asked_for = time.monotonic(), os.environ.get("GGUFX_THREADS")
    if not count or not 0 <= now - asked < 1 or limit != asked_for:
        count = thread_count(None)
        _recent = (now, asked_for, count)
    return count


def run(work: Callable[[T], object], items: Iterable[T], threads: int) -> None:
    """Call work(item) for every item on up to `threads` threads, the caller's among them.

    The first exception stops the others at their next item and is raised here, when all have stopped. Nothing refers to
    it or to what the threads held once the caller has dropped it.
    """
    if threads == 1:
        for item in items:
            work(item)
        return
    todo: Iterator[T] = iter(list(items))
    lock = threading.Lock()
    errors: list[BaseException] = []
    stopped = threading.Event()  # stays set: a thread that is late finds nothing to do

    def drain() -> None:
        while not stopped.is_set():
            with lock:
                item = next(todo, todo)
            if item is todo:
                return
            try:
                work(item)  # type: ignore[arg-type]
            except BaseException as error:  # raised again in the calling thread
                errors.append(error)
                stopped.set()

    workers: list[threading.Thread] = []
    try:
        start_threads(drain, threads - 1, workers)
        drain()
    except BaseException as error:  # an interrupt between two items
        errors.append(error)
        stopped.set()
    while True:
        try:
            for worker in workers:
                if worker.is_alive():
                    worker.join()
            break
        except BaseException as error:  # another interrupt; nobody is left behind
            errors.append(error)
            stopped.set()
    if errors:
        first = errors[0]
        # Its traceback holds this frame and the workers', which would hold it in turn: a cycle that keeps all arrays
        # in reach until garbage is collected.
        errors.clear()
        try:
            raise first
        finally:
            del first
