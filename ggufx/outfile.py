"""A file that appears whole or not at all.

The bytes go to a hidden file beside the target, which is renamed over it once everything is written, checked and on
disk. The hidden file's name follows from the target's, and its writer holds a lock on it: what a killed process left
behind is taken over by the next one, and two writers of one target can't mix.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable
from typing import Any

try:
    import fcntl
except ImportError:  # Windows has no flock; a file opened for writing can't be renamed away there either
    fcntl = None  # type: ignore[assignment]

__all__ = ["OutputFile", "check_free_space", "refuse_inputs"]

# Written at once at most: keeps a signal's delay and the kernel's working set small.
PIECE = 1 << 26


def refuse_inputs(target: str, inputs: Iterable[str | os.PathLike[str]]) -> None:
    """Refuse a target that is one of the inputs, under whatever name.

    Raises
    ------
    ValueError
        If target and input are one file (the same inode: a hard or symbolic link counts).
    """
    for source in inputs:
        try:
            same = os.path.samefile(target, source)
        except OSError:
            continue
        if same:
            raise ValueError(f"{target}: the output is the input {os.fspath(source)!r}; write to another file")


def check_free_space(target: str, nbytes: int) -> None:
    """Refuse to start what can't end.

    Raises
    ------
    OSError
        ENOSPC, naming what is needed and what is there.
    """
    folder = os.path.dirname(target) or "."
    free = shutil.disk_usage(folder).free
    if nbytes > free:
        raise OSError(errno.ENOSPC, f"{nbytes} bytes are needed and {free} are free", target)


class OutputFile:
    """A target file while it is being written.

    Parameters
    ----------
    target : str
        Where the file will be; a symbolic link is followed, so that the link stays.
    sync : bool
        Wait until the bytes are on disk before the file appears.
    """

    def __init__(self, target: str | os.PathLike[str], *, sync: bool = True) -> None:
        self.target = os.path.realpath(target)
        if os.path.exists(self.target) and not os.path.isfile(self.target):
            raise OSError(errno.EINVAL, "this is no regular file, so it can't be replaced", self.target)
        folder, name = os.path.split(self.target)
        self.partial = os.path.join(folder, f".{name}.partial")
        self.sync = sync
        self.size = 0
        self._fd = self._open()
        try:
            os.ftruncate(self._fd, 0)
            if os.path.exists(self.target):
                os.fchmod(self._fd, os.stat(self.target).st_mode & 0o777)
        except BaseException:
            self.discard()
            raise

    def _open(self) -> int:
        while True:
            fd = os.open(self.partial, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
            if fcntl is None:
                return fd
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Another writer may have renamed the file away between our opening and locking it.
                here = os.stat(self.partial)
                if os.path.samestat(here, os.fstat(fd)):
                    return fd
            except FileNotFoundError:
                pass
            except BlockingIOError:
                os.close(fd)
                raise OSError(errno.EBUSY, "another process is writing this file", self.target) from None
            os.close(fd)

    def write(self, data: Any) -> None:
        """Append the bytes of a buffer."""
        view = memoryview(data)
        done = 0
        while done < len(view):
            done += os.write(self._fd, view[done : done + PIECE])
        self.size += done

    def pad(self, alignment: int) -> None:
        """Append zeros up to a multiple of `alignment`."""
        missing = -self.size % alignment
        while missing:
            step = min(missing, PIECE)
            self.write(bytes(step))
            missing -= step

    def finish(self, expected: int) -> None:
        """Check the size and wait for the disk; the file can be published then.

        Raises
        ------
        OSError
            If the file hasn't the expected size.
        """
        size = os.fstat(self._fd).st_size
        if size != expected or self.size != expected:
            raise OSError(errno.EIO, f"{size} bytes were written, {expected} were planned", self.partial)
        if self.sync:
            os.fsync(self._fd)

    def publish(self) -> None:
        """Put the file in place of the target, in one step."""
        os.replace(self.partial, self.target)
        os.close(self._fd)
        self._fd = -1
        if self.sync:
            _sync_folder(os.path.dirname(self.target))

    def discard(self) -> None:
        """Remove what was written; the target stays as it was."""
        if self._fd < 0:
            return
        try:
            os.unlink(self.partial)
        except FileNotFoundError:
            pass
        finally:
            os.close(self._fd)
            self._fd = -1


def _sync_folder(folder: str) -> None:
    try:
        fd = os.open(folder or ".", os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(fd)
    except OSError:
        pass  # some file systems have no such thing; the file itself is on disk
    finally:
        os.close(fd)
