"""Building gguf's view of a header, its fields and tensors, from positions instead of one array per value.

The functions take the place of the methods of ``gguf.GGUFReader`` that loop over the header, and build the very same
classes. `Names` holds what they need of a `gguf` module, so that other copies of it, and ggufx's own reader, use them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from struct import Struct
from typing import Any, Literal, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from ..errors import GGUFError
from ..read import walk
from .lazylists import LazyList, NumberItems, Parts, Span, StringItems, as_buffer, view

__all__ = [
    "HeaderError",
    "Names",
    "are_ours",
    "build_fields",
    "build_tensor_info",
    "build_tensors",
    "contents",
    "take_apart",
]

STRING, ARRAY = 8, 9
# Arrays shorter than this become plain lists at once.
SHORT_ARRAY = 16
MAX_NESTING = 64
# Plain number types: their arrays are typed, all others are bytes. ggml's ids.
TYPED: dict[int, np.dtype[Any]] = {
    0: np.dtype(np.float32),
    1: np.dtype(np.float16),
    24: np.dtype(np.int8),
    25: np.dtype(np.int16),
    26: np.dtype(np.int32),
    27: np.dtype(np.int64),
    28: np.dtype(np.float64),
}
_U32, _U64, _U8 = np.dtype(np.uint32), np.dtype(np.uint64), np.dtype(np.uint8)


class HeaderError(GGUFError, IndexError):
    """A header that isn't what it says. `gguf` raises IndexError for most of these, and hangs on some."""


class Names(NamedTuple):
    """What is needed of a `gguf` module."""

    field: Callable[..., Any]
    tensor: Callable[..., Any]
    value_type: Callable[[int], Any]
    tensor_type: Callable[[int], Any]
    sizes: Mapping[Any, tuple[int, int]]
    byte_shape: Callable[..., tuple[int, ...]]


class _Cursor:
    """Reads numbers from a reader's bytes in its byte order, within its bounds."""

    def __init__(self, reader: Any, pos: int) -> None:
        self.data = reader.data
        self.raw = as_buffer(self.data)
        self.stop = len(self.raw)
        self.pos = int(pos)
        self.big = reader.byte_order == "S"
        order = ">" if self.big else "<"
        self._u32 = Struct(order + "I")
        self._u64 = Struct(order + "Q")
        self.u32_type, self.u64_type = (d.newbyteorder("S") if self.big else d for d in (_U32, _U64))

    def fail(self, message: str) -> NoReturn:
        name = getattr(self.data, "filename", None)
        raise HeaderError(f"{name or 'GGUF header'}: {message}")

    def take(self, count: int, where: str) -> int:
        """Step over `count` bytes; returns where they begin."""
        pos = self.pos
        if count > self.stop - pos:
            self.fail(
                f"the file ends at byte {self.stop}, in {where} at byte {pos}, which takes {count} bytes; "
                f"is it a truncated download?"
            )
        self.pos = pos + count
        return pos

    def u32(self, where: str) -> int:
        value: int = self._u32.unpack_from(self.raw, self.take(4, where))[0]
        return value

    def u64(self, where: str) -> int:
        value: int = self._u64.unpack_from(self.raw, self.take(8, where))[0]
        return value


def build_fields(reader: Any, offs: int, count: int, names: Names) -> int:
    """Add `count` metadata fields from byte `offs` on to the reader; returns where they end."""
    cursor = _Cursor(reader, offs)
    where = "the first metadata field"
    for _ in range(int(count)):
        begin = cursor.pos
        length = cursor.u64(where)
        at = cursor.take(length, f"{where} (a key of {length} bytes)")
        raw_key = bytes(cursor.raw[at : at + length])
        where = f"metadata field {raw_key.decode(errors='replace')!r}"
        raw_type = cursor.u32(where)
        head = [
            Span(begin, cursor.u64_type, 1),
            Span(at, _U8, length),
            Span(at + length, cursor.u32_type, 1),
        ]
        parts, data, types = _value(reader, cursor, raw_type, head, where, names)
        # Not before: of a key that isn't text and a value past the end, gguf tells the second.
        key = str(raw_key, "utf-8")
        reader._push_field(names.field(begin, key, parts, data, types), skip_sum=True)
        where = f"the metadata field after {key!r}"
    return cursor.pos


