"""Metadata values to the bytes of a GGUF header: which type a Python value gets, and how it is laid out."""

from __future__ import annotations

import operator
from array import array
from collections.abc import Iterable, Mapping, Sequence
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

from ..codec.arrays import masks_exist, refuse_masked
from ..errors import GGUFError
from ..formats.value_types import ValueType
from ..read.metadata import Metadata

__all__ = ["Encoded", "Info", "Layout", "describe", "stored", "value_type"]

# Source types of numpy that have a GGUF type of their own.
_FROM_NUMPY = {vtype.code: vtype for vtype in ValueType if vtype.code and vtype is not ValueType.BOOL} | {
    "b1": ValueType.BOOL
}
_INTEGERS = frozenset(
    {
        ValueType.UINT8,
        ValueType.INT8,
        ValueType.UINT16,
        ValueType.INT16,
        ValueType.UINT32,
        ValueType.INT32,
        ValueType.UINT64,
        ValueType.INT64,
    }
)
_FLOATS = frozenset({ValueType.FLOAT32, ValueType.FLOAT64})
# Arrays nested deeper are a mistake (the reader's default limit is the same).
DEEPEST = 16


class Encoded(NamedTuple):
    """A value's declared type and the bytes that follow the type in the file."""

    type: ValueType
    payload: bytes


def value_type(spec: ValueType | int | str) -> ValueType:
    """The value type of a member, an id or a name (``"uint32"``, ``"float32"``, ``"string"``)."""
    if isinstance(spec, str):
        try:
            return ValueType[spec.upper()]
        except KeyError:
            names = ", ".join(v.name.lower() for v in ValueType)
            raise ValueError(f"{spec!r} is no GGUF value type; there are {names}") from None
    return ValueType(spec)


class Info(NamedTuple):
    """What a header says of a tensor: `shape` in numpy's order, `offset` from where the data section begins."""

    name: str
    shape: tuple[int, ...]
    qtype: int
    offset: int


