"""config.json as the reference sees it, and the metadata keys that follow from it.

The reference reads configurations through transformers, which fills what a file leaves out and renames what older
versions wrote; :data:`DEFAULTS` says what of that decides something.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import GGUFError
from ..formats.value_types import ValueType
from .checkpoint import read_json

__all__ = ["COMMON", "Config", "Key", "Keys", "metadata_of", "replaced"]

U32, F32, BOOL, TEXT, I32 = ValueType.UINT32, ValueType.FLOAT32, ValueType.BOOL, ValueType.STRING, ValueType.INT32
Keys = dict[str, tuple[Any, ValueType]]

# What transformers 5.24 fills in where a configuration of this model_type leaves it out: its classes' defaults.
_GEMMA = {"head_dim": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 8192}
_PLAIN = {"rms_norm_eps": 1e-6, "rope_theta": 10000.0}
DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": _PLAIN | {"max_position_embeddings": 2048},
    "mistral": _PLAIN | {"max_position_embeddings": 131072, "num_key_value_heads": 8},
    "mixtral": {"rms_norm_eps": 1e-5, "rope_theta": 1e6, "num_key_value_heads": 8, "num_experts_per_tok": 2}
    | {"num_local_experts": 8, "max_position_embeddings": 131072},
    "qwen2": _PLAIN | {"max_position_embeddings": 32768, "num_key_value_heads": 32},
    "qwen2_moe": _PLAIN
    | {"max_position_embeddings": 32768, "num_key_value_heads": 16, "num_experts": 60, "num_experts_per_tok": 4}
    | {"moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632},
    "qwen3": _PLAIN | {"max_position_embeddings": 32768, "num_key_value_heads": 32, "head_dim": 128},
    "qwen3_moe": _PLAIN
    | {"max_position_embeddings": 32768, "num_key_value_heads": 4, "num_experts_per_tok": 8}
    | {"moe_intermediate_size": 768},
    "gemma": _GEMMA | {"num_key_value_heads": 16},
    "gemma2": _GEMMA
    | {"num_key_value_heads": 4, "sliding_window": 4096, "attn_logit_softcapping": 50.0}
    | {"final_logit_softcapping": 30.0},
    "gemma3_text": _GEMMA
    | {"num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 131072, "sliding_window": 4096}
    | {"rope_theta": 1e6, "rope_local_base_freq": 10000.0, "vocab_size": 262208, "hidden_size": 2304}
    | {"intermediate_size": 9216, "num_hidden_layers": 26},
    "phi3": _PLAIN | {"rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096, "max_position_embeddings": 4096},
    "gpt_oss": {"rms_norm_eps": 1e-5, "rope_theta": 150000.0, "sliding_window": 128, "head_dim": 64},
    "deepseek_v3": _PLAIN
    | {"max_position_embeddings": 4096, "n_group": 8, "topk_group": 4, "kv_lora_rank": 512, "q_lora_rank": 1536}
    | {"qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128, "n_shared_experts": 1}
    | {"routed_scaling_factor": 2.5, "norm_topk_prob": True, "first_k_dense_replace": 3},
    "granite": _PLAIN
    | {"max_position_embeddings": 2048, "attention_multiplier": 1.0, "embedding_multiplier": 1.0}
    | {"residual_multiplier": 1.0, "logits_scaling": 1.0},
    "granitemoe": _PLAIN
    | {"max_position_embeddings": 2048, "attention_multiplier": 1.0, "embedding_multiplier": 1.0}
    | {"residual_multiplier": 1.0, "logits_scaling": 1.0, "num_local_experts": 8, "num_experts_per_tok": 2},
    "glm4": _PLAIN | {"rms_norm_eps": 1.5625e-7, "head_dim": 128, "num_key_value_heads": 2},
    "lfm2": {"norm_eps": 1e-5, "rope_theta": 1e6, "conv_L_cache": 3, "num_key_value_heads": 8}
    | {"block_auto_adjust_ff_dim": True, "block_ffn_dim_multiplier": 1.0, "block_multiple_of": 256}
    | {"max_position_embeddings": 128000},
    "bert": {"layer_norm_eps": 1e-12, "max_position_embeddings": 512, "type_vocab_size": 2},
    "arcee": _PLAIN | {"rms_norm_eps": 1e-5, "max_position_embeddings": 4096},
    "t5": {"d_kv": 64, "layer_norm_epsilon": 1e-6, "relative_attention_num_buckets": 32, "n_positions": None},
}
# Model types whose head_dim becomes hidden_size / heads where it is left out or null.
_DERIVED_HEAD_DIM = frozenset({"llama", "mistral", "arcee"})
_TEXT_PARTS = ("text_config", "llm_config", "lm_config", "language_config")


class Config:
    """A model's configuration, with what transformers would fill in.

    Parameters
    ----------
    raw : mapping
        config.json as it is.
    source : str
        The file, for messages.
    folder : path, optional
        The checkpoint's folder, where other files say more.
    """

    def __init__(self, raw: Mapping[str, Any], source: str, folder: Path | None = None) -> None:
        self.source = source
        self.folder = folder
        self.raw = dict(raw)
        values = dict(raw)
        for part in _TEXT_PARTS:
            if isinstance(values.get(part), dict):
                values |= values[part]
        classes = raw.get("architectures")
        inner: Mapping[str, Any] = next((raw[p] for p in _TEXT_PARTS if isinstance(raw.get(p), dict)), {})
        classes = inner.get("architectures") or classes
        if not isinstance(classes, list) or not classes or not isinstance(classes[0], str):
            raise GGUFError(f"{source}: architectures names no class, so the model's kind is unknown")
        self.class_name: str = classes[0]
        self.model_type = str(values.get("model_type", ""))
        for key, value in DEFAULTS.get(self.model_type, {}).items():
            values.setdefault(key, value)
        self.values = values
        if self.model_type in _DERIVED_HEAD_DIM and values.get("head_dim") is None:
            values["head_dim"] = self.need("hidden_size") // self.need("num_attention_heads")
        if "num_attention_heads" in values and values.get("num_key_value_heads", 0) is None:
            values["num_key_value_heads"] = values["num_attention_heads"]
        if self.model_type in ("llama", "granite", "granitemoe", "arcee", "phi3"):
            values.setdefault("num_key_value_heads", values.get("num_attention_heads"))
        self.rope = self._rope()

    @classmethod
    def read(cls, folder: Path) -> Config:
        """The configuration of a checkpoint's folder."""
        path = folder / "config.json"
        return cls(read_json(path), str(path), folder)

    def _rope(self) -> dict[str, Any]:
        values = self.values
        given = values.get("rope_parameters") or values.get("rope_scaling") or {}
        if not isinstance(given, dict):
            raise GGUFError(f"{self.source}: rope_parameters is {given!r}, a JSON object was expected")
        rope = dict(given)
        if "full_attention" in rope or "sliding_attention" in rope:
            return rope
        theta = self.first("global_rope_theta", "rope_theta", "rotary_emb_base")
        local = self.first("local_rope_theta", "rope_local_base_freq")
        if theta is not None:
            rope.setdefault("rope_theta", theta)
        if "type" in rope:
            rope.setdefault("rope_type", rope["type"])
        for name, others in (
            ("partial_rotary_factor", ("partial_rotary_factor", "rope_pct", "rope_percent")),
            ("original_max_position_embeddings", ("original_max_position_embeddings",)),
        ):
            if (value := self.first(*others)) is not None:
                rope.setdefault(name, value)
        if self.model_type == "olmo3":  # whose windows have plain rotations, whatever stretches the others
            local = theta
        if local is not None:
            return {"full_attention": rope, "sliding_attention": {"rope_theta": local}}
        return rope

    def get(self, name: str, default: Any = None) -> Any:
        """A value, or `default` where it is missing."""
        return self.values.get(name, default)

    def first(self, *names: str) -> Any:
        """The value of the first name that is there; None where none is."""
        return next((self.values[name] for name in names if name in self.values), None)

    def need(self, name: str) -> Any:
        """A value that has to be there.

        Raises
        ------
        GGUFError
            If it isn't.
        """
        value = self.values.get(name)
        if value is None:
            raise GGUFError(f"{self.source}: {name} is missing, and a {self.class_name} can't be converted without it")
        return value

    @property
    def full_rope(self) -> dict[str, Any]:
        """The rotation's parameters, those of full attention where layers differ."""
        rope: dict[str, Any] = self.rope.get("full_attention", self.rope)
        return rope

    @property
    def blocks(self) -> int:
        """How many blocks the model has."""
        count = self.first("n_layers", "num_hidden_layers", "n_layer", "num_layers")
        if type(count) is not int or not 0 < count < 1 << 16:
            raise GGUFError(f"{self.source}: num_hidden_layers is {count!r}, a number of blocks was expected")
        return count

    @property
    def heads(self) -> int:
        """Attention heads."""
        return self._positive("num_attention_heads", "n_head", "n_heads", "num_heads")

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""
        if self.first("num_key_value_heads", "n_kv_heads") is None:
            return self.heads
        return self._positive("num_key_value_heads", "n_kv_heads")

    @property
    def experts(self) -> int:
        """Experts of a layer."""
        return self._positive("num_local_experts", "num_experts", "n_routed_experts")

    def _positive(self, *names: str) -> int:
        value = self.first(*names)
        if type(value) is not int or value < 1:
            raise GGUFError(f"{self.source}: {names[0]} is {value!r}, a positive number was expected")
        return value

    @property
    def head_dim(self) -> int:
        """The size of a head."""
        size = self.get("head_dim")
        return int(size) if size is not None else self.need("hidden_size") // self.heads


