"""Which type each tensor gets under a mix: the rules of llama-quantize, as tables.

Read :data:`RULES` from top to bottom: the first row whose mix, role and condition fit gives the type; a tensor
without a row keeps the mix's default type. Before it stands :func:`kept_reason` (tensors that are never quantized),
after it :data:`FALLBACKS` (rows that aren't whole blocks). :mod:`ggufx.requantize.choices` walks over a model with
them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

from ..errors import GGUFError
from ..formats.file_types import FileType
from ..formats.tensor_types import QType
from ..model.hyperparameters import ModelFacts

__all__ = [
    "EMBEDDINGS",
    "FALLBACKS",
    "FLOATS",
    "LOW_MIXES",
    "NEED_IMATRIX",
    "RULES",
    "Place",
    "Role",
    "asked_type",
    "fitting_type",
    "kept_reason",
    "kept_where_unknown",
    "mixed_type",
    "needs_imatrix",
    "role_of",
]


# Besides the packed types, what other types can be made of.
FLOATS = frozenset({QType.F32, QType.F16, QType.BF16, QType.F64})


class Role(Enum):
    """What a tensor is for; broad classes, by name."""

    EMBEDDING = "token embedding"
    OUTPUT = "output"
    ATTN_V = "attention value"  # also fused qkv and MLA's kv_b, equally sensitive
    ATTN_K = "attention key"
    ATTN_Q = "attention query"
    ATTN_OUT = "attention output"
    FFN_UP = "ffn up"
    FFN_GATE = "ffn gate"
    FFN_DOWN = "ffn down"
    OTHER = "other"


EMBEDDINGS = ("token_embd.weight", "per_layer_token_embd.weight")
# The first part found in the name decides.
_ROLE_PARTS = (
    ("attn_qkv.weight", Role.ATTN_V),
    ("attn_kv_b.weight", Role.ATTN_V),
    ("attn_v.weight", Role.ATTN_V),
    ("attn_k.weight", Role.ATTN_K),
    ("attn_q.weight", Role.ATTN_Q),
    ("attn_output.weight", Role.ATTN_OUT),
    ("ffn_up", Role.FFN_UP),
    ("ffn_gate", Role.FFN_GATE),
    ("ffn_down", Role.FFN_DOWN),
)


def role_of(name: str) -> Role:
    """The role of a tensor, from its name."""
    if name == "output.weight":
        return Role.OUTPUT
    if name in EMBEDDINGS:
        return Role.EMBEDDING
    return next((role for part, role in _ROLE_PARTS if part in name), Role.OTHER)


# --- never quantized -------------------------------------------------------------------------------------------------

# Parts of names, with what they are. "time_mix" rows are RWKV's small matrices.
_KEPT_PARTS = {
    "norm": ("_norm.weight",),
    "router": ("ffn_gate_inp.weight", "ffn_gate_tid2eid.weight"),
    "small projection": ("altup", "laurel", "per_layer_model_proj"),
    "convolution": ("ssm_conv1d", "shortconv.conv.weight"),
    "indexer": ("indexer.k_proj.weight", "indexer.q_proj.weight"),
    "time mix": (
        "time_mix_first.weight",
        *(f"time_mix_{gate}{n}.weight" for gate in "wva" for n in "012"),
        "time_mix_g1.weight",
        "time_mix_g2.weight",
        "time_mix_decay_w1.weight",
        "time_mix_decay_w2.weight",
        "time_mix_lerp_fused.weight",
    ),
    "position": ("attn_rel_b.weight", ".position_embd", "sam.pos_embd", ".rel_pos"),
    "vision": ("sam.neck.", "sam.net_", ".patch_embd", ".patch_merger"),
    "audio codebook": ("a.rvq.codebook", "mm.a.code_embd"),
}
_KEPT_NAMES = {"position_embd.weight": "position", "token_types.weight": "token types"}
_KEPT_IN_ARCH = {
    "glm5-next": (
        "hc_",
        "indexer.attn_q_b",
        "indexer.attn_k",
        "indexer.proj",
        "indexer_compressor_gate",
        "indexer_compressor_ape",
        "ssm_f_a.weight",
        "ssm_f_b.weight",
        "ssm_g_a.weight",
        "ssm_g_b.weight",
        "ssm_beta.weight",
        "attn_kv_a_mqa.weight",
        "attn_k_b.weight",
        "attn_v_b.weight",
    )
}


def stored_dims(shape: Sequence[int]) -> int:
    """How many dimensions ggml counts: leading ones of the numpy shape don't."""
    dims = len(shape)
    while dims > 1 and shape[len(shape) - dims] == 1:
        dims -= 1
    return max(dims, 1)


