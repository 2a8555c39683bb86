"""Every block type's quantizer in plain numpy: the readable specification, and the path of last resort.

Each function takes the values of many blocks as a float32 array (values, blocks), the importance of each value in the
same shape or None, and, for the types that weigh by a whole row, that row's mean square per block. It returns the
blocks' bytes, uint8 (blocks, bytes). The bytes are those of ggml 0.20.2 built for x86-64 without fused operations.

Every operation rounds to float32 where ggml's does, in ggml's order. Input is finite; squares and sums of huge values
may still overflow, and then conversions behave as on x86 (see :func:`~ggufx.codec.reference.searches.to_int`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...formats.tensor_types import QType
from ..reference import encode_iq  # noqa: F401 - enters its types in ENCODERS
from .codebooks import E8M0_HALF, IQ4NL_VALUES, MXFP4_VALUES, UE4M3_HALF
from .packing import (
    ENCODERS,
    Bytes,
    F,
    Floats,
    Ints,
    bitmap,
    encodes,
    highest_positive,
    interleave,
    inverse_of,
    join,
    round_away,
    subblocks,
    to_bytes,
    to_half,
    weigh,
)
from .searches import (
    first_peak,
    nearest,
    running_sum,
    search_min_and_scale,
    search_positive_scale,
    search_refined_scale,
    search_signed_scale,
    to_int,
)

__all__ = ["ENCODERS", "encode_blocks", "mean_square"]


def encode_blocks(x: Floats, qtype: QType, qw: Floats | None = None, row_mean: Floats | None = None) -> Bytes:
    """Quantize blocks.

    Parameters
    ----------
    x, qw : float32 arrays (blocks, block size)
        Finite values, and their importance or None.
    row_mean : float32 array (blocks,), optional
        Mean square of the row each block stands in, needed with `qw` by Q4_0, Q4_1, Q5_0 and Q5_1.

    Returns
    -------
    uint8 array (blocks, block bytes)
    """
    with np.errstate(all="ignore"):
        columns = np.ascontiguousarray(x.T)
        return ENCODERS[qtype](columns, None if qw is None else np.ascontiguousarray(qw.T), row_mean)


def mean_square(x: Floats) -> Floats:
    """Mean square of each row, summed in order in float32."""
    with np.errstate(all="ignore"):
        columns = np.ascontiguousarray(x.T)
        return running_sum(columns * columns) / F(len(columns))


# Q4_0 to Q8_1: one block of 32, no super-block.


def _five_bits(q: npt.NDArray[np.generic]) -> tuple[Bytes, Bytes]:
    q = to_bytes(q)
    return bitmap((q & 16) != 0), interleave(q, 16, 4)


def _symmetric(x: Floats, qw: Floats | None, row_mean: Floats | None, nmax: int) -> tuple[Floats, Ints]:
    if qw is not None and row_mean is not None:
        d, codes = search_signed_scale(x, nmax, weigh(x, qw, row_mean))
        return d, codes.astype(np.int32)
    _, peak = first_peak(x)
    d = peak / F(-nmax)
    return d, np.minimum(to_int(x * inverse_of(d) + F(nmax + 0.5)), 2 * nmax - 1)


def _offset(x: Floats, qw: Floats | None, row_mean: Floats | None, nmax: int) -> tuple[Floats, Floats, Ints]:
    if qw is not None and row_mean is not None:
        d, m, codes = search_min_and_scale(x, weigh(x, qw, row_mean), nmax, -0.9, 0.05, 36)
        return d, -m, codes.astype(np.int32)
    low, high = x[0], x[0]  # a running comparison, unlike numpy's min, keeps the first of zeros of both signs
    for v in x[1:]:
        low, high = np.where(v < low, v, low), np.where(v > high, v, high)
    d = (high - low) / F(nmax)
    return d, low, to_int((x - low) * inverse_of(d) + F(0.5))


@encodes(QType.Q4_0)
def encode_q4_0(x: Floats, qw: Floats | None, row_mean: Floats | None) -> Bytes:
    d, codes = _symmetric(x, qw, row_mean, 8)
    return join(to_half(d), interleave(codes, 16, 4))


@encodes(QType.Q4_1)
def encode_q4_1(x: Floats, qw: Floats | None, row_mean: Floats | None) -> Bytes:
    d, m, codes = _offset(x, qw, row_mean, 15)
    return join(to_half(d), to_half(m), interleave(np.minimum(codes, 15), 16, 4))


@encodes(QType.Q5_0)
def encode_q5_0(x: Floats, qw: Floats | None, row_mean: Floats | None) -> Bytes:
    d, codes = _symmetric(x, qw, row_mean, 16)
    return join(to_half(d), *_five_bits(codes))


@encodes(QType.Q5_1)
def encode_q5_1(x: Floats, qw: Floats | None, row_mean: Floats | None) -> Bytes:
    d, m, codes = _offset(x, qw, row_mean, 31)
    return join(to_half(d), to_half(m), *_five_bits(codes))


def _eight_bits(x: Floats) -> tuple[Floats, Ints]:
    d = np.abs(x).max(0) / F(127)
    return d, to_int(round_away(x * inverse_of(d)))


@encodes(QType.Q8_0)
def encode_q8_0(x: Floats, qw: Floats | None, row_mean: Floats | None) -> Bytes:
    d, codes = _eight_bits(x)
    return join(to_half(d), to_bytes(codes))


@encodes(QType.Q8_1)
def encode_q8_1(x: Floats, qw: Floats | None, row_mean: Floats | None) -> Bytes:
    d, codes = _eight_bits(x)
    codes = to_bytes(codes).view(np.int8)
    return join(to_half(d), to_half(codes.sum(0, dtype=np.int32).astype(F) * d), codes)


@encodes(QType.Q8_K)
def encode_q8_k(x: Floats, qw: Floats | None, row_mean: Floats | None) -> Bytes:
    amax, peak = first_peak(x)
    dead = amax == 0
    iscale = F(-127) / peak
    codes = np.where(dead, F(0), np.minimum(nearest(iscale * x), F(127)))
    codes = to_bytes(codes).view(np.int8)
    sums = codes.reshape(16, 16, -1).sum(1, dtype=np.int16)
    return join(np.where(dead, F(0), F(1) / iscale).astype("<f4"), codes, sums.astype("<i2"))


# Q1_0, Q2_0 and the ternary types.


@encodes(QType.Q1_0)
def encode_q1_0(x: Floats, qw: Floats | None, row_mean: Floats | None) -> Bytes:
    return join(to_half(running_sum(np.abs(x)) / F(128)), bitmap(x >= 0))


@encodes(QType.Q2_0)
def encode_q2_0(x: Floats, qw: Floats | None, row_mean: Floats | None) -> Bytes:
    d = np.abs(x).max(0)
    codes = to_int(round_away(x * inverse_of(d)))
    packed = np.clip(codes, -1, 2).reshape(16, 4, -1) + 1
    return join(to_half(d), to_bytes(packed[:, 0] | packed[:, 1] << 2 | packed[:, 2] << 4 | packed[:, 3] << 6))


def _trits(x: Floats) -> tuple[Floats, Bytes]:
    d = np.abs(x).max(0)
    v = x * inverse_of(d)
    # lroundf of what overflowed is the smallest long, whose low 32 bits are zero.
    return d, to_bytes(to_int(round_away(np.where(np.isfinite(v), v, F(0)))) + 1)


@encodes(QType.TQ1_0)
def encode_tq1_0(x: Floats, qw: Floats | None, row_mean: Floats | None) -> Bytes:
    d, trits = _trits(x)

    def pack(part: Bytes, per_byte: int) -> Bytes:
        digits = part.reshape(per_byte, -1, part.shape[-1]).astype(np.uint16)
        number = np.zeros(digits.shape[1:], np.uint16)
        for k in range(5):
            number = number * 3 + (digits[k] if k < per_byte else 0)
        # Scaled to 256 = 3^5 + 13 and rounded up, so that decoding finds each digit by a multiplication.
        return to_bytes(((number & 255) * np.uint16(256) + 242) // 243)

    return join(pack(trits[:160], 5), pack(trits[160:240], 5), pack(trits[240:], 4), to_half(d))


@encodes(QType.TQ2_0)
def encode_tq2_0(x: Floats, qw: Floats | None, row_mean: Floats | None) -> Bytes:
    d, trits = _trits(x)
    return join(interleave(trits, 32, 2), to_half(d))


# MXFP4 and NVFP4.


def _nearest_fp4(x: Floats, d: Floats) -> Bytes:
    """Code of the number of E2M1 nearest to x / d, the first among equals."""
    best = np.zeros(x.shape, np.uint8)
    least = np.abs(F(0) * d - x)
    for code in range(1, 16):
        error = np.abs(F(MXFP4_VALUES[code]) * d - x)
        better = error < least
        best[better] = code
        least = np.where(better, error, least)
    return best


def floor_log2(v: Floats) -> Ints:
    """floor(log2f(v)) of positive numbers: log2f rounds numbers just below a power of two up to its exponent."""
    mantissa, exponent = np.frexp(v)
    below = exponent - 1
    # v = 2^exponent * (1 - steps * 2^-24) and log2(v) = exponent - steps * 2^-24 / ln 2, which rounds to `exponent`
    # when less than half the spacing of floats there is missing. Floats of magnitude 2^k are 2^(k-23) apart, and half
    # that below the power of two itself; an exponent of 0 has floats all the way.
    steps = (F(1) - mantissa) * F(2**24)
    k = np.frexp(np.abs(exponent).astype(F))[1] - 1
    spacing = np.where((exponent > 0) & (exponent == 1 << np.maximum(k, 0)), k - 24, k - 23)
    rounds_up = (exponent != 0) & (steps < np.log(2) * np.ldexp(0.5, spacing + 24))
    return np.asarray(below + rounds_up, np.int32)


@encodes(QType.MXFP4)
def encode_mxfp4(x: Floats, qw: Floats | None, row_mean: Floats | None) -> Bytes:
    amax = np.abs(x).max(0)
    exponent = floor_log2(np.where(amax > 0, amax, F(1))) - 2 + 127
    e = np.where(amax > 0, exponent & 255, 0)
    return join(to_bytes(e), interleave(_nearest_fp4(x, E8M0_HALF.view(F)[e]), 16, 4))


def _to_ue4m3(v: Floats) -> Ints:
    bits = np.minimum(v, F(448)).view(np.int32)
    exponent = (bits >> 23) - 127 + 7
    mantissa = (bits >> 20 & 7) + (bits >> 19 & 1)
    small = to_int(v * F(512) + F(0.5))
    normal = (exponent << 3) + mantissa
    normal = np.where(normal < 15 << 3, normal, 0x7E)  # all of the top exponent becomes 448
    code: Ints = np.where(exponent <= 0, np.where(small < 1, 0, np.minimum(small, 7)), normal)
    return np.where(v > 0, code, 0)


@encodes(QType.NVFP4)
def encode_nvfp4(x: Floats, qw: Floats | None, row_mean: Floats | None) -> Bytes:
    groups = x.reshape(4, 16, -1)
    scales = [_to_ue4m3(np.abs(g).max(0) / F(6)) for g in groups]
    codes = [interleave(_nearest_fp4(g, UE4M3_HALF.view(F)[s]), 8, 4) for g, s in zip(groups, scales, strict=True)]
    return join(to_bytes(np.stack(scales)), *codes)


# K types: super-blocks of 256 whose sub-blocks' scales and minima are quantized in turn.


def _divided(x: Floats, d: Floats, codes: Floats, low: int, high: int) -> Floats:
    """Codes for the scale that was stored; a scale of zero keeps the search's codes."""
    return np.where(d != 0, np.clip(nearest(x / d), low, high), codes)


