"""Encoders: the BERTs and T5, their names and their metadata keys."""

from __future__ import annotations

from typing import Any

from ..errors import GGUFError
from ..formats.value_types import ValueType
from .checkpoint import read_json
from .hparams import BOOL, F32, FILE_TYPE, TEXT, U32, Config, Key, replaced
from .naming import Names, Rule, block
from .transforms import WITHOUT_PADDING

BERT: Names = {
    "embeddings.LayerNorm": "token_embd_norm",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.word_embeddings": "token_embd",
    **block(
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
    return block(names, f"{side}oder.block.{{n}}.", f"{side}.blk.{{n}}.")


T5_EMBEDDINGS = ("decoder.embed_tokens.weight", "encoder.embed_tokens.weight", "shared.weight")
T5_ENCODER: Names = {
    "encoder.final_layer_norm": "enc.output_norm",
    "lm_head": "output",
    **{name.removesuffix(".weight"): "token_embd" for name in T5_EMBEDDINGS},
    **_t5("enc", 1),
}
T5: Names = {**T5_ENCODER, "decoder.final_layer_norm": "dec.output_norm", **_t5("dec", 2)}

ROBERTA: Names = {**BERT, "embeddings.position_embeddings": Rule(("position_embd",), WITHOUT_PADDING)}
NOMIC_BERT: Names = {
    "emb_ln": "token_embd_norm",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.word_embeddings": "token_embd",
    **block(
        {
            "attn.Wqkv": "attn_qkv",
            "attn.out_proj": "attn_output",
            "mlp.fc11": "ffn_up",
            "mlp.fc12": "ffn_gate",
            "mlp.fc2": "ffn_down",
            "norm1": "attn_output_norm",
            "norm2": "layer_output_norm",
        },
        "encoder.layers.{n}.",
    ),
}
MODERN_BERT: Names = {
    "embeddings.norm": "token_embd_norm",
    "embeddings.tok_embeddings": "token_embd",
    "final_norm": "output_norm",
    **block(
        {
            "attn_norm": "attn_norm",
            "attn.Wqkv": "attn_qkv",
            "attn.Wo": "attn_output",
            "mlp.Wi": "ffn_up",
            "mlp.Wo": "ffn_down",
            "mlp_norm": "ffn_norm",
        },
        "layers.{n}.",
    ),
}
BERT_NAMES = ((r"^bert\.", ""), (r"\.gamma$", ".weight"), (r"\.beta$", ".bias"))
# Heads for training, and the pooler, which embeddings don't use.
BERT_DROPS = r"^(cls\.predictions|cls\.seq_relationship|pooler\.dense\.|embeddings\.position_ids$)"


def t5_skips(config: Config) -> str:
    """The first of T5's feed-forward matrices has another name where there is a gate; the embeddings are shared."""
    gated = "gated" in str(config.get("feed_forward_proj", "gated"))
    return r"(encoder|decoder)\.embed_tokens|" + (r"\.wi$" if gated else r"\.wi_[01]$")


def pooling(config: Config) -> int | None:
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


def _classifier_pooling(config: Config) -> int | None:
    kind = config.get("classifier_pooling")
    if kind is None:
        return None
    if kind not in ("cls", "mean"):
        raise GGUFError(f"{config.source}: classifier_pooling is {kind!r}, neither cls nor mean")
    return {"mean": 1, "cls": 2}[kind]


def _labels(config: Config) -> None:
    if config.get("id2label") and "SequenceClassification" in config.class_name:
        raise GGUFError(f"{config.source}: classifiers with labels can't be converted yet")


def _without_padding(config: Config) -> int:
    pad = config.get("pad_token_id")
    return int(config.need("max_position_embeddings")) - (0 if pad is None else int(pad) + 1)


def not_nomic(config: Config) -> str | None:
    """Why this is no NomicBert of the kind that llama.cpp computes."""
    expected: dict[str, Any] = {
        "activation_function": "swiglu",
        "causal": False,
        "qkv_proj_bias": False,
        "mlp_fc1_bias": False,
        "mlp_fc2_bias": False,
        "prenorm": False,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None,
    }
    if config.get("moe_every_n_layers"):
        return "a NomicBert with experts"
    return next((f"a NomicBert whose {k} isn't {v}" for k, v in expected.items() if config.get(k) != v), None)


_FILE = Key("general.file_type", lambda c: c.get(FILE_TYPE), U32)
BERT_KEYS = (
    *replaced(Key("attention.causal", lambda c: None, BOOL)),
    Key("attention.causal", lambda c: False, BOOL),
    Key("pooling_type", pooling, U32),
    Key("classifier.pooling_type", _classifier_pooling, U32),
    Key("classifier.output_labels", _labels, ValueType.STRING),
)
T5_ENCODER_KEYS = (
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
T5_KEYS = (
    *T5_ENCODER_KEYS[:4],
    Key("decoder_block_count", ("num_decoder_layers",), U32),
    *T5_ENCODER_KEYS[4:-1],
    Key("decoder_start_token_id", ("decoder_start_token_id",), U32, required=True),
    _FILE,
)
ROBERTA_KEYS = tuple(
    key._replace(source=_without_padding) if key.name == "context_length" else key for key in BERT_KEYS
)
MODERN_BERT_KEYS = (
    *BERT_KEYS,
    Key("attention.sliding_window", ("local_attention",), U32, required=True),
    Key("attention.sliding_window_pattern", ("global_attn_every_n_layers",), U32),
    Key("rope.scaling.type", lambda c: "none", TEXT),
    Key("vocab_size", ("vocab_size",), U32, required=True),
    Key("hidden_activation", lambda c: c.get("hidden_activation") or None, TEXT),
)
