"""Metadata keys that families of architectures have beside, or instead of, the common ones."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import GGUFError
from .checkpoint import StoredTensor
from .encoders import pooling
from .hparams import BOOL, COMMON, F32, FILE_TYPE, GATING, I32, TEXT, U32, Config, Key, Keys, replaced
from .rotations import phi_rope


def partial(default: float) -> Any:
    """How many dimensions of a head are turned."""

    def size(config: Config) -> int:
        return int(config.head_dim * config.full_rope.get("partial_rotary_factor", default))

    return size


def _truthy(name: str) -> Any:
    return lambda config: config.get(name) or None


def _lfm2_heads(config: Config) -> list[int]:
    kinds = config.need("layer_types")
    unknown = sorted(set(kinds) - {"conv", "full_attention"})
    if unknown or len(kinds) != config.blocks:
        raise GGUFError(f"{config.source}: layer_types is {kinds}; conv or full_attention for each block was expected")
    return [config.kv_heads if kind != "conv" else 0 for kind in kinds]


def _lfm2_width(config: Config) -> int:
    width = config.first("block_ff_dim", "intermediate_size")
    if not config.need("block_auto_adjust_ff_dim"):
        return int(width)
    multiple = config.need("block_multiple_of")
    width = int(2 * width / 3)
    if config.get("block_ffn_dim_multiplier") is not None:
        width = int(config.get("block_ffn_dim_multiplier") * width)
    return int(multiple * ((width + multiple - 1) // multiple))


def _windows(config: Config) -> list[bool] | None:
    if "sliding_window" not in config.values:
        return None
    kinds = config.get("layer_types")
    if kinds is not None:
        return [kind == "sliding_attention" for kind in kinds]
    return [(n + 1) % 4 != 0 for n in range(config.blocks)]


def _first_dense(config: Config) -> int:
    first = config.get("first_k_dense_replace")
    if first is not None:
        return int(first)
    return config.blocks if config.get("n_routed_experts") is None else 0


def _mscale(config: Config) -> float | None:
    scale = config.rope.get("mscale_all_dim")
    return None if scale is None else 0.1 * scale


def _share(name: str, default: float | None = None) -> Any:
    """A part of a head's size, cut as the reference cuts it: of the whole width, before it is dealt out to heads."""

    def size(config: Config) -> int:
        part = config.rope.get("partial_rotary_factor", default)
        if part is None:
            raise GGUFError(f"{config.source}: partial_rotary_factor is missing")
        return int(part * config.need(name)) // config.heads

    return size


