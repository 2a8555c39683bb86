"""Dividing a model into shards, joining shards, and turning the byte order: the same tensors in other files."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from .errors import GGUFError
from .reader import GGUFFile
from .reader import open as open_gguf
from .stream import shard_name
from .writer import SPLIT_KEYS, Writer

__all__ = ["check_set", "convert_endian", "merge", "shard_paths", "split"]

_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf\Z", re.DOTALL)
Progress = Callable[[str, int, int], None]


def split(
    path: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    max_bytes: int | None = None,
    max_tensors: int | None = None,
    first_empty: bool = False,
    sync: bool = True,
    progress: Progress | None = None,
) -> list[str]:
    """Divide a model into shards.

    Parameters
    ----------
    path : path-like
    output : path-like
        Prefix of the shards' names (a ``.gguf`` at its end is left out).
    max_bytes, max_tensors : int, optional
        Tensor data, or tensors, of a shard at most. One of them is needed.
    first_empty : bool
        Keep tensors out of the first shard, so that it is small.

    Returns
    -------
    list of str
        The shards' paths.
    """
    if max_bytes is None and max_tensors is None:
        raise TypeError("split() needs max_bytes or max_tensors")
    with open_gguf(path, shards=False) as f:
        _check_whole(f)
        writer = Writer(
            output,
            byteorder=f.byte_order,
            version=f.version,
            split_max_bytes=max_bytes,
            split_max_tensors=max_tensors,
            split_first_empty=first_empty,
            split_always=True,
            inputs=[path],
            sync=sync,
            progress=progress,
        )
        return _copy(writer, [f])


def merge(
    path: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    sync: bool = True,
    progress: Progress | None = None,
) -> list[str]:
    """Join the shards of a model, of which `path` is any, into one file without ``split.*`` keys.

    Returns
    -------
    list of str
        The path written.

    Raises
    ------
    GGUFError
        If a shard is missing, or doesn't belong to the others; the message names it.
    """
    paths = shard_paths(path)
    with ExitStack() as opened:
        files = [opened.enter_context(open_gguf(p, shards=False)) for p in paths]
        check_set(files)
        first = files[0]
        writer = Writer(
            output, byteorder=first.byte_order, version=first.version, inputs=paths, sync=sync, progress=progress
        )
        return _copy(writer, files)


def convert_endian(
    path: str | os.PathLike[str],
    output: str | os.PathLike[str],
    byteorder: str,
    *,
    sync: bool = True,
    progress: Progress | None = None,
) -> list[str]:
    """Write a file in the given byte order, every field of header and blocks turned round.

    Raises
    ------
    GGUFError
        If a tensor is of an unknown type, whose fields can't be known.
    """
    with open_gguf(path, shards=False) as f:
        version = f.version if byteorder == "little" else 3
        writer = Writer(output, byteorder=byteorder, version=version, inputs=[path], sync=sync, progress=progress)
        return _copy(writer, [f], keep_split_keys=True)


def shard_paths(path: str | os.PathLike[str]) -> list[str]:
    """The paths of all shards of the set that `path` is one of, first to last.

    Raises
    ------
    GGUFError
        If the name isn't that of a shard, or a shard is missing.
    """
    name = os.fspath(path)
    match = _SHARD.match(name)
    if not match or not 1 <= int(match[2]) <= int(match[3]):
        raise GGUFError(f"{name}: this isn't the name of a shard (NAME-00001-of-0000N.gguf)")
    paths = [shard_name(match[1], number, int(match[3])) for number in range(int(match[3]))]
    missing = [os.path.basename(p) for p in paths if not os.path.exists(p)]
    if missing:
        raise GGUFError(f"{name}: {len(missing)} of {len(paths)} shards are missing, the first is {missing[0]}")
    return paths


def _check_whole(f: GGUFFile) -> None:
    count = f.metadata.get("split.count", 0)
    if count > 1:
        raise GGUFError(f"{f.path} is one of {count} shards; merge them before splitting anew")


def check_set(files: list[GGUFFile]) -> None:
    """Check the keys of a set of shards against their names; a file by itself is a set of one."""
    if len(files) == 1 and files[0].metadata.get("split.count", 0) <= 1:
        return
    seen: dict[str, str] = {}
    for number, f in enumerate(files):
        no, count = f.metadata.get("split.no"), f.metadata.get("split.count")
        if (no, count) != (number, len(files)):
            raise GGUFError(f"{f.path}: its keys say shard {no} of {count}, its name says {number} of {len(files)}")
        if f.byte_order != files[0].byte_order or f.alignment != files[0].alignment:
            raise GGUFError(f"{f.path}: byte order or alignment differ from those of {files[0].path}")
        for name in f.tensors:
            if name in seen:
                raise GGUFError(f"{f.path}: tensor {name!r} is in {seen[name]} too")
            seen[name] = f.path
    total: Any = files[0].metadata.get("split.tensors.count", len(seen))
    if total != len(seen):
        raise GGUFError(f"{files[0].path}: split.tensors.count is {total}, but the shards hold {len(seen)} tensors")


def _copy(writer: Writer, files: list[GGUFFile], *, keep_split_keys: bool = False) -> list[str]:
    """Fill the writer from opened files and write."""
    writer.update(files[0].metadata)
    if not keep_split_keys:
        for key in SPLIT_KEYS:
            if key in writer:
                writer.delete(key)
    for f in files:
        for t in f.tensors.values():
            writer.add(t.name, t)
    return writer.close()
