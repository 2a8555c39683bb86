"""Which type each tensor gets under a mix: the choices of llama-quantize, as tables.

Read :data:`RULES` from top to bottom: the first row whose mix, role and condition fit gives the type; a tensor
without a row keeps the mix's default type. Before it stands :func:`kept_reason` (tensors that are never quantized),
after it :data:`FALLBACKS` (rows that aren't whole blocks). The counting of layers follows llama-quantize's own:
dense models count the tensors of a role in the order it visits them, mixtures of experts read the block number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol

from .errors import GGUFError
from .filetypes import FileType
from .formats import QType
from .hyperparameters import Hyperparameters

__all__ = ["Choice", "ModelFacts", "Request", "TensorSpec", "choose", "visiting_order"]


class TensorLike(Protocol):
    """What a recipe needs to know of a tensor; the reader's tensors have it."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def qtype(self) -> QType | int: ...


class TensorSpec(NamedTuple):
    """A tensor without its data: name, logical shape in numpy's order, type."""

    name: str
    shape: tuple[int, ...]
    qtype: QType | int = QType.F32


@dataclass(frozen=True)
class ModelFacts:
    """What of a model's metadata the recipes depend on.

    Attributes
    ----------
    arch : str
        ``general.architecture``.
    n_layer : int
        ``block_count``, layers for multi-token prediction included.
    n_head, n_head_kv : int
        Heads of the first layer.
    n_expert : int
        0 for dense models.
    n_layer_nextn : int
        How many of the layers only serve multi-token prediction.
    """

    arch: str
    n_layer: int
    n_head: int = 0
    n_head_kv: int = 0
    n_expert: int = 0
    n_layer_nextn: int = 0

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> ModelFacts:
        """Read the facts from a file's metadata.

        Raises
        ------
        GGUFError
            If the architecture or its ``block_count`` is missing.
        """
        numbers = Hyperparameters(metadata)
        n_head = numbers.number("attention.head_count", 0)
        return cls(
            numbers.arch,
            numbers.n_layer,
            n_head,
            numbers.number("attention.head_count_kv", n_head),
            numbers.number("expert_count", 0),
            numbers.number("nextn_predict_layers", 0),
        )

    @property
    def gqa(self) -> int:
        """How many query heads share a key head in the first layer; 0 when it has none."""
        return self.n_head // self.n_head_kv if self.n_head_kv else 0

    @property
    def is_70b(self) -> bool:
        """Whether llama.cpp classes the model as 70B, which raises attn_v: by layer count, in these architectures."""
        n_layer = self.n_layer - self.n_layer_nextn
        if self.arch in ("llama", "llama-embed"):
            return n_layer == 80 and self.n_head != self.n_head_kv and self.n_expert != 8
        return {"qwen2": 80, "deci": 80, "olmo": 80, "jais2": 68}.get(self.arch) == n_layer


@dataclass(frozen=True)
class Request:
    """What is asked of a recipe.

    Attributes
    ----------
    ftype : FileType
        The mix.
    imatrix : bool
        Whether an importance matrix will be used: some choices depend on it.
    pure : bool
        Give every tensor the default type.
    tensor_types : sequence of (pattern, QType)
        The first regular expression found in a tensor's name decides its type.
    output_type, embedding_type : QType, optional
        Types of the output tensor and of the token embeddings.
    leave_output : bool
        Don't quantize ``output.weight``.
    """

    ftype: FileType
    imatrix: bool = False
    pure: bool = False
    tensor_types: Sequence[tuple[str, QType]] = ()
    output_type: QType | None = None
    embedding_type: QType | None = None
    leave_output: bool = False

    def patterns(self) -> list[tuple[re.Pattern[str], QType]]:
        """`tensor_types`, compiled.

        Raises
        ------
        ValueError
            If one is no regular expression; the message names it.
        """
        compiled = []
        for pattern, qtype in self.tensor_types:
            try:
                compiled.append((re.compile(pattern), qtype))
            except re.error as error:
                raise ValueError(f"tensor type pattern {pattern!r} is no regular expression: {error}") from None
        return compiled


class Choice(NamedTuple):
    """The type a tensor gets.

    Attributes
    ----------
    name : str
    shape : tuple of int
    source, qtype : QType or int
        The type it has and the type it gets.
    wanted : QType or None
        The type the mix asked for, when the row isn't whole blocks of it and `qtype` is a fallback.
    kept : str or None
        Why the tensor isn't quantized at all.
    needs_imatrix : bool
        llama-quantize refuses this type here without an importance matrix.
    """

    name: str
    shape: tuple[int, ...]
    source: QType | int
    qtype: QType | int
    wanted: QType | None = None
    kept: str | None = None
    needs_imatrix: bool = False


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
_LOW_MIXES = frozenset(_LOW.split())

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


_BLOCK = re.compile(r"blk\.\s*([+-]?\d{1,9})")


def block_number(name: str) -> int:
    """The N of a name that starts with ``blk.N.``, or -1."""
    match = _BLOCK.match(name)
    return int(match[1]) if match else -1


