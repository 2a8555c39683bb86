"""From a checkpoint's names to a file's: what a row of the table of architectures says.

Names are given without their ``.weight`` or ``.bias``, with ``{n}`` for the block's and ``{e}`` for the expert's
number. What a name becomes is a GGUF name, a :class:`Rule`, or None where the tensor is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .checkpoint import StoredTensor
from .hparams import COMMON, Config, Key, Keys
from .transforms import KEEP, PLUS_ONE, Transform
from .vocabulary import Vocabulary, gpt2

__all__ = ["Architecture", "Match", "Names", "Rule", "block"]


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
_NEVER = r"$^"


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
    without_experts : mapping
        Names that are others where the configuration has no experts.
    named : callable
        ``general.architecture`` where the configuration decides it.
    keys : tuple of Key
        The metadata, in the reference's order.
    expert_order : tuple of str
        The order in which a layer's stacked experts are written.
    plus_one : str
        Norms whose names match this regular expression are stored as their distance from one.
    drops : str
        Tensors whose names match this regular expression are left out.
    renames : tuple of (str, str)
        Regular expressions and replacements that bring a checkpoint's names into the form of the table.
    restores : tuple of (str, str)
        The same the other way: from the table's form to a checkpoint's.
    skips : callable or None
        Names that a checkpoint of a configuration doesn't have, as a regular expression, where several become the same.
    bare : tuple of str
        Classes without a head, whose names lack the ``model.`` they begin with elsewhere.
    usual : bool
        Attention's shapes follow from the configuration in the usual way.
    vocabulary : callable
        Makes the tokenizer's keys.
    first_keys : callable or None
        Keys that come before all others but the architecture, made of the configuration and the tensors.
    rope_factors : callable or None
        Factors of rotations, which no checkpoint holds as tensors, by their names.
    blocks : callable
        How many blocks the file says there are.
    beyond : bool
        Tensors of blocks that the configuration doesn't count are left out: layers that predict further tokens.
    drops_tied : bool
        The output is left out where the configuration says that the embeddings are it.
    predictors : bool
        Layers that predict further tokens, ``mtp.*``, become blocks behind the others.
    first_counts : tuple of str
        Names for the same tensor, of which the first counts.
    fuses_qkv, fuses_gate_up : bool
        llama.cpp knows these tensors as one, too.
    refuse : callable
        Why a configuration can't be converted; None where it can.
    """

    name: str
    classes: tuple[str, ...]
    names: Names
    keys: tuple[Key, ...] = COMMON
    expert_order: tuple[str, ...] = ("ffn_down_exps", "ffn_gate_exps", "ffn_up_exps")
    without_experts: Names = field(default_factory=dict)
    named: Callable[[Config], str] | None = None
    plus_one: str = _NEVER
    drops: str = _NEVER
    renames: tuple[tuple[str, str], ...] = ()
    restores: tuple[tuple[str, str], ...] = ()
    skips: Callable[[Config], str] | None = None
    bare: tuple[str, ...] = ()
    usual: bool = True
    vocabulary: Vocabulary = gpt2
    first_keys: Callable[[Config, Mapping[str, StoredTensor]], Keys] | None = None
    rope_factors: Callable[[Config], dict[str, npt.NDArray[np.float32]]] | None = None
    blocks: Callable[[Config], int] = lambda config: config.blocks
    beyond: bool = False
    drops_tied: bool = False
    predictors: bool = False
    first_counts: tuple[str, ...] = ()
    fuses_qkv: bool = True
    fuses_gate_up: bool = False
    refuse: Callable[[Config], str | None] = lambda config: None

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
        transform = PLUS_ONE if re.search(self.plus_one, stem + suffix) else rule.transform
        return Match(targets, transform, block, expert)


def block(names: Names, inside: str = "model.layers.{n}.", outside: str = "blk.{n}.") -> dict[str, str | Rule | None]:
    """Names inside a block, written without what they begin with."""

    def target(value: str | Rule | None) -> str | Rule | None:
        if isinstance(value, Rule):
            return Rule(tuple(outside + t for t in value.targets), value.transform)
        return None if value is None else outside + value

    return {inside + name: target(value) for name, value in names.items()}
