"""What conversion does to tensors, as named transforms: what becomes of the shape, of the values, and the way back.

A transform takes one tensor (or, where it stacks, several) and gives one or more. Every one knows its inverse, so that
a file can be turned into a checkpoint again. Only :data:`PLUS_ONE` and :data:`NEGATED_EXPONENTIAL` calculate; all
others move values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .hparams import Config

__all__ = [
    "GATE_UP_BIAS_TURNS",
    "GATE_UP_COLUMNS",
    "GATE_UP_HALVES",
    "GATE_UP_TURNS",
    "GATHER_ALTUP",
    "KEEP",
    "KV_B",
    "PADDED_ROWS",
    "PERMUTE_K",
    "PERMUTE_Q",
    "PLUS_ONE",
    "QKV_BY_GROUPS",
    "QKV_BY_HEADS",
    "SQUEEZE_MIDDLE",
    "STACK",
    "TERNARY",
    "TRANSPOSE",
    "WITHOUT_PADDING",
    "Chain",
    "Gather",
    "Reordered",
    "Transform",
    "in_parts",
]

Array = npt.NDArray[Any]
Indices = npt.NDArray[np.int64]
Shape = tuple[int, ...]


class Transform:
    """One tensor in, one tensor out; what a transform doesn't say otherwise leaves it as it is.

    Attributes
    ----------
    outputs : int
        How many tensors come out.
    """

    outputs = 1
    # It moves whole rows of a matrix, whatever they hold, so that it does for packed rows too.
    moves_rows = False

    def shapes(self, shape: Shape, config: Config) -> list[Shape]:
        """The shapes that come out.

        Raises
        ------
        ValueError
            If the shape doesn't fit; the message says what was expected.
        """
        return [shape]

    def apply(self, array: Array, config: Config) -> list[Array]:
        """The tensors that come out."""
        return [array]

    def undo(self, arrays: Sequence[Array], config: Config) -> Array:
        """The tensor that went in."""
        return arrays[0]

    def groups(self, shape: Shape, config: Config) -> int:
        """Into how many equal parts along the first axis a tensor falls that can be changed one by one."""
        return 1

    def apply_to(self, array: Array, config: Config, count: int) -> list[Array]:
        """What comes out of `count` of these parts."""
        return self.apply(array, config)


class Keep(Transform):
    """As it is."""

    moves_rows = True

    def groups(self, shape: Shape, config: Config) -> int:
        return shape[0] if len(shape) > 1 else 1


@dataclass(frozen=True)
class Permute(Transform):
    """The rows of each head from halves to pairs: where rotations turn neighbours instead of halves."""

    keys: bool
    moves_rows = True

    def heads(self, config: Config) -> int:
        return config.kv_heads if self.keys else config.heads

    def shapes(self, shape: Shape, config: Config) -> list[Shape]:
        heads = self.heads(config)
        if not shape or shape[0] % (2 * heads):
            raise ValueError(f"rows of {heads} heads in pairs were expected, not {shape[0] if shape else 'none'}")
        return [shape]

    def groups(self, shape: Shape, config: Config) -> int:
        return self.heads(config)

    def apply(self, array: Array, config: Config) -> list[Array]:
        return self.apply_to(array, config, self.heads(config))

    def apply_to(self, array: Array, config: Config, count: int) -> list[Array]:
        halves = array.reshape(count, 2, array.shape[0] // count // 2, *array.shape[1:])
        return [halves.swapaxes(1, 2).reshape(array.shape)]

    def undo(self, arrays: Sequence[Array], config: Config) -> Array:
        heads, array = self.heads(config), arrays[0]
        pairs = array.reshape(heads, array.shape[0] // heads // 2, 2, *array.shape[1:])
        return pairs.swapaxes(1, 2).reshape(array.shape)


class PlusOne(Transform):
    """Norms that are stored as their distance from one; in the stored type's arithmetic, float32 for bfloat16."""

    def apply(self, array: Array, config: Config) -> list[Array]:
        one: Array = np.ones((), array.dtype)
        return [array + one]

    def undo(self, arrays: Sequence[Array], config: Config) -> Array:
        one: Array = np.ones((), arrays[0].dtype)
        return arrays[0] - one


class Transpose(Transform):
    """The last two axes exchanged."""

    def shapes(self, shape: Shape, config: Config) -> list[Shape]:
        if len(shape) < 2:
            raise ValueError("a matrix was expected")
        return [(*shape[:-2], shape[-1], shape[-2])]

    def groups(self, shape: Shape, config: Config) -> int:
        return shape[0] if len(shape) > 2 else 1

    def apply(self, array: Array, config: Config) -> list[Array]:
        return [np.ascontiguousarray(array.swapaxes(-1, -2))]

    def undo(self, arrays: Sequence[Array], config: Config) -> Array:
        return np.ascontiguousarray(arrays[0].swapaxes(-1, -2))


