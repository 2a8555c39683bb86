"""A model's own numbers, read from metadata that a stranger wrote: checked, and named when they are wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import GGUFError

__all__ = ["MAX_LAYERS", "Hyperparameters", "ModelFacts"]

# llama.cpp stops at 512; a number beyond this is a fault of the file, and must not size a list.
MAX_LAYERS = 1 << 16
LARGEST = 1 << 40


class Hyperparameters:
    """The ``<architecture>.*`` keys of a file's metadata.

    Parameters
    ----------
    metadata : mapping
        ``f.metadata`` of an opened file, or the keys of a model that isn't there yet.

    Raises
    ------
    GGUFError
        Here if the architecture is missing; from the methods if a number is missing, isn't one, or makes no sense.
    """

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        arch = metadata.get("general.architecture")
        if not isinstance(arch, str):
            raise GGUFError("metadata has no general.architecture, which the model's other keys go by")
        self.arch = arch
        self._metadata = metadata

    @property
    def n_layer(self) -> int:
        """``block_count``."""
        count = self.number("block_count")
        if not 0 < count <= MAX_LAYERS:
            raise GGUFError(f"metadata key {self.arch}.block_count is {count}, 1 to {MAX_LAYERS} was expected")
        return count

    def number(self, key: str, default: int | None = None) -> int:
        """An integer, or the first of an array; the key is needed where there is no default."""
        value = self._get(key, default)
        if not _is_plain(value):
            if not len(value):
                if default is None:
                    raise GGUFError(f"metadata key {self.arch}.{key} is an empty array, a number was expected")
                return default
            value = value[0]
        return self._integer(key, value)

    def per_layer(self, key: str, default: int | list[int]) -> list[int]:
        """An integer for each layer, from an array or from one number for all."""
        value = self._get(key, default)
        n_layer = self.n_layer
        if _is_plain(value):
            return [self._integer(key, value)] * n_layer
        if len(value) < n_layer:
            raise GGUFError(f"metadata key {self.arch}.{key} has {len(value)} values for {n_layer} layers")
        return [self._integer(key, v) for v in value[:n_layer]]

    def flags(self, key: str) -> list[bool] | int | None:
        """A pattern of layers: an array of flags, or every how many, or None where there is none."""
        value = self._metadata.get(f"{self.arch}.{key}")
        if value is None:
            return None
        return self._integer(key, value) if _is_plain(value) else [bool(self._integer(key, v)) for v in value]

    def _get(self, key: str, default: Any) -> Any:
        value = self._metadata.get(f"{self.arch}.{key}", default)
        if value is None:
            raise GGUFError(f"metadata has no {self.arch}.{key}, which sizes and choices depend on")
        return value

    def _integer(self, key: str, value: Any) -> int:
        if not isinstance(value, (int, float, np.integer, np.floating, np.bool_)) or value != value:
            raise GGUFError(f"metadata key {self.arch}.{key} holds {value!r}, a number was expected")
        if not 0 <= value <= LARGEST:
            raise GGUFError(f"metadata key {self.arch}.{key} is {value}, which no model has")
        if value != int(value):
            raise GGUFError(f"metadata key {self.arch}.{key} is {value}, a whole number was expected")
        return int(value)


def _is_plain(value: Any) -> bool:
    return isinstance(value, str) or not hasattr(value, "__len__")


@dataclass(frozen=True)
class ModelFacts:
    """What of a model's metadata the recipes depend on.

    Attributes
    ----------
    arch : str
        ``general.architecture``.
    n_layer : int
        ``block_count``, layers for multi-token prediction included.
    n_head, n_head_kv : int
        Heads of the first layer.
    n_expert : int
        0 for dense models.
    n_layer_nextn : int
        How many of the layers only serve multi-token prediction.
    """

    arch: str
    n_layer: int
    n_head: int = 0
    n_head_kv: int = 0
    n_expert: int = 0
    n_layer_nextn: int = 0

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> ModelFacts:
        """Read the facts from a file's metadata.

        Raises
        ------
        GGUFError
            If the architecture or its ``block_count`` is missing.
        """
        numbers = Hyperparameters(metadata)
        n_head = numbers.number("attention.head_count", 0)
        return cls(
            numbers.arch,
            numbers.n_layer,
            n_head,
            numbers.number("attention.head_count_kv", n_head),
            numbers.number("expert_count", 0),
            numbers.number("nextn_predict_layers", 0),
        )

    @classmethod
    def known(cls, metadata: Mapping[str, Any]) -> ModelFacts:
        """Read what there is: projectors, diffusion models and adapters don't count blocks, so `n_layer` is 0 for them.

        Raises
        ------
        GGUFError
            If a number is there but isn't one.
        """
        arch = metadata.get("general.architecture", "")
        if arch == "" or (isinstance(arch, str) and f"{arch}.block_count" not in metadata):
            return cls(arch, 0)
        return cls.from_metadata(metadata)

    @property
    def gqa(self) -> int:
        """How many query heads share a key head in the first layer; 0 when it has none."""
        return self.n_head // self.n_head_kv if self.n_head_kv else 0

    @property
    def is_70b(self) -> bool:
        """Whether llama.cpp classes the model as 70B, which raises attn_v: by layer count, in these architectures."""
        n_layer = self.n_layer - self.n_layer_nextn
        if self.arch in ("llama", "llama-embed"):
            return n_layer == 80 and self.n_head != self.n_head_kv and self.n_expert != 8
        return {"qwen2": 80, "deci": 80, "olmo": 80, "jais2": 68}.get(self.arch) == n_layer
