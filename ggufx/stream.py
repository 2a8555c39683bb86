"""From a plan to files: header bytes, and the payload streamed behind them.

A plan is a list of files, each with its header and its tensors. All files are written and checked before the first one
appears under its name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .errors import GGUFError
from .fieldbytes import Encoded, Layout
from .formats import SWAP_FIELDS, QType
from .outfile import OutputFile, check_free_space, refuse_inputs

__all__ = [
    "Entry",
    "PlannedFile",
    "Progress",
    "Source",
    "Stream",
    "header_bytes",
    "padded",
    "swap_blocks",
]

# Blocks swapped at once.
SWAP_BLOCKS = 1 << 16

Progress = Callable[[str, int, int], None]
Source = Callable[[], Any]


def padded(size: int, alignment: int) -> int:
    """The next multiple of `alignment`."""
    return size + -size % alignment


class Entry(NamedTuple):
    """A planned tensor: what its info says, and who gives its bytes."""

    name: str
    shape: tuple[int, ...]
    qtype: int
    nbytes: int
    source: Source
    swap: QType | None


def swap_blocks(data: Any, qtype: QType) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """A copy of packed blocks with every field wider than a byte turned round."""
    blocks = np.frombuffer(data, np.uint8).reshape(-1, qtype.block_bytes).copy()
    for start, width, count in SWAP_FIELDS[qtype]:
        stop = start + width * count
        fields = blocks[:, start:stop].reshape(len(blocks), count, width)
        blocks[:, start:stop] = fields[:, :, ::-1].reshape(len(blocks), width * count)
    return blocks.reshape(-1)


class PlannedFile(NamedTuple):
    """One file of a plan: where it goes, its header with the padding behind it, and its tensors."""

    path: str
    header: bytes
    entries: Sequence[Entry]


def header_bytes(
    layout: Layout, fields: Mapping[str, Encoded], entries: Sequence[Entry], alignment: int, *, pad: bool = True
) -> bytes:
    """Magic, counts, metadata and tensor infos, with the padding up to the data section."""
    out = bytearray(b"GGUF" + layout.u32(layout.version) + layout.length(len(entries)) + layout.length(len(fields)))
    for key, encoded in fields.items():
        out += layout.string(key) + layout.u32(encoded.type) + encoded.payload
    offset = 0
    for entry in entries:
        out += layout.string(entry.name) + layout.u32(len(entry.shape))
        for dim in reversed(entry.shape):
            out += layout.length(dim)
        out += layout.u32(entry.qtype) + layout.u64(offset)
        offset += padded(entry.nbytes, alignment)
    return bytes(out) + bytes(-len(out) % alignment if pad else 0)


class Stream:
    """The files of a plan while their payload is written, tensor by tensor in order.

    Parameters
    ----------
    files : sequence of PlannedFile
    alignment : int
    inputs : iterable of path-like
        Files that none of the outputs may be.
    sync : bool
        Wait for the disk before a file appears.
    progress : callable, optional

    Raises
    ------
    OSError
        If the disk can't hold the files, or another process writes one of them.
    ValueError
        If an output is an input.
    """

    def __init__(
        self,
        files: Sequence[PlannedFile],
        alignment: int,
        *,
        inputs: Iterable[str | os.PathLike[str]] = (),
        sync: bool = True,
        progress: Progress | None = None,
    ) -> None:
        self.alignment = alignment
        self.progress = progress
        self.done = 0
        self.total = sum(e.nbytes for f in files for e in f.entries)
        inputs = list(inputs)
        self._sizes = [len(f.header) + sum(padded(e.nbytes, alignment) for e in f.entries) for f in files]
        for file in files:
            refuse_inputs(file.path, inputs)
        check_free_space(os.path.realpath(files[0].path), sum(self._sizes))
        self._outputs: list[OutputFile] = []
        self._queue = [(number, entry) for number, file in enumerate(files) for entry in file.entries]
        self._queue.reverse()
        try:
            for file in files:
                self._outputs.append(OutputFile(file.path, inputs=inputs, sync=sync))
                self._outputs[-1].write(file.header)
        except BaseException:
            self.discard()
            raise

    @property
    def next(self) -> Entry | None:
        """The tensor that is written next, or None when all are."""
        return self._queue[-1][1] if self._queue else None

    def __len__(self) -> int:
        """Tensors that are still to be written."""
        return len(self._queue)

    def put(self, data: Any = None) -> None:
        """Write the next tensor, from its source or from `data`."""
        number, entry = self._queue.pop()
        out = self._outputs[number]
        for piece in _pieces(entry, entry.source() if data is None else data):
            out.write(piece)
            self.done += len(piece)
            if self.progress is not None:
                self.progress(entry.name, self.done, self.total)
        out.pad(self.alignment)

    def finish(self) -> list[str]:
        """Check sizes, wait for the disk, and let the files appear; returns their paths."""
        for out, size in zip(self._outputs, self._sizes, strict=True):
            out.finish(size)
        for out in self._outputs:
            out.publish()
        return [out.target for out in self._outputs]

    def discard(self) -> None:
        """Remove what isn't published."""
        for out in self._outputs:
            out.discard()


def _pieces(entry: Entry, given: Any) -> Iterator[memoryview]:
    """The bytes of a planned tensor, exactly as many as planned."""
    pieces = given if isinstance(given, (Iterator, list, tuple)) else (given,)
    done = 0
    for piece in pieces:
        flat = np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data if isinstance(piece, np.ndarray) else piece
        try:
            view = memoryview(flat)
        except TypeError:
            raise TypeError(f"tensor {entry.name!r}: its source gave {type(flat).__name__}, not bytes") from None
        if not view.nbytes:
            continue
        view = view.cast("B")
        done += len(view)
        if done > entry.nbytes:
            break
        if entry.swap is None:
            yield view
            continue
        step = entry.swap.block_bytes * SWAP_BLOCKS
        if len(view) % entry.swap.block_bytes:
            raise GGUFError(f"tensor {entry.name!r}: a piece of {len(view)} bytes isn't whole blocks")
        for start in range(0, len(view), step):
            yield swap_blocks(view[start : start + step], entry.swap).data
    if done != entry.nbytes:
        more = "or more " if done > entry.nbytes else ""
        raise GGUFError(f"tensor {entry.name!r}: its source gave {done} bytes {more}where {entry.nbytes} were planned")