class SqueezeMiddle(Transform):
    """[a, 1, b] as [a, b]: the one channel of depthwise convolutions."""

    def shapes(self, shape: Shape, config: Config) -> list[Shape]:
        if len(shape) != 3 or shape[1] != 1:
            raise ValueError("[channels, 1, width] was expected")
        return [(shape[0], shape[2])]

    def apply(self, array: Array, config: Config) -> list[Array]:
        return [array.reshape(array.shape[0], array.shape[2])]

    def undo(self, arrays: Sequence[Array], config: Config) -> Array:
        return arrays[0][:, None, :]


@dataclass(frozen=True)
class Halves(Transform):
    """Two tensors that lie one after the other in rows, or row by row by turns, perhaps transposed.

    Attributes
    ----------
    axis : int
        Where the two lie.
    by_turns : bool
        Even rows are the first, odd rows the second.
    transposed : bool
        The last two axes are exchanged before.
    """

    axis: int = -2
    by_turns: bool = False
    transposed: bool = False
    outputs = 2

    @property
    def moves_rows(self) -> bool:  # type: ignore[override]
        return self.axis == -2 and not self.transposed

    def shapes(self, shape: Shape, config: Config) -> list[Shape]:
        if len(shape) < -self.axis:
            raise ValueError(f"at least {-self.axis} dimensions were expected")
        dims = list(shape)
        if self.transposed:
            dims[-2:] = dims[-1], dims[-2]
        if dims[self.axis] % 2:
            raise ValueError(f"an even number was expected instead of {dims[self.axis]}")
        dims[self.axis] //= 2
        return [tuple(dims), tuple(dims)]

    def groups(self, shape: Shape, config: Config) -> int:
        return shape[0] if len(shape) > -self.axis else 1

    def apply(self, array: Array, config: Config) -> list[Array]:
        if self.transposed:
            array = array.swapaxes(-1, -2)
        moved = np.moveaxis(array, self.axis, 0)
        half = len(moved) // 2
        parts = (moved[::2], moved[1::2]) if self.by_turns else (moved[:half], moved[half:])
        return [np.ascontiguousarray(np.moveaxis(part, 0, self.axis)) for part in parts]

    def undo(self, arrays: Sequence[Array], config: Config) -> Array:
        parts = [np.moveaxis(array, self.axis, 0) for array in arrays]
        joined = np.stack(parts, axis=1).reshape(-1, *parts[0].shape[1:]) if self.by_turns else np.concatenate(parts)
        array = np.moveaxis(joined, 0, self.axis)
        return np.ascontiguousarray(array.swapaxes(-1, -2) if self.transposed else array)


class KVB(Transform):
    """The compressed attention's second projection as its key part, transposed, and its value part, head by head."""

    outputs = 2

    def _sizes(self, config: Config) -> tuple[int, int, int]:
        return config.kv_heads, config.need("qk_nope_head_dim"), config.need("v_head_dim")

    def shapes(self, shape: Shape, config: Config) -> list[Shape]:
        heads, nope, v = self._sizes(config)
        if len(shape) != 2 or shape[0] != heads * (nope + v):
            raise ValueError(f"{heads} heads of {nope} + {v} rows were expected")
        return [(heads, shape[1], nope), (heads, v, shape[1])]

    def apply(self, array: Array, config: Config) -> list[Array]:
        heads, nope, v = self._sizes(config)
        both = array.reshape(heads, nope + v, array.shape[-1])
        return [np.ascontiguousarray(both[:, :nope].swapaxes(1, 2)), np.ascontiguousarray(both[:, nope:])]

    def undo(self, arrays: Sequence[Array], config: Config) -> Array:
        both = np.concatenate([arrays[0].swapaxes(1, 2), arrays[1]], axis=1)
        return both.reshape(-1, both.shape[-1])


@dataclass(frozen=True)
class Stack(Transform):
    """Marks tensors, one for each expert, that become one; the conversion fills it expert by expert."""

    def apply(self, array: Array, config: Config) -> list[Array]:
        return [array]


@dataclass(frozen=True)
class WithoutPadding(Transform):
    """Without the first rows, as many as padding takes of learned positions."""

    def _skipped(self, config: Config) -> int:
        pad = config.get("pad_token_id")
        return 0 if pad is None else int(pad) + 1

    def shapes(self, shape: Shape, config: Config) -> list[Shape]:
        if shape[0] <= self._skipped(config):
            raise ValueError(f"more than {self._skipped(config)} rows were expected")
        return [(shape[0] - self._skipped(config), *shape[1:])]

    def apply(self, array: Array, config: Config) -> list[Array]:
        return [array[self._skipped(config) :]]

    def undo(self, arrays: Sequence[Array], config: Config) -> Array:
        return np.pad(arrays[0], ((self._skipped(config), 0), (0, 0)))


