"""A reader with the names and attributes of the `gguf` package's ``GGUFReader``, without that package.

For programs written for it: ``from ggufx import GGUFReader``. `ggufx.open` is the reader to write new programs with.
"""

from __future__ import annotations

import os
import sys
from collections import OrderedDict
from enum import IntEnum
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ..formats.tensor_types import QType
from ..formats.value_types import ValueType
from . import headers
from .lazylists import Span, view
from .quants import quant_shape_to_byte_shape

__all__ = ["GGUFEndian", "GGUFReader", "ReaderField", "ReaderTensor"]

MAGIC = 0x46554747  # "GGUF", read little-endian
VERSIONS = (2, 3)


class GGUFEndian(IntEnum):
    """Byte orders, named as `gguf` does."""

    LITTLE = 0
    BIG = 1


class ReaderField(NamedTuple):
    """One metadata field, or the info of a tensor, in pieces.

    Attributes
    ----------
    offset : int
        Where it begins in the file.
    name : str
        The key or tensor name.
    parts : list of ndarray
        Every number and string of it, as arrays over the file.
    data : list of int
        Indices of the parts that make up the value.
    types : list of ValueType
        The value's type; for an array, ARRAY and the type of its items.
    """

    offset: int
    name: str
    parts: list[npt.NDArray[Any]] = []  # noqa: RUF012
    data: list[int] = [-1]  # noqa: RUF012
    types: list[ValueType] = []  # noqa: RUF012

    def contents(self, index_or_slice: int | slice = slice(None)) -> Any:
        """Return the value, or the picked elements of an array, as Python objects.

        Parameters
        ----------
        index_or_slice : int or slice
            Which elements of an array; ignored for other values.

        Returns
        -------
        object
            A number, a bool, a str, or a list of them.

        Raises
        ------
        UnicodeDecodeError
            If a string isn't UTF-8.
        """
        if not self.types:
            return None
        decode = _text if self.types[-1] == ValueType.STRING else _number
        if self.types[0] != ValueType.ARRAY:
            return decode(self.parts[-1])
        values = headers.contents(self, index_or_slice)
        if values is not NotImplemented:
            return values
        if isinstance(index_or_slice, slice):
            return [decode(self.parts[i]) for i in self.data[index_or_slice]]
        return decode(self.parts[self.data[index_or_slice]])


def _text(part: npt.NDArray[Any]) -> str:
    return str(part.tobytes(), "utf-8")


def _number(part: npt.NDArray[Any]) -> Any:
    return part.tolist()[0]


class ReaderTensor(NamedTuple):
    """One tensor.

    Attributes
    ----------
    name : str
        Its name.
    tensor_type : QType
        Its type.
    shape : ndarray of uint64
        Dimensions as the file has them, the row length first.
    n_elements : int
        Values.
    n_bytes : int
        Bytes in the file.
    data_offset : int
        Where its data begins in the file.
    data : ndarray
        Its data over the file, in numpy's order of dimensions: numbers typed, blocks and BF16 as uint8.
    field : ReaderField
        Its info.
    """

    name: str
    tensor_type: QType
    shape: npt.NDArray[np.uint64]
    n_elements: int
    n_bytes: int
    data_offset: int
    data: npt.NDArray[Any]
    field: ReaderField


_NAMES = headers.Names(
    ReaderField,
    ReaderTensor,
    ValueType,
    QType,
    {kind: (kind.block_size, kind.block_bytes) for kind in QType},
    quant_shape_to_byte_shape,
)


