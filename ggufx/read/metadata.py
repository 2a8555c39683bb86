"""A GGUF file's metadata as a mapping whose values are decoded when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, TypeVar, overload

import numpy as np

from ..errors import GGUFError, UnknownNameError
from ..formats.value_types import ValueType
from . import walk
from .index import Field

if TYPE_CHECKING:
    import numpy.typing as npt

    from .sources import HeaderBuffer, Source

__all__ = ["ArrayList", "BytesView", "FieldType", "Metadata", "StringArray", "TypesView", "ValueType"]


T = TypeVar("T")


class FieldType(NamedTuple):
    """How a metadata field is declared.

    Attributes
    ----------
    type : ValueType
        The value's type.
    item : ValueType or None
        For an array, the type of its items; empty arrays have one too.
    length : int or None
        For an array, the number of its items.
    """

    type: ValueType
    item: ValueType | None = None
    length: int | None = None

    def __str__(self) -> str:
        return self.type.name if self.item is None else f"{self.item.name}[{self.length}]"


def _equal(a: Any, b: Any) -> bool:
    """Whether two values are the same, arrays of numbers with lists of them too."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        if not isinstance(a, (np.ndarray, list, tuple)) or not isinstance(b, (np.ndarray, list, tuple)):
            return False
        a, b = np.asarray(a), np.asarray(b)
        return bool(a.shape == b.shape and ((a == b) | (a != a) & (b != b)).all())
    return bool(a == b or (a != a and b != b))


class _Layout(NamedTuple):
    """How numbers are laid out in one file."""

    width: int
    big: bool
    label: str

    @property
    def order(self) -> Literal["<", ">"]:
        return ">" if self.big else "<"


