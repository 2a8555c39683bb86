"""Weights in groups that share a scale: codes and scales of other formats as numbers, or as ggml's blocks without loss.

A value is code * scale, the code a whole number around zero. Where the code fits a block's bits and the scale is a half
exactly, the block holds the very same value.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import GGUFError
from ..formats.tensor_types import QType

__all__ = ["Grouped", "block_type", "blocks_of", "e4m3", "unpack"]

Array = npt.NDArray[Any]

# Types by their codes' range, the smallest first; Q2_0's codes are turned round, under a scale of the other sign.
_TYPES = (
    (QType.Q2_0, -2, 1),
    (QType.Q4_0, -8, 7),
    (QType.Q5_0, -16, 15),
    (QType.Q8_0, -128, 127),
)
# What E2M1's four bits stand for, doubled.
E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32) / np.float32(2)


class Grouped(NamedTuple):
    """A matrix in groups.

    Attributes
    ----------
    codes : ndarray
        Whole numbers, (rows, columns).
    scales : ndarray
        float32, (rows, columns / group).
    """

    codes: Array
    scales: Array

    @property
    def group(self) -> int:
        """Columns that share a scale."""
        return int(self.codes.shape[1] // self.scales.shape[1])

    def values(self) -> npt.NDArray[np.float32]:
        """What the codes stand for."""
        groups = self.codes.reshape(*self.scales.shape, self.group)
        out: npt.NDArray[np.float32] = (groups * self.scales[..., None]).astype(np.float32, copy=False)
        return out.reshape(self.codes.shape)


def unpack(words: Array, bits: int, axis: int, count: int) -> Array:
    """Codes from 32-bit words, the lowest bits first; those of three bits run on across words."""
    words = np.moveaxis(words.view(np.uint32), axis, 0)
    if 32 % bits == 0:
        shifts = np.arange(0, 32, bits, dtype=np.uint32).reshape(1, -1, *[1] * (words.ndim - 1))
        codes = (words[:, None] >> shifts & np.uint32((1 << bits) - 1)).astype(np.uint8)
        codes = codes.reshape(-1, *words.shape[1:])
    else:
        at = np.arange(words.shape[0] * 32 // bits) * bits
        low, shift = at >> 5, (at & 31).reshape(-1, *[1] * (words.ndim - 1)).astype(np.uint64)
        pairs = np.concatenate([words, np.zeros_like(words[:1])]).astype(np.uint64)
        codes = ((pairs[low] | pairs[low + 1] << np.uint64(32)) >> shift & np.uint64((1 << bits) - 1)).astype(np.uint8)
    if len(codes) < count:
        raise ValueError(f"{len(codes)} codes of {bits} bits, {count} were expected")
    return np.moveaxis(codes[:count], 0, axis)


def e4m3(bits: Array) -> npt.NDArray[np.float32]:
    """8-bit floats with four bits of exponent as float32; their one NaN stays NaN."""
    return _E4M3[bits]


def _e4m3_table() -> npt.NDArray[np.float32]:
    byte = np.arange(256)
    exponent, fraction = byte >> 3 & 15, byte & 7
    size = np.where(exponent == 0, fraction * 2.0**-9, (8 + fraction) * 2.0 ** (exponent - 10.0))
    table = np.where(byte & 128, -size, size).astype(np.float32)
    table[[127, 255]] = np.nan
    return table


_E4M3 = _e4m3_table()


def block_type(lowest: int, highest: int, group: int, scales: Array) -> tuple[QType | None, str]:
    """The smallest type whose blocks hold these codes under these scales exactly, or None and the reason.

    Parameters
    ----------
    lowest, highest : int
        What the codes can be.
    group : int
        Columns that share a scale.
    scales : ndarray
    """
    with np.errstate(over="ignore"):
        inexact = scales.astype(np.float16).astype(np.float32) != scales
    if inexact.any():
        return None, f"its scale {float(scales[inexact].reshape(-1)[0]):.9g} is no half-precision number"
    for qtype, low, high in _TYPES:
        if low <= lowest and highest <= high and group % qtype.block_size == 0:
            return qtype, ""
    if group % 32:
        return None, f"groups of {group} aren't whole blocks of 32"
    return None, f"codes from {lowest} to {highest} fit no type's"


def blocks_of(grouped: Grouped, qtype: QType) -> npt.NDArray[np.uint8]:
    """A matrix as blocks of a type that holds it exactly: uint8 of (rows, bytes of a row)."""
    rows, columns = grouped.codes.shape
    size = qtype.block_size
    if grouped.group % size:
        raise GGUFError(f"groups of {grouped.group} aren't whole blocks of {size}")
    scales = np.repeat(grouped.scales, grouped.group // size, axis=1).astype("<f2")
    codes = grouped.codes.reshape(-1, size)
    packed: Array
    c: Array
    if qtype is QType.Q2_0:
        scales = -scales
        c = (1 - codes).astype(np.uint8).reshape(-1, 16, 4)
        packed = c[:, :, 0] | c[:, :, 1] << 2 | c[:, :, 2] << 4 | c[:, :, 3] << 6
    elif qtype is QType.Q4_0:
        c = (codes + 8).astype(np.uint8)
        packed = c[:, :16] | c[:, 16:] << 4
    elif qtype is QType.Q5_0:
        c = (codes + 16).astype(np.uint8)
        high = np.packbits(c >> 4, axis=1, bitorder="little")
        packed = np.concatenate([high, c[:, :16] & 15 | (c[:, 16:] & 15) << 4], axis=1)
    else:
        packed = codes.astype(np.int8).view(np.uint8)
    whole = np.concatenate([np.ascontiguousarray(scales).reshape(-1, 1).view(np.uint8), packed], axis=1)
    return whole.reshape(rows, columns // size * qtype.block_bytes)
