"""Tensors in slabs of rows, decoded and quantized on all cores in order, a few ahead of whoever takes the results.

The cores stay busy across tensors, and memory holds some slabs whatever the size of the model.
"""

from __future__ import annotations

import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from ..codec.threads import start_threads
from ..errors import GGUFError
from ..formats.tensor_types import QType
from ..read.tensor import Tensor

__all__ = ["Slab", "cut", "ordered", "quantized", "taken"]

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
    if rows.qtype is QType.F32 and rows.byteorder == "little":
        return rows.data
    return rows.dequantize(np.float32, threads=1)


def quantized(slab: Slab) -> tuple[npt.NDArray[np.uint8], int]:
    """Decode and quantize the rows of a slab; returns how many values or scales became infinite beside the blocks."""
    from ..codec.encode import quantize_counted

    rows = slab.tensor.rows(slab.start, slab.stop)
    values = _decoded(rows)
    try:
        found = quantize_counted(values, slab.qtype, imatrix=slab.importance, threads=1)
        rows.advise("dontneed")  # each page is needed once, and a process may be smaller than its model
        return found
    except GGUFError as error:
        bad = np.argwhere(~np.isfinite(values))
        if not len(bad):
            raise GGUFError(f"{slab.tensor.label}: {error}") from error
        row, column = (int(i) for i in bad[0])
        at = [int(i) for i in np.unravel_index(row + slab.start, slab.tensor.shape[:-1])]
        raise GGUFError(
            f"{slab.tensor.label}: the value at {[*at, column]} is {values[row, column]}: no number to quantize"
        ) from error


def ordered(work: Callable[[T], R], items: Iterable[T], threads: int) -> Generator[R, None, None]:
    """The results of ``work(item)`` in order, a bounded number of them worked on ahead on `threads` threads."""
    todo: SimpleQueue[tuple[Future[R], T] | None] = SimpleQueue()

    def labour() -> None:
        while (task := todo.get()) is not None:
            future, item = task
            del task
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work(item))
                except BaseException as error:  # raised again where the result is asked for
                    future.set_exception(error)
            # An error's traceback holds this frame, which mustn't hold the error.
            del future, item

    workers: list[threading.Thread] = []
    queue: deque[Future[R]] = deque()
    try:
        if threads > 1:
            start_threads(labour, threads, workers)
        for item in items:
            if not workers:
                yield work(item)
                continue
            queue.append(Future())
            todo.put((queue[-1], item))
            if len(queue) >= AHEAD * len(workers):
                yield queue.popleft().result()
        while queue:
            yield queue.popleft().result()
    finally:
        for future in queue:
            future.cancel()
        for _ in workers:
            todo.put(None)
        for worker in workers:
            if worker.is_alive():
                worker.join()


def taken(
    results: Iterator[tuple[npt.NDArray[np.uint8], int]], count: int, name: str, overflows: Counter[str]
) -> Iterator[npt.NDArray[np.uint8]]:
    """The blocks of the next `count` slabs, whose overflows are added to those of the tensor `name`."""
    for _ in range(count):
        packed, overflowed = next(results)
        if overflowed:
            overflows[name] += overflowed
        yield packed
