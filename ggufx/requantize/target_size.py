"""Which type each tensor gets under a byte budget: the assignment with the least error.

For every tensor and every candidate type, a sample of rows is quantized and decoded again. What counts is the error
relative to the tensor's own values, weighted by importance: the part of a layer's output that quantizing turns into
noise. The sum over the tensors is then made as small as the budget allows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import GGUFError
from ..formats.tensor_types import QType, nbytes
from ..read.tensor import Tensor
from ..write.stream import padded
from .choices import Choice
from .mixes import NEED_IMATRIX, fitting_type
from .slabs import ordered

__all__ = ["CANDIDATES", "Measured", "assign", "measure", "relative_error", "sample_rows"]

Floats = npt.NDArray[np.float32]

# What a tensor may become, besides what it is. The IQ1, IQ2 and IQ3_XXS types are candidates only with an importance
# matrix.
CANDIDATES = (
    QType.Q2_K,
    QType.Q3_K,
    QType.IQ3_S,
    QType.IQ4_XS,
    QType.IQ4_NL,
    QType.Q4_K,
    QType.Q5_0,
    QType.Q5_1,
    QType.Q5_K,
    QType.Q6_K,
    QType.Q8_0,
    QType.F16,
    QType.BF16,
)
IMATRIX_CANDIDATES = (QType.IQ1_S, QType.IQ1_M, QType.IQ2_XXS, QType.IQ2_XS, QType.IQ2_S, QType.IQ3_XXS)
# Values of a tensor that are looked at.
SAMPLE = 1 << 17


class Measured(NamedTuple):
    """A tensor's choices: the bytes each type would take in the file, and the error it would make."""

    name: str
    sizes: Mapping[QType, int]
    errors: Mapping[QType, float]

    def hull(self) -> list[tuple[int, float, QType]]:
        """(bytes, error, type) of the types worth having: each larger one lowers the error at a falling rate."""
        points = sorted((self.sizes[t], error, t) for t, error in self.errors.items())
        hull: list[tuple[int, float, QType]] = []
        for size, error, qtype in points:
            if hull and error >= hull[-1][1]:
                continue
            if hull and size == hull[-1][0]:
                hull.pop()
            while len(hull) > 1 and _rate(hull[-2], hull[-1]) <= _rate(hull[-1], (size, error, qtype)):
                hull.pop()
            hull.append((size, error, qtype))
        return hull


def _rate(small: tuple[int, float, QType], large: tuple[int, float, QType]) -> float:
    """Error saved for each byte more."""
    return (small[1] - large[1]) / (large[0] - small[0])


def assign(tensors: Sequence[Measured], budget: int) -> dict[str, QType]:
    """The types with the least sum of errors whose sizes keep within `budget` bytes.

    Starts from every tensor's smallest type and takes the steps that save most error for a byte, until none fits. On
    each tensor's convex hull that is the optimum but for the last step; the rest of the budget is filled with whatever
    still fits, hull or not.

    Raises
    ------
    ValueError
        If even the smallest types don't fit; the message says how many bytes they need.
    """
    hulls = {t.name: t.hull() for t in tensors}
    at = dict.fromkeys(hulls, 0)
    used = sum(hull[0][0] for hull in hulls.values())
    if used > budget:
        raise ValueError(f"the smallest types need {used} bytes, {budget} are left")
    steps = sorted(
        ((_rate(hull[i], hull[i + 1]), name, i) for name, hull in hulls.items() for i in range(len(hull) - 1)),
        key=lambda step: -step[0],
    )
    for _, name, i in steps:
        hull = hulls[name]
        if at[name] == i and used + hull[i + 1][0] - hull[i][0] <= budget:
            used += hull[i + 1][0] - hull[i][0]
            at[name] = i + 1
    chosen = {name: hull[at[name]] for name, hull in hulls.items()}
    # Points off the hull are between two steps; now that no step fits any more, one of them may.
    while True:
        best = max(
            (
                (chosen[t.name][1] - error, t.name, (size, error, qtype))
                for t in tensors
                for qtype, error in t.errors.items()
                if (size := t.sizes[qtype]) - chosen[t.name][0] <= budget - used and error < chosen[t.name][1]
            ),
            key=lambda item: (item[0], item[1]),
            default=None,
        )
        if best is None:
            return {name: point[2] for name, point in chosen.items()}
        used += best[2][0] - chosen[best[1]][0]
        chosen[best[1]] = best[2]


