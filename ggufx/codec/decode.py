"""Decoding packed blocks: check everything, choose path and store, split over threads, one C call for each part."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import GGUFError
from ..formats.tensor_types import NUMERIC_DTYPES, SWAP_FIELDS, QType
from . import dispatch
from .arrays import check_layout, from_torch, is_torch, refuse_masked
from .dtypes import BFLOAT16, is_bfloat16, named_dtype
from .threads import check_environment, run, thread_count

__all__ = ["check_out", "dequantize", "output_dtype", "swap_bytes"]


def _stream_bytes() -> int:
    # An output larger than half the last-level cache isn't found there afterwards, and written through the cache it
    # costs a read of every line besides; benchmarks/results/sweep.md. 4 MiB where the system doesn't say.
    try:
        with open("/sys/devices/system/cpu/cpu0/cache/index3/size", encoding="utf-8") as f:
            half = int(f.read().strip().removesuffix("K")) << 9
    except (OSError, ValueError):
        half = 0
    return min(max(half, 4 << 20), 32 << 20)


# Outputs of at least this many bytes are written past the cache.
STREAM_BYTES: Final = _stream_bytes()

# A thread must have at least this many values to decode before starting it pays; benchmarks/results/sweep.md. Starting
# takes some 60 us, in which one thread decodes one to two million. From 8 Mi values on a second one gains where the
# kernel or the system's giving of fresh memory takes the time, and loses little where one core fills memory as fast as
# two.
VALUES_PER_THREAD: Final = 1 << 22

# Parts a thread takes at a time: whole units of every type and whole cache lines of every dtype.
PART_VALUES: Final = 1 << 20


class _Output(NamedTuple):
    code: int  # of the C interface
    name: str
    dtype: np.dtype[Any]  # of a new array


_FLOAT32 = _Output(0, "float32", np.dtype(np.float32))
_FLOAT16 = _Output(1, "float16", np.dtype(np.float16))
_BFLOAT16 = _Output(2, "bfloat16", np.dtype(np.uint16))
_OUTPUTS: dict[object, _Output] = {
    None: _FLOAT32,
    np.float32: _FLOAT32,
    np.dtype(np.float32): _FLOAT32,
    "float32": _FLOAT32,
    np.float16: _FLOAT16,
    np.dtype(np.float16): _FLOAT16,
    "float16": _FLOAT16,
    "bfloat16": _BFLOAT16,
}
_OUT_DTYPES: dict[object, _Output] = {
    np.dtype(np.float32): _FLOAT32,
    np.dtype(np.float16): _FLOAT16,
    np.dtype(np.uint16): _BFLOAT16,
}
_UINT8 = np.dtype(np.uint8)


def _output(dtype: object, qtype: QType) -> _Output:
    try:
        return _OUTPUTS[dtype]
    except (KeyError, TypeError):
        pass
    named = named_dtype(dtype)
    if isinstance(named, str) and named == BFLOAT16:
        return _BFLOAT16
    try:
        wanted = np.dtype(named)  # type: ignore[call-overload]
    except TypeError:
        raise TypeError(f"dtype {dtype!r} isn't float32, float16 or bfloat16, nor one numpy knows") from None
    if wanted in _OUTPUTS and wanted.isnative:
        return _OUTPUTS[wanted]
    if is_bfloat16(wanted):
        return _Output(2, "bfloat16", wanted)
    raise TypeError(f"{qtype.name} decodes to float32, float16 or bfloat16, not {wanted}")


def output_dtype(dtype: object, qtype: QType) -> np.dtype[Any]:
    """Dtype of the array that :func:`dequantize` makes for this `dtype` argument."""
    if qtype not in _INTEGERS:
        return _output(dtype, qtype).dtype
    own = np.dtype(NUMERIC_DTYPES[qtype])
    if dtype is not None and not _is_dtype(dtype, own):
        raise TypeError(f"{qtype.name} holds integers, which keep their dtype {own}; {dtype!r} was asked for")
    return own


def _source(src: object) -> npt.NDArray[np.uint8]:
    """The bytes of src, shape (..., bytes per row), without a copy."""
    if isinstance(src, np.ndarray):
        refuse_masked(src, "src")
        array = np.asarray(src)
    elif is_torch(src):
        array = from_torch(src, "src")[0]
    else:
        try:
            view = memoryview(src)  # type: ignore[arg-type]
        except TypeError:
            raise TypeError(f"src must be a buffer or a uint8 array, not {type(src).__name__}") from None
        if not view.c_contiguous:
            raise ValueError("src isn't C-contiguous; copy it first, e.g. with np.ascontiguousarray")
        array = np.frombuffer(view.cast("B") if view.nbytes else b"", np.uint8)
    if not array.flags.c_contiguous:
        raise ValueError("src isn't C-contiguous; copy it first, e.g. with np.ascontiguousarray")
    if array.dtype.hasobject:
        raise TypeError("src holds Python objects, not bytes")
    if not array.ndim:
        array = array.reshape(1)
    # A dtype numpy can't export as a buffer (bfloat16) can still be viewed as bytes.
    return array if array.dtype == _UINT8 else array.view(np.uint8)


def check_out(out: object, shape: tuple[int, ...], qtype: QType, dtype: object = None, *, label: str = "") -> _Output:
    """Refuse an `out` that can't take the decoded values exactly as they are.

    Parameters
    ----------
    out : ndarray
        Where the caller wants them.
    shape : tuple of int
        Their shape.
    qtype, dtype
        What is decoded, and the `dtype` argument that came with `out`.
    label : str
        What is being decoded, for messages.

    Returns
    -------
    _Output
        What `out` is to hold; no code belongs to integers, which no kernel decodes.

    Raises
    ------
    TypeError, ValueError
        Naming what is wrong with it.
    """
    of = f"{label}: " if label else ""
    found: _Output | None
    if qtype in _INTEGERS:
        own = output_dtype(dtype, qtype)
        found = _Output(-1, own.name, own)
        if not isinstance(out, np.ndarray) or out.dtype != own or not out.dtype.isnative:
            what = getattr(out, "dtype", None) or type(out).__name__
            raise TypeError(f"{of}out must be a native {own} array for {qtype.name}, not {what}")
    else:
        if not isinstance(out, np.ndarray):
            raise TypeError(f"{of}out must be a numpy array, not {type(out).__name__}")
        asked = _output(dtype, qtype) if dtype is not None else None
        found = _OUT_DTYPES.get(out.dtype)  # other byte orders are other keys
        if found is None and is_bfloat16(out.dtype):
            found = _Output(2, "bfloat16", out.dtype)
        if found is None:
            raise TypeError(
                f"{of}out has dtype {out.dtype}; {qtype.name} decodes to native float32, float16 or bfloat16"
            )
        if asked is not None and asked.code != found.code:
            raise TypeError(f"{of}out has dtype {out.dtype}, but dtype={asked.name} was asked for")
    check_layout(out, shape, label=label)
    return found


def _logical_shape(
    raw: npt.NDArray[np.uint8], qtype: QType, shape: Sequence[int] | int | None, n: int
) -> tuple[int, ...]:
    if shape is None:
        row = raw.shape[-1]
        blocks, rest = divmod(row, qtype.block_bytes)
        if rest:
            raise GGUFError(
                f"{qtype.name}: rows of {row} bytes (src shape {raw.shape}) aren't whole blocks of "
                f"{qtype.block_bytes} bytes; one block holds {qtype.block_size} values"
            )
        return (*raw.shape[:-1], blocks * qtype.block_size)
    try:
        dims: tuple[int, ...] = (operator.index(shape),)  # type: ignore[arg-type]
    except TypeError:
        dims = tuple(operator.index(d) for d in shape)  # type: ignore[union-attr]
    if any(d < 0 for d in dims):
        raise ValueError(f"negative dimension in shape {dims}")
    if math.prod(dims) != n:
        raise GGUFError(f"{qtype.name}: src's {raw.size} bytes hold {n} values, shape {dims} has {math.prod(dims)}")
    if n and dims and dims[-1] % qtype.block_size:
        raise GGUFError(
            f"{qtype.name}: a row of {dims[-1]} values (shape {dims}) isn't a whole number of blocks of "
            f"{qtype.block_size} values"
        )
    return dims


def _new(shape: tuple[int, ...], dtype: np.dtype[Any], n: int) -> npt.NDArray[Any]:
    """An array for streamed stores: they want whole cache lines, and numpy aligns only to 16 bytes."""
    size = n * dtype.itemsize
    if size < STREAM_BYTES:
        return np.empty(shape, dtype)
    base = np.empty(size + 64, np.uint8)
    start = -base.ctypes.data % 64
    return base[start : start + size].view(dtype).reshape(shape)


def swap_bytes(raw: npt.NDArray[np.uint8], qtype: QType) -> npt.NDArray[np.uint8]:
    """Blocks with every multi-byte field swapped: big-endian blocks as little-endian ones, and back.

    Parameters
    ----------
    raw : ndarray of uint8
        Whole blocks, any shape; not changed.
    qtype : QType
        The tensor type.

    Returns
    -------
    ndarray of uint8
        A copy of the same shape.

    Notes
    -----
    Swapped is what ggml declares wider than a byte; see ``formats.SWAP_FIELDS``.
    """
    swapped = np.array(raw, order="C")
    blocks = swapped.reshape(-1, qtype.block_bytes)
    for start, width, count in SWAP_FIELDS[qtype]:
        field = blocks[:, start : start + width * count].reshape(len(blocks), count, width)
        blocks[:, start : start + width * count] = field[:, :, ::-1].reshape(len(blocks), -1)
    return swapped


def _is_big(byteorder: str) -> bool:
    if byteorder not in ("little", "big"):
        raise ValueError(f"byteorder must be 'little' or 'big', not {byteorder!r}")
    return byteorder == "big"


def _is_dtype(dtype: object, own: np.dtype[Any]) -> bool:
    try:
        return np.dtype(named_dtype(dtype)) == own  # type: ignore[call-overload,no-any-return]
    except TypeError:
        return False


def _integers(
    raw: npt.NDArray[np.uint8],
    qtype: QType,
    shape: tuple[int, ...],
    dtype: object,
    out: npt.NDArray[Any] | None,
    big: bool,
) -> npt.NDArray[Any]:
    own = output_dtype(dtype, qtype)
    values = raw.reshape(-1).view(own.newbyteorder(">" if big else "<")).reshape(shape)
    if out is None:
        return values.astype(own)
    check_out(out, shape, qtype, dtype)
    if np.may_share_memory(raw, out):
        raise ValueError("out overlaps src")
    np.copyto(out, values)
    return out


def dequantize(
    src: object,
    qtype: QType | int | str | None = None,
    *,
    shape: Sequence[int] | int | None = None,
    dtype: npt.DTypeLike | None = None,
    out: npt.NDArray[Any] | None = None,
    threads: int | None = None,
    path: str | None = None,
    byteorder: str = "little",
) -> npt.NDArray[Any]:
    """Decode packed blocks to numbers, bit for bit as ggml does.

    Parameters
    ----------
    src : buffer, ndarray or Tensor
        The packed bytes, C-contiguous, at any alignment: uint8 of shape (..., bytes per row), or any other buffer,
        whose bytes count. A file's Tensor brings its type, shape and byte order.
    qtype : QType, int or str
        The tensor type of the blocks; needed unless `src` is a Tensor.
    shape : int or sequence of int, optional
        Logical shape of the result in numpy's order. By default (..., values per row).
    dtype : dtype, optional
        float32, float16, ``"bfloat16"`` (the result is uint16 bit patterns) or ``ml_dtypes.bfloat16``; short names
        (``"f16"``, ``"bf16"``) and torch's dtypes are understood too. By default that of `out`, else float32. Halves
        are the float32 value rounded to nearest, ties to even. Integer types keep their own dtype; F64 rounds once, to
        the dtype asked for.
    out : ndarray, optional
        Where the values go: of exactly this shape, C-contiguous, aligned, writable, native, of the right dtype (uint16
        or ml_dtypes' for bfloat16), apart from `src`. Returned as it is.
    threads : int, optional
        At most this many threads, 1 for none but the caller's. By default as many as pay, within the least of CPU
        affinity, the cgroup's quota and GGUFX_THREADS.
    path : str, optional
        One of `ggufx.paths`; by default GGUFX_PATH, or the best. Every path gives the same bits.
    byteorder : {"little", "big"}, optional
        Byte order of the fields inside the blocks.

    Returns
    -------
    ndarray
        The values, of shape `shape`; `out` where that was given.

    Raises
    ------
    GGUFError
        If `src` isn't whole blocks, or `shape` doesn't match it, or the type is unknown.
    TypeError, ValueError
        For wrong arguments.
    """
    if type(src) is not np.ndarray and hasattr(src, "check_readable"):
        return _tensor(src, qtype, shape, dtype=dtype, out=out, threads=threads, path=path)
    if type(qtype) is not QType:
        if qtype is None:
            raise TypeError("dequantize needs qtype, the tensor type of the blocks")
        qtype = QType.parse(qtype)
    plain = type(src) is np.ndarray and src.dtype is _UINT8 and src.ndim and src.flags.c_contiguous
    raw: npt.NDArray[np.uint8] = src if plain else _source(src)  # type: ignore[assignment]
    size = raw.size
    blocks = size // qtype.block_bytes
    if blocks * qtype.block_bytes != size:
        raise GGUFError(
            f"{qtype.name}: src has {size} bytes, which isn't a whole number of blocks of {qtype.block_bytes} bytes"
        )
    n = blocks * qtype.block_size
    dims = (n,) if shape is None and raw.ndim == 1 else _logical_shape(raw, qtype, shape, n)
    big = byteorder != "little" and _is_big(byteorder)
    index = dispatch.resolve(path)
    if qtype in _INTEGERS:
        return _integers(raw, qtype, dims, dtype, out, big)
    if out is None:
        wanted = _output(dtype, qtype)
        out = _new(dims, wanted.dtype, n)
    else:
        wanted = check_out(out, dims, qtype, dtype)
    if n < 2 * VALUES_PER_THREAD and (threads is None or (type(threads) is int and threads > 0)):
        limit = 1
        if threads is None:
            check_environment()
    else:
        limit = thread_count(threads)
    if not n:
        return out
    native = dispatch.native
    compiled = index >= 0 and native.decodes(qtype)
    # The compiled decoder looks itself, at the memory it was handed: asking numpy takes longer than a small call.
    if (big or not compiled) and np.may_share_memory(raw, out):
        raise ValueError("out overlaps src")
    if not compiled:
        _decode_in_numpy(raw, qtype, wanted, out, n, big)
        return out
    stream = n * out.itemsize >= STREAM_BYTES
    if big:
        # In parts, so that the swapped copy stays small.
        for start in range(0, n, PART_VALUES):
            part = min(PART_VALUES, n - start)
            first = start // qtype.block_size * qtype.block_bytes
            last = (start + part) // qtype.block_size * qtype.block_bytes
            swapped = swap_bytes(raw.reshape(-1)[first:last], qtype)
            native.decode(index, qtype, wanted.code, swapped, 0, out, start * out.itemsize, part, stream)
        return out
    workers = min(limit, n // VALUES_PER_THREAD)
    if workers <= 1:
        native.decode(index, qtype, wanted.code, raw, 0, out, 0, n, stream)
        return out

    def part_of(start: int) -> None:
        native.decode(
            index,
            qtype,
            wanted.code,
            raw,
            start // qtype.block_size * qtype.block_bytes,
            out,
            start * wanted.dtype.itemsize,
            min(size_of_part, n - start),
            stream,
        )

    # A few parts for each thread even out their pace; whole units and lines keep the kernels on whole vectors.
    size_of_part = min(PART_VALUES, -(-n // (4 * workers)) + 4095 & ~4095)
    run(part_of, range(0, n, size_of_part), workers)
    return out


def _tensor(tensor: Any, qtype: QType | int | str | None, shape: Any, **options: Any) -> npt.NDArray[Any]:
    """Decode a file's tensor, which this room knows by its attributes only."""
    if qtype is not None and QType.parse(qtype) != tensor.qtype:
        raise ValueError(f"{tensor.label} isn't {QType.parse(qtype).name}; leave qtype out")
    tensor.check_readable()
    shape = tensor.shape if shape is None else shape
    return dequantize(tensor.packed(), tensor.qtype, shape=shape, byteorder=tensor.byteorder, **options)


_INTEGERS = frozenset({QType.I8, QType.I16, QType.I32, QType.I64})


def _decode_in_numpy(
    raw: npt.NDArray[np.uint8], qtype: QType, wanted: _Output, out: npt.NDArray[Any], n: int, big: bool
) -> None:
    from .reference.decode import decode

    values = out.reshape(-1)
    if wanted.code == 2:
        values = values.view(np.uint16)
    flat = raw.reshape(-1)
    with dispatch.default_floats():
        if not big:
            decode(flat, qtype, wanted.name, values)
            return
        for start in range(0, n, PART_VALUES):
            stop = min(start + PART_VALUES, n)
            first, last = (i // qtype.block_size * qtype.block_bytes for i in (start, stop))
            decode(swap_bytes(flat[first:last], qtype), qtype, wanted.name, values[start:stop])


if sys.byteorder != "little":  # the kernels and the reference read little-endian words
    raise ImportError("ggufx needs a little-endian machine")
