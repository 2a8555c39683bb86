"""Dividing a model into shards, joining shards, and turning the byte order: the same tensors in other files."""

from __future__ import annotations

import os
from collections.abc import Iterable

from ..errors import GGUFError
from ..read.reader import GGUFFile
from ..read.reader import open as open_gguf
from ..read.shards import SplitFile, declared
from .keys import SPLIT_KEYS
from .stream import Progress
from .writer import Writer

__all__ = ["convert_endian", "merge", "split"]

# llama-gguf-split settles the number of shards last, and writes keys in the order it sets them.
KEYS_OF_SHARDS = ("split.no", "split.tensors.count", "split.count")


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
    """Divide a model into shards, with the bytes that llama-gguf-split gives them.

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
            byteorder=f.byteorder,
            version=f.version,
            split_max_bytes=max_bytes,
            split_max_tensors=max_tensors,
            split_first_empty=first_empty,
            split_always=True,
            split_keys=KEYS_OF_SHARDS,
            inputs=[path],
            sync=sync,
            progress=progress,
        )
        _fill(writer, f, drop=SPLIT_KEYS)
        return writer.close()


def merge(
    path: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    keep_split_keys: bool = False,
    sync: bool = True,
    progress: Progress | None = None,
) -> list[str]:
    """Join the shards of a model, of which `path` is any, into one file.

    Parameters
    ----------
    path, output : path-like
    keep_split_keys : bool
        Leave the first shard's ``split.*`` keys there, with a count of 0, as llama-gguf-split does; without it, the
        file that was split comes back byte for byte.

    Returns
    -------
    list of str
        The path written.

    Raises
    ------
    GGUFError
        If a shard is missing, or doesn't belong to the others; the message names it.
    """
    with open_gguf(path) as f:
        if not declared(f, "count"):
            raise GGUFError(f"{f.path} is no shard of a set: it has no split.count above 0")
        writer = Writer(
            output,
            byteorder=f.byteorder,
            version=f.version,
            inputs=[shard.path for shard in f.shards] if isinstance(f, SplitFile) else [path],
            sync=sync,
            progress=progress,
        )
        _fill(writer, f, drop=() if keep_split_keys else SPLIT_KEYS)
        if keep_split_keys:
            writer.delete("split.count")
            writer.set("split.count", 0, SPLIT_KEYS["split.count"])
        return writer.close()


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
        _fill(writer, f)
        return writer.close()


def _check_whole(f: GGUFFile) -> None:
    count = declared(f, "count")
    if count is not None and count > 1:
        raise GGUFError(f"{f.path} is one of {count} shards; merge them before splitting anew")


def _fill(writer: Writer, f: GGUFFile, *, drop: Iterable[str] = ()) -> None:
    """Plan what an opened file or set holds, without the keys in `drop`."""
    writer.update(f.metadata)
    for key in drop:
        if key in writer:
            writer.delete(key)
    for t in f.tensors.values():
        writer.add(t.name, t)