class Layout:
    """How one file lays its header out: byte order, and the width of lengths (4 bytes in version 1, else 8)."""

    def __init__(self, byteorder: str = "little", version: int = 3) -> None:
        self.order = ">" if byteorder == "big" else "<"
        self.version = version
        self.u32 = Struct(self.order + "I").pack
        self.u64 = Struct(self.order + "Q").pack
        self.length = self.u32 if version == 1 else self.u64
        self.width = 4 if version == 1 else 8

    def string(self, text: str | bytes) -> bytes:
        """A length and the UTF-8 bytes; surrogate escapes give back the bytes they came from."""
        raw = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else bytes(text)
        return self.length(len(raw)) + raw

    def counts(self, n_tensors: int, n_fields: int) -> bytes:
        """The beginning of a header: magic, version and counts."""
        return b"GGUF" + self.u32(self.version) + self.length(n_tensors) + self.length(n_fields)

    def field(self, key: str, encoded: Encoded) -> bytes:
        """A metadata field."""
        return self.string(key) + self.u32(encoded.type) + encoded.payload

    def info(self, info: Info) -> bytes:
        """A tensor info; dimensions are stored fastest first."""
        dims = b"".join(map(self.length, reversed(info.shape)))
        head = self.string(info.name) + self.u32(len(info.shape))
        return head + dims + self.u32(info.qtype) + self.u64(info.offset)

    def header(self, fields: Mapping[str, Encoded], infos: Sequence[Info]) -> bytes:
        """A whole header, without the padding behind it."""
        parts = [self.counts(len(infos), len(fields))]
        parts += [self.field(key, encoded) for key, encoded in fields.items()]
        parts += map(self.info, infos)
        return b"".join(parts)

    def encode(self, key: str, value: Any, vtype: ValueType | None = None) -> Encoded:
        """Encode a value; `vtype` is its type, or its elements' type where it is an array.

        Raises
        ------
        TypeError
            If the value has no GGUF type, or not the one asked for. The message names the key.
        ValueError
            If a number doesn't fit its type.
        """
        if isinstance(value, (memoryview, array)):
            value = np.asarray(value)
        if isinstance(value, np.ndarray):
            value = _plain_array(key, value)
            if value.ndim == 0:
                value = value[()]
        try:
            if isinstance(value, (str, bytes, bytearray)) or not _is_array(value):
                return self._scalar(key, value, vtype)
            return self._array(key, value, vtype, 1)
        except UnicodeEncodeError as error:
            raise ValueError(
                f"metadata key {key!r}: {error.object[error.start]!r} at {error.start} of a string has no UTF-8 form"
            ) from None

    def _scalar(self, key: str, value: Any, vtype: ValueType | None) -> Encoded:
        if vtype is None:
            vtype = _scalar_type(key, value)
        if vtype is ValueType.ARRAY:
            raise TypeError(f"metadata key {key!r}: an array was declared, but the value is {describe(value)}")
        if vtype is ValueType.STRING:
            if not isinstance(value, (str, bytes, bytearray)):
                raise TypeError(f"metadata key {key!r}: a string was declared, but the value is {describe(value)}")
            return Encoded(vtype, self.string(value if isinstance(value, str) else bytes(value)))
        return Encoded(vtype, self._numbers(key, [value], vtype))

    def _array(self, key: str, value: Any, item: ValueType | None, depth: int) -> Encoded:
        if depth > DEEPEST:
            raise TypeError(f"metadata key {key!r}: arrays are nested deeper than {DEEPEST} levels")
        if isinstance(value, np.ndarray):
            value = _plain_array(key, value)
            if value.ndim > 1:
                value = list(value)
                if not value:
                    raise TypeError(f"metadata key {key!r}: an empty array of arrays has no element type")
            elif value.dtype.kind not in "OUS":
                return self._numpy_array(key, value, item)
            else:
                value = value.tolist()
        elif isinstance(value, range):
            value = list(value)
        count = len(value)
        if item is None:
            item = _item_type(key, value)
        elif count and item is not ValueType.ARRAY and _is_array(value[0]) and not isinstance(value[0], (str, bytes)):
            return self._nested(key, value, item, depth)
        if item is ValueType.ARRAY:
            return self._nested(key, value, None, depth)
        if item is ValueType.STRING:
            parts = []
            for i, text in enumerate(value):
                if not isinstance(text, (str, bytes, bytearray)):
                    raise TypeError(f"metadata key {key!r}: element {i} is {describe(text)}, a string was expected")
                parts.append(self.string(text if isinstance(text, str) else bytes(text)))
            body = b"".join(parts)
        else:
            body = self._numbers(key, value, item)
        return Encoded(ValueType.ARRAY, self.u32(item) + self.length(count) + body)

    def _nested(self, key: str, value: Sequence[Any], item: ValueType | None, depth: int) -> Encoded:
        parts = []
        for i, inner in enumerate(value):
            if not _is_array(inner) or isinstance(inner, (str, bytes, bytearray)):
                raise TypeError(f"metadata key {key!r}: element {i} is {describe(inner)}, an array was expected")
            parts.append(self._array(key, inner, item, depth + 1).payload)
        return Encoded(ValueType.ARRAY, self.u32(ValueType.ARRAY) + self.length(len(value)) + b"".join(parts))

    def _numpy_array(self, key: str, value: np.ndarray[Any, Any], item: ValueType | None) -> Encoded:
        own = _FROM_NUMPY.get(value.dtype.kind + str(value.dtype.itemsize))
        if own is None:
            raise TypeError(f"metadata key {key!r}: GGUF has no value type for numpy's {value.dtype}")
        if item is None or item is own:
            item, body = own, value.astype(self.order + own.code).tobytes()
        else:
            body = self._numbers(key, value.tolist(), item)
        return Encoded(ValueType.ARRAY, self.u32(item) + self.length(len(value)) + body)

    def _numbers(self, key: str, values: Iterable[Any], vtype: ValueType) -> bytes:
        plain = []
        for value in values:
            wanted = vtype.name.lower()
            if vtype is ValueType.BOOL:
                if not isinstance(value, (bool, np.bool_)):
                    raise TypeError(f"metadata key {key!r}: {wanted} was declared, but the value is {describe(value)}")
            elif vtype in _INTEGERS:
                if isinstance(value, (bool, np.bool_)) or not hasattr(value, "__index__"):
                    raise TypeError(f"metadata key {key!r}: {wanted} was declared, but the value is {describe(value)}")
                value = operator.index(value)
                info = np.iinfo(vtype.code)
                if not info.min <= value <= info.max:
                    raise ValueError(f"metadata key {key!r}: {describe(value)} doesn't fit {wanted}")
            elif isinstance(value, (bool, np.bool_, str, bytes)) or not hasattr(value, "__float__"):
                raise TypeError(f"metadata key {key!r}: {wanted} was declared, but the value is {describe(value)}")
            else:
                try:
                    value = float(value)
                except OverflowError:
                    raise ValueError(f"metadata key {key!r}: an int of that size doesn't fit {wanted}") from None
                if vtype is ValueType.FLOAT32 and abs(value) != np.inf and abs(value) > _LARGEST_F32:
                    raise ValueError(f"metadata key {key!r}: {value!r} doesn't fit {wanted}")
            plain.append(value)
        return np.array(plain, self.order + vtype.code).tobytes()

    def recode(self, source: Layout, encoded: Encoded, where: str) -> Encoded:
        """The same value in this layout, when it was encoded in another: types and strings stay as they are."""
        if (source.order, source.width) == (self.order, self.width):
            return encoded
        view, out = memoryview(encoded.payload), bytearray()
        end = self._recode(source, encoded.type, view, 0, out)
        if end != len(view):
            raise GGUFError(f"{where}: {len(view) - end} bytes are left over behind the value")
        return Encoded(encoded.type, bytes(out))

    def _recode(self, source: Layout, vtype: ValueType, view: memoryview, pos: int, out: bytearray) -> int:
        def integer(width: int) -> int:
            nonlocal pos
            value = int(np.frombuffer(view, f"{source.order}u{width}", 1, pos)[0])
            pos += width
            return value

        if vtype is ValueType.STRING:
            length = integer(source.width)
            out += self.length(length)
            out += view[pos : pos + length]
            return pos + length
        count = 1
        if vtype is ValueType.ARRAY:
            vtype = ValueType(integer(4))
            count = integer(source.width)
            out += self.u32(vtype) + self.length(count)
        if vtype in (ValueType.STRING, ValueType.ARRAY):
            for _ in range(count):
                pos = self._recode(source, vtype, view, pos, out)
            return pos
        numbers = np.frombuffer(view, source.order + vtype.code, count, pos)
        out += numbers.astype(self.order + vtype.code).tobytes()
        return pos + numbers.nbytes


