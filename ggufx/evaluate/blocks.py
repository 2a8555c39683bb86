"""Scanning a tensor's blocks for values that no model should have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..codec.decode import dequantize
from ..formats.tensor_types import QType
from .findings import ERROR, WARNING, Finding

if TYPE_CHECKING:
    from ..read.tensor import Tensor

__all__ = ["NUMBER_BLOCK", "place_text", "scan_blocks"]

# Values decoded at a time.
PIECE = 1 << 20
# Plain numbers have no blocks; they are looked at in groups of this many.
NUMBER_BLOCK = 32
# A block is called huge if its largest value is this many times the tensor's median block's: no trained matrix comes
# near it, one flipped bit in the exponent of a scale goes far beyond.
HUGE_RATIO = 1000.0
# Fewer blocks than this have no meaningful median.
FEWEST = 16
# The scales of a block: name, offset in it, and numpy type. Types without an entry (IQ1_M keeps its scale in nibbles,
# MXFP4 and NVFP4 in bytes of their own kind) are judged by their decoded values alone.
SCALES: dict[QType, tuple[tuple[str, int, str], ...]] = {
    QType.Q4_0: (("d", 0, "f2"),),
    QType.Q4_1: (("d", 0, "f2"), ("m", 2, "f2")),
    QType.Q5_0: (("d", 0, "f2"),),
    QType.Q5_1: (("d", 0, "f2"), ("m", 2, "f2")),
    QType.Q8_0: (("d", 0, "f2"),),
    QType.Q8_1: (("d", 0, "f2"), ("s", 2, "f2")),
    QType.Q2_K: (("d", 80, "f2"), ("dmin", 82, "f2")),
    QType.Q3_K: (("d", 108, "f2"),),
    QType.Q4_K: (("d", 0, "f2"), ("dmin", 2, "f2")),
    QType.Q5_K: (("d", 0, "f2"), ("dmin", 2, "f2")),
    QType.Q6_K: (("d", 208, "f2"),),
    QType.Q8_K: (("d", 0, "f4"),),
    QType.IQ2_XXS: (("d", 0, "f2"),),
    QType.IQ2_XS: (("d", 0, "f2"),),
    QType.IQ2_S: (("d", 0, "f2"),),
    QType.IQ3_XXS: (("d", 0, "f2"),),
    QType.IQ3_S: (("d", 0, "f2"),),
    QType.IQ1_S: (("d", 0, "f2"),),
    QType.IQ4_NL: (("d", 0, "f2"),),
    QType.IQ4_XS: (("d", 0, "f2"),),
    QType.TQ1_0: (("d", 52, "f2"),),
    QType.TQ2_0: (("d", 64, "f2"),),
    QType.Q1_0: (("d", 0, "f2"),),
    QType.Q2_0: (("d", 0, "f2"),),
}


def place_text(shape: tuple[int, ...], flat: int, block_size: int) -> tuple[int | None, int, int, str]:
    """Expert (of three-dimensional tensors), row and block of a value's position, and the three in words."""
    width = shape[-1] if shape else 1
    row, column = divmod(flat, max(width, 1))
    expert = None
    if len(shape) >= 3:
        expert, row = divmod(row, max(shape[-2], 1))
    block = column // block_size
    text = f"row {row}, block {block}"
    return expert, row, block, text if expert is None else f"expert {expert}, {text}"


class _Tally:
    """Blocks of one fault: how many, and where the first is."""

    def __init__(self) -> None:
        self.count = 0
        self.first = -1

    def add(self, mask: npt.NDArray[np.bool_], base: int) -> None:
        found = int(np.count_nonzero(mask))
        if found and self.first < 0:
            self.first = base + int(np.argmax(mask))
        self.count += found


def _scale_faults(
    blocks: npt.NDArray[np.uint8], qtype: QType, byteorder: str
) -> Iterator[tuple[str, str, npt.NDArray[np.bool_]]]:
    for name, offset, code in SCALES.get(qtype, ()):
        dtype = np.dtype(code).newbyteorder(">" if byteorder == "big" else "<")
        values = np.ascontiguousarray(blocks[:, offset : offset + dtype.itemsize]).view(dtype)[:, 0]
        nan = np.isnan(values)
        yield "nan scale", name, nan
        yield "infinite scale", name, np.isinf(values)