def kept_reason(name: str, shape: Sequence[int], arch: str, leave_output: bool = False) -> str | None:
    """Why llama-quantize never quantizes this tensor, or None."""
    if stored_dims(shape) < 2:
        return "one dimension"
    if not name.endswith("weight"):
        return "no weight"
    if name in _KEPT_NAMES:
        return _KEPT_NAMES[name]
    if leave_output and name == "output.weight":
        return "left by request"
    for reason, parts in _KEPT_PARTS.items():
        if any(part in name for part in parts):
            return reason
    if any(part in name for part in _KEPT_IN_ARCH.get(arch, ())):
        return f"kept in {arch}"
    return None


# Names of position tensors in projectors and diffusion models, which llama-quantize doesn't know.
_POSITION = re.compile(r"pos(ition)?(al)?_emb")


def kept_where_unknown(name: str, qtype: QType | int) -> str | None:
    """Why a tensor of a file that doesn't describe its blocks is kept, beside :func:`kept_reason`; or None."""
    if not isinstance(qtype, QType) or not (qtype.is_quantized or qtype in FLOATS):
        return "no floats"
    return "position" if _POSITION.search(name) else None


# --- the mixes -------------------------------------------------------------------------------------------------------


class Place(NamedTuple):
    """Where a tensor stands: `layer` of `layers`, and what the conditions ask about."""

    layer: int
    layers: int
    facts: ModelFacts
    imatrix: bool


Condition = Callable[[Place], bool]


def always(p: Place) -> bool:
    """Every tensor."""
    return True


def first(count: int) -> Condition:
    """The first `count` tensors."""
    return lambda p: p.layer < count


def first_part(parts: int) -> Condition:
    """The first layers, one part of so many."""
    return lambda p: p.layer < p.layers // parts


def more_bits(p: Place) -> bool:
    """The first and last eighth of the layers and every third between: where errors hurt most."""
    eighth = p.layers // 8
    # Rows before the first eighth are already in, so the difference below is never negative.
    return p.layer < eighth or p.layer >= 7 * p.layers // 8 or (p.layer - eighth) % 3 == 2


def middle(p: Place) -> bool:
    """All but the first and last eighth."""
    return p.layers // 8 <= p.layer < 7 * p.layers // 8


def gqa4(p: Place) -> bool:
    """Four or more query heads share a value head, so that it weighs little."""
    return p.facts.gqa >= 4


def shared4(p: Place) -> bool:
    """Value heads are shared fourfold, or there are four experts beside them."""
    return p.facts.gqa >= 4 or p.facts.n_expert >= 4


def experts8(p: Place) -> bool:
    """Exactly eight experts (Mixtral): attention is a small share."""
    return p.facts.n_expert == 8


def falcon(p: Place) -> bool:
    """The Falcon architecture."""
    return p.facts.arch == "falcon"


def no_imatrix(p: Place) -> bool:
    """Without an importance matrix."""
    return not p.imatrix


def both(*conditions: Condition) -> Condition:
    """All of the conditions."""
    return lambda p: all(c(p) for c in conditions)


def either(*conditions: Condition) -> Condition:
    """Any of the conditions."""
    return lambda p: any(c(p) for c in conditions)


def negated(condition: Condition) -> Condition:
    """The opposite of a condition."""
    return lambda p: not condition(p)


class Rule(NamedTuple):
    """One row: under these mixes, in this role, where the condition holds, this type."""

    mixes: frozenset[str]
    role: Role
    when: Condition
    qtype: QType


def _rule(mixes: str, role: Role, when: Condition, qtype: QType) -> Rule:
    names = set(FileType.__members__) if mixes == "*" else set(mixes.split())
    return Rule(frozenset(names), role, when, qtype)


_LOW = "IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ2_M"
LOW_MIXES = frozenset(_LOW.split())

