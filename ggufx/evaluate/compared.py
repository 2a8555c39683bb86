"""What a comparison found, in numbers, words and JSON."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from .findings import ERROR, Finding
from .sides import Weights
from .sums import Sums

__all__ = ["Comparison", "TensorComparison", "TypeErrors"]


@dataclass
class TensorComparison:
    """One tensor of both sides; errors are ``e = b - a``.

    Attributes
    ----------
    name : str
    shape : tuple of int
    type_a, type_b : str
    n : int
        Values that are finite on both sides; the others are in `findings`.
    bits : float or None
        Of `b` for each value.
    rms : float or None
        Root of the mean of a**2; None where equal bits spared looking at values.
    rmse : float
        Root of the mean of e**2.
    relative_rmse : float
        `rmse` over the root mean square of `a`; infinite if `a` is zero and `b` isn't.
    snr_db : float
        Sum of a**2 over sum of e**2, in decibels; infinite without error.
    max_error : float
        Largest abs(e).
    max_at : int
        Where, counted in the flat tensor; -1 without error.
    cosine : float
        Of the angle between both, 1 where both are zero.
    mean_error : float
        Mean of e.
    histogram : dict
        From the exponent k to the number of errors from 2**k to 2**(k + 1).
    verdict : str
        ``"equal bits"``, ``"equal values"``, ``"equal after rounding"``, ``"offset"``, ``"scaled"``,
        ``"rows permuted"``, ``"unrelated"``, or ``""`` for an ordinary error.
    findings : list of Finding
        What is suspicious.
    """

    name: str
    shape: tuple[int, ...]
    type_a: str
    type_b: str
    n: int = 0
    bits: float | None = None
    rms: float | None = None
    rmse: float = 0.0
    relative_rmse: float = 0.0
    snr_db: float = math.inf
    max_error: float = 0.0
    max_at: int = -1
    cosine: float = 1.0
    mean_error: float = 0.0
    histogram: dict[int, int] = field(default_factory=dict)
    verdict: str = ""
    findings: list[Finding] = field(default_factory=list)

    @classmethod
    def of(cls, a: Weights, b: Weights, sums: Sums | None) -> TensorComparison:
        """The figures of some sums; without sums, both sides have the same bits."""
        out = cls(a.name, a.shape, a.type_name, b.type_name)
        if b.nbytes is not None and b.size:
            out.bits = 8 * b.nbytes / b.size
        if sums is None:
            out.n, out.verdict = a.size, "equal bits"
            return out
        n = max(1, sums.n)
        out.n = sums.n
        out.rms = math.sqrt(sums.xx / n)
        out.rmse = math.sqrt(sums.ee / n)
        out.mean_error = sums.e / n
        if sums.ee:
            out.relative_rmse = math.sqrt(sums.ee / sums.xx) if sums.xx else math.inf
            out.snr_db = 10 * math.log10(sums.xx / sums.ee) if sums.xx else -math.inf
            out.max_error, out.max_at = max(sums.largest, 0.0), sums.at
            out.cosine = sums.xy / math.sqrt(sums.xx * sums.yy) if sums.xx and sums.yy else 0.0
        out.histogram = sums.histogram()
        return out


@dataclass
class TypeErrors:
    """All tensors that went from one type to another, taken together.

    Attributes
    ----------
    type_a, type_b : str
    tensors, n : int
    rmse, relative_rmse, snr_db, max_error : float
        As of a tensor, over all their values; what has equal bits isn't part of the relative ones.
    """

    type_a: str
    type_b: str
    tensors: int
    n: int
    rmse: float
    relative_rmse: float
    snr_db: float
    max_error: float


@dataclass
class Comparison:
    """What `compare` found.

    Attributes
    ----------
    a, b : str
        The sides, as they were named.
    structure : list of Finding
        Metadata, names, shapes and types that differ.
    tensors : list of TensorComparison
        Those that both have with the same shape, in the order of `a`.
    """

    a: str
    b: str
    structure: list[Finding] = field(default_factory=list)
    tensors: list[TensorComparison] = field(default_factory=list)

    @property
    def findings(self) -> list[Finding]:
        """All that is suspicious or differs in structure."""
        return [*self.structure, *(f for t in self.tensors for f in t.findings)]

    @property
    def ok(self) -> bool:
        """Whether nothing is missing, misshapen, or wrong in its values; ordinary errors may be there."""
        return not any(f.severity == ERROR for f in self.findings)

    @property
    def identical(self) -> bool:
        """Whether both have the same metadata, and tensors of the same bits."""
        return not self.structure and all(t.verdict == "equal bits" for t in self.tensors)

    def worst(self, count: int = 10) -> list[TensorComparison]:
        """Tensors with the largest relative error first; those without error left out."""
        return sorted((t for t in self.tensors if t.rmse), key=lambda t: -t.relative_rmse)[:count]

    def types(self) -> list[TypeErrors]:
        """Errors by type, the largest number of values first."""
        groups: dict[tuple[str, str], list[TensorComparison]] = {}
        for t in self.tensors:
            groups.setdefault((t.type_a, t.type_b), []).append(t)
        rows = []
        for (type_a, type_b), tensors in groups.items():
            n = sum(t.n for t in tensors)
            ee = sum(t.rmse**2 * t.n for t in tensors)
            xx = sum(t.rms**2 * t.n for t in tensors if t.rms is not None)
            relative = math.sqrt(ee / xx) if xx else (math.inf if ee else 0.0)
            snr = 10 * math.log10(xx / ee) if ee and xx else (-math.inf if ee else math.inf)
            rmse = math.sqrt(ee / max(1, n))
            largest = max(t.max_error for t in tensors)
            rows.append(TypeErrors(type_a, type_b, len(tensors), n, rmse, relative, snr, largest))
        return sorted(rows, key=lambda r: -r.n)

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON; what isn't finite is None."""
        report = {
            "a": self.a,
            "b": self.b,
            "ok": self.ok,
            "identical": self.identical,
            "structure": [f.as_dict() for f in self.structure],
            "types": [asdict(row) for row in self.types()],
            "tensors": [{**asdict(t), "findings": [f.as_dict() for f in t.findings]} for t in self.tensors],
        }
        finite: dict[str, Any] = _finite(report)
        return finite


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
