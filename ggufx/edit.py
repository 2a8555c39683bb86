"""Changing the metadata of a file: in place where the header keeps its size, else by a streamed copy.

Tensors are never touched: their infos and bytes are carried over as they are, whatever layout they have.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from struct import Struct
from typing import Any, NamedTuple

from .errors import GGUFError
from .fieldbytes import Encoded, Layout, stored, value_type
from .outfile import OutputFile, check_free_space, refuse_inputs
from .reader import GGUFFile
from .reader import open as open_gguf
from .valuetypes import ValueType

__all__ = ["Edited", "edit", "undo_unfinished"]

PIECE = 1 << 24
# Offset and length in front of the bytes that an in-place edit replaces.
_UNDO_HEAD = Struct("<8sQQ")
_UNDO_MAGIC = b"ggufxund"


class Edited(NamedTuple):
    """What an edit did.

    Attributes
    ----------
    path : str
        The file that holds the result.
    in_place : bool
        Whether only the header was rewritten.
    nbytes : int
        Bytes written.
    """

    path: str
    in_place: bool
    nbytes: int


def edit(
    path: str | os.PathLike[str],
    *,
    set: Mapping[str, Any] | None = None,
    delete: Iterable[str] = (),
    rename: Mapping[str, str] | None = None,
    types: Mapping[str, ValueType | int | str] | None = None,
    output: str | os.PathLike[str] | None = None,
    sync: bool = True,
) -> Edited:
    """Set, delete and rename metadata keys.

    Parameters
    ----------
    path : path-like
        The file.
    set : mapping of str to value, optional
        Keys to set. A key that is there keeps its declared type (an array its elements' type) and its place.
    delete : iterable of str
        Keys to remove.
    rename : mapping of str to str, optional
        Old names to new names.
    types : mapping of str to type, optional
        Types for keys of `set`, where they should be others.
    output : path-like, optional
        Write a new file there and leave `path` alone. Without it the file itself is changed: in place where the data
        can stay where it is, else by a complete new file that replaces it in one step.
    sync : bool
        Wait for the disk.

    Returns
    -------
    Edited

    Raises
    ------
    KeyError
        If a key to delete or rename isn't there.
    TypeError, ValueError
        If a value isn't of its type, or a new name is taken.
    GGUFError
        If the file is damaged, or the alignment would change.

    Notes
    -----
    In place, the replaced bytes are first saved beside the file; a process that is killed in between leaves them there,
    and the next edit (or :func:`undo_unfinished`) puts them back. Programs that have the file mapped see the change.
    """
    source = os.fspath(path)
    if idle := [key for key in types or {} if key not in (set or {})]:
        raise ValueError(f"types are given for keys that aren't set: {', '.join(map(repr, idle))}")
    if output is None:
        undo_unfinished(source)
    with open_gguf(source, shards=False) as f:
        layout = _layout(f)
        fields = {key: stored(f.metadata, key)[1] for key in f.metadata}
        _apply(fields, f, layout, set or {}, delete, rename or {}, types or {})
        header = _header(f, layout, fields)
        if output is not None or len(header) != min(f.data_offset, f.size):
            target = source if output is None else os.fspath(output)
            if output is not None:
                refuse_inputs(target, [source])
            return _copied(f, header, target, sync=sync)
        with open(source, "rb") as old:
            before = old.read(len(header))
    first = next((i for i, (a, b) in enumerate(zip(before, header, strict=True)) if a != b), None)
    if first is None:
        return Edited(source, True, 0)
    last = next(i for i in range(len(header) - 1, -1, -1) if before[i] != header[i]) + 1
    _in_place(source, first, before[first:last], header[first:last], sync=sync)
    return Edited(source, True, last - first)


def undo_unfinished(path: str | os.PathLike[str]) -> bool:
    """Put back what an interrupted in-place edit had replaced; whether there was anything."""
    target = os.path.realpath(path)
    undo = _undo_path(target)
    try:
        with open(undo, "rb") as saved:
            head, old = saved.read(_UNDO_HEAD.size), saved.read()
    except FileNotFoundError:
        return False
    if len(head) == _UNDO_HEAD.size:
        magic, start, length = _UNDO_HEAD.unpack(head)
        if magic != _UNDO_MAGIC or length != len(old):
            raise GGUFError(f"{undo}: this is no saved header of an edit, or a damaged one; remove it to go on")
        with open(target, "r+b") as f:
            f.seek(start)
            f.write(old)
            f.flush()
            os.fsync(f.fileno())
    os.unlink(undo)
    return True


def _apply(
    fields: dict[str, Encoded],
    f: GGUFFile,
    layout: Layout,
    set: Mapping[str, Any],
    delete: Iterable[str],
    rename: Mapping[str, str],
    types: Mapping[str, ValueType | int | str],
) -> None:
    """Change `fields` as asked; deletions first, then new names, then values."""
    for key in delete:
        if key not in fields:
            raise KeyError(f"{f.path} has no metadata key {key!r}")
        del fields[key]
    for old, new in rename.items():
        if old not in fields:
            raise KeyError(f"{f.path} has no metadata key {old!r}")
        if new in fields:
            raise ValueError(f"{f.path} already has a metadata key {new!r}")
        if not new:
            raise ValueError(f"a metadata key can't be empty (renaming {old!r})")
        items = [(new if key == old else key, value) for key, value in fields.items()]
        fields.clear()
        fields.update(items)
    for key, value in set.items():
        if not key:
            raise ValueError("a metadata key can't be empty")
        vtype = value_type(types[key]) if key in types else None
        if vtype is None and key in fields and key in f.metadata:
            declared = f.metadata.types[key]
            vtype = declared.type if declared.item is None else declared.item
            if vtype is ValueType.ARRAY:
                vtype = None
        fields[key] = layout.encode(key, value, vtype)
    for key in ("general.alignment",):
        before = stored(f.metadata, key)[1] if key in f.metadata else None
        if fields.get(key) != before:
            raise GGUFError(f"{f.path}: {key} can't be edited, the tensors lie by it; write the file anew instead")


def _layout(f: GGUFFile) -> Layout:
    return Layout(f.byte_order, f.version)


def _header(f: GGUFFile, layout: Layout, fields: Mapping[str, Encoded]) -> bytes:
    """The file's header with other fields; tensor infos are as they were, offsets included."""
    tensors = f.tensors.values()
    out = bytearray(b"GGUF" + layout.u32(f.version) + layout.length(len(tensors)) + layout.length(len(fields)))
    for key, encoded in fields.items():
        out += layout.string(key) + layout.u32(encoded.type) + encoded.payload
    for t in tensors:
        out += layout.string(t.name) + layout.u32(len(t.ggml_shape))
        for dim in t.ggml_shape:
            out += layout.length(dim)
        out += layout.u32(t.qtype) + layout.u64(t.offset - f.data_offset)
    if f.size >= f.data_offset:  # without tensors a file may end where its metadata ends
        out += bytes(-len(out) % f.alignment)
    return bytes(out)


def _copied(f: GGUFFile, header: bytes, target: str, *, sync: bool) -> Edited:
    """Write header and the file's data section, byte for byte, as a new file."""
    size = len(header) + max(f.size - f.data_offset, 0)
    check_free_space(os.path.realpath(target), size)
    out = OutputFile(target, sync=sync)
    try:
        out.write(header)
        for piece in _data_section(f):
            out.write(piece)
        out.finish(size)
        out.publish()
    finally:
        out.discard()
    return Edited(out.target, False, size)


def _data_section(f: GGUFFile) -> Iterator[bytes]:
    with open(f.path, "rb") as source:
        source.seek(f.data_offset)
        while piece := source.read(PIECE):
            yield piece


def _undo_path(target: str) -> str:
    folder, name = os.path.split(target)
    return os.path.join(folder, f".{name}.undo")


def _in_place(path: str, start: int, old: bytes, new: bytes, *, sync: bool) -> None:
    """Replace a span of the file; a copy of the old bytes stays beside it until the new ones are on disk."""
    target = os.path.realpath(path)
    saved = OutputFile(_undo_path(target), sync=True)
    try:
        saved.write(_UNDO_HEAD.pack(_UNDO_MAGIC, start, len(old)) + old)
        saved.finish(_UNDO_HEAD.size + len(old))
        saved.publish()
    finally:
        saved.discard()
    with open(target, "r+b") as f:
        f.seek(start)
        f.write(new)
        f.flush()
        if sync:
            os.fsync(f.fileno())
    os.unlink(_undo_path(target))
