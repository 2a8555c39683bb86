"""Changing the metadata of a file: in place where the header keeps its size, else by a streamed copy.

Tensors are never touched: their infos and bytes are carried over as they are, whatever layout they have.
"""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..errors import GGUFError, GGUFWarning
from ..formats.value_types import ValueType
from ..read.header import read_header
from ..read.index import Limits, NeedMore
from ..read.reader import GGUFFile
from ..read.reader import open as open_gguf
from .keys import ALIGNMENT, Declared, check_key, encode_for
from .outfile import OutputFile, check_free_space, lock_file, refuse_inputs
from .serialize import Encoded, Info, Layout, stored, value_type
from .undo import replace_span, restore, undo_unfinished

__all__ = ["Edited", "edit", "undo_unfinished"]

PIECE = 1 << 24


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
    delete: Iterable[str] | str = (),
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
        Keys to set. A key that is there keeps its place and its declared type: a scalar stays one, an array stays one
        of the same elements.
    delete : str or iterable of str
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
        If a value isn't of its type, or a new name is taken, empty, or longer than GGUF allows.
    GGUFError
        If the file is damaged, the alignment would change, or the result couldn't be opened.
    OSError
        EBUSY, if another edit of the file is going on.

    Warns
    -----
    GGUFWarning
        If the model would use more experts than it has.

    Notes
    -----
    In place, the replaced bytes are first saved beside the file; a process that is killed in between leaves them there,
    and the next edit (or :func:`undo_unfinished`) puts them back. Programs that have the file mapped see the change.
    The file is locked meanwhile, so that a second edit fails instead of mixing with this one.
    """
    source = os.fspath(path)
    for argument, given in (("set", set), ("rename", rename), ("types", types)):
        if given is not None and not isinstance(given, Mapping):
            raise TypeError(f"{argument} should be a mapping with keys of the file, not {type(given).__name__}")
    if idle := [key for key in types or {} if key not in (set or {})]:
        raise ValueError(f"types are given for keys that aren't set: {', '.join(map(repr, idle))}")
    changes = _Changes(set or {}, (delete,) if isinstance(delete, str) else tuple(delete), rename or {}, types or {})
    if output is not None:
        undo_unfinished(source)
        refuse_inputs(os.fspath(output), [source])
        with open_gguf(source, shards=False) as f:
            return _copied(f, _planned(f, changes), os.fspath(output), os.stat(source), sync=sync)
    # The lock is held until the end, so that no other edit sees, undoes or overwrites half of this one.
    with lock_file(source) as lock:
        restore(os.path.realpath(source), lock)
        with open_gguf(source, shards=False) as f:
            header = _planned(f, changes)
            if len(header) != min(f.data_offset, f.size):
                return _copied(f, header, source, os.fstat(lock), sync=sync)
        with open(source, "rb") as old:
            before = old.read(len(header))
        if before == header:
            return Edited(source, True, 0)
        changed = np.flatnonzero(np.frombuffer(before, np.uint8) != np.frombuffer(header, np.uint8))
        first, last = int(changed[0]), int(changed[-1]) + 1
        replace_span(os.path.realpath(source), lock, before, first, header[first:last], sync=sync)
        return Edited(source, True, last - first)


class _Changes(NamedTuple):
    set: Mapping[str, Any]
    delete: Iterable[str]
    rename: Mapping[str, str]
    types: Mapping[str, ValueType | int | str]


def _planned(f: GGUFFile, changes: _Changes) -> bytes:
    """The header with the changes, checked by reading it."""
    layout = _layout(f)
    fields = {key: stored(f.metadata, key)[1] for key in f.metadata}
    before = dict(fields)
    _apply(fields, f, layout, *changes)
    _warn_of_experts(before, fields, layout)
    header = _header(f, layout, fields)
    size = len(header) + max(f.size - f.data_offset, 0)
    try:
        made = read_header(header, size, label="the new header", limits=Limits(), strict=True)
    except (GGUFError, NeedMore) as error:
        raise GGUFError(f"{f.path}: the edit would make a file that can't be opened: {error}") from None
    if list(made.fields) != list(fields) or made.data_offset < len(header):
        raise GGUFError(f"{f.path}: the edit would make a file that reads differently")
    return header


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
    if ALIGNMENT in {*set, *delete, *rename, *rename.values()}:
        raise GGUFError(f"{f.path}: {ALIGNMENT} can't be edited, the tensors lie by it; write the file anew instead")
    declared = {key: Declared.of(f.metadata, key) for key in {*set, *rename} & fields.keys()}
    for key in delete:
        if key not in fields:
            raise KeyError(f"{f.path} has no metadata key {key!r}")
        del fields[key]
        declared.pop(key, None)
    for old, new in rename.items():
        check_key(new)
        if old not in fields:
            raise KeyError(f"{f.path} has no metadata key {old!r}")
        if new in fields:
            raise ValueError(f"{f.path} already has a metadata key {new!r}")
        declared[new] = declared.pop(old)
        items = [(new if key == old else key, value) for key, value in fields.items()]
        fields.clear()
        fields.update(items)
    for key, value in set.items():
        check_key(key)
        named = value_type(types[key]) if key in types else None
        fields[key] = encode_for(layout, key, value, named, declared.get(key) if named is None else None)


def _warn_of_experts(before: Mapping[str, Encoded], after: Mapping[str, Encoded], layout: Layout) -> None:
    """Warn of a change that has a model use more experts than it has, which llama.cpp refuses."""
    arch = after.get("general.architecture")
    if arch is None or arch.type is not ValueType.STRING:
        return
    name = arch.payload[layout.width :].decode("utf-8", "surrogateescape")
    keys = (f"{name}.expert_used_count", f"{name}.expert_count")
    used, count = (_number(after.get(key), layout) for key in keys)
    if used is None or count is None or used <= count or all(before.get(key) == after.get(key) for key in keys):
        return
    warnings.warn(f"{keys[0]} is {used}, but {keys[1]} only {count}; llama.cpp refuses that", GGUFWarning, stacklevel=4)


def _number(encoded: Encoded | None, layout: Layout) -> float | None:
    if encoded is None or not encoded.type.code:
        return None
    number: float = np.frombuffer(encoded.payload, layout.order + encoded.type.code)[0].item()
    return number


def _layout(f: GGUFFile) -> Layout:
    return Layout(f.byteorder, f.version)


def _header(f: GGUFFile, layout: Layout, fields: Mapping[str, Encoded]) -> bytes:
    """The file's header with other fields; tensor infos are as they were, offsets included."""
    with open(f.path, "rb") as old:
        # Offsets as they are stored: an empty tensor's may lie anywhere.
        stored_header = old.read(f.data_offset)
    table = read_header(stored_header, f.size, label=f.path, limits=Limits(), strict=True).tensors
    tensors = zip(f.tensors.values(), table.offsets.tolist(), strict=True)
    infos = [Info(t.name, t.shape, int(t.qtype), offset) for t, offset in tensors]
    out = layout.header(fields, infos)
    if f.size >= f.data_offset:  # without tensors a file may end where its metadata ends
        out += bytes(-len(out) % f.alignment)
    return out


def _copied(f: GGUFFile, header: bytes, target: str, source: os.stat_result, *, sync: bool) -> Edited:
    """Write header and the file's data section, byte for byte, as a new file; it may replace the file itself."""
    own = os.path.exists(target) and os.path.samestat(os.stat(target), source)
    size = len(header) + max(f.size - f.data_offset, 0)
    check_free_space(os.path.realpath(target), size)
    out = OutputFile(target, inputs=() if own else [f.path], sync=sync)
    try:
        out.write(header)
        for piece in _data_section(f):
            out.write(piece)
        out.finish(size)
        if not os.path.samestat(os.stat(f.path), source):
            raise OSError(errno.EBUSY, "another process replaced this file while it was edited", f.path)
        out.publish()
    finally:
        out.discard()
    return Edited(out.target, False, size)


def _data_section(f: GGUFFile) -> Iterator[bytes]:
    with open(f.path, "rb") as source:
        source.seek(f.data_offset)
        while piece := source.read(PIECE):
            yield piece
