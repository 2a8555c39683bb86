"""Quantizing: check everything first, choose the path, split rows over threads, one C call for each part."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import GGUFError, GGUFWarning
from ..formats.tensor_types import ENCODINGS, Encoding, QType, row_nbytes
from . import dispatch
from .arrays import given_array
from .threads import run, thread_count

__all__ = [
    "NEEDS_IMATRIX",
    "QUANTIZABLE",
    "as_values",
    "importance_rows",
    "quantize",
    "quantize_counted",
    "quantize_quietly",
]

Floats = npt.NDArray[np.float32]

NEEDS_IMATRIX: Final = frozenset(t for t, encoding in ENCODINGS.items() if encoding.needs_imatrix)
"""Types that ggml, too, quantizes only with an importance matrix."""

_PLAIN: Final = frozenset({QType.F32, QType.F16, QType.BF16})

QUANTIZABLE: Final = frozenset(ENCODINGS) | _PLAIN
"""Types that :func:`quantize` makes."""

# Values in one piece of work: pieces stay in the cache while they are converted, checked and quantized, and are small
# enough to even out the threads.
_PIECE: Final = 1 << 16
_PIECES_PER_THREAD: Final = 4
_NUMPY_PIECE: Final = 1 << 18


class _Piece(NamedTuple):
    """Rows [start, stop) of the flattened input, under one row of importance (0 without)."""

    start: int
    stop: int
    importance: int


def as_values(x: npt.ArrayLike) -> npt.NDArray[Any]:
    """What :func:`quantize` takes as x, as an array, or an error."""
    array = given_array(x, "x")
    real = array.dtype.kind == "f" and array.dtype.itemsize in (2, 4, 8)
    if not real and (array.dtype.name, array.dtype.itemsize) != ("bfloat16", 2):
        hint = "; bfloat16 patterns must be decoded (QType.BF16) or viewed as such" if array.dtype == np.uint16 else ""
        raise TypeError(f"x must hold float32, float16, bfloat16 or float64 values, not {array.dtype}{hint}")
    if not array.ndim:
        raise ValueError("x must have at least one dimension: the last one is the row")
    return array


def _float32(rows: npt.NDArray[Any]) -> Floats:
    """The rows as native, C-contiguous float32, copied only if they aren't. What overflows becomes infinite."""
    with np.errstate(all="ignore"):
        return np.ascontiguousarray(rows, np.float32)


def _position(shape: tuple[int, ...], flat: int) -> str:
    return "[" + ", ".join(str(int(i)) for i in np.unravel_index(flat, shape)) + "]"


def importance_rows(imatrix: npt.ArrayLike, shape: tuple[int, ...]) -> Floats:
    """Importance, checked against a shape of x, as (n, width) float32: one row, or one for each expert."""
    given = given_array(imatrix, "imatrix")
    if given.dtype.kind not in "fiu" and given.dtype.name != "bfloat16":
        raise TypeError(f"imatrix must hold numbers, not {given.dtype}")
    if given.shape not in ((shape[-1],), (*shape[:-2], shape[-1])):
        wanted = f"({shape[-1]},)" + (f" or {(*shape[:-2], shape[-1])}" if len(shape) > 2 else "")
        raise ValueError(f"imatrix has shape {given.shape}; x of shape {shape} takes {wanted}")
    with np.errstate(all="ignore"):
        importance = np.ascontiguousarray(given, np.float32)
        bad = np.flatnonzero(~(np.isfinite(importance) & (importance >= 0)))
    if bad.size:
        at = _position(given.shape, bad[0])
        value = given.reshape(-1)[bad[0]]
        why = "negative" if value < 0 else "not finite" if not np.isfinite(value) else "too large for float32"
        raise GGUFError(f"imatrix{at} is {value}, which is {why}; importance must be finite and at least 0")
    return importance.reshape(-1, shape[-1])


def _find_nonfinite(array: npt.NDArray[Any], flat: npt.NDArray[Any], pieces: Iterable[_Piece]) -> GGUFError:
    """Error that names the first value that isn't finite."""
    for p in pieces:
        bad = np.flatnonzero(~np.isfinite(_float32(flat[p.start : p.stop])))
        if bad.size:
            break
    at = p.start * flat.shape[1] + int(bad[0])
    value = flat[divmod(at, flat.shape[1])]
    why = "not finite" if not np.isfinite(value) else "too large for float32"
    return GGUFError(f'x{_position(array.shape, at)} is {value}, which is {why}; nonfinite="zero" quantizes it as 0')


