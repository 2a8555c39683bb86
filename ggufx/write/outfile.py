"""A file that appears whole or not at all.

The bytes go to a hidden file beside the target, which is renamed over it once everything is written, checked and on
disk. The hidden file's name follows from the target's, and its writer holds a lock on it: what a killed process left
behind is removed by the next one, and two writers of one target can't mix. Nothing is ever written into a file that was
there: the hidden one is new, and where a link or an input has its name, nothing is done.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from typing import IO, Any

from ..errors import naming

try:
    import fcntl
except ImportError:  # Windows has no flock; a file opened for writing can't be renamed away there either
    fcntl = None  # type: ignore[assignment]

__all__ = [
    "UNDO_MAGIC",
    "OutputFile",
    "check_free_space",
    "lock_file",
    "open_own",
    "refuse_inputs",
    "sync_folder",
    "undo_path",
]

# First bytes of what an in-place edit keeps beside the file.
UNDO_MAGIC = b"ggufxun2"

# Written at once at most: keeps a signal's delay and the kernel's working set small.
PIECE = 1 << 26
# Windows has none of these three. Nothing blocks on opening a regular file; a pipe that took its place would.
NEVER_A_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
# So often is a file looked for that others create, rename and remove; some file systems never give it the same number.
TRIES = 1000
BINARY = getattr(os, "O_BINARY", 0)


def open_own(path: str, flags: int) -> int:
    """Open a hidden file of ours: a regular file of one name, never a link to another.

    Raises
    ------
    FileNotFoundError
        If nothing is there.
    OSError
        EEXIST, if it is something else.
    """
    try:
        # The look beforehand is for what must not even be opened (devices), and for systems without O_NOFOLLOW.
        _refuse_foreign(os.lstat(path), path)
        fd = os.open(path, flags | NEVER_A_LINK | BINARY)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _foreign(path) from None
        raise
    try:
        _refuse_foreign(os.fstat(fd), path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _refuse_foreign(found: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        raise _foreign(path)


def _foreign(path: str) -> OSError:
    return OSError(
        errno.EEXIST, "a link or something else has the name of a hidden file of ours; remove it to go on", path
    )


def _is_at(path: str, fd: int) -> bool:
    """Whether the open file is the one of that name."""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(fd))
    except FileNotFoundError:
        return False


@contextmanager
def lock_file(path: str) -> Iterator[int]:
    """Hold the lock of a regular file that is there, for a change of it; gives its descriptor, for looking at it.

    Raises
    ------
    OSError
        EBUSY, if another process (or another thread's change) has it.
    """
    fd = _open_locked(path)
    try:
        yield fd
    finally:
        if fcntl is not None:
            fcntl.flock(fd, fcntl.LOCK_UN)  # closing alone would leave it to a child that was forked meanwhile
        os.close(fd)


def _open_locked(path: str) -> int:
    flags = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | BINARY
    for _ in range(TRIES):
        try:
            fd = os.open(path, os.O_RDWR | flags)  # some network file systems lock only what may be written
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EROFS):
                raise
            fd = os.open(path, os.O_RDONLY | flags)  # enough for replacing it by a copy
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(errno.EINVAL, "this is no regular file, so it can't be changed", path)
            _lock(fd, path)
            # Another process may have replaced the file between our opening and locking it.
            if os.path.samestat(os.stat(path), os.fstat(fd)):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
    raise _busy(path)


def _lock(fd: int, path: str) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _busy(path) from None


def _busy(path: str) -> OSError:
    return OSError(errno.EBUSY, "another process is writing this file", path)


def refuse_inputs(target: str, inputs: Iterable[str | os.PathLike[str]], what: str = "the output") -> None:
    """Refuse a target that is one of the inputs, under whatever name.

    Raises
    ------
    ValueError
        If target and input are one file (the same inode: a hard or symbolic link counts).
    """
    try:
        found = os.stat(target)
    except OSError:
        return
    for source in inputs:
        try:
            same = os.path.samestat(found, os.stat(source))
        except OSError:
            continue
        if same:
            raise ValueError(f"{target}: {what} is the input {os.fspath(source)!r}; write to another file")


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
    inputs : iterable of path-like
        Files that neither the target nor the hidden file may be.
    sync : bool
        Wait until the bytes are on disk before the file appears.
    follow : bool
        Whether a symbolic link is followed; without it the file replaces the link.
    """

    def __init__(
        self,
        target: str | os.PathLike[str],
        *,
        inputs: Iterable[str | os.PathLike[str]] = (),
        sync: bool = True,
        follow: bool = True,
    ) -> None:
        self.target = os.path.realpath(target) if follow else os.path.abspath(target)
        if os.path.exists(self.target) and not os.path.isfile(self.target):
            raise OSError(errno.EINVAL, "this is no regular file, so it can't be replaced", self.target)
        folder, name = os.path.split(self.target)
        self.partial = os.path.join(folder, _hidden(folder, name, ".partial"))
        self.sync = sync
        self.size = 0
        inputs = list(inputs)
        refuse_inputs(self.target, inputs)
        self._fd = self._open(inputs)
        try:
            if os.path.exists(self.target):
                os.fchmod(self._fd, os.stat(self.target).st_mode & 0o777)
        except BaseException:
            self.discard()
            raise

    def _open(self, inputs: list[str | os.PathLike[str]]) -> int:
        for _ in range(TRIES):
            try:
                fd = os.open(self.partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | NEVER_A_LINK | BINARY, 0o666)
            except FileExistsError:
                self._clear(inputs)
                continue
            try:
                _lock(fd, self.target)
                # Another writer may have removed or renamed the file between our opening and locking it.
                if _is_at(self.partial, fd):
                    return fd
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)
        raise _busy(self.target)

    def _clear(self, inputs: list[str | os.PathLike[str]]) -> None:
        """Remove what a killed writer left; its lock tells that nobody is writing it."""
        refuse_inputs(self.partial, inputs, "the hidden file that becomes the output")
        try:
            fd = open_own(self.partial, os.O_RDWR)
        except FileNotFoundError:
            return
        try:
            _lock(fd, self.target)
            if _is_at(self.partial, fd):
                if fcntl is None:  # Windows removes no file that is open
                    os.close(fd)
                    fd = -1
                os.unlink(self.partial)
        finally:
            if fd >= 0:
                os.close(fd)

    def stream(self) -> IO[bytes]:
        """A buffered file that writes here too; :meth:`measure` counts what went through it."""
        return io.BufferedWriter(_Named(self.partial, "wb", opener=lambda path, flags: os.dup(self._fd)))

    def measure(self) -> int:
        """Count what is written by the file's size."""
        self.size = os.fstat(self._fd).st_size
        return self.size

    def write(self, data: Any) -> None:
        """Append the bytes of a buffer."""
        view = memoryview(data)
        done = 0
        with naming(self.target):
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
            with naming(self.target):
                os.fsync(self._fd)

    def publish(self) -> os.stat_result:
        """Put the file in place of the target, in one step.

        Returns
        -------
        os.stat_result
            Of the file.

        Raises
        ------
        OSError
            If another file has taken the hidden one's name meanwhile.
        """
        if not _is_at(self.partial, self._fd):
            raise OSError(errno.EBUSY, "another file has been put in place of the one that was written", self.partial)
        os.replace(self.partial, self.target)
        written = os.fstat(self._fd)
        os.close(self._fd)
        self._fd = -1
        _forget_undo(self.target)
        if self.sync:
            sync_folder(os.path.dirname(self.target))
        return written

    def discard(self) -> None:
        """Remove what was written; the target stays as it was."""
        if self._fd < 0:
            return
        try:
            if _is_at(self.partial, self._fd):
                os.unlink(self.partial)
        except FileNotFoundError:
            pass
        finally:
            os.close(self._fd)
            self._fd = -1


