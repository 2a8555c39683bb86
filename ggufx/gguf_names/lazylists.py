"""Lists whose items are made when they are asked for, over the bytes of a GGUF header.

The `gguf` package keeps one numpy array for every piece of a header: for a vocabulary of 262,144 tokens more than a
million of them. The lists here hold positions instead, and make the same arrays on access.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from ..errors import GGUFError
from ..read import walk

__all__ = ["LazyList", "NumberItems", "Parts", "Span", "StringItems", "as_buffer", "view"]


class LazyList(list):  # type: ignore[type-arg]
    """A list over `items`: each item is made on access. The first change turns it into an ordinary list.

    It is a real ``list``, so that ``isinstance`` and ``==`` behave; pickling and copying give plain lists. The list's
    own storage is empty until then, and methods of list read it without asking: none may see a lazy list, on either
    side.
    """

    __slots__ = ("items",)

    def __new__(cls, items: Iterable[Any] = ()) -> Any:
        # Whoever makes a list of the same type as one that was given, as dataclasses.asdict does, gets a plain one.
        return super().__new__(cls) if isinstance(items, (Parts, range)) else list(items)

    def __init__(self, items: Parts | range) -> None:
        super().__init__()
        self.items: Parts | range | None = items

    def _fill(self) -> None:
        items = self.items
        if items is not None:
            # Other threads read the items until all are stored. What C code may have added past us stays behind them.
            super().__setitem__(slice(0, 0), list(items))
            self.items = None

    def __len__(self) -> int:
        return super().__len__() if self.items is None else len(self.items)

    def __iter__(self) -> Iterator[Any]:
        return super().__iter__() if self.items is None else self._each(self.items)

    def _each(self, items: Parts | range) -> Iterator[Any]:
        done = 0
        for item in items:
            if self.items is None:
                break
            done += 1
            yield item
        # Changed while it is walked: go on as a list does.
        while self.items is None and done < super().__len__():
            done += 1
            yield super().__getitem__(done - 1)

    def __getitem__(self, index: Any) -> Any:
        items = self.items
        if items is None:
            return super().__getitem__(index)
        n = len(items)
        if isinstance(index, slice):
            return list(items[index]) if isinstance(items, range) else [items[i] for i in range(*index.indices(n))]
        try:
            i = operator.index(index)
        except TypeError:
            kind = type(index).__name__
            raise TypeError(f"list indices must be integers or slices, not {kind}") from None
        if i < 0:
            i += n
        if not 0 <= i < n:
            raise IndexError("list index out of range")
        return items[i]

    def __reversed__(self) -> Iterator[Any]:
        yield from list(self)[::-1]

    def __contains__(self, value: object) -> bool:
        return value in self.items if isinstance(self.items, range) else value in list(self)

    def __repr__(self) -> str:
        return repr(list(self))

    def __reduce_ex__(self, protocol: object) -> Any:
        return list, (list(self),)

    def __copy__(self) -> list[Any]:
        return list(self)

    def __add__(self, other: Any) -> Any:
        # An array on the other side adds as it does to a list.
        return [*self, *other] if isinstance(other, list) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        # Python asks for `other + self` and `other += self`. Both are then list's own, which read what is stored.
        self._fill()
        return NotImplemented

    __hash__ = None


def _plain(value: Any) -> Any:
    """A plain list of what a lazy list holds; everything else as it is."""
    return list(value) if isinstance(value, LazyList) and value.items is not None else value


def _reading(name: str) -> Callable[..., Any]:
    """Make a method of list that only reads: it works on plain copies."""
    method = getattr(list, name)

    def read(self: LazyList, *args: Any) -> Any:
        return method(_plain(self), *map(_plain, args))

    read.__name__ = name
    return read


def _comparing(name: str) -> Callable[..., Any]:
    """Make a comparison of list."""
    read, of_same = _reading(name), name in ("__eq__", "__le__", "__ge__")

    def compare(self: LazyList, other: object) -> Any:
        return of_same if self is other else read(self, other)

    compare.__name__ = name
    return compare


def _repeating(name: str) -> Callable[..., Any]:
    """Make a repetition of list; an array multiplies the items instead."""
    read = _reading(name)

    def repeat(self: LazyList, times: Any) -> Any:
        return NotImplemented if isinstance(times, np.ndarray) else read(self, times)

    repeat.__name__ = name
    return repeat


def _changing(name: str) -> Callable[..., Any]:
    """Make a method of list that changes it: the items are made first."""
    method = getattr(list, name)

    def change(self: LazyList, *args: Any, **options: Any) -> Any:
        self._fill()
        return method(self, *args, **options)

    change.__name__ = name
    return change


_METHODS = {
    _reading: ("copy", "index", "count"),
    _comparing: ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"),
    _repeating: ("__mul__", "__rmul__"),
    _changing: (
        "append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse", "__setitem__", "__delitem__",
        "__iadd__", "__imul__",
    ),
}  # fmt: skip
for _make, _names in _METHODS.items():
    for _name in _names:
        setattr(LazyList, _name, _make(_name))


class Span(NamedTuple):
    """`length` values of `dtype` at byte `start`."""

    start: int
    dtype: np.dtype[Any]
    length: int


_UINT8 = np.dtype(np.uint8)


def view(data: npt.NDArray[np.uint8], start: int, dtype: np.dtype[Any], count: int) -> npt.NDArray[Any]:
    """`count` values of `dtype` at byte `start` of `data`, in place; of data's own class."""
    piece = data[start : start + count * dtype.itemsize]
    return piece if dtype == _UINT8 else piece.view(dtype)


