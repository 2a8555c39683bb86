"""What is decoded: every type, output dtype and size, from the same blocks in every contender's process."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ggufx import QType
from ggufx.cli.sample import path_or_sample
from ggufx.codec.reference.decode import DECODERS, decode
from ggufx.read.reader import open as open_gguf

# Weights per call. L2: the float32 output is 512 KiB and fits a core's second-level cache. LLC: 8 MiB, fits the last
# level. DRAM: 256 MiB, fits no cache. tiny: for trying out the benchmark itself.
SIZES = {"L2": 1 << 17, "LLC": 1 << 21, "DRAM": 1 << 26, "tiny": 1 << 14}
DTYPES = {"float32": np.dtype(np.float32), "float16": np.dtype(np.float16), "bfloat16": np.dtype(np.uint16)}
TYPES = [t for t in DECODERS if t not in (QType.F32, QType.F64)]
# Rows as a model has them: contenders that want two dimensions get this width.
WIDTH = 4096


class Case(NamedTuple):
    """One measurement: a type decoded to a dtype, so many weights at a time."""

    qtype: QType
    dtype: str
    size: str

    @property
    def weights(self) -> int:
        """Values in the output."""
        return SIZES[self.size]

    @property
    def out_bytes(self) -> int:
        """Bytes of the output."""
        return self.weights * DTYPES[self.dtype].itemsize


@functools.cache
def _tile(qtype: QType) -> npt.NDArray[np.uint8]:
    """16 Ki values' worth of the sample model's blocks of a type, repeated where it has fewer."""
    with path_or_sample(None) as path, open_gguf(path) as f:
        tensor = max((t for t in f.tensors.values() if t.qtype == qtype), key=lambda t: t.size)
        return np.resize(tensor.packed(), SIZES["tiny"] // qtype.block_size * qtype.block_bytes)


def source(case: Case) -> npt.NDArray[np.uint8]:
    """Blocks of the case, uint8 (rows, bytes per row)."""
    tile = _tile(case.qtype)
    return np.tile(tile, case.weights // SIZES["tiny"]).reshape(case.weights // WIDTH, -1)


def verdict(case: Case, got: npt.NDArray[Any]) -> str:
    """How a contender's output compares with the reference: ``bits``, ``close`` (rounded otherwise) or ``wrong``."""
    tile = _tile(case.qtype)
    want = np.empty(SIZES["tiny"], DTYPES[case.dtype])
    decode(tile, case.qtype, case.dtype, want)
    got = np.ascontiguousarray(got).reshape(-1, SIZES["tiny"])
    unsigned = f"u{want.dtype.itemsize}"
    if got.dtype.itemsize == want.dtype.itemsize and (got.view(unsigned) == want.view(unsigned)).all():
        return "bits"
    step = {"float32": 1e-5, "float16": 1e-2, "bfloat16": 5e-2}[case.dtype]
    values, wanted = _widened(got[:1], case.dtype), _widened(want, case.dtype)
    scale = np.abs(wanted).max()
    return "close" if np.abs(values - wanted).max() <= step * scale else "wrong"


def _widened(a: npt.NDArray[Any], dtype: str) -> npt.NDArray[np.float32]:
    if dtype == "bfloat16":
        return (a.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return a.astype(np.float32)
