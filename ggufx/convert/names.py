"""Names that several architectures share, piece by piece: attention, dense and mixed feed-forward networks, norms."""

from __future__ import annotations

from .naming import Names, Rule, block
from .transforms import (
    GATE_UP_BIAS_TURNS,
    GATE_UP_COLUMNS,
    GATE_UP_HALVES,
    GATE_UP_TURNS,
    GATHER_ALTUP,
    KV_B,
    PADDED_ROWS,
    PERMUTE_K,
    PERMUTE_Q,
    QKV_BY_GROUPS,
    QKV_BY_HEADS,
    SQUEEZE_MIDDLE,
    STACK,
    TERNARY,
    TRANSPOSE,
)

OUTER: Names = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    # Where names get the prefix of the whole model, the head gets it too.
    "model.lm_head": "output",
}
ATTENTION: Names = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
}
MLP: Names = {"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
DENSE: Names = {**OUTER, **block({**ATTENTION, **MLP, "post_attention_layernorm": "ffn_norm"})}
QK_NORMS = block({"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"})
LLAMA: Names = {
    **DENSE,
    **block({"self_attn.q_proj": Rule(("attn_q",), PERMUTE_Q), "self_attn.k_proj": Rule(("attn_k",), PERMUTE_K)}),
}
EXPERTS = block(
    {
        "mlp.experts.{e}.down_proj": Rule(("ffn_down_exps",), STACK),
        "mlp.experts.{e}.gate_proj": Rule(("ffn_gate_exps",), STACK),
        "mlp.experts.{e}.up_proj": Rule(("ffn_up_exps",), STACK),
        "mlp.gate": "ffn_gate_inp",
    }
)
SHARED_EXPERT = block(
    {
        "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
        "mlp.shared_expert.up_proj": "ffn_up_shexp",
        "mlp.shared_expert.down_proj": "ffn_down_shexp",
        "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    }
)
SHARED_EXPERTS = block(
    {
        "mlp.gate.e_score_correction": "exp_probs_b",
        "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
        "mlp.shared_experts.up_proj": "ffn_up_shexp",
        "mlp.shared_experts.down_proj": "ffn_down_shexp",
    }
)
FUSED_EXPERTS = block(
    {
        "mlp.experts.down_proj": "ffn_down_exps.weight",
        "mlp.experts.gate_up_proj": Rule(("ffn_gate_exps.weight", "ffn_up_exps.weight"), GATE_UP_HALVES),
    }
)
MIXTRAL = block(
    {
        "block_sparse_moe.experts.{e}.w1": Rule(("ffn_gate_exps",), STACK),
        "block_sparse_moe.experts.{e}.w2": Rule(("ffn_down_exps",), STACK),
        "block_sparse_moe.experts.{e}.w3": Rule(("ffn_up_exps",), STACK),
        "block_sparse_moe.gate": "ffn_gate_inp",
        "block_sparse_moe.e_score_correction": "exp_probs_b",
    }
)
W_ORDER = ("ffn_gate_exps", "ffn_down_exps", "ffn_up_exps")
GRANITE_EXPERTS = block(
    {
        "block_sparse_moe.input_linear": Rule(("ffn_gate_exps", "ffn_up_exps"), GATE_UP_HALVES),
        "block_sparse_moe.output_linear": "ffn_down_exps",
        "block_sparse_moe.router.layer": "ffn_gate_inp",
        "shared_mlp.input_linear": Rule(("ffn_gate_shexp", "ffn_up_shexp"), GATE_UP_HALVES),
        "shared_mlp.output_linear": "ffn_down_shexp",
    }
)
AFTER_NORMS = block({"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"})
FOUR_NORMS = {**AFTER_NORMS, **block({"pre_feedforward_layernorm": "ffn_norm"})}
GLM4_NORMS = block({"post_self_attn_layernorm": "post_attention_norm", "post_mlp_layernorm": "post_ffw_norm"})
FUSED_UP = block({"mlp.gate_up_proj": "ffn_up", "self_attn.qkv_proj": "attn_qkv"})
GPT_OSS = block(
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
COMPRESSED = block(
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
    **block(
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

LFM2_EXPERTS = block(
    {
        "feed_forward.expert_bias": "exp_probs_b",
        "feed_forward.experts.{e}.w1": Rule(("ffn_gate_exps",), STACK),
        "feed_forward.experts.{e}.w2": Rule(("ffn_down_exps",), STACK),
        "feed_forward.experts.{e}.w3": Rule(("ffn_up_exps",), STACK),
        "feed_forward.gate": "ffn_gate_inp",
    }
)
LLAMA4 = block(
    {
        "feed_forward.gate_proj": "ffn_gate",
        "feed_forward.up_proj": "ffn_up",
        "feed_forward.down_proj": "ffn_down",
        "feed_forward.router": "ffn_gate_inp",
        "feed_forward.shared_expert.gate_proj": "ffn_gate_shexp",
        "feed_forward.shared_expert.up_proj": "ffn_up_shexp",
        "feed_forward.shared_expert.down_proj": "ffn_down_shexp",
        "feed_forward.experts.down_proj": Rule(("ffn_down_exps.weight",), TRANSPOSE),
        "feed_forward.experts.gate_up_proj": Rule(("ffn_gate_exps.weight", "ffn_up_exps.weight"), GATE_UP_COLUMNS),
    }
)
GPT2: Names = {
    "wte": "token_embd",
    "wpe": "position_embd",
    "ln_f": "output_norm",
    "lm_head": "output",
    **block(
        {
            "attn.bias": None,
            "attn.masked_bias": None,
            "attn.c_attn.weight": Rule(("attn_qkv.weight",), TRANSPOSE),
            "attn.c_attn.bias": "attn_qkv.bias",
            "attn.c_proj.weight": Rule(("attn_output.weight",), TRANSPOSE),
            "attn.c_proj.bias": "attn_output.bias",
            "mlp.c_fc.weight": Rule(("ffn_up.weight",), TRANSPOSE),
            "mlp.c_fc.bias": "ffn_up.bias",
            "mlp.c_proj.weight": Rule(("ffn_down.weight",), TRANSPOSE),
            "mlp.c_proj.bias": "ffn_down.bias",
            "ln_1": "attn_norm",
            "ln_2": "ffn_norm",
        },
        "h.{n}.",
    ),
}
BLOOM: Names = {
    "word_embeddings": "token_embd",
    "word_embeddings_layernorm": "token_embd_norm",
    "ln_f": "output_norm",
    "lm_head": "output",
    **block(
        {
            "input_layernorm": "attn_norm",
            "post_attention_layernorm": "ffn_norm",
            "self_attention.query_key_value": Rule(("attn_qkv",), QKV_BY_HEADS),
            "self_attention.dense": "attn_output",
            "mlp.dense_h_to_4h": "ffn_up",
            "mlp.dense_4h_to_h": "ffn_down",
        },
        "h.{n}.",
    ),
}
FALCON: Names = {
    **BLOOM,
    **block(
        {
            "ln_attn": "attn_norm_2",
            "ln_mlp": "attn_norm",
            "self_attention.query_key_value": Rule(("attn_qkv",), QKV_BY_GROUPS),
        },
        "h.{n}.",
    ),
}
PHI2: Names = {
    "model.embed_tokens": "token_embd",
    "model.final_layernorm": "output_norm",
    "lm_head": "output",
    **block({**ATTENTION, "self_attn.dense": "attn_output", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down"}),
}
XIELU = block(
    {
        "attention_layernorm": "attn_norm",
        "feedforward_layernorm": "ffn_norm",
        **{f"mlp.act_fn.{part}": None for part in ("alpha_n", "alpha_p", "beta", "eps")},
    }
)
GEMMA3N: Names = {
    "model.embed_tokens": Rule(("token_embd",), PADDED_ROWS),
    "model.embed_tokens_per_layer": Rule(("per_layer_token_embd",), PADDED_ROWS),
    "model.per_layer_model_projection": "per_layer_model_proj",
    "model.per_layer_projection_norm": "per_layer_proj_norm",
    "model.altup_projections.{n}": Rule(("altup_proj",), GATHER_ALTUP),
    "model.altup_unembed_projections.{n}": Rule(("altup_unembd_proj",), GATHER_ALTUP),
    **block(
        {
            "altup.correct_output_scale": "altup_correct_scale",
            "altup.correction_coefs": "altup_correct_coef",
            "altup.modality_router": "altup_router",
            "altup.prediction_coefs": "altup_predict_coef",
            "altup.router_norm": "altup_router_norm",
            "laurel.linear_left": "laurel_l",
            "laurel.linear_right": "laurel_r",
            "laurel.post_laurel_norm": "laurel_post_norm",
            "per_layer_input_gate": "inp_gate",
            "per_layer_projection": "proj",
            "post_per_layer_input_norm": "post_norm",
        }
    ),
}
_ONE_BIT = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v"}
_ONE_BIT |= {"self_attn.o_proj": "attn_output", **{n: t for n, t in MLP.items() if isinstance(t, str)}}
BITNET: Names = {
    **DENSE,
    **block({f"{name}.weight": Rule((f"{target}.weight",), TERNARY) for name, target in _ONE_BIT.items()}),
    **block({"mlp.ffn_layernorm": "ffn_sub_norm", "self_attn.inner_attn_ln": "attn_sub_norm"}),
}
# Layers that predict further tokens, behind the others.
NEXT = block(
    {
        "eh_proj": "nextn.eh_proj",
        "embed_tokens": "nextn.embed_tokens",
        "enorm": "nextn.enorm",
        "hnorm": "nextn.hnorm",
        "shared_head.head": "nextn.shared_head_head",
        "shared_head.norm": "nextn.shared_head_norm",
    }
)
