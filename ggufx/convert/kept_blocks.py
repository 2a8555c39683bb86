"""Weights that lie in a type of ggml's already: MXFP4 and NVFP4, kept whatever type is asked for."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator

import numpy as np

from ..errors import GGUFError
from ..formats.tensor_types import QType
from .checkpoint import StoredTensor
from .hparams import Config
from .naming import Architecture, Match
from .planned import Array, Planned, Source, giver_of, stacked
from .quantized import GroupedTensor
from .transforms import STACK

__all__ = ["mxfp4_weights", "nvfp4_weights"]

_BLOCKS = (".mlp.experts.down_proj_blocks", ".mlp.experts.gate_up_proj_blocks")


def mxfp4_weights(kept: dict[str, Source], config: Config) -> Iterator[Planned]:
    """Experts that lie in MXFP4 blocks already; they are taken out of `kept`."""
    for name in [n for n in kept if n.endswith(_BLOCKS)]:
        blocks, scales = kept.pop(name), kept.pop(name.removesuffix("blocks") + "scales", None)
        block = re.match(r"model\.layers\.(\d+)\.", name)
        if not isinstance(scales, StoredTensor) or not isinstance(blocks, StoredTensor) or block is None:
            raise GGUFError(f"{blocks.path}: tensor {blocks.name!r} has no scales beside it")
        if len(blocks.shape) != 4 or blocks.shape[-1] != 16 or scales.shape != blocks.shape[:3]:
            raise GGUFError(
                f"{blocks.path}: tensor {blocks.name!r} is {blocks.shape} with scales of {scales.shape}; "
                "[experts, rows, groups, 16] and [experts, rows, groups] were expected"
            )
        if int(block[1]) >= config.blocks:
            raise GGUFError(f"{blocks.path}: tensor {blocks.name!r}: {config.source} says {config.blocks} blocks")
        experts, rows, groups = scales.shape
        kinds = ("ffn_gate_exps", "ffn_up_exps") if "gate_up" in name else ("ffn_down_exps",)
        for start, kind in enumerate(kinds):
            shape = (experts, rows // len(kinds), groups * 32)
            part = _packer(blocks, scales, start, len(kinds))
            make = functools.partial(part, 0, experts)
            yield Planned(f"blk.{block[1]}.{kind}.weight", shape, make, QType.MXFP4, blocks.name, experts, part)


def _packer(blocks: StoredTensor, scales: StoredTensor, first: int, step: int) -> Callable[[int, int], Array]:
    def part(start: int, stop: int) -> Array:
        codes = blocks.bits(start, stop)[:, first::step]
        # A byte holds two neighbours in the checkpoint, and here an element with the one sixteen behind it.
        low, high = codes & 15, codes >> 4
        values = np.stack([low, high], axis=-1).reshape(*codes.shape[:-1], 32)
        packed = values[..., :16] | (values[..., 16:] << 4)
        whole = np.concatenate([scales.bits(start, stop)[:, first::step, :, None], packed], axis=-1)
        return np.ascontiguousarray(whole.reshape(*whole.shape[:2], -1))

    return part


def nvfp4_weights(kept: dict[str, Source], config: Config, row: Architecture) -> Iterator[Planned]:
    """Weights that lie in NVFP4 already, with their factors; they are taken out of `kept`."""
    stacks: dict[str, dict[int, GroupedTensor]] = {}
    for name, tensor in list(kept.items()):
        if not isinstance(tensor, GroupedTensor) or tensor.block_type is not QType.NVFP4:
            continue
        try:
            match = row.match(name)
        except KeyError:
            continue  # refused with the others
        if match is None or not (match.transform.moves_rows or match.transform is STACK) or len(match.targets) > 1:
            continue
        del kept[name]
        target = match.targets[0]
        if match.transform is not STACK:
            match.transform.shapes(tensor.shape, config)
            make = functools.partial(_moved_blocks, tensor, match, config)
            yield Planned(target, tensor.shape, make, QType.NVFP4, tensor.name)
            yield from _factors_of(target, [tensor.factors], tensor.name)
            continue
        experts = stacks.setdefault(target, {})
        experts[match.expert or 0] = tensor
        if len(experts) == config.experts:
            parts = [experts[n] for n in sorted(experts)]
            del stacks[target]
            yield stacked(target, dict(enumerate(parts)), match, True, QType.NVFP4)
            yield from _factors_of(target, [t.factors for t in parts], parts[0].name)
    for target, experts in stacks.items():
        raise GGUFError(f"{config.folder}: {target} has {len(experts)} of {config.experts} experts")


def _moved_blocks(tensor: GroupedTensor, match: Match, config: Config) -> Array:
    return match.transform.apply(tensor.blocks(), config)[0]


def _factors_of(target: str, factors: list[tuple[float, float]], source: str) -> Iterator[Planned]:
    """What a runtime multiplies by beside a weight's blocks; left out where it is one."""
    for number, ending in enumerate((".scale", ".input_scale")):
        values = np.array([pair[number] for pair in factors], np.float32)
        trivial = abs(float(values[0]) - 1) < 1e-6 if len(values) == 1 else np.allclose(values, 1, atol=1e-6)
        if not trivial:
            yield Planned(target.replace(".weight", ending), values.shape, giver_of(values), None, source)
