"""How two files differ in their build: metadata, names, shapes and types."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from .findings import ERROR, WARNING, Finding
from .sides import Side

if TYPE_CHECKING:
    from ..read.reader import GGUFFile

__all__ = ["metadata_findings", "tensor_findings"]


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else value[:57] + "...")
    if hasattr(value, "__len__"):
        return f"an array of {len(value)}"
    return str(value)


def _equal(a: GGUFFile, b: GGUFFile, key: str) -> bool:
    if a.byteorder == b.byteorder and a.version == b.version:
        return bool(np.array_equal(a.metadata.raw(key), b.metadata.raw(key)))
    one, other = a.metadata[key], b.metadata[key]
    return bool(np.array_equal(one, other)) if isinstance(one, np.ndarray) else bool(one == other)


def metadata_findings(a: GGUFFile, b: GGUFFile) -> Iterator[Finding]:
    """Keys that only one has, or with another type or value: ``metadata``, warnings all of them."""
    ours, theirs = a.metadata.types, b.metadata.types
    for key in [*ours, *(k for k in theirs if k not in ours)]:
        if key not in theirs:
            text = f"metadata key {key!r} is only in the first"
        elif key not in ours:
            text = f"metadata key {key!r} is only in the second"
        elif ours[key] != theirs[key] and ours[key].item == theirs[key].item:
            text = f"metadata key {key!r} is {ours[key]} in the first, {theirs[key]} in the second"
        elif ours[key] != theirs[key]:
            text = f"metadata key {key!r} has type {ours[key]} in the first, {theirs[key]} in the second"
        elif _equal(a, b, key):
            continue
        else:
            one, other = _shown(a.metadata[key]), _shown(b.metadata[key])
            text = f"metadata key {key!r} is {one} in the first, {other} in the second"
            if one == other:
                text = f"metadata key {key!r}: both are {one}, of other values"
        yield Finding(WARNING, "metadata", key, text)


def tensor_findings(a: Side, b: Side) -> Iterator[Finding]:
    """``missing tensor`` and ``shape`` (errors), ``type`` and ``order`` (warnings)."""
    for name in [*a.weights, *(n for n in b.weights if n not in a.weights)]:
        ours, theirs = a.weights.get(name), b.weights.get(name)
        if ours is None or theirs is None:
            where = "second" if ours is None else "first"
            yield Finding(ERROR, "missing tensor", name, f"tensor {name!r} is only in the {where}")
        elif ours.shape != theirs.shape:
            text = f"tensor {name!r} has shape {ours.shape} in the first, {theirs.shape} in the second"
            yield Finding(ERROR, "shape", name, text)
        elif ours.type_name != theirs.type_name:
            text = f"tensor {name!r} is {ours.type_name} in the first, {theirs.type_name} in the second"
            yield Finding(WARNING, "type", name, text)
    both = [n for n in a.weights if n in b.weights]
    if both != (other := [n for n in b.weights if n in a.weights]):
        first = next(k for k, (x, y) in enumerate(zip(both, other, strict=True)) if x != y)
        text = f"tensors are in another order, from {both[first]!r} in the first and {other[first]!r} in the second on"
        yield Finding(WARNING, "order", both[first], text)
