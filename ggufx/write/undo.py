"""The old bytes of a file's header, kept beside the file while new ones are written over them.

What a killed process leaves is put back only into the file that it was taken from, and only where the file is torn: the
record has the file's number and size, a digest of the header around the change, and the bytes before and after it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import warnings
from collections.abc import Callable
from struct import Struct
from typing import NamedTuple

import numpy as np

from ..errors import GGUFError, GGUFWarning, naming
from ..read.index import Limits
from .outfile import UNDO_MAGIC, OutputFile, lock_file, open_own, sync_folder, undo_path

__all__ = ["replace_span", "restore", "undo_unfinished"]

# Magic, inode, size of the file, bytes of its header, where the change begins, its length, digest of the rest of the
# header; the old bytes, the new ones and a digest of all that follow.
_HEAD = Struct("<8sQQQQQ32s")
_DIGEST = 32


class _Record(NamedTuple):
    inode: int
    size: int
    header: int
    start: int
    old: bytes
    new: bytes
    rest: bytes


def undo_unfinished(path: str | os.PathLike[str]) -> bool:
    """Put back what an interrupted in-place edit had replaced.

    Returns
    -------
    bool
        Whether anything had to be put back. An edit that had written everything stays.

    Warns
    -----
    GGUFWarning
        If the saved bytes are another file's, which `path` has replaced; they are removed.

    Raises
    ------
    GGUFError
        If it can't be told whether the saved bytes belong to the file.
    OSError
        EBUSY, if the edit is still going on.
    """
    target = os.path.realpath(path)
    if not os.path.lexists(undo_path(target)):
        return False
    with lock_file(target) as lock:
        return restore(target, lock)


def restore(target: str, lock: int) -> bool:
    """As :func:`undo_unfinished`, for a file whose lock is held."""
    undo = undo_path(target)
    try:
        fd = open_own(undo, os.O_RDONLY)
    except FileNotFoundError:
        return False
    with open(fd, "rb") as saved:
        record = _read(undo, saved.read(_HEAD.size), os.fstat(fd).st_size, lambda count: saved.read(count))
    now = os.fstat(lock)
    same_file = record.inode == now.st_ino
    span = _span(target, record) if record.size == now.st_size else None
    if span is None:
        if same_file:
            raise GGUFError(
                f"{target}: an edit of it was interrupted, and it was changed since; remove {undo} if the file is whole"
            )
        os.unlink(undo)  # before the warning, which may be an error
        warnings.warn(
            f"{target}: {undo} was left by an edit of a file that this one has replaced; it is removed",
            GGUFWarning,
            stacklevel=3,
        )
        return False
    torn = span not in (record.old, record.new)
    if torn:
        if not same_file:
            raise GGUFError(
                f"{target}: this seems to be a copy of a file whose edit was interrupted; "
                f"remove {undo} if the file is whole"
            )
        _write(target, lock, record.start, record.old, sync=True)
    os.unlink(undo)
    return torn


def replace_span(target: str, lock: int, header: bytes, start: int, new: bytes, *, sync: bool) -> None:
    """Write `new` over a span of the header; the old bytes stay beside the file until that is done.

    Parameters
    ----------
    target : str
        The file; no link.
    lock : int
        What :func:`~ggufx.write.outfile.lock_file` gave.
    header : bytes
        The header as it is.
    start : int
        Where the span begins.
    new : bytes
    sync : bool
        Wait until the new bytes are on disk.
    """
    stop, now = start + len(new), os.fstat(lock)
    rest = _digest(header[:start], header[stop:])
    record = _HEAD.pack(UNDO_MAGIC, now.st_ino, now.st_size, len(header), start, len(new), rest)
    record += header[start:stop] + new
    record += _digest(record)
    # Nothing is there, or it has been dealt with: a link that appears now is replaced, never followed.
    saved = OutputFile(undo_path(target), inputs=[target], sync=True, follow=False)
    try:
        saved.write(record)
        saved.finish(len(record))
        written = saved.publish()
    finally:
        saved.discard()
    _write(target, lock, start, new, sync=sync)
    try:
        # A writer that replaced the file meanwhile has removed ours; another edit's may be there now.
        if os.path.samestat(os.lstat(undo_path(target)), written):
            os.unlink(undo_path(target))
    except FileNotFoundError:
        pass
    if sync:
        sync_folder(os.path.dirname(target))
    _check_same(target, lock)


def _write(target: str, lock: int, start: int, data: bytes, *, sync: bool) -> None:
    with naming(target), open(target, "r+b") as f:
        _check_same(target, lock, f.fileno())
        f.seek(start)
        f.write(data)
        f.flush()
        if sync:
            os.fsync(f.fileno())


def _check_same(target: str, lock: int, opened: int | None = None) -> None:
    found = os.stat(target) if opened is None else os.fstat(opened)
    if not os.path.samestat(found, os.fstat(lock)):
        raise OSError(errno.EBUSY, "another process replaced this file while it was edited", target)


def _read(undo: str, head: bytes, size: int, read: Callable[[int], bytes]) -> _Record:
    """The record of a file of `size` bytes that begins with `head`; nothing is read before the sizes agree."""
    if len(head) == _HEAD.size:
        magic, inode, total, header, start, length, rest = _HEAD.unpack(head)
        longest = min(total, Limits().max_header_bytes)
        if magic == UNDO_MAGIC and size == _HEAD.size + 2 * length + _DIGEST and start + length <= header <= longest:
            body, digest = read(2 * length), read(_DIGEST)
            if digest == _digest(head, body):
                return _Record(inode, total, header, start, body[:length], body[length:], rest)
    raise GGUFError(f"{undo}: this is no saved header of an edit, or a damaged one; remove it to go on")


def _span(target: str, record: _Record) -> bytes | None:
    """The file's bytes where the change was, or None if the file can't be what the change has made of the old one."""
    stop = record.start + len(record.old)
    with open(target, "rb") as f:
        header = f.read(record.header)
    if len(header) != record.header or _digest(header[: record.start], header[stop:]) != record.rest:
        return None
    span = header[record.start : stop]
    now, old, new = (np.frombuffer(part, np.uint8) for part in (span, record.old, record.new))
    return span if bool(((now == old) | (now == new)).all()) else None


def _digest(*parts: bytes) -> bytes:
    total = hashlib.sha256()
    for part in parts:
        total.update(part)
    return total.digest()
