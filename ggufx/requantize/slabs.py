"""Tensors in slabs of rows, decoded and quantized on all cores in order, a few ahead of whoever takes the results.

The cores stay busy across tensors, and memory holds some slabs whatever the size of the model.
"""

from __future__ import annotations

import math
import re
import threading
import warnings
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from ..errors import GGUFError, GGUFWarning
from ..formats.tensor_types import QType
from ..read.tensor import Tensor

__all__ = ["Overflows", "Slab", "cut", "ordered", "quantized", "take"]

Floats = npt.NDArray[np.float32]
T = TypeVar("T")
R = TypeVar("R")

# Values of a slab: 4 MB of float32, so that a slab and its blocks stay in a core's share of the cache.
SLAB = 1 << 20
# Slabs that may be finished or under way ahead of the writer, for each thread.
AHEAD = 3


class Slab(NamedTuple):
    """Rows of one tensor, all under one expert's importance; `name` is the tensor's in the output."""

    name: str
    tensor: Tensor
    qtype: QType
    start: int
    stop: int
    importance: Floats | None


def cut(name: str, tensor: Tensor, qtype: QType, weights: Floats | None) -> Iterator[Slab]:
    """A tensor's rows in pieces that don't cross from one expert to the next."""
    width = tensor.shape[-1]
    rows = math.prod(tensor.shape[:-1]) if width else 0
    step = max(1, SLAB // max(width, 1))
    groups = 1 if weights is None or weights.ndim == 1 else len(weights)
    per_group = rows // groups
    for g in range(groups):
        importance = None if weights is None else weights if weights.ndim == 1 else weights[g]
        for start in range(g * per_group, (g + 1) * per_group, step):
            yield Slab(name, tensor, qtype, start, min(start + step, (g + 1) * per_group), importance)


def _decoded(rows: Tensor) -> Floats:
    """A matrix of rows as float32; what is float32 already stays where it is."""
    if rows.qtype is QType.F32 and rows.byte_order == "little":
        return rows.data
    return rows.dequantize(np.float32, threads=1)


def quantized(slab: Slab, overflows: Overflows) -> npt.NDArray[np.uint8]:
    """Decode and quantize the rows of a slab."""
    from ..codec.encode import quantize

    rows = slab.tensor.rows(slab.start, slab.stop)
    values = _decoded(rows)
    try:
        with overflows.of(slab.name):
            packed = quantize(values, slab.qtype, imatrix=slab.importance, threads=1)
        rows.advise("dontneed")  # each page is needed once, and a process may be smaller than its model
        return packed
    except GGUFError as error:
        bad = np.argwhere(~np.isfinite(values))
        if not len(bad):
            raise GGUFError(f"{slab.tensor.label}: {error}") from error
        row, column = (int(i) for i in bad[0])
        at = [int(i) for i in np.unravel_index(row + slab.start, slab.tensor.shape[:-1])]
        raise GGUFError(
            f"{slab.tensor.label}: the value at {[*at, column]} is {values[row, column]}: no number to quantize"
        ) from error


class Overflows:
    """Counts what quantize() warns of, by tensor, so that the user hears of it once and not for every slab.

    Python's filters belong to the process, so they are set once around all the work; each worker says which tensor it
    is on. Warnings of others pass through.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._here = threading.local()
        self._catch = warnings.catch_warnings()

    def __enter__(self) -> Overflows:
        self._catch.__enter__()
        warnings.simplefilter("always", GGUFWarning)
        passed_on = warnings.showwarning

        def show(message: Any, category: type[Warning], filename: str, lineno: int, *rest: Any, **more: Any) -> None:
            name = getattr(self._here, "name", None)
            number = re.search(r": (\d+) of", str(message))
            if issubclass(category, GGUFWarning) and name is not None and number:
                self.counts[name] += int(number[1])
            else:
                passed_on(message, category, filename, lineno, *rest, **more)

        warnings.showwarning = show
        return self

    def __exit__(self, *_: object) -> None:
        self._catch.__exit__(None, None, None)

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """What this thread warns of inside belongs to the tensor `name`."""
        self._here.name = name
        try:
            yield
        finally:
            self._here.name = None


def ordered(work: Callable[[T], R], items: Iterable[T], threads: int) -> Generator[R, None, None]:
    """The results of ``work(item)`` in order, a bounded number of them worked on ahead on `threads` threads."""
    if threads == 1:
        for item in items:
            yield work(item)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="ggufx") as pool:
        queue: deque[Future[R]] = deque()
        try:
            for item in items:
                queue.append(pool.submit(work, item))
                if len(queue) >= AHEAD * threads:
                    yield queue.popleft().result()
            while queue:
                yield queue.popleft().result()
        finally:
            for future in queue:
                future.cancel()


def take(results: Iterator[T], count: int) -> Iterator[T]:
    for _ in range(count):
        yield next(results)
