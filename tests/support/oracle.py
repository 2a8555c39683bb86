"""What the tests compare with: ggml itself through ctypes, blocks that reach the corners, equality of bits.

ggml is the library inside the `libggml-python` wheel. Its version is pinned, because the promise "ggml's bits" is
about that one.
"""

from __future__ import annotations

import ctypes
import importlib.util
from importlib.metadata import version
from pathlib import Path

import ml_dtypes
import numpy as np

from ggufx import QType
from ggufx.formats.tensor_types import ENCODINGS

GGML_VERSION = "0.20.2.post1"

BLOCK_TYPES = [t for t in QType if t.is_quantized]
ENCODED_TYPES = list(ENCODINGS)
FLOAT_TYPES = [QType.F32, QType.F16, QType.BF16, QType.F64]
INTEGER_TYPES = [QType.I8, QType.I16, QType.I32, QType.I64]

# Offsets of the f16 scales (and minimums) of a block. The other types scale by a byte, an f32, or scattered bits.
HALF_SCALES = {
    QType.Q4_0: [0], QType.Q4_1: [0, 2], QType.Q5_0: [0], QType.Q5_1: [0, 2], QType.Q8_0: [0], QType.Q8_1: [0, 2],
    QType.Q2_K: [80, 82], QType.Q3_K: [108], QType.Q4_K: [0, 2], QType.Q5_K: [0, 2], QType.Q6_K: [208],
    QType.IQ2_XXS: [0], QType.IQ2_XS: [0], QType.IQ2_S: [0], QType.IQ3_XXS: [0], QType.IQ3_S: [0], QType.IQ1_S: [0],
    QType.IQ4_NL: [0], QType.IQ4_XS: [0], QType.TQ1_0: [52], QType.TQ2_0: [64], QType.Q1_0: [0], QType.Q2_0: [0],
}  # fmt: skip

# ggml's block structs, field by field. Everything wider than a byte is swapped in a big-endian file.
STRUCTS = {
    QType.F32: "f4", QType.F16: "f2", QType.BF16: "u2", QType.F64: "f8",
    QType.Q4_0: "f2,16u1", QType.Q4_1: "f2,f2,16u1", QType.Q5_0: "f2,4u1,16u1", QType.Q5_1: "f2,f2,4u1,16u1",
    QType.Q8_0: "f2,32i1", QType.Q8_1: "f2,f2,32i1",
    QType.Q2_K: "16u1,64u1,f2,f2", QType.Q3_K: "32u1,64u1,12u1,f2", QType.Q4_K: "f2,f2,12u1,128u1",
    QType.Q5_K: "f2,f2,12u1,32u1,128u1", QType.Q6_K: "128u1,64u1,16i1,f2", QType.Q8_K: "f4,256i1,16i2",
    QType.IQ2_XXS: "f2,32u2", QType.IQ2_XS: "f2,32u2,8u1", QType.IQ2_S: "f2,64u1,8u1,8u1",
    QType.IQ3_XXS: "f2,96u1", QType.IQ3_S: "f2,64u1,8u1,32u1,4u1", QType.IQ1_S: "f2,32u1,8u2",
    QType.IQ1_M: "32u1,16u1,8u1", QType.IQ4_NL: "f2,16u1", QType.IQ4_XS: "f2,u2,4u1,128u1",
    QType.TQ1_0: "48u1,4u1,f2", QType.TQ2_0: "64u1,f2", QType.MXFP4: "u1,16u1", QType.NVFP4: "4u1,32u1",
    QType.Q1_0: "f2,16u1", QType.Q2_0: "f2,16u1",
}  # fmt: skip

# Zeros of both signs, the smallest and largest subnormal, the smallest normal, the largest of both signs, infinities,
# NaN, one.
EDGE_HALVES = np.array(
    [0x0000, 0x8000, 0x0001, 0x03FF, 0x0400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0x3C00], np.uint16
)


def make_blocks(qtype: QType, rng: np.random.Generator, count: int = 40) -> np.ndarray:
    """`count` random blocks, then blocks with scales of the edge cases, every two together: uint8 (n, block bytes)."""
    places = HALF_SCALES.get(qtype, [])
    halves = np.stack(np.meshgrid(*[EDGE_HALVES] * max(len(places), 1)), axis=-1).reshape(-1, max(len(places), 1))
    edges = rng.integers(0, 256, (len(halves), qtype.block_bytes), np.uint8)
    for i, at in enumerate(places):
        edges[:, at : at + 2] = np.ascontiguousarray(halves[:, i, None].astype("<u2")).view(np.uint8)
    if qtype == QType.MXFP4:
        edges = rng.integers(0, 256, (256, 17), np.uint8)
        edges[:, 0] = np.arange(256)
    elif qtype == QType.NVFP4:
        edges = rng.integers(0, 256, (64, 36), np.uint8)
        edges[:, :4] = np.arange(256).reshape(64, 4)
    elif qtype == QType.IQ1_M:
        words = edges[:, 48:].view("<u2")
        words[:] = words & 0x0FFF | (EDGE_HALVES[:, None] >> np.array([0, 4, 8, 12], np.uint16)) << 12
    elif qtype == QType.Q8_K:
        scales = [0, -0.0, 1e-45, 1e-38, 3.4e38, -3.4e38, np.inf, -np.inf, np.nan, 1, -1]
        edges[:, :4] = np.array(scales, "<f4")[:, None].view(np.uint8)
    return np.concatenate([rng.integers(0, 256, (count, qtype.block_bytes), np.uint8), edges])


