"""The architectures that can be converted: a row for each, with names, transforms and metadata keys.

Names are given without their ``.weight`` or ``.bias``, with ``{n}`` for the block's and ``{e}`` for the expert's
number. What a name becomes is a GGUF name, a :class:`Rule`, or None where the tensor is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ..errors import GGUFError
from . import families
from .hparams import COMMON, Config, Key
from .transforms import (
    GATE_UP_BIAS_TURNS,
    GATE_UP_HALVES,
    GATE_UP_TURNS,
    KEEP,
    KV_B,
    PERMUTE_K,
    PERMUTE_Q,
    PLUS_ONE,
    SQUEEZE_MIDDLE,
    STACK,
    TRANSPOSE,
    Transform,
)

__all__ = ["ARCHITECTURES", "Architecture", "Match", "Rule", "architecture_of"]


@dataclass(frozen=True)
class Rule:
    """What becomes of a tensor: its names in the file, and the transform that makes them."""

    targets: tuple[str, ...]
    transform: Transform = KEEP


Names = Mapping[str, "str | Rule | None"]


class Match(NamedTuple):
    """A tensor's names in the file with their numbers, its transform, and the numbers."""

    targets: tuple[str, ...]
    transform: Transform
    block: int | None
    expert: int | None


_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_SUFFIXES = (".weight", ".bias")


@dataclass(frozen=True)
class Architecture:
    """A row of the table.

    Attributes
    ----------
    name : str
        ``general.architecture``.
    classes : tuple of str
        Hugging Face's names of the model classes.
    names : mapping
        From a checkpoint's names to the file's.
    keys : tuple of Key
        The metadata, in the reference's order.
    expert_order : tuple of str
        The order in which a layer's stacked experts are written.
    plus_one : bool
        Norms are stored as their distance from one.
    drops : str
        Tensors whose names match this regular expression are left out.
    bare : tuple of str
        Classes without a head, whose names lack the ``model.`` they begin with elsewhere.
    usual : bool
        Attention's shapes follow from the configuration in the usual way.
    """

    name: str
    classes: tuple[str, ...]
    names: Names
    keys: tuple[Key, ...] = COMMON
    expert_order: tuple[str, ...] = ("ffn_down_exps", "ffn_gate_exps", "ffn_up_exps")
    plus_one: bool = False
    drops: str = r"$^"
    bare: tuple[str, ...] = ()
    usual: bool = True

    def match(self, name: str) -> Match | None:
        """What becomes of a tensor; None where it is left out.

        Raises
        ------
        KeyError
            If the table has no such name.
        """
        if re.search(self.drops, name):
            return None
        suffix = next((s for s in _SUFFIXES if name.endswith(s)), "")
        stem = name.removesuffix(suffix)
        found = [(m.start(), m.end()) for m in _NUMBER.finditer(name)]
        # The first number is the block's and the second the expert's, but some names have numbers of their own.
        for count in range(min(len(found), 2), -1, -1):
            pattern = name
            numbers: list[int] = []
            for (start, end), mark in reversed(list(zip(found[:count], ("{n}", "{e}"), strict=False))):
                numbers.insert(0, int(name[start:end]))
                pattern = pattern[:start] + mark + pattern[end:]
            for key in (pattern, pattern.removesuffix(suffix)):
                if key in self.names:
                    tail = suffix if key != pattern or not suffix else ""
                    return self._matched(stem, self.names[key], tail, numbers)
        raise KeyError(name)

    def _matched(self, stem: str, value: str | Rule | None, suffix: str, numbers: list[int]) -> Match | None:
        if value is None:
            return None
        rule = Rule((value,)) if isinstance(value, str) else value
        block, expert = [*numbers, None, None][:2]
        targets = tuple(t.replace("{n}", str(block)) + suffix for t in rule.targets)
        transform = PLUS_ONE if self.plus_one and stem.endswith("norm") and suffix == ".weight" else rule.transform
        return Match(targets, transform, block, expert)


def _block(names: Names, inside: str = "model.layers.{n}.", outside: str = "blk.{n}.") -> dict[str, str | Rule | None]:
    """Names inside a block, written without what they begin with."""

    def target(value: str | Rule | None) -> str | Rule | None:
        if isinstance(value, Rule):
            return Rule(tuple(outside + t for t in value.targets), value.transform)
        return None if value is None else outside + value

    return {inside + name: target(value) for name, value in names.items()}


