"""What a model's logits say about the tokens that came: -log p of each, with llama-perplexity's arithmetic.

Sums of exponentials are taken in float64 over exponentials in float32.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Softmax", "mean_and_error", "nll_of", "softmax_of"]

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]


class Softmax(NamedTuple):
    """What turns rows of logits into log probabilities.

    Attributes
    ----------
    top : ndarray of float32
        Each row's largest logit.
    best : ndarray of int64
        Its token, the first of equals.
    log_sum : ndarray of float64
        Log of the sum of exp(logit - top).
    """

    top: Floats
    best: npt.NDArray[np.int64]
    log_sum: Doubles


def softmax_of(logits: Floats) -> Softmax:
    """Look at rows of float32 logits."""
    best = np.argmax(logits, axis=1)
    top = np.take_along_axis(logits, best[:, None], axis=1)[:, 0]
    with np.errstate(under="ignore", invalid="ignore"):
        powers = np.exp(logits - top[:, None])
    return Softmax(top, best, np.log(powers.sum(axis=1, dtype=np.float64)))


def nll_of(logits: Floats, targets: npt.NDArray[np.int32], softmax: Softmax | None = None) -> Doubles:
    """-log p of each row's target, in float64 from the float32 difference of the logits."""
    known = softmax_of(logits) if softmax is None else softmax
    chosen = np.take_along_axis(logits, targets[:, None].astype(np.int64), axis=1)[:, 0]
    result: Doubles = known.log_sum - (chosen - known.top)
    return result


def mean_and_error(values: npt.NDArray[Any]) -> tuple[float, float]:
    """Mean, and its standard error if the values are independent; 0 for a single one."""
    wide = np.asarray(values, np.float64)
    n = wide.size
    if not n:
        return 0.0, 0.0
    mean = float(wide.mean())
    if n < 2:
        return mean, 0.0
    return mean, float(np.sqrt(max(0.0, float(np.mean(wide * wide)) - mean * mean) / (n - 1)))