def round_to(values: np.ndarray, dtype: str) -> np.ndarray:
    """float32 values as float32, float16 or bfloat16 (uint16 patterns), rounded by somebody else's code."""
    with np.errstate(all="ignore"):
        if dtype == "bfloat16":
            return values.astype(ml_dtypes.bfloat16).view(np.uint16)
        return values.astype(dtype)


def assert_same_bits(got: np.ndarray, want: np.ndarray, label: str = "") -> None:
    """Require equal dtype, shape and bits, a NaN equal to any NaN; uint16 is bfloat16. Tell the first difference."""
    assert got.dtype == want.dtype, label
    assert got.shape == want.shape, label
    unsigned = f"u{got.dtype.itemsize}"
    floats = ml_dtypes.bfloat16 if got.dtype == np.uint16 else got.dtype
    with np.errstate(all="ignore"):
        nan, got_nan = np.isnan(want.view(floats)), np.isnan(got.view(floats))
    wrong = np.where(nan | got_nan, nan != got_nan, got.view(unsigned) != want.view(unsigned))
    if wrong.any():
        at = tuple(int(i[0]) for i in np.nonzero(wrong))
        raise AssertionError(
            f"{label}: {wrong.sum()} of {wrong.size} differ, first at {at}: {got.view(floats)[at]} "
            f"(0x{got.view(unsigned)[at]:x}), wanted {want.view(floats)[at]} (0x{want.view(unsigned)[at]:x})"
        )


class _Traits(ctypes.Structure):
    """ggml's struct ggml_type_traits, of which the tests use the sizes and the decoder."""

    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("blck_size", ctypes.c_int64),
        ("blck_size_interleave", ctypes.c_int64),
        ("type_size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.c_void_p),
        ("from_float_ref", ctypes.c_void_p),
    )


class Ggml:
    """ggml's own decoders and encoders.

    Raises
    ------
    ImportError
        If `libggml-python` isn't installed.
    """

    def __init__(self) -> None:
        spec = importlib.util.find_spec("libggml")
        if spec is None or spec.origin is None:
            raise ImportError("libggml-python is not installed")
        self.version = version("libggml-python")
        library = next(Path(spec.origin).parent.rglob("libggml-base.so"))
        self.lib = ctypes.CDLL(str(library), mode=ctypes.RTLD_LOCAL)
        self.lib.ggml_get_type_traits.restype = ctypes.POINTER(_Traits)
        self.lib.ggml_get_type_traits.argtypes = [ctypes.c_int]
        self.lib.ggml_quantize_chunk.restype = ctypes.c_size_t
        self.lib.ggml_quantize_chunk.argtypes = [
            ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p,
            ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p,
        ]  # fmt: skip

    def traits(self, qtype: QType) -> _Traits:
        """Return what ggml knows of a type."""
        return self.lib.ggml_get_type_traits(int(qtype)).contents

    def dequantize(self, blocks: np.ndarray, qtype: QType) -> np.ndarray:
        """float32 values of whole blocks, (blocks, values per block)."""
        blocks = np.ascontiguousarray(blocks).reshape(-1, qtype.block_bytes)
        out = np.empty((len(blocks), qtype.block_size), np.float32)
        address = self.traits(qtype).to_float
        if qtype == QType.Q8_K:  # exported, but not in the traits
            address = ctypes.cast(self.lib.dequantize_row_q8_K, ctypes.c_void_p).value
        if address is None:
            raise NotImplementedError(f"ggml has no decoder of {qtype.name}")
        decoder = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(address)
        decoder(blocks.ctypes.data, out.ctypes.data, out.size)
        return out

    def quantize(self, rows: np.ndarray, qtype: QType, importance: np.ndarray | None = None) -> np.ndarray:
        """Bytes of float32 rows, (rows, bytes per row)."""
        rows = np.ascontiguousarray(rows, np.float32)
        out = np.zeros((len(rows), rows.shape[1] // qtype.block_size * qtype.block_bytes), np.uint8)
        weights = None if importance is None else np.ascontiguousarray(importance, np.float32)
        self.lib.ggml_quantize_chunk(
            int(qtype), rows.ctypes.data, out.ctypes.data, 0, *rows.shape,
            None if weights is None else weights.ctypes.data,
        )  # fmt: skip
        return out