class Key(NamedTuple):
    """A metadata key and where its value comes from.

    Attributes
    ----------
    name : str
        Without the architecture's name.
    source : tuple of str, or callable
        Names in the configuration of which the first that is there counts, or a function of the configuration that
        gives None where the key isn't written.
    type : ValueType
    default : object
        What is written where no name is there.
    required : bool
        A missing value is an error.
    """

    name: str
    source: Sequence[str] | Callable[[Config], Any]
    type: ValueType
    default: Any = None
    required: bool = False

    def value(self, config: Config) -> Any:
        """The value, None where the key isn't written."""
        if callable(self.source):
            return self.source(config)
        value = config.first(*self.source)
        value = self.default if value is None else value
        if value is None and self.required:
            config.need(self.source[0])
        return value


GATING = {"softmax": 1, "sigmoid": 2, "sqrtsoftplus": 4}


def _gating(config: Config) -> int | None:
    names = ("score_function", "scoring_func", "score_func", "moe_router_activation", "moe_router_activation_func")
    name = config.first(*names, "expert_selection_fn")
    if name is None:
        return None
    if name not in GATING:
        raise GGUFError(f"{config.source}: the experts' scoring function {name!r} isn't known")
    return GATING[name]


def _rope_kind(*kinds: str) -> Callable[[Config], str | None]:
    return lambda config: config.full_rope.get("rope_type") if config.full_rope.get("rope_type") in kinds else None


