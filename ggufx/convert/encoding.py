"""From planned tensors to their bytes: in parts, on all cores, in order, a few parts ahead of the writer."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..codec.encode import quantize_quietly
from ..errors import GGUFError, GGUFWarning
from ..formats.tensor_types import QType
from ..requantize.importance import Importance
from ..requantize.slabs import SLAB, ordered
from ..write.writer import Writer
from .planned import Array, Planned

__all__ = ["Encoder", "write_tensors"]

Floats = npt.NDArray[np.float32]


class _Unit(NamedTuple):
    """Groups of one tensor, all under one expert's importance; `stop` is 0 for the whole tensor."""

    planned: Planned
    qtype: QType
    start: int
    stop: int
    importance: Floats | None


class Encoder:
    """The bytes of tensors, in the order in which they are written.

    Parameters
    ----------
    tensors : sequence of (Planned, QType)
    importance : sequence of ndarray or None
        Of each tensor's columns, with a row for each expert where there are several.
    threads : int

    Attributes
    ----------
    lossy : dict of str to str
        What is to be said of values that became infinite, by tensor.
    """

    def __init__(
        self, tensors: Sequence[tuple[Planned, QType]], importance: Sequence[Floats | None], threads: int
    ) -> None:
        self.lossy: dict[str, str] = {}
        cut = [list(_cut(p, qtype, weights)) for (p, qtype), weights in zip(tensors, importance, strict=True)]
        self.counts = [len(units) for units in cut]
        self._results = ordered(self._encoded, (unit for units in cut for unit in units), threads)

    def pieces(self, number: int) -> Iterator[Array]:
        """The bytes of a tensor; they have to be taken tensor by tensor, from the first."""
        for _ in range(self.counts[number]):
            yield next(self._results)

    def close(self) -> None:
        """Stop what is under way."""
        self._results.close()

    def _encoded(self, unit: _Unit) -> Array:
        p = unit.planned
        values = p.make() if not unit.stop or p.part is None else p.part(unit.start, unit.stop)
        if p.packed is not None:
            return values
        expected = p.shape if not unit.stop else (math.prod(p.shape) // p.groups * (unit.stop - unit.start),)
        if (values.shape if not unit.stop else (values.size,)) != expected:
            raise GGUFError(f"tensor {p.name!r}: its values have shape {values.shape}, {p.shape} was planned")
        if unit.qtype is QType.F32:
            return np.ascontiguousarray(values, np.float32)
        several = unit.importance is not None and unit.importance.ndim > 1
        rows = np.ascontiguousarray(values).reshape(p.shape if several else (-1, p.shape[-1]))
        try:
            packed, warning = quantize_quietly(rows, unit.qtype, imatrix=unit.importance, threads=1)
        except GGUFError as error:
            raise GGUFError(f"tensor {p.name!r} (from {p.source!r}): {error}") from error
        if warning:
            self.lossy.setdefault(p.name, warning)
        return packed


def _cut(p: Planned, qtype: QType, weights: Floats | None) -> Iterator[_Unit]:
    """A tensor's groups in units of a slab, none across experts that have importance of their own."""
    if p.part is None or p.groups < 2:
        yield _Unit(p, qtype, 0, 0, weights)
        return
    step = max(1, SLAB * p.groups // max(1, math.prod(p.shape)))
    experts = 1 if weights is None or weights.ndim == 1 else len(weights)
    each = p.groups // experts
    if each * experts != p.groups:
        yield _Unit(p, qtype, 0, 0, weights)
        return
    for expert in range(experts):
        own = weights if weights is None or weights.ndim == 1 else weights[expert]
        for start in range(expert * each, (expert + 1) * each, step):
            yield _Unit(p, qtype, start, min(start + step, (expert + 1) * each), own)


def write_tensors(
    writer: Writer, tensors: Sequence[tuple[Planned, QType]], importance: Importance, threads: int
) -> list[str]:
    """Encode and write tensors; returns the paths.

    Warns
    -----
    GGUFWarning
        Where values or scales became infinite.
    """
    weights = [None if p.packed is not None else importance.columns(p.name, p.shape) for p, _ in tensors]
    weights = [w if qtype.is_quantized else None for w, (_, qtype) in zip(weights, tensors, strict=True)]
    encoder = Encoder(tensors, weights, threads)
    for number, (p, qtype) in enumerate(tensors):
        writer.add(p.name, functools.partial(encoder.pieces, number), shape=p.shape, qtype=qtype)
    try:
        paths = writer.close()
    finally:
        encoder.close()
    # Threads note what they meet when they meet it; what is said follows the file.
    if lossy := [(p.name, encoder.lossy[p.name]) for p, _ in tensors if p.name in encoder.lossy]:
        more = f", and of {len(lossy) - 1} tensors more" if len(lossy) > 1 else ""
        text = f"values or scales became infinite in {lossy[0][0]!r}: {lossy[0][1]}{more}"
        warnings.warn(text, GGUFWarning, stacklevel=4)
    return paths
