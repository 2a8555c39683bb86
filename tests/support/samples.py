"""Blocks that reach the corners of each type, with the values that the reference gives them."""

from __future__ import annotations

import functools

import numpy as np
from oracle import assert_same_bits, make_blocks

from ggufx import QType
from ggufx.codec.reference import decode as reference

STORED = {"float32": np.dtype(np.float32), "float16": np.dtype(np.float16), "bfloat16": np.dtype(np.uint16)}


def specified(blocks: np.ndarray, qtype: QType, dtype: str) -> np.ndarray:
    """Decode by the reference: (blocks, values per block)."""
    out = np.empty((len(blocks), qtype.block_size), STORED[dtype])
    reference.decode(blocks.reshape(-1), qtype, dtype, out.reshape(-1))
    return out


def blocks_of(qtype: QType) -> np.ndarray:
    """Random blocks and blocks with extreme scales, or numbers of every magnitude: uint8 (blocks, block bytes)."""
    rng = np.random.default_rng(int(qtype))
    if qtype.is_quantized:
        return make_blocks(qtype, rng, 77)
    if qtype in (QType.F16, QType.BF16):
        return np.arange(1 << 16, dtype="<u2").view(np.uint8).reshape(-1, 2)
    stored = np.dtype(f"<f{qtype.block_bytes}")
    special = [0.0, -0.0, 1e-45, 1e-39, -1e-40, 65504, 65519.996, 65520, 3.4e38, np.inf, -np.inf, np.nan]
    ordinary = rng.standard_normal(2000) * 10.0 ** rng.integers(-45, 38, 2000)
    numbers = np.concatenate([ordinary, special]).astype(stored).view(np.uint8).reshape(-1, stored.itemsize)
    # Halfway between neighbours in bfloat16, and in float16, with the numbers next to them.
    ties = rng.integers(0, 1 << 32, (2, 500), np.uint64).astype(np.uint32) & 0xFFFF0000 | 0x8000
    ties[1] = (rng.integers(0, 1 << 15, 500, np.uint32) << 13) + 0x38001000
    near = (ties[..., None] + np.array([-1, 0, 1])).astype("<u4").view("<f4").reshape(-1)
    with np.errstate(all="ignore"):
        near = near.astype(stored).view(np.uint8).reshape(-1, stored.itemsize)
    return np.concatenate([make_blocks(qtype, rng, 2000), numbers, near])


@functools.lru_cache(maxsize=1)
def sample(qtype: QType, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Return :func:`blocks_of` and what they decode to."""
    blocks = blocks_of(qtype)
    return blocks, specified(blocks, qtype, dtype)


@functools.lru_cache(maxsize=1)
def large_sample(qtype: QType, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Blocks that decode to over 4 MiB in any dtype, enough for three threads, an odd number of them."""
    blocks, values = sample(qtype, dtype)
    pick = np.random.default_rng(1).integers(0, len(blocks), 2_200_000 // qtype.block_size | 1)
    return blocks[pick], values[pick]


def assert_same(got: np.ndarray, want: np.ndarray, label: str = "") -> None:
    bits = f"u{want.dtype.itemsize}"
    if got.shape != want.shape or got.dtype != want.dtype or not np.array_equal(got.view(bits), want.view(bits)):
        assert_same_bits(got, want, label)  # lets NaN equal any NaN, which takes its time
