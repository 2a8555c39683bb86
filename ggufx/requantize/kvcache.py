"""How much memory a model's attention cache and recurrent state take, from its metadata alone.

The sizes are those of llama.cpp's caches for one sequence: full-attention layers hold the whole context, sliding-window
layers their window and one batch, MLA layers the compressed row, recurrent layers a state that doesn't grow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..formats.tensor_types import QType, nbytes
from ..model.hyperparameters import Hyperparameters

__all__ = ["CACHE_TYPES", "CacheShape", "LayerCache"]

# What llama.cpp keeps keys and values as.
CACHE_TYPES = (
    QType.F32,
    QType.F16,
    QType.BF16,
    QType.Q8_0,
    QType.Q4_0,
    QType.Q4_1,
    QType.IQ4_NL,
    QType.Q5_0,
    QType.Q5_1,
)

# Every so-many-th layer sees the whole context where the metadata has a window but no pattern of layers; the second
# number is 1 where the group's first layer does rather than its last. Source: the architectures of llama.cpp.
WINDOW_PATTERNS = {
    "afmoe": (4, 0),
    "cohere2": (4, 0),
    "cohere2moe": (4, 1),
    "exaone-moe": (4, 0),
    "exaone4": (4, 0),
    "gemma2": (2, 0),
    "gemma3": (6, 0),
    "gemma3n": (5, 0),
    "gpt-oss": (2, 0),
    "laguna": (4, 1),
    "llama4": (4, 0),
    "mellum": (4, 0),
    "muse-glimmer": (4, 0),
    "olmo2": (4, 0),
    "plamo3": (8, 0),
    "smallthinker": (4, 1),
}
# The window where the metadata doesn't say.
WINDOWS = {"gemma2": 4096, "exaone-moe": 128, "llama4": 8192}
# Layers from this one on reuse an earlier layer's cache.
SHARED_FROM = {"gemma3n": 20}
# A window's cache also holds one batch, in steps of this many cells.
BATCH, CELLS = 512, 256


class LayerCache(NamedTuple):
    """What one layer keeps: values per token of keys and values, the window (0: all), bytes of fixed state."""

    k_width: int
    v_width: int
    window: int
    state_nbytes: int

    def nbytes(self, context: int, k_type: QType, v_type: QType) -> int:
        """Bytes at a context length."""
        cells = context
        if self.window:
            cells = min(context, -(-(self.window + BATCH) // CELLS) * CELLS)
        row = sum(
            nbytes(-(-width // kind.block_size) * kind.block_size, kind)
            for width, kind in ((self.k_width, k_type), (self.v_width, v_type))
        )
        return cells * row + self.state_nbytes


class CacheShape(NamedTuple):
    """The caches of all layers; not `known` where the metadata has neither heads nor recurrent states."""

    layers: tuple[LayerCache, ...]
    known: bool = True

    def nbytes(self, context: int, k_type: QType = QType.F16, v_type: QType = QType.F16) -> int:
        """Bytes of the whole model's cache at a context length."""
        return sum(layer.nbytes(context, k_type, v_type) for layer in self.layers)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> CacheShape:
        """Read the layers, heads, head sizes, windows and states from a file's metadata.

        Raises
        ------
        GGUFError
            If a key the size depends on is missing; the message names it.
        """
        get = Hyperparameters(metadata)
        n_layer = get.n_layer
        heads = get.per_layer("attention.head_count", 0)
        kv_heads = get.per_layer("attention.head_count_kv", heads)
        head = get.number("embedding_length") // max(heads) if max(heads) else 0
        k_size, v_size = get.number("attention.key_length", head), get.number("attention.value_length", head)
        windows = _windows(get)
        shared_from = min(n_layer - get.number("attention.shared_kv_layers", 0), SHARED_FROM.get(get.arch, n_layer))
        interval = get.number("full_attention_interval", 0)
        mla = get.number("attention.key_length_mla", 0) > 0
        state = _state_nbytes(get)
        layers = []
        for n in range(n_layer):
            if kv_heads[n] == 0 or (interval and (n + 1) % interval):
                layers.append(LayerCache(0, 0, 0, state))
            elif n >= shared_from:
                layers.append(LayerCache(0, 0, 0, 0))
            elif mla:
                # One compressed row serves as keys and values.
                width = get.number("attention.kv_lora_rank", 0) + get.number("rope.dimension_count", 0)
                layers.append(LayerCache(width, 0, 0, 0))
            else:
                k = get.number("attention.key_length_swa", k_size) if windows[n] else k_size
                v = get.number("attention.value_length_swa", v_size) if windows[n] else v_size
                layers.append(LayerCache(kv_heads[n] * k, kv_heads[n] * v, windows[n], 0))
        known = f"{get.arch}.attention.head_count" in metadata
        return cls(tuple(layers), known or any(c.k_width or c.v_width or c.state_nbytes for c in layers))


def _windows(get: Hyperparameters) -> list[int]:
    """The sliding window of each layer, 0 where the layer sees everything."""
    n_layer = get.n_layer
    window = get.number("attention.sliding_window", WINDOWS.get(get.arch, 0))
    pattern = get.flags("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        return [window if n < len(pattern) and pattern[n] else 0 for n in range(n_layer)]
    every, first = WINDOW_PATTERNS.get(get.arch, (0, 0))
    every = every if pattern is None else pattern
    if not window or not every:
        return [0] * n_layer  # this architecture doesn't use its window, or we don't know how: count the larger size
    full = 0 if first else every - 1
    return [0 if n % every == full else window for n in range(n_layer)]


def _state_nbytes(get: Hyperparameters) -> int:
    """Bytes of a recurrent layer's state, in float32."""
    if wkv := get.number("wkv.head_size", 0):
        return 4 * get.number("embedding_length") * (wkv + get.number("token_shift_count", 2))
    if short := get.number("shortconv.l_cache", 0):
        return 4 * get.number("embedding_length") * (short - 1)
    inner, state = get.number("ssm.inner_size", 0), get.number("ssm.state_size", 0)
    conv = max(get.number("ssm.conv_kernel", 0) - 1, 0) * (inner + 2 * get.number("ssm.group_count", 0) * state)
    return 4 * (conv + inner * state)