def _stablelm_rope(config: Config) -> int:
    part = config.rope.get("partial_rotary_factor", 0.25)
    return int(part * (config.need("hidden_size") // config.heads))


def _nemotron_factor(config: Config) -> Any:
    return config.get("factor") or config.rope.get("factor")


def _exaone_windows(config: Config) -> list[bool] | None:
    if config.get("sliding_window") is None:
        return None
    kinds, pattern = config.get("layer_types"), config.get("sliding_window_pattern")
    if kinds is not None:
        return [kind == "sliding_attention" for kind in kinds]
    if isinstance(pattern, str) and pattern:
        return [pattern[n % len(pattern)] == "L" for n in range(config.blocks)]
    return [(n + 1) % pattern != 0 for n in range(config.blocks)] if isinstance(pattern, int) and pattern else None


# What HunYuan's stretched rotations reach, whatever the configuration says.
_LONG_CONTEXT = 256 * 1024


def _if_dynamic(value: Any) -> Any:
    return lambda config: value if config.rope.get("rope_type") == "dynamic" else None


def _hunyuan_base(config: Config) -> float | None:
    """The base of rotations that are stretched by a factor of their own."""
    if config.rope.get("rope_type") != "dynamic":
        return None
    base, length, size = config.rope.get("rope_theta", 10000.0), config.need("max_position_embeddings"), config.head_dim
    if base != 10000.0 or length not in (32 * 1024, _LONG_CONTEXT):
        raise GGUFError(f"{config.source}: dynamic rotations of base {base} and {length} positions aren't known")
    return float(base * (config.rope.get("alpha", 50) ** (size / (size - 2))))


def _sparsity(config: Config) -> list[float]:
    """How many standard deviations an activation has to be above the mean, for the part of them that is left out."""
    parts = [float(np.float32(part)) for part in config.need("activation_sparsity_pattern")]
    if not all(0 <= part < 1 for part in parts):
        raise GGUFError(f"{config.source}: activation_sparsity_pattern is {parts}, parts from 0 to 1 were expected")
    normal = statistics.NormalDist()
    return [normal.inv_cdf(part) if part else -math.inf for part in parts]


def xielu_keys(config: Config, tensors: Mapping[str, StoredTensor]) -> Keys:
    """The activation's parameters, which are tensors of the checkpoint and metadata of the file."""
    keys: Keys = {}
    for part in ("alpha_n", "alpha_p", "beta", "eps"):
        found = [tensors.get(f"model.layers.{n}.mlp.act_fn.{part}") for n in range(config.blocks)]
        if any(tensor is None or math.prod(tensor.shape) != 1 for tensor in found):
            raise GGUFError(f"{config.source}: the checkpoint lacks the activation's {part} of some block")
        keys[f"xielu.{part}"] = ([float(tensor.values().reshape(())) for tensor in found if tensor is not None], F32)
    return keys


def blocks_and_next(config: Config) -> int:
    """The blocks with those that predict further tokens."""
    return config.blocks + int(config.get("num_nextn_predict_layers") or 0)


def with_next(keys: tuple[Key, ...]) -> tuple[Key, ...]:
    """The keys, layers that predict further tokens counted among the blocks."""
    return tuple(key._replace(source=blocks_and_next) if key.name == "block_count" else key for key in keys)


HEAD_DIM = (Key("attention.key_length", ("head_dim",), U32), Key("attention.value_length", ("head_dim",), U32))
_HEADS_KV = Key("attention.head_count_kv", lambda c: c.kv_heads, U32)
_FILE = Key("general.file_type", lambda c: c.get(FILE_TYPE), U32)
_VOCAB = Key("vocab_size", ("vocab_size",), U32, required=True)

LLAMA = (*COMMON, _VOCAB, Key("rope.dimension_count", lambda c: c.head_dim, U32))
ARCEE = (*LLAMA, Key("pooling_type", pooling, U32))
_WITHOUT_HEAD_DIM = tuple(key for key in LLAMA if key not in HEAD_DIM)
GRANITE = (
    *(k for k in _WITHOUT_HEAD_DIM if k.name != "rope.dimension_count"),
    Key("rope.dimension_count", lambda c: c.need("hidden_size") // c.heads, U32),
    Key("attention.scale", _truthy("attention_multiplier"), F32),
    Key("embedding_scale", _truthy("embedding_multiplier"), F32),
    Key("residual_scale", _truthy("residual_multiplier"), F32),
    Key("logit_scale", _truthy("logits_scaling"), F32),
)
GRANITE_MOE = (*GRANITE, Key("expert_shared_feed_forward_length", _truthy("shared_intermediate_size"), U32))
POOLED = (*COMMON, Key("pooling_type", pooling, U32))
QWEN_MOE = (
    *COMMON,
    Key("expert_feed_forward_length", ("moe_intermediate_size",), U32),
    Key("expert_shared_feed_forward_length", ("shared_expert_intermediate_size",), U32),
)
GEMMA = (
    Key("context_length", ("max_position_embeddings",), U32, required=True),
    Key("embedding_length", ("hidden_size",), U32, required=True),
    Key("block_count", lambda c: c.blocks, U32),
    Key("feed_forward_length", ("intermediate_size",), U32, required=True),
    Key("attention.head_count", lambda c: c.heads, U32),
    _HEADS_KV,
    Key("attention.layer_norm_rms_epsilon", ("rms_norm_eps",), F32, required=True),
    *HEAD_DIM,
    _FILE,
)
GEMMA2 = (
    *GEMMA,
    Key("attn_logit_softcapping", ("attn_logit_softcapping",), F32, required=True),
    Key("final_logit_softcapping", ("final_logit_softcapping",), F32, required=True),
    Key("attention.sliding_window", ("sliding_window",), U32, required=True),
)
GEMMA3 = (
    *COMMON,
    Key("final_logit_softcapping", _truthy("final_logit_softcapping"), F32),
    Key(
        "attention.sliding_window",
        lambda c: c.get("sliding_window") if c.get("sliding_window_pattern") != 1 else None,
        U32,
    ),
    _HEADS_KV,
)
PHI3 = (
    Key("context_length", ("n_positions", "max_position_embeddings"), U32, required=True),
    Key(
        "rope.scaling.original_context_length",
        lambda c: c.rope.get("original_max_position_embeddings") or c.need("original_max_position_embeddings"),
        U32,
    ),
    Key("embedding_length", ("hidden_size", "n_embd"), U32, required=True),
    Key("feed_forward_length", ("intermediate_size",), U32, required=True),
    Key("block_count", lambda c: c.blocks, U32),
    Key("attention.head_count", lambda c: c.heads, U32),
    _HEADS_KV,
    Key("attention.layer_norm_rms_epsilon", ("rms_norm_eps",), F32, required=True),
    Key("rope.dimension_count", phi_rope, U32),
    Key("rope.freq_base", lambda c: c.full_rope.get("rope_theta"), F32),
    _FILE,
    Key("attention.sliding_window", lambda c: c.get("sliding_window") or 0, U32),
)
GPT_OSS = (
    *COMMON,
    Key("attention.sliding_window", ("sliding_window",), U32, required=True),
    Key("expert_feed_forward_length", ("intermediate_size",), U32, required=True),
)
DEEPSEEK2 = (
    *replaced(
        # Compressed attention runs as attention with one head of keys and values.
        Key("attention.head_count_kv", lambda c: 1, U32),
        Key("attention.layer_norm_rms_epsilon", ("rms_norm_eps",), F32, default=1e-6),
        Key("attention.key_length", lambda c: c.get("kv_lora_rank", 512) + c.need("qk_rope_head_dim"), U32),
        Key("attention.value_length", lambda c: c.get("kv_lora_rank", 512), U32),
    ),
    Key("leading_dense_block_count", _first_dense, U32),
    _VOCAB,
    Key("attention.q_lora_rank", ("q_lora_rank",), U32),
    Key("attention.kv_lora_rank", ("kv_lora_rank",), U32, default=512),
    # The reference writes these two with the common ones where the configuration has head_dim, and else here.
    Key("attention.key_length", lambda c: c.get("kv_lora_rank", 512) + c.need("qk_rope_head_dim"), U32),
    Key("attention.value_length", lambda c: c.get("kv_lora_rank", 512), U32),
    Key("attention.key_length_mla", lambda c: c.need("qk_nope_head_dim") + c.need("qk_rope_head_dim"), U32),
    Key("attention.value_length_mla", ("v_head_dim",), U32, required=True),
    Key("expert_feed_forward_length", ("moe_intermediate_size", "intermediate_size"), U32, required=True),
    Key("expert_count", ("n_routed_experts",), U32),
    Key("expert_shared_count", lambda c: c.get("n_shared_experts", 0), U32),
    Key("expert_weights_scale", ("routed_scaling_factor",), F32),
    Key("expert_weights_norm", _truthy("norm_topk_prob"), BOOL),
    Key("rope.dimension_count", ("qk_rope_head_dim",), U32, required=True),
    Key("rope.scaling.yarn_log_multiplier", _mscale, F32),
)
DOTS1 = (
    *QWEN_MOE,
    Key("leading_dense_block_count", ("first_k_dense_replace",), U32, required=True),
    Key("expert_shared_count", ("n_shared_experts",), U32, required=True),
    Key("expert_weights_scale", ("routed_scaling_factor",), F32, required=True),
    Key("expert_weights_norm", ("norm_topk_prob",), BOOL, required=True),
)
LFM2 = (
    *replaced(
        Key("attention.head_count_kv", _lfm2_heads, I32),
        Key("feed_forward_length", _lfm2_width, U32),
    ),
    _VOCAB,
    Key("shortconv.l_cache", ("conv_L_cache",), U32, required=True),
)
GLM4 = (*COMMON, Key("rope.dimension_count", partial(0.5), U32))
OLMO2 = (
    *COMMON,
    Key("attention.sliding_window", ("sliding_window",), U32),
    Key("attention.sliding_window_pattern", _windows, BOOL),
)
OLMOE = replaced(Key("attention.layer_norm_rms_epsilon", lambda c: 1e-5, F32))
MINIMAX_M2 = (
    *COMMON,
    Key("expert_feed_forward_length", ("intermediate_size",), U32, required=True),
    Key("rope.dimension_count", ("rotary_dim",), U32, required=True),
)
_NO_SCALING = Key("rope.scaling.type", lambda c: "none", TEXT)
_NEURONS = Key("feed_forward_length", lambda c: 4 * c.first("hidden_size", "n_embd", "n_embed"), U32)
COHERE = (
    *replaced(Key("context_length", ("model_max_length", "max_position_embeddings"), U32, required=True)),
    Key("logit_scale", ("logit_scale",), F32, required=True),
    _NO_SCALING,
)
COHERE2 = (
    *COMMON,
    Key("logit_scale", ("logit_scale",), F32, required=True),
    Key("attention.sliding_window", ("sliding_window",), U32, required=True),
    _VOCAB,
    Key("rope.dimension_count", lambda c: int(c.need("rotary_pct") * (c.need("hidden_size") // c.heads)), U32),
    _NO_SCALING,
)
STABLELM = (
    Key("context_length", ("max_position_embeddings",), U32, required=True),
    Key("embedding_length", ("hidden_size",), U32, required=True),
    Key("block_count", lambda c: c.blocks, U32),
    Key("feed_forward_length", ("intermediate_size",), U32, required=True),
    Key("rope.dimension_count", _stablelm_rope, U32),
    Key("attention.head_count", lambda c: c.heads, U32),
    _HEADS_KV,
    Key("use_parallel_residual", ("use_parallel_residual",), BOOL, default=True),
    Key("attention.layer_norm_epsilon", ("layer_norm_eps", "norm_eps"), F32, required=True),
    _FILE,
)
PHI2 = (
    Key("context_length", ("n_positions", "max_position_embeddings"), U32, required=True),
    Key("embedding_length", ("hidden_size", "n_embd"), U32, required=True),
    _NEURONS,
    Key("block_count", lambda c: c.blocks, U32),
    Key("attention.head_count", lambda c: c.heads, U32),
    Key("attention.head_count_kv", lambda c: c.heads, U32),
    Key("attention.layer_norm_epsilon", ("layer_norm_epsilon", "layer_norm_eps"), F32, required=True),
    Key("rope.dimension_count", _share("hidden_size"), U32),
    _FILE,
    Key("tokenizer.ggml.add_bos_token", lambda c: False, BOOL),
)
NEMOTRON = (
    *COMMON,
    _VOCAB,
    Key("attention.layer_norm_epsilon", ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"), F32),
    Key("rope.dimension_count", _share("hidden_size"), U32),
    Key("rope.scaling.type", lambda c: "none" if _nemotron_factor(c) is None else "linear", TEXT),
    Key("rope.scaling.factor", _nemotron_factor, F32),
)
HUNYUAN = (
    *(key for key in COMMON if key.name != "expert_count"),
    Key("rope.freq_base", _hunyuan_base, F32),
    Key("rope.scaling.type", _if_dynamic("none"), TEXT),
    Key("rope.scaling.factor", _if_dynamic(1.0), F32),
    Key("rope.scaling.original_context_length", _if_dynamic(_LONG_CONTEXT), U32),
    Key("context_length", _if_dynamic(_LONG_CONTEXT), U32),
)
EXAONE4 = (
    *COMMON,
    _VOCAB,
    Key("attention.sliding_window", ("sliding_window",), U32),
    Key("attention.sliding_window_pattern", _exaone_windows, BOOL),
)
GPT2 = (
    Key("block_count", lambda c: c.blocks, U32),
    Key("context_length", ("n_ctx", "n_positions"), U32, required=True),
    Key("embedding_length", ("n_embd",), U32, required=True),
    _NEURONS,
    Key("attention.head_count", lambda c: c.heads, U32),
    Key("attention.layer_norm_epsilon", ("layer_norm_epsilon",), F32, required=True),
    _FILE,
)
BLOOM = (
    Key("context_length", ("seq_length", "hidden_size", "n_embed"), U32, required=True),
    Key("embedding_length", ("hidden_size", "n_embed"), U32, required=True),
    _NEURONS,
    Key("block_count", lambda c: c.blocks, U32),
    Key("attention.head_count", lambda c: c.heads, U32),
    Key("attention.head_count_kv", lambda c: c.heads, U32),
    Key("attention.layer_norm_epsilon", ("layer_norm_epsilon",), F32, required=True),
    _FILE,
)
FALCON = (
    Key("context_length", lambda c: 2048, U32),
    Key("tensor_data_layout", lambda c: "jploski", TEXT),
    Key("embedding_length", ("hidden_size",), U32, required=True),
    _NEURONS,
    Key("block_count", lambda c: c.blocks, U32),
    Key("attention.head_count", lambda c: c.heads, U32),
    Key("attention.head_count_kv", ("num_kv_heads", "n_head_kv"), U32, default=1),
    Key("attention.layer_norm_epsilon", ("layer_norm_epsilon",), F32, required=True),
    _FILE,
)
PHIMOE = (
    *PHI3,
    Key("expert_used_count", ("num_experts_per_tok", "num_experts_per_token"), U32, required=True),
    Key("expert_count", ("num_local_experts", "num_experts"), U32, required=True),
)
LFM2_MOE = (
    *replaced(Key("attention.head_count_kv", _lfm2_heads, I32)),
    Key("expert_feed_forward_length", ("moe_intermediate_size",), U32, required=True),
    Key("leading_dense_block_count", ("num_dense_layers",), U32, required=True),
    Key("expert_gating_func", lambda c: GATING["sigmoid"], U32),
    _VOCAB,
    Key("shortconv.l_cache", ("conv_L_cache",), U32, required=True),
)
GLM4_MOE = (
    *with_next(COMMON),
    Key("rope.dimension_count", partial(0.5), U32),
    Key("expert_count", ("n_routed_experts",), U32),
    Key("expert_feed_forward_length", ("moe_intermediate_size",), U32),
    Key("expert_shared_count", ("n_shared_experts",), U32),
    Key("leading_dense_block_count", ("first_k_dense_replace",), U32),
    Key("expert_gating_func", lambda c: GATING["sigmoid"], U32),
    Key("expert_weights_scale", ("routed_scaling_factor",), F32),
    Key("expert_weights_norm", ("norm_topk_prob",), BOOL),
    Key("nextn_predict_layers", ("num_nextn_predict_layers",), U32),
)
LLAMA4 = (
    *replaced(Key("feed_forward_length", ("intermediate_size_mlp",), U32, required=True)),
    _VOCAB,
    Key("rope.dimension_count", lambda c: c.head_dim, U32),
    Key("interleave_moe_layer_step", ("interleave_moe_layer_step",), U32, required=True),
    Key("expert_feed_forward_length", ("intermediate_size",), U32, required=True),
    Key(
        "attention.sliding_window",
        lambda c: 0 if c.get("layer_types") and set(c.get("layer_types")) == {"full_attention"} else None,
        U32,
    ),
)
GEMMA3N = (
    *GEMMA3,
    Key("altup.active_idx", ("altup_active_idx",), U32, required=True),
    Key("altup.num_inputs", ("altup_num_inputs",), U32, required=True),
    Key("embedding_length_per_layer_input", ("hidden_size_per_layer_input",), U32, required=True),
    Key("attention.shared_kv_layers", ("num_kv_shared_layers",), U32, required=True),
    Key("activation_sparsity_scale", _sparsity, F32),
    Key(
        "attention.sliding_window_pattern",
        lambda c: [kind == "sliding_attention" for kind in c.need("layer_types")],
        BOOL,
    ),
)
BITNET = (*COMMON, Key("rope.scaling.type", lambda c: "linear", TEXT), Key("rope.scaling.factor", lambda c: 1.0, F32))
