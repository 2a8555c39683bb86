"""Metadata keys and the types their values may have: the one check behind writers, edits and overrides.

A key keeps its declared type, scalar or array, unless the caller names another, and a few keys have one type only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..formats.value_types import ValueType
from ..read.header import LONGEST_NAME
from ..read.metadata import ArrayList, Metadata
from .serialize import Encoded, Layout, describe

__all__ = [
    "ALIGNMENT",
    "SPLIT_KEYS",
    "Declared",
    "check_key",
    "check_overridable",
    "check_tensor_name",
    "doubts",
    "encode_for",
]

ALIGNMENT = "general.alignment"
# Types and order as llama-quantize writes them.
SPLIT_KEYS = {
    "split.no": ValueType.UINT16,
    "split.count": ValueType.UINT16,
    "split.tensors.count": ValueType.INT32,
}
# ggml keeps names in 64 bytes, the last of them a zero.
LONGEST_GGML_NAME = 63
# Readers ask for these types alone.
FIXED = {ALIGNMENT: ValueType.UINT32, **SPLIT_KEYS}


class Declared(NamedTuple):
    """How a key is declared: a scalar's type, or an array's elements' (`item`), innermost where arrays are nested."""

    type: ValueType
    item: ValueType | None = None
    nested: bool = False

    @classmethod
    def of(cls, metadata: Metadata, key: str) -> Declared:
        """How an opened file declares a key."""
        kind = metadata.types[key]
        if kind.item is not ValueType.ARRAY:
            return cls(kind.type, kind.item)
        value, item = metadata[key], None
        while isinstance(value, ArrayList) and len(value) and item is not ValueType.ARRAY:
            item = value.field_type(0).item
            value = value[0]
            if item is ValueType.ARRAY:
                item = None
        return cls(kind.type, item, nested=True)

    @property
    def elements(self) -> ValueType:
        """What an array's own elements are, arrays where it is nested."""
        return ValueType.ARRAY if self.nested or self.item is None else self.item

    @property
    def text(self) -> str:
        """For messages: ``uint32``, ``an array of string``."""
        if self.type is not ValueType.ARRAY:
            return self.type.name.lower()
        return "an array of " + ("arrays" if self.elements is ValueType.ARRAY else self.elements.name.lower())


def check_key(key: object) -> None:
    """Refuse a metadata key that no reader would take.

    Raises
    ------
    TypeError
        If it is no str, or empty.
    ValueError
        If it is longer than the format allows, has no UTF-8 form, or escapes bytes that are UTF-8.
    """
    _check_name("metadata key", key)


def check_tensor_name(name: object) -> None:
    """Refuse a tensor name that no reader would take; raises as :func:`check_key` does."""
    _check_name("tensor name", name)


def doubts(sizes: Mapping[str, int], limit: int | None) -> list[str]:
    """What to tell of tensors that can be written all the same, from their names, bytes and the limit of a shard.

    llama.cpp refuses long names, which other programs read; a tensor larger than the limit makes its shard so.
    """
    found = []
    long = [name for name in sizes if len(name.encode("utf-8", "surrogateescape")) > LONGEST_GGML_NAME]
    if long:
        others = f" and {len(long) - 1} more tensor names are" if len(long) > 1 else " is"
        found.append(f"tensor {long[0]!r}{others} longer than {LONGEST_GGML_NAME} bytes, which llama.cpp refuses")
    large = [name for name, size in sizes.items() if limit is not None and size > limit]
    if large:
        name = max(large, key=sizes.__getitem__)
        others = f" ({len(large)} tensors are over it)" if len(large) > 1 else ""
        found.append(
            f"tensor {name!r} alone has {sizes[name]} bytes, so its shard is larger than the limit of {limit}{others}"
        )
    return found


def _check_name(what: str, name: object) -> None:
    if not isinstance(name, str) or not name:
        raise TypeError(f"a {what} is a non-empty str, not {name!r}")
    try:
        raw = name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} {name[:40]!r} has no UTF-8 form: {error.reason}") from None
    if (plain := raw.decode("utf-8", "surrogateescape")) != name:
        # Two spellings of one name would be two names to Python and the same bytes in the file.
        raise ValueError(f"{what} {name[:40]!r} spells UTF-8 as escaped bytes; {plain[:40]!r} is the same name")
    if len(raw) > LONGEST_NAME:
        raise ValueError(f"{what} {name[:40]!r}... is longer than {LONGEST_NAME} bytes")


def check_overridable(key: str) -> None:
    """Refuse to override a key that says how the file is laid out, which only its writer knows.

    Raises
    ------
    ValueError
        For ``split.*`` and ``general.alignment``.
    """
    if key in FIXED:
        raise ValueError(f"metadata key {key!r} says how the file is laid out; the writer sets it, no override can")


def encode_for(
    layout: Layout, key: str, value: Any, named: ValueType | None = None, keep: Declared | None = None
) -> Encoded:
    """Encode a value under its key.

    Parameters
    ----------
    layout : Layout
    key : str
    value : Any
    named : ValueType, optional
        The type the caller names: the value's, or its elements' where it is an array.
    keep : Declared, optional
        What the value has to be: a scalar, or an array of these elements.

    Raises
    ------
    TypeError
        If the value isn't of its type, or an array where the key is a scalar, or the other way round.
    ValueError
        If a number doesn't fit its type.
    """
    if (fixed := FIXED.get(key)) is not None:
        if named is not None and named is not fixed:
            raise TypeError(f"metadata key {key!r}: GGUF has it as {fixed.name.lower()}, not {named.name.lower()}")
        if isinstance(value, (bool, np.bool_)) or not hasattr(value, "__index__") or np.ndim(value):
            raise TypeError(f"metadata key {key!r}: an integer was expected ({fixed.name.lower()}), not {value!r}")
        if key == ALIGNMENT and not _is_alignment(int(value)):
            raise ValueError(f"metadata key {key!r}: {value} is no power of two below 2**32")
        return layout.encode(key, value, fixed)
    vtype = named
    if vtype is None and keep is not None:
        vtype = keep.item if keep.type is ValueType.ARRAY else keep.type
    encoded = layout.encode(key, value, vtype)
    if keep is None:
        return encoded
    item = encoded.payload[:4] if encoded.type is ValueType.ARRAY else b""
    if encoded.type is not keep.type or (item and item != layout.u32(keep.elements)):
        raise TypeError(f"metadata key {key!r}: {keep.text} was declared, but the value is {describe(value)}")
    return encoded


def _is_alignment(value: int) -> bool:
    return value > 0 and not value & (value - 1) and not value >> 32