def visiting_order(tensors: Iterable[Any]) -> list[Any]:
    """The tensors in llama-quantize's order, which is also the order it writes: by block number, then by name."""
    return sorted(tensors, key=lambda t: (block_number(t.name), t.name))


class _Recipe:
    """Walks over the tensors once, counting layers the way llama-quantize does."""

    def __init__(self, tensors: Sequence[TensorLike], facts: ModelFacts, request: Request) -> None:
        self.facts = facts
        self.request = request
        self.patterns = request.patterns()
        self.tied = all(t.name != "output.weight" for t in tensors)
        self.totals = dict.fromkeys((Role.FFN_DOWN, Role.FFN_GATE, Role.FFN_UP), facts.n_layer)
        self.totals[Role.ATTN_V] = sum(role_of(t.name) is Role.ATTN_V for t in tensors)
        self.seen = dict.fromkeys(self.totals, 0)

    def overridden(self, name: str) -> QType | None:
        return next((qtype for pattern, qtype in self.patterns if pattern.search(name)), None)

    def place(self, name: str, role: Role) -> Place:
        layer, layers = self.seen.get(role, 0), self.totals.get(role, 0)
        if role in self.seen:
            self.seen[role] += 1
        by_number = role in (Role.FFN_DOWN, Role.FFN_GATE, Role.FFN_UP) and self.request.ftype.name not in _LOW_MIXES
        if by_number and self.facts.n_expert > 1:
            # Expert tensors of old files aren't in layer order, so the name has to say the layer.
            layer = block_number(name)
            if not 0 <= layer < layers:
                raise GGUFError(f"tensor {name!r}: block number {layer} is outside the model's {layers} blocks")
        return Place(layer, layers, self.facts, self.request.imatrix)

    def mixed(self, t: TensorLike) -> QType:
        """The type the mix's table gives."""
        request, ftype, default = self.request, self.request.ftype, self.request.ftype.default_type
        if self.facts.arch == "glm5-next" and any(p in t.name for p in ("attn_q_a", "attn_q_b", "nextn.eh_proj")):
            return QType.Q8_0
        role = role_of(t.name)
        if role is Role.EMBEDDING and self.tied:
            role = Role.OUTPUT
        if role is Role.OUTPUT:
            if request.output_type is not None:
                return request.output_type
            if t.shape[-1] % default.block_size:
                return QType.Q8_0
        elif ftype is FileType.MXFP4_MOE:
            expert = len(t.shape) > 2 and t.shape[-3] > 1
            if self.facts.arch == "bailingmoe3":
                expert = expert and role in (Role.FFN_UP, Role.FFN_GATE, Role.FFN_DOWN)
            return QType.MXFP4 if expert else QType.Q8_0
        place = self.place(t.name, role)
        qtype = next(
            (r.qtype for r in RULES if r.role is role and ftype.name in r.mixes and r.when(place)),
            default,
        )
        raised = role is Role.ATTN_V and ftype.name not in _LOW_MIXES and self.facts.is_70b
        return QType.Q5_K if raised and qtype in (QType.Q3_K, QType.Q4_K) else qtype

    def choose(self, t: TensorLike) -> Choice:
        request, default = self.request, self.request.ftype.default_type
        shape = tuple(t.shape)
        if reason := kept_reason(t.name, shape, self.facts.arch, request.leave_output):
            return Choice(t.name, shape, t.qtype, t.qtype, kept=reason)
        role = role_of(t.name)
        override = self.overridden(t.name)
        named_apart = t.name == "per_layer_token_embd.weight" and override is not None
        wanted: QType
        if role is Role.EMBEDDING and request.embedding_type is not None and not named_apart:
            wanted = fitting = request.embedding_type
        elif role is Role.OUTPUT and request.output_type is not None:
            wanted = fitting = request.output_type
        elif not default.is_quantized:
            wanted = fitting = default
        else:
            wanted = override if override is not None else default if request.pure else self.mixed(t)
            fitting = fitting_type(t.name, shape, wanted)
        return Choice(
            t.name,
            shape,
            t.qtype,
            fitting,
            wanted=wanted if fitting != wanted else None,
            needs_imatrix=needs_imatrix(t.name, fitting, request.ftype),
        )


def choose(
    tensors: Iterable[TensorLike], facts: ModelFacts, request: Request, *, keep_order: bool = False
) -> list[Choice]:
    """The type each tensor gets, in the order llama-quantize visits and writes them.

    Parameters
    ----------
    tensors : iterable
        All tensors of the model: objects with ``name``, ``shape`` (numpy's order) and ``qtype``.
    facts : ModelFacts
        From the model's metadata.
    request : Request
        The mix and its options.
    keep_order : bool
        Visit the tensors as they come, as llama-quantize does when it keeps the shards of a set.

    Returns
    -------
    list of Choice

    Raises
    ------
    GGUFError
        Where llama-quantize gives up: a type without a fallback, an expert tensor without a block number.
    """
    order = list(tensors) if keep_order else visiting_order(tensors)
    recipe = _Recipe(order, facts, request)
    return [recipe.choose(t) for t in order]
