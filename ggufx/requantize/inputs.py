"""The model that is requantized: its files, and its tensors under the names they have in the output."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..formats.tensor_types import QType
from ..model.hyperparameters import ModelFacts
from ..read.reader import GGUFFile
from ..read.shards import SplitFile
from ..read.tensor import Tensor
from .options import Options

__all__ = ["Input", "Source", "input_of"]

_BLOCK = re.compile(r"blk\.(\d{1,9})\.")


class Source(NamedTuple):
    """A tensor of the input under its name in the output."""

    name: str
    tensor: Tensor
    shard: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Logical shape, in numpy's order."""
        return self.tensor.shape

    @property
    def qtype(self) -> QType | int:
        """The type it has."""
        return self.tensor.qtype


class Input(NamedTuple):
    """An opened model, ready to be requantized.

    Attributes
    ----------
    files : sequence of GGUFFile
        Its shards, or the one file.
    sources : mapping of str to Source
        The tensors that are kept, by their names in the output.
    facts : ModelFacts
        With the overrides.
    n_layer : int or None
        How many blocks remain where some are pruned.
    """

    files: Sequence[GGUFFile]
    sources: Mapping[str, Source]
    facts: ModelFacts
    n_layer: int | None


def input_of(model: GGUFFile, options: Options) -> Input:
    """Take stock of an opened model: what is pruned is left out, and with `keep_split` the order is the files'.

    Raises
    ------
    ValueError
        If a block to prune isn't there.
    """
    files = model.shards if isinstance(model, SplitFile) else (model,)
    overrides: dict[str, Any] = {o.key: o.value for o in options.override_kv}
    facts = ModelFacts.known({**files[0].metadata, **overrides})
    if options.prune_layers and not facts.n_layer:
        raise ValueError("blocks can't be pruned: the file doesn't count a model's blocks")
    sources = [Source(name, t, n) for n, f in enumerate(files) for name, t in f.tensors.items()]
    sources, n_layer = _pruned(sources, options.prune_layers)
    if options.keep_split:
        sources.sort(key=lambda s: (s.shard, s.tensor.offset))
    return Input(files, {s.name: s for s in sources}, facts, n_layer)


def _pruned(sources: list[Source], prune: Sequence[int]) -> tuple[list[Source], int | None]:
    """The tensors without those of pruned blocks, the blocks behind renumbered; and how many blocks remain."""
    if not prune:
        return sources, None
    blocks = sorted({int(m[1]) for s in sources if (m := _BLOCK.search(s.name))})
    missing = sorted(set(prune) - set(blocks))
    if missing:
        raise ValueError(f"blocks {missing} to prune aren't there; the model has {len(blocks)} blocks")
    numbers = {old: new for new, old in enumerate(b for b in blocks if b not in set(prune))}
    kept = []
    for s in sources:
        match = _BLOCK.search(s.name)
        if match is None:
            kept.append(s)
        elif int(match[1]) in numbers:
            name = f"{s.name[: match.start(1)]}{numbers[int(match[1])]}{s.name[match.end(1) :]}"
            kept.append(s._replace(name=name))
    return kept, len(numbers)
