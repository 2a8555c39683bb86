"""The lattices of the IQ1, IQ2 and IQ3 types: which codebook entries lie nearest to a point that isn't in it.

ggml sorts every codebook by distance for every point; here the same lists, in the same order, come from a table of
distances between half points. They are built once, when a type that needs them is first quantized.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .codebooks import GRIDS

__all__ = ["LATTICES", "Lattice", "lattice"]

# type -> (codebook, shells of equal distance that a list of neighbours takes in). nwant in ggml.
LATTICES = {
    "IQ1_S": ("iq1s_grid", 3),
    "IQ1_M": ("iq1s_grid", 3),
    "IQ2_XXS": ("iq2xxs_grid", 2),
    "IQ2_XS": ("iq2xs_grid", 2),
    "IQ2_S": ("iq2s_grid", 1),
    "IQ3_XXS": ("iq3xxs_grid", 2),
    "IQ3_S": ("iq3s_grid", 3),
}

# Lists are padded to whole vectors of the widest path, so that kernels needn't handle a short last one.
PAD = 16


@dataclass(frozen=True)
class Lattice:
    """A codebook with the neighbours of every point outside it.

    A point is a word of its levels, `bits` each, the first value lowest.

    Attributes
    ----------
    bits, size : int
        Bits per level (2 or 3) and values per point (8 or 4).
    place : int32 array (points,)
        Entry number of a point in the codebook, else ``-1 - start`` of its list.
    count : uint16 array (points,)
        Length of a point's list; 0 for codebook entries and unreachable points.
    neighbours : uint16 array
        All lists end to end, as words, each nearest first and in codebook order among equals, padded to a multiple of
        16 by repeating its first word.
    words : uint16 array (entries,)
        The codebook as words.
    """

    bits: int
    size: int
    place: npt.NDArray[np.int32]
    count: npt.NDArray[np.uint16]
    neighbours: npt.NDArray[np.uint16]
    words: npt.NDArray[np.uint16]


def _build(grid_name: str, shells: int) -> Lattice:
    grid = GRIDS[grid_name]
    levels = np.unique(grid)
    size = grid.shape[1]
    bits = 16 // 8 if size == 8 else 12 // 4
    ranks = np.searchsorted(levels, grid)
    shift = bits * np.arange(size)
    words = (ranks << shift).sum(1)

    # Points are pairs of halves; distances of halves are tabulated. Levels are equally spaced, so unit steps will do.
    n, half = len(levels), size // 2
    digits = np.stack(np.unravel_index(np.arange(n**half), (n,) * half), 1)[:, ::-1]
    steps = ((digits[:, None] - digits) ** 2).sum(2).astype(np.uint8)
    half_word = (digits << shift[:half]).sum(1)
    rank_of = np.zeros(1 << bits * half, np.intp)
    rank_of[half_word] = np.arange(n**half)
    mask = (1 << bits * half) - 1
    to_low = steps[:, rank_of[words & mask]]
    to_high = steps[:, rank_of[words >> bits * half]]
    place = np.full(1 << bits * size, -1, np.int32)
    place[words] = np.arange(len(words))

    at, entries, sizes = [], [], []
    for high, far in zip(half_word, to_high, strict=True):
        points = half_word | high << bits * half
        off = place[points] < 0
        distance = to_low[off] + far
        points = points[off]
        limit = distance.min(1, keepdims=True)
        for _ in range(shells - 1):
            beyond = np.where(distance > limit, distance, np.uint8(255))
            limit = np.minimum(beyond.min(1, keepdims=True), np.uint8(254))
        row, entry = np.nonzero(distance <= limit)
        order = np.argsort(row * 256 + distance[row, entry], kind="stable")
        at.append(points)
        entries.append(words[entry[order]])
        sizes.append(np.bincount(row, minlength=len(points)))
    points, found, length = np.concatenate(at), np.concatenate(entries), np.concatenate(sizes)

    padded = -(-length // PAD) * PAD
    start = np.cumsum(padded) - padded
    first = np.cumsum(length) - length
    neighbours = np.repeat(found[first], padded)
    neighbours[np.repeat(start - first, length) + np.arange(len(found))] = found
    place[points] = -1 - start
    count = np.zeros(len(place), np.uint16)
    count[points] = length
    return Lattice(bits, size, place, count, neighbours.astype(np.uint16), words.astype(np.uint16))


_built: dict[str, Lattice] = {}
_lock = threading.Lock()


def lattice(type_name: str) -> Lattice:
    """Lattice of a type of :data:`LATTICES`, built on first use."""
    name, shells = LATTICES[type_name]
    with _lock:
        if name not in _built:
            _built[name] = _build(name, shells)
        return _built[name]
