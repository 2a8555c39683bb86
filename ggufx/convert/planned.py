"""A tensor of the file to be, and how one is made of several or kept as it lies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import GGUFError
from ..formats.tensor_types import QType
from .checkpoint import StoredTensor
from .naming import Match
from .quantized import GroupedTensor

__all__ = ["Array", "Planned", "Shape", "Source", "Tensors", "blocks_reader", "giver_of", "packed_type", "stacked"]

Array = npt.NDArray[Any]
Shape = tuple[int, ...]
Source = StoredTensor | GroupedTensor
Tensors = Mapping[str, Source]


class Planned(NamedTuple):
    """A tensor of the file to be.

    Attributes
    ----------
    name : str
    shape : tuple of int
        Logical, in numpy's order.
    make : callable
        Gives its values as float32 or float16, or its packed bytes where `packed` says so.
    packed : QType or None
        The type in which it already lies in the checkpoint, kept whatever is asked for.
    source : str
        The checkpoint's name for it, for messages.
    groups : int
        Into how many equal parts it falls that can be made one by one.
    part : callable or None
        Makes those from one to another, where there are several.
    """

    name: str
    shape: Shape
    make: Callable[[], Array]
    packed: QType | None
    source: str
    groups: int = 1
    part: Callable[[int, int], Array] | None = None


def giver_of(array: Array) -> Callable[[], Array]:
    """What makes a tensor that is there already."""
    return lambda: array


def packed_type(tensor: Source, match: Match, keep: bool) -> QType | None:
    """The type in which a quantized weight is kept; None where it is decoded, or isn't quantized.

    Raises
    ------
    GGUFError
        If it is to be kept and made of whole numbers that no type holds.
    """
    if not keep or not isinstance(tensor, GroupedTensor) or not tensor.whole:
        return None
    reason = tensor.reason if match.transform.moves_rows else "the conversion changes more than the order of its rows"
    if tensor.block_type is None or not match.transform.moves_rows:
        raise GGUFError(
            f"{tensor.path}: tensor {tensor.source!r} can't be kept without loss: {reason}; to decode it, name a type "
            "instead of auto"
        )
    return tensor.block_type


def blocks_reader(tensor: Source) -> Callable[..., Array]:
    """What reads a quantized weight as blocks."""
    assert isinstance(tensor, GroupedTensor)
    return tensor.blocks


def stacked(name: str, experts: Mapping[int, Source], match: Match, keep: bool, packed: QType | None = None) -> Planned:
    """A layer's experts as one tensor, or numbered tensors as a stack."""
    first = experts[0]
    packed = packed or packed_type(first, match, keep)
    for tensor in experts.values():
        same = (tensor.shape, tensor.dtype) == (first.shape, first.dtype)
        if not same or (packed is not QType.NVFP4 and packed_type(tensor, match, keep) != packed):
            raise GGUFError(
                f"{tensor.path}: tensor {tensor.name!r} is {tensor.shape} of {tensor.dtype}, the first expert's is "
                f"{first.shape} of {first.dtype}"
            )

    reads = [t.values if packed is None else blocks_reader(t) for _, t in sorted(experts.items())]

    def make() -> Array:
        return np.stack([read() for read in reads])

    def part(start: int, stop: int) -> Array:
        pieces = []
        while start < stop:  # rows of one expert after the other
            expert, row = divmod(start, height)
            count = min(stop - start, height - row)
            pieces.append(reads[expert](row, row + count))
            start += count
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    shape = (len(experts), *first.shape)
    if len(first.shape) != 2:
        return Planned(name, shape, make, packed, first.name)
    height = first.shape[0]
    return Planned(name, shape, make, packed, first.name, len(experts) * height, part)
