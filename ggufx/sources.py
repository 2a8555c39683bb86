"""Where the bytes of a model come from: a file mapped into memory, or read piece by piece.

A source hands out byte ranges as numpy arrays and knows nothing of what they mean. Files, tensors and metadata share
one source, so that ``close()`` reaches all of them and nothing forms a reference cycle.
"""

from __future__ import annotations

import mmap
import os
import stat
import sys
import weakref
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import GGUFError

if TYPE_CHECKING:
    import numpy.typing as npt

    HeaderBuffer = bytes | mmap.mmap

__all__ = ["FileSource", "MapSource", "Source", "open_regular"]


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
    """

    label: str
    size: int
    big_endian: bool = False
    closed: bool = False

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

    @abstractmethod
    def close(self) -> None:
        """Let go of the bytes; later reads raise. Never raises, and may be called twice."""

    def abandon(self) -> None:
        """Close a source that nothing was made from, and free its memory now rather than with the last traceback."""
        self.close()

    def check_open(self) -> None:
        """Raise GGUFError if the source is closed."""
        if self.closed:
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

    def __init__(self, path: str | bytes | os.PathLike[Any], label: str, *, private: bool = False) -> None:
        fd, self.size = open_regular(path, label)
        access = mmap.ACCESS_COPY if private else mmap.ACCESS_READ
        try:
            self._map: mmap.mmap | None
            if sys.version_info >= (3, 13) and os.name == "posix":  # one descriptor less for each open file
                self._map = mmap.mmap(fd, self.size, access=access, trackfd=False)
            else:
                self._map = mmap.mmap(fd, self.size, access=access)
        finally:
            os.close(fd)
        self.label = label
        self._alive = weakref.ref(self._map)
        self._bytes: npt.NDArray[np.uint8] | None = np.frombuffer(self._map, np.uint8)

    @property
    def header(self) -> mmap.mmap:
        """The map itself."""
        if self._map is None:
            self.check_open()
            raise AssertionError
        return self._map

    @property
    def is_mapped(self) -> bool:
        """Whether the file is still mapped: true until the last array made from it is gone."""
        return self._alive() is not None

    def read(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Bytes `start` to `stop`: a view over the map."""
        if self._bytes is None:
            self.check_open()
            raise AssertionError
        return self._bytes[start:stop]

    def abandon(self) -> None:
        """Close, and unmap at once."""
        held = self._map
        self.close()
        if held is not None:
            held.close()

    def close(self) -> None:
        """Drop this reference to the map."""
        self.closed = True
        self._map = None
        self._bytes = None


class FileSource(Source):
    """A file read with ordinary reads: each array is fresh, writable memory of its own, and nothing is mapped."""

    # Enough for the header of nearly any model in one read.
    FIRST = 1 << 20

    def __init__(self, path: str | bytes | os.PathLike[Any], label: str) -> None:
        self.label = label
        self._fd, self.size = open_regular(path, label)
        self._header = b""
        self.grow_header(self.FIRST)

    @property
    def header(self) -> bytes:
        """The bytes read so far from the beginning of the file."""
        self.check_open()
        return self._header

    def grow_header(self, wanted: int) -> None:
        """Make :attr:`header` at least `wanted` bytes long, or as long as the file."""
        have = len(self._header)
        self._header += self.read(have, min(max(wanted, have), self.size)).tobytes()

    def read(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Bytes `start` to `stop`, read into fresh memory."""
        self.check_open()
        out = np.empty(stop - start, np.uint8)
        view = memoryview(out)  # type: ignore[arg-type]
        done = 0
        while done < len(view):
            got = os.preadv(self._fd, [view[done:]], start + done)
            if not got:
                raise GGUFError(f"{self.label}: the file became shorter while it was open")
            done += got
        return out

    def close(self) -> None:
        """Close the descriptor."""
        if not self.closed:
            self.closed = True
            os.close(self._fd)

    def __del__(self) -> None:
        if getattr(self, "_fd", None) is not None:
            self.close()