def _offset_subblocks(
    x: Floats, w: Floats, nmax: int, rmin: float, rdelta: float, steps: int, absolute: bool = False
) -> tuple[Floats, Floats, Floats]:
    found = [search_min_and_scale(a, b, nmax, rmin, rdelta, steps, absolute) for a, b in zip(x, w, strict=True)]
    scales, mins, codes = (np.stack(part) for part in zip(*found, strict=True))
    return scales, mins, codes


@encodes(QType.Q2_K)
def encode_q2_k(x: Floats, qw: Floats | None, row_mean: Floats | None) -> Bytes:
    x = subblocks(x, 16)
    if qw is None:
        scales, mins, codes = _offset_subblocks(x, np.abs(x), 3, -0.5, 0.1, 15, absolute=True)
        packed, halves = [], []
        for part in (scales, mins):
            top = highest_positive(part)
            packed.append(np.where(top > 0, nearest(F(15) / top * part), F(0)).astype(np.int32))
            halves.append(to_half(np.where(top > 0, top / F(15), F(0))))
    else:
        sigma2 = running_sum((x * x).reshape(256, -1)) / F(256)
        w = weigh(x, subblocks(qw, 16), sigma2)
        scales, mins, codes = _offset_subblocks(x, w, 3, -0.9, 0.05, 36)
        sums = np.stack([running_sum(v) for v in w])
        packed, halves = [], []
        for part in (scales, mins):
            d, q = search_positive_scale(part, sums, 15)
            packed.append(q.astype(np.int32))
            halves.append(to_half(d))
    both = to_bytes(packed[0] | packed[1] << 4)
    d = halves[0].astype(F) * (both & 15).astype(F)
    m = halves[1].astype(F) * (both >> 4).astype(F)
    codes = _divided(x + m[:, None], d[:, None], codes, 0, 3)
    return join(both, interleave(codes.reshape(256, -1), 32, 2), *halves)


