"""Decoding a whole file, or chosen tensors of it, into fresh memory at once."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..codec.decode import dequantize, output_dtype
from ..codec.threads import run, thread_count
from ..errors import GGUFError
from ..formats.tensor_types import QType
from ..read.tensor import Tensor

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["ALIGN", "INTEGERS", "Arena", "aligned_memory", "decode_all", "load", "select"]

# A cache line, and what SIMD stores like best.
ALIGN = 64
# Values decoded per task: small enough that two threads end together, large enough that a task's cost doesn't show.
TASK_VALUES = 1 << 21
# Arrays share mappings of about this size, so that memory returns to the system as arrays are dropped, yet nearly all
# of it is made of huge pages.
SEGMENT_BYTES = 64 << 20
HUGE_PAGE = 2 << 20
INTEGERS = frozenset({QType.I8, QType.I16, QType.I32, QType.I64})


class Arena:
    """Fresh, zeroed, 64-byte aligned arrays in shared mappings that ask for transparent huge pages.

    First touch of ordinary memory costs more than decoding into it; huge pages cut that several times. A mapping lives
    until the last array in it is gone.

    Parameters
    ----------
    sizes : iterable of int
        Bytes of each array, in the order in which :meth:`take` will ask for them.
    """

    def __init__(self, sizes: Iterable[int]) -> None:
        self._segments: list[int] = []
        total = 0
        for size in sizes:
            total += -(-size // ALIGN) * ALIGN
            if total >= SEGMENT_BYTES:
                self._segments.append(total)
                total = 0
        if total:
            self._segments.append(total)
        self._segments.reverse()
        self._memory = np.empty(0, np.uint8)
        self._used = 0

    def take(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Hand out the next array."""
        dtype = np.dtype(dtype)
        size = prod(shape) * dtype.itemsize
        if size == 0:
            return np.empty(shape, dtype)
        if self._used + size > len(self._memory):
            self._memory = aligned_memory(self._segments.pop())
            self._used = 0
        start = self._used
        self._used += -(-size // ALIGN) * ALIGN
        return self._memory[start : start + size].view(dtype).reshape(shape)


def aligned_memory(size: int) -> npt.NDArray[np.uint8]:
    """Make `size` bytes of zeroed memory, on a huge-page boundary where that is worth having."""
    if size < HUGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        spare = np.zeros(size + ALIGN, np.uint8)
        return spare[-spare.ctypes.data % ALIGN :][:size]
    # Private: Python's default is shared memory, which gets no huge pages.
    try:
        area = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError, ValueError):  # as numpy says it
        raise MemoryError(f"{size} bytes of memory for decoded values aren't to be had") from None
    memory = np.frombuffer(area, np.uint8)
    with suppress(OSError):  # a kernel built without them
        area.madvise(mmap.MADV_HUGEPAGE)
    return memory[-memory.ctypes.data % HUGE_PAGE :][:size]


def select(tensors: Mapping[str, Tensor], names: Iterable[str] | str | None, label: str) -> list[Tensor]:
    """Pick the tensors that `names` asks for, in file order.

    Parameters
    ----------
    names : str or iterable of str, optional
        Names, or :mod:`fnmatch` patterns (``"blk.0.*"``); ``None`` means all. An exact name is never read as a pattern.

    Raises
    ------
    GGUFError
        If a name isn't there, or a pattern matches nothing.
    """
    if names is None:
        return list(tensors.values())
    chosen: set[str] = set()
    for name in (names,) if isinstance(names, str) else names:
        if not isinstance(name, str):
            raise TypeError(f"names should be a str or an iterable of str, not of {type(name).__name__}")
        if name in tensors:
            chosen.add(name)
            continue
        is_pattern = any(c in name for c in "*?[")
        found = [other for other in tensors if fnmatchcase(other, name)] if is_pattern else []
        if not found:
            what = f"no tensor matches the pattern {name!r}" if is_pattern else f"there is no tensor {name!r}"
            raise GGUFError(f"{label}: {what} among its {len(tensors)} tensors")
        chosen.update(found)
    return [tensors[name] for name in tensors if name in chosen]


