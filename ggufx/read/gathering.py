"""Chosen entries of a tensor, fetched or gathered so that no call is spent on each small one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .sources import Source

__all__ = ["entries"]

# Entries of at least this many packed bytes are decoded where they lie; smaller ones are gathered first.
DIRECT_BYTES = 1 << 16
# Packed bytes gathered, or fetched from a remote file, at a time.
GATHER_BYTES = 4 << 20


def entries(
    source: Source, start: int, count: int, each: int, numbers: npt.NDArray[np.int64]
) -> Iterator[tuple[int, int, npt.NDArray[np.uint8]]]:
    """The bytes of chosen entries, in the order of their numbers.

    Parameters
    ----------
    source : Source
    start : int
        Where the tensor begins.
    count, each : int
        How many entries it has, and the bytes of one.
    numbers : ndarray of int64
        Which entries, in one dimension; all of them are there.

    Yields
    ------
    first, last : int
        Positions in `numbers`.
    packed : ndarray of uint8
        The bytes of those entries.
    """
    batch = max(1, GATHER_BYTES // max(each, 1))
    if not source.mapped:
        ranges = [(start + i * each, start + (i + 1) * each) for i in numbers.tolist()]
        with source.reading():
            for first in range(0, len(ranges), batch):
                for i, packed in enumerate(source.read_ranges(ranges[first : first + batch]), first):
                    yield i, i + 1, packed
        return
    whole = source.read(start, start + count * each)
    if each >= DIRECT_BYTES:
        for i, k in enumerate(numbers.tolist()):
            yield i, i + 1, whole[k * each : (k + 1) * each]
        return
    rows = whole.reshape(count, each)
    for first in range(0, len(numbers), batch):
        chosen = numbers[first : first + batch]
        yield first, first + len(chosen), rows[chosen]
