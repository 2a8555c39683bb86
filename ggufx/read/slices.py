"""Which bytes of a packed tensor an index means; refuses what isn't one run of whole blocks."""

from __future__ import annotations

import operator
from math import prod
from typing import Any, NamedTuple

from ..errors import GGUFError
from ..formats.tensor_types import QType

__all__ = ["Run", "locate", "reshaped"]


class Run(NamedTuple):
    """One contiguous run of values."""

    suffix: str  # how the index was written, for names
    shape: tuple[int, ...]
    start: int  # in values
    size: int

    def bytes(self, qtype: QType) -> tuple[int, int]:
        """First byte and number of bytes of the run."""
        return self.start // qtype.block_size * qtype.block_bytes, self.size // qtype.block_size * qtype.block_bytes


def locate(key: Any, shape: tuple[int, ...], qtype: QType, label: str) -> Run:
    """Find the run of values that an index means.

    Parameters
    ----------
    key : int, slice or tuple of them
        As for numpy, with steps of 1.
    shape : tuple of int
        Shape of the tensor, in numpy's order.
    label : str
        What messages call the tensor.

    Raises
    ------
    IndexError
        If an index is out of range.
    TypeError
        If `key` is of another kind.
    GGUFError
        If the values aren't next to each other in the file, or the row would be cut inside a block.
    """
    keys = _full(key, shape, label)
    starts: list[int] = []
    sizes: list[int] = []
    kept: list[int] = []
    for axis, (part, n) in enumerate(zip(keys, shape, strict=True)):
        if isinstance(part, slice):
            start, stop, step = part.indices(n)
            if step != 1:
                raise GGUFError(f"{label}: a slice with step {step} isn't one run of bytes; take() decodes chosen rows")
            starts.append(start)
            sizes.append(max(stop - start, 0))
            kept.append(sizes[-1])
            continue
        index = operator.index(part)
        if not -n <= index < n:
            raise IndexError(f"{label}: index {index} is out of range for axis {axis} of size {n}")
        starts.append(index % n)
        sizes.append(1)
    if keys:
        _check_row(keys[-1], starts[-1], sizes[-1], shape, qtype, label)
    # One run: the axes before the last partial one must have been narrowed to a single index.
    partial = [axis for axis, n in enumerate(shape) if sizes[axis] != n]
    if partial and 0 not in sizes and any(n > 1 for n in sizes[: partial[-1]]):
        raise GGUFError(
            f"{label}: the values that {_written(key)} means of shape {shape} don't lie next to each other; slice the "
            "first axis, take() chosen rows, or decode and slice the array"
        )
    strides = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
    size = prod(sizes)
    start = sum(map(operator.mul, starts, strides)) if size else 0
    return Run(_written(key), tuple(kept), start, size)


def _full(key: Any, shape: tuple[int, ...], label: str) -> list[Any]:
    """The index with one entry an axis."""
    keys = list(key) if isinstance(key, tuple) else [key]
    for part in keys:
        if part is not Ellipsis and not isinstance(part, slice) and (isinstance(part, bool) or _index(part) is None):
            raise TypeError(
                f"{label}: an index is made of integers, slices and '...', not {type(part).__name__}; "
                "take() decodes chosen rows"
            )
    dots = [i for i, part in enumerate(keys) if part is Ellipsis]
    if len(keys) - len(dots) > len(shape) or len(dots) > 1:
        raise IndexError(f"{label}: {_written(key)} has too many indices for shape {shape}")
    missing = [slice(None)] * (len(shape) - len(keys) + len(dots))
    if not dots:
        return keys + missing
    return keys[: dots[0]] + missing + keys[dots[0] + 1 :]


def _index(part: Any) -> int | None:
    try:
        return operator.index(part)
    except TypeError:
        return None


def _check_row(part: Any, start: int, size: int, shape: tuple[int, ...], qtype: QType, label: str) -> None:
    block = qtype.block_size
    if block == 1 or not size:
        return
    if not isinstance(part, slice):
        raise GGUFError(
            f"{label}: one value can't be cut out of {qtype.name}'s blocks of {block} values; "
            f"decode {block * (start // block)}:{block * (start // block + 1)} of the row, or the row"
        )
    for edge in (start, start + size):
        if edge % block:
            below = edge // block * block
            raise GGUFError(
                f"{label}: {edge} isn't on a block boundary of {qtype.name}, whose rows (shape {shape}) are cut every "
                f"{block} values; the nearest boundaries are {below} and {below + block}"
            )


def _written(key: Any) -> str:
    def one(part: Any) -> str:
        if not isinstance(part, slice):
            return "..." if part is Ellipsis else str(part)
        ends = ["" if end is None else str(end) for end in (part.start, part.stop)]
        return ":".join(ends) if part.step is None else ":".join([*ends, str(part.step)])

    return f"[{', '.join(map(one, key)) if isinstance(key, tuple) else one(key)}]"


def reshaped(wanted: tuple[Any, ...], shape: tuple[int, ...], qtype: QType, label: str) -> tuple[int, ...]:
    """Check a new shape for the same packed bytes, resolving one ``-1``.

    Raises
    ------
    GGUFError
        If the size differs, or the new rows wouldn't be whole blocks.
    """
    if len(wanted) == 1 and not hasattr(wanted[0], "__index__"):
        wanted = tuple(wanted[0])
    dims = [operator.index(d) for d in wanted]
    size = prod(shape)
    if dims.count(-1) == 1:
        known = prod(d for d in dims if d != -1)
        if known > 0 and size % known == 0:
            dims[dims.index(-1)] = size // known
    if any(d < 0 for d in dims) or prod(dims) != size:
        raise GGUFError(f"{label}: shape {shape} holds {size} values, which don't make shape {tuple(wanted)}")
    if size and (dims[-1] if dims else 1) % qtype.block_size:
        raise GGUFError(
            f"{label}: rows of {dims[-1] if dims else 1} values aren't whole blocks of {qtype.name}; the last "
            f"dimension must be a multiple of {qtype.block_size} (now {shape}). Decode it first for any other shape"
        )
    return tuple(dims)
