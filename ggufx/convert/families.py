"""Metadata keys that families of architectures have beside, or instead of, the common ones."""

from __future__ import annotations

import math
from typing import Any

from ..errors import GGUFError
from ..formats.value_types import ValueType
from .checkpoint import read_json
from .hparams import BOOL, COMMON, F32, FILE_TYPE, I32, U32, Config, Key

__all__ = ["BERT", "DEEPSEEK2", "DOTS1", "GEMMA", "GEMMA2", "GEMMA3", "GLM4", "GPT_OSS", "GRANITE", "LFM2", "LLAMA"]
__all__ += ["MINIMAX_M2", "OLMO2", "OLMOE", "PHI3", "POOLED", "QWEN_MOE", "T5", "T5_ENCODER"]


def _replaced(*keys: Key) -> tuple[Key, ...]:
    """The common keys, those of the same name taken from `keys` in their places, the others of `keys` behind."""
    new = {key.name: key for key in keys}
    return tuple(new.pop(key.name, key) for key in COMMON) + tuple(new.values())


def _pooling(config: Config) -> int | None:
    """How embeddings of tokens become one, from the modules.json of sentence-transformers."""
    folder = config.folder
    if folder is None or not (folder / "modules.json").is_file():
        return None
    modules = read_json(folder / "modules.json", list)
    place = next((m["path"] for m in modules if str(m.get("type", "")).endswith("Pooling")), None)
    if place is None:
        return None
    pooling = read_json(folder / str(place) / "config.json")
    names = {"pooling_mode_mean_tokens": 1, "pooling_mode_cls_token": 2, "pooling_mode_lasttoken": 3}
    kind = next((number for name, number in names.items() if pooling.get(name)), None)
    kind = kind or {"mean": 1, "cls": 2, "lasttoken": 3}.get(str(pooling.get("pooling_mode")))
    if kind is None:
        raise GGUFError(f"{folder / str(place)}: pooling is neither of mean, cls nor lasttoken")
    return kind


def _partial(default: float) -> Any:
    def size(config: Config) -> int:
        return int(config.head_dim * config.full_rope.get("partial_rotary_factor", default))

    return size


def _truthy(name: str) -> Any:
    return lambda config: config.get(name) or None


def _phi_rope(config: Config) -> int:
    part = config.rope.get("partial_rotary_factor", 1.0)
    return int(part * config.need("hidden_size")) // config.heads


def phi_attention_factor(config: Config) -> float | None:
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


def _labels(config: Config) -> None:
    if config.get("id2label") and "SequenceClassification" in config.class_name:
        raise GGUFError(f"{config.source}: classifiers with labels can't be converted yet")


HEAD_DIM = (Key("attention.key_length", ("head_dim",), U32), Key("attention.value_length", ("head_dim",), U32))
_HEADS_KV = Key("attention.head_count_kv", lambda c: c.kv_heads, U32)
_FILE = Key("general.file_type", lambda c: c.get(FILE_TYPE), U32)
_VOCAB = Key("vocab_size", ("vocab_size",), U32, required=True)

LLAMA = (*COMMON, _VOCAB, Key("rope.dimension_count", lambda c: c.head_dim, U32))
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
POOLED = (*COMMON, Key("pooling_type", _pooling, U32))
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
    Key("rope.dimension_count", _phi_rope, U32),
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
    *_replaced(
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
    *_replaced(
        Key("attention.head_count_kv", _lfm2_heads, I32),
        Key("feed_forward_length", _lfm2_width, U32),
    ),
    _VOCAB,
    Key("shortconv.l_cache", ("conv_L_cache",), U32, required=True),
)
GLM4 = (*COMMON, Key("rope.dimension_count", _partial(0.5), U32))
OLMO2 = (
    *COMMON,
    Key("attention.sliding_window", ("sliding_window",), U32),
    Key("attention.sliding_window_pattern", _windows, BOOL),
)
OLMOE = _replaced(Key("attention.layer_norm_rms_epsilon", lambda c: 1e-5, F32))
MINIMAX_M2 = (
    *COMMON,
    Key("expert_feed_forward_length", ("intermediate_size",), U32, required=True),
    Key("rope.dimension_count", ("rotary_dim",), U32, required=True),
)
BERT = (
    *_replaced(Key("attention.causal", lambda c: None, BOOL)),
    Key("attention.causal", lambda c: False, BOOL),
    Key("pooling_type", _pooling, U32),
    Key("classifier.output_labels", _labels, ValueType.STRING),
)
T5_ENCODER = (
    Key("context_length", ("n_positions",), U32, default=512),
    Key("embedding_length", ("d_model",), U32, required=True),
    Key("feed_forward_length", ("d_ff",), U32, required=True),
    Key("block_count", lambda c: c.blocks, U32),
    Key("attention.head_count", lambda c: c.heads, U32),
    Key("attention.key_length", ("d_kv",), U32, required=True),
    Key("attention.value_length", ("d_kv",), U32, required=True),
    Key("attention.layer_norm_epsilon", ("layer_norm_epsilon",), F32, required=True),
    Key("attention.relative_buckets_count", ("relative_attention_num_buckets",), U32, required=True),
    Key("attention.layer_norm_rms_epsilon", ("layer_norm_epsilon",), F32, required=True),
    _FILE,
)
T5 = (
    *T5_ENCODER[:4],
    Key("decoder_block_count", ("num_decoder_layers",), U32),
    *T5_ENCODER[4:-1],
    Key("decoder_start_token_id", ("decoder_start_token_id",), U32, required=True),
    _FILE,
)
