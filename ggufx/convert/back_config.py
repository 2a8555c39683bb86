"""From a GGUF file's metadata back to config.json, proved by making the metadata of it again."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import GGUFError
from ..read.tensor import Tensor
from .hparams import DEFAULTS, FILE_TYPE, Config, metadata_of
from .naming import Architecture

__all__ = ["derived_config", "model_type"]

# Hugging Face's names of the kinds of models, by class; only of those whose configuration follows from a file.
MODEL_TYPES = {
    "LlamaForCausalLM": "llama",
    "ArceeForCausalLM": "arcee",
    "SmolLM3ForCausalLM": "smollm3",
    "GraniteForCausalLM": "granite",
    "GraniteMoeForCausalLM": "granitemoe",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen2MoeForCausalLM": "qwen2_moe",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "OlmoeForCausalLM": "olmoe",
    "Dots1ForCausalLM": "dots1",
    "MiniMaxM2ForCausalLM": "minimax_m2",
    "GemmaForCausalLM": "gemma",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3_text",
    "Phi3ForCausalLM": "phi3",
    "GptOssForCausalLM": "gpt_oss",
    "Glm4ForCausalLM": "glm4",
    "Glm4MoeForCausalLM": "glm4_moe",
    "Olmo2ForCausalLM": "olmo2",
    "SeedOssForCausalLM": "seed_oss",
    "CohereForCausalLM": "cohere",
    "Starcoder2ForCausalLM": "starcoder2",
    "Ernie4_5ForCausalLM": "ernie4_5",
    "Exaone4ForCausalLM": "exaone4",
    "BertModel": "bert",
    "ApertusForCausalLM": "apertus",
    "BitnetForCausalLM": "bitnet",
    "BloomForCausalLM": "bloom",
    "Cohere2ForCausalLM": "cohere2",
    "DeepseekV2ForCausalLM": "deepseek_v2",
    "FalconForCausalLM": "falcon",
    "FalconH1ForCausalLM": "falcon_h1",
    "Gemma3nForCausalLM": "gemma3n_text",
    "GPT2LMHeadModel": "gpt2",
    "GraniteMoeHybridForCausalLM": "granitemoehybrid",
    "HunYuanDenseV1ForCausalLM": "hunyuan_v1_dense",
    "Lfm2ForCausalLM": "lfm2",
    "Lfm2MoeForCausalLM": "lfm2_moe",
    "Llama4ForCausalLM": "llama4_text",
    "MambaForCausalLM": "mamba",
    "Mamba2ForCausalLM": "mamba2",
    "ModernBertModel": "modernbert",
    "NemotronForCausalLM": "nemotron",
    "PhiForCausalLM": "phi",
    "PhiMoEForCausalLM": "phimoe",
    "Qwen3NextForCausalLM": "qwen3_next",
    "Qwen3_5ForCausalLM": "qwen3_5_text",
    "StableLmForCausalLM": "stablelm",
    "T5ForConditionalGeneration": "t5",
    "T5EncoderModel": "t5",
}
# Which of several names a kind has for a key, where it isn't the usual one.
_USUAL = {
    "feed_forward_length": "intermediate_size",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.layer_norm_epsilon": "layer_norm_eps",
    "expert_count": "num_experts",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "block_count": "num_hidden_layers",
    "logit_scale": "logit_scale",
}
_OWN = {
    "starcoder2": {"attention.layer_norm_epsilon": "norm_epsilon"},
    **{kind: {"expert_count": "num_local_experts"} for kind in ("mixtral", "gpt_oss", "minimax_m2")},
    **{kind: {"expert_count": "n_routed_experts"} for kind in ("dots1", "glm4_moe")},
    "granite": {"logit_scale": "logits_scaling"},
    "granitemoe": {"logit_scale": "logits_scaling", "expert_count": "num_local_experts"},
}
# Keys that follow from functions of the configuration, and what they say of it.
_FROM_KEYS = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "final_logit_softcapping": "final_logit_softcapping",
    "attention.sliding_window": "sliding_window",
    "expert_shared_feed_forward_length": "shared_intermediate_size",
    "nextn_predict_layers": "num_nextn_predict_layers",
    "expert_weights_norm": "norm_topk_prob",
}
_GATES = {1: "softmax", 2: "sigmoid", 4: "sqrtsoftplus"}


def model_type(class_name: str) -> str | None:
    """Hugging Face's name of the kind of model, where its configuration follows from a file."""
    return MODEL_TYPES.get(class_name)