class GGUFReader:
    """Reads a GGUF file of version 2 or 3, of either byte order.

    Parameters
    ----------
    path : path-like
        The file.
    mode : {"r", "r+", "c"}
        How it is mapped: read-only, writing to the file, or copy-on-write.

    Attributes
    ----------
    data : memmap of uint8
        The whole file.
    fields : OrderedDict of str to ReaderField
        The metadata; the counts of the header are there as ``GGUF.version``, ``GGUF.tensor_count``, ``GGUF.kv_count``.
    tensors : list of ReaderTensor
        The tensors.
    byte_order : {"I", "S"}
        Whether the file's byte order is this machine's (I) or the other (S).
    endianess : GGUFEndian
        The file's byte order (spelled as `gguf` spells it).
    alignment, data_offset : int
        Alignment of the tensors' data in bytes, and where it begins.

    Raises
    ------
    ValueError, KeyError
        If the file isn't what it says; where `gguf` raises IndexError, so does this, of the class `GGUFError` too.
    """

    byte_order: Literal["I", "S"] = "I"
    alignment: int = 32
    data_offset: int
    gguf_scalar_to_np: dict[ValueType, Any] = {  # noqa: RUF012
        kind: np.bool_ if kind is ValueType.BOOL else np.dtype(kind.code).type for kind in ValueType if kind.code
    }

    def __init__(self, path: os.PathLike[str] | str, mode: Literal["r", "r+", "c"] = "r") -> None:
        self.data = np.memmap(path, mode=mode)
        self.fields: OrderedDict[str, ReaderField] = OrderedDict()
        self.tensors: list[ReaderTensor] = []
        if len(self.data) < 24 or int.from_bytes(self.data[:4].tobytes(), "little") != MAGIC:
            raise ValueError("GGUF magic invalid")
        version = int.from_bytes(self.data[4:8].tobytes(), sys.byteorder)
        if not version & 0xFFFF:
            self.byte_order = "S"
            version = int.from_bytes(self.data[4:8].tobytes()[::-1], sys.byteorder)
        if version not in VERSIONS:
            raise ValueError(f"Sorry, file appears to be version {version} which we cannot handle")
        is_little = (sys.byteorder == "little") == (self.byte_order == "I")
        self.endianess = GGUFEndian.LITTLE if is_little else GGUFEndian.BIG
        u32, u64 = (
            np.dtype(t).newbyteorder("S") if self.byte_order == "S" else np.dtype(t) for t in (np.uint32, np.uint64)
        )
        heads = (
            ("version", Span(4, u32, 1), ValueType.UINT32),
            ("tensor_count", Span(8, u64, 1), ValueType.UINT64),
            ("kv_count", Span(16, u64, 1), ValueType.UINT64),
        )
        for name, span, kind in heads:
            self._push_field(ReaderField(span.start, f"GGUF.{name}", [view(self.data, *span)], [0], [kind]))
        tensor_count, kv_count = (int(self.fields[f"GGUF.{name}"].parts[0][0]) for name in ("tensor_count", "kv_count"))
        offs = headers.build_fields(self, 24, kv_count, _NAMES)
        offs, infos = headers.build_tensor_info(self, offs, tensor_count, _NAMES)
        alignment = self.fields.get("general.alignment")
        if alignment is not None:
            if alignment.types != [ValueType.UINT32]:
                raise ValueError("Bad type for general.alignment field")
            self.alignment = int(alignment.parts[-1][0])
            if self.alignment == 0 or self.alignment & (self.alignment - 1):
                raise ValueError("Invalid alignment: must be a non-zero power of two")
        self.data_offset = offs + -offs % self.alignment
        headers.build_tensors(self, self.data_offset, infos, _NAMES)

    def get_field(self, key: str) -> ReaderField | None:
        """Return a metadata field by its key, or None."""
        return self.fields.get(key)

    def get_tensor(self, idx: int) -> ReaderTensor:
        """Return a tensor by its place in the file."""
        return self.tensors[idx]

    def _push_field(self, field: ReaderField, skip_sum: bool = False) -> int:
        if field.name in self.fields:
            raise KeyError(f"Duplicate {field.name} already in list at offset {field.offset}")
        self.fields[field.name] = field
        return 0 if skip_sum else sum(part.nbytes for part in field.parts)

    def _get_field_parts(
        self, offset: int, raw_type: int
    ) -> tuple[int, list[npt.NDArray[Any]], list[int], list[ValueType]]:
        """Take a value apart, nested arrays flattened: its size, parts, indices of the data, types."""
        return headers.take_apart(self, offset, raw_type, _NAMES)