def _six_bit_pairs(ls: Ints, lm: Ints) -> Bytes:
    """Twelve bytes of eight six-bit scales and minima, as Q4_K and Q5_K keep them."""
    ls, lm = ls & 255, lm & 255
    first = ls[:4] & 63 | (ls[4:] >> 4) << 6
    second = lm[:4] & 63 | (lm[4:] >> 4) << 6
    return to_bytes(np.concatenate([first, second, ls[4:] & 15 | (lm[4:] & 15) << 4]))


def _six_bit_offset(x: Floats, qw: Floats | None, nmax: int, rmin: float, steps: int) -> tuple[Bytes, Floats]:
    """Header of Q4_K and Q5_K (d, dmin, scales) and the codes."""
    x = subblocks(x, 32)
    if qw is None:
        mean = np.stack([running_sum(v * v) for v in x]) / F(32)
        w = np.sqrt(mean)[:, None] + np.abs(x)
        scales, mins, codes = _offset_subblocks(x, w, nmax, rmin, 0.1, steps)
        packed, halves = [], []
        for part in (scales, mins):
            top = highest_positive(part)
            inverse = np.where(top > 0, F(63) / top, F(0))
            packed.append(np.minimum(nearest(inverse * part).astype(np.int32) & 255, 63))
            halves.append(to_half(top / F(63)))
    else:
        sigma2 = F(2) * running_sum((x * x).reshape(256, -1)) / F(256)
        w = weigh(x, subblocks(qw, 32), sigma2)
        scales, mins, codes = _offset_subblocks(x, w, nmax, -0.9, 0.05, 36)
        sums = np.stack([running_sum(v) for v in w])
        packed, halves = [], []
        for part in (scales, mins):
            d, q = search_positive_scale(part, sums, 63)
            packed.append(q.astype(np.int32))
            halves.append(to_half(d))
    if nmax == 31:
        packed = [np.minimum(p, 63) for p in packed]
    ls, lm = packed
    header = join(*halves, _six_bit_pairs(ls, lm))
    d = halves[0].astype(F) * (ls & 63).astype(F)
    m = halves[1].astype(F) * (lm & 63).astype(F)
    codes = _divided(x + m[:, None], d[:, None], codes, 0, nmax)
    return header, codes.reshape(256, -1)