OUTER: Names = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
ATTENTION: Names = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
}
MLP: Names = {"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
DENSE: Names = {**OUTER, **_block({**ATTENTION, **MLP, "post_attention_layernorm": "ffn_norm"})}
QK_NORMS = _block({"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"})
LLAMA: Names = {
    **DENSE,
    **_block({"self_attn.q_proj": Rule(("attn_q",), PERMUTE_Q), "self_attn.k_proj": Rule(("attn_k",), PERMUTE_K)}),
}
EXPERTS = _block(
    {
        "mlp.experts.{e}.down_proj": Rule(("ffn_down_exps",), STACK),
        "mlp.experts.{e}.gate_proj": Rule(("ffn_gate_exps",), STACK),
        "mlp.experts.{e}.up_proj": Rule(("ffn_up_exps",), STACK),
        "mlp.gate": "ffn_gate_inp",
    }
)
SHARED_EXPERT = _block(
    {
        "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
        "mlp.shared_expert.up_proj": "ffn_up_shexp",
        "mlp.shared_expert.down_proj": "ffn_down_shexp",
        "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    }
)
SHARED_EXPERTS = _block(
    {
        "mlp.gate.e_score_correction": "exp_probs_b",
        "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
        "mlp.shared_experts.up_proj": "ffn_up_shexp",
        "mlp.shared_experts.down_proj": "ffn_down_shexp",
    }
)
FUSED_EXPERTS = _block(
    {
        "mlp.experts.down_proj": "ffn_down_exps.weight",
        "mlp.experts.gate_up_proj": Rule(("ffn_gate_exps.weight", "ffn_up_exps.weight"), GATE_UP_HALVES),
    }
)
MIXTRAL = _block(
    {
        "block_sparse_moe.experts.{e}.w1": Rule(("ffn_gate_exps",), STACK),
        "block_sparse_moe.experts.{e}.w2": Rule(("ffn_down_exps",), STACK),
        "block_sparse_moe.experts.{e}.w3": Rule(("ffn_up_exps",), STACK),
        "block_sparse_moe.gate": "ffn_gate_inp",
        "block_sparse_moe.e_score_correction": "exp_probs_b",
    }
)
W_ORDER = ("ffn_gate_exps", "ffn_down_exps", "ffn_up_exps")
GRANITE_EXPERTS = _block(
    {
        "block_sparse_moe.input_linear": Rule(("ffn_gate_exps", "ffn_up_exps"), GATE_UP_HALVES),
        "block_sparse_moe.output_linear": "ffn_down_exps",
        "block_sparse_moe.router.layer": "ffn_gate_inp",
        "shared_mlp.input_linear": Rule(("ffn_gate_shexp", "ffn_up_shexp"), GATE_UP_HALVES),
        "shared_mlp.output_linear": "ffn_down_shexp",
    }
)
AFTER_NORMS = _block({"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"})
FOUR_NORMS = {**AFTER_NORMS, **_block({"pre_feedforward_layernorm": "ffn_norm"})}
GLM4_NORMS = _block({"post_self_attn_layernorm": "post_attention_norm", "post_mlp_layernorm": "post_ffw_norm"})
FUSED_UP = _block({"mlp.gate_up_proj": "ffn_up", "self_attn.qkv_proj": "attn_qkv"})
GPT_OSS = _block(
    {
        "post_attention_layernorm": "post_attention_norm",
        "mlp.router": "ffn_gate_inp",
        "self_attn.sinks": "attn_sinks.weight",
        "mlp.experts.down_proj": Rule(("ffn_down_exps.weight",), TRANSPOSE),
        "mlp.experts.down_proj_bias": "ffn_down_exps.bias",
        "mlp.experts.gate_up_proj": Rule(("ffn_gate_exps.weight", "ffn_up_exps.weight"), GATE_UP_TURNS),
        "mlp.experts.gate_up_proj_bias": Rule(("ffn_gate_exps.bias", "ffn_up_exps.bias"), GATE_UP_BIAS_TURNS),
    }
)
COMPRESSED = _block(
    {
        "self_attn.q_a_proj": "attn_q_a",
        "self_attn.q_a_layernorm": "attn_q_a_norm",
        "self_attn.q_b_proj": "attn_q_b",
        "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
        "self_attn.kv_a_layernorm": "attn_kv_a_norm",
        "self_attn.kv_b_proj": Rule(("attn_k_b", "attn_v_b"), KV_B),
    }
)
LFM2: Names = {
    "model.embed_tokens": "token_embd",
    "model.embedding_norm": "token_embd_norm",
    "lm_head": "output",
    **_block(
        {
            **ATTENTION,
            "self_attn.out_proj": "attn_output",
            "self_attn.q_layernorm": "attn_q_norm",
            "self_attn.k_layernorm": "attn_k_norm",
            "operator_norm": "attn_norm",
            "ffn_norm": "ffn_norm",
            "conv.conv": Rule(("shortconv.conv",), SQUEEZE_MIDDLE),
            "conv.in_proj": "shortconv.in_proj",
            "conv.out_proj": "shortconv.out_proj",
            "feed_forward.w1": "ffn_gate",
            "feed_forward.w2": "ffn_down",
            "feed_forward.w3": "ffn_up",
        }
    ),
}
BERT: Names = {
    "embeddings.LayerNorm": "token_embd_norm",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.word_embeddings": "token_embd",
    **_block(
        {
            "attention.output.LayerNorm": "attn_output_norm",
            "attention.output.dense": "attn_output",
            "attention.self.query": "attn_q",
            "attention.self.key": "attn_k",
            "attention.self.value": "attn_v",
            "intermediate.dense": "ffn_up",
            "output.dense": "ffn_down",
            "output.LayerNorm": "layer_output_norm",
        },
        "encoder.layer.{n}.",
    ),
}


def _t5(side: str, mlp: int) -> dict[str, str | Rule | None]:
    names: dict[str, str | Rule | None] = {
        "layer.0.layer_norm": "attn_norm",
        "layer.0.SelfAttention.relative_attention_bias": "attn_rel_b",
        f"layer.{mlp}.layer_norm": "ffn_norm",
        f"layer.{mlp}.DenseReluDense.wi": "ffn_up",
        f"layer.{mlp}.DenseReluDense.wi_0": "ffn_gate",
        f"layer.{mlp}.DenseReluDense.wi_1": "ffn_up",
        f"layer.{mlp}.DenseReluDense.wo": "ffn_down",
    }
    names |= {f"layer.0.SelfAttention.{x}": f"attn_{x}" for x in "qkvo"}
    if mlp == 2:
        names |= {f"layer.1.EncDecAttention.{x}": f"cross_attn_{x}" for x in "qkvo"}
        names["layer.1.layer_norm"] = "cross_attn_norm"
    return _block(names, f"{side}oder.block.{{n}}.", f"{side}.blk.{{n}}.")


T5_EMBEDDINGS = ("decoder.embed_tokens.weight", "encoder.embed_tokens.weight", "shared.weight")
T5_ENCODER: Names = {
    "encoder.final_layer_norm": "enc.output_norm",
    "lm_head": "output",
    **{name.removesuffix(".weight"): "token_embd" for name in T5_EMBEDDINGS},
    **_t5("enc", 1),
}
T5: Names = {**T5_ENCODER, "decoder.final_layer_norm": "dec.output_norm", **_t5("dec", 2)}
NO_HEAD = r"^lm_head\.weight$"

ARCHITECTURES: tuple[Architecture, ...] = (
    Architecture(
        "llama",
        ("LlamaForCausalLM", "LLaMAForCausalLM", "MistralForCausalLM", "MixtralForCausalLM", "LlamaModel"),
        {**LLAMA, **MIXTRAL},
        families.LLAMA,
        W_ORDER,
        bare=("LlamaModel",),
    ),
    Architecture("arcee", ("ArceeForCausalLM",), LLAMA, families.LLAMA),
    Architecture("smollm3", ("SmolLM3ForCausalLM",), LLAMA, families.LLAMA),
    Architecture("granite", ("GraniteForCausalLM",), LLAMA, families.GRANITE),
    Architecture(
        "granitemoe",
        ("GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"),
        {**LLAMA, **GRANITE_EXPERTS},
        families.GRANITE_MOE,
    ),
    Architecture("qwen2", ("Qwen2ForCausalLM", "Qwen2Model"), DENSE, families.POOLED, bare=("Qwen2Model",)),
    Architecture(
        "qwen3", ("Qwen3ForCausalLM", "Qwen3Model"), {**DENSE, **QK_NORMS}, families.POOLED, bare=("Qwen3Model",)
    ),
    Architecture(
        "qwen2moe", ("Qwen2MoeForCausalLM",), {**DENSE, **EXPERTS, **FUSED_EXPERTS, **SHARED_EXPERT}, families.QWEN_MOE
    ),
    Architecture(
        "qwen3moe", ("Qwen3MoeForCausalLM",), {**DENSE, **QK_NORMS, **EXPERTS, **FUSED_EXPERTS}, families.QWEN_MOE
    ),
    Architecture("olmoe", ("OlmoeForCausalLM",), {**DENSE, **QK_NORMS, **EXPERTS}, families.OLMOE),
    Architecture("dots1", ("Dots1ForCausalLM",), {**DENSE, **QK_NORMS, **EXPERTS, **SHARED_EXPERTS}, families.DOTS1),
    Architecture(
        "minimax-m2", ("MiniMaxM2ForCausalLM",), {**DENSE, **QK_NORMS, **MIXTRAL}, families.MINIMAX_M2, W_ORDER
    ),
    Architecture("gemma", ("GemmaForCausalLM",), DENSE, families.GEMMA, plus_one=True, drops=NO_HEAD),
    Architecture(
        "gemma2", ("Gemma2ForCausalLM",), {**DENSE, **FOUR_NORMS}, families.GEMMA2, plus_one=True, drops=NO_HEAD
    ),
    Architecture(
        "gemma3",
        ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
        {**DENSE, **FOUR_NORMS, **QK_NORMS},
        families.GEMMA3,
        plus_one=True,
    ),
    Architecture("phi3", ("Phi3ForCausalLM",), {**DENSE, **FUSED_UP}, families.PHI3),
    Architecture("gpt-oss", ("GptOssForCausalLM",), {**DENSE, **GPT_OSS}, families.GPT_OSS),
    Architecture(
        "deepseek2",
        ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"),
        {**DENSE, **EXPERTS, **SHARED_EXPERTS, **COMPRESSED},
        families.DEEPSEEK2,
        usual=False,
    ),
    Architecture("glm4", ("Glm4ForCausalLM",), {**DENSE, **FUSED_UP, **GLM4_NORMS}, families.GLM4),
    Architecture("lfm2", ("Lfm2ForCausalLM", "LFM2ForCausalLM"), LFM2, families.LFM2),
    Architecture(
        "olmo2", ("Olmo2ForCausalLM", "Olmo3ForCausalLM"), {**DENSE, **QK_NORMS, **AFTER_NORMS}, families.OLMO2
    ),
    Architecture(
        "seed_oss", ("SeedOssForCausalLM",), {**DENSE, **_block({"post_attention_layernorm": "post_attention_norm"})}
    ),
    Architecture(
        "bert",
        ("BertModel", "BertForMaskedLM"),
        BERT,
        families.BERT,
        drops=r"^(cls\.predictions|cls\.seq_relationship|pooler\.dense\.|embeddings\.position_ids$)",
    ),
    Architecture(
        "t5",
        ("T5ForConditionalGeneration", "T5WithLMHeadModel", "MT5ForConditionalGeneration"),
        T5,
        families.T5,
        usual=False,
    ),
    Architecture("t5encoder", ("T5EncoderModel",), T5_ENCODER, families.T5_ENCODER, usual=False),
)
_BY_CLASS = {name: row for row in ARCHITECTURES for name in row.classes}


def architecture_of(config: Config) -> Architecture:
    """The row of a configuration's class.

    Raises
    ------
    GGUFError
        If there is none, or the model is of a kind the row doesn't hold.
    """
    row = _BY_CLASS.get(config.class_name)
    if row is None:
        raise GGUFError(f"{config.source}: models of class {config.class_name} can't be converted yet")
    refusals: dict[str, Callable[[Config], bool]] = {
        "a draft model of the EAGLE-3 kind": lambda c: "draft_vocab_size" in c.values,
        "a mixed rotation for images (mrope_section)": lambda c: row.name == "glm4" and "mrope_section" in c.rope,
        "a reranker": lambda c: row.name == "qwen3" and "rerank" in str(c.get("_name_or_path", "")).lower(),
    }
    for what, applies in refusals.items():
        if applies(config):
            raise GGUFError(f"{config.source}: this is {what}, which can't be converted yet")
    return row
