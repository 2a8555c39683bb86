"""Error against bits per weight: what every type makes of a tensor's or a model's values."""

from __future__ import annotations

import math
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..codec.arrays import given_array
from ..codec.decode import dequantize
from ..codec.encode import NEEDS_IMATRIX, QUANTIZABLE, quantize_quietly
from ..codec.threads import run, thread_count
from ..errors import GGUFError
from ..formats.tensor_types import QType
from .baselines import BASELINES, BLOCK
from .sides import Weights, open_side

__all__ = ["Curve", "Point", "curve", "tensor_kind"]

Floats = npt.NDArray[np.float32]
# Values of each tensor that are looked at.
SAMPLE = 1 << 16


@dataclass
class Point:
    """What one type makes of the values.

    Attributes
    ----------
    type : str
        A type of ggml, or a plain quantizer: ``absmax 4`` for 4 bits, ``grid 4`` for IQ4_NL's levels without a search.
    bits : float
        For each weight, scales included.
    imatrix : bool
        Whether it was made with an importance matrix.
    relative_rmse : float
        Root mean square error over the root mean square of the values.
    weighted : float
        The same with each column's square weighted by its importance; without importance the plain one.
    n, tensors : int
        Values and tensors that the type can take; others have rows that aren't whole blocks.
    by_kind : dict
        The relative error by kind of tensor (``attn_q``, ``ffn_down`` ...).
    """

    type: str
    bits: float
    imatrix: bool
    relative_rmse: float
    weighted: float
    n: int
    tensors: int
    by_kind: dict[str, float] = field(default_factory=dict)


@dataclass
class Curve:
    """All points, the most bits first.

    Attributes
    ----------
    points : list of Point
    n, tensors : int
        Values that were looked at, and the tensors they are of.
    """

    points: list[Point]
    n: int
    tensors: int

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return asdict(self)


def tensor_kind(name: str) -> str:
    """What a tensor is for, whatever its block: ``blk.3.attn_q.weight`` is an ``attn_q``."""
    return re.sub(r"^blk\.\d+\.", "", name).removesuffix(".weight")


class _Sums:
    def __init__(self) -> None:
        self.ee = self.xx = self.wee = self.wxx = 0.0
        self.n = self.tensors = 0
        self.kinds: dict[str, list[float]] = {}

    def add(self, kind: str, x: Floats, y: Floats, importance: Floats | None) -> None:
        a = x.astype(np.float64)
        e = y.astype(np.float64) - a
        e *= e
        a *= a
        ee, xx = float(e.sum()), float(a.sum())
        self.ee += ee
        self.xx += xx
        self.wee += ee if importance is None else float((e * importance).sum())
        self.wxx += xx if importance is None else float((a * importance).sum())
        self.n += x.size
        self.tensors += 1
        sums = self.kinds.setdefault(kind, [0.0, 0.0])
        sums[0] += ee
        sums[1] += xx

    def point(self, name: str, bits: float, imatrix: bool) -> Point:
        def root(ee: float, xx: float) -> float:
            return math.sqrt(ee / xx) if xx else 0.0

        kinds = {kind: root(*sums) for kind, sums in sorted(self.kinds.items())}
        return Point(name, bits, imatrix, root(self.ee, self.xx), root(self.wee, self.wxx), self.n, self.tensors, kinds)