@encodes(QType.Q4_K)
def encode_q4_k(x: Floats, qw: Floats | None, row_mean: Floats | None) -> Bytes:
    header, codes = _six_bit_offset(x, qw, 15, -1.0, 20)
    return np.concatenate([header, join(interleave(codes, 32, 4))], 1)


@encodes(QType.Q5_K)
def encode_q5_k(x: Floats, qw: Floats | None, row_mean: Floats | None) -> Bytes:
    header, codes = _six_bit_offset(x, qw, 31, -0.5, 15)
    high = interleave((to_bytes(codes) >> 4), 32, 1)
    return np.concatenate([header, join(high, interleave(codes, 32, 4))], 1)


@encodes(QType.Q3_K)
def encode_q3_k(x: Floats, qw: Floats | None, row_mean: Floats | None) -> Bytes:
    x = subblocks(x, 16)
    if qw is None:
        found = [search_refined_scale(v, 4) for v in x]
        scales, codes = (np.stack(part) for part in zip(*found, strict=True))
        _, top = first_peak(scales)
        iscale = F(-32) / top
        six = np.where(top != 0, np.clip(to_bytes(nearest(iscale * scales)).view(np.int8), -32, 31) + np.int32(32), 0)
        d = to_half(np.where(top != 0, F(1) / iscale, F(0)))
    else:
        sigma2 = F(2) * running_sum((x * x).reshape(256, -1)) / F(256)
        w = weigh(x, subblocks(qw, 16), sigma2)
        found = [search_signed_scale(a, 4, b) for a, b in zip(x, w, strict=True)]
        scales, codes = (np.stack(part) for part in zip(*found, strict=True))
        top, found_six = search_signed_scale(scales, 32, np.stack([running_sum(v) for v in w]))
        six, d = found_six.astype(np.int32), to_half(top)
    low = six[:8] & 15 | (six[8:] & 15) << 4
    quarter = (six >> 4).reshape(4, 4, -1)
    high = quarter[0] | quarter[1] << 2 | quarter[2] << 4 | quarter[3] << 6
    step = d.astype(F) * (six - 32).astype(F)
    codes = _divided(x, step[:, None], codes - F(4), -4, 3) + F(4)
    q = to_bytes(codes).reshape(256, -1)
    return join(interleave(q >> 2, 32, 1), interleave(q & 3, 32, 2), to_bytes(low), to_bytes(high), d)


