"""From a plan to files: header bytes, and the payload streamed behind them.

A plan is a list of files, each with its header and its tensors. All files are written and checked before the first one
appears under its name.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from ..codec.decode import swap_bytes
from ..errors import GGUFError
from ..formats.tensor_types import QType
from .outfile import OutputFile, check_free_space, refuse_inputs
from .serialize import Encoded, Info, Layout

try:
    import fcntl
except ImportError:  # as in outfile
    fcntl = None  # type: ignore[assignment]

__all__ = [
    "Entry",
    "PlannedFile",
    "Progress",
    "Source",
    "Stream",
    "header_bytes",
    "padded",
]

# Opening a hidden file again: never through a link. Windows has none of these but the last.
_SAFELY = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
# Blocks swapped at once.
SWAP_BLOCKS = 1 << 16

Progress = Callable[[str, int, int], None]
Source = Callable[[], Any]


def padded(size: int, alignment: int) -> int:
    """The next multiple of `alignment`."""
    return size + -size % alignment


class Entry(NamedTuple):
    """A planned tensor: what its info says, and who gives its bytes."""

    name: str
    shape: tuple[int, ...]
    qtype: int
    nbytes: int
    source: Source
    swap: QType | None


class PlannedFile(NamedTuple):
    """One file of a plan: where it goes, its header with the padding behind it, and its tensors."""

    path: str
    header: bytes
    entries: Sequence[Entry]


def header_bytes(
    layout: Layout, fields: Mapping[str, Encoded], entries: Sequence[Entry], alignment: int, *, pad: bool = True
) -> bytes:
    """Magic, counts, metadata and tensor infos, with the padding up to the data section."""
    infos, offset = [], 0
    for entry in entries:
        if offset + entry.nbytes >> 63:
            raise ValueError(f"tensor {entry.name!r}: it would end beyond the largest offset a reader knows, 2**63 - 1")
        infos.append(Info(entry.name, entry.shape, entry.qtype, offset))
        offset += padded(entry.nbytes, alignment)
    out = layout.header(fields, infos)
    return out + bytes(-len(out) % alignment if pad else 0)


class _Shard(OutputFile):
    """An output that is closed while others are written: a set may have more files than a process may open.

    The first file of a set stays open, and its lock keeps other writers of the set away. What happens to one that
    rests is noticed all the same.
    """

    _resting: os.stat_result | None = None

    def rest(self) -> None:
        """Close the file; nothing is lost."""
        self._resting = os.fstat(self._fd)
        os.close(self._fd)
        self._fd = -1

    def wake(self) -> None:
        """Open the file again behind what was written; nothing happens where it is open.

        Raises
        ------
        OSError
            If another process writes it, or has touched it.
        """
        if self._resting is None:
            return
        touched = OSError(errno.EBUSY, "another process wrote this file at the same time", self.target)
        try:
            fd = os.open(self.partial, os.O_RDWR | _SAFELY)
        except FileNotFoundError:
            raise touched from None
        try:
            if fcntl is not None:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not self._untouched(os.fstat(fd)):
                raise touched
            os.lseek(fd, 0, os.SEEK_END)
        except BlockingIOError:
            os.close(fd)
            raise touched from None
        except BaseException:
            os.close(fd)
            raise
        self._fd, self._resting = fd, None

    def check(self) -> None:
        """Refuse a file that was touched while it rested."""
        if self._resting is not None:
            self.wake()
            self.rest()

    def _untouched(self, now: os.stat_result) -> bool:
        before = self._resting
        assert before is not None
        same = (before.st_size, before.st_mtime_ns) == (now.st_size, now.st_mtime_ns)
        return same and os.path.samestat(before, now)

    def discard(self) -> None:
        """Remove what was written, unless it is another process's by now."""
        with suppress(OSError):
            self.wake()
        super().discard()