def curve(
    source: npt.ArrayLike | str | os.PathLike[str],
    *,
    types: Iterable[QType | str] | None = None,
    imatrix: Mapping[str, Any] | npt.ArrayLike | None = None,
    names: Callable[[str], bool] | None = None,
    sample: int = SAMPLE,
    threads: int | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Curve:
    """Measure the error of every type, and of plain quantizers beside them.

    Parameters
    ----------
    source : array_like or path-like
        Values (..., width); or a GGUF file, a shard, a URL or a checkpoint, of whose matrices samples are taken.
    types : iterable, optional
        Types to try; all that can be made by default.
    imatrix : mapping or array_like, optional
        Importance: of a model by tensor name (`ggufx.imatrix.load`), of an array by column. Every type is tried with
        and without it; those that need one are left out without it.
    names : callable, optional
        Which tensors to take, by name; all matrices by default.
    sample : int
        Values of each tensor at most, in whole rows spread over it; 0 for all.
    threads : int, optional
        As everywhere; tensors are measured side by side.
    progress : callable, optional
        Called with a tensor's name, tensors done and tensors in all.

    Returns
    -------
    Curve

    Raises
    ------
    GGUFError
        If there is no such tensor, or a value isn't finite.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
    >>> {p.type: round(p.relative_rmse, 2) for p in curve(x, types=["Q4_0", "Q8_0"]).points if p.type[0] == "Q"}
    {'Q8_0': 0.01, 'Q4_0': 0.09}
    """
    wanted = sorted(
        {QType.parse(t) for t in types} if types is not None else {t for t in QUANTIZABLE if t.is_quantized}
    )
    if not isinstance(source, str | os.PathLike):
        x = given_array(source, "values", np.float32)
        if x.ndim < 1 or not x.size:
            raise ValueError(f"values of shape {x.shape}: rows were expected")
        weights = Weights("values", x.shape, "values", make=lambda: x)
        importance = {} if imatrix is None else {"values": given_array(imatrix, "imatrix", np.float32)}
        return _measure([weights], wanted, importance, sample, threads, progress)
    with open_side(source) as side:
        chosen = [
            w
            for w in side.weights.values()
            if len(w.shape) >= 2 and w.size and w.type_name not in ("I8", "I16", "I32", "I64")
            if names is None or names(w.name)
        ]
        chosen = [w for w in chosen if w.tensor is None or w.tensor.problem is None]
        if not chosen:
            raise GGUFError(f"{side.path}: no matrix has such a name")
        return _measure(chosen, wanted, dict(imatrix or {}), sample, threads, progress)  # type: ignore[arg-type]


def _rows(weights: Weights, sample: int, importance: Any) -> tuple[Floats, Floats | None]:
    """Rows spread over a tensor, and the importance of each one's columns."""
    count = weights.count if not sample else min(weights.count, max(1, sample // max(1, weights.width)))
    chosen = np.unique(np.linspace(0, weights.count - 1, count).astype(np.int64))
    with weights.reader() as rows:
        x = np.concatenate([rows(k, k + 1) for k in chosen.tolist()])
    if not np.isfinite(x).all():
        raise GGUFError(f"tensor {weights.name!r} has values that aren't finite")
    if importance is None:
        return x, None
    table = given_array(importance, f"importance of {weights.name!r}", np.float32).reshape(-1, weights.width)
    each = weights.count // len(table)
    return x, table[chosen // max(1, each)]


def _measure(
    chosen: list[Weights],
    types: list[QType],
    imatrix: dict[str, Any],
    sample: int,
    threads: int | None,
    progress: Callable[[str, int, int], None] | None,
) -> Curve:
    sums: dict[tuple[str, float, bool], _Sums] = {}
    lock = threading.Lock()
    done = values = 0
    results: dict[int, dict[tuple[str, float, bool], _Sums]] = {}

    def work(item: tuple[int, Weights]) -> None:
        nonlocal done, values
        number, weights = item
        x, importance = _rows(weights, sample, imatrix.get(weights.name))
        mine: dict[tuple[str, float, bool], _Sums] = {}
        kind = tensor_kind(weights.name)
        for name, (bits, quantizer) in BASELINES.items():
            if weights.width % BLOCK == 0:
                mine.setdefault((name, bits, False), _Sums()).add(kind, x, quantizer(x), importance)
        for qtype in types:
            if weights.width % qtype.block_size:
                continue
            bits = 8 * qtype.block_bytes / qtype.block_size
            ways = [None] if importance is None else [None, importance]
            for given in ways[1:] if qtype in NEEDS_IMATRIX else ways:
                y = _quantized(x, qtype, given)
                mine.setdefault((qtype.name, bits, given is not None), _Sums()).add(kind, x, y, importance)
        with lock:
            results[number] = mine
            done += 1
            values += x.size
            if progress is not None:
                progress(weights.name, done, len(chosen))

    run(work, list(enumerate(chosen)), thread_count(threads))
    for number in range(len(chosen)):  # in order, so that the result doesn't depend on the threads
        for key, part in results[number].items():
            whole = sums.setdefault(key, _Sums())
            for name in ("ee", "xx", "wee", "wxx", "n", "tensors"):
                setattr(whole, name, getattr(whole, name) + getattr(part, name))
            for kind, (ee, xx) in part.kinds.items():
                have = whole.kinds.setdefault(kind, [0.0, 0.0])
                have[0] += ee
                have[1] += xx
    points = [sums[key].point(*key) for key in sums]
    return Curve(sorted(points, key=lambda p: (-p.bits, p.type, p.imatrix)), values, len(chosen))


def _quantized(x: Floats, qtype: QType, importance: Floats | None) -> Floats:
    """Rows under their own importance each: neighbours of one importance go together."""
    out = np.empty_like(x)
    start = 0
    while start < len(x):
        stop = len(x)
        if importance is not None:
            other = np.flatnonzero((importance[start:] != importance[start]).any(axis=1))
            stop = start + int(other[0]) if other.size else len(x)
        given = None if importance is None else importance[start]
        packed, _ = quantize_quietly(x[start:stop], qtype, imatrix=given, threads=1)
        dequantize(packed, qtype, shape=(stop - start, x.shape[1]), out=out[start:stop], threads=1)
        start = stop
    return out
