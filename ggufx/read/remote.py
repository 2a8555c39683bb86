"""Files that aren't on this machine: URLs through fsspec, and file objects. Only the bytes asked for are read.

The header takes a few requests (each fetching four times as much as all before), a tensor one request for each 8 MiB,
several at a time. Every answer's length is checked; failures are tried again. Credentials and headers go to fsspec
through `storage_options`; messages name a URL without its user, password and query, and never quote an error of the
network library, which may.
"""

from __future__ import annotations

import errno
import io
import os
import tempfile
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import IO, TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

import numpy as np

from ..codec.threads import run
from ..errors import GGUFError
from .sources import PieceSource, Source, local_source

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["ObjectSource", "RemoteOpener", "RemoteSource"]

T = TypeVar("T")

# One request's bytes at most, and requests at a time: object stores give one connection some 50 to 100 MB/s.
PART_BYTES = 8 << 20
CONNECTIONS = 8
# Tries for one range, with pauses of PAUSE, 2 * PAUSE, ... seconds between them.
TRIES = 4
PAUSE = 0.25


def shown(url: str) -> str:
    """Return a URL as messages may show it: without user, password, query and fragment."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def merged(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sort ranges and join those that touch or overlap, so that nothing is fetched twice."""
    found: list[tuple[int, int]] = []
    for start, stop in sorted(set(ranges)):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(stop, found[-1][1])
        else:
            found.append((start, stop))
    return found


class _WrongLength(Exception):
    """An answer of another length than was asked for: the length."""


def persistently(call: Callable[[], T], label: str, what: str) -> T:
    """Call until it succeeds, up to TRIES times; what fails comes out without the words of the network library.

    Raises
    ------
    FileNotFoundError, PermissionError
        At once, if the server says so.
    OSError
        If every attempt failed.
    """
    failure: Exception = OSError(f"{label}: {what}")
    for attempt in range(TRIES):
        if attempt:
            time.sleep(PAUSE * attempt)
        try:
            return call()
        except _WrongLength as error:
            failure = error
        except Exception as error:  # each file system has errors of its own, and their texts may hold secrets
            failure = _in_our_words(error, label, f"{what} failed {attempt + 1} times")
            if isinstance(failure, (FileNotFoundError, PermissionError)):
                break
    try:
        raise failure from None
    finally:
        del failure  # its traceback holds this frame, and all that wait for the answer


def _in_our_words(error: Exception, label: str, failed: str) -> OSError:
    """What an error of a network library means, without its text."""
    # fsspec calls every failure of an HTTP server's first answer a missing file; the cause tells.
    why = error.__cause__ or error if isinstance(error, FileNotFoundError) else error
    status = getattr(why, "status", None)
    for kind, code, statuses in (
        (FileNotFoundError, errno.ENOENT, (404, 410)),
        (PermissionError, errno.EACCES, (401, 403)),
    ):
        if isinstance(why, kind) or status in statuses:
            return kind(code, os.strerror(code), label)
    named = type(why).__name__ + (f", status {status}" if isinstance(status, int) else "")
    return OSError(f"{label}: {failed}, the last time with {named}")


