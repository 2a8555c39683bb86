"""Dtypes by whatever people call them: numpy's, torch's, ml_dtypes', and the short names of the field."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["BFLOAT16", "is_bfloat16", "named_dtype"]

BFLOAT16 = "bfloat16"
"""What numpy has no dtype for; arrays of it hold bit patterns as uint16, or ml_dtypes' own type."""

# Names that numpy doesn't know, or knows as something else ("f16" is its float128).
_NAMES = {
    "f64": "float64", "fp64": "float64",
    "f32": "float32", "fp32": "float32",
    "f16": "float16", "fp16": "float16",
    "bf16": BFLOAT16, "bfloat16": BFLOAT16,
}  # fmt: skip


def is_bfloat16(dtype: np.dtype[Any]) -> bool:
    """Whether this is ml_dtypes' type, recognised without importing it: numpy itself has no dtype of this name."""
    return dtype.name == BFLOAT16 and dtype.itemsize == 2


def named_dtype(dtype: object) -> object:
    """Translate what numpy doesn't understand.

    Parameters
    ----------
    dtype : dtype-like, torch.dtype or str
        ``np.float32``, ``"float32"``, ``"f32"``, ``"bf16"``, ``torch.bfloat16`` ...

    Returns
    -------
    object
        ``"bfloat16"``, or what :class:`numpy.dtype` takes.
    """
    if isinstance(dtype, str):
        name = dtype.removeprefix("torch.").lower()
        return _NAMES.get(name, name if name != dtype.lower() else dtype)
    kind = type(dtype)
    if kind.__name__ == "dtype" and kind.__module__ == "torch":
        return named_dtype(str(dtype))
    return dtype
