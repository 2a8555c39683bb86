"""Arrays that callers hand over: what is taken for values, and what may be written into."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["check_layout", "from_torch", "given_array", "is_torch", "masks_exist", "refuse_masked"]


def given_array(value: object, label: str, dtype: npt.DTypeLike | None = None) -> npt.NDArray[Any]:
    """What a caller gave as values, as an ndarray; without a copy where it is one (of `dtype`, if that is given).

    Parameters
    ----------
    value : array_like
        What was given; a torch tensor on the CPU as well, whose bfloat16 values become float32.
    label : str
        What messages call it: the argument, the tensor.
    dtype : dtype, optional
        What to convert to. Values that don't fit become infinite, as numpy has it, without its warning.

    Raises
    ------
    ValueError
        If values are masked: whatever lies under a mask is none of the caller's numbers.
    """
    refuse_masked(value, label)
    if is_torch(value):
        value, bfloat16 = from_torch(value, label)
        if bfloat16:
            value = (value.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(all="ignore"):
        return np.asarray(value, dtype)


def is_torch(value: object) -> bool:
    """Whether this is a torch tensor or parameter, recognised without importing torch."""
    return hasattr(value, "detach") and hasattr(value, "layout") and hasattr(value, "untyped_storage")


def from_torch(value: Any, label: str) -> tuple[npt.NDArray[Any], bool]:
    """The memory of a dense torch tensor on the CPU as an array, and whether it holds bfloat16 patterns (as uint16).

    Raises
    ------
    TypeError, ValueError
        If it lies elsewhere, or in a layout or dtype that numpy has no form of.
    """
    import torch

    if value.device.type != "cpu":
        raise ValueError(f"{label}: the tensor is on {value.device}; move it to the CPU first, with .cpu()")
    if value.layout is not torch.strided:
        raise TypeError(f"{label}: the tensor is {value.layout}; make it dense first, with .to_dense()")
    plain = value.detach()
    bfloat16 = plain.dtype == torch.bfloat16
    try:
        array = (plain.view(torch.int16) if bfloat16 else plain.resolve_conj().resolve_neg()).numpy()
    except (TypeError, RuntimeError) as error:
        raise TypeError(f"{label}: a torch tensor of {value.dtype} has no numpy form: {error}") from None
    return (array.view(np.uint16) if bfloat16 else array), bfloat16


def refuse_masked(value: object, label: str) -> None:
    """Raise ValueError if values of an array, or of arrays in a list, are masked."""
    if not masks_exist():
        return
    if isinstance(value, np.ma.MaskedArray):
        hidden = int(np.count_nonzero(np.ma.getmaskarray(value)))
        if hidden:
            raise ValueError(f"{label}: {hidden} of {value.size} values are masked; fill them first")
    elif isinstance(value, (list, tuple)):
        for item in value:
            if isinstance(item, (list, tuple, np.ma.MaskedArray)):
                refuse_masked(item, label)


def masks_exist() -> bool:
    """Whether there can be masked arrays: who has one has imported numpy.ma, which costs others 10 MB and 10 ms."""
    return "numpy.ma" in sys.modules


def check_layout(
    out: object, shape: tuple[int, ...], *, label: str = "", reads: Iterable[npt.NDArray[Any]] = ()
) -> None:
    """Refuse an `out` that isn't exactly the memory that a result needs; its dtype is the caller's to check.

    Parameters
    ----------
    out : ndarray
        Where a caller wants the values.
    shape : tuple of int
        Shape of the values.
    label : str
        What is being decoded, for messages.
    reads : iterable of ndarray
        Arrays that are read while `out` is written.

    Raises
    ------
    TypeError, ValueError
        If it is no array, or of another shape, or strided, read-only, unaligned or masked, or overlaps what is read.
    """
    of = f"{label}: " if label else ""
    if type(out) is not np.ndarray:
        if not isinstance(out, np.ndarray):
            raise TypeError(f"{of}out must be a numpy array, not {type(out).__name__}")
        if masks_exist() and isinstance(out, np.ma.MaskedArray):
            raise TypeError(f"{of}out is a masked array, whose mask would hide the values; give its data")
    flags = out.flags
    if out.shape != shape:
        raise ValueError(f"{of}out has shape {out.shape}, the values have {shape}")
    if not flags.carray:  # all three in one
        if not flags.c_contiguous:
            raise ValueError(f"{of}out isn't C-contiguous, and values are never copied behind the caller's back")
        if not flags.writeable:
            raise ValueError(f"{of}out is read-only")
        raise ValueError(f"{of}out isn't aligned to its {out.itemsize}-byte items")
    for array in reads:
        if np.may_share_memory(array, out):
            raise ValueError(f"{of}out overlaps what is read")