def _scaling(config: Config) -> str | None:
    rope = config.full_rope
    kind = rope.get("rope_type")
    if kind in ("linear", "yarn"):
        return str(kind) if rope.get("factor") is not None else None
    if kind in ("su", "longrope"):
        return "longrope"
    if kind not in (None, "default", "llama3", "dynamic"):
        raise GGUFError(f"{config.source}: rotations of type {kind!r} aren't known")
    return None


def _scaled(name: str, *kinds: str) -> Callable[[Config], Any]:
    """A parameter of the rotation that is written for these kinds of scaling alone."""
    return lambda config: config.full_rope.get(name) if _scaling(config) in kinds else None


def _original(config: Config) -> Any:
    if _scaling(config) != "yarn":
        return None
    return config.full_rope.get("original_max_position_embeddings", config.get("max_position_embeddings"))


def _attention_factor(config: Config) -> Any:
    rope = config.full_rope
    return rope.get("attention_factor", rope.get("attn_factor")) if _scaling(config) == "yarn" else None


def _sections(config: Config) -> list[int] | None:
    sections = config.rope.get("mrope_section")
    return None if sections is None else ([*sections, 0, 0, 0, 0])[:4]


# What nearly every architecture has, in the reference's order.
COMMON: tuple[Key, ...] = (
    Key("block_count", lambda c: c.blocks, U32),
    Key(
        "context_length",
        ("max_position_embeddings", "n_ctx", "n_positions", "max_length", "max_sequence_length", "model_max_length"),
        U32,
    ),
    Key("embedding_length", ("hidden_size", "n_embd", "dim"), U32),
    Key(
        "feed_forward_length",
        ("prefix_dense_intermediate_size", "dense_intermediate_size", "intermediate_size", "n_inner", "hidden_dim"),
        U32,
    ),
    Key("attention.head_count", ("num_attention_heads", "n_head", "n_heads"), U32),
    Key("attention.head_count_kv", ("num_key_value_heads", "n_kv_heads"), U32),
    Key("attention.causal", lambda c: False if c.get("is_causal") is False else None, BOOL),
    Key("rope.scaling.type", _scaling, TEXT),
    Key("rope.scaling.factor", _scaled("factor", "linear", "yarn"), F32),
    Key("rope.scaling.original_context_length", _original, U32),
    Key("rope.scaling.yarn_ext_factor", _scaled("extrapolation_factor", "yarn"), F32),
    Key("rope.scaling.yarn_attn_factor", _attention_factor, F32),
    Key("rope.scaling.yarn_beta_fast", _scaled("beta_fast", "yarn"), F32),
    Key("rope.scaling.yarn_beta_slow", _scaled("beta_slow", "yarn"), F32),
    Key("rope.dimension_sections", _sections, I32),
    Key("rope.freq_base", lambda c: c.full_rope.get("rope_theta"), F32),
    Key("rope.freq_base_swa", lambda c: c.rope.get("sliding_attention", {}).get("rope_theta"), F32),
    Key("attention.layer_norm_rms_epsilon", ("rms_norm_eps", "norm_eps"), F32),
    Key("attention.layer_norm_epsilon", ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"), F32),
    Key("expert_count", ("num_local_experts", "num_experts", "n_routed_experts"), U32),
    Key("expert_used_count", ("num_experts_per_tok", "num_experts_per_token", "top_k_experts"), U32),
    Key("expert_group_count", ("n_group",), U32),
    Key("expert_group_used_count", ("topk_group",), U32),
    Key("expert_gating_func", _gating, U32),
    Key("attention.key_length", ("head_dim",), U32),
    Key("attention.value_length", ("head_dim",), U32),
    Key("general.file_type", lambda c: c.get(FILE_TYPE), U32),
)
# Where a conversion puts the number of its file type for the key that comes among the others.
FILE_TYPE = " file type"


def replaced(*keys: Key) -> tuple[Key, ...]:
    """The common keys, those of the same name taken from `keys` in their places, the others of `keys` behind."""
    new = {key.name: key for key in keys}
    return tuple(new.pop(key.name, key) for key in COMMON) + tuple(new.values())


def metadata_of(keys: Sequence[Key], config: Config, arch: str) -> Keys:
    """The architecture's keys in order; one that comes twice keeps its first place and its last value."""
    out: Keys = {}
    for key in keys:
        value = key.value(config)
        if value is None:
            continue
        name = key.name if key.name.startswith(("general.", "tokenizer.", "xielu.")) else f"{arch}.{key.name}"
        # Whole numbers in an array are signed, as the gguf package writes a list.
        kind = I32 if isinstance(value, list) and key.type is U32 else key.type
        out[name] = (_checked(value, key, config), kind)
    return out


def _checked(value: Any, key: Key, config: Config) -> Any:
    """A value of the key's type, or an error that names it."""
    if isinstance(value, list):
        return [_checked(v, key, config) for v in value]
    kind: Any = {U32: int, I32: int, F32: (int, float), BOOL: bool, TEXT: str}[key.type]
    wrong = not isinstance(value, kind) or (isinstance(value, bool) and key.type is not BOOL)
    if wrong or (key.type is U32 and not 0 <= value < 1 << 32):
        raise GGUFError(f"{config.source}: {value!r} can't be {key.name}, which is {key.type.name.lower()}")
    return float(value) if key.type is F32 else value