def load(
    path: str | bytes | os.PathLike[Any],
    dtype: npt.DTypeLike | str = np.float32,
    names: Iterable[str] | str | None = None,
    *,
    threads: int | None = None,
) -> dict[str, npt.NDArray[Any]]:
    """Decode a file's tensors into memory.

    Parameters
    ----------
    path : path-like
        The file.
    dtype : dtype-like
        float32, float16, ``"bfloat16"`` (uint16 bit patterns) or ``ml_dtypes.bfloat16``; integer tensors keep theirs.
    names : str or iterable of str, optional
        Only these tensors: names or :mod:`fnmatch` patterns.
    threads : int, optional
        At most this many; ``None`` lets ggufx choose, 1 starts none.

    Returns
    -------
    dict of str to ndarray
        Writable arrays of each tensor's logical shape, 64-byte aligned, in file order. They share memory mappings of
        64 MiB or more, each of which is returned to the system once all its arrays are gone.

    Raises
    ------
    GGUFError
        If the file or a tensor is wrong, a name isn't there, or a pattern matches nothing.
    MemoryError
        If there is no memory to map the file or to decode into.

    Examples
    --------
    >>> weights = ggufx.load("model.gguf", names="blk.0.*")  # doctest: +SKIP
    """
    from ..read.reader import open as open_file

    try:
        with open_file(path) as f:
            return decode_all(select(f.tensors, names, f.path), dtype, threads)
    except OSError as error:
        if error.errno == errno.ENOMEM:  # of a map: to the caller it's the same as having none to decode into
            raise MemoryError(f"{error.filename}: the system has no memory to map the file into") from error
        raise


def decode_all(
    tensors: Iterable[Tensor], dtype: npt.DTypeLike | str, threads: int | None
) -> dict[str, npt.NDArray[Any]]:
    """Decode tensors into one arena, the threads sharing the work of all of them."""
    tensors = list(tensors)
    for tensor in tensors:
        tensor.check_readable()
    dtypes = [output_dtype(None if t.qtype in INTEGERS else dtype, QType(t.qtype)) for t in tensors]
    arena = Arena(t.size * d.itemsize for t, d in zip(tensors, dtypes, strict=True))
    outputs = {t.name: arena.take(t.shape, d) for t, d in zip(tensors, dtypes, strict=True)}
    limit = thread_count(threads)
    # Mapped tensors share the threads all at once; others are fetched one by one, so that they aren't all in memory.
    together = [t for t in tensors if t.is_mapped]
    for group in [together, *([t] for t in tensors if not t.is_mapped)]:
        tasks = [task for t in group for task in _tasks(t, outputs[t.name], dtype)]
        run(_Task.run, tasks, max(1, min(limit, len(tasks))))
    return outputs


def _tasks(tensor: Tensor, out: npt.NDArray[Any], dtype: npt.DTypeLike | str | None) -> Iterator[_Task]:
    """Cut one tensor into parts of whole blocks."""
    packed, flat, kind = tensor.packed(), out.reshape(-1), QType(tensor.qtype)
    own = None if kind in INTEGERS else dtype
    for start in range(0, len(flat), TASK_VALUES):
        stop = min(start + TASK_VALUES, len(flat))
        first, last = (i // kind.block_size * kind.block_bytes for i in (start, stop))
        yield _Task(packed[first:last], kind, flat[start:stop], own, tensor.byteorder)


class _Task(NamedTuple):
    """A part of one tensor, in whole blocks."""

    src: npt.NDArray[np.uint8]
    kind: QType
    out: npt.NDArray[Any]
    dtype: npt.DTypeLike | str | None
    byteorder: str

    def run(self) -> None:
        dequantize(
            self.src,
            self.kind,
            shape=self.out.shape,
            dtype=self.dtype,
            out=self.out,
            threads=1,
            byteorder=self.byteorder,
        )
