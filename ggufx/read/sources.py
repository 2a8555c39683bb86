"""Where the bytes of a model come from: a file mapped into memory, or read piece by piece.

A source hands out byte ranges as numpy arrays and knows nothing of what they mean. Files, tensors and metadata share
one source, so that ``close()`` reaches all of them and nothing forms a reference cycle.
"""

from __future__ import annotations

import mmap
import os
import stat
import sys
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn

import numpy as np

from ..errors import GGUFError, naming
from .filesystems import changes_under_readers

if TYPE_CHECKING:
    import numpy.typing as npt

    HeaderBuffer = bytes | mmap.mmap

Hint = Literal["normal", "sequential", "random", "willneed", "dontneed"]

__all__ = ["FileSource", "Hint", "MapSource", "PieceSource", "Source", "local_source", "open_regular"]


class Source(ABC):
    """The bytes of one GGUF file.

    Attributes
    ----------
    label : str
        What error messages call the file.
    size : int
        Bytes in the file when it was opened.
    big_endian : bool
        Byte order of the file, set once the header has been read.
    closed : bool
        Whether :meth:`close` was called.
    mapped : bool
        Whether reading costs nothing until the bytes are touched.
    """

    label: str
    size: int
    big_endian: bool = False
    closed: bool = False
    mapped: ClassVar[bool] = False

    def __init__(self, label: str) -> None:
        self.label = label
        self._readers: dict[int, int] = {}  # by thread, how deep in reading() it is

    @property
    @abstractmethod
    def header(self) -> HeaderBuffer:
        """The file's first bytes, at least up to the end of its header; slicing it gives ``bytes``."""

    def grow_header(self, wanted: int) -> None:
        """Make :attr:`header` at least `wanted` bytes long, or as long as the file; for sources that read in pieces."""
        raise AssertionError(f"{self.label}: the header is all there")

    @abstractmethod
    def read(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Bytes `start` to `stop` as a one-dimensional array; both must lie in the file."""

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[npt.NDArray[np.uint8]]:
        """Read several ranges, at once where that is faster."""
        return [self.read(start, stop) for start, stop in ranges]

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Keep the bytes within reach of this thread, whoever closes the source meanwhile: the last one out lets go.

        Raises
        ------
        GGUFError
            If the source is closed, unless this thread was in here before.
        """
        # No lock, which a fork or a signal handler could find taken: each thread changes its own entry only. Who enters
        # is counted before it looks whether the source is closed, and close() looks for readers after it said so.
        me = threading.get_ident()
        inside = self._readers.get(me, 0)
        self._readers[me] = inside + 1
        try:
            if self.closed and not inside:
                self._refuse()
            yield
        finally:
            if inside:
                self._readers[me] = inside
            else:
                del self._readers[me]
                if self.closed and not self._readers:
                    self._release()

    def close(self) -> None:
        """Let go of the bytes, once who is reading has done; new reads raise. Never raises, may be called twice."""
        self.closed = True
        if not self._readers:
            self._release()

    @abstractmethod
    def _release(self) -> None:
        """Let go of the bytes; two threads may do it at once."""

    def owns(self, array: npt.NDArray[Any]) -> bool:
        """Whether an array lies in the very memory that is read from."""
        return False

    def advise(self, hint: Hint, start: int, stop: int) -> None:  # noqa: B027
        """Tell the system how bytes `start` to `stop` will be used; a source without a map ignores it."""

    def abandon(self) -> None:
        """Close a source that nothing was made from, and free its memory now rather than with the last traceback."""
        self.close()

    def check_open(self) -> None:
        """Raise GGUFError if the source is closed to this thread."""
        if self.closed and threading.get_ident() not in self._readers:
            self._refuse()

    def _refuse(self) -> NoReturn:
        raise GGUFError(f"{self.label}: the file is closed")

    def __reduce__(self) -> Any:
        raise TypeError("an open GGUF file can't be pickled or copied; pass its path on and open it there")


def open_regular(path: str | bytes | os.PathLike[Any], label: str) -> tuple[int, int]:
    """Open a regular file for reading and return its descriptor and size; what can't be mapped is refused.

    O_NONBLOCK keeps a FIFO without a writer from blocking the call for ever.
    """
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    fd = os.open(path, flags)
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            kind = "a directory" if stat.S_ISDIR(info.st_mode) else "not a regular file (a pipe, socket or device)"
            raise GGUFError(f"{label}: is {kind}, a GGUF file was expected")
        if info.st_size == 0:
            raise GGUFError(f"{label}: the file is empty, a GGUF file was expected")
    except BaseException:
        os.close(fd)
        raise
    return fd, info.st_size


class MapSource(Source):
    """A file mapped into memory.

    Parameters
    ----------
    path : path-like
        A regular file.
    label : str
        Name for error messages.
    private : bool
        Map copy-on-write: arrays are writable, and what is written stays in this process.

    Notes
    -----
    Arrays hold the map, so it lives until the last of them is gone, however early :meth:`close` is called.
    """

    mapped = True

    def __init__(self, path: str | bytes | os.PathLike[Any], label: str, *, private: bool = False) -> None:
        super().__init__(label)
        fd, self.size = open_regular(path, label)
        access = mmap.ACCESS_COPY if private else mmap.ACCESS_READ
        try:
            self._map: mmap.mmap | None
            with naming(label):
                if sys.version_info >= (3, 13) and os.name == "posix":  # one descriptor less for each open file
                    self._map = mmap.mmap(fd, self.size, access=access, trackfd=False)
                else:
                    self._map = mmap.mmap(fd, self.size, access=access)
        finally:
            os.close(fd)
        self._private = private
        self._alive = weakref.ref(self._map)
        self._bytes: npt.NDArray[np.uint8] | None = np.frombuffer(self._map, np.uint8)

    @property
    def header(self) -> mmap.mmap:
        """The map itself."""
        self.check_open()
        held = self._map
        if held is None:  # closed just now
            self._refuse()
        return held

    @property
    def is_mapped(self) -> bool:
        """Whether the file is still mapped: true until the last array made from it is gone."""
        return self._alive() is not None

    def read(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Bytes `start` to `stop`: a view over the map."""
        held = self._bytes
        if held is None or self.closed:
            self.check_open()
            if held is None:
                self._refuse()
        return held[start:stop]

    def owns(self, array: npt.NDArray[Any]) -> bool:
        """Whether an array lies in the map."""
        held = self._bytes
        return held is not None and np.may_share_memory(held, array)

    def advise(self, hint: Hint, start: int, stop: int) -> None:
        """Pass a hint on to the system, for whole pages inside the range."""
        held = self._map
        if held is None or not hasattr(mmap, "MADV_NORMAL"):
            return
        if hint == "dontneed":
            if self._private:  # dropping such a page would lose what was written to it
                return
            start = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
            stop = stop if stop == self.size else stop // mmap.PAGESIZE * mmap.PAGESIZE
        start = start // mmap.PAGESIZE * mmap.PAGESIZE
        if start < stop:
            held.madvise(getattr(mmap, f"MADV_{hint.upper()}"), start, stop - start)

    def abandon(self) -> None:
        """Close, and unmap at once."""
        held = self._map
        self.close()
        if held is not None:
            held.close()

    def _release(self) -> None:
        """Drop this reference to the map."""
        self._map = None
        self._bytes = None


def local_source(path: str, label: str, mode: str) -> Source:
    """Open a local file in one of the modes of :func:`ggufx.open`."""
    if mode == "read" or (mode == "auto" and changes_under_readers(path)):
        return FileSource(path, label)
    return MapSource(path, label, private=mode == "c")


class PieceSource(Source):
    """A source read piece by piece: the header is fetched as far as parsing needs it, arrays are fresh memory."""

    # Bytes of the first piece: small beside any tensor, and enough for the header of a model without a vocabulary.
    first: ClassVar[int] = 1 << 18

    def __init__(self, label: str, size: int) -> None:
        super().__init__(label)
        self.size = size
        self._header = b""

    @property
    def header(self) -> bytes:
        """The bytes read so far from the beginning of the file."""
        self.check_open()
        if not self._header:
            self.grow_header(self.first)
        return self._header

    def grow_header(self, wanted: int) -> None:
        """Make :attr:`header` at least `wanted` bytes long, or as long as the file."""
        # A little more than the parser asks for, and a quarter more at least: few requests, little too much.
        have = len(self._header)
        stop = min(max(wanted + wanted // 16 + self.first // 4, have * 5 // 4), self.size)
        self._header += self.read(have, stop).tobytes()

    def _release(self) -> None:
        """Forget the header."""
        self._header = b""


class FileSource(PieceSource):
    """A file read with ordinary reads; nothing is mapped."""

    def __init__(self, path: str | bytes | os.PathLike[Any], label: str) -> None:
        fd, size = open_regular(path, label)
        self._descriptor = [fd]  # taken out by whoever closes it, which pop() lets but one do
        super().__init__(label, size)

    def read(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Bytes `start` to `stop`, read into fresh memory."""
        out = np.empty(stop - start, np.uint8)
        view = memoryview(out)  # type: ignore[arg-type]
        done = 0
        with self.reading(), naming(self.label):
            fd = self._descriptor[0]
            while done < len(view):
                got = os.preadv(fd, [view[done:]], start + done)
                if not got:
                    raise GGUFError(f"{self.label}: the file became shorter while it was open")
                done += got
        return out

    def _release(self) -> None:
        """Close the descriptor."""
        super()._release()
        with suppress(IndexError, OSError):
            os.close(self._descriptor.pop())

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            self._release()
