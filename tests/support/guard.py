"""Arrays that end, or begin, exactly at a page that may not be touched: a read or write beyond them is a crash."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class GuardedMemory:
    """Memory between two forbidden pages.

    Parameters
    ----------
    nbytes : int
        Room between the guards is this, rounded up to whole pages.

    Notes
    -----
    Use as a context manager; arrays must not outlive it.
    """

    def __init__(self, nbytes: int) -> None:
        page = mmap.PAGESIZE
        self._room = max(1, -(-nbytes // page)) * page
        self._size = self._room + 2 * page
        base = _libc.mmap(None, self._size, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        if base in (None, ctypes.c_void_p(-1).value):
            raise OSError(ctypes.get_errno(), "mmap")
        self._base = base
        if _libc.mprotect(base + page, self._room, mmap.PROT_READ | mmap.PROT_WRITE):
            raise OSError(ctypes.get_errno(), "mprotect")
        room = (ctypes.c_uint8 * self._room).from_address(base + page)
        self._bytes = np.frombuffer(room, np.uint8)

    def at_end(self, nbytes: int) -> np.ndarray:
        """uint8 array whose last byte is the last before the guard page."""
        return self._bytes[self._room - nbytes :]

    def at_start(self, nbytes: int) -> np.ndarray:
        """uint8 array whose first byte is the first after the guard page."""
        return self._bytes[:nbytes]

    def read_only(self) -> None:
        """Forbid writing from here on."""
        if _libc.mprotect(self._base + mmap.PAGESIZE, self._room, mmap.PROT_READ):
            raise OSError(ctypes.get_errno(), "mprotect")

    def __enter__(self) -> GuardedMemory:
        return self

    def __exit__(self, *exc: object) -> None:
        _libc.munmap(self._base, self._size)