class Reordered(Transform):
    """The same values in another order along an axis, perhaps dealt out to several tensors.

    Parameters
    ----------
    order : callable
        From the configuration and the axis' length to the indices of each tensor that comes out; ValueError where the
        length doesn't fit.
    axis : int
    outputs : int
    """

    def __init__(self, order: Callable[[Config, int], list[Indices]], axis: int = 0, outputs: int = 1) -> None:
        self.order, self.axis, self.outputs = order, axis, outputs
        self.moves_rows = axis == 0

    def shapes(self, shape: Shape, config: Config) -> list[Shape]:
        if len(shape) <= self.axis:
            raise ValueError(f"at least {self.axis + 1} dimensions were expected")
        orders = self.order(config, shape[self.axis])
        return [(*shape[: self.axis], len(order), *shape[self.axis + 1 :]) for order in orders]

    def apply(self, array: Array, config: Config) -> list[Array]:
        return [np.take(array, order, self.axis) for order in self.order(config, array.shape[self.axis])]

    def undo(self, arrays: Sequence[Array], config: Config) -> Array:
        length = sum(array.shape[self.axis] for array in arrays)
        order = np.concatenate(self.order(config, length))
        back = np.empty_like(order)
        back[order] = np.arange(length)
        return np.take(np.concatenate(arrays, self.axis), back, self.axis)


def in_parts(length: int, *parts: int) -> Indices:
    """All indices of an axis in these parts."""
    if math.prod(parts) != length or not length:
        raise ValueError(f"{' x '.join(map(str, parts))} were expected instead of {length}")
    return np.arange(length).reshape(parts)


def _by_heads(config: Config, length: int) -> list[Indices]:
    """Query, key and value of each head as all queries, all keys, all values."""
    return [in_parts(length, config.heads, 3, length // 3 // config.heads).swapaxes(0, 1).ravel()]


def _by_groups(config: Config, length: int) -> list[Indices]:
    """Groups of queries with their key and value as all queries, all keys, all values."""
    groups = config.first("num_kv_heads", "n_head_kv") or 1
    each = config.heads // groups + 2
    parts = in_parts(length, groups, each, config.need("hidden_size") // config.heads)
    return [np.concatenate([parts[:, :-2].ravel(), parts[:, -2].ravel(), parts[:, -1].ravel()])]


@dataclass(frozen=True)
class Chain(Transform):
    """One after the other; only the last may have several outputs."""

    steps: tuple[Transform, ...]

    @property
    def outputs(self) -> int:  # type: ignore[override]
        return self.steps[-1].outputs

    def shapes(self, shape: Shape, config: Config) -> list[Shape]:
        shapes = [shape]
        for step in self.steps:
            shapes = step.shapes(shapes[0], config)
        return shapes

    def apply(self, array: Array, config: Config) -> list[Array]:
        arrays = [array]
        for step in self.steps:
            arrays = step.apply(arrays[0], config)
        return arrays

    def undo(self, arrays: Sequence[Array], config: Config) -> Array:
        for step in reversed(self.steps):
            arrays = [step.undo(arrays, config)]
        return arrays[0]


@dataclass(frozen=True)
class Gather(Transform):
    """Marks tensors with numbers that become one of `count`, stacked."""

    count: int


class PaddedRows(Transform):
    """As many rows as the vocabulary has tokens, zeros behind those that are there."""

    def _rows(self, shape: Shape, config: Config) -> int:
        return max(shape[0], int(config.need("vocab_size")))

    def shapes(self, shape: Shape, config: Config) -> list[Shape]:
        if len(shape) != 2:
            raise ValueError("a matrix was expected")
        return [(self._rows(shape, config), shape[1])]

    def apply(self, array: Array, config: Config) -> list[Array]:
        more = self._rows(array.shape, config) - array.shape[0]
        return [np.pad(array, ((0, more), (0, 0))) if more else array]


class Ternary(Transform):
    """Weights as minus one, zero and one times their mean size, which is what the model computes with."""

    def apply(self, array: Array, config: Config) -> list[Array]:
        values = array.astype(np.float32, copy=False)
        scale = max(np.float32(np.mean(np.abs(values), dtype=np.float64)), np.float32(1e-5))
        inverse = np.float32(1) / scale
        return [np.clip(np.round(values * inverse), -1, 1).astype(np.float32) / inverse]


KEEP = Keep()
PERMUTE_Q = Permute(keys=False)
PERMUTE_K = Permute(keys=True)
PLUS_ONE = PlusOne()
TRANSPOSE = Transpose()
SQUEEZE_MIDDLE = SqueezeMiddle()
GATE_UP_HALVES = Halves()
GATE_UP_TURNS = Halves(axis=-2, by_turns=True, transposed=True)
GATE_UP_BIAS_TURNS = Halves(axis=-1, by_turns=True)
KV_B = KVB()
STACK = Stack()
WITHOUT_PADDING = WithoutPadding()
GATE_UP_COLUMNS = Halves(axis=-2, transposed=True)
QKV_BY_HEADS = Reordered(_by_heads)
QKV_BY_GROUPS = Reordered(_by_groups)
GATHER_ALTUP = Gather(3)
PADDED_ROWS = PaddedRows()
TERNARY = Ternary()
