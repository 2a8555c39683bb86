"""Writing GGUF files: plan first, then stream; whole files or none.

A :class:`Writer` collects metadata and tensors. Nothing is written before :meth:`Writer.close`, when every name, shape,
type and size is known: then the headers go out and the payload follows tensor by tensor, so that memory holds about one
tensor however large the model is.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

from ..errors import GGUFWarning
from ..formats.tensor_types import QType
from ..formats.value_types import ValueType
from ..read.metadata import Metadata
from ..read.reader import GGUFFile
from ..read.shards import shard_name
from ..read.tensor import Tensor
from ..sizes import count_of, size_of
from .entries import make_entry
from .keys import ALIGNMENT, SPLIT_KEYS, Declared, check_key, check_tensor_name, doubts, encode_for
from .serialize import Encoded, Layout, stored, value_type
from .stream import Entry, PlannedFile, Progress, Stream, header_bytes, padded

__all__ = ["Writer", "write"]


class Writer:
    """Write a GGUF file, or a set of shards.

    Parameters
    ----------
    path : path-like
        The file to write. With splitting, shards are named ``stem-00001-of-0000N.gguf`` beside it; a set of one is the
        file itself.
    byteorder : {"little", "big"}
        Byte order of the file. Tensor data is given in the machine's (typed arrays) or little-endian order (packed
        blocks) and swapped as needed.
    version : {3, 2, 1}
        The GGUF version; 1 has 32-bit lengths, and big-endian files are version 3.
    alignment : int, optional
        A power of two; sets ``general.alignment``, whatever the metadata given to :meth:`update` says. Without it the
        key decides, or 32 where there is none.
    split_max_bytes : int or str, optional
        Begin a new shard before the tensor data of one passes this: bytes, or ``"4GiB"``, ``"4GB"`` ...
    split_max_tensors : int, optional
        Begin a new shard before one holds more tensors.
    split_first_empty : bool
        Keep the first shard free of tensors (metadata alone).
    split_always : bool
        Make shards, with their keys and names, even where everything fits into one.
    split_keys : iterable of str
        The order of the ``split.*`` keys, which differs between programs.
    inputs : iterable of path-like
        Files the output must not be; those of copied tensors are added.
    sync : bool
        Wait for the disk before the file appears under its name.
    progress : callable, optional
        Called as ``progress(name, done, total)`` with the payload bytes written so far.

    Examples
    --------
    >>> with Writer("tiny.gguf") as w:                                             # doctest: +SKIP
    ...     w.set("general.architecture", "llama")
    ...     w.add("token_embd.weight", np.zeros((32, 64), np.float32))
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        byteorder: str = "little",
        version: int = 3,
        alignment: int | None = None,
        split_max_bytes: int | str | None = None,
        split_max_tensors: int | None = None,
        split_first_empty: bool = False,
        split_always: bool = False,
        split_keys: Iterable[str] = SPLIT_KEYS,
        inputs: Iterable[str | os.PathLike[str]] = (),
        sync: bool = True,
        progress: Progress | None = None,
    ) -> None:
        self.path = os.fsdecode(path)
        if byteorder not in ("little", "big"):
            raise ValueError(f"byteorder is {byteorder!r}, 'little' or 'big' was expected")
        if version not in (1, 2, 3):
            raise ValueError(f"GGUF version {version} isn't known (1, 2 and 3 are)")
        if byteorder == "big" and version != 3:
            raise ValueError(f"big-endian files are GGUF version 3, not {version}")
        self.byteorder = byteorder
        self.layout = Layout(byteorder, version)
        self.split_max_bytes = None if split_max_bytes is None else size_of("split_max_bytes", split_max_bytes)
        self.split_max_tensors = None if split_max_tensors is None else count_of("split_max_tensors", split_max_tensors)
        splits = split_always or split_first_empty or not (split_max_bytes is None and split_max_tensors is None)
        if not (shard_prefix(self.path) if splits else os.path.basename(self.path)):
            raise ValueError(f"{self.path!r} names no file to write")
        self.split_first_empty = split_first_empty
        self.split_always = split_always
        self.split_keys = tuple(split_keys)
        self.sync = sync
        self.progress = progress
        self._inputs = [os.fspath(p) for p in inputs]
        self._fields: dict[str, Encoded] = {}
        self._kept: dict[str, Declared] = {}  # types of an opened file's keys, which new values have to be of
        self._entries: dict[str, Entry] = {}
        self._breaks: set[int] = set()
        self._closed = False
        self._failed = False
        self._aligned = alignment is not None
        if alignment is not None:
            self.set(ALIGNMENT, alignment, "uint32")

    # --- metadata ----------------------------------------------------------------------------------------------------

    def set(self, key: str, value: Any, type: ValueType | int | str | None = None) -> None:
        """Set a metadata key; one that is there already keeps its place, and its type if it came with :meth:`update`.

        Parameters
        ----------
        key : str
        value : bool, int, float, str, bytes, numpy scalar, list or array
            Numpy's scalars and arrays keep their type. A Python int becomes uint32 (int32 below zero, 64 bits where
            needed), a float float32, the ints of a list int32.
        type : ValueType, int or str, optional
            The value's type, or its elements' type where it is a list or array. An empty list needs one.

        Raises
        ------
        TypeError, ValueError
            If the value isn't of the type, or has none; the message names the key.
        """
        self._check_key(key)
        try:
            vtype = None if type is None else value_type(type)
        except ValueError as error:
            raise ValueError(f"metadata key {key!r}: {error}") from None
        self._fields[key] = encode_for(self.layout, key, value, vtype, self._kept.get(key) if vtype is None else None)
        if vtype is not None:
            self._kept.pop(key, None)

    def set_encoded(self, key: str, encoded: Encoded) -> None:
        """Set a metadata key to a value that is already in this file's layout."""
        self._check_key(key)
        self._fields[key] = encoded

    def delete(self, key: str) -> None:
        """Remove a metadata key.

        Raises
        ------
        KeyError
            If it isn't there.
        """
        self._check_open()
        del self._fields[key]
        self._kept.pop(key, None)

    def __contains__(self, key: object) -> bool:
        return key in self._fields

    def update(self, metadata: Mapping[str, Any]) -> None:
        """Set many keys; those of an opened file keep their declared types and exact bytes.

        An alignment that was given to the writer stays.
        """
        keys = [key for key in metadata if not (self._aligned and key == ALIGNMENT)]
        if not isinstance(metadata, Metadata):
            for key in keys:
                self.set(key, metadata[key])
            return
        for key in keys:
            source, encoded = stored(metadata, key)
            self.set_encoded(key, self.layout.recode(source, encoded, f"metadata key {key!r}"))
            self._kept[key] = Declared.of(metadata, key)

    @property
    def alignment(self) -> int:
        """Where tensor data begins, and each tensor after it, is a multiple of this."""
        encoded = self._fields.get(ALIGNMENT)
        if encoded is None:
            return 32
        return int.from_bytes(encoded.payload, "big" if self.byteorder == "big" else "little")

    # --- tensors -----------------------------------------------------------------------------------------------------

    def add(
        self,
        name: str,
        data: Any,
        *,
        shape: Sequence[int] | None = None,
        qtype: QType | int | str | None = None,
    ) -> None:
        """Plan a tensor; its bytes are taken when the file is written.

        Parameters
        ----------
        name : str
        data : ndarray, buffer, tensor of an opened file, or callable
            A typed array (float32, float16, float64, int8 to int64, ml_dtypes' bfloat16), written as it is, or
            quantized on the way if `qtype` is another type. Packed blocks as uint8 or any buffer, with `shape` and
            `qtype`. A callable that returns the packed bytes, or an iterable of buffers that are them in pieces, when
            their turn comes; arrays among them have to be of `qtype` (or uint8) and of the planned shape, or
            parts of it along the first dimension.
        shape : sequence of int, optional
            The logical shape in numpy's order, in values, never in bytes. Needed for packed data.
        qtype : QType, int or str, optional
            The tensor type. Needed for packed data.

        Raises
        ------
        TypeError, ValueError
            If type, shape and bytes don't agree; a byte shape is refused with the logical one beside it.
        """
        self._check_name(name)
        entry = make_entry(name, data, shape, qtype, self.byteorder)
        if self.layout.width == 4 and any(d >> 32 for d in entry.shape):
            raise ValueError(f"tensor {name!r}: version 1 files can't hold shape {entry.shape}; write version 3")
        self._entries[name] = entry
        if isinstance(data, Tensor):
            self._inputs.append(data.path)

    def new_shard(self) -> None:
        """Begin a new shard with the next tensor, whatever the limits say."""
        self._breaks.add(len(self._entries))

    # --- the plan ----------------------------------------------------------------------------------------------------

    def shards(self) -> list[list[Entry]]:
        """The planned tensors, shard by shard."""
        shards: list[list[Entry]] = [[]]
        if self.split_first_empty:
            shards.append([])
        used = 0
        for number, entry in enumerate(self._entries.values()):
            size = padded(entry.nbytes, self.alignment)
            full = bool(shards[-1]) and (
                (self.split_max_bytes is not None and used + size > self.split_max_bytes)
                or (self.split_max_tensors is not None and len(shards[-1]) >= self.split_max_tensors)
            )
            if full or (number in self._breaks and shards[-1]):
                shards.append([])
                used = 0
            shards[-1].append(entry)
            used += size
        return shards

    def plan(self) -> list[PlannedFile]:
        """Path, header bytes and tensors of every file that will be written."""
        shards = self.shards()
        if len(shards) == 1 and not self.split_always:
            return [self._file(self.path, self._fields, shards[0])]
        files = []
        for number, entries in enumerate(shards):
            fields = dict(self._fields) if number == 0 else {}
            if number and ALIGNMENT in self._fields:
                # Each shard is read by itself, so each has to know the alignment.
                fields[ALIGNMENT] = self._fields[ALIGNMENT]
            values = dict(zip(SPLIT_KEYS, (number, len(shards), len(self._entries)), strict=True))
            for key in self.split_keys:
                fields.pop(key, None)
                fields[key] = self.layout.encode(key, values[key], SPLIT_KEYS[key])
            name = shard_name(self.path.removesuffix(".gguf"), number + 1, len(shards))
            files.append(self._file(name, fields, entries))
        return files

    def _file(self, path: str, fields: Mapping[str, Encoded], entries: Sequence[Entry]) -> PlannedFile:
        # A file of metadata alone ends with it, as gguf writes vocabularies; a shard without tensors is padded, as
        # llama-gguf-split writes it.
        pad = bool(entries) or "split.count" in fields
        return PlannedFile(path, header_bytes(self.layout, fields, entries, self.alignment, pad=pad), entries)

    # --- writing -----------------------------------------------------------------------------------------------------

    def close(self) -> list[str]:
        """Write what was planned; returns the paths, in order.

        Every file is complete and checked before the first appears under its name. Whatever goes wrong, files that
        were there before are as they were, and nothing unfinished stays behind.

        Raises
        ------
        OSError
            If the disk is full (found before writing where it can be), or another process writes the same file.
        GGUFError
            If a tensor's source doesn't give the bytes its shape and type need.
        ValueError
            If the output is one of the inputs, or an earlier call failed.

        Warns
        -----
        GGUFWarning
            If tensor names are longer than llama.cpp takes, or a tensor alone is over the size limit of a shard.

        Notes
        -----
        A second call, or one after :meth:`abort`, writes nothing and returns no paths.
        """
        if self._closed:
            if self._failed:
                raise ValueError(f"{self.path}: writing it failed, so there is no file; begin with a new writer")
            return []
        self._closed = self._failed = True
        sizes = {name: padded(entry.nbytes, self.alignment) for name, entry in self._entries.items()}
        for doubt in doubts(sizes, self.split_max_bytes):
            warnings.warn(doubt, GGUFWarning, stacklevel=2)
        stream = Stream(self.plan(), self.alignment, inputs=self._inputs, sync=self.sync, progress=self.progress)
        try:
            while stream.next is not None:
                stream.put()
            paths = stream.finish()
            self._failed = False
            return paths
        finally:
            stream.discard()

    def abort(self) -> None:
        """Forget the plan; nothing is written."""
        self._closed = True

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    # --- checks ------------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError(f"{self.path}: the writer is closed")

    def _check_key(self, key: str) -> None:
        self._check_open()
        check_key(key)

    def _check_name(self, name: str) -> None:
        self._check_open()
        check_tensor_name(name)
        if name in self._entries:
            raise ValueError(f"tensor {name!r} is there already")


