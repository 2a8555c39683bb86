"""Timing: the fastest of several runs, each long enough for the clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

# A run repeats the call until it takes about this long, so that the clock's own cost disappears.
RUN = 0.002


class Timing(NamedTuple):
    """Seconds per call of the fastest run, and how many runs there were."""

    seconds: float
    runs: int


def best(call: Callable[[], object], budget: float) -> Timing:
    """Time `call` for about `budget` seconds, after calls that aren't counted; at least three runs."""
    start = time.perf_counter()
    call()
    first = time.perf_counter() - start
    inner = max(1, int(RUN / max(first, 1e-9)))
    for _ in range(inner if inner > 1 else 0):
        call()
    fastest, runs, end = float("inf"), 0, time.perf_counter() + budget
    while runs < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(inner):
            call()
        fastest, runs = min(fastest, (time.perf_counter() - start) / inner), runs + 1
    return Timing(fastest, runs)