def _value(
    reader: Any, cursor: _Cursor, raw_type: int, head: list[Span], where: str, names: Names
) -> tuple[list[Any], list[int], list[Any]]:
    """Parts, data and types of the field whose value begins at the cursor."""
    kind = names.value_type(raw_type)
    if raw_type == STRING:
        at = cursor.pos
        length = cursor.u64(where)
        start = cursor.take(length, f"{where} (a string of {length} bytes)")
        head += [Span(at, cursor.u64_type, 1), Span(start, _U8, length)]
        return LazyList(Parts(cursor.data, head)), [4], [kind]
    scalar = reader.gguf_scalar_to_np.get(kind)
    if scalar is not None:
        dtype = _ordered(scalar, cursor.big)
        head.append(Span(cursor.take(dtype.itemsize, where), dtype, 1))
        return LazyList(Parts(cursor.data, head)), [3], [kind]
    if raw_type != ARRAY:
        return _by_gguf(reader, cursor, raw_type, head)
    at = cursor.pos
    raw_item = cursor.u32(where)
    count = cursor.u64(where)
    if not count:
        head += [Span(at, cursor.u32_type, 1), Span(at + 4, cursor.u64_type, 1)]
        return LazyList(Parts(cursor.data, head)), [], [kind]
    item = names.value_type(raw_item)
    where = f"{where} (an array of {count} {item.name})"
    scalar = reader.gguf_scalar_to_np.get(item)
    array: NumberItems | StringItems
    if scalar is not None:
        dtype = _ordered(scalar, cursor.big)
        array = NumberItems(cursor.data, cursor.take(count * dtype.itemsize, where), dtype, count)
        step, first = 1, 5
    elif raw_item == STRING:
        start = cursor.pos
        if 8 * count > cursor.stop - start:
            cursor.take(8 * count, where)  # raises
        cursor.pos, done = walk.walk_strings(cursor.raw, start, cursor.stop, count, 8, cursor.big)
        if done < count:
            cursor.fail(f"the file ends at byte {cursor.stop}, in {where}, string {done} at byte {cursor.pos}")
        array = StringItems(cursor.data, start, cursor.pos, count, cursor.big)
        # Through a writable map the lengths can change under us: note now where the strings are.
        if cursor.data.flags.writeable:
            array.starts  # noqa: B018
        step, first = 2, 6
    else:
        # Nested arrays, which gguf flattens: rare. What follows is only called on arrays known to be sound.
        cursor.pos, status = walk.walk_arrays(
            cursor.raw, cursor.pos, cursor.stop, count, 8, cursor.big, MAX_NESTING, cursor.stop
        )
        if status:
            cursor.fail(f"{where} is broken or nested too deep, before byte {cursor.pos}")
        cursor.pos = at
        return _by_gguf(reader, cursor, raw_type, head)
    head += [Span(at, cursor.u32_type, 1), Span(at + 4, cursor.u64_type, 1)]
    parts = LazyList(Parts(cursor.data, head, array))
    data = range(first, first + step * count, step)
    if count < SHORT_ARRAY:
        return list(parts), list(data), [kind, item]
    return parts, LazyList(data), [kind, item]


def _by_gguf(reader: Any, cursor: _Cursor, raw_type: int, head: list[Span]) -> tuple[list[Any], list[int], list[Any]]:
    """Let gguf itself take the value apart."""
    size, parts, data, types = reader._get_field_parts(cursor.pos, raw_type)
    cursor.pos += size
    own = [view(cursor.data, *span) for span in head]
    return own + parts, [i + len(own) for i in data], types


def _ordered(scalar: Any, big: bool) -> np.dtype[Any]:
    dtype: np.dtype[Any] = np.dtype(scalar)
    return dtype.newbyteorder("S") if big else dtype


def build_tensor_info(reader: Any, offs: int, count: int, names: Names) -> tuple[int, list[Any]]:
    """Make a field for each of `count` tensor infos from byte `offs` on; returns where they end, and the fields."""
    cursor = _Cursor(reader, offs)
    fields: list[Any] = []
    where = "the first tensor info"
    for _ in range(int(count)):
        begin = cursor.pos
        length = cursor.u64(where)
        at = cursor.take(length, f"{where} (a name of {length} bytes)")
        raw_name = bytes(cursor.raw[at : at + length])
        where = f"the info of tensor {raw_name.decode(errors='replace')!r}"
        dims_at = cursor.pos
        n_dims = cursor.u32(where)
        start = cursor.take(8 * n_dims, f"{where} ({n_dims} dimensions)")
        tail = cursor.take(12, where)
        name = str(raw_name, "utf-8")
        head = (
            Span(begin, cursor.u64_type, 1),
            Span(at, _U8, length),
            Span(dims_at, cursor.u32_type, 1),
            Span(start, cursor.u64_type, n_dims),
            Span(tail, cursor.u32_type, 1),
            Span(tail + 4, cursor.u64_type, 1),
        )
        fields.append(names.field(begin, name, LazyList(Parts(cursor.data, head)), [1, 3, 4, 5]))
        where = f"the tensor info after {name!r}"
    return cursor.pos, fields