def write(
    path: str | os.PathLike[str],
    metadata: Mapping[str, Any],
    tensors: Mapping[str, Any] | GGUFFile | Iterable[Tensor],
    **options: Any,
) -> list[str]:
    """Write a GGUF file in one call.

    Parameters
    ----------
    path : path-like
    metadata : mapping of str to value
        As :meth:`Writer.set` takes them. The metadata of an opened file keeps its declared types.
    tensors : mapping of str to data, GGUFFile, or iterable of Tensor
        Typed arrays, tensors of opened files, or ``(data, shape, qtype)``; tensors of opened files on their own keep
        their names.
    **options
        See :class:`Writer`.

    Returns
    -------
    list of str
        The paths written.

    Examples
    --------
    >>> write("tiny.gguf", {"general.architecture": "llama"}, {"x": np.zeros(32, np.float32)})  # doctest: +SKIP
    """
    with Writer(path, **options) as writer:
        writer.update(metadata)
        for name, data in _named(tensors):
            if isinstance(data, tuple):
                packed, shape, qtype = data
                writer.add(name, packed, shape=shape, qtype=qtype)
            else:
                writer.add(name, data)
        return writer.close()


def _named(tensors: Any) -> Iterable[tuple[str, Any]]:
    if hasattr(tensors, "items"):  # a mapping, or an opened file
        yield from tensors.items()
        return
    if isinstance(tensors, Tensor):
        tensors = (tensors,)
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"tensors should map names to data; an unnamed {type(tensor).__name__} was given, and only tensors of "
                "opened files know their names"
            )
        yield tensor.name, tensor


def shard_prefix(path: str) -> str:
    """What the names of a set's shards begin with, without their folder."""
    return os.path.basename(path).removesuffix(".gguf")
