"""Opening a GGUF file: an index of its metadata and tensors, checked, over one map. Decodes nothing."""

from __future__ import annotations

import os
from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from contextlib import suppress
from html import escape
from typing import IO, TYPE_CHECKING, Any, Literal, get_args

from ..errors import UnknownNameError
from ..formats.tensor_types import QType
from .header import read_header
from .index import Header, Limits, NeedMore, Problem, TensorTable
from .metadata import Metadata
from .sources import MapSource, Source, local_source
from .tensor import Tensor

if TYPE_CHECKING:
    from types import TracebackType

    from ..model.experts import MoE
    from ..model.layers import Layers
    from .sources import Hint

__all__ = ["GGUFFile", "TensorMap", "open", "read_file"]

Mode = Literal["r", "c", "read", "auto"]


class TensorMap(Mapping[str, Tensor]):
    """A file's tensors by name, in file order; each :class:`Tensor` is made when it is asked for."""

    __slots__ = ("_made", "_source", "_table", "_unaligned")

    def __init__(self, source: Source, table: TensorTable, unaligned: frozenset[str]) -> None:
        self._source = source
        self._table = table
        self._unaligned = unaligned
        self._made: dict[int, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        row = self._table.rows.get(name)
        if row is None:
            raise UnknownNameError(f"{self._source.label} has no tensor {name!r}", name, self)
        tensor = self._made.get(row)
        if tensor is None:
            table = self._table
            kind: QType | int = int(table.types[row])
            with suppress(ValueError):  # newer than this version: it stays a plain number
                kind = QType(kind)
            fault = table.faults.get(row)
            tensor = self._made[row] = Tensor(
                self._source,
                name,
                kind,
                tuple(table.dims[row, : int(table.n_dims[row])].tolist()),
                int(table.starts[row]),
                int(table.nbytes[row]),
                is_aligned=name not in self._unaligned,
                problem=fault.message if fault else None,
            )
        return tensor

    def __len__(self) -> int:
        return len(self._table.rows)

    def __iter__(self) -> Iterator[str]:
        return iter(self._table.rows)

    def __contains__(self, name: object) -> bool:
        return name in self._table.rows

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)

    def __repr__(self) -> str:
        names = list(self)[:4]
        return f"<{len(self)} tensors: {', '.join(names)}{', ...' if len(self) > 4 else ''}>"


