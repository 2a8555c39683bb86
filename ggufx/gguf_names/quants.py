"""Quantizing and dequantizing under the names and with the signatures of the `gguf` package's ``gguf.quants``.

For programs that would import them directly: ``from ggufx.quants import dequantize``. ggufx's own calls,
`ggufx.dequantize` and `ggufx.quantize`, take an output array, other dtypes and threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..codec import decode, encode
from ..codec.arrays import refuse_masked
from ..formats.tensor_types import QType

__all__ = ["QuantError", "dequantize", "quant_shape_from_byte_shape", "quant_shape_to_byte_shape", "quantize"]


class QuantError(Exception):
    """An array that can't be quantized to a type."""


def _known(qtype: QType | int, what: str) -> QType:
    try:
        known = QType(qtype)
    except ValueError:
        known = None
    if known is None or known in (QType.I8, QType.I16, QType.I32, QType.I64, QType.F64):
        raise NotImplementedError(f"{what} for {getattr(qtype, 'name', qtype)} is not implemented")
    return known


def quant_shape_to_byte_shape(shape: Sequence[int], quant_type: QType | int) -> tuple[int, ...]:
    """Shape in bytes of an array of `shape` values.

    Parameters
    ----------
    shape : sequence of int
        Values, the row last.
    quant_type : QType or int
        The tensor type.

    Returns
    -------
    tuple of int
        The same, with the bytes of a row last.

    Raises
    ------
    ValueError
        If a row isn't whole blocks.
    """
    kind = QType(quant_type)
    blocks, rest = divmod(shape[-1], kind.block_size)
    if rest:
        raise ValueError(
            f"Quantized tensor row size ({shape[-1]}) is not a multiple of {kind.name} block size ({kind.block_size})"
        )
    return (*shape[:-1], blocks * kind.block_bytes)


def quant_shape_from_byte_shape(shape: Sequence[int], quant_type: QType | int) -> tuple[int, ...]:
    """Shape in values of an array of `shape` bytes.

    Parameters
    ----------
    shape : sequence of int
        Bytes, the row last.
    quant_type : QType or int
        The tensor type.

    Returns
    -------
    tuple of int
        The same, with the values of a row last.

    Raises
    ------
    ValueError
        If a row isn't whole blocks.
    """
    kind = QType(quant_type)
    blocks, rest = divmod(shape[-1], kind.block_bytes)
    if rest:
        raise ValueError(
            f"Quantized tensor bytes per row ({shape[-1]}) is not a multiple of {kind.name} type size "
            f"({kind.block_bytes})"
        )
    return (*shape[:-1], blocks * kind.block_size)


def dequantize(data: npt.NDArray[Any], qtype: QType | int) -> npt.NDArray[np.float32]:
    """Decode packed blocks to float32.

    Parameters
    ----------
    data : ndarray
        The packed bytes, shape (..., bytes per row); of any strides.
    qtype : QType, gguf.GGMLQuantizationType or int
        The tensor type.

    Returns
    -------
    ndarray of float32
        Shape (..., values per row). F32 is a view of `data`, everything else a new array.

    Raises
    ------
    NotImplementedError
        For integer types, F64 and unknown ids.
    ValueError
        If a row isn't whole blocks.
    """
    kind = _known(qtype, "Dequantization")
    refuse_masked(data, "data")
    if kind is QType.F32:
        return data.view(np.float32)
    if kind is QType.F16:
        return data.view(np.float16).astype(np.float32)
    return decode.dequantize(np.ascontiguousarray(data).view(np.uint8).view(np.ndarray), kind)


def quantize(data: npt.NDArray[Any], qtype: QType | int) -> npt.NDArray[Any]:
    """Encode values to packed blocks.

    Parameters
    ----------
    data : ndarray
        Values, shape (..., values per row); of any strides and floating-point dtype.
    qtype : QType, gguf.GGMLQuantizationType or int
        The tensor type.

    Returns
    -------
    ndarray
        uint8 of shape (..., bytes per row); for F32 and F16 an array of that dtype, `data` itself where it is one.

    Raises
    ------
    NotImplementedError
        For integer types, F64 and unknown ids, and for types that need an importance matrix.
    GGUFError
        If a value isn't finite.
    QuantError
        If a row isn't whole blocks.
    """
    kind = _known(qtype, "Quantization")
    refuse_masked(data, "data")
    if kind is QType.F32:
        return data.astype(np.float32, copy=False)
    if kind is QType.F16:
        return data.astype(np.float16, copy=False)
    if data.shape[-1] % kind.block_size:
        raise QuantError(f"Can't quantize tensor with shape {data.shape} to {kind.name}")
    if kind in encode.NEEDS_IMATRIX:
        raise NotImplementedError(f"Quantization for {kind.name} needs an importance matrix: see ggufx.quantize")
    return encode.quantize(np.ascontiguousarray(data, np.float32), kind)