def stored(metadata: Metadata, key: str) -> tuple[Layout, Encoded]:
    """A value as an opened file stores it, and the layout it is in."""
    byteorder, width = metadata.layout
    layout = Layout(byteorder, 1 if width == 4 else 3)
    vtype, raw = metadata.types[key].type, metadata.raw(key).tobytes()
    return layout, Encoded(vtype, layout.length(len(raw)) + raw if vtype is ValueType.STRING else raw)


_LARGEST_F32 = float(np.finfo(np.float32).max)


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) or (isinstance(value, Sequence) and not isinstance(value, str))


def _plain_array(key: str, value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array without what a subclass adds: a matrix never loses a dimension, and a mask has no place in a file."""
    refuse_masked(value, f"metadata key {key!r}")
    return np.asarray(value)


def describe(value: Any) -> str:
    """A value for a message: its type, and its text where that is short."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested beyond all measure, or an int with more digits than Python prints
        return type(value).__name__
    return f"{type(value).__name__} {text if len(text) <= 40 else text[:37] + '...'}"


def _scalar_type(key: str, value: Any) -> ValueType:
    """The type of a plain value: numpy scalars keep theirs, a Python int gets the smallest of 32 or 64 bits."""
    if isinstance(value, (bool, np.bool_)):
        return ValueType.BOOL
    if isinstance(value, (str, bytes, bytearray)):
        return ValueType.STRING
    if isinstance(value, np.generic):
        own = _FROM_NUMPY.get(value.dtype.kind + str(value.dtype.itemsize))
        if own is not None:
            return own
    elif isinstance(value, float):
        return ValueType.FLOAT32
    elif hasattr(value, "__index__"):
        return _integer_type(key, [operator.index(value)], (ValueType.UINT32, ValueType.INT32))
    raise TypeError(f"metadata key {key!r}: GGUF has no value type for {describe(value)}")


def _item_type(key: str, values: Sequence[Any]) -> ValueType:
    """The element type of a list."""
    if not len(values):
        raise TypeError(
            f"metadata key {key!r}: an empty list has no element type; give one, or an empty numpy array of its dtype"
        )
    if isinstance(values[0], (str, bytes, bytearray)):
        return ValueType.STRING
    if _is_array(values[0]):
        return ValueType.ARRAY
    for i, v in enumerate(values if masks_exist() else ()):
        if v is np.ma.masked:
            raise ValueError(f"metadata key {key!r}: element {i} is masked; fill it first")
    types = {_scalar_type(key, v) for v in values}
    if len(types) == 1 and (not types <= _INTEGERS or all(isinstance(v, np.generic) for v in values)):
        return types.pop()
    if types <= _INTEGERS:
        plain = [operator.index(v) for v in values]
        return _integer_type(key, plain, (ValueType.INT32, ValueType.UINT32))
    if types <= _INTEGERS | _FLOATS:
        return ValueType.FLOAT64 if ValueType.FLOAT64 in types else ValueType.FLOAT32
    names = sorted(t.name.lower() for t in types)
    raise TypeError(f"metadata key {key!r}: the elements of an array have one type, not {' and '.join(names)}")


def _integer_type(key: str, values: Sequence[int], narrow: tuple[ValueType, ...]) -> ValueType:
    low, high = min(values), max(values)
    for vtype in (*narrow, ValueType.INT64, ValueType.UINT64):
        info = np.iinfo(vtype.code)
        if info.min <= low and high <= info.max:
            return vtype
    ends = [v for v in (low, high) if not np.iinfo("i8").min <= v <= np.iinfo("u8").max]
    what = str(ends[0]) if ends else f"both {low} and {high}"
    raise ValueError(f"metadata key {key!r}: no integer type holds {what}")
