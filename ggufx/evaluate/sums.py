"""Running sums of a comparison: errors of values and of blocks, in pieces that can be added up in order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Sums"]

# Histograms of sizes: the sign-less top bits of a float32, its exponent and `FINE` bits more.
FINE = 3


def _bins(values: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """How many values lie in each eighth of a power of two, by magnitude."""
    bits = np.abs(values).view(np.uint32) >> np.uint32(23 - FINE)
    return np.bincount(bits.reshape(-1), minlength=256 << FINE)


class Sums:
    """What is known of the errors ``e = y - x`` of some rows.

    Positions are flat ones in the tensor; `block` values share a block. Values that aren't finite on either side are
    counted and left out of the sums.
    """

    def __init__(self, block: int, half: Any = None) -> None:
        self.block = block
        self._half = half  # the dtype to which x is rounded, for the question whether y is that
        self.n = 0
        self.x = self.y = self.xx = self.yy = self.xy = self.e = self.ee = 0.0
        self.largest, self.at = -1.0, -1
        self.odd, self.odd_at = 0, -1  # not finite on one side, or in another way on the other
        self.differ = self.blocks_differ = self.blocks = 0
        self.first_block = -1
        self.rounds = half is not None
        self.errors = np.zeros(256 << FINE, np.int64)
        self.block_errors = np.zeros(256 << FINE, np.int64)
        # The blocks that have no likeness to what they should be: error over 1.1 times the signal. Their errors are
        # kept, as there are few of them in a file that is worth looking at.
        self.unlike: list[tuple[int, float]] = []
        self.many_unlike = 0

    def add(self, x: npt.NDArray[np.float32], y: npt.NDArray[np.float32], base: int) -> None:
        """Take in the values from flat position `base` on."""
        x, y = x.reshape(-1), y.reshape(-1)
        good = np.isfinite(x) & np.isfinite(y)
        if not good.all():
            odd = ~good & ~((x == y) | (np.isnan(x) & np.isnan(y)))
            if count := int(np.count_nonzero(odd)):
                if self.odd_at < 0:
                    self.odd_at = base + int(np.argmax(odd))
                self.odd += count
                self.rounds = False
            x, y = np.where(good, x, np.float32(0)), np.where(good, y, np.float32(0))
        self.n += int(np.count_nonzero(good))
        if self._half is not None and self.rounds:
            with np.errstate(over="ignore"):
                self.rounds = bool(np.array_equal(self._half(x), y))
        a, b = x.astype(np.float64), y.astype(np.float64)
        e = b - a
        for name, one, other in (("xx", a, a), ("yy", b, b), ("xy", a, b), ("ee", e, e)):
            setattr(self, name, getattr(self, name) + float(np.dot(one, other)))
        self.x += float(a.sum())
        self.y += float(b.sum())
        self.e += float(e.sum())
        size = np.abs(e)
        top = int(np.argmax(size)) if size.size else 0
        if size.size and size[top] > self.largest:
            self.largest, self.at = float(size[top]), base + top
        with np.errstate(over="ignore", under="ignore"):
            self.errors += _bins(e.astype(np.float32))
        self._add_blocks(a, e, base)

    def _add_blocks(self, a: npt.NDArray[np.float64], e: npt.NDArray[np.float64], base: int) -> None:
        whole = len(e) // self.block * self.block
        parts = [(a[:whole].reshape(-1, self.block), e[:whole].reshape(-1, self.block), base)]
        if whole < len(e):
            parts.append((a[None, whole:], e[None, whole:], base + whole))
        for signal, error, start in parts:
            if not error.size:
                continue
            ee = np.einsum("ij,ij->i", error, error)
            xx = np.einsum("ij,ij->i", signal, signal)
            wrong = ee > 0
            if count := int(np.count_nonzero(wrong)):
                if self.first_block < 0:
                    self.first_block = start + int(np.argmax(wrong)) * self.block
                self.blocks_differ += count
                self.differ += int(np.count_nonzero(error))
            self.blocks += len(ee)
            with np.errstate(over="ignore", under="ignore"):
                self.block_errors += _bins(np.sqrt(ee / error.shape[1]).astype(np.float32))
            unlike = np.flatnonzero((ee > 1.21 * xx) & wrong)
            self.many_unlike += len(unlike)
            room = max(0, 1024 - len(self.unlike))
            for k in unlike[:room].tolist():
                self.unlike.append((start + k * self.block, math.sqrt(ee[k] / error.shape[1])))

    def merge(self, other: Sums) -> None:
        """Add the sums of rows that come later."""
        for name in ("n", "x", "y", "xx", "yy", "xy", "e", "ee", "odd", "differ", "blocks_differ", "blocks"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        if other.largest > self.largest:
            self.largest, self.at = other.largest, other.at
        self.odd_at = other.odd_at if self.odd_at < 0 else self.odd_at
        self.first_block = other.first_block if self.first_block < 0 else self.first_block
        self.rounds = self.rounds and other.rounds
        self.errors += other.errors
        self.block_errors += other.block_errors
        self.unlike += other.unlike
        self.many_unlike += other.many_unlike

    def median_block_error(self) -> float:
        """The median block's root mean square error, to an eighth of a power of two."""
        total = int(self.block_errors.sum())
        if not total:
            return 0.0
        number = int(np.searchsorted(np.cumsum(self.block_errors), (total + 1) // 2))
        return float(np.array([number << (23 - FINE)], np.uint32).view(np.float32)[0])

    def histogram(self) -> dict[int, int]:
        """Errors by size: from the exponent e to how many lie between 2**e and 2**(e + 1); exact zeros left out."""
        counts = self.errors.copy()
        counts[0] = 0
        whole = counts.reshape(256, -1).sum(axis=1)
        return {k - 127: int(whole[k]) for k in np.flatnonzero(whole).tolist()}
