"""Tensors that can be one: queries, keys and values of a layer, and its experts' gates and inputs."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from ..errors import GGUFError
from .planned import Array, Planned

__all__ = ["fuse_gate_up", "fuse_qkv"]

_QKV = re.compile(r"((?:.*\.)?blk\.\d+\.)attn_([qkv])\.(weight|bias)")
_GATE_UP = re.compile(r"((?:.*\.)?blk\.\d+\.)ffn_(gate|up)_exps\.(weight)")


def fuse_qkv(planned: Sequence[Planned], where: str) -> list[Planned]:
    """One tensor for queries, keys and values wherever a layer has all three, with the biases of all or of none.

    Raises
    ------
    GGUFError
        If no layer has them.
    """
    found = _found(planned, _QKV)
    for layer in {layer for layer, _ in found}:
        weights, biases = found.get((layer, "weight"), {}), found.get((layer, "bias"), {})
        if set(weights) != set("qkv") or len(biases) not in (0, 3):
            found.pop((layer, "weight"), None)
            found.pop((layer, "bias"), None)
    if not found:
        raise GGUFError(f"{where}: no layer has queries, keys and values that could be one tensor")
    return _fused(planned, _QKV, found, "qkv", "attn_qkv", axis=0)


def fuse_gate_up(planned: Sequence[Planned], where: str) -> list[Planned]:
    """One tensor for the gates and inputs of a layer's experts.

    Raises
    ------
    GGUFError
        If no layer has them.
    """
    found = {key: parts for key, parts in _found(planned, _GATE_UP).items() if set(parts) == {"gate", "up"}}
    if not found:
        raise GGUFError(f"{where}: no layer has experts' gates and inputs that could be one tensor")
    return _fused(planned, _GATE_UP, found, ("gate", "up"), "ffn_gate_up_exps", axis=1)


Found = dict[tuple[str, str], dict[str, Planned]]


def _found(planned: Sequence[Planned], pattern: re.Pattern[str]) -> Found:
    found: Found = {}
    for p in planned:
        if match := pattern.fullmatch(p.name):
            found.setdefault((match[1], match[3]), {})[match[2]] = p
    return found


def _fused(
    planned: Sequence[Planned], pattern: re.Pattern[str], found: Found, order: Sequence[str], name: str, axis: int
) -> list[Planned]:
    """The plan with each group as one tensor, where the last of it stood."""
    out: list[Planned] = []
    seen: dict[tuple[str, str], int] = {}
    for p in planned:
        match = pattern.fullmatch(p.name)
        key = (match[1], match[3]) if match else ("", "")
        if key not in found:
            out.append(p)
            continue
        seen[key] = seen.get(key, 0) + 1
        if seen[key] == len(order):
            out.append(_joined(f"{key[0]}{name}.{key[1]}", [found[key][part] for part in order], axis))
    return out


def _joined(name: str, parts: Sequence[Planned], axis: int) -> Planned:
    first = parts[0]
    for p in parts:
        same = p.shape[:axis] + p.shape[axis + 1 :] == first.shape[:axis] + first.shape[axis + 1 :]
        if not same or p.packed is not None:
            raise GGUFError(f"tensor {p.source!r}: with shape {p.shape} it can't be one with {first.shape}")
    shape = (*first.shape[:axis], sum(p.shape[axis] for p in parts), *first.shape[axis + 1 :])

    def make() -> Array:
        return np.concatenate([p.make() for p in parts], axis)

    return Planned(name, shape, make, None, first.source)