def as_buffer(data: npt.NDArray[Any]) -> Any:
    """Return the bytes of `data` as the walkers take them."""
    return memoryview(np.asarray(data))  # type: ignore[arg-type]


class NumberItems:
    """The items of an array of numbers, one array of one value each."""

    __slots__ = ("count", "data", "dtype", "start")

    def __init__(self, data: npt.NDArray[np.uint8], start: int, dtype: np.dtype[Any], count: int) -> None:
        self.data = data
        self.start = start
        self.dtype = dtype
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, i: int) -> npt.NDArray[Any]:
        return view(self.data, self.start + i * self.dtype.itemsize, self.dtype, 1)

    def values(self, picked: slice = slice(None)) -> list[Any]:
        """Return the picked values as Python numbers."""
        numbers: list[Any] = view(np.asarray(self.data), self.start, self.dtype, self.count)[picked].tolist()
        return numbers


class StringItems:
    """The items of an array of strings: a length and the bytes, in turn."""

    __slots__ = ("_starts", "big", "count", "data", "length", "start", "stop")

    def __init__(self, data: npt.NDArray[np.uint8], start: int, stop: int, count: int, big: bool) -> None:
        self.data = data
        self.start = start
        self.stop = stop
        self.count = count
        self.big = big
        self.length = np.dtype(np.uint64).newbyteorder("S") if big else np.dtype(np.uint64)
        self._starts: npt.NDArray[np.uint64] | None = None

    @property
    def starts(self) -> npt.NDArray[np.uint64]:
        """Where each string's bytes begin, and one more: ``starts[i + 1] - starts[i] - 8`` is a length."""
        if self._starts is None:
            starts = np.empty(self.count + 1, np.uint64)
            end, done = walk.walk_strings(as_buffer(self.data), self.start, self.stop, self.count, 8, self.big, starts)
            if (end, done) != (self.stop, self.count):
                name = getattr(self.data, "filename", None) or "GGUF header"
                raise GGUFError(
                    f"{name}: the {self.count} strings from byte {self.start} on don't end at byte {self.stop} any "
                    f"more, but {done} of them at byte {end}: the file was changed while it was open"
                )
            self._starts = starts
        return self._starts

    def __len__(self) -> int:
        return 2 * self.count

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, i: int) -> npt.NDArray[Any]:
        at, is_bytes = divmod(i, 2)
        start = int(self.starts[at])
        if is_bytes:
            return self.data[start : int(self.starts[at + 1]) - 8]
        return view(self.data, start - 8, self.length, 1)

    def values(self, picked: slice = slice(None)) -> list[str]:
        """Return the picked strings, decoded.

        Raises
        ------
        UnicodeDecodeError
            If one of them isn't UTF-8.
        """
        starts = self.starts[:-1][picked]
        stops = self.starts[1:][picked] - np.uint64(8)
        if not len(starts):
            return []
        first = int(starts.min())
        text = self.data[first : int(stops.max())].tobytes()
        begin, end = (starts - np.uint64(first)).tolist(), (stops - np.uint64(first)).tolist()
        return [str(text[a:b], "utf-8") for a, b in zip(begin, end, strict=True)]


class Parts:
    """The parts of one field: the spans of its head, then the items of its array, if it is one.

    As in a list, a part that somebody holds is the same object each time: lists of arrays compare by identity first.
    """

    __slots__ = ("array", "data", "head", "held")

    def __init__(
        self, data: npt.NDArray[np.uint8], head: Iterable[Span], array: NumberItems | StringItems | None = None
    ) -> None:
        self.data = data
        self.head = tuple(head)
        self.array = array
        self.held: WeakValueDictionary[int, npt.NDArray[Any]] | None = None

    def __len__(self) -> int:
        return len(self.head) + (0 if self.array is None else len(self.array))

    def __getitem__(self, i: int) -> npt.NDArray[Any]:
        if self.held is None:
            self.held = WeakValueDictionary()
        part = self.held.get(i)
        return self.held.setdefault(i, self._made(i)) if part is None else part

    def _made(self, i: int) -> npt.NDArray[Any]:
        past = i - len(self.head)
        if past < 0:
            return view(self.data, *self.head[i])
        assert self.array is not None
        return self.array[past]

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        return map(self.__getitem__, range(len(self)))
