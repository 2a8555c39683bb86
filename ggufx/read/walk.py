"""Walking the parts of a GGUF header that can be long: string arrays, nested arrays, tensor infos.

The three ``walk_*`` functions are the compiled ones (csrc/walk.c) where the extension exists, otherwise the Python
functions here, which return the same for every input. All of them read only inside ``buf[pos:stop]``, check each count
and length against what is left before they use it, and stop at the first thing that isn't right.

``width`` is the size of a count, length or dimension in bytes (4 in version 1, 8 after it), ``big`` the byte order.
"""

from __future__ import annotations

from contextlib import suppress
from struct import Struct
from typing import TYPE_CHECKING

import numpy as np

from ..formats.value_types import ValueType

if TYPE_CHECKING:
    import numpy.typing as npt

    from .sources import HeaderBuffer

__all__ = [
    "BAD_TYPE",
    "OK",
    "SCALAR_BYTES",
    "SHORT",
    "TENSOR_COLUMNS",
    "TOO_DEEP",
    "TOO_MANY",
    "walk_arrays",
    "walk_strings",
    "walk_tensors",
]

OK, SHORT, TOO_DEEP, BAD_TYPE, TOO_MANY = range(5)
# One row per tensor: name position, name length, n_dims, four dimensions (1 where absent), type id, offset.
TENSOR_COLUMNS = 9
STRING, ARRAY = int(ValueType.STRING), int(ValueType.ARRAY)
# Value type id -> bytes of one value, for the types of fixed width.
SCALAR_BYTES = {vtype.value: vtype.nbytes for vtype in ValueType if vtype.nbytes}


def _size(width: int, big: bool) -> Struct:
    return Struct((">" if big else "<") + ("I" if width == 4 else "Q"))


def python_walk_strings(
    buf: HeaderBuffer,
    pos: int,
    stop: int,
    count: int,
    width: int,
    big: bool,
    starts: npt.NDArray[np.uint64] | None = None,
) -> tuple[int, int]:
    """Walk `count` strings; returns the position reached and how many strings lie wholly before `stop`.

    `starts`, if given, takes ``count + 1`` positions: where each string's bytes begin, then ``end + width``, so that
    ``starts[i + 1] - starts[i] - width`` is a length.
    """
    unpack = _size(width, big).unpack_from
    # One comparison a string: a length that leads out of the span takes the position beyond `stop`, which is noticed
    # after the loop, and the string before it is then the last good one.
    last = stop - width
    before = pos
    done = 0
    if starts is None:
        while done < count and pos <= last:
            before = pos
            pos += unpack(buf, pos)[0] + width
            done += 1
    else:
        found: list[int] = []
        note = found.append
        while done < count and pos <= last:
            before = pos
            note(pos + width)
            pos += unpack(buf, pos)[0] + width
            done += 1
        if done == count:
            note(min(pos, stop) + width)
        starts[: len(found)] = found
    if pos > stop:
        pos = before
        done -= 1
    return pos, done


def python_walk_arrays(
    buf: HeaderBuffer,
    pos: int,
    stop: int,
    count: int,
    width: int,
    big: bool,
    levels: int,
    most: int,
    starts: npt.NDArray[np.uint64] | None = None,
) -> tuple[int, int]:
    """Walk `count` arrays (item type, count, items) that lie in an array; returns the position reached and a status.

    `levels` is how many arrays may lie inside one another from here on, `most` the elements allowed in one array.
    """
    head = Struct((">" if big else "<") + ("II" if width == 4 else "IQ"))
    for i in range(count):
        if stop - pos < head.size:
            return pos, SHORT
        if starts is not None:
            starts[i] = pos
        kind, items = head.unpack_from(buf, pos)
        pos += head.size
        if kind != STRING and kind != ARRAY and kind not in SCALAR_BYTES:
            return pos, BAD_TYPE
        if items > most:
            return pos, TOO_MANY
        if size := SCALAR_BYTES.get(kind):
            if items > (stop - pos) // size:
                return pos, SHORT
            pos += items * size
        elif kind == STRING:
            pos, done = python_walk_strings(buf, pos, stop, items, width, big)
            if done < items:
                return pos, SHORT
        elif levels <= 1:
            return pos, TOO_DEEP
        else:
            pos, status = python_walk_arrays(buf, pos, stop, items, width, big, levels - 1, most)
            if status:
                return pos, status
    return pos, OK


def python_walk_tensors(
    buf: HeaderBuffer,
    pos: int,
    stop: int,
    count: int,
    width: int,
    big: bool,
    longest: int,
    rows: npt.NDArray[np.uint64],
) -> tuple[int, int, int]:
    """Walk `count` tensor infos into `rows`; returns the position reached, the number of whole rows and a status.

    TOO_MANY stands for a name of more than `longest` bytes, TOO_DEEP for more than four dimensions.
    """
    order = ">" if big else "<"
    size = _size(width, big)
    u32 = Struct(order + "I").unpack_from
    dims = [Struct(order + ("I" if width == 4 else "Q") * n + "IQ") for n in range(5)]
    found: list[tuple[int, ...]] = []
    status = OK
    for _ in range(count):
        status = SHORT
        at = pos + width
        if at > stop:
            break
        (length,) = size.unpack_from(buf, pos)
        if length > longest:
            status = TOO_MANY
            break
        end = at + length
        if end + 4 > stop:
            break
        (n_dims,) = u32(buf, end)
        if n_dims > 4:
            status = TOO_DEEP
            break
        tail = dims[n_dims]
        if end + 4 + tail.size > stop:
            break
        values = tail.unpack_from(buf, end + 4)
        found.append((at, length, n_dims, *values[:n_dims], *(1,) * (4 - n_dims), *values[n_dims:]))
        pos = end + 4 + tail.size
        status = OK
    if found:
        rows[: len(found)] = np.array(found, np.uint64)
    return pos, len(found), status


walk_strings, walk_arrays, walk_tensors = python_walk_strings, python_walk_arrays, python_walk_tensors
with suppress(ImportError):  # built without a compiler
    from .._native import walk_arrays, walk_strings, walk_tensors