class Stream:
    """The files of a plan while their payload is written, tensor by tensor in order.

    Parameters
    ----------
    files : sequence of PlannedFile
    alignment : int
    inputs : iterable of path-like
        Files that none of the outputs may be.
    sync : bool
        Wait for the disk before a file appears.
    progress : callable, optional

    Raises
    ------
    OSError
        If the disk can't hold the files, or another process writes one of them.
    ValueError
        If an output is an input.
    """

    def __init__(
        self,
        files: Sequence[PlannedFile],
        alignment: int,
        *,
        inputs: Iterable[str | os.PathLike[str]] = (),
        sync: bool = True,
        progress: Progress | None = None,
    ) -> None:
        self.alignment = alignment
        self.progress = progress
        self.done = 0
        self.total = sum(e.nbytes for f in files for e in f.entries)
        inputs = list(inputs)
        self._sizes = [len(f.header) + sum(padded(e.nbytes, alignment) for e in f.entries) for f in files]
        for file in files:
            refuse_inputs(file.path, inputs)
        check_free_space(os.path.realpath(files[0].path), sum(self._sizes))
        self._outputs: list[_Shard] = []
        self._current = 0
        self._queue = [(number, entry) for number, file in enumerate(files) for entry in file.entries]
        self._queue.reverse()
        try:
            for number, file in enumerate(files):
                self._outputs.append(_Shard(file.path, inputs=inputs, sync=sync))
                self._outputs[-1].write(file.header)
                if number:
                    self._outputs[-1].rest()
        except BaseException:
            self.discard()
            raise

    @property
    def next(self) -> Entry | None:
        """The tensor that is written next, or None when all are."""
        return self._queue[-1][1] if self._queue else None

    def __len__(self) -> int:
        """Tensors that are still to be written."""
        return len(self._queue)

    def put(self, data: Any = None) -> None:
        """Write the next tensor, from its source or from `data`."""
        number, entry = self._queue.pop()
        out = self._turn_to(number)
        for piece in _pieces(entry, entry.source() if data is None else data):
            out.write(piece)
            self.done += len(piece)
            if self.progress is not None:
                self.progress(entry.name, self.done, self.total)
        out.pad(self.alignment)

    def finish(self) -> list[str]:
        """Check sizes, wait for the disk, and let the files appear; returns their paths."""
        for number in range(self._current, len(self._outputs)):
            self._turn_to(number)
        self._outputs[self._current].finish(self._sizes[self._current])
        for out in self._outputs:
            out.check()
        for out in self._outputs:
            out.wake()
            out.publish()
        return [out.target for out in self._outputs]

    def _turn_to(self, number: int) -> _Shard:
        """The file whose turn it is, open; those before it are finished, and only the first of them stays open."""
        while self._current < number:
            before = self._outputs[self._current]
            before.finish(self._sizes[self._current])
            if self._current:
                before.rest()
            self._current += 1
            self._outputs[self._current].wake()
        return self._outputs[number]

    def discard(self) -> None:
        """Remove what isn't published."""
        for out in self._outputs:
            out.discard()


def _pieces(entry: Entry, given: Any) -> Iterator[memoryview]:
    """The bytes of a planned tensor, exactly as many as planned."""
    pieces = given if isinstance(given, (Iterator, list, tuple)) else (given,)
    done = 0
    for piece in pieces:
        flat = np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data if isinstance(piece, np.ndarray) else piece
        try:
            view = memoryview(flat)
        except TypeError:
            raise TypeError(f"tensor {entry.name!r}: its source gave {type(flat).__name__}, not bytes") from None
        if not view.nbytes:
            continue
        view = view.cast("B")
        done += len(view)
        if done > entry.nbytes:
            break
        if entry.swap is None:
            yield view
            continue
        step = entry.swap.block_bytes * SWAP_BLOCKS
        if len(view) % entry.swap.block_bytes:
            raise GGUFError(f"tensor {entry.name!r}: a piece of {len(view)} bytes isn't whole blocks")
        for start in range(0, len(view), step):
            yield swap_bytes(np.frombuffer(view[start : start + step], np.uint8), entry.swap).data
    if done != entry.nbytes:
        more = "or more " if done > entry.nbytes else ""
        raise GGUFError(f"tensor {entry.name!r}: its source gave {done} bytes {more}where {entry.nbytes} were planned")
