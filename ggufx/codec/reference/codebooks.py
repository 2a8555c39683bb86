"""The constant tables of the block formats: lattice codebooks, sign patterns, value lists, scale decoders.

The codebooks are data (``codebooks.txt``); everything that follows a rule is computed from the rule here. The C tables
are generated from this module by ``csrc/make_tables.py``, so the two can't differ.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

__all__ = ["E8M0_HALF", "GRIDS", "IQ1_DELTA", "IQ4NL_VALUES", "KSIGNS", "MXFP4_VALUES", "UE4M3_HALF"]


def _read_grids() -> dict[str, npt.NDArray[np.int8]]:
    grids = {}
    text = Path(__file__).with_name("codebooks.txt").read_text(encoding="ascii")
    for section in text.split("\n[")[1:]:
        head, body = section.split("\n", 1)
        name, values = head.split("] ")
        entries = body.split()
        digits = np.frombuffer("".join(entries).encode(), np.uint8) - ord("0")
        grids[name] = np.array(values.split(), np.int8)[digits].reshape(len(entries), -1)
    return grids


def _e8m0_half() -> npt.NDArray[np.uint32]:
    # 2^(e - 128): half of the E8M0 scale, since MXFP4_VALUES are twice the E2M1 numbers. Exponents 0 and 1 land among
    # the subnormals of f32. ggml gives 255 no special meaning (2^127), although the format reserves it for NaN.
    return np.array([0x00200000, 0x00400000, *(e - 1 << 23 for e in range(2, 256))], np.uint32)


def _ue4m3_half() -> npt.NDArray[np.uint32]:
    # Half of the unsigned E4M3 number, for the same reason. ggml ignores bit 7 and decodes 0x7F, the format's NaN, as
    # zero, but not 0xFF, which it decodes as 240.
    x = np.arange(256)
    exponent, mantissa = x >> 3 & 15, x & 7
    value: npt.NDArray[np.float64] = (
        np.where(exponent == 0, np.ldexp(mantissa, -9), np.ldexp(1 + mantissa / 8, exponent - 7)) / 2
    )
    value[0x7F] = 0
    bits: npt.NDArray[np.uint32] = value.astype(np.float32).view(np.uint32)
    return bits


# Codebooks by ggml's names, int8 arrays (entries, 8 or 4 values): magnitudes, except iq1s_grid (-1, 0, 1).
GRIDS = _read_grids()

# IQ2_XXS, IQ2_XS and IQ3_XXS store seven sign bits for eight values; the eighth makes the number of minus signs even.
KSIGNS = np.array([i | (i.bit_count() & 1) << 7 for i in range(128)], np.uint8)

# Shift of the IQ1_S and IQ1_M codebook values, in units of their scale (IQ1S_DELTA in ggml).
IQ1_DELTA = np.float32(0.125)

# The 16 levels of IQ4_NL and IQ4_XS, fitted by ggml to Gaussian weights (kvalues_iq4nl).
IQ4NL_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)

# Twice the 16 numbers of E2M1 (0, .5, 1, 1.5, 2, 3, 4, 6 and their negatives), for MXFP4 and NVFP4.
MXFP4_VALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)

# Scale byte -> bits of the float32 scale.
E8M0_HALF = _e8m0_half()
UE4M3_HALF = _ue4m3_half()