def derived_config(metadata: Mapping[str, Any], tensors: Mapping[str, Tensor], row: Architecture) -> Config:
    """The configuration that a file's metadata follows from.

    Parameters
    ----------
    metadata : mapping
        The file's.
    tensors : mapping
        Its tensors, of which shapes and the factors of rotations say something.
    row : Architecture

    Raises
    ------
    GGUFError
        If it doesn't follow; the message names the first key that says more.
    """
    where = "the file's metadata"
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    class_name = row.classes[0]
    if row.name == "llama" and any("_exps." in name for name in shapes):
        class_name = "MixtralForCausalLM"
    kind = {"MixtralForCausalLM": "mixtral"}.get(class_name) or MODEL_TYPES.get(class_name)
    if kind is None:
        raise GGUFError(
            f"the configuration of {row.name} models can't be made from a file yet; give config= (--config)"
        )
    values = {
        key.removeprefix(f"{row.name}."): _plain(metadata[key]) for key in metadata if key.startswith(f"{row.name}.")
    }
    try:
        config = _config(values, metadata, shapes, row, kind, class_name)
        _add_factors(config, tensors, where, row)
        made = Config(config, where)
        made.values[FILE_TYPE] = metadata.get("general.file_type")
        again = metadata_of(row.keys, made, row.name)
    except (GGUFError, KeyError, TypeError, ArithmeticError) as error:
        raise GGUFError(
            f"the configuration of this {row.name} model doesn't follow from its file ({error}); give the original: "
            "config (--config)"
        ) from None
    _check_factors(made, tensors, row)
    for key in dict.fromkeys([*again, *(f"{row.name}.{k}" for k in values)]):
        if key.removeprefix(f"{row.name}.") in (key, "rope.scaling.attn_factor", "pooling_type"):
            continue
        wanted, got = values.get(key.removeprefix(f"{row.name}.")), again.get(key, (None,))[0]
        if not _same(wanted, got):
            raise GGUFError(
                f"{key} is {wanted!r} in the file, and the configuration made from it would give {got!r}; give the "
                "original: config (--config)"
            )
    return made


def _factors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if name.startswith(("rope_freqs.", "rope_factors_"))}


def _add_factors(config: dict[str, Any], tensors: Mapping[str, Tensor], where: str, row: Architecture) -> None:
    """What the factors of rotations, which are tensors of the file, say of the configuration."""
    found = _factors(tensors)
    rope = config.get("rope_parameters")
    if not found or not isinstance(rope, dict):
        return
    if "rope_freqs.weight" in found:
        values = found["rope_freqs.weight"].data
        rope.update(rope_type="llama3", factor=float(values.max()), low_freq_factor=1.0, high_freq_factor=4.0)
        for length in (8192, *(1 << n for n in range(9, 21))):  # nothing else is written of it
            rope["original_max_position_embeddings"] = length
            if row.rope_factors is not None:
                again = row.rope_factors(Config(config, where))
                if np.array_equal(again.get("rope_freqs.weight", ()), values):
                    return
        return
    rope["rope_type"] = "longrope"
    for kind in ("long", "short"):
        rope[f"{kind}_factor"] = _plain(found[f"rope_factors_{kind}.weight"].data)


def _check_factors(config: Config, tensors: Mapping[str, Tensor], row: Architecture) -> None:
    again = {} if row.rope_factors is None else row.rope_factors(config)
    for name, tensor in _factors(tensors).items():
        if not np.array_equal(again.get(name, ()), tensor.data):
            raise GGUFError(
                f"tensor {name!r} doesn't follow from a configuration that is known; give it: config (--config)"
            )


def _plain(value: Any) -> Any:
    value = value.tolist() if isinstance(value, np.ndarray) else value
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return float(str(np.float32(value))) if isinstance(value, float) and math.isfinite(value) else value


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, float) or isinstance(b, float):
        return a is not None and b is not None and bool(np.float32(a) == np.float32(b))
    return bool(a == b)


def _config(
    values: dict[str, Any],
    metadata: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    row: Architecture,
    kind: str,
    class_name: str,
) -> dict[str, Any]:
    out: dict[str, Any] = {"architectures": [class_name], "model_type": kind}
    own = _OWN.get(kind, {})
    for key in row.keys:
        if key.name not in values or key.name in ("rope.freq_base_swa",):
            continue
        names: tuple[str, ...] = () if callable(key.source) else tuple(key.source)
        usual = own.get(key.name) or _USUAL.get(key.name) or _FROM_KEYS.get(key.name)
        found = usual if usual is not None and (usual in names or not names) else next(iter(names), None)
        if found is not None:
            out[found] = values[key.name]
    if "attention.key_length" in values and values["attention.key_length"] == values.get("attention.value_length"):
        out["head_dim"] = values["attention.key_length"]
    if values.get("attention.causal") is False and kind != "bert":
        out["is_causal"] = False
    if (gate := values.get("expert_gating_func")) is not None:
        out["scoring_func"] = _GATES.get(gate)
    if out.get("num_nextn_predict_layers"):
        out["num_hidden_layers"] -= out["num_nextn_predict_layers"]
    _add_kinds(out, values, kind)
    if kind == "falcon":
        out["new_decoder_architecture"] = "blk.0.attn_norm_2.weight" in shapes
    if isinstance(pattern := values.get("attention.sliding_window_pattern"), list):
        out["layer_types"] = ["sliding_attention" if windowed else "full_attention" for windowed in pattern]
        out.pop("sliding_window_pattern", None)
    out["vocab_size"] = values.get("vocab_size", shapes["token_embd.weight"][0])
    out["tie_word_embeddings"] = "output.weight" not in shapes
    if "blk.0.attn_q.bias" in shapes and kind in ("llama", "granite", "arcee", "cohere", "glm4", "gpt_oss"):
        out["attention_bias"] = True
    for role, named in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        token = metadata.get(f"tokenizer.ggml.{named}_token_id")
        out[f"{role}_token_id"] = None if token is None else int(token)
    for role, named in (("unk", "unknown"), ("sep", "seperator"), ("mask", "mask")):
        if (token := metadata.get(f"tokenizer.ggml.{named}_token_id")) is not None:
            out[f"{role}_token_id"] = int(token)
    out["rope_parameters"] = _rope(values, out, row)
    if kind == "phi3":
        out["original_max_position_embeddings"] = values.get("rope.scaling.original_context_length")
        out["sliding_window"] = values.get("attention.sliding_window") or None
    if "freq_base_swa" in out["rope_parameters"]:
        base = out["rope_parameters"].pop("freq_base_swa")
        whole = out.pop("rope_parameters")
        out["rope_parameters"] = {
            "full_attention": whole,
            "sliding_attention": {"rope_type": "default", "rope_theta": base},
        }
    if row.name in DEFAULTS:
        out = {k: v for k, v in out.items() if v is not None or k.endswith("_token_id")}
    return out