def quantize(
    x: npt.ArrayLike,
    qtype: QType | int | str,
    *,
    imatrix: npt.ArrayLike | None = None,
    threads: int | None = None,
    path: str | None = None,
    nonfinite: str = "error",
) -> npt.NDArray[np.uint8]:
    """Quantize rows of numbers to packed blocks, byte for byte as ggml does.

    Parameters
    ----------
    x : array_like
        float32, float16, bfloat16 (ml_dtypes) or float64 values of shape (..., width), finite. float64 is rounded to
        float32 first.
    qtype : QType, int or str
        Any block type, F32, F16 or BF16.
    imatrix : array_like, optional
        Importance of each input column, finite and at least 0: (width,), or (n_expert, width) for x of shape
        (n_expert, rows, width). Types without a search (Q8_0, ternary, FP4 ...) take no notice of it.
    threads : int, optional
        At most this many threads, 1 for none but the caller's. By default as many as pay, within the least of CPU
        affinity, the cgroup's quota and GGUFX_THREADS.
    path : str, optional
        One of `ggufx.paths`; by default GGUFX_PATH, or the best. Every path gives the same bytes.
    nonfinite : {"error", "zero"}, optional
        What to do with NaN and infinities in `x`.

    Returns
    -------
    ndarray of uint8
        The blocks, shape (..., bytes per row).

    Raises
    ------
    GGUFError
        If rows aren't whole blocks, or a value or an importance isn't finite, or an importance is negative; nothing is
        done in that case. The message names the position.
    TypeError, ValueError
        For wrong arguments; IQ2_XXS, IQ2_XS and IQ1_S need `imatrix`.

    Warns
    -----
    GGUFWarning
        If values (F16, BF16) or scales of blocks overflow their half and become infinite; once, with their number.

    Notes
    -----
    The bytes are those of ggml 0.20.2 built for x86-64 without fused operations. Where ggml aborts, because sums of
    squares overflow in the codebook search of an IQ type (magnitudes above some 1e18), the first neighbour is taken.
    Importance of zero throughout gives finite blocks.

    Examples
    --------
    >>> import numpy as np
    >>> quantize(np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32), "Q4_0").shape
    (2, 18)
    """
    packed, overflow = quantize_quietly(x, qtype, imatrix=imatrix, threads=threads, path=path, nonfinite=nonfinite)
    if overflow:
        warnings.warn(overflow, GGUFWarning, stacklevel=2)
    return packed


def quantize_quietly(
    x: npt.ArrayLike,
    qtype: QType | int | str,
    *,
    imatrix: npt.ArrayLike | None = None,
    threads: int | None = None,
    path: str | None = None,
    nonfinite: str = "error",
) -> tuple[npt.NDArray[np.uint8], str]:
    """Do what :func:`quantize` does, but return what it would warn of, or an empty string, beside the blocks."""
    qtype = QType.parse(qtype)
    packed, overflows = quantize_counted(x, qtype, imatrix=imatrix, threads=threads, path=path, nonfinite=nonfinite)
    if not overflows:
        return packed, ""
    values = packed.size // qtype.block_bytes * qtype.block_size
    if qtype in _PLAIN:
        what = f"{overflows} of {values} values are beyond the largest {qtype.name} number"
    else:
        blocks = values // qtype.block_size
        what = f"{overflows} of {blocks} blocks have a scale beyond the largest half-precision number, 65504,"
    return packed, f"{qtype.name}: {what} and become infinite"