def measure(
    choices: Sequence[Choice],
    tensors: Mapping[str, Tensor],
    weights: Mapping[str, Floats | None],
    alignment: int,
    threads: int,
) -> list[Measured]:
    """The error of every candidate type on a sample of each tensor; `weights` are the importance of its columns."""
    wanted = CANDIDATES + (IMATRIX_CANDIDATES if any(w is not None for w in weights.values()) else ())

    def work(pair: tuple[Choice, QType]) -> float:
        c, qtype = pair
        if qtype == c.source:
            return 0.0  # it stays as it is
        rows, importance = _sample(tensors[c.name], weights[c.name])
        try:
            return relative_error(rows, qtype, importance)
        except GGUFError as error:
            raise _named(tensors[c.name], error) from error

    pairs = []
    for c in choices:
        kinds = {fitting_type(c.name, c.shape, t) for t in wanted}
        if isinstance(c.source, QType):
            # Nothing that is as large can be better than what is there.
            most = padded(nbytes(c.shape, c.source), alignment)
            kinds = {t for t in kinds if padded(nbytes(c.shape, t), alignment) < most} | {c.source}
        allowed = kinds if weights[c.name] is not None else kinds - set(NEED_IMATRIX) | kinds & {c.source}
        pairs += [(c, t) for t in sorted(allowed)]
    found: dict[str, dict[QType, float]] = {c.name: {} for c in choices}
    for (c, qtype), error in zip(pairs, ordered(work, pairs, threads), strict=True):
        if math.isfinite(error):  # a scale or value that overflows makes a type none to choose
            found[c.name][qtype] = error
    sizes = {c.name: {t: padded(nbytes(c.shape, t), alignment) for t in found[c.name]} for c in choices}
    return [Measured(c.name, sizes[c.name], found[c.name]) for c in choices]


def _named(tensor: Tensor, error: GGUFError) -> GGUFError:
    """The error of a sample, with the file, the tensor and the position of the first value that isn't finite."""
    width = tensor.shape[-1]
    rows = math.prod(tensor.shape[:-1])
    step = max(1, SAMPLE // max(width, 1))
    for start in range(0, rows, step):
        values = tensor.rows(start, min(start + step, rows)).dequantize(np.float32, threads=1)
        bad = np.argwhere(~np.isfinite(values))
        if len(bad):
            row, column = (int(i) for i in bad[0])
            at = [int(i) for i in np.unravel_index(row + start, tensor.shape[:-1])]
            return GGUFError(
                f"{tensor.label}: the value at {[*at, column]} is {values[row, column]}: no number to quantize"
            )
    return GGUFError(f"{tensor.label}: {error}")


def _sample(tensor: Tensor, weights: Floats | None) -> tuple[Floats, Floats | None]:
    """Some rows of a tensor, and their importance."""
    width = tensor.shape[-1]
    rows = math.prod(tensor.shape[:-1])
    at = sample_rows(rows, width, SAMPLE)
    values = tensor.reshape(rows, width).take(at, dtype=np.float32, threads=1)
    if weights is None or weights.ndim == 1:
        return values, weights
    return values, np.ascontiguousarray(weights[at // (rows // len(weights))])


def sample_rows(rows: int, width: int, values: int) -> npt.NDArray[np.intp]:
    """Row numbers, evenly spread, that hold about `values` values, at least 8 where there are so many."""
    count = min(rows, max(8, values // max(width, 1)))
    return np.unique(np.linspace(0, rows - 1, count).round().astype(np.intp))


def relative_error(
    x: npt.NDArray[np.float32], qtype: QType, importance: npt.NDArray[np.float32] | None, threads: int | None = 1
) -> float:
    """The weighted squared error of quantizing rows, relative to their weighted squares.

    `importance` has one row of weights for all rows of `x`, or one for each of them.
    """
    from ..codec.decode import dequantize
    from ..codec.encode import quantize_counted

    # What overflows shows in the error: it needs no warning.
    if importance is not None and importance.ndim == 2:
        parts: list[Any] = [
            quantize_counted(row[None], qtype, imatrix=w, threads=threads)[0]
            for row, w in zip(x, importance, strict=True)
        ]
        packed = np.concatenate(parts)
    else:
        packed, _ = quantize_counted(x, qtype, imatrix=importance, threads=threads)
    y = dequantize(packed, qtype, threads=threads)
    weights = np.float64(1) if importance is None else importance.astype(np.float64)
    total = float((weights * x.astype(np.float64) ** 2).sum())
    wrong = float((weights * (x.astype(np.float64) - y) ** 2).sum())
    return wrong / total if total else 0.0
