"""Saying what an error is: nothing, rounding, an offset, a scale, another order of rows, a broken block."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .blocks import place_text
from .compared import TensorComparison
from .findings import ERROR, WARNING, Finding
from .permutations import describe_order
from .sums import Sums

__all__ = ["judge"]

# An error is an offset if its spread is at most this part of its mean: a norm off by one has no spread, a matrix that
# was quantized after adding one has the quantizer's.
OFFSET_SPREAD = 0.1
# A scale is one if what it doesn't explain is at most this part of the signal.
SCALE_REST = 1e-2
# Below this cosine two tensors have nothing to do with each other.
UNRELATED = 0.5
# A block is wrong if its error is larger than its values (by a tenth) and this many times the median block's. Blocks of
# tiny values beside large ones also lose their values whole, but then their errors are small beside the others'.
WRONG_RATIO = 3.0
# More blocks than this part aren't single wrong ones any more.
MOST_WRONG = 0.05


def judge(c: TensorComparison, sums: Sums | None, find_order: Callable[[], Any]) -> None:
    """Fill in a tensor's verdict and findings.

    Parameters
    ----------
    c : TensorComparison
        With its figures.
    sums : Sums or None
        What they come from; None if the bits are equal.
    find_order : callable
        Looks for a permutation of the rows; called only if nothing else explains a large error.
    """
    if sums is None:
        return
    if sums.odd:
        _say(c, sums.odd_at, sums.block, "nan", "a value isn't finite on one side only", sums.odd, "values")
    if not sums.ee:
        c.verdict = "" if sums.odd else "equal values"
        return
    if sums.rounds and not sums.odd:
        c.verdict = "equal after rounding"
        return
    if sums.n > 1 and _is_offset(sums):
        c.verdict = "offset"
        text = f"tensor {c.name!r}: the second is the first {sums.e / sums.n:+.6g}"
        c.findings.append(Finding(ERROR, "offset", c.name, text))
        return
    factor = sums.xy / sums.xx if sums.xx else 0.0
    rest = max(0.0, sums.yy - factor * sums.xy)
    if factor and abs(factor - 1) > 0.01 and rest <= (SCALE_REST * abs(factor - 1)) ** 2 * sums.xx:
        c.verdict = "scaled"
        text = f"tensor {c.name!r}: the second is the first times {factor:.6g}"
        c.findings.append(Finding(ERROR, "scaled", c.name, text))
        return
    if c.relative_rmse > 0.3 and len(c.shape) >= 2 and (order := find_order()) is not None:
        c.verdict = "rows permuted"
        text = f"tensor {c.name!r}: {describe_order(order)}"
        c.findings.append(Finding(ERROR, "rows permuted", c.name, text))
        return
    if c.cosine < UNRELATED:
        c.verdict = "unrelated"
        text = f"tensor {c.name!r}: the two have nothing in common: the cosine between them is {c.cosine:.3f}"
        c.findings.append(Finding(ERROR, "unrelated", c.name, text))
        return
    _blocks(c, sums)


def _is_offset(sums: Sums) -> bool:
    mean = sums.e / sums.n
    spread = math.sqrt(max(0.0, sums.ee / sums.n - mean * mean))
    return mean != 0 and spread <= OFFSET_SPREAD * abs(mean)


def _blocks(c: TensorComparison, sums: Sums) -> None:
    """Single blocks that aren't what they should be."""
    if len(c.shape) < 2:
        return
    median = sums.median_block_error()
    wrong = [at for at, error in sums.unlike if error > WRONG_RATIO * median]
    if wrong and sums.many_unlike <= max(1.0, MOST_WRONG * sums.blocks):
        _say(c, wrong[0], sums.block, "wrong block", "the block is another one", len(wrong), "blocks")
    elif c.type_a == c.type_b and sums.blocks_differ and sums.blocks_differ <= MOST_WRONG * sums.blocks:
        what = "the block differs, most others are equal"
        _say(c, sums.first_block, sums.block, "some blocks", what, sums.blocks_differ, "blocks", WARNING)


def _say(
    c: TensorComparison, at: int, block: int, kind: str, what: str, count: int, units: str, severity: str = ERROR
) -> None:
    expert, row, number, where = place_text(c.shape, at, block)
    text = f"tensor {c.name!r}: {where}: {what}"
    if count > 1:
        text += f"; so in {count} {units}"
    c.findings.append(Finding(severity, kind, c.name, text, count, expert, row, number))