def scan_blocks(tensor: Tensor) -> Iterator[Finding]:
    """Look at every block of a tensor.

    Parameters
    ----------
    tensor : Tensor
        Readable and of a known type.

    Yields
    ------
    Finding
        ``nan scale``, ``infinite scale``, ``nan value``, ``infinite value`` (errors), ``zero blocks`` and
        ``huge blocks`` (warnings); one for each kind, naming the first block and their number.
    """
    qtype = QType(tensor.qtype)
    if qtype in (QType.I8, QType.I16, QType.I32, QType.I64) or not tensor.size:
        return
    block = qtype.block_size if qtype.is_quantized else NUMBER_BLOCK
    tallies: dict[tuple[str, str], _Tally] = {}
    packed = tensor.packed()
    unit = max(1, block // qtype.block_size) * qtype.block_bytes  # bytes behind one judged block
    step = max(1, PIECE // block)
    largest = np.empty(-(-packed.size // unit), np.float32)
    buffer = np.empty(min(step * block, tensor.size), np.float32)
    for base in range(0, len(largest), step):
        raw = packed[base * unit : (base + step) * unit]
        if qtype.is_quantized:
            for kind, name, mask in _scale_faults(raw.reshape(-1, qtype.block_bytes), qtype, tensor.byteorder):
                tallies.setdefault((kind, name), _Tally()).add(mask, base)
        values = buffer[: raw.size // qtype.block_bytes * qtype.block_size]
        dequantize(raw, qtype, out=values, byteorder=tensor.byteorder, threads=1)
        np.abs(values, out=values)
        whole = len(values) // block * block
        tops = largest[base : base + step]
        with np.errstate(invalid="ignore"):
            values[:whole].reshape(-1, block).max(axis=1, out=tops[: whole // block])
            if whole < len(values):
                tops[-1] = values[whole:].max()
        tallies.setdefault(("nan value", ""), _Tally()).add(np.isnan(tops), base)
        tallies.setdefault(("infinite value", ""), _Tally()).add(np.isinf(tops), base)
    yield from _findings(tensor, block, len(largest), tallies)
    yield from _suspicious(tensor, block, largest)


def _findings(tensor: Tensor, block: int, total: int, tallies: dict[tuple[str, str], _Tally]) -> Iterator[Finding]:
    for (kind, scale), tally in tallies.items():
        if not tally.count:
            continue
        if kind.endswith("value") and any(t.count and t.first == tally.first for (_, s), t in tallies.items() if s):
            continue  # the scale was named already
        expert, row, number, where = place_text(tensor.shape, tally.first * block, block)
        what = {"nan scale": f"scale {scale} is NaN", "infinite scale": f"scale {scale} is infinite",
                "nan value": "a value is NaN", "infinite value": "a value is infinite"}[kind]  # fmt: skip
        text = f"tensor {tensor.name!r}: {where}: {what}"
        if tally.count > 1:
            text += f"; so in {tally.count} of {total} blocks"
        yield Finding(ERROR, kind, tensor.name, text, tally.count, expert, row, number)


def _suspicious(tensor: Tensor, block: int, largest: npt.NDArray[np.float32]) -> Iterator[Finding]:
    if len(tensor.shape) < 2:
        return  # biases of zero and single outliers in norms are normal
    zero = largest == 0
    live = largest[np.isfinite(largest) & ~zero]
    masks = {"zero blocks": (zero, "all values are zero")}
    if len(live) >= FEWEST:
        median = float(np.median(live))
        with np.errstate(invalid="ignore"):
            huge = np.isfinite(largest) & (largest > HUGE_RATIO * median)
        masks["huge blocks"] = (huge, f"the largest value is over {HUGE_RATIO:g} times the median block's {median:.3g}")
    for kind, (mask, what) in masks.items():
        if count := int(np.count_nonzero(mask)):
            expert, row, number, where = place_text(tensor.shape, int(np.argmax(mask)) * block, block)
            text = f"tensor {tensor.name!r}: {where}: {what}"
            if count == len(largest):
                text = f"tensor {tensor.name!r}: all values are zero"
            elif count > 1:
                text += f"; so in {count} of {len(largest)} blocks"
            yield Finding(WARNING, kind, tensor.name, text, count, expert, row, number)
