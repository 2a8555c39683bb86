"""Models with a state instead of, or beside, attention: Mamba, its hybrids, and linear attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import GGUFError
from .families import GRANITE_MOE, QWEN_MOE, blocks_and_next, partial, with_next
from .hparams import BOOL, COMMON, F32, FILE_TYPE, I32, U32, Config, Key, Keys
from .names import ATTENTION, DENSE, EXPERTS, GRANITE_EXPERTS, LLAMA, NEXT, QK_NORMS, SHARED_EXPERT
from .naming import Names, Rule, block
from .transforms import GATE_UP_HALVES, SQUEEZE_MIDDLE, Array, Chain, Indices, Reordered, Shape, Transform, in_parts
from .vocabularies import padded
from .vocabulary import Source

_FILE = Key("general.file_type", lambda c: c.get(FILE_TYPE), U32)
_VOCAB = Key("vocab_size", ("vocab_size",), U32, required=True)
# What Mamba's models say of their context, which nothing bounds.
ENDLESS = 1 << 20


class NegatedExponential(Transform):
    """The logarithm of a decay as the decay, below zero."""

    def apply(self, array: Array, config: Config) -> list[Array]:
        return [-np.exp(array.astype(np.float32, copy=False).astype(np.float64)).astype(np.float32)]

    def undo(self, arrays: Sequence[Array], config: Config) -> Array:
        return np.log(-arrays[0].astype(np.float64)).astype(np.float32)


class Column(Transform):
    """[n] as [n, 1]."""

    def shapes(self, shape: Shape, config: Config) -> list[Shape]:
        return [(*shape, 1)]

    def apply(self, array: Array, config: Config) -> list[Array]:
        return [array[..., None]]

    def undo(self, arrays: Sequence[Array], config: Config) -> Array:
        return arrays[0][..., 0]


class Grouped(Transform):
    """A norm's weights by groups of heads."""

    def shapes(self, shape: Shape, config: Config) -> list[Shape]:
        groups = _groups(config)
        if len(shape) != 1 or shape[0] % groups:
            raise ValueError(f"one row in {groups} groups was expected")
        return [(groups, shape[0] // groups)]

    def apply(self, array: Array, config: Config) -> list[Array]:
        return [array.reshape(_groups(config), -1)]

    def undo(self, arrays: Sequence[Array], config: Config) -> Array:
        return arrays[0].reshape(-1)


class Scaled(Transform):
    """Weights with the model's multipliers, in float32, one after the other."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def factors(self, config: Config, rows: int) -> list[Any]:
        """What the rows are multiplied by."""
        out = []
        for name in self.names:
            key, _, index = name.partition(":")
            value = config.get(key, 1.0)
            out.append(np.float32(value[int(index)] if index else value))
        return out

    def apply(self, array: Array, config: Config) -> list[Array]:
        for factor in self.factors(config, array.shape[0]):
            array = array.astype(np.float32, copy=False) * factor
        return [array]

    def undo(self, arrays: Sequence[Array], config: Config) -> Array:
        array = arrays[0]
        for factor in reversed(self.factors(config, array.shape[0])):
            array = array / factor
        return array


class ScaledParts(Scaled):
    """The state's input projection: a multiplier for all, and one for each of its five parts."""

    def _parts(self, config: Config) -> list[int]:
        inner = config.need("mamba_d_ssm")
        state = config.need("mamba_n_groups") * config.need("mamba_d_state")
        return [inner, inner, state, state]

    def shapes(self, shape: Shape, config: Config) -> list[Shape]:
        if len(shape) != 2 or shape[0] <= sum(self._parts(config)):
            raise ValueError(f"more than {sum(self._parts(config))} rows were expected")
        return [shape]

    def factors(self, config: Config, rows: int) -> list[Any]:
        parts = self._parts(config)
        each = np.array(config.need("ssm_multipliers"), np.float32)
        return [*super().factors(config, rows), np.repeat(each, [*parts, rows - sum(parts)])[:, None]]


def _groups(config: Config) -> int:
    return int(config.first("n_groups", "mamba_n_groups", "num_groups", "mamba_num_groups") or 1)


def _values(config: Config) -> tuple[int, int, int]:
    """Heads of keys, heads of values for each, and the size of a value."""
    keys, values = config.need("linear_num_key_heads"), config.need("linear_num_value_heads")
    if keys < 1 or values % keys:
        raise GGUFError(f"{config.source}: {values} heads of values can't be dealt out to {keys} heads of keys")
    return keys, values // keys, config.need("linear_value_head_dim")


def _by_kinds(config: Config, length: int) -> list[Indices]:
    """Query, key, values and gates of each head of keys as queries, keys and values, and apart from them the gates."""
    keys, each, value = _values(config)
    size = config.need("linear_key_head_dim")
    heads = in_parts(length, keys, 2 * size + 2 * each * value)
    q, k, v, z = np.split(heads, [size, 2 * size, 2 * size + each * value], axis=1)
    return [np.concatenate([q.ravel(), k.ravel(), v.ravel()]), z.ravel()]


def _tiled(value: bool, kept: bool = False) -> Callable[[Config, int], list[Indices]]:
    """Heads of values from grouped by their keys to by turns; behind queries and keys where these are `kept`."""

    def order(config: Config, length: int) -> list[Indices]:
        keys, each, size = _values(config)
        before = 2 * keys * config.need("linear_key_head_dim") if kept else 0
        behind = in_parts(length - before, keys, each, size if value else 1) + before
        return [np.concatenate([np.arange(before), behind.swapaxes(0, 1).ravel()])]

    return order


DECAY = NegatedExponential()
COLUMN = Column()
QKVZ = Reordered(_by_kinds, outputs=2)
TILED = Reordered(_tiled(value=True))
TILED_COLUMNS = Reordered(_tiled(value=True), axis=1)
TILED_HEADS = Reordered(_tiled(value=False))
TILED_VALUES = Reordered(_tiled(value=True, kept=True))

MAMBA: Names = {
    "backbone.embeddings": "token_embd",
    "backbone.norm_f": "output_norm",
    "lm_head": "output",
    **block(
        {
            "norm": "attn_norm",
            "mixer.A_log": Rule(("ssm_a",), DECAY),
            "mixer.D": "ssm_d",
            "mixer.conv1d.weight": Rule(("ssm_conv1d.weight",), SQUEEZE_MIDDLE),
            "mixer.conv1d.bias": "ssm_conv1d.bias",
            "mixer.dt_proj": "ssm_dt",
            "mixer.in_proj": "ssm_in",
            "mixer.x_proj": "ssm_x",
            "mixer.out_proj": "ssm_out",
        },
        "backbone.layers.{n}.",
    ),
}
_MIXER: Names = {
    "A_log": Rule(("ssm_a",), Chain((COLUMN, DECAY))),
    "D": Rule(("ssm_d",), COLUMN),
    "conv1d.weight": Rule(("ssm_conv1d.weight",), SQUEEZE_MIDDLE),
    "conv1d.bias": "ssm_conv1d.bias",
    "dt_proj": "ssm_dt",
    "in_proj": "ssm_in",
    "out_proj": "ssm_out",
    "norm.weight": Rule(("ssm_norm.weight",), Grouped()),
}
MAMBA2: Names = {**MAMBA, **block({f"mixer.{k}": v for k, v in _MIXER.items()}, "backbone.layers.{n}.")}
# Mamba 2's bias has the name of the projection that Mamba's belongs to.
MAMBA2_NAMES = ((r"^model\.(?=backbone|lm_head)", ""), (r"\.dt_bias$", ".dt_proj.bias"))
_BESIDE = block({f"mamba.{k}": v for k, v in _MIXER.items()})
_FEED_FORWARD = block(
    {
        "feed_forward.gate_proj": "ffn_gate",
        "feed_forward.up_proj": "ffn_up",
        "feed_forward.down_proj": "ffn_down",
        "pre_ff_layernorm": "ffn_norm",
    }
)
GRANITE_HYBRID: Names = {
    **LLAMA,
    **GRANITE_EXPERTS,
    **_BESIDE,
    **_FEED_FORWARD,
    "model.final_layernorm": "output_norm",
}
# The one feed-forward network of models without experts has the name of the shared expert.
SHARED_ALONE = block(
    {
        "shared_mlp.input_linear": Rule(("ffn_gate", "ffn_up"), GATE_UP_HALVES),
        "shared_mlp.output_linear": "ffn_down",
    }
)
FALCON_H1: Names = {
    **_BESIDE,
    "model.embed_tokens": Rule(("token_embd",), Scaled("embedding_multiplier")),
    "model.final_layernorm": "output_norm",
    "lm_head": Rule(("output",), Scaled("lm_head_multiplier")),
    **block(
        {
            **ATTENTION,
            "self_attn.q_proj": Rule(("attn_q",), Scaled("attention_in_multiplier")),
            "self_attn.k_proj": Rule(("attn_k",), Scaled("key_multiplier", "attention_in_multiplier")),
            "self_attn.v_proj": Rule(("attn_v",), Scaled("attention_in_multiplier")),
            "self_attn.o_proj": Rule(("attn_output",), Scaled("attention_out_multiplier")),
            "feed_forward.gate_proj": Rule(("ffn_gate",), Scaled("mlp_multipliers:0")),
            "feed_forward.up_proj": "ffn_up",
            "feed_forward.down_proj": Rule(("ffn_down",), Scaled("mlp_multipliers:1")),
            "mamba.in_proj": Rule(("ssm_in",), ScaledParts("ssm_in_multiplier")),
            "mamba.out_proj": Rule(("ssm_out",), Scaled("ssm_out_multiplier")),
            # This norm's name in the file has no ending.
            "pre_ff_layernorm.weight": "ffn_norm",
        }
    ),
}
_LINEAR: Names = {
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
    "linear_attn.in_proj_ba": "ssm_ba",
    "linear_attn.A_log": Rule(("ssm_a",), DECAY),
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.conv1d": Rule(("ssm_conv1d",), SQUEEZE_MIDDLE),
    "linear_attn.in_proj_qkvz": Rule(("attn_qkv", "attn_gate"), QKVZ),
    "post_attention_layernorm": "post_attention_norm",
}
QWEN3_NEXT: Names = {**DENSE, **QK_NORMS, **EXPERTS, **SHARED_EXPERT, **block(_LINEAR), **NEXT}
QWEN35: Names = {
    **DENSE,
    **QK_NORMS,
    **NEXT,
    **block(
        {
            "linear_attn.norm": "ssm_norm",
            "linear_attn.out_proj": Rule(("ssm_out",), TILED_COLUMNS),
            "linear_attn.in_proj_a": Rule(("ssm_alpha",), TILED_HEADS),
            "linear_attn.in_proj_b": Rule(("ssm_beta",), TILED_HEADS),
            "linear_attn.A_log": Rule(("ssm_a",), Chain((TILED_HEADS, DECAY))),
            "linear_attn.dt_bias": Rule(("ssm_dt.bias",), TILED_HEADS),
            "linear_attn.conv1d": Rule(("ssm_conv1d",), Chain((SQUEEZE_MIDDLE, TILED_VALUES))),
            "linear_attn.in_proj_qkv": Rule(("attn_qkv",), TILED_VALUES),
            "linear_attn.in_proj_z": Rule(("attn_gate",), TILED),
            "post_attention_layernorm": "post_attention_norm",
        }
    ),
}


# --- metadata ---------------------------------------------------------------------------------------------------------


def _or(default: Any, *names: str) -> Callable[[Config], Any]:
    """The first of these that is there; the default where it isn't, or is zero."""
    return lambda config: config.first(*names) or (default(config) if callable(default) else default)


def _width(config: Config) -> int:
    return int(config.first("hidden_size", "d_model", "dim"))


def _inner(config: Config) -> int:
    width = _width(config)
    expand = config.first("mamba_expand", "expand") or 2
    inner = config.first("mamba_d_ssm", "intermediate_size", "d_inner") or expand * width
    return int(inner)


def _inner1(config: Config) -> int:
    inner = config.first("intermediate_size", "d_inner") or 2 * _width(config)
    if inner != 2 * _width(config):
        raise GGUFError(f"{config.source}: an inner size of {inner} isn't twice {_width(config)}")
    return int(inner)


def _ranks(config: Config) -> int:
    size = config.first("mamba_d_head", "head_dim") or 64
    if _inner(config) % size:
        raise GGUFError(f"{config.source}: an inner size of {_inner(config)} isn't a multiple of heads of {size}")
    return int(_inner(config) // size)


def attention_blocks(config: Config) -> set[int]:
    """The blocks of a hybrid that have attention."""
    kinds = config.get("layer_types")
    if kinds:
        if unknown := sorted(set(kinds) - {"mamba", "attention"}):
            raise GGUFError(
                f"{config.source}: layer_types has {unknown[0]!r}, 'mamba' or 'attention' were expected; newer "
                "versions of transformers rewrite these names, and the original configuration has them"
            )
        return {n for n, kind in enumerate(kinds) if kind == "attention"}
    if config.get("attn_layer_indices"):
        return set(config.get("attn_layer_indices"))
    period, offset = config.get("attn_layer_period"), config.get("attn_layer_offset")
    if not period or offset is None:
        raise GGUFError(f"{config.source}: neither layer_types nor attn_layer_indices say which blocks have attention")
    return {n for n in range(config.blocks) if n % period == offset}


def _has_state(config: Config) -> bool:
    return len(attention_blocks(config)) < config.blocks


def granite_name(config: Config) -> str:
    """Granite's hybrids without a state are plain Granites."""
    if _has_state(config):
        return "granitehybrid"
    return "granitemoe" if config.first("num_experts_per_tok", "num_experts_per_token") else "granite"


def granite_skips(config: Config) -> str:
    """Bamba and Granite name the same tensors differently."""
    bamba, granite = r"feed_forward\.|pre_ff_layernorm|final_layernorm", r"post_attention_layernorm|model\.norm|mlp"
    return granite if config.class_name == "BambaForCausalLM" else rf"{bamba}|\.mlp\."


def granite_vocabulary(source: Source) -> Keys:
    """As many tokens as a multiple of eight, which only the state needs."""
    config = Config(source.raw, str(source.folder / "config.json"))
    return padded(8 if _has_state(config) else 1)(source)


def _heads_kv(config: Config) -> list[int]:
    having = attention_blocks(config)
    return [config.kv_heads if n in having else 0 for n in range(config.blocks)]


def _turns(config: Config) -> bool:
    """Whether attention has rotations, which the state's order makes needless."""
    return config.class_name == "BambaForCausalLM" or not _has_state(config)


def _recurrent(config: Config) -> list[bool] | None:
    kinds = config.get("layer_types")
    if kinds is not None and len(kinds) != config.blocks:
        raise GGUFError(f"{config.source}: layer_types has {len(kinds)} entries for {config.blocks} blocks")
    if kinds is None:
        return None
    return [kind == "linear_attention" for kind in kinds] + [False] * (blocks_and_next(config) - config.blocks)


MAMBA_KEYS = (
    Key("context_length", lambda c: ENDLESS, U32),
    Key("embedding_length", _width, U32),
    Key("feed_forward_length", lambda c: 0, U32),
    Key("attention.head_count", lambda c: 0, U32),
    Key("block_count", lambda c: c.blocks, U32),
    Key("ssm.conv_kernel", _or(4, "conv_kernel", "d_conv"), U32),
    Key("ssm.inner_size", _inner1, U32),
    Key("ssm.state_size", _or(16, "state_size", "d_state"), U32),
    Key("ssm.time_step_rank", _or(lambda c: -(_width(c) // -16), "time_step_rank", "dt_rank"), U32),
    Key("attention.layer_norm_rms_epsilon", _or(1e-5, "layer_norm_epsilon", "rms_norm_eps"), F32),
    Key("ssm.dt_b_c_rms", lambda c: c.model_type == "falcon_mamba", BOOL),
    _FILE,
)
MAMBA2_KEYS = (
    *MAMBA_KEYS[:5],
    Key("ssm.conv_kernel", _or(4, "conv_kernel", "d_conv", "mamba_d_conv"), U32),
    Key("ssm.inner_size", _inner, U32),
    Key("ssm.state_size", _or(128, "state_size", "d_state", "mamba_d_state"), U32),
    Key("ssm.time_step_rank", _ranks, U32),
    Key("ssm.group_count", _groups, U32),
    MAMBA_KEYS[9],
    _FILE,
)
FALCON_H1_KEYS = (
    Key("context_length", ("max_position_embeddings",), U32, default=0),
    Key("embedding_length", _width, U32),
    Key("feed_forward_length", ("intermediate_size",), U32, required=True),
    Key("attention.head_count", lambda c: c.heads, U32),
    *MAMBA2_KEYS[4:],
    _VOCAB,
    Key("attention.head_count_kv", lambda c: c.kv_heads, U32),
    Key("attention.key_length", ("head_dim",), U32, required=True),
    Key("attention.value_length", ("head_dim",), U32, required=True),
    Key("rope.freq_base", lambda c: c.full_rope.get("rope_theta"), F32),
)
GRANITE_HYBRID_KEYS = (
    *(
        key._replace(source=_heads_kv, type=I32)
        if key.name == "attention.head_count_kv"
        else key._replace(source=lambda c: c.get("max_position_embeddings") if _turns(c) else ENDLESS)
        if key.name == "context_length"
        else key
        for key in GRANITE_MOE
    ),
    Key("ssm.conv_kernel", ("conv_kernel", "d_conv", "mamba_d_conv"), U32, required=True),
    Key("ssm.state_size", ("state_size", "d_state", "mamba_d_state"), U32, required=True),
    Key("ssm.group_count", _groups, U32),
    Key("ssm.inner_size", lambda c: c.first("expand", "mamba_expand") * c.need("hidden_size"), U32),
    Key("ssm.time_step_rank", ("n_heads", "num_heads", "mamba_n_heads"), U32, required=True),
    Key("rope.dimension_count", lambda c: c.get("attn_rotary_emb") or None, U32),
    Key("rope.scaling.finetuned", _turns, BOOL),
)
_LINEAR_KEYS = (
    Key("ssm.conv_kernel", ("linear_conv_kernel_dim",), U32, required=True),
    Key("ssm.state_size", ("linear_key_head_dim",), U32, required=True),
    Key("ssm.group_count", ("linear_num_key_heads",), U32, required=True),
    Key("ssm.time_step_rank", ("linear_num_value_heads",), U32, required=True),
    Key("ssm.inner_size", lambda c: c.need("linear_value_head_dim") * c.need("linear_num_value_heads"), U32),
    Key("attention.recurrent_layers", _recurrent, BOOL),
    Key("full_attention_interval", ("full_attention_interval",), U32, default=4),
    Key("rope.dimension_count", partial(0.25), U32),
)
_NEXT = Key("nextn_predict_layers", lambda c: c.get("num_nextn_predict_layers") or None, U32)
QWEN3_NEXT_KEYS = (*with_next(QWEN_MOE), _NEXT, *_LINEAR_KEYS)
QWEN35_KEYS = (
    *with_next(COMMON),
    _NEXT,
    *_LINEAR_KEYS,
    Key("rope.dimension_sections", lambda c: None if "mrope_section" in c.rope else [11, 11, 10, 0], I32),
)
