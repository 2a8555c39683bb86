"""How many threads a call may use, and running them. Threads belong to the call: nothing survives it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

__all__ = ["available_cpus", "recent_thread_count", "run", "thread_count"]

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
    limit = os.environ.get("GGUFX_THREADS")
    if not limit:
        return available_cpus()
    if not limit.isdecimal() or int(limit) < 1:
        raise ValueError(f"GGUFX_THREADS must be a positive integer, not {limit!r}")
    return min(int(limit), available_cpus())


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

    The first exception stops the others at their next item and is raised here.
    """
    if threads == 1:
        for item in items:
            work(item)
        return
    todo: Iterator[T] = iter(list(items))
    lock = threading.Lock()
    errors: list[BaseException] = []

    def drain() -> None:
        while not errors:
            with lock:
                item = next(todo, todo)
            if item is todo:
                return
            try:
                work(item)  # type: ignore[arg-type]
            except BaseException as error:  # raised again in the calling thread
                errors.append(error)

    workers = [threading.Thread(target=drain, name=f"ggufx-{i}", daemon=True) for i in range(1, threads)]
    for worker in workers:
        worker.start()
    drain()
    for worker in workers:
        worker.join()
    if errors:
        raise errors[0]
