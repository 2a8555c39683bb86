"""How much a quantization loses: errors between numbers and what is left of them."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..formats.tensor_types import QType
from .arrays import given_array
from .decode import dequantize
from .encode import as_values, importance_rows, quantize

__all__ = ["ErrorStats", "ErrorSums", "quant_error"]

# Values quantized and decoded at a time.
_PIECE = 1 << 20


class ErrorStats(NamedTuple):
    """Errors of a quantization, e = decoded - x, in the units of x.

    Attributes
    ----------
    n : int
        Number of values.
    squared_error : float
        Sum of e**2.
    weighted_error : float
        Sum of w * e**2; w is the importance of the column, 1 without an importance matrix.
    rmse : float
        Root of the mean of e**2.
    relative_rmse : float
        `rmse` over the root mean square of x; 0 where x is all zero.
    max_error : float
        Largest abs(e).
    snr_db : float
        Sum of x**2 over sum of e**2, in decibels; infinite without error.
    """

    n: int
    squared_error: float
    weighted_error: float
    rmse: float
    relative_rmse: float
    max_error: float
    snr_db: float


class ErrorSums:
    """Running sums behind a :class:`ErrorStats`, in float64."""

    def __init__(self) -> None:
        self._count = 0
        self._signal = self._error = self._weighted = self._largest = 0.0

    def add(self, x: npt.ArrayLike, decoded: npt.ArrayLike, importance: npt.ArrayLike | None = None) -> None:
        """Take in more values.

        Parameters
        ----------
        x, decoded : array_like
            Values and what they became, of one shape.
        importance : array_like, optional
            Weights, broadcast against `x`.
        """
        exact = given_array(x, "x", np.float64)
        error = given_array(decoded, "decoded", np.float64) - exact
        if not error.size:
            return
        squares = error * error
        self._count += error.size
        self._signal += float(np.sum(exact * exact))
        self._error += float(np.sum(squares))
        weights = 1 if importance is None else given_array(importance, "importance", np.float64)
        self._weighted += float(np.sum(squares * weights))
        self._largest = float(np.maximum(self._largest, np.max(np.abs(error))))  # keeps NaN

    def result(self) -> ErrorStats:
        """Errors of all that was added."""
        n = max(self._count, 1)
        rmse = math.sqrt(self._error / n)
        rms = math.sqrt(self._signal / n)
        with np.errstate(all="ignore"):
            snr = 10 * float(np.log10(np.float64(self._signal) / self._error)) if self._error else math.inf
        relative = rmse / rms if rms else 0.0
        return ErrorStats(self._count, self._error, self._weighted, rmse, relative, self._largest, snr)


def quant_error(
    x: npt.ArrayLike,
    qtype: QType | int | str,
    imatrix: npt.ArrayLike | None = None,
    *,
    threads: int | None = None,
    path: str | None = None,
) -> ErrorStats:
    """Errors of quantizing and decoding again, without keeping more than a piece of either.

    Parameters
    ----------
    x : array_like
        As `ggufx.quantize` takes it.
    qtype : QType, int or str
        Type to quantize to.
    imatrix : array_like, optional
        Importance: the quantizer's, and the weights of `weighted_error`.
    threads, path
        As in `ggufx.quantize`.

    Returns
    -------
    ErrorStats

    Raises
    ------
    GGUFError, TypeError, ValueError
        As `ggufx.quantize` does.

    Examples
    --------
    >>> import numpy as np
    >>> quant_error(np.ones((4, 32), np.float32), "Q8_0").max_error < 1e-3
    True
    """
    kind = QType.parse(qtype)
    array = as_values(x)
    width = array.shape[-1]
    weights = None if imatrix is None else importance_rows(imatrix, array.shape)
    groups = array.reshape(1 if weights is None else len(weights), -1, width) if array.size else array[None]
    step = max(1, _PIECE // max(1, width))
    sums = ErrorSums()
    for k, rows in enumerate(groups):
        importance = None if weights is None else weights[k]
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            packed = quantize(part, kind, imatrix=importance, threads=threads, path=path)
            sums.add(part, dequantize(packed, kind, threads=threads, path=path), importance)
    return sums.result()
