"""What every block type means, in numpy: the specification that the C kernels are checked against.

One function per type takes the blocks, uint8 of shape (n, bytes per block), and gives their values, float32 of shape
(n, values per block). Each floating-point operation is one numpy operation on float32, in ggml's order: ggml rounds
after every one of them, so the order is part of the format. ``d`` is always the block's scale and ``m`` its minimum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ...formats.tensor_types import NUMERIC_DTYPES, QType
from .codebooks import E8M0_HALF, GRIDS, IQ1_DELTA, IQ4NL_VALUES, KSIGNS, MXFP4_VALUES, UE4M3_HALF

__all__ = ["DECODERS", "decode", "to_bfloat16"]

Array: TypeAlias = npt.NDArray[Any]
Bytes: TypeAlias = npt.NDArray[np.uint8]
Floats: TypeAlias = npt.NDArray[np.float32]

# Values decoded at a time: the temporaries of one step (about 20 bytes a value) stay near the cache, whatever the size.
CHUNK = 1 << 16


# ---- the words the types are written in


def _field(b: Bytes, at: int, dtype: str, count: int = 1) -> Array:
    """Little-endian fields at byte `at` of every block, (n, count)."""
    width = np.dtype(dtype).itemsize
    fields: Array = np.ascontiguousarray(b[:, at : at + width * count]).view("<" + dtype)
    return fields


def _half(b: Bytes, at: int) -> Floats:
    """Widen the f16 scale at byte `at` of every block: (n, 1)."""
    return _field(b, at, "f2").astype(np.float32)


def _split(packed: Array, shifts: list[int], mask: int) -> Array:
    """Bit fields of every byte or word: (..., k) -> (..., len(shifts), k), all of one shift before the next."""
    fields: Array = packed[..., None, :] >> np.array(shifts, packed.dtype)[:, None] & packed.dtype.type(mask)
    return fields


def _interleave(packed: Array, shifts: list[int], mask: int) -> Array:
    """Bit fields of every byte or word: (..., k) -> (..., k * len(shifts)), all of one byte before the next."""
    fields: Array = packed[..., None] >> np.array(shifts, packed.dtype) & packed.dtype.type(mask)
    return fields.reshape(*packed.shape[:-1], -1)


def _flag_bits(packed: Bytes) -> Bytes:
    """Every bit as 0 or 1, lowest first: (..., k) -> (..., 8 * k)."""
    return np.unpackbits(packed, axis=-1, bitorder="little")


def _f(x: Array) -> Floats:
    return x.astype(np.float32)


def _signed(x: Array) -> npt.NDArray[np.int16]:
    """Small codes in a type that holds them after an offset is subtracted."""
    return x.astype(np.int16)


def _by_groups(scale: Floats, q: Array) -> Floats:
    """Scale times code, where `scale` is (n, groups) and the codes of a block are split evenly among its groups."""
    n, groups = scale.shape
    product: Floats = scale[:, :, None] * _f(q).reshape(n, groups, -1)
    return product.reshape(n, -1)


def _repeat(m: Floats, count: int) -> Floats:
    return np.repeat(m, count, axis=1)


# ---- one scale per block, and perhaps a minimum


def _nibbles(b: Bytes, at: int, count: int = 16) -> Bytes:
    """Low nibbles of `count` bytes, then their high nibbles."""
    return np.concatenate([b[:, at : at + count] & 15, b[:, at : at + count] >> 4], axis=1)


def q4_0(b: Bytes) -> Floats:
    return _half(b, 0) * _f(_signed(_nibbles(b, 2)) - 8)


def q4_1(b: Bytes) -> Floats:
    return _half(b, 0) * _f(_nibbles(b, 4)) + _half(b, 2)


def q5_0(b: Bytes) -> Floats:
    q = _nibbles(b, 6) | _flag_bits(b[:, 2:6]) << 4
    return _half(b, 0) * _f(_signed(q) - 16)


def q5_1(b: Bytes) -> Floats:
    q = _nibbles(b, 8) | _flag_bits(b[:, 4:8]) << 4
    return _half(b, 0) * _f(q) + _half(b, 2)


def q8_0(b: Bytes) -> Floats:
    return _half(b, 0) * _f(_field(b, 2, "i1", 32))


def q8_1(b: Bytes) -> Floats:
    # Bytes 2-3 hold d times the sum of the codes: dot products use it, values don't.
    return _half(b, 0) * _f(_field(b, 4, "i1", 32))


def q8_k(b: Bytes) -> Floats:
    # The 16 sums at byte 260 are for dot products too. The scale is a float32.
    return _f(_field(b, 0, "f4")) * _f(_field(b, 4, "i1", 256))


def q1_0(b: Bytes) -> Floats:
    d = _half(b, 0)
    return np.where(_flag_bits(b[:, 2:]) == 1, d, -d)


def q2_0(b: Bytes) -> Floats:
    return _half(b, 0) * _f(_signed(_interleave(b[:, 2:], [0, 2, 4, 6], 3)) - 1)


def iq4_nl(b: Bytes) -> Floats:
    return _half(b, 0) * _f(IQ4NL_VALUES[_nibbles(b, 2)])


def tq1_0(b: Bytes) -> Floats:
    # Five ternary digits a byte, as the fraction byte/256 in base 3: digit k is the integer part of 3 * frac(3^k * x).
    def digits(packed: Bytes, count: int) -> Bytes:
        shifted = packed[:, None, :] * np.array([1, 3, 9, 27, 81][:count], np.uint8)[:, None]
        return (shifted.astype(np.uint16) * np.uint16(3) >> np.uint16(8)).reshape(len(packed), -1).astype(np.uint8)

    q = np.concatenate([digits(b[:, :32], 5), digits(b[:, 32:48], 5), digits(b[:, 48:52], 4)], axis=1)
    return _half(b, 52) * _f(_signed(q) - 1)


def tq2_0(b: Bytes) -> Floats:
    q = _split(b[:, :64].reshape(-1, 2, 32), [0, 2, 4, 6], 3).reshape(-1, 256)
    return _half(b, 64) * _f(_signed(q) - 1)


# ---- four-bit floats: the tables hold twice the values, the scales are half


def mxfp4(b: Bytes) -> Floats:
    d = E8M0_HALF.view(np.float32)[b[:, :1]]
    return d * _f(MXFP4_VALUES[_nibbles(b, 1)])


def nvfp4(b: Bytes) -> Floats:
    d = UE4M3_HALF.view(np.float32)[b[:, :4]]
    q = _split(b[:, 4:].reshape(-1, 4, 8), [0, 4], 15)
    return _by_groups(d, MXFP4_VALUES[q])


# ---- K types: super-blocks of 256 with quantized scales


def _k4_scales(b: Bytes, at: int) -> tuple[Bytes, Bytes]:
    """Eight 6-bit scales and eight 6-bit minimums in twelve bytes, as Q4_K and Q5_K pack them: (n, 8) each."""
    s = b[:, at : at + 12]
    first, second, last = s[:, :4], s[:, 4:8], s[:, 8:]
    scales = np.concatenate([first & 63, last & 15 | first >> 6 << 4], axis=1)
    mins = np.concatenate([second & 63, last >> 4 | second >> 6 << 4], axis=1)
    return scales, mins


def _k4_nibbles(b: Bytes, at: int) -> Bytes:
    return _split(b[:, at : at + 128].reshape(-1, 4, 32), [0, 4], 15).reshape(-1, 256)


def _quarters(b: Bytes, at: int) -> Bytes:
    """Two halves of 128 two-bit codes over 32 bytes each; bits 0-1 of the 32 bytes come first."""
    return _split(b[:, at : at + 64].reshape(-1, 2, 32), [0, 2, 4, 6], 3).reshape(-1, 256)


def q2_k(b: Bytes) -> Floats:
    d, m = _half(b, 80), _half(b, 82)
    scales, mins = b[:, :16] & 15, b[:, :16] >> 4
    return _by_groups(d * _f(scales), _quarters(b, 16)) - _repeat(m * _f(mins), 16)


def q3_k(b: Bytes) -> Floats:
    high = _split(b[:, :32], list(range(8)), 1).reshape(-1, 256)
    q = _signed(_quarters(b, 32) | high << 2) - 4
    s = b[:, 96:108]
    low = np.concatenate([s[:, :8] & 15, s[:, :8] >> 4], axis=1)
    scales = low | _split(s[:, 8:], [0, 2, 4, 6], 3).reshape(-1, 16) << 4
    return _by_groups(_half(b, 108) * _f(_signed(scales) - 32), q)


def q4_k(b: Bytes) -> Floats:
    d, m = _half(b, 0), _half(b, 2)
    scales, mins = _k4_scales(b, 4)
    return _by_groups(d * _f(scales), _k4_nibbles(b, 16)) - _repeat(m * _f(mins), 32)


def q5_k(b: Bytes) -> Floats:
    d, m = _half(b, 0), _half(b, 2)
    scales, mins = _k4_scales(b, 4)
    high = _split(b[:, 16:48], list(range(8)), 1).reshape(-1, 256)
    return _by_groups(d * _f(scales), _k4_nibbles(b, 48) | high << 4) - _repeat(m * _f(mins), 32)


def q6_k(b: Bytes) -> Floats:
    low = _split(b[:, :128].reshape(-1, 2, 64), [0, 4], 15).reshape(-1, 256)
    q = _signed(low | _quarters(b, 128) << 4) - 32
    return _by_groups(_half(b, 208) * _f(_field(b, 192, "i1", 16)), q)


def iq4_xs(b: Bytes) -> Floats:
    low = _interleave(b[:, 4:8], [0, 4], 15)
    high = _interleave(_field(b, 2, "u2"), list(range(0, 16, 2)), 3).astype(np.uint8)
    q = _split(b[:, 8:].reshape(-1, 8, 16), [0, 4], 15)
    return _by_groups(_half(b, 0) * _f(_signed(low | high << 4) - 32), IQ4NL_VALUES[q])


# ---- codebook types: an index names four or eight values at once


def _signs(bits: Bytes) -> Floats:
    """1 or -1 for every value, from bytes of eight sign bits: (n, k) -> (n, 8 * k)."""
    return np.where(_flag_bits(bits) == 1, np.float32(-1), np.float32(1))


def iq2_xxs(b: Bytes) -> Floats:
    index, rest = b[:, 2:].reshape(-1, 8, 8)[:, :, :4].reshape(-1, 32), _field(b, 2, "u4", 16)[:, 1::2]
    db = _half(b, 0) * (np.float32(0.5) + _f(rest >> 28)) * np.float32(0.25)
    return _by_groups(db, GRIDS["iq2xxs_grid"][index]) * _signs(KSIGNS[_interleave(rest, [0, 7, 14, 21], 127)])


def iq2_xs(b: Bytes) -> Floats:
    q = _field(b, 2, "u2", 32)
    db = _half(b, 0) * (np.float32(0.5) + _f(_interleave(b[:, 66:], [0, 4], 15))) * np.float32(0.25)
    return _by_groups(db, GRIDS["iq2xs_grid"][q & 511]) * _signs(KSIGNS[q >> 9])


def iq2_s(b: Bytes) -> Floats:
    index = b[:, 2:34] | _interleave(b[:, 66:74], [0, 2, 4, 6], 3).astype(np.uint16) << 8
    db = _half(b, 0) * (np.float32(0.5) + _f(_interleave(b[:, 74:], [0, 4], 15))) * np.float32(0.25)
    return _by_groups(db, GRIDS["iq2s_grid"][index]) * _signs(b[:, 34:66])


def iq3_xxs(b: Bytes) -> Floats:
    rest = _field(b, 66, "u4", 8)
    db = _half(b, 0) * (np.float32(0.5) + _f(rest >> 28)) * np.float32(0.5)
    return _by_groups(db, GRIDS["iq3xxs_grid"][b[:, 2:66]]) * _signs(KSIGNS[_interleave(rest, [0, 7, 14, 21], 127)])


def iq3_s(b: Bytes) -> Floats:
    index = b[:, 2:66] | _flag_bits(b[:, 66:74]).astype(np.uint16) << 8
    db = _half(b, 0) * _f(1 + 2 * _interleave(b[:, 106:], [0, 4], 15))
    return _by_groups(db, GRIDS["iq3s_grid"][index]) * _signs(b[:, 74:106])


def iq1_s(b: Bytes) -> Floats:
    qh = _field(b, 34, "u2", 8)
    index = b[:, 2:34] | _interleave(qh, [0, 3, 6, 9], 7) << 8
    delta = np.where(qh & 0x8000, -IQ1_DELTA, IQ1_DELTA)
    shifted = _f(GRIDS["iq1s_grid"][index]).reshape(-1, 8, 32) + delta[:, :, None]
    return _by_groups(_half(b, 0) * _f(2 * (qh >> 12 & 7) + 1), shifted)


def iq1_m(b: Bytes) -> Floats:
    # The block's f16 scale is spread over the top nibbles of the four scale words.
    words = _field(b, 48, "u2", 4)
    d = (words >> 12 << np.array([0, 4, 8, 12], np.uint16)).sum(axis=1, keepdims=True, dtype=np.uint16)
    scales = _interleave(words, [0, 3, 6, 9], 7)
    qh = _interleave(b[:, 32:48], [0, 4], 15)
    index = b[:, :32] | (qh & 7).astype(np.uint16) << 8
    delta = np.where(qh & 8, -IQ1_DELTA, IQ1_DELTA)
    shifted = _f(GRIDS["iq1s_grid"][index]) + delta[:, :, None]
    return _by_groups(_f(d.view(np.float16)) * _f(2 * scales + 1), shifted)


# ---- plain numbers


def f32(b: Bytes) -> Floats:
    return _f(_field(b, 0, "f4"))


def f16(b: Bytes) -> Floats:
    return _half(b, 0)


def bf16(b: Bytes) -> Floats:
    return (_field(b, 0, "u2").astype(np.uint32) << np.uint32(16)).view(np.float32)


def f64(b: Bytes) -> Floats:
    return _f(_field(b, 0, "f8"))


DECODERS: dict[QType, Callable[[Bytes], Floats]] = {
    QType.F32: f32,
    QType.F16: f16,
    QType.Q4_0: q4_0,
    QType.Q4_1: q4_1,
    QType.Q5_0: q5_0,
    QType.Q5_1: q5_1,
    QType.Q8_0: q8_0,
    QType.Q8_1: q8_1,
    QType.Q2_K: q2_k,
    QType.Q3_K: q3_k,
    QType.Q4_K: q4_k,
    QType.Q5_K: q5_k,
    QType.Q6_K: q6_k,
    QType.Q8_K: q8_k,
    QType.IQ2_XXS: iq2_xxs,
    QType.IQ2_XS: iq2_xs,
    QType.IQ3_XXS: iq3_xxs,
    QType.IQ1_S: iq1_s,
    QType.IQ4_NL: iq4_nl,
    QType.IQ3_S: iq3_s,
    QType.IQ2_S: iq2_s,
    QType.IQ4_XS: iq4_xs,
    QType.F64: f64,
    QType.IQ1_M: iq1_m,
    QType.BF16: bf16,
    QType.TQ1_0: tq1_0,
    QType.TQ2_0: tq2_0,
    QType.MXFP4: mxfp4,
    QType.NVFP4: nvfp4,
    QType.Q1_0: q1_0,
    QType.Q2_0: q2_0,
}


# ---- output dtypes


def to_bfloat16(x: Array) -> npt.NDArray[np.uint16]:
    """Round float32 or float64 once to bfloat16, nearest even; NaN stays NaN.

    Parameters
    ----------
    x : ndarray of float32 or float64

    Returns
    -------
    ndarray of uint16
        The bit patterns, in the shape of `x`.
    """
    single = x.astype(np.float32)
    bits = single.view(np.uint32)
    if x.dtype != np.float32:
        # Rounding twice could miss a tie. So round to odd first: toward zero, with the last bit saying "not exact";
        # 16 bits further up, the second rounding then sees every tie and near-tie for what it is.
        away = np.abs(single) > np.abs(x)
        bits = np.where(single == x, bits, bits - away | 1) if x.size else bits
    rounded = (bits + (np.uint32(0x7FFF) + (bits >> 16 & np.uint32(1)))) >> np.uint32(16)
    quiet = bits >> np.uint32(16) | np.uint32(0x40)
    return np.where(np.isnan(x), quiet, rounded).astype(np.uint16)


def decode(src: Bytes, qtype: QType, dtype_name: str, out: Array) -> None:
    """Decode whole blocks into `out`, in bounded temporary memory.

    Parameters
    ----------
    src : ndarray of uint8, 1-D
        Little-endian blocks.
    qtype : QType
        Any type but an integer one, unless `dtype_name` is its own.
    dtype_name : {"float32", "float16", "bfloat16"}
        What `out` holds. Halves are the float32 value rounded to nearest even; F64 is rounded once.
        For an integer type: the name of its dtype, and the values are copied.
    out : ndarray, 1-D
        float32, float16, or uint16 for bfloat16; one element per value.

    Raises
    ------
    TypeError
        If the type can't be decoded to that dtype.
    ValueError
        If `src` isn't whole blocks, or `out` doesn't have one element per value.
    """
    size, width = qtype.block_size, qtype.block_bytes
    if src.size % width or out.size != src.size // width * size:
        raise ValueError(f"{qtype.name}: {src.size} bytes of blocks for {out.size} values")
    if qtype not in DECODERS:
        plain = np.dtype(NUMERIC_DTYPES[qtype])
        if dtype_name != plain.name:
            raise TypeError(f"{qtype.name} holds integers: {plain.name} is the only dtype, not {dtype_name}")
        out[:] = src.view(plain.newbyteorder("<"))
        return
    blocks, step = src.reshape(-1, width), max(1, CHUNK // size)
    with np.errstate(all="ignore"):
        for start in range(0, len(blocks), step):
            part = blocks[start : start + step]
            values: Array = _field(part, 0, "f8") if qtype == QType.F64 else DECODERS[qtype](part)
            if dtype_name == "bfloat16":
                values = to_bfloat16(values)
            elif dtype_name not in ("float32", "float16"):
                raise TypeError(f"{qtype.name} decodes to float32, float16 or bfloat16, not {dtype_name}")
            out[start * size : (start + len(part)) * size] = values.reshape(-1)
