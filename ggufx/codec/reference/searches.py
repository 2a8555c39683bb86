"""The searches behind ggml's block quantizers: which scale, minimum and codes lose least, one block per column.

Arrays are (values, blocks) float32. ggml adds its sums one value at a time; here each loop runs over the values of a
block in ggml's order and handles all blocks at once, so every block sees the same roundings in the same order.
The comments of :mod:`ggufx.codec.reference.encode` on NaN and overflow apply: conversions never trap.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = [
    "first_peak",
    "nearest",
    "running_sum",
    "search_min_and_scale",
    "search_positive_scale",
    "search_refined_scale",
    "search_signed_scale",
    "to_int",
]

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]

F = np.float32
# Adding 1.5 * 2^23 leaves the nearest integer (ties to even) in the low 23 bits of the sum.
ROUNDER = F(12582912.0)
# Below this a group counts as zero (GROUP_MAX_EPS in ggml).
TINY = F(1e-15)


def nearest(v: Floats) -> Floats:
    """Nearest integer as ggml's nearest_int finds it: from the low bits of a float sum, wrapping when they overflow."""
    bits = (v + ROUNDER).view(np.int32)
    rounded: Floats = (bits & 0x7FFFFF | 0x4B000000).view(F) - ROUNDER
    return rounded


def to_int(v: Floats) -> Ints:
    """Truncate as x86 does: NaN and numbers beyond int32 give the smallest int32."""
    inside = np.abs(v) < F(2147483648.0)
    return np.where(inside, np.where(inside, v, 0).astype(np.int32), np.int32(-(2**31)))


def running_sum(terms: Floats) -> Floats:
    """Sum over the first axis, one term after the other, from zero."""
    total = np.zeros(terms.shape[1:], F)
    for term in terms:
        total = total + term
    return total


def first_peak(x: Floats) -> tuple[Floats, Floats]:
    """Largest magnitude and the first value that has it."""
    amax = np.zeros(x.shape[1:], F)
    peak = np.zeros(x.shape[1:], F)
    for v in x:
        a = np.abs(v)
        above = a > amax
        amax = np.where(above, a, amax)
        peak = np.where(above, v, peak)
    return amax, peak


def _signed_codes(x: Floats, iscale: Floats, nmax: int) -> Floats:
    return np.clip(nearest(iscale * x), -nmax, nmax - 1)


def search_signed_scale(x: Floats, nmax: int, w: Floats | None = None) -> tuple[Floats, Floats]:
    """Scale and codes (0 to 2*nmax-1) of a symmetric group: 19 scales tried (make_qx_quants, rmse type 1)."""
    if w is None:
        w = x * x
    amax, peak = first_peak(x)
    dead = amax < TINY

    def fit(iscale: Floats) -> tuple[Floats, Floats]:
        codes = _signed_codes(x, iscale, nmax)
        return running_sum(w * x * codes), running_sum(w * codes * codes)

    best_iscale = F(-nmax) / peak
    sumlx, suml2 = fit(best_iscale)
    scale = np.where(suml2 != 0, sumlx / suml2, F(0))
    best = scale * sumlx
    for step in (*range(-9, 0), *range(1, 10)):
        iscale = -(F(nmax) + F(0.1) * F(step)) / peak
        sumlx, suml2 = fit(iscale)
        better = (suml2 > 0) & (sumlx * sumlx > best * suml2)
        scale = np.where(better, sumlx / suml2, scale)
        best = np.where(better, scale * sumlx, best)
        best_iscale = np.where(better, iscale, best_iscale)
    codes = _signed_codes(x, best_iscale, nmax) + F(nmax)
    return np.where(dead, F(0), scale), np.where(dead, F(0), codes)


def search_refined_scale(x: Floats, nmax: int) -> tuple[Floats, Floats]:
    """Scale and codes (0 to 2*nmax-1), improved one code at a time (make_q3_quants)."""
    amax, peak = first_peak(x)
    dead = amax < TINY
    w = x * x
    codes = _signed_codes(x, F(-nmax) / peak, nmax)
    sumlx = running_sum(w * x * codes)
    suml2 = running_sum(w * codes * codes)
    active = np.ones(x.shape[1:], bool)
    for _ in range(5):
        changed = np.zeros(x.shape[1:], bool)
        for i in range(len(x)):
            slx = sumlx - w[i] * x[i] * codes[i]
            sl2 = suml2 - w[i] * codes[i] * codes[i]
            code = np.clip(nearest(x[i] * sl2 / slx), -nmax, nmax - 1)
            trial = active & (slx > 0) & (code != codes[i])
            slx = slx + w[i] * x[i] * code
            sl2 = sl2 + w[i] * code * code
            better = trial & (sl2 > 0) & (slx * slx * suml2 > sumlx * sumlx * sl2)
            codes[i] = np.where(better, code, codes[i])
            sumlx = np.where(better, slx, sumlx)
            suml2 = np.where(better, sl2, suml2)
            changed |= better
        active &= changed
        if not active.any():
            break
    scale = np.where(suml2 > 0, sumlx / suml2, F(0))
    return np.where(dead, F(0), scale), np.where(dead, F(0), codes + F(nmax))


