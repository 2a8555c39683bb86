"""Products with packed rows: y = x W^T straight from the blocks, which are never decoded as a whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import GGUFError
from ..formats.tensor_types import QType, row_nbytes
from . import dispatch
from .arrays import check_layout, from_torch, given_array, is_torch, refuse_masked
from .decode import _source, dequantize, swap_bytes
from .dtypes import is_bfloat16
from .threads import check_environment, recent_thread_count, run, thread_count

__all__ = ["matmul", "matmul_experts"]

Floats = npt.NDArray[np.float32]

PRECISIONS: Final = ("float32", "int8")

# From this many rows of x on, panels of W are decoded and handed to BLAS, where GGUFX_BLAS_ROWS doesn't say otherwise.
BLAS_ROWS: Final = 32

# Values of a decoded panel: 1 MiB of float32, which the L2 of a core holds.
PANEL_VALUES: Final = 1 << 18

# A thread must have this many products to compute before starting it pays: that takes some 60 us.
PRODUCTS_PER_THREAD: Final = 1 << 19

# Several rows of x are read on cache lines, which takes a copy, where at least this many packed rows pay for it: four
# rows gain 8 to 28 % (Zen 5, AVX-512 and AVX2), one row nothing.
ALIGNED_FROM: Final = 64

_FLOAT32: Final = np.dtype(np.float32)
_INTEGERS: Final = frozenset({QType.I8, QType.I16, QType.I32, QType.I64})


class _Rows(NamedTuple):
    """Packed rows: a uint8 matrix, the type of its blocks, and how many values a row has."""

    packed: npt.NDArray[np.uint8]
    qtype: QType
    width: int
    big: bool
    label: str

    def part(self, first: int, last: int) -> npt.NDArray[np.uint8]:
        """Rows first to last, little-endian."""
        part = self.packed[first:last]
        return swap_bytes(part, self.qtype) if self.big else part

    def values(self, first: int, last: int) -> npt.NDArray[np.floating[Any]]:
        """Decode rows first to last; float64 stays as it is."""
        if self.qtype is QType.F64:
            return self.part(first, last).reshape(-1).view(np.float64).reshape(last - first, self.width)
        return dequantize(self.part(first, last), self.qtype, shape=(last - first, self.width), threads=1)


class _Product(NamedTuple):
    """out = x @ W[start : start + out.shape[1]].T; codes: what the kernels take instead of x."""

    x: Floats
    out: Floats
    start: int
    codes: bytearray | None = None


def _blas_rows() -> int:
    text = os.environ.get("GGUFX_BLAS_ROWS")
    if not text:
        return BLAS_ROWS
    if not text.isdecimal() or int(text) < 2:
        raise ValueError(f"GGUFX_BLAS_ROWS must be an integer of at least 2, not {text!r}")
    return int(text)


def _packed_rows(weight: Any, qtype: QType | int | str | None, dims: int) -> tuple[_Rows, tuple[int, ...]]:
    """The rows of a tensor, or of blocks with a type, and their shape without the row's length."""
    if hasattr(weight, "check_readable"):  # a file's tensor; the rooms of files lie above this one
        weight.check_readable()
        kind, shape, label = weight.qtype, weight.shape, weight.label
        if qtype is not None and QType.parse(qtype) != kind:
            raise ValueError(f"{label} is {kind.name}, but qtype={QType.parse(qtype).name} was given")
        if kind in _INTEGERS:
            raise GGUFError(f"{label} holds integers ({kind.name}); block types and floats can be multiplied")
        if len(shape) != dims:
            raise GGUFError(f"{label} has shape {shape}; {dims} dimensions were expected")
        try:
            row = row_nbytes(shape[-1], kind)
        except GGUFError as error:
            raise GGUFError(f"{label}: {error}") from None
        packed = weight.packed().reshape(prod(shape[:-1]), row)
        return _Rows(packed, kind, shape[-1], weight.byteorder == "big", label), shape[:-1]
    if qtype is None:
        raise TypeError(f"weight must be a Tensor, or blocks with qtype=, not {type(weight).__name__} alone")
    kind = QType.parse(qtype)
    if kind in _INTEGERS:
        raise TypeError(f"{kind.name} holds integers; block types and floats can be multiplied")
    raw = weight if type(weight) is np.ndarray and weight.dtype == np.uint8 else _source(weight)
    if not raw.flags.c_contiguous:
        raise ValueError("weight isn't C-contiguous; copy it first, e.g. with np.ascontiguousarray")
    if raw.ndim != dims:
        raise ValueError(f"weight has shape {raw.shape} in bytes; {dims} dimensions were expected, rows last")
    blocks, rest = divmod(raw.shape[-1], kind.block_bytes)
    if rest:
        raise GGUFError(
            f"{kind.name}: rows of {raw.shape[-1]} bytes (weight shape {raw.shape}) aren't whole blocks of "
            f"{kind.block_bytes} bytes"
        )
    packed = raw if dims == 2 else raw.reshape(prod(raw.shape[:-1]), raw.shape[-1])
    return _Rows(packed, kind, blocks * kind.block_size, False, "weight"), raw.shape[:-1]


