"""Recognising a tensor whose rows are another's in another order."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..model.permute import permuted_rows, unpermuted_rows
from .sides import Weights

__all__ = ["describe_order", "find_order"]

# Rows are compared by this many random sums of them. 64 tell rows apart whose noise is a third of their size.
SUMS = 64
# Each row is held against each other: more rows than this would take minutes.
MOST_ROWS = 16384
PIECE = 1 << 20


def _marks(weights: Weights) -> npt.NDArray[np.float32]:
    """Random sums of every row: equal rows have equal ones, other rows don't."""
    signs = np.random.default_rng(0).standard_normal((weights.width, SUMS)).astype(np.float32)
    marks = np.empty((weights.count, SUMS), np.float32)
    step = max(1, PIECE // max(1, weights.width))
    with weights.reader() as rows:
        for start in range(0, weights.count, step):
            stop = min(start + step, weights.count)
            marks[start:stop] = np.nan_to_num(rows(start, stop), nan=0.0, posinf=0.0, neginf=0.0) @ signs
    return marks


def find_order(a: Weights, b: Weights) -> npt.NDArray[np.int64] | None:
    """The rows of `a`, in order, that are nearest to those of `b`.

    Returns
    -------
    ndarray of int64 or None
        A permutation other than the identity, under which at least half of the squared difference goes away.
    """
    count = a.count
    if not 2 <= count <= MOST_ROWS:
        return None
    ours, theirs = _marks(a), _marks(b)
    order = np.empty(count, np.int64)
    sizes = np.einsum("ij,ij->i", ours, ours)
    for start in range(0, count, 1024):
        part = theirs[start : start + 1024]
        order[start : start + 1024] = np.argmin(sizes - 2 * (part @ ours.T), axis=1)
    if np.array_equal(order, np.arange(count)) or len(np.unique(order)) < count:
        return None
    before = float(np.sum((theirs - ours) ** 2, dtype=np.float64))
    after = float(np.sum((theirs - ours[order]) ** 2, dtype=np.float64))
    return order if after < 0.5 * before else None


def describe_order(order: npt.NDArray[np.int64]) -> str:
    """Words for a permutation: Llama's interleaved heads where it is that, else how many rows moved."""
    count = len(order)
    for heads in range(1, count // 4 + 1):
        if count % (2 * heads):
            continue
        if np.array_equal(order, permuted_rows(count, heads)):
            return f"rows are interleaved in {heads} heads of {count // heads}, as Llama's GGUF files have q and k"
        if np.array_equal(order, unpermuted_rows(count, heads)):
            return f"rows of {heads} heads of {count // heads} are in halves, as Hugging Face has q and k"
    moved = np.flatnonzero(order != np.arange(count))
    first = int(moved[0])
    return f"{len(moved)} of {count} rows have other places: row {first} is the other side's row {int(order[first])}"