RULES: tuple[Rule, ...] = (
    # Output (and tied embeddings): a fixed high type, only the lowest mixes go under six bits.
    _rule("MXFP4_MOE", Role.OUTPUT, always, QType.Q8_0),
    _rule("*", Role.OUTPUT, falcon, QType.Q8_0),
    _rule(_LOW + " IQ3_XXS", Role.OUTPUT, always, QType.Q5_K),
    _rule("Q8_0", Role.OUTPUT, always, QType.Q8_0),
    _rule("*", Role.OUTPUT, always, QType.Q6_K),
    # Embeddings with an output tensor of their own.
    _rule("IQ1_S IQ1_M IQ2_XXS IQ2_XS", Role.EMBEDDING, always, QType.Q2_K),
    _rule("IQ2_S IQ2_M IQ3_XXS", Role.EMBEDDING, always, QType.IQ3_S),
    _rule("TQ1_0 TQ2_0 Q2_0", Role.EMBEDDING, always, QType.Q4_K),
    # Attention values.
    _rule(_LOW, Role.ATTN_V, shared4, QType.Q4_K),
    _rule("IQ2_S IQ2_M", Role.ATTN_V, always, QType.IQ3_S),
    _rule(_LOW, Role.ATTN_V, always, QType.Q2_K),
    _rule("*", Role.ATTN_V, experts8, QType.Q8_0),
    _rule("Q2_K Q2_K_S IQ3_XXS IQ3_XS IQ3_S", Role.ATTN_V, gqa4, QType.Q4_K),
    _rule("Q2_K", Role.ATTN_V, always, QType.Q3_K),
    _rule("IQ3_XXS", Role.ATTN_V, no_imatrix, QType.IQ3_S),
    _rule("IQ3_M", Role.ATTN_V, always, QType.Q4_K),
    _rule("Q3_K_M", Role.ATTN_V, first(2), QType.Q5_K),
    _rule("Q3_K_M", Role.ATTN_V, always, QType.Q4_K),
    _rule("Q3_K_L", Role.ATTN_V, always, QType.Q5_K),
    _rule("IQ4_NL IQ4_XS", Role.ATTN_V, gqa4, QType.Q5_K),
    _rule("Q4_K_M Q5_K_M", Role.ATTN_V, more_bits, QType.Q6_K),
    _rule("Q4_K_S", Role.ATTN_V, first(4), QType.Q5_K),
    # Attention keys and queries.
    _rule(_LOW, Role.ATTN_K, experts8, QType.Q4_K),
    _rule("*", Role.ATTN_K, experts8, QType.Q8_0),
    _rule("IQ3_XS", Role.ATTN_K, always, QType.IQ3_XXS),
    _rule("IQ3_XXS", Role.ATTN_K, always, QType.IQ2_S),
    _rule("IQ3_XS", Role.ATTN_Q, always, QType.IQ3_XXS),
    _rule("IQ3_XXS", Role.ATTN_Q, always, QType.IQ2_S),
    # Attention output.
    _rule(_LOW, Role.ATTN_OUT, experts8, QType.Q5_K),
    _rule("IQ1_S IQ1_M", Role.ATTN_OUT, always, QType.IQ2_XXS),
    _rule("IQ2_S IQ2_M", Role.ATTN_OUT, always, QType.IQ3_S),
    _rule("Q3_K_L", Role.ATTN_OUT, falcon, QType.Q4_K),
    _rule(
        "Q2_K Q3_K_S Q3_K_M Q4_K_S Q4_K_M IQ3_XXS IQ3_XS IQ3_S IQ3_M IQ4_NL IQ4_XS",
        Role.ATTN_OUT,
        both(experts8, negated(falcon)),
        QType.Q5_K,
    ),
    _rule("Q2_K", Role.ATTN_OUT, negated(either(falcon, experts8)), QType.Q3_K),
    _rule("IQ3_XXS", Role.ATTN_OUT, negated(either(falcon, experts8)), QType.IQ3_S),
    _rule("Q3_K_M IQ3_M", Role.ATTN_OUT, negated(either(falcon, experts8)), QType.Q4_K),
    _rule("Q3_K_L", Role.ATTN_OUT, negated(either(falcon, experts8)), QType.Q5_K),
    # Feed forward, down.
    _rule("IQ2_S IQ2_M", Role.FFN_DOWN, first_part(8), QType.IQ3_S),
    _rule(_LOW, Role.FFN_DOWN, first_part(8), QType.Q2_K),
    _rule("Q2_K", Role.FFN_DOWN, always, QType.Q3_K),
    _rule("Q2_K_S", Role.FFN_DOWN, first_part(8), QType.Q4_K),
    _rule("IQ3_XXS", Role.FFN_DOWN, both(no_imatrix, first_part(8)), QType.Q4_K),
    _rule("IQ3_XXS", Role.FFN_DOWN, no_imatrix, QType.Q3_K),
    _rule("IQ3_M", Role.FFN_DOWN, either(first_part(8), both(experts8, more_bits)), QType.Q4_K),
    _rule("Q3_K_M", Role.FFN_DOWN, first_part(16), QType.Q5_K),
    _rule("Q3_K_M", Role.FFN_DOWN, either(negated(falcon), more_bits), QType.Q4_K),
    _rule("Q3_K_L", Role.FFN_DOWN, falcon, QType.Q4_K),
    _rule("Q3_K_L", Role.FFN_DOWN, always, QType.Q5_K),
    _rule("Q4_K_S", Role.FFN_DOWN, both(negated(falcon), first_part(8)), QType.Q5_K),
    _rule("Q4_K_M", Role.FFN_DOWN, both(falcon, first_part(16)), QType.Q6_K),
    _rule("Q4_K_M", Role.FFN_DOWN, both(falcon, more_bits), QType.Q5_K),
    _rule("Q4_K_M", Role.FFN_DOWN, both(negated(falcon), more_bits), QType.Q6_K),
    _rule("Q5_K_M", Role.FFN_DOWN, more_bits, QType.Q6_K),
    _rule("IQ4_NL IQ4_XS", Role.FFN_DOWN, both(no_imatrix, first_part(8)), QType.Q5_K),
    _rule("Q4_0", Role.FFN_DOWN, both(negated(no_imatrix), first_part(8)), QType.Q4_1),
    _rule("Q5_0", Role.FFN_DOWN, both(negated(no_imatrix), first_part(8)), QType.Q5_1),
    # Feed forward, up and gate.
    _rule("IQ3_XS", Role.FFN_GATE, middle, QType.IQ3_XXS),
    _rule("IQ3_XS", Role.FFN_UP, middle, QType.IQ3_XXS),
)