def _activations(given: object, width: int, label: str) -> tuple[Floats, npt.NDArray[Any]]:
    """The values of x as float32, C-contiguous and aligned, and x itself as an array, which may be the same."""
    if is_torch(given):
        given = from_torch(given, "x")[0]
    if not isinstance(given, np.ndarray):
        raise TypeError(f"x must be a numpy array, not {type(given).__name__}")
    refuse_masked(given, "x")
    x: npt.NDArray[Any] = np.asarray(given)
    if not x.ndim or x.shape[-1] != width:
        raise GGUFError(f"x has shape {x.shape}, but rows of {label} have {width} values")
    flags = x.flags
    if x.dtype == _FLOAT32 and flags.c_contiguous and flags.aligned:
        return x, x
    if x.dtype == _FLOAT32 or x.dtype == np.float16:
        values: Floats = np.require(x, np.float32, ["C", "A"])
        return values, x
    if x.dtype == np.uint16 or is_bfloat16(x.dtype):
        wide = np.empty(x.shape, np.float32)
        np.left_shift(x.view(np.uint16), 16, out=wide.view(np.uint32), dtype=np.uint32)
        return wide, x
    raise TypeError(f"x has dtype {x.dtype}; float32, float16 or bfloat16 (ml_dtypes', or uint16 bits) was expected")


def _result(out: Floats | None, shape: tuple[int, ...], *read: npt.NDArray[Any]) -> Floats:
    if out is None:
        return np.empty(shape, np.float32)
    if isinstance(out, np.ndarray) and out.dtype != _FLOAT32:
        raise TypeError(f"out has dtype {out.dtype}; results are native float32")
    check_layout(out, shape, reads=read)
    return out


def _check_precision(precision: str) -> None:
    if precision not in PRECISIONS:
        raise ValueError(f"precision {precision!r} isn't known; choose one of {', '.join(PRECISIONS)}")


def matmul(
    x: npt.NDArray[Any],
    weight: Any,
    *,
    qtype: QType | int | str | None = None,
    out: Floats | None = None,
    precision: str = "float32",
    threads: int | None = None,
    path: str | None = None,
) -> Floats:
    """Multiply rows of x with packed rows: ``x @ W.T`` straight from the blocks.

    Parameters
    ----------
    x : ndarray or torch.Tensor
        Shape (..., K); float32, float16 or bfloat16 (``ml_dtypes.bfloat16``, or its bits as uint16). Halves are
        computed with as float32.
    weight : Tensor or array of uint8
        W: a tensor of shape (N, K), or blocks of shape (N, bytes of K values) with their `qtype`, C-contiguous.
    qtype : QType, int or str, optional
        The type of blocks; of a tensor it may be left out.
    out : ndarray, optional
        float32 of shape (..., N), C-contiguous and apart from all that is read.
    precision : {"float32", "int8"}
        ``"float32"``: activations as they are; within 1e-6 of sum(abs(x) * abs(w)) of the exact value. ``"int8"``:
        activations are rounded to eight bits in groups of 32 under a float32 scale, as close as ggml's or closer, and
        multiplied as integers, which is faster. Where that isn't finite, the result is that of ``"float32"``; and so it
        is for F32, F16, BF16 and F64, whose values have no codes.
    threads : int, optional
        At most this many; None lets ggufx choose, 1 starts none.
    path : str, optional
        Which kernels: one of :func:`ggufx.paths`; None means the best, or GGUFX_PATH.

    Returns
    -------
    ndarray of float32
        Shape (..., N); `out` if it was given.

    Raises
    ------
    GGUFError
        If the rows of x and W differ in length or aren't whole blocks, or the tensor is of an unknown type or can't be
        read.
    ValueError, TypeError
        For other shapes that don't fit, and dtypes that aren't taken.

    Notes
    -----
    The bits of a row's result depend on nothing but the row, W and the path, with fewer than 32 rows of x. From 32 rows
    on panels of W that fit the L2 cache are decoded and handed to numpy's BLAS, which adds in an order of its own and
    starts threads of its own; ``GGUFX_BLAS_ROWS`` in the environment sets another limit, of 2 or more.
    """
    _check_precision(precision)
    index = dispatch.resolve(path)
    rows, (n,) = _packed_rows(weight, qtype, 2)
    values, read = _activations(x, rows.width, rows.label)
    result = _result(out, (*values.shape[:-1], n), read, rows.packed)
    if values.ndim == 2:
        products = [_Product(values, result, 0)]
    else:
        count = prod(values.shape[:-1])
        products = [_Product(values.reshape(count, rows.width), result.reshape(count, n), 0)]
    _multiply(products, rows, index, threads, precision)
    return result


