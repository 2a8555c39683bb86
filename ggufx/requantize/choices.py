"""The type of every tensor of a model, by the rules of :mod:`ggufx.requantize.mixes`.

The counting of layers follows llama-quantize's own: dense models count the tensors of a role in the order it visits
them, mixtures of experts read the block number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from ..errors import GGUFError
from ..formats.file_types import FileType
from ..formats.tensor_types import QType
from ..model.hyperparameters import ModelFacts
from .mixes import (
    LOW_MIXES,
    Place,
    Role,
    asked_type,
    fitting_type,
    kept_reason,
    kept_where_unknown,
    mixed_type,
    needs_imatrix,
    role_of,
)

__all__ = ["Choice", "Request", "TensorLike", "TensorSpec", "block_number", "choose", "visiting_order"]


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
        by_number = role in (Role.FFN_DOWN, Role.FFN_GATE, Role.FFN_UP) and self.request.ftype.name not in LOW_MIXES
        if by_number and self.facts.n_expert > 1:
            # Expert tensors of old files aren't in layer order, so the name has to say the layer.
            layer = block_number(name)
            if not 0 <= layer < layers:
                raise GGUFError(f"tensor {name!r}: block number {layer} is outside the model's {layers} blocks")
        return Place(layer, layers, self.facts, self.request.imatrix)

    def mixed(self, t: TensorLike) -> QType:
        """The type the mix's rules give."""
        role = role_of(t.name)
        if role is Role.EMBEDDING and self.tied:
            role = Role.OUTPUT
        if role is Role.OUTPUT and self.request.output_type is not None:
            return self.request.output_type
        return mixed_type(t.name, t.shape, role, self.request.ftype, self.facts, lambda: self.place(t.name, role))

    def choose(self, t: TensorLike) -> Choice:
        request, default = self.request, self.request.ftype.default_type
        shape = tuple(t.shape)
        reason = kept_reason(t.name, shape, self.facts.arch, request.leave_output)
        if reason is None and not self.facts.n_layer:
            reason = kept_where_unknown(t.name, t.qtype)
        if reason:
            return Choice(t.name, shape, t.qtype, t.qtype, kept=reason)
        role = role_of(t.name)
        override = self.overridden(t.name)
        named_apart = t.name == "per_layer_token_embd.weight" and override is not None
        wanted: QType
        if role is Role.EMBEDDING and request.embedding_type is not None and not named_apart:
            wanted = fitting = asked_type(t.name, shape, request.embedding_type)
        elif role is Role.OUTPUT and request.output_type is not None:
            wanted = fitting = asked_type(t.name, shape, request.output_type)
        elif override is None and not default.is_quantized:
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
        Where llama-quantize gives up: a type without a fallback, an expert tensor without a block number, rows of the
        embeddings or the output that aren't whole blocks of the type asked for them.
    """
    order = list(tensors) if keep_order else visiting_order(tensors)
    recipe = _Recipe(order, facts, request)
    return [recipe.choose(t) for t in order]