class RemoteSource(PieceSource):
    """A file behind an fsspec file system."""

    def __init__(self, system: Any, path: str, label: str, size: int) -> None:
        super().__init__(label, size)
        self._system = system
        self._path = path

    def read(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Fetch bytes `start` to `stop`."""
        return self.read_ranges([(start, stop)])[0]

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[npt.NDArray[np.uint8]]:
        """Fetch several ranges, several requests at a time; what two of them share is fetched once."""
        spans = merged(ranges)
        buffers = [np.empty(stop - start, np.uint8) for start, stop in spans]
        parts = [
            (buffer, start, at, min(at + PART_BYTES, stop))
            for buffer, (start, stop) in zip(buffers, spans, strict=True)
            for at in range(start, stop, PART_BYTES)
        ]

        def fetch(part: tuple[npt.NDArray[np.uint8], int, int, int]) -> None:
            buffer, base, start, stop = part
            buffer[start - base : stop - base] = np.frombuffer(self._fetch(start, stop), np.uint8)

        with self.reading():
            run(fetch, parts, max(1, min(CONNECTIONS, len(parts))))
        starts = [start for start, _ in spans]
        found = []
        for start, stop in ranges:
            i = bisect_right(starts, start) - 1
            found.append(buffers[i][start - starts[i] : stop - starts[i]])
        return found

    def _fetch(self, start: int, stop: int) -> bytes:
        what = f"reading bytes {start} to {stop}"

        def answer() -> bytes:
            found: bytes = self._system.cat_file(self._path, start=start, end=stop)
            if len(found) != stop - start:
                raise _WrongLength(len(found))
            return found

        try:
            return persistently(answer, self.label, what)
        except _WrongLength as error:
            message = (
                f"{self.label}: {what} gave {error} bytes instead of {stop - start}: the connection broke, the file "
                "changed, or the server ignores ranges (download it first, or open it with download=True in Python)"
            )
        raise GGUFError(message)


class RemoteOpener:
    """Opens URLs of one file system.

    Parameters
    ----------
    url : str
        Anything fsspec knows.
    options : mapping or None
        For the file system.
    mode : str
        For ``file://`` URLs and downloads, which are mapped or read like any local file.
    download : bool
        Fetch the whole file into a temporary one.

    Attributes
    ----------
    path : str
        What the file system calls the URL.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None, mode: str, download: bool) -> None:
        try:
            from fsspec.core import url_to_fs
        except ImportError:
            raise ImportError(f"{shown(url)}: opening URLs needs fsspec; install ggufx[remote]") from None
        try:
            self._system, self.path = url_to_fs(url, **(options or {}))
        except ImportError as error:
            raise ImportError(f"{shown(url)}: {error}; for s3:// install ggufx[s3]") from None
        self._mode = mode
        self._download = download
        names = self._system.protocol
        self._protocols = {names} if isinstance(names, str) else set(names)
        self._scheme = urlsplit(url).scheme

    def label(self, path: str) -> str:
        """What messages call `path`."""
        return shown(path if "://" in path else f"{self._scheme}://{path}")

    def source(self, path: str) -> Source:
        """Open `path`.

        Raises
        ------
        FileNotFoundError, PermissionError, OSError
            If the server says so, or can't be reached.
        GGUFError
            If the server can't send ranges.
        """
        label = self.label(path)
        if self._protocols & {"file", "local"}:
            return self._local(path, path)
        if self._download:
            return self._downloaded(path, label)
        size = self._size(path, label)
        if size is None or not self._has_ranges(path, label, size):
            lack = "doesn't say how large the file is" if size is None else "can't send parts of a file (no ranges)"
            raise GGUFError(f"{label}: the server {lack}; download it first, or open it with download=True in Python")
        if size == 0:
            raise GGUFError(f"{label}: the file is empty, a GGUF file was expected")
        return RemoteSource(self._system, path, label, size)

    def _local(self, path: str, label: str) -> Source:
        return local_source(path, label, self._mode)

    def _size(self, path: str, label: str) -> int | None:
        info = persistently(lambda: self._system.info(path), label, "asking for the file's size")
        if info.get("type") == "directory":
            raise GGUFError(f"{label}: is a directory, a GGUF file was expected")
        size = info.get("size")
        return size if isinstance(size, int) else None

    def _has_ranges(self, path: str, label: str, size: int) -> bool:
        """Ask an HTTP server for its second byte: one without ranges would otherwise send everything, each time."""
        if not self._protocols & {"http", "https"}:
            return True

        def second_byte() -> bool:
            try:
                with self._system.open(path, "rb", cache_type="none", block_size=1 << 12, size=size) as file:
                    file.seek(1)
                    return len(file.read(1)) == 1
            except ValueError:
                return False

        return persistently(second_byte, label, "asking for a part of the file")

    def _downloaded(self, path: str, label: str) -> Source:
        handle, name = tempfile.mkstemp(suffix=".gguf")
        os.close(handle)
        try:
            persistently(lambda: self._system.get_file(path, name), label, "downloading it")
            return self._local(name, label)
        finally:
            os.unlink(name)  # the open map or descriptor keeps the bytes


class ObjectSource(PieceSource):
    """A seekable binary file object. It stays the caller's: close() doesn't close it."""

    def __init__(self, file: IO[bytes]) -> None:
        name = getattr(file, "name", None)
        label = shown(name) if isinstance(name, str) and "://" in name else str(name or type(file).__name__)
        if isinstance(file, io.TextIOBase) or hasattr(file, "encoding"):
            raise TypeError(f"{label}: the file object is in text mode; open it in binary mode, open(path, 'rb')")
        try:
            end = file.seek(0, io.SEEK_END)
        except io.UnsupportedOperation:
            raise io.UnsupportedOperation(
                f"{label}: the file object can't seek; read it into io.BytesIO, or into a file, first"
            ) from None
        super().__init__(label, end if isinstance(end, int) else file.tell())  # some say nothing
        if self.size == 0:
            raise GGUFError(f"{label}: the file is empty, a GGUF file was expected")
        self._file = file
        self._lock = threading.RLock()
        self._process = os.getpid()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Have the file object for this thread alone: it has but one position."""
        with self._alone(), super().reading():
            yield

    def _alone(self) -> AbstractContextManager[bool]:
        if self._process != os.getpid():  # a forked child: another thread may have held the lock, and isn't here
            self._process, self._lock = os.getpid(), threading.RLock()
        return self._lock

    def read(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Read bytes `start` to `stop` into fresh memory."""
        out = np.empty(stop - start, np.uint8)
        done = 0
        with self.reading():
            if getattr(self._file, "closed", False):
                raise GGUFError(f"{self.label}: the file object was closed")
            self._file.seek(start)
            while done < len(out):
                piece = self._file.read(len(out) - done)
                if not isinstance(piece, (bytes, bytearray, memoryview)):
                    raise TypeError(
                        f"{self.label}: the file object gives {type(piece).__name__}, not bytes; open it in binary mode"
                    )
                if not piece:
                    raise GGUFError(f"{self.label}: the file ends at {start + done}, bytes up to {stop} were expected")
                out[done : done + len(piece)] = np.frombuffer(piece, np.uint8)
                done += len(piece)
        return out

    def close(self) -> None:
        """Wait until nobody reads, for the file object may be closed next, and forget the header."""
        self.closed = True
        with self._alone():
            super().close()
