"""What a tensor of a file will be: its logical shape, its type and its bytes, which have to agree.

Whatever a caller gives (an array, packed blocks, an opened file's tensor, a promise of bytes) becomes an
:class:`~ggufx.write.stream.Entry`. Shapes count values, never bytes.
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np

from ..codec.arrays import from_torch, given_array, is_torch
from ..errors import GGUFError, GGUFWarning
from ..formats.tensor_types import QType, nbytes
from ..read.tensor import Tensor
from .stream import Entry, Source

__all__ = ["make_entry"]

_FROM_DTYPE = {
    "f4": QType.F32,
    "f2": QType.F16,
    "f8": QType.F64,
    "i1": QType.I8,
    "i2": QType.I16,
    "i4": QType.I32,
    "i8": QType.I64,
}
_FLOATS = frozenset({QType.F32, QType.F16, QType.F64, QType.BF16})
# Values converted at once where the byte order differs.
SWAP_VALUES = 1 << 20
MAX_DIMS = 4
# Readers count values and bytes in signed 64-bit numbers.
LARGEST = (1 << 63) - 1


def make_entry(
    name: str, data: Any, shape: Sequence[int] | None, qtype: QType | int | str | None, byteorder: str
) -> Entry:
    """Plan a tensor of a file in `byteorder`, from what :meth:`ggufx.Writer.add` takes.

    Raises
    ------
    TypeError, ValueError
        If type, shape and bytes don't agree; the message names the tensor.
    """
    kind = None if qtype is None else _qtype(name, qtype)
    if isinstance(data, Tensor):
        return _from_tensor(name, data, shape, kind, byteorder)
    if is_torch(data):
        data, is_bfloat16 = from_torch(data, f"tensor {name!r}")
        if is_bfloat16 and kind in (None, QType.BF16):
            kind = QType.BF16
        elif is_bfloat16:
            data = (data.astype(np.uint32) << 16).view(np.float32)
    if callable(data):
        return _planned(name, data, shape, kind, byteorder)
    return _from_array(name, data, shape, kind, byteorder)


def _planned(name: str, source: Source, shape: Sequence[int] | None, kind: QType | None, byteorder: str) -> Entry:
    if shape is None or kind is None:
        raise TypeError(f"tensor {name!r}: data that comes later needs shape and qtype")
    dims = _dims(name, shape)
    size = _size(name, dims, kind)
    return Entry(name, dims, kind, size, lambda: _checked(name, source(), dims, kind), _swapped(kind, byteorder))


def _checked(name: str, given: Any, dims: tuple[int, ...], kind: QType) -> Any:
    """What a source gave; arrays have to be of the tensor's type and shape, and become little-endian as blocks are."""
    if isinstance(given, (Iterator, list, tuple)):
        return (_little(name, piece, dims, kind) for piece in given)
    return _little(name, given, dims, kind)


def _little(name: str, piece: Any, dims: tuple[int, ...], kind: QType) -> Any:
    if not isinstance(piece, (np.ndarray, np.generic)):
        return piece
    array = given_array(piece, f"tensor {name!r}")
    packed = array.dtype == np.uint8
    planned = _byte_shape(dims, kind) if packed else dims
    if not _fits_into(array.shape, planned):
        raise GGUFError(
            f"tensor {name!r}: its source gave an array of shape {array.shape}, where shape {planned}"
            + (f" (in bytes; {dims} values of {kind.name})" if packed else "")
            + " was planned"
        )
    if packed:
        return array
    own = QType.BF16 if kind is QType.BF16 and _is_u16(array) else _own_type(array.dtype)
    if own is not kind:
        raise TypeError(
            f"tensor {name!r}: its source gave an array of {array.dtype}, where {kind.name} needs "
            + ("packed bytes (uint8)" if kind.is_quantized else f"{_dtype_name(kind)} or bytes")
        )
    return np.concatenate([np.zeros(0, np.uint8), *_typed_pieces(array, "<")]) if _foreign(array) else array