def build_tensors(reader: Any, start_offs: int, fields: list[Any], names: Names) -> None:
    """Give the reader the tensors that `fields`, from `build_tensor_info`, describe."""
    cursor = _Cursor(reader, 0)
    data = cursor.data
    start_offs = int(start_offs)
    seen: set[str] = set()
    tensors = []
    for field in fields:
        name = field.name
        if name in seen:
            raise ValueError(f"Found duplicated tensor with name {name}")
        seen.add(name)
        spans: tuple[Span, ...] = field.parts.items.head
        dims = view(data, *spans[3])
        order: Literal["big", "little"] = "big" if cursor.big else "little"
        raw_type, offset = (int.from_bytes(cursor.raw[s.start : s.start + s.dtype.itemsize], order) for s in spans[4:])
        kind = names.tensor_type(raw_type)
        sizes = dims.tolist()
        n_elements = math.prod(sizes)
        block_size, type_size = names.sizes[kind]
        n_bytes = n_elements * type_size // block_size
        data_offset = start_offs + offset
        shape = tuple(reversed(sizes))
        dtype = TYPED.get(raw_type, _U8)
        if raw_type not in TYPED:
            shape = names.byte_shape(shape, kind)
        elif cursor.big:
            dtype = dtype.newbyteorder("S")
        size = math.prod(shape) * dtype.itemsize
        if size and data_offset + size > cursor.stop:
            cursor.fail(
                f"tensor {name!r} ({kind.name}, {sizes}) lies at bytes {data_offset} to {data_offset + size}, "
                f"but the file ends at byte {cursor.stop}; is it a truncated download?"
            )
        if max((n_elements, *shape)) >> 63:
            cursor.fail(f"tensor {name!r} has impossible dimensions {sizes}")
        array = view(data, data_offset if size else 0, dtype, size // dtype.itemsize).reshape(shape)
        tensors.append(
            names.tensor(
                name=name,
                tensor_type=kind,
                shape=dims,
                n_elements=n_elements,
                n_bytes=n_bytes,
                data_offset=data_offset,
                data=array,
                field=field,
            )
        )
    reader.tensors = tensors


def contents(field: Any, picked: Any) -> Any:
    """Values of a lazy array field, decoded at once: what its ``contents(picked)`` returns, or NotImplemented."""
    parts = field.parts
    if type(picked) is not slice or type(parts) is not LazyList or type(field.data) is not LazyList:
        return NotImplemented
    items = parts.items
    if not isinstance(items, Parts) or items.array is None or not isinstance(field.data.items, range):
        return NotImplemented
    return items.array.values(picked)


def are_ours(fields: list[Any]) -> bool:
    """Whether the fields of tensors were made by `build_tensor_info` and are as they were."""
    return all(type(field.parts) is LazyList and isinstance(field.parts.items, Parts) for field in fields)


def take_apart(
    reader: Any, offset: int, raw_type: int, names: Names
) -> tuple[int, list[npt.NDArray[Any]], list[int], list[Any]]:
    """Take the value at byte `offset` apart, nested arrays flattened: its size, parts, indices of the data, types."""
    cursor = _Cursor(reader, offset)
    parts: list[npt.NDArray[Any]] = []
    data: list[int] = []
    types: list[Any] = []

    def piece(dtype: np.dtype[Any], count: int, where: str) -> None:
        parts.append(view(cursor.data, cursor.take(dtype.itemsize * count, where), dtype, count))

    def take(kind: Any, is_first: bool) -> None:
        if is_first:
            types.append(kind)
        if kind == STRING:
            piece(cursor.u64_type, 1, "a string's length")
            piece(_U8, int(parts[-1][0]), "a string")
            data.append(len(parts) - 1)
        elif kind == ARRAY:
            piece(cursor.u32_type, 1, "an array's type")
            piece(cursor.u64_type, 1, "an array's length")
            item = int(parts[-2][0])
            for i in range(int(parts[-1][0])):
                take(names.value_type(item), is_first and not i)
        else:
            piece(_ordered(reader.gguf_scalar_to_np[kind], cursor.big), 1, "a number")
            data.append(len(parts) - 1)

    take(names.value_type(raw_type), True)
    return cursor.pos - int(offset), parts, data, types