def quantize_counted(
    x: npt.ArrayLike,
    qtype: QType | int | str,
    *,
    imatrix: npt.ArrayLike | None = None,
    threads: int | None = None,
    path: str | None = None,
    nonfinite: str = "error",
) -> tuple[npt.NDArray[np.uint8], int]:
    """Do what :func:`quantize` does, but return how many values or scales became infinite beside the blocks."""
    qtype = QType.parse(qtype)
    if qtype not in QUANTIZABLE:
        raise ValueError(f"{qtype.name} isn't a type to quantize to")
    encoding = ENCODINGS.get(qtype, Encoding())
    if nonfinite not in ("error", "zero"):
        raise ValueError(f"nonfinite must be 'error' or 'zero', not {nonfinite!r}")
    array = as_values(x)
    width = array.shape[-1]
    row_bytes = row_nbytes(width, qtype)
    importance = None if imatrix is None else importance_rows(imatrix, array.shape)
    if importance is None and encoding.needs_imatrix:
        raise ValueError(f"{qtype.name} can't be quantized without an importance matrix (imatrix=)")
    index = dispatch.resolve(path)
    limit = thread_count(threads)
    out = np.empty((*array.shape[:-1], row_bytes), np.uint8)
    if not array.size:
        return out, 0
    flat = array.reshape(-1, width)
    # Blocks don't know of their row, except through importance: without it they can be dealt out freely.
    if importance is None and qtype.is_quantized and flat.flags.c_contiguous:
        flat = flat.reshape(-1, qtype.block_size)

    as_is = flat.dtype == np.float32 and flat.dtype.isnative and flat.flags.c_contiguous
    native = dispatch.native if index >= 0 else None
    if native is not None and qtype not in _PLAIN and not native.encodes(qtype):
        native = None
    piece = _PIECE if not encoding.searches else _PIECE // 8
    workers = min(limit, max(1, flat.size // piece))
    n_importance = 1 if importance is None else len(importance)
    if native is None:
        piece = _NUMPY_PIECE
    elif as_is and workers == 1:
        piece = flat.size
    else:
        piece = max(piece, min(flat.size // (workers * _PIECES_PER_THREAD), 1 << 20))
    pieces = list(_pieces(len(flat), flat.shape[1], n_importance, piece))

    # Searches take so long that everything is checked before; else it is on the way, while the values are in the cache.
    quick = native is not None and qtype not in _PLAIN and not encoding.searches and importance is None
    if nonfinite == "error" and not quick:

        def check(p: _Piece) -> None:
            rows = _float32(flat[p.start : p.stop])
            if not (native.all_finite(index, rows) if native is not None else np.isfinite(rows).all()):
                raise _find_nonfinite(array, flat, pieces)

        run(check, pieces, workers)

    target = out.reshape(len(flat), -1)
    lattice = _lattice(qtype)
    lock = threading.Lock()
    overflows = 0

    def encode(p: _Piece) -> int:
        rows = _float32(flat[p.start : p.stop])
        if nonfinite == "zero":
            finite = np.isfinite(rows)
            if not finite.all():
                rows = np.where(finite, rows, np.float32(0))
        weights = None if importance is None else importance[p.importance]
        into = target[p.start : p.stop]
        if qtype in _PLAIN:
            return _plain(rows, qtype, into, path)
        if native is None:
            return _encode_in_numpy(rows, qtype, weights, into)
        found: int = native.encode(index, qtype, rows, weights, lattice, quick and nonfinite == "error", into)
        if found < 0:
            raise _find_nonfinite(array, flat, pieces)
        return found

    def work(p: _Piece) -> None:
        nonlocal overflows
        with dispatch.default_floats():
            found = encode(p)
        if found:
            with lock:
                overflows += found

    run(work, pieces, workers)
    return out, overflows


def _pieces(rows: int, width: int, groups: int, values: int) -> Iterator[_Piece]:
    """Cut rows into pieces of about `values` values that don't straddle groups of equal importance."""
    step = max(1, values // width)
    per_group = rows // groups
    for group in range(groups):
        first = group * per_group
        for start in range(first, first + per_group, step):
            yield _Piece(start, min(start + step, first + per_group), group)


def _lattice(qtype: QType) -> tuple[npt.NDArray[Any], ...] | None:
    if qtype not in ENCODINGS or not ENCODINGS[qtype].codebook:
        return None
    from .reference.lattice import lattice

    table = lattice(qtype.name)
    return table.place, table.count, table.neighbours, table.words


def _plain(rows: Floats, qtype: QType, into: npt.NDArray[np.uint8], path: str | None) -> int:
    """Convert to F32, F16 or BF16: what decoding float32 to that dtype does. Returns how many overflowed."""
    if qtype is QType.F32:
        into[:] = rows.view(np.uint8)
        return 0
    from .decode import dequantize

    dtype: Any = np.float16 if qtype is QType.F16 else "bfloat16"
    halves = dequantize(rows.view(np.uint8), QType.F32, dtype=dtype, threads=1, path=path).view(np.uint16)
    into[:] = halves.astype("<u2", copy=False).view(np.uint8)
    infinite = 0x7C00 if qtype is QType.F16 else 0x7F80
    return int(np.count_nonzero(halves & 0x7FFF == infinite))


def _encode_in_numpy(rows: Floats, qtype: QType, weights: Floats | None, into: npt.NDArray[np.uint8]) -> int:
    from .reference.encode import encode_blocks, mean_square

    size = qtype.block_size
    per_row = rows.shape[1] // size
    qw = means = None
    if weights is not None:
        qw = np.tile(weights.reshape(per_row, size), (len(rows), 1))
        if ENCODINGS[qtype].by_row:
            means = np.repeat(mean_square(rows), per_row)
    blocks = encode_blocks(rows.reshape(-1, size), qtype, qw, means)
    into[:] = blocks.reshape(len(rows), -1)
    return _overflows(blocks, qtype)


def _overflows(blocks: npt.NDArray[np.uint8], qtype: QType) -> int:
    """Blocks with an infinite scale."""
    encoding = ENCODINGS[qtype]
    infinite = np.zeros(len(blocks), bool)
    for at in encoding.halves:
        infinite |= blocks[:, at + 1] & 0x7C == 0x7C
    if encoding.half_in_nibbles is not None:
        words = blocks[:, encoding.half_in_nibbles :]
        infinite |= (words[:, 7] & 0x70 == 0x70) & (words[:, 5] & 0xC0 == 0xC0)
    return int(np.count_nonzero(infinite))
