"""How far a model's predictions are from a reference's: KL divergence, agreement, changes of probability."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .scoring import Doubles, Floats, Softmax, mean_and_error, nll_of, softmax_of

__all__ = ["Divergence", "Rows", "against_log_probabilities", "against_logits"]

# The reference's tokens at or below this log probability don't count: in a base file they lie at its floor.
CUT = np.float32(-16)


class Rows(NamedTuple):
    """Some positions' divergences.

    Attributes
    ----------
    kl : ndarray of float64
    nll, nll_base : ndarray of float64
        -log p of the target, by the model and by the reference.
    same_top : ndarray of bool
        Whether both find the same token likeliest.
    spread : ndarray of float64
        By how much `kl` may be too small, where the reference wasn't kept whole; else 0.
    """

    kl: Doubles
    nll: Doubles
    nll_base: Doubles
    same_top: npt.NDArray[np.bool_]
    spread: Doubles


def against_log_probabilities(logits: Floats, base: Floats, targets: npt.NDArray[np.int32], softmax: Softmax) -> Rows:
    """Rows of logits against a reference's log probabilities, with llama-perplexity's arithmetic.

    The sum runs over the tokens whose reference lies above `CUT`: it is no full divergence, and may be just under 0.
    """
    log_sum = softmax.log_sum.astype(np.float32)
    at = np.arange(len(targets)), targets
    shift = softmax.top + log_sum
    nll = (shift - logits[at]).astype(np.float64)
    with np.errstate(under="ignore", invalid="ignore"):
        weight = np.exp(base)
        weight[base <= CUT] = 0
        terms = base - logits
        terms += shift[:, None]
        terms *= weight
        if not np.isfinite(softmax.top - logits.min(axis=1)).all():
            terms[weight == 0] = 0  # a masked token's logit may be -inf
    best = np.argmax(base, axis=1)
    kl = terms.sum(axis=1, dtype=np.float64)
    nll_base = -base[at].astype(np.float64)
    return Rows(kl, nll, nll_base, best == softmax.best, np.zeros(len(targets)))


def against_logits(logits: Floats, base: Floats, targets: npt.NDArray[np.int32], softmax: Softmax) -> Rows:
    """Rows of logits against a reference's logits: the whole divergence."""
    reference = softmax_of(base)
    with np.errstate(under="ignore", invalid="ignore"):
        log_p = base - (reference.top + reference.log_sum.astype(np.float32))[:, None]
        terms = log_p - (logits - (softmax.top + softmax.log_sum.astype(np.float32))[:, None])
        weight = np.exp(log_p)
        terms *= weight
        terms[weight == 0] = 0  # a masked token's logit may be -inf
    kl = terms.sum(axis=1, dtype=np.float64)
    nll, nll_base = nll_of(logits, targets, softmax), nll_of(base, targets, reference)
    return Rows(kl, nll, nll_base, reference.best == softmax.best, np.zeros(len(targets)))


@dataclass
class Divergence:
    """All scored positions of a text, against a reference.

    Attributes
    ----------
    kl, nll, nll_base, spread : ndarray of float64
    same_top : ndarray of bool
        One for each scored position; see `Rows`.
    """

    kl: Doubles
    nll: Doubles
    nll_base: Doubles
    same_top: npt.NDArray[np.bool_]
    spread: Doubles

    @classmethod
    def of(cls, rows: list[Rows]) -> Divergence:
        """Put positions together."""
        return cls(*(np.concatenate([getattr(r, name) for r in rows]) for name in cls.__dataclass_fields__))

    @property
    def change(self) -> Doubles:
        """How much likelier the targets are than by the reference, from -1 to 1."""
        change: Doubles = np.exp(-self.nll) - np.exp(-self.nll_base)
        return change

    def summary(self) -> dict[str, Any]:
        """Means and percentiles, as llama-perplexity defines them; pairs are a value and its standard error.

        Perplexities and probabilities are plain numbers, not percent; ``kl_may_lack`` is the mean of `spread`.
        """
        n = len(self.kl)
        mean, error = mean_and_error(self.nll)
        base, base_error = mean_and_error(self.nll_base)
        together = (float(np.mean(self.nll * self.nll_base)) - mean * base) / max(1, n - 1)
        ratio_error = float(np.sqrt(max(0.0, error**2 + base_error**2 - 2 * together)))
        ppl, ppl_base, ratio = np.exp(mean), np.exp(base), np.exp(mean - base)
        change = self.change
        square, square_error = mean_and_error(change * change)
        rms = float(np.sqrt(square))
        top = float(np.mean(self.same_top))
        difference = (ppl * error) ** 2 + (ppl_base * base_error) ** 2 - 2 * ppl * ppl_base * together
        report: dict[str, Any] = {
            "ppl": (float(ppl), float(ppl * error)),
            "ppl_base": (float(ppl_base), float(ppl_base * base_error)),
            "correlation": together / (error * base_error) if error and base_error else 1.0,
            "ln_ratio": (mean - base, ratio_error),
            "ratio": (float(ratio), float(ratio * ratio_error)),
            "difference": (float(ppl - ppl_base), float(np.sqrt(max(0.0, difference)))),
            "kl": mean_and_error(self.kl),
            "kl_max": float(self.kl.max()),
            "kl_min": float(self.kl.min()),
            "kl_percentiles": _percentiles(self.kl),
            "kl_may_lack": float(self.spread.mean()),
            "change": mean_and_error(change),
            "change_max": float(change.max()),
            "change_min": float(change.min()),
            "change_percentiles": _percentiles(change),
            "change_rms": (rms, 0.5 / rms * square_error if rms else 0.0),
            "same_top": (top, float(np.sqrt(top * (1 - top) / max(1, n - 1)))),
        }
        return report


PERCENTS = (0.1, 1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9)


def _percentiles(values: Doubles) -> dict[float, float]:
    """Linear between order statistics, of float32 values."""
    found = np.percentile(values.astype(np.float32), PERCENTS)
    return {p: float(v) for p, v in zip(PERCENTS, found, strict=True)}