class GGUFFile:
    """An open GGUF file; made by :func:`ggufx.open`. A context manager, and a container of its tensors by name.

    Attributes
    ----------
    path : str
        The path it was opened by.
    version : int
        GGUF version: 1, 2 or 3.
    byteorder : str
        ``"little"`` or ``"big"``.
    alignment : int
        Bytes; ``general.alignment``, 32 where it is absent.
    data_offset : int
        Where the tensor data begins in the file.
    problems : tuple of Problem
        Faults that were let pass: misaligned offsets always, others with ``strict=False``.

    Examples
    --------
    >>> with ggufx.open("model.gguf") as f:  # doctest: +SKIP
    ...     f.metadata["general.architecture"]
    ...     f["token_embd.weight"].dequantize()
    """

    _moe: MoE | None = None

    def __init__(self, path: str, source: Source, header: Header) -> None:
        self.path = path
        self.version = header.version
        self.byteorder = "big" if header.big_endian else "little"
        self.alignment = header.alignment
        self.data_offset = header.data_offset
        self.problems: tuple[Problem, ...] = header.problems
        self._source = source
        unaligned = frozenset(p.name for p in header.problems if p.kind == "misaligned")
        self._metadata = Metadata(source, header.fields, header.version)
        self._tensors = TensorMap(source, header.tensors, unaligned)

    def _copy_header(self, path: str, other: GGUFFile) -> None:
        """Take on what describes another file, for a view of several."""
        self.path = path
        self.version = other.version
        self.byteorder = other.byteorder
        self.alignment = other.alignment
        self.data_offset = other.data_offset
        self._source = other._source
        self._metadata = other._metadata
        self._tensors = other._tensors

    @property
    def metadata(self) -> Metadata:
        """The metadata, a read-only mapping in file order whose values are decoded on first use."""
        self._source.check_open()
        return self._metadata

    @property
    def tensors(self) -> TensorMap:
        """The tensors by name, a read-only mapping in file order."""
        self._source.check_open()
        return self._tensors

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return self._source.size

    @property
    def moe(self) -> MoE:
        """The model's experts, however the file stores them: a mapping of block number to layer.

        Raises
        ------
        GGUFError
            If an expert is missing, or metadata and tensors disagree about the count.
        """
        self._source.check_open()
        if self._moe is None:
            from ..model.experts import find_experts

            self._moe = find_experts(self)
        return self._moe

    def layers(self, prefix: str = "blk") -> Layers:
        """Group the tensors by block number.

        Parameters
        ----------
        prefix : str
            What stands before the number: ``"blk"``, or ``"v.blk"``, ``"enc.blk"`` ... in models that have those.

        Returns
        -------
        Layers
            The blocks in order; ``.outside`` holds the other tensors, and ``.decoded()`` works through the blocks in
            recycled buffers.
        """
        from ..model.layers import Layers

        return Layers(self.tensors, prefix)

    def advise(self, hint: Hint) -> None:
        """Tell the system how the whole file will be used; see :meth:`Tensor.advise`."""
        for tensor in self.tensors.values():
            tensor.advise(hint)

    @property
    def closed(self) -> bool:
        """Whether the file was closed."""
        return self._source.closed

    @property
    def is_mapped(self) -> bool:
        """Whether the file is still mapped. After :meth:`close` that means: an array made from it is still alive."""
        return isinstance(self._source, MapSource) and self._source.is_mapped

    def close(self) -> None:
        """Drop the file's hold on the map; never raises, and may be called twice.

        Arrays handed out stay valid: the map ends with the last of them (see :attr:`is_mapped`). Later access through
        the file, its tensors or its metadata raises GGUFError.
        """
        self._metadata.forget()
        self._source.close()

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def __len__(self) -> int:
        return len(self.tensors)

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __contains__(self, name: object) -> bool:
        return name in self.tensors

    def keys(self) -> KeysView[str]:
        """Names of the tensors, in file order."""
        return self.tensors.keys()

    def values(self) -> ValuesView[Tensor]:
        """The tensors, in file order."""
        return self.tensors.values()

    def items(self) -> ItemsView[str, Tensor]:
        """Names and tensors, in file order; ``dict(f)`` works too."""
        return self.tensors.items()

    def get(self, name: str, default: Any = None) -> Any:
        """Return the tensor of this name, or `default`."""
        return self.tensors.get(name, default)

    def _ipython_key_completions_(self) -> list[str]:
        return [] if self.closed else list(self)

    def __bool__(self) -> bool:
        return True

    def __enter__(self) -> GGUFFile:
        self._source.check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if self.closed:
            kept = ", but an array made from it keeps its map" if self.is_mapped else ""
            return f"<GGUFFile {self.path!r} closed{kept}>"
        faults = f", {len(self.problems)} problems" if self.problems else ""
        return f"<GGUFFile {self.path!r} version {self.version}, {self.byteorder}-endian, {self._contents()}{faults}>"

    def _contents(self) -> str:
        return f"{len(self._metadata)} metadata fields, {len(self.tensors)} tensors"

    def _repr_html_(self) -> str:
        from .display import file_table

        return f"<p>{escape(repr(self))}</p>" if self.closed else file_table(self)

    def __reduce__(self) -> Any:
        raise TypeError(f"{self.path}: an open file can't be pickled; send its path and open it there")


