"""The architectures that can be converted: a row for each, with names, keys, vocabulary, and what is special."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..errors import GGUFError
from . import encoders, families, recurrent
from . import vocabularies as vocab
from .hparams import Config
from .names import (
    AFTER_NORMS,
    BITNET,
    BLOOM,
    COMPRESSED,
    DENSE,
    EXPERTS,
    FALCON,
    FOUR_NORMS,
    FUSED_EXPERTS,
    FUSED_UP,
    GEMMA3N,
    GLM4_NORMS,
    GPT2,
    GPT_OSS,
    GRANITE_EXPERTS,
    LFM2,
    LFM2_EXPERTS,
    LLAMA,
    LLAMA4,
    MIXTRAL,
    NEXT,
    PHI2,
    QK_NORMS,
    SHARED_EXPERT,
    SHARED_EXPERTS,
    W_ORDER,
    XIELU,
)
from .naming import Architecture, block
from .rotations import llama3_factors, long_factors, phi_keys
from .vocabulary import sentencepiece, usual

__all__ = ["ARCHITECTURES", "Architecture", "architecture_of", "architectures_named"]

_NO_HEAD = r"^lm_head\.weight$"
_NORMS = r"norm\.weight$"
_AFTER = block({"post_attention_layernorm": "post_attention_norm"})
_TRANSFORMER_BACK = ((r"^(?!lm_head)", "transformer."),)
_TRANSFORMER = ((r"^transformer\.", ""),)


def _without(*reasons: tuple[str, Callable[[Config], bool]]) -> Callable[[Config], str | None]:
    """The first of these reasons that applies."""
    return lambda config: next((reason for reason, applies in reasons if applies(config)), None)


ARCHITECTURES: tuple[Architecture, ...] = (
    Architecture(
        "llama",
        ("LlamaForCausalLM", "LLaMAForCausalLM", "MistralForCausalLM", "MixtralForCausalLM", "LlamaModel"),
        {**LLAMA, **MIXTRAL},
        families.LLAMA,
        W_ORDER,
        bare=("LlamaModel",),
        vocabulary=vocab.llama,
        rope_factors=llama3_factors,
        refuse=_without(("a draft model of the EAGLE-3 kind", lambda c: "draft_vocab_size" in c.values)),
    ),
    Architecture(
        "arcee", ("ArceeForCausalLM",), LLAMA, families.ARCEE, vocabulary=vocab.llama, rope_factors=llama3_factors
    ),
    Architecture(
        "smollm3", ("SmolLM3ForCausalLM",), LLAMA, families.LLAMA, vocabulary=vocab.llama, rope_factors=llama3_factors
    ),
    Architecture(
        "granite", ("GraniteForCausalLM",), LLAMA, families.GRANITE, vocabulary=vocab.llama, rope_factors=llama3_factors
    ),
    Architecture(
        "granitemoe",
        ("GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"),
        {**LLAMA, **GRANITE_EXPERTS},
        families.GRANITE_MOE,
        without_experts=recurrent.SHARED_ALONE,
        vocabulary=vocab.llama,
        rope_factors=llama3_factors,
    ),
    Architecture(
        "granitehybrid",
        ("GraniteMoeHybridForCausalLM", "BambaForCausalLM"),
        recurrent.GRANITE_HYBRID,
        recurrent.GRANITE_HYBRID_KEYS,
        renames=recurrent.MAMBA2_NAMES,
        restores=((r"\.dt_proj\.bias$", ".dt_bias"),),
        vocabulary=recurrent.granite_vocabulary,
        without_experts=recurrent.SHARED_ALONE,
        named=recurrent.granite_name,
        skips=recurrent.granite_skips,
    ),
    Architecture(
        "apertus",
        ("ApertusForCausalLM",),
        {**DENSE, **QK_NORMS, **XIELU},
        families.LLAMA,
        vocabulary=vocab.llama,
        rope_factors=llama3_factors,
        first_keys=families.xielu_keys,
    ),
    Architecture(
        "llama4",
        ("Llama4ForCausalLM",),
        {**DENSE, **LLAMA4},
        families.LLAMA4,
        rope_factors=llama3_factors,
    ),
    Architecture(
        "qwen2", ("Qwen2ForCausalLM", "Qwen2Model"), DENSE, families.POOLED, bare=("Qwen2Model",), vocabulary=usual
    ),
    Architecture(
        "qwen3",
        ("Qwen3ForCausalLM", "Qwen3Model"),
        {**DENSE, **QK_NORMS},
        families.POOLED,
        bare=("Qwen3Model",),
        vocabulary=usual,
        refuse=_without(("a reranker", lambda c: "rerank" in str(c.get("_name_or_path", "")).lower())),
    ),
    Architecture(
        "qwen2moe", ("Qwen2MoeForCausalLM",), {**DENSE, **EXPERTS, **FUSED_EXPERTS, **SHARED_EXPERT}, families.QWEN_MOE
    ),
    Architecture(
        "qwen3moe", ("Qwen3MoeForCausalLM",), {**DENSE, **QK_NORMS, **EXPERTS, **FUSED_EXPERTS}, families.QWEN_MOE
    ),
    Architecture(
        "qwen3next",
        ("Qwen3NextForCausalLM",),
        recurrent.QWEN3_NEXT,
        recurrent.QWEN3_NEXT_KEYS,
        plus_one=r"(?<!linear_attn\.)norm\.weight$",
        predictors=True,
        blocks=families.blocks_and_next,
        usual=False,
        fuses_gate_up=True,
    ),
    Architecture(
        "qwen35",
        ("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"),
        recurrent.QWEN35,
        recurrent.QWEN35_KEYS,
        plus_one=r"(?<!linear_attn\.)norm\.weight$",
        predictors=True,
        blocks=families.blocks_and_next,
        usual=False,
    ),
    Architecture("olmoe", ("OlmoeForCausalLM",), {**DENSE, **QK_NORMS, **EXPERTS}, families.OLMOE),
    Architecture("dots1", ("Dots1ForCausalLM",), {**DENSE, **QK_NORMS, **EXPERTS, **SHARED_EXPERTS}, families.DOTS1),
    Architecture(
        "minimax-m2", ("MiniMaxM2ForCausalLM",), {**DENSE, **QK_NORMS, **MIXTRAL}, families.MINIMAX_M2, W_ORDER
    ),
    Architecture(
        "gemma", ("GemmaForCausalLM",), DENSE, families.GEMMA, plus_one=_NORMS, drops=_NO_HEAD, vocabulary=vocab.gemma
    ),
    Architecture(
        "gemma2",
        ("Gemma2ForCausalLM",),
        {**DENSE, **FOUR_NORMS},
        families.GEMMA2,
        plus_one=_NORMS,
        drops=_NO_HEAD,
        vocabulary=vocab.gemma_later,
    ),
    Architecture(
        "gemma3",
        ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
        {**DENSE, **FOUR_NORMS, **QK_NORMS},
        families.GEMMA3,
        plus_one=_NORMS,
        vocabulary=vocab.gemma_later,
    ),
    Architecture(
        "gemma3n",
        ("Gemma3nForCausalLM", "Gemma3nForConditionalGeneration"),
        {**DENSE, **FOUR_NORMS, **QK_NORMS, **GEMMA3N},
        families.GEMMA3N,
        renames=((r"_scale$", "_scale.weight"),),
        restores=((r"_scale\.weight$", "_scale"),),
        vocabulary=vocab.gemma3n,
        refuse=_without(("a Gemma 3n with other than 4 inputs", lambda c: c.get("altup_num_inputs") != 4)),
    ),
    Architecture("phi2", ("PhiForCausalLM",), PHI2, families.PHI2),
    Architecture(
        "phi3",
        ("Phi3ForCausalLM",),
        {**DENSE, **FUSED_UP},
        families.PHI3,
        vocabulary=vocab.phi3,
        first_keys=phi_keys,
        rope_factors=long_factors,
    ),
    Architecture(
        "phimoe",
        ("PhiMoEForCausalLM", "PhimoeForCausalLM"),
        {**DENSE, **MIXTRAL},
        families.PHIMOE,
        W_ORDER,
        vocabulary=vocab.phi3,
        first_keys=phi_keys,
        rope_factors=long_factors,
    ),
    Architecture("gpt-oss", ("GptOssForCausalLM",), {**DENSE, **GPT_OSS}, families.GPT_OSS),
    Architecture(
        "deepseek2",
        ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"),
        {**DENSE, **EXPERTS, **SHARED_EXPERTS, **COMPRESSED},
        families.DEEPSEEK2,
        usual=False,
        beyond=True,
        drops_tied=True,
        fuses_qkv=False,
    ),
    Architecture(
        "glm4",
        ("Glm4ForCausalLM",),
        {**DENSE, **FUSED_UP, **GLM4_NORMS},
        families.GLM4,
        vocabulary=vocab.glm(eos="<|endoftext|>", eot="<|user|>", unk="<|endoftext|>", bos="<|endoftext|>"),
        refuse=_without(("a mixed rotation for images (mrope_section)", lambda c: "mrope_section" in c.rope)),
    ),
    Architecture(
        "glm4moe",
        ("Glm4MoeForCausalLM",),
        {**DENSE, **QK_NORMS, **EXPERTS, **SHARED_EXPERTS, **_AFTER, **NEXT},
        families.GLM4_MOE,
        vocabulary=vocab.glm(bos="[gMASK]", eot="<|user|>", unk="<|endoftext|>", eom="<|observation|>"),
        blocks=families.blocks_and_next,
    ),
    Architecture("lfm2", ("Lfm2ForCausalLM", "LFM2ForCausalLM"), LFM2, families.LFM2),
    Architecture("lfm2moe", ("Lfm2MoeForCausalLM",), {**LFM2, **LFM2_EXPERTS}, families.LFM2_MOE, W_ORDER),
    Architecture(
        "olmo2", ("Olmo2ForCausalLM", "Olmo3ForCausalLM"), {**DENSE, **QK_NORMS, **AFTER_NORMS}, families.OLMO2
    ),
    Architecture("seed_oss", ("SeedOssForCausalLM",), {**DENSE, **_AFTER}),
    Architecture("command-r", ("CohereForCausalLM",), {**DENSE, **QK_NORMS}, families.COHERE),
    Architecture("cohere2", ("Cohere2ForCausalLM",), DENSE, families.COHERE2),
    Architecture(
        "starcoder2",
        ("Starcoder2ForCausalLM",),
        {**DENSE, **block({"mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"})},
    ),
    Architecture("stablelm", ("StableLmForCausalLM",), DENSE, families.STABLELM),
    Architecture(
        "nemotron",
        ("NemotronForCausalLM",),
        DENSE,
        families.NEMOTRON,
        plus_one=_NORMS,
        vocabulary=vocab.nemotron,
    ),
    Architecture(
        "exaone4",
        ("Exaone4ForCausalLM",),
        {**DENSE, **QK_NORMS, **AFTER_NORMS},
        families.EXAONE4,
        rope_factors=llama3_factors,
    ),
    Architecture("ernie4_5", ("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"), DENSE, vocabulary=vocab.ernie),
    Architecture(
        "hunyuan-dense",
        ("HunYuanDenseV1ForCausalLM",),
        {**DENSE, **block({"self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm"})},
        families.HUNYUAN,
        drops_tied=True,
        vocabulary=vocab.hunyuan,
    ),
    Architecture(
        "bitnet",
        ("BitnetForCausalLM", "BitNetForCausalLM"),
        BITNET,
        families.BITNET,
        vocabulary=sentencepiece,
        fuses_qkv=False,
    ),
    Architecture(
        "gpt2", ("GPT2LMHeadModel",), GPT2, families.GPT2, renames=_TRANSFORMER, restores=_TRANSFORMER_BACK, usual=False
    ),
    Architecture(
        "bloom",
        ("BloomForCausalLM", "BloomModel"),
        BLOOM,
        families.BLOOM,
        renames=_TRANSFORMER,
        restores=_TRANSFORMER_BACK,
        usual=False,
    ),
    Architecture(
        "falcon",
        ("FalconForCausalLM",),
        FALCON,
        families.FALCON,
        skips=lambda c: r"input_layernorm" if c.get("new_decoder_architecture") else r"ln_mlp|ln_attn",
        renames=_TRANSFORMER,
        restores=_TRANSFORMER_BACK,
        usual=False,
    ),
    Architecture(
        "mamba",
        ("MambaForCausalLM", "MambaLMHeadModel", "FalconMambaForCausalLM"),
        recurrent.MAMBA,
        recurrent.MAMBA_KEYS,
        vocabulary=vocab.padded(8, json_first=True),
        usual=False,
        fuses_qkv=False,
    ),
    Architecture(
        "mamba2",
        ("Mamba2ForCausalLM",),
        recurrent.MAMBA2,
        recurrent.MAMBA2_KEYS,
        renames=recurrent.MAMBA2_NAMES,
        restores=((r"\.dt_proj\.bias$", ".dt_bias"),),
        vocabulary=vocab.padded(16),
        usual=False,
        fuses_qkv=False,
    ),
    Architecture(
        "falcon-h1",
        ("FalconH1ForCausalLM",),
        recurrent.FALCON_H1,
        recurrent.FALCON_H1_KEYS,
        renames=recurrent.MAMBA2_NAMES,
        restores=((r"\.dt_proj\.bias$", ".dt_bias"),),
    ),
    Architecture(
        "bert",
        ("BertModel", "BertForMaskedLM"),
        encoders.BERT,
        encoders.BERT_KEYS,
        drops=encoders.BERT_DROPS,
        renames=encoders.BERT_NAMES,
        vocabulary=vocab.bert,
    ),
    Architecture(
        "bert",
        ("RobertaModel",),
        encoders.ROBERTA,
        encoders.ROBERTA_KEYS,
        drops=encoders.BERT_DROPS,
        renames=((r"^roberta\.", ""), *encoders.BERT_NAMES),
        vocabulary=vocab.roberta,
    ),
    Architecture(
        "nomic-bert",
        ("NomicBertModel",),
        encoders.NOMIC_BERT,
        encoders.BERT_KEYS,
        drops=encoders.BERT_DROPS,
        renames=encoders.BERT_NAMES,
        vocabulary=vocab.bert,
        usual=False,
        refuse=encoders.not_nomic,
    ),
    Architecture(
        "modern-bert",
        ("ModernBertModel", "ModernBertForMaskedLM"),
        encoders.MODERN_BERT,
        encoders.MODERN_BERT_KEYS,
        drops=rf"{encoders.BERT_DROPS}|^(head|decoder)\.",
        renames=((r"^model\.", ""),),
        vocabulary=vocab.modern_bert,
        usual=False,
    ),
    Architecture(
        "t5",
        ("T5ForConditionalGeneration", "T5WithLMHeadModel", "MT5ForConditionalGeneration"),
        encoders.T5,
        encoders.T5_KEYS,
        usual=False,
        vocabulary=vocab.t5,
        first_counts=encoders.T5_EMBEDDINGS,
        skips=encoders.t5_skips,
        fuses_qkv=False,
    ),
    Architecture(
        "t5encoder",
        ("T5EncoderModel",),
        encoders.T5_ENCODER,
        encoders.T5_ENCODER_KEYS,
        usual=False,
        vocabulary=vocab.t5,
        first_counts=encoders.T5_EMBEDDINGS,
        skips=encoders.t5_skips,
        fuses_qkv=False,
    ),
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
    if (what := row.refuse(config)) is not None:
        raise GGUFError(f"{config.source}: this is {what}, which can't be converted yet")
    name = row.name if row.named is None else row.named(config)
    names = row.names if config.first("num_local_experts", "num_experts") else {**row.names, **row.without_experts}
    return replace(row, name=name, names=names)


def architectures_named(name: str) -> list[Architecture]:
    """The rows of ``general.architecture``."""
    return [row for row in ARCHITECTURES if row.name == name]