def mixed_type(
    name: str, shape: Sequence[int], role: Role, ftype: FileType, facts: ModelFacts, place: Callable[[], Place]
) -> QType:
    """The type a mix gives a tensor, before any fallback; `place` is asked where the table is, for asking counts."""
    if facts.arch == "glm5-next" and any(p in name for p in ("attn_q_a", "attn_q_b", "nextn.eh_proj")):
        return QType.Q8_0
    if role is Role.OUTPUT:
        if shape[-1] % ftype.default_type.block_size:
            return QType.Q8_0
    elif ftype is FileType.MXFP4_MOE:
        expert = len(shape) > 2 and shape[-3] > 1
        if facts.arch == "bailingmoe3":
            expert = expert and role in (Role.FFN_UP, Role.FFN_GATE, Role.FFN_DOWN)
        return QType.MXFP4 if expert else QType.Q8_0
    here = place()
    rows = (r.qtype for r in RULES if r.role is role and ftype.name in r.mixes and r.when(here))
    qtype = next(rows, ftype.default_type)
    raised = role is Role.ATTN_V and ftype.name not in LOW_MIXES and facts.is_70b
    return QType.Q5_K if raised and qtype in (QType.Q3_K, QType.Q4_K) else qtype


# A row that isn't whole blocks of the type on the left gets the type on the right, and F16 where that fails too.
FALLBACKS: dict[QType, QType] = {
    QType.IQ1_S: QType.IQ4_NL,
    QType.IQ1_M: QType.IQ4_NL,
    QType.IQ2_XXS: QType.IQ4_NL,
    QType.IQ2_XS: QType.IQ4_NL,
    QType.IQ2_S: QType.IQ4_NL,
    QType.IQ3_XXS: QType.IQ4_NL,
    QType.IQ3_S: QType.IQ4_NL,
    QType.IQ4_XS: QType.IQ4_NL,
    QType.Q2_0: QType.Q4_0,
    QType.Q2_K: QType.Q4_0,
    QType.Q3_K: QType.Q4_0,
    QType.TQ1_0: QType.Q4_0,
    QType.TQ2_0: QType.Q4_0,
    QType.Q4_K: QType.Q5_0,
    QType.Q5_K: QType.Q5_1,
    QType.Q6_K: QType.Q8_0,
}


def asked_type(name: str, shape: Sequence[int], qtype: QType) -> QType:
    """A type that was asked for by the tensor's role; there is no fallback for it.

    Raises
    ------
    GGUFError
        If the tensor's rows aren't whole blocks of it.
    """
    if shape[-1] % qtype.block_size:
        raise GGUFError(
            f"tensor {name!r}: {qtype.name} was asked for, but rows of {shape[-1]} values aren't whole blocks of "
            f"{qtype.block_size}"
        )
    return qtype


def fitting_type(name: str, shape: Sequence[int], qtype: QType) -> QType:
    """`qtype`, or its fallback where the tensor's rows aren't whole blocks of it.

    Raises
    ------
    GGUFError
        If there is no fallback for this type.
    """
    width = shape[-1]
    if width % qtype.block_size == 0:
        return qtype
    if qtype.block_size > 32 and qtype not in FALLBACKS:
        raise GGUFError(
            f"tensor {name!r}: rows of {width} values aren't whole blocks of {qtype.block_size}, and "
            f"{qtype.name} has no fallback type"
        )
    fallback = FALLBACKS.get(qtype, qtype)
    return fallback if width % fallback.block_size == 0 else QType.F16


# Types that llama-quantize refuses without an importance matrix; Q2_K only inside Q2_K_S.
NEED_IMATRIX = frozenset({QType.IQ1_S, QType.IQ1_M, QType.IQ2_XXS, QType.IQ2_XS, QType.IQ2_S, QType.IQ3_XXS})


def needs_imatrix(name: str, qtype: QType | int, ftype: FileType) -> bool:
    """Whether llama-quantize refuses to give this tensor this type without an importance matrix."""
    if name in EMBEDDINGS or name == "output.weight":
        return False
    return qtype in NEED_IMATRIX or (qtype == QType.Q2_K and ftype == FileType.Q2_K_S)