def _byte_shape(dims: tuple[int, ...], kind: QType) -> tuple[int, ...]:
    return (*dims[:-1], dims[-1] // kind.block_size * kind.block_bytes) if dims else (kind.block_bytes,)


def _fits_into(shape: tuple[int, ...], planned: tuple[int, ...]) -> bool:
    """Whether an array's values lie in the planned order: a flat one's do, others are runs of whole rows, matrices ...

    Sizes alone don't tell: a transposed matrix has as many bytes.
    """
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    return len(shape) < 2 or (len(shape) <= len(planned) and shape[1:] == planned[1 - len(shape) :])


def _foreign(array: np.ndarray[Any, Any]) -> bool:
    return array.dtype.name != "bfloat16" and bool(array.dtype != array.dtype.newbyteorder("<"))


def _is_u16(array: np.ndarray[Any, Any]) -> bool:
    return (array.dtype.kind, array.dtype.itemsize) == ("u", 2)


def _dtype_name(kind: QType) -> str:
    return next((str(np.dtype(code)) for code, own in _FROM_DTYPE.items() if own is kind), "bfloat16 or uint16")


def _from_array(name: str, data: Any, shape: Sequence[int] | None, kind: QType | None, byteorder: str) -> Entry:
    try:
        typed = isinstance(data, (np.ndarray, np.generic))
        array = given_array(data, f"tensor {name!r}") if typed else np.frombuffer(data, np.uint8)
    except TypeError:
        raise TypeError(
            f"tensor {name!r}: an array, a buffer, a tensor or a callable was expected, not {type(data).__name__}"
        ) from None
    own = _own_type(array.dtype)
    if array.dtype == np.uint8 and kind is not QType.I8:
        return _from_packed(name, array, shape, kind, byteorder, is_array=isinstance(data, np.ndarray))
    if kind is QType.BF16 and _is_u16(array):
        own = QType.BF16
    if own is None:
        raise TypeError(f"tensor {name!r}: no tensor type holds numpy's {array.dtype}")
    dims = _dims(name, array.shape)
    if shape is not None and _dims(name, shape) != dims:
        raise ValueError(f"tensor {name!r}: shape is {tuple(shape)}, but the array has shape {dims}")
    kind = own if kind is None else kind
    size = _size(name, dims, kind)
    if kind is own:
        order: Literal["<", ">"] = ">" if byteorder == "big" else "<"
        return Entry(name, dims, kind, size, lambda: _typed_pieces(array, order), None)
    if own not in _FLOATS:
        raise TypeError(f"tensor {name!r}: {array.dtype} values can't become {kind.name}; convert them first")
    _check_quantizable(name, kind)
    swap = _swapped(kind, byteorder)
    return Entry(name, dims, kind, size, lambda: _quantized(name, array, kind), swap)


def _from_packed(
    name: str,
    array: np.ndarray[Any, Any],
    shape: Sequence[int] | None,
    kind: QType | None,
    byteorder: str,
    *,
    is_array: bool,
) -> Entry:
    if kind is None:
        raise TypeError(f"tensor {name!r}: packed bytes need qtype, the tensor type they are of")
    logical = _logical_shape(array.shape, kind) if is_array else None
    if shape is None:
        hint = f"; shape={logical} fits these bytes" if logical else ""
        raise TypeError(f"tensor {name!r}: packed bytes need shape, the logical shape in values{hint}")
    dims = _dims(name, shape)
    meant = _logical_shape(dims, kind)
    given = is_array and kind.is_quantized and dims == array.shape
    if meant != dims and (given or (meant is not None and nbytes(meant, kind) == array.nbytes)):
        hint = f" (logical shape {meant})" if meant else ""
        raise ValueError(f"tensor {name!r}: {dims} is the shape in bytes; shape is counted in values{hint}")
    size = _size(name, dims, kind)
    if array.nbytes != size:
        hint = f"; these bytes are {logical} values" if logical else ""
        raise ValueError(
            f"tensor {name!r}: shape {dims} of {kind.name} is {size} bytes, but {array.nbytes} are given{hint}"
        )
    if is_array and not _fits_into(array.shape, _byte_shape(dims, kind)):
        raise ValueError(
            f"tensor {name!r}: shape is {dims}, but the array of shape {array.shape} holds {kind.name} values of shape "
            f"{logical}"
        )
    swap = _swapped(kind, byteorder)
    return Entry(name, dims, kind, size, lambda: np.ascontiguousarray(array), swap)


def _from_tensor(name: str, tensor: Tensor, shape: Sequence[int] | None, kind: QType | None, byteorder: str) -> Entry:
    dims, own = tensor.shape, tensor.qtype
    if shape is not None and tuple(shape) != dims:
        raise ValueError(f"tensor {name!r}: shape is {tuple(shape)}, but the tensor has shape {dims}")
    if kind is not None and kind != own:
        if not isinstance(own, QType) or not (own.is_quantized or own in _FLOATS):
            raise TypeError(f"tensor {name!r}: values of {tensor.label} can't become {kind.name}")
        _check_quantizable(name, kind)
        size = _size(name, dims, kind)
        swap = _swapped(kind, byteorder)
        return Entry(name, dims, kind, size, lambda: _quantized(name, tensor.dequantize(np.float32), kind), swap)
    swap = None
    if tensor.byteorder != byteorder:
        if not isinstance(own, QType):
            raise GGUFError(f"{tensor.label} has type id {own}, which isn't known, so its bytes can't be swapped")
        swap = own
    return Entry(name, dims, own, tensor.nbytes, lambda: _stored_pieces(tensor), swap)


def _qtype(name: str, spec: QType | int | str) -> QType:
    try:
        return QType.parse(spec)
    except (TypeError, ValueError) as error:
        raise type(error)(f"tensor {name!r}: {error}") from None


def _swapped(kind: QType, byteorder: str) -> QType | None:
    """The type whose fields have to be turned round, for blocks that are given in little-endian order."""
    return kind if byteorder == "big" else None


def _own_type(dtype: np.dtype[Any]) -> QType | None:
    """The tensor type of a numpy dtype; ml_dtypes' bfloat16 is recognized by name, without importing it."""
    if dtype.name == "bfloat16":
        return QType.BF16
    return _FROM_DTYPE.get(dtype.kind + str(dtype.itemsize))


def _dims(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    try:
        dims = tuple(operator.index(d) for d in shape)
    except TypeError:
        raise TypeError(f"tensor {name!r}: a shape of integers was expected, not {shape!r}") from None
    if any(d < 0 for d in dims):
        raise ValueError(f"tensor {name!r}: negative dimension in shape {dims}")
    if len(dims) > MAX_DIMS:
        raise ValueError(f"tensor {name!r}: {len(dims)} dimensions in shape {dims}, at most {MAX_DIMS} are possible")
    if math.prod(dims) > LARGEST or max(dims, default=0) > LARGEST:
        raise ValueError(f"tensor {name!r}: shape {dims} is more values than a file can hold")
    return dims


def _size(name: str, dims: tuple[int, ...], kind: QType) -> int:
    try:
        size = nbytes(dims, kind)
    except GGUFError as error:
        meant = _logical_shape(dims, kind)
        hint = f"; if {dims} counts bytes, the logical shape is {meant}" if meant else ""
        raise ValueError(f"tensor {name!r}, shape {dims}: {error}{hint}") from None
    if size > LARGEST:
        raise ValueError(f"tensor {name!r}: shape {dims} of {kind.name} is more bytes than a file can hold")
    return size


def _logical_shape(shape: tuple[int, ...], kind: QType) -> tuple[int, ...] | None:
    """The shape in values of an array of packed rows, or None where the rows aren't whole blocks."""
    if not shape or shape[-1] % kind.block_bytes:
        return None
    return (*shape[:-1], shape[-1] // kind.block_bytes * kind.block_size)


def _typed_pieces(array: np.ndarray[Any, Any], order: Literal["<", ">"]) -> Iterator[Any]:
    """The bytes of a typed array in the file's byte order, without copying where they are so already."""
    if array.dtype.name == "bfloat16":
        array = array.view(np.uint16)
    flat = np.ascontiguousarray(array).reshape(-1)
    wanted = flat.dtype.newbyteorder(order)
    if flat.dtype == wanted:
        yield flat.view(np.uint8)
        return
    for start in range(0, len(flat), SWAP_VALUES):
        yield flat[start : start + SWAP_VALUES].astype(wanted).view(np.uint8)


def _stored_pieces(tensor: Tensor) -> Iterator[Any]:
    """The stored bytes of a tensor, whose pages are let go when they are written."""
    yield tensor.packed()
    tensor.advise("dontneed")


def _check_quantizable(name: str, kind: QType) -> None:
    """Refuse at the call what would fail in the middle of writing."""
    from ..codec.encode import NEEDS_IMATRIX, QUANTIZABLE

    if kind not in QUANTIZABLE:
        raise TypeError(f"tensor {name!r}: {kind.name} isn't a type to quantize to; convert the values first")
    if kind in NEEDS_IMATRIX:
        raise ValueError(
            f"tensor {name!r}: {kind.name} needs an importance matrix; give blocks made by ggufx.quantize(imatrix=)"
        )


def _quantized(name: str, values: np.ndarray[Any, Any], kind: QType) -> Any:
    from ..codec.encode import quantize_quietly

    try:
        packed, overflow = quantize_quietly(values, kind)
    except GGUFError as error:
        raise GGUFError(f"tensor {name!r}: {error}") from error
    if overflow:
        warnings.warn(f"tensor {name!r}: {overflow}", GGUFWarning, stacklevel=2)
    return packed