def undo_path(target: str) -> str:
    """Where an in-place edit of a file keeps what it replaces."""
    folder, name = os.path.split(target)
    return os.path.join(folder, _hidden(folder, name, ".undo"))


def _hidden(folder: str, name: str, ending: str) -> str:
    """The name of a hidden file beside a target; where it would be too long, a digest stands for the target's."""
    try:
        longest = os.pathconf(folder or ".", "PC_NAME_MAX")
    except (AttributeError, OSError, ValueError):  # Windows, a folder that isn't there
        longest = 255
    if len(os.fsencode(f".{name}{ending}")) <= longest:
        return f".{name}{ending}"
    return f".{sha256(os.fsencode(name)).hexdigest()[:32]}{ending}"


def _forget_undo(target: str) -> None:
    """Remove what an interrupted edit of the file before has left, if it is that."""
    undo = undo_path(target)
    try:
        fd = open_own(undo, os.O_RDONLY)
    except OSError:
        return
    with open(fd, "rb") as saved:
        ours = saved.read(len(UNDO_MAGIC)) == UNDO_MAGIC
    if ours:
        with suppress(OSError):
            os.unlink(undo)


class _Named(io.FileIO):
    """A file whose errors in writing tell its name."""

    def write(self, data: Any) -> int:
        with naming(os.fspath(self.name)):
            return super().write(data)


def sync_folder(folder: str) -> None:
    """Wait until a folder's names are on disk, where there is such a thing."""
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