def _multiply(products: list[_Product], rows: _Rows, path: int, threads: int | None, precision: str) -> None:
    if threads is not None:
        threads = thread_count(threads)
    else:
        check_environment()
    native, packed, qtype, width = dispatch.native, rows.packed, rows.qtype, rows.width
    rounded = precision == "int8" and qtype.block_size > 1
    in_numpy = path < 0 or not native.decodes(qtype)
    fused, work = [], 0
    for p in products:
        if not p.out.size:
            continue
        if not width:
            p.out.fill(0)
        elif in_numpy:
            _in_numpy(p._replace(x=_rounded(p.x)) if rounded else p, rows)
        elif len(p.x) > 1 and len(p.x) >= _blas_rows():
            _by_blas(p, rows)
        else:
            if rounded and native.multiplies_codes(path):
                p = p._replace(codes=native.codes_of(path, p.x))
            elif rounded:
                p = p._replace(x=_rounded(p.x))
            elif len(p.x) > 1 and p.out.shape[1] >= ALIGNED_FROM:
                p = p._replace(x=_aligned(p.x))
            fused.append(p)
            work += width * p.out.size
    workers = work // PRODUCTS_PER_THREAD
    if workers > 1 and threads != 1:
        workers = min(workers, threads or recent_thread_count())
    else:
        workers = 1
    row = packed.shape[1]
    if workers == 1 and not rows.big:  # nothing to be cut up, and the least of Python on the way
        for x, out, start, codes in fused:
            n = out.shape[1]
            native.matmul(path, qtype, x, codes, len(x), width, packed, start * row, out, 0, n, n)
        return

    def multiply(part: tuple[_Product, int, int]) -> None:
        (x, out, start, codes), first, last = part
        if rows.big:
            source, offset = rows.part(start + first, start + last), 0
        else:
            source, offset = packed, (start + first) * row
        native.matmul(path, qtype, x, codes, len(x), width, source, offset, out, first, last - first, out.shape[1])

    run(multiply, _parts(fused, rows, workers), workers)


