"""From a GGUF file back to a checkpoint's tensors: their names there, and every transform undone."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import GGUFError
from ..formats.tensor_types import QType
from ..read.tensor import Tensor
from .hparams import Config
from .naming import Architecture, Rule
from .transforms import STACK, Gather, Transform

__all__ = ["Restored", "main_dtype", "restored_tensors", "xielu_tensors"]

Array = npt.NDArray[Any]
Shape = tuple[int, ...]

# Made from the configuration when a checkpoint is converted, and not part of it.
_DERIVED = re.compile(r"rope_freqs\.weight|rope_factors_(long|short)\.weight")
_BLOCK = re.compile(r"(?<=blk\.)\d+(?=\.)")


class Restored(NamedTuple):
    """A tensor of the checkpoint to be.

    Attributes
    ----------
    name : str
    shape : tuple of int
    make : callable
        Gives its values as float32.
    sources : tuple of Tensor
        What it is made of.
    """

    name: str
    shape: Shape
    make: Callable[[], Array]
    sources: tuple[Tensor, ...]


class _Place(NamedTuple):
    """Where a tensor of the file goes: the checkpoint's name with its marks, the rule, and which of its targets."""

    pattern: str
    rule: Rule
    number: int


def _places(row: Architecture, config: Config) -> dict[str, _Place]:
    """The table of a row turned round; where several names become the same, the last, which is the special one."""
    skipped = re.compile(r"^model\.lm_head$" if row.skips is None else rf"^model\.lm_head$|{row.skips(config)}")
    out: dict[str, _Place] = {}
    for pattern, value in row.names.items():
        if value is None or skipped.search(pattern):
            continue
        rule = Rule((value,)) if isinstance(value, str) else value
        for number, target in enumerate(rule.targets):
            out[target] = _Place(pattern, rule, number)
    return out


def restored_tensors(tensors: Mapping[str, Tensor], row: Architecture, config: Config) -> list[Restored]:
    """What becomes of a file's tensors, by the checkpoint's names.

    Raises
    ------
    GGUFError
        If the architecture has no such tensor, or one is missing beside another it was cut from.
    """
    places = _places(row, config)
    waiting: dict[str, dict[int, Tensor]] = {}
    out: list[Restored] = []
    for name, tensor in tensors.items():
        if _DERIVED.fullmatch(name):
            continue
        place, block, suffix = _place(name, places)
        if place is None:
            raise GGUFError(
                f"tensor {name!r}: {row.name} models have no such tensor, so it has no place in a checkpoint"
            )
        target = place.pattern.replace("{n}", str(block)) + suffix
        parts = waiting.setdefault(target, {})
        parts[place.number] = tensor
        if len(parts) < len(place.rule.targets):
            continue
        del waiting[target]
        found = tuple(parts[i] for i in range(len(place.rule.targets)))
        out += _undone(target, found, place, suffix, row, config)
    for target, parts in waiting.items():
        some = next(iter(parts.values()))
        raise GGUFError(f"tensor {some.name!r}: others that {target!r} was cut into are missing")
    return sorted((r._replace(name=_outer_name(r.name, row, config)) for r in out), key=lambda r: r.name)


def _place(name: str, places: Mapping[str, _Place]) -> tuple[_Place | None, int | None, str]:
    match = _BLOCK.search(name)
    pattern = name if match is None else f"{name[: match.start()]}{{n}}{name[match.end() :]}"
    block = None if match is None else int(match[0])
    suffix = next((s for s in (".weight", ".bias") if name.endswith(s)), "")
    stem = places.get(pattern.removesuffix(suffix)) if suffix else None
    # Experts one by one are what checkpoints hold where there are both.
    if stem is not None and (pattern not in places or stem.rule.transform is STACK):
        return stem, block, suffix
    return places.get(pattern), block, ""


def _undone(
    target: str, found: tuple[Tensor, ...], place: _Place, suffix: str, row: Architecture, config: Config
) -> Iterator[Restored]:
    """The checkpoint's tensor, or tensors where one is a stack."""
    transform, first = place.rule.transform, found[0]
    if transform is STACK:
        for expert in range(first.shape[0]):
            name = target.replace("{e}", str(expert))
            yield Restored(name, first.shape[1:], _one_of(first, expert), found)
        return
    if isinstance(transform, Gather):
        for number in range(first.shape[0]):
            name = place.pattern.replace("{n}", str(number)) + suffix
            yield Restored(name, first.shape[1:], _one_of(first, number), found)
        return
    if re.search(row.plus_one, place.pattern + (suffix or ".weight")) and suffix != ".bias":
        yield Restored(target, first.shape, lambda: _values(first) - np.float32(1), found)
        return

    def make() -> Array:
        return transform.undo([_values(tensor) for tensor in found], config)

    yield Restored(target, _shape_of(found, transform, config), make, found)


def _values(tensor: Tensor) -> Array:
    return np.asarray(tensor.dequantize(np.float32))


def _one_of(tensor: Tensor, number: int) -> Callable[[], Array]:
    def make() -> Array:
        rows = math.prod(tensor.shape[1:-1])
        part = tensor.rows(number * rows, (number + 1) * rows)
        return np.asarray(part.dequantize(np.float32)).reshape(tensor.shape[1:])

    return make


def _shape_of(found: tuple[Tensor, ...], transform: Transform, config: Config) -> Shape:
    """The shape before the transform, found by undoing it on memory that holds one number."""
    empty = [np.broadcast_to(np.zeros((), np.float32), tensor.shape) for tensor in found]
    with np.errstate(all="ignore"):
        return transform.undo(empty, config).shape


def _outer_name(name: str, row: Architecture, config: Config) -> str:
    """The name as checkpoints have it: the renames of reading turned round."""
    if row.predictors and (match := re.match(r"model\.layers\.(\d+)\.(.+)", name)) and int(match[1]) >= config.blocks:
        others = {"eh_proj": "fc", "enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden"}
        stem, _, suffix = match[2].rpartition(".")
        stem = (others | {"shared_head.norm": "norm"}).get(stem, f"layers.{int(match[1]) - config.blocks}.{stem}")
        return f"mtp.{stem}.{suffix}"
    name = name.replace(".e_score_correction.bias", ".e_score_correction_bias").replace(
        ".expert_bias.bias", ".expert_bias"
    )
    for pattern, replacement in row.restores:
        name = re.sub(pattern, replacement, name)
    return name


def xielu_tensors(metadata: Mapping[str, Any]) -> list[Restored]:
    """The activation's parameters, which are metadata in the file."""
    out = []
    for part, shape in (("alpha_n", (1,)), ("alpha_p", (1,)), ("beta", ()), ("eps", ())):
        for n, value in enumerate(metadata.get(f"xielu.{part}", ())):
            array = np.full(shape, value, np.float32)
            out.append(Restored(f"model.layers.{n}.mlp.act_fn.{part}", shape, functools.partial(np.array, array), ()))
    return out


def main_dtype(tensors: Mapping[str, Tensor]) -> str:
    """The type a checkpoint of these has: the file's half precision, float32 where all is that, else bfloat16."""
    types = {t.qtype for t in tensors.values()}
    if QType.F16 in types and QType.BF16 not in types:
        return "float16"
    return "float32" if types <= {QType.F32} else "bfloat16"