class _LazySequence(Sequence[T]):
    """Items made on access; equal to any sequence of equal items."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Sequence) and not isinstance(other, (str, bytes)):
            return len(self) == len(other) and all(_equal(a, b) for a, b in zip(self, other, strict=True))
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def _shown(self) -> Iterator[str]:
        return map(repr, self[:3])

    def __repr__(self) -> str:
        more = ", ..." if len(self) > 3 else ""
        return f"<{type(self).__name__} of {len(self)}: [{', '.join(self._shown())}{more}]>"


class StringArray(_LazySequence[str]):
    """An array of strings, decoded one at a time on access.

    Bytes that aren't UTF-8 come as lone surrogates (``surrogateescape``), which
    ``s.encode("utf-8", "surrogateescape")`` turns back; :attr:`bytes` gives the stored bytes directly.
    Slices are StringArrays too. Equal to any sequence of the same strings.
    """

    __slots__ = ("_lengths", "_raw", "_starts")

    def __init__(
        self, raw: HeaderBuffer | bytes, starts: npt.NDArray[np.uint64], lengths: npt.NDArray[np.uint64]
    ) -> None:
        self._raw = raw
        self._starts = starts
        self._lengths = lengths

    @property
    def bytes(self) -> BytesView:
        """The same strings as a lazy sequence of ``bytes``."""
        return BytesView(self)

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> StringArray: ...
    def __getitem__(self, index: int | slice) -> str | StringArray:
        if isinstance(index, slice):
            return StringArray(self._raw, self._starts[index], self._lengths[index])
        item: str = self._at(index).decode("utf-8", "surrogateescape")
        return item

    def _at(self, index: int) -> Any:
        start = int(self._starts[index])
        return bytes(self._raw[start : start + int(self._lengths[index])])

    def _each(self) -> Iterator[Any]:
        # In pieces: plain ints from tolist() are several times faster than numpy scalars, but take memory.
        for i in range(0, len(self), 4096):
            starts, lengths = self._starts[i : i + 4096].tolist(), self._lengths[i : i + 4096].tolist()
            raw = self._raw
            for start, length in zip(starts, lengths, strict=True):
                yield raw[start : start + length]

    def __iter__(self) -> Iterator[str]:
        for item in self._each():
            yield item.decode("utf-8", "surrogateescape")

    def __reduce__(self) -> Any:
        return _packed_strings, (list(self._each()),)


class BytesView(_LazySequence[bytes]):
    """The stored bytes of a :class:`StringArray`, one ``bytes`` at a time."""

    __slots__ = ("_strings",)

    def __init__(self, strings: StringArray) -> None:
        self._strings = strings

    def __len__(self) -> int:
        return len(self._strings)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> BytesView: ...
    def __getitem__(self, index: int | slice) -> bytes | BytesView:
        if isinstance(index, slice):
            return BytesView(self._strings[index])
        item: bytes = self._strings._at(index)
        return item

    def __iter__(self) -> Iterator[bytes]:
        return self._strings._each()


def _packed_strings(items: list[bytes]) -> StringArray:
    """Build a StringArray that owns its bytes."""
    lengths = np.array([len(item) for item in items], np.uint64)
    starts = np.zeros(len(items), np.uint64)
    np.cumsum(lengths[:-1], out=starts[1:])
    return StringArray(b"".join(items), starts, lengths)


class ArrayList(_LazySequence[Any]):
    """An array of arrays: each item is an ndarray, a StringArray or another ArrayList, made on access."""

    __slots__ = ("_layout", "_raw", "_starts")

    def __init__(self, raw: HeaderBuffer, starts: npt.NDArray[np.uint64], layout: _Layout) -> None:
        self._raw = raw
        self._starts = starts
        self._layout = layout

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> ArrayList: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return ArrayList(self._raw, self._starts[index], self._layout)
        kind, count, start = self._head(index)
        return _array(self._raw, kind, count, start, self._layout)

    def _head(self, index: int) -> tuple[ValueType, int, int]:
        start = int(self._starts[index])
        head = Struct(self._layout.order + ("II" if self._layout.width == 4 else "IQ"))
        kind, count = head.unpack_from(self._raw, start)
        if kind not in ValueType.__members__.values():
            _changed(f"the type of array {index}", self._layout)
        return ValueType(kind), count, start + head.size

    def field_type(self, index: int) -> FieldType:
        """How item `index` is declared."""
        kind, count, _ = self._head(index)
        return FieldType(ValueType.ARRAY, kind, count)

    def _shown(self) -> Iterator[str]:
        return (str(self.field_type(i)) for i in range(min(3, len(self))))

    def __reduce__(self) -> Any:
        return list, (list(self),)


def _changed(what: str, layout: _Layout) -> NoReturn:
    raise GGUFError(f"{layout.label}: {what} isn't what it was when the header was checked: the file was changed since")


def _array(raw: HeaderBuffer, kind: ValueType, count: int, start: int, layout: _Layout) -> Any:
    """Make the array of `count` items of `kind` whose first item begins at `start`; the header is checked already."""
    least = {ValueType.STRING: layout.width, ValueType.ARRAY: 4 + layout.width}.get(kind) or kind.nbytes
    if count > (len(raw) - start) // least:
        _changed(f"the length of an array, {count},", layout)
    if kind == ValueType.STRING:
        starts = np.empty(count + 1, np.uint64)
        _, done = walk.walk_strings(raw, start, len(raw), count, layout.width, layout.big, starts)
        if done < count:
            _changed(f"string {done} of {count}", layout)
        lengths = np.diff(starts) - np.uint64(layout.width)
        return StringArray(raw, starts[:-1], lengths)
    if kind == ValueType.ARRAY:
        starts = np.empty(count, np.uint64)
        at, status = walk.walk_arrays(raw, start, len(raw), count, layout.width, layout.big, 1 << 10, 1 << 62, starts)
        if status:
            _changed(f"the array of {count} arrays before byte {at}", layout)
        return ArrayList(raw, starts, layout)
    dtype = np.dtype(kind.code).newbyteorder(layout.order)
    values = np.frombuffer(raw, dtype, count, start) if count else np.empty(0, dtype)
    if kind == ValueType.BOOL:
        values = values != 0  # a byte other than 0 and 1 must not become a numpy bool unchanged
    values.flags.writeable = False
    return values


def _field(fields: dict[str, Field], key: str, label: str = "the metadata") -> Field:
    try:
        return fields[key]
    except KeyError:
        raise UnknownNameError(f"{label} has no key {key!r}", key, fields) from None


class TypesView(Mapping[str, FieldType]):
    """The declared type of each metadata field."""

    __slots__ = ("_fields",)

    def __init__(self, fields: dict[str, Field]) -> None:
        self._fields = fields

    def __getitem__(self, key: str) -> FieldType:
        field = _field(self._fields, key)
        return FieldType(field.type) if field.item is None else FieldType(field.type, field.item, field.length)

    def __len__(self) -> int:
        return len(self._fields)

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{key!r}: {kind}" for key, kind in self.items()) + "}"


class Metadata(Mapping[str, Any]):
    """The metadata of one file, in file order; values are decoded on first use.

    Numbers come as ``int``, ``float`` or ``bool``, strings as ``str``; arrays of numbers as read-only ndarrays over
    the file, arrays of strings as :class:`StringArray`, arrays of arrays as :class:`ArrayList`. Keys and strings that
    aren't UTF-8 hold lone surrogates (``surrogateescape``); :meth:`raw` and :attr:`StringArray.bytes` give their bytes.
    """

    __slots__ = ("_fields", "_layout", "_source", "_values")

    def __init__(self, source: Source, fields: dict[str, Field], version: int) -> None:
        self._source = source
        self._fields = fields
        self._layout = _Layout(4 if version == 1 else 8, source.big_endian, source.label)
        self._values: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        field = self._fields.get(key) or _field(self._fields, key, self._source.label)
        raw = self._source.header
        if key in self._values:
            return self._values[key]
        if field.type == ValueType.STRING:
            value: Any = bytes(raw[field.start : field.stop]).decode("utf-8", "surrogateescape")
        elif field.item is not None:
            value = _array(raw, field.item, field.length, field.start, self._layout)
        else:
            form = self._layout.order + field.type.struct_code
            return Struct(form).unpack_from(raw, field.start)[0]
        self._values[key] = value
        return value

    def __len__(self) -> int:
        return len(self._fields)

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __contains__(self, key: object) -> bool:
        return key in self._fields

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)

    def __eq__(self, other: object) -> bool:
        """Whether keys and values are the same, in whatever order; arrays as a whole, NaN as equal to NaN."""
        if not isinstance(other, Mapping):
            return NotImplemented
        return self.keys() == other.keys() and all(_equal(self[key], other[key]) for key in self)

    __hash__ = None  # type: ignore[assignment]

    @property
    def types(self) -> TypesView:
        """The declared type of each field, a mapping of key to :class:`FieldType`."""
        return TypesView(self._fields)

    @property
    def layout(self) -> tuple[Literal["little", "big"], int]:
        """Byte order of the stored values, and the width of lengths and counts in bytes."""
        return "big" if self._layout.big else "little", self._layout.width

    def raw(self, key: str) -> npt.NDArray[np.uint8]:
        """Bytes of the value of `key` as it is stored: read-only bytes in the file's byte order.

        A string is its bytes without the length; an array is its item type, its count and its items.
        """
        field = _field(self._fields, key, self._source.label)
        start = field.start if field.type == ValueType.STRING else field.begin
        raw = np.frombuffer(self._source.header, np.uint8)[start : field.stop]
        raw.flags.writeable = False
        return raw

    def forget(self) -> None:
        """Drop the decoded values that hold the file's bytes."""
        self._values.clear()

    def __repr__(self) -> str:
        def short(key: str) -> str:
            kind = self.types[key]
            if kind.item is not None or self._source.closed:
                return f"<{kind}>"
            text = repr(self[key])
            return text if len(text) <= 60 else text[:57] + "..."

        return "{" + ", ".join(f"{key!r}: {short(key)}" for key in self) + "}"

    def __reduce__(self) -> Any:
        return dict, (dict(self),)