def search_min_and_scale(
    x: Floats, w: Floats, nmax: int, rmin: float, rdelta: float, steps: int, absolute: bool = False
) -> tuple[Floats, Floats, Floats]:
    """Scale, negated minimum and codes (0 to nmax) of an offset group (make_qkx2_quants, make_qkx3_quants).

    A step that improves moves the minimum, and later steps start from it.
    """
    low, high = x[0], x[0]
    sum_w = w[0]
    sum_x = w[0] * x[0]
    for v, wv in zip(x[1:], w[1:], strict=True):
        low = np.where(v < low, v, low)
        high = np.where(v > high, v, high)
        sum_w = sum_w + wv
        sum_x = sum_x + wv * v
    low = np.where(low > 0, F(0), low)
    flat = high <= low

    def codes_of(iscale: Floats, low: Floats) -> Floats:
        return np.clip(nearest(iscale * (x - low)), 0, nmax)

    def error(scale: Floats, codes: Floats, low: Floats) -> Floats:
        diff = scale * codes + low - x
        return running_sum(w * (np.abs(diff) if absolute else diff * diff))

    iscale = F(nmax) / (high - low)
    scale = F(1) / iscale
    codes = codes_of(iscale, low)
    best = error(scale, codes, low)
    origin = low  # the minimum that the codes were made from, which isn't the minimum they are decoded with
    best_iscale = iscale
    least = low
    for step in range(steps + 1):
        iscale = (F(rmin) + F(rdelta) * F(step) + F(nmax)) / (high - least)
        codes = codes_of(iscale, least)
        wl = w * codes
        sum_l = running_sum(wl)
        sum_l2 = running_sum(wl * codes)
        sum_xl = running_sum(wl * x)
        det = sum_w * sum_l2 - sum_l * sum_l
        new_scale = (sum_w * sum_xl - sum_x * sum_l) / det
        new_low = (sum_l2 * sum_x - sum_l * sum_xl) / det
        positive = new_low > 0
        new_low = np.where(positive, F(0), new_low)
        new_scale = np.where(positive, sum_xl / sum_l2, new_scale)
        loss = error(new_scale, codes, new_low)
        better = (det > 0) & (loss < best)
        best = np.where(better, loss, best)
        best_iscale = np.where(better, iscale, best_iscale)
        origin = np.where(better, least, origin)
        scale = np.where(better, new_scale, scale)
        least = np.where(better, new_low, least)
    codes = codes_of(best_iscale, origin)
    return np.where(flat, F(0), scale), -np.where(flat, low, least), np.where(flat, F(0), codes)


def _as_byte(codes: Floats) -> Floats:
    return (codes.astype(np.int32) & 255).astype(F)


def search_positive_scale(x: Floats, w: Floats, nmax: int) -> tuple[Floats, Floats]:
    """Scale and byte codes of a group that is positive but for flipped signs (make_qp_quants).

    ggml keeps the codes in bytes, so that a code of -1 takes part in its first sums as -1 and in later ones as 255.
    """
    high = np.zeros(x.shape[1:], F)
    for v in x:
        high = np.where(high > v, high, v)
    dead = high < TINY
    best_iscale = F(nmax) / high

    def loss(scale: Floats, codes: Floats) -> Floats:
        diff = x - scale * codes
        return running_sum(w * diff * diff)

    best = loss(F(1) / best_iscale, _as_byte(nearest(best_iscale * x)))
    for step in (-4, -3, -2, -1, 1, 2, 3, 4):
        iscale = (F(0.1) * F(step) + F(nmax)) / high
        mse = loss(F(1) / iscale, np.minimum(nearest(iscale * x), F(nmax)))
        better = mse < best
        best = np.where(better, mse, best)
        best_iscale = np.where(better, iscale, best_iscale)
    codes = np.minimum(nearest(best_iscale * x), F(nmax))
    sumlx = running_sum(w * x * codes)
    suml2 = running_sum(w * codes * codes)
    codes = _as_byte(codes)
    active = np.ones(x.shape[1:], bool)
    for _ in range(5):
        changed = np.zeros(x.shape[1:], bool)
        for i in range(len(x)):
            slx = sumlx - w[i] * x[i] * codes[i]
            sl2 = suml2 - w[i] * codes[i] * codes[i]
            code = np.minimum(nearest(x[i] * sl2 / slx), F(nmax))
            trial = active & (slx > 0) & (sl2 > 0) & (code != codes[i])
            slx = slx + w[i] * x[i] * code
            sl2 = sl2 + w[i] * code * code
            better = trial & (slx * slx * suml2 > sumlx * sumlx * sl2)
            codes[i] = np.where(better, _as_byte(code), codes[i])
            sumlx = np.where(better, slx, sumlx)
            suml2 = np.where(better, sl2, suml2)
            changed |= better
        active &= changed
        if not active.any():
            break
    scale = np.where(suml2 > 0, sumlx / suml2, F(0))
    return np.where(dead, F(0), scale), np.where(dead, F(0), codes)