def _add_kinds(out: dict[str, Any], values: Mapping[str, Any], kind: str) -> None:
    """What single kinds of models need beside, as far as a file says it."""
    heads = values.get("attention.head_count_kv")
    if kind in ("lfm2", "lfm2_moe") and isinstance(heads, list):
        out["layer_types"] = ["full_attention" if count else "conv" for count in heads]
        out["num_key_value_heads"] = max(heads)
        out["block_auto_adjust_ff_dim"] = False
    if kind == "granitemoehybrid" and isinstance(heads, list):
        out["layer_types"] = ["attention" if count else "mamba" for count in heads]
        out["num_key_value_heads"] = max(heads)
        out["mamba_expand"] = values["ssm.inner_size"] // out["hidden_size"]
        out["mamba_n_groups"] = values["ssm.group_count"]
        out["num_local_experts"] = out.pop("num_experts", 0)
    if kind in ("qwen3_next", "qwen3_5_text"):
        out["linear_value_head_dim"] = values["ssm.inner_size"] // values["ssm.time_step_rank"]
        recurrent = values.get("attention.recurrent_layers", [])[: out["num_hidden_layers"]]
        out["layer_types"] = ["linear_attention" if flag else "full_attention" for flag in recurrent]
    if kind in ("deepseek_v2", "deepseek_v3"):
        rope, size = values["rope.dimension_count"], values["attention.key_length_mla"]
        out.update(qk_rope_head_dim=rope, qk_nope_head_dim=size - rope, v_head_dim=values["attention.value_length_mla"])
        out["num_key_value_heads"] = out["num_attention_heads"]
        out["n_routed_experts"] = values.get("expert_count")
        for name in ("num_experts", "head_dim"):
            out.pop(name, None)
    if kind in ("gemma2", "gemma3_text"):  # llama.cpp's rule: two sizes are apart
        whole = (kind, out["num_hidden_layers"]) in (("gemma2", 46), ("gemma3_text", 62))
        size = out["hidden_size"] // out["num_attention_heads"] if whole else out["head_dim"]
        out["query_pre_attn_scalar"] = size
    if kind == "cohere2":
        out["rotary_pct"] = values["rope.dimension_count"] / (out["hidden_size"] // out["num_attention_heads"])
    if kind == "hunyuan_v1_dense":
        out["eod_token_id"] = None


def _rope(values: Mapping[str, Any], config: Mapping[str, Any], row: Architecture) -> dict[str, Any]:
    rope: dict[str, Any] = {"rope_type": values.get("rope.scaling.type", "default")}
    if rope["rope_type"] == "none":
        rope["rope_type"] = "default"
    names = {
        "freq_base": "rope_theta",
        "freq_base_swa": "freq_base_swa",
        "scaling.factor": "factor",
        "scaling.original_context_length": "original_max_position_embeddings",
        "scaling.yarn_ext_factor": "extrapolation_factor",
        "scaling.yarn_attn_factor": "attention_factor",
        "scaling.yarn_beta_fast": "beta_fast",
        "scaling.yarn_beta_slow": "beta_slow",
    }
    rope.update((name, values[f"rope.{key}"]) for key, name in names.items() if f"rope.{key}" in values)
    if "rope.dimension_sections" in values:
        sections = list(values["rope.dimension_sections"])
        while sections and not sections[-1]:
            sections.pop()
        rope["mrope_section"] = sections
    width, heads = config.get("hidden_size"), config.get("num_attention_heads")
    size = config.get("head_dim") or (width // heads if width and heads else None)
    turned = values.get("rope.dimension_count")
    if turned is not None and size and turned != size:
        rope["partial_rotary_factor"] = turned / size
    return rope


def config_text(config: Config, dtype: str) -> str:
    """config.json as it is written."""
    return json.dumps({**config.raw, "dtype": dtype, "torch_dtype": dtype}, indent=2, sort_keys=True) + "\n"
