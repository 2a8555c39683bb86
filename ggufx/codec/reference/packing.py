"""What the numpy quantizers share: the table they enter themselves in, and putting blocks together."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ...formats.tensor_types import QType

__all__ = [
    "ENCODERS",
    "Bytes",
    "F",
    "Floats",
    "Ints",
    "bitmap",
    "encodes",
    "highest_positive",
    "interleave",
    "inverse_of",
    "join",
    "round_away",
    "subblocks",
    "to_bytes",
    "to_half",
    "weigh",
]

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]
Encoder = Callable[[Floats, "Floats | None", "Floats | None"], Bytes]

F = np.float32
ENCODERS: dict[QType, Encoder] = {}


def encodes(qtype: QType) -> Callable[[Encoder], Encoder]:
    """Enter a function in ENCODERS."""

    def register(encoder: Encoder) -> Encoder:
        ENCODERS[qtype] = encoder
        return encoder

    return register


# Packing. `q` arrays are integer codes (values, blocks); pieces are (n, blocks), one after the other in a block.


def join(*pieces: npt.NDArray[np.generic]) -> Bytes:
    rows = [np.ascontiguousarray(np.atleast_2d(p).T) for p in pieces]
    return np.concatenate([r.view(np.uint8).reshape(len(r), -1) for r in rows], 1)


def to_half(v: Floats) -> npt.NDArray[np.float16]:
    return v.astype("<f2")


def to_bytes(q: npt.NDArray[np.generic]) -> Bytes:
    return (q.astype(np.int32) & 255).astype(np.uint8)


def interleave(q: npt.NDArray[np.generic], group: int, bits: int) -> Bytes:
    """Spread `group` consecutive values over the low bits of `group` bytes, the next `group` over the next bits ..."""
    per = 8 // bits
    parts = to_bytes(q).reshape(-1, per, group, q.shape[-1])
    out = np.zeros((len(parts), group, q.shape[-1]), np.uint8)
    for k in range(per):
        out |= (parts[:, k] & ((1 << bits) - 1)) << (bits * k)
    return out.reshape(-1, q.shape[-1])


def bitmap(flags: npt.NDArray[np.bool_]) -> Bytes:
    return np.packbits(flags, axis=0, bitorder="little")


def inverse_of(d: Floats) -> Floats:
    return np.where(d != 0, F(1) / d, F(0))


def round_away(v: Floats) -> Floats:
    """C's roundf for the magnitudes that occur; what overflowed stays infinite or NaN."""
    whole = np.trunc(v)
    return whole + np.where(np.abs(v - whole) >= F(0.5), np.copysign(F(1), v), F(0))


def weigh(x: Floats, qw: Floats, sigma2: Floats) -> Floats:
    return qw * np.sqrt(sigma2 + x * x)


def subblocks(x: Floats, size: int) -> Floats:
    return x.reshape(-1, size, x.shape[-1])


def highest_positive(v: Floats) -> Floats:
    high = np.zeros(v.shape[1:], F)
    for part in v:
        high = np.where(part > high, part, high)
    return high