def _parts(products: list[_Product], rows: _Rows, workers: int) -> Iterator[tuple[_Product, int, int]]:
    """The products in pieces: a few for each thread even out their pace, and swapped copies stay small."""
    for p in products:
        n = p.out.shape[1]
        each = n if workers == 1 else -(-n // (4 * workers))
        if rows.big:
            each = max(1, min(each, PANEL_VALUES // rows.width))
        for first in range(0, n, each):
            yield p, first, min(first + each, n)


def _aligned(x: Floats) -> Floats:
    """Return x itself where it begins on half a cache line, else a copy that does."""
    if x.ctypes.data % 32 == 0:
        return x
    memory = np.empty(x.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    copy = memory[start : start + x.nbytes].view(np.float32).reshape(x.shape)
    copy[...] = x
    return copy


def _rounded(x: Floats) -> Floats:
    """What codes of eight bits stand for, 32 under a scale; values beside infinities and NaN stay as they are."""
    groups = x.reshape(-1, 32)
    with dispatch.default_floats(), np.errstate(all="ignore"):
        most = np.abs(groups).max(axis=1, keepdims=True)
        fits = (most >= np.float32(2.0**-119)) & np.isfinite(most)
        codes = np.rint(groups * np.where(fits, np.float32(127) / most, np.float32(0)))
        rounded = codes * (most / np.float32(127))
    return np.where(np.isfinite(most), rounded, groups).reshape(x.shape)


def _by_blas(p: _Product, rows: _Rows) -> None:
    n = p.out.shape[1]
    panel = max(1, PANEL_VALUES // rows.width)
    with np.errstate(all="ignore"):
        for first in range(0, n, panel):
            last = min(first + panel, n)
            np.matmul(p.x, rows.values(p.start + first, p.start + last).T, out=p.out[:, first:last])


def _in_numpy(p: _Product, rows: _Rows) -> None:
    """The reference: products and sums in float64, row by row, so that no row depends on its company."""
    n = p.out.shape[1]
    panel = max(1, PANEL_VALUES // rows.width)
    with dispatch.default_floats(), np.errstate(all="ignore"):
        for first in range(0, n, panel):
            last = min(first + panel, n)
            w = rows.values(p.start + first, p.start + last).astype(np.float64)
            for r, row in enumerate(p.x):
                p.out[r, first:last] = (w * row).sum(axis=1)


def matmul_experts(
    x: npt.NDArray[Any],
    stack: Any,
    ids: npt.ArrayLike,
    *,
    qtype: QType | int | str | None = None,
    out: Floats | None = None,
    precision: str = "float32",
    threads: int | None = None,
    path: str | None = None,
) -> Floats:
    """Multiply each row of x with its chosen experts of a packed stack.

    Parameters
    ----------
    x : ndarray
        Shape (T, K), the same row for all its experts, or (T, E, K), a row for each; dtypes as for :func:`matmul`.
    stack : Tensor or array of uint8
        A tensor of shape (experts, N, K), or blocks of shape (experts, N, bytes of K values) with their `qtype`.
    ids : array-like of int
        Shape (T, E): the experts of each row, from 0 on.
    qtype, out, precision, threads, path
        As for :func:`matmul`; `out` has shape (T, E, N).

    Returns
    -------
    ndarray of float32
        Shape (T, E, N): ``result[t, e] = stack[ids[t, e]] @ x[t]``.

    Raises
    ------
    IndexError
        If an id isn't that of an expert.
    GGUFError, ValueError, TypeError
        As :func:`matmul` does.

    Notes
    -----
    Only the chosen experts are read. BLAS takes over where so many rows chose the same expert.
    """
    _check_precision(precision)
    index = dispatch.resolve(path)
    rows, (count, n) = _packed_rows(stack, qtype, 3)
    chosen = given_array(ids, "ids")
    if chosen.dtype.kind not in "iu" and chosen.size:
        raise TypeError(f"ids must be integers, not {chosen.dtype}")
    if chosen.ndim != 2:
        raise ValueError(f"ids has shape {chosen.shape}; (rows, experts of each) was expected")
    values, read = _activations(x, rows.width, rows.label)
    if values.shape[:-1] not in (chosen.shape, chosen.shape[:1]):
        raise ValueError(f"x has shape {x.shape}, which doesn't go with ids of shape {chosen.shape}")
    flat = chosen.reshape(-1)
    for bad in flat[(flat < 0) | (flat >= count)][:1].tolist():
        raise IndexError(f"ids holds {bad}, but {rows.label} has the experts 0 to {count - 1}")
    result = _result(out, (*chosen.shape, n), read, rows.packed, chosen)
    if not flat.size:
        return result
    # Pairs of the same expert side by side, in their order.
    order = np.argsort(flat, kind="stable")
    if values.ndim == 2:
        side_by_side = values[order // chosen.shape[1]]
    else:
        side_by_side = values.reshape(flat.size, rows.width)[order]
    places = np.empty((flat.size, n), np.float32)
    ends = np.flatnonzero(np.diff(flat[order], append=count)) + 1
    products, first = [], 0
    for last in ends.tolist():
        products.append(_Product(side_by_side[first:last], places[first:last], int(flat[order[first]]) * n))
        first = last
    _multiply(products, rows, index, threads, precision)
    result.reshape(flat.size, n)[order] = places
    return result