def open(
    path: str | bytes | os.PathLike[Any] | IO[bytes],
    mode: Mode = "r",
    *,
    strict: bool = True,
    shards: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    download: bool = False,
    max_header_bytes: int = Limits().max_header_bytes,
    max_tensors: int = Limits().max_tensors,
    max_nesting: int = Limits().max_nesting,
    max_array_elements: int = Limits().max_array_elements,
) -> GGUFFile:
    """Open a GGUF file and check its whole index; no value is decoded.

    Parameters
    ----------
    path : path-like, URL or binary file object
        A regular file, of any GGUF version (1, 2, 3) and byte order; a URL that fsspec knows (``https://``, ``s3://``
        ...), of which only what is asked for is fetched; or a seekable file object, read from where it begins.
    mode : {"r", "c", "read", "auto"}
        ``"r"`` maps the file read-only; ``"c"`` maps it copy-on-write, so that arrays are writable and nothing written
        reaches the file; ``"read"`` maps nothing: each access reads into fresh memory. ``"auto"`` is ``"read"`` on
        file systems whose files change under readers (of networks, of programs in user space), else ``"r"``.
    strict : bool
        Refuse a file in which a tensor lies outside the file, overlaps another or is there twice. With ``False``
        such faults are listed in :attr:`GGUFFile.problems`, and reading a faulty tensor raises.
    shards : bool
        Open the whole set if the file is one shard of a split model (``-0000N-of-0000M.gguf``).
    storage_options : mapping, optional
        For a URL: what fsspec's file system takes (credentials, headers, endpoint). Never logged.
    download : bool
        For a URL: fetch the whole file into a temporary one first, where the server can't send ranges.
    max_header_bytes : int
        Bytes of metadata and tensor infos.
    max_tensors : int
        Tensors in the file.
    max_nesting : int
        Metadata arrays inside one another; at most 64.
    max_array_elements : int
        Elements of one metadata array.

    Returns
    -------
    GGUFFile

    Raises
    ------
    GGUFError
        If anything in the header is wrong; the message names the file, the key or tensor, what was found and expected.
    OSError
        If the file can't be opened.

    Examples
    --------
    >>> with ggufx.open("model.gguf") as f:  # doctest: +SKIP
    ...     weights = f["blk.0.ffn_down.weight"].dequantize()
    """
    if mode not in get_args(Mode):
        hint = ""
        if mode in ("rb", "br", "rt"):
            hint = "; ggufx.open isn't Python's: it maps the file to read it, so leave the mode out"
        elif isinstance(mode, str) and set(mode) & set("wax+"):
            hint = "; files are only read here: ggufx.write makes one, ggufx.edit changes metadata"
        raise ValueError(f"mode should be 'r', 'c', 'read' or 'auto', not {mode!r}{hint}")
    if not 1 <= max_nesting <= 64:
        raise ValueError(f"max_nesting should be 1 to 64, not {max_nesting}")
    limits = Limits(max_header_bytes, max_tensors, max_nesting, max_array_elements)
    if not isinstance(path, (str, bytes, os.PathLike)):
        if not hasattr(path, "read") or not hasattr(path, "seek"):
            raise TypeError(f"path should be path-like, a URL or a binary file, not {type(path).__name__}")
        from .remote import ObjectSource

        source: Source = ObjectSource(path)
        return read_file(source.label, source, limits, strict)
    if isinstance(path, str) and "://" in path:
        from .remote import RemoteOpener

        opener = RemoteOpener(path, storage_options, mode, download)
        name = opener.path
    else:
        opener = None
        name = os.fsdecode(path)

    def open_one(name: str) -> GGUFFile:
        source = local_source(name, name, mode) if opener is None else opener.source(name)
        return read_file(source.label, source, limits, strict)

    first = open_one(name)
    if not shards or "split.count" not in first.metadata:
        return first
    from .shards import open_set

    return open_set(first, name, open_one, strict)


def read_file(path: str, source: Source, limits: Limits, strict: bool) -> GGUFFile:
    """Read the header of `source`, fetching more of it as needed; closes the source if that fails."""
    try:
        while True:
            try:
                header = read_header(source.header, source.size, label=source.label, limits=limits, strict=strict)
                break
            except NeedMore as short:
                source.grow_header(short.wanted)
    except BaseException:
        source.abandon()
        raise
    source.big_endian = header.big_endian
    return GGUFFile(path, source, header)