@encodes(QType.Q6_K)
def encode_q6_k(x: Floats, qw: Floats | None, row_mean: Floats | None) -> Bytes:
    x = subblocks(x, 16)
    weights = [None] * 16 if qw is None else subblocks(qw, 16)
    found = [search_signed_scale(v, 32, w) for v, w in zip(x, weights, strict=True)]
    scales, codes = (np.stack(part) for part in zip(*found, strict=True))
    amax, top = first_peak(scales)
    dead = amax < F(1e-15)
    iscale = F(-128) / top
    d = to_half(F(1) / iscale)
    eight = to_bytes(np.minimum(nearest(iscale * scales), F(127))).view(np.int8)
    step = d.astype(F) * eight.astype(F)
    q = to_bytes(_divided(x, step[:, None], codes - F(32), -32, 31) + F(32)).reshape(256, -1)
    # Two halves of 128: 64 bytes hold the low nibbles of values 0-63 and 64-127, 32 bytes the upper two bits of all.
    low = np.concatenate([interleave(h, 64, 4) for h in (q[:128] & 15, q[128:] & 15)])
    block = join(low, interleave(q >> 4, 32, 2), eight, d)
    block[dead] = 0
    return block


# IQ4_NL and IQ4_XS: sixteen levels, unevenly spaced.

_IQ4 = IQ4NL_VALUES.astype(F)


def _nearest_iq4(v: Floats) -> npt.NDArray[np.intp]:
    """Number of the nearest level. Between two levels ggml compares distances, each rounded."""
    above = np.searchsorted(_IQ4, v, side="right").clip(1, 15)  # NaN sorts last, as it does in ggml's bisection
    lower = v - _IQ4[above - 1] < _IQ4[above] - v
    found = np.where(lower, above - 1, above)
    return np.where(v <= _IQ4[0], 0, np.where(v >= _IQ4[15], 15, found))


def _iq4_scale(x: Floats, w: Floats) -> Floats:
    amax, peak = first_peak(x)

    def fit(inverse: Floats) -> tuple[Floats, Floats]:
        q = _IQ4[_nearest_iq4(inverse * x)]
        return running_sum(w * q * x), running_sum(w * q * q)

    sumqx, sumq2 = fit(F(1) / (-peak / _IQ4[0]))
    d = np.where(sumq2 > 0, sumqx / sumq2, F(0))
    best = d * sumqx
    for step in range(-7, 8):
        sumqx, sumq2 = fit((F(step) + _IQ4[0]) / peak)
        better = (sumq2 > 0) & (sumqx * sumqx > best * sumq2)
        d = np.where(better, sumqx / sumq2, d)
        best = np.where(better, d * sumqx, best)
    return np.where(amax < F(1e-15), F(0), d)


def _iq4_weights(x: Floats, qw: Floats | None) -> Floats:
    if qw is None:
        return x * x
    return weigh(x, qw, running_sum(x * x) * F(2 / len(x)))


@encodes(QType.IQ4_NL)
def encode_iq4_nl(x: Floats, qw: Floats | None, row_mean: Floats | None) -> Bytes:
    d = _iq4_scale(x, _iq4_weights(x, qw))
    return join(to_half(d), interleave(_nearest_iq4(inverse_of(d) * x), 16, 4))


@encodes(QType.IQ4_XS)
def encode_iq4_xs(x: Floats, qw: Floats | None, row_mean: Floats | None) -> Bytes:
    w = subblocks(_iq4_weights(x, qw), 32)
    x = subblocks(x, 32)
    scales = np.stack([_iq4_scale(a, b) for a, b in zip(x, w, strict=True)])
    _, top = first_peak(scales)
    d = -top / F(32)
    steps = np.clip(nearest(inverse_of(d) * scales), -32, 31)
    codes = _nearest_iq4(inverse_of(d * steps)[:, None] * x)
    six = steps.astype(np.int32) + 32
    low = six[0::2] & 15 | (six[1::2] & 15) << 4
    high = (six >> 4 << (2 * np.arange(8))[:, None]).sum(0).astype("<u2")
    return join(to_half(d), high, to_bytes(low), interleave(codes.reshape(256, -1), 16, 4))
