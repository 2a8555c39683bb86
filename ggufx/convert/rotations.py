"""What stretches a model's context: factors by which its rotations slow down, which no checkpoint holds as tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from ..errors import GGUFError
from .checkpoint import StoredTensor
from .hparams import F32, Config, Keys

__all__ = ["llama3_factors", "long_factors", "phi_keys", "phi_rope"]


def phi_rope(config: Config) -> int:
    part = config.rope.get("partial_rotary_factor", 1.0)
    return int(part * config.need("hidden_size")) // config.heads


def _attention_factor(config: Config) -> float | None:
    """The scale of attention that goes with long factors."""
    if not config.rope.get("long_factor"):
        return None
    original = config.rope.get("original_max_position_embeddings")
    if not original:
        raise GGUFError(f"{config.source}: long factors need original_max_position_embeddings")
    scale = config.need("max_position_embeddings") / original
    kind = config.rope.get("rope_type")
    if kind in ("su", "longrope"):
        return math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 else 1.0
    if kind == "yarn":
        return 0.1 * math.log(scale) + 1 if scale > 1 else 1.0
    raise GGUFError(f"{config.source}: long factors with rotations of type {kind!r} aren't known")


def phi_keys(config: Config, tensors: Mapping[str, StoredTensor]) -> Keys:
    """The scale of attention that goes with long factors."""
    factor = _attention_factor(config)
    return {} if factor is None else {"phi3.rope.scaling.attn_factor": (factor, F32)}


def long_factors(config: Config) -> dict[str, npt.NDArray[np.float32]]:
    """How much slower each pair turns in long and short texts, as Phi-3 has them."""
    if not config.rope.get("long_factor"):
        return {}
    size, out = phi_rope(config) // 2, {}
    for kind in ("long", "short"):
        given = config.rope.get(f"{kind}_factor")
        if not isinstance(given, list) or len(given) != size:
            raise GGUFError(f"{config.source}: {kind}_factor isn't a list of {size} numbers")
        out[f"rope_factors_{kind}.weight"] = np.array(given, np.float32)
    return out


def llama3_factors(config: Config) -> dict[str, npt.NDArray[np.float32]]:
    """How much slower each pair turns, as Llama 3 stretches its context; float32 throughout, as the reference."""
    rope, one = config.full_rope, np.float32(1)
    if str(rope.get("rope_type")).lower() != "llama3":
        return {}
    low, high = rope.get("low_freq_factor", 1.0), rope.get("high_freq_factor", 4.0)
    factor, context = rope.get("factor", 8.0), rope.get("original_max_position_embeddings", 8192)
    size = config.head_dim
    turns = np.float64(rope.get("rope_theta", 10000.0)) ** (np.arange(0, size, 2, dtype=np.float64) / size)
    out = []
    for frequency in one / turns.astype(np.float32):
        wave = (one / frequency) * np.float32(2 * math.pi)
        if wave < context / high:
            out.append(one)
        elif wave > context / low:
            out.append(np.float32(factor))
        else:
            smooth = ((one / wave) * np.float32(context) - np.float32(low)) / np.float32(high - low)
            out.append(one / ((one - smooth) / np.float32(factor) + smooth))
    return {"rope_freqs.weight": np.array(out, np.float32)}
