"""Sizes before files: what each mix would take, what fits beside the cache, what raising a tensor costs.

Everything comes from a model's header, so that a remote file is enough.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..errors import GGUFError
from ..formats.file_types import FileType
from ..formats.tensor_types import QType, nbytes, type_name
from ..model.hyperparameters import Hyperparameters, ModelFacts
from .choices import Choice, Request, TensorLike, block_number, choose
from .kvcache import CACHE_TYPES, CacheShape
from .mixes import EMBEDDINGS

__all__ = ["LADDER", "Group", "MixPlan", "Plan", "plan"]

LADDER = tuple(
    FileType[name]
    for name in ("Q3_K_S", "Q3_K_M", "Q3_K_L", "IQ4_XS", "Q4_K_S", "Q4_K_M", "Q5_K_S", "Q5_K_M", "Q6_K", "Q8_0", "BF16")
)
"""The mixes that a recommendation is taken from, smallest first: those that keep a model usable without an importance
matrix. Lower ones are listed with their sizes all the same."""
# Beside weights and cache: activations, the runtime and its buffers.
OVERHEAD = 1 << 30


@dataclass(frozen=True)
class Group:
    """All tensors of one name, over the layers (``attn_v``, ``ffn_down_exps``, ``output``), under one mix.

    Attributes
    ----------
    name : str
    shapes : tuple of shape
    qtypes : tuple of QType or int
        The type of each tensor, in layer order.
    """

    name: str
    shapes: tuple[tuple[int, ...], ...] = field(repr=False)
    qtypes: tuple[QType | int, ...] = field(repr=False)

    @property
    def size(self) -> int:
        """Values."""
        return sum(math.prod(shape) for shape in self.shapes)

    @property
    def nbytes(self) -> int:
        """Bytes under the mix."""
        return sum(_tensor_nbytes(shape, qtype) for shape, qtype in zip(self.shapes, self.qtypes, strict=True))

    @property
    def strip(self) -> str:
        """The types in layer order, by their number of bits: ``66664464...``."""
        names = [q.name if isinstance(q, QType) else "?" for q in self.qtypes]
        return "".join((re.search(r"\d", n) or ["?"])[0] for n in names)

    def price(self, qtype: QType) -> int:
        """Bytes more (or less) if every tensor of the group were of this type."""
        return sum(nbytes(shape, qtype) for shape in self.shapes) - self.nbytes


@dataclass(frozen=True)
class MixPlan:
    """A model under one mix.

    Attributes
    ----------
    ftype : FileType
    choices : tuple of Choice
        The type of each tensor.
    nbytes : int
        Bytes of all tensors.
    size : int
        Values (parameters).
    needs_imatrix : bool
        Whether llama-quantize refuses the mix without an importance matrix.
    """

    ftype: FileType
    choices: tuple[Choice, ...] = field(repr=False)
    nbytes: int
    size: int
    needs_imatrix: bool

    @property
    def bits_per_weight(self) -> float:
        """Average over all tensors."""
        return 8 * self.nbytes / self.size if self.size else 0.0

    @property
    def gib(self) -> float:
        """Size in GiB."""
        return self.nbytes / 2**30

    @property
    def fallbacks(self) -> tuple[Choice, ...]:
        """Tensors whose rows aren't whole blocks of the type the mix wanted."""
        return tuple(c for c in self.choices if c.wanted is not None)

    @property
    def fallback_nbytes(self) -> int:
        """Bytes that the fallbacks cost over the types that were wanted."""
        return sum(
            _tensor_nbytes(c.shape, c.qtype) - math.prod(c.shape) * c.wanted.block_bytes // c.wanted.block_size
            for c in self.fallbacks
            if c.wanted is not None
        )

    def groups(self) -> list[Group]:
        """The tensors by name, the largest group first."""
        parts: dict[str, list[Choice]] = {}
        for c in self.choices:
            name = re.sub(r"^blk\.\d+\.", "", c.name)
            parts.setdefault(name.removesuffix(".weight"), []).append(c)
        groups = [Group(n, tuple(c.shape for c in cs), tuple(c.qtype for c in cs)) for n, cs in parts.items()]
        return sorted(groups, key=lambda g: -g.nbytes)


class Offload(NamedTuple):
    """How a mix divides between a GPU and the rest.

    Attributes
    ----------
    layers : int
        Layers on the GPU, the output counted as the last.
    total : int
        Layers and output.
    gpu_nbytes, cpu_nbytes : int
        Weights and cache on each side.
    """

    layers: int
    total: int
    gpu_nbytes: int
    cpu_nbytes: int


@dataclass(frozen=True)
class Plan:
    """What a model needs under every mix, and what fits.

    Attributes
    ----------
    facts : ModelFacts
    size : int
        Parameters.
    mixes : tuple of MixPlan
        Every mix, the smallest first.
    cache : CacheShape
    context : int
        Tokens the cache is for.
    cache_nbytes : int
        Bytes of the cache at that context.
    overhead : int
        Bytes allowed for everything else.
    memory : int or None
        What there is.
    """

    facts: ModelFacts
    size: int
    mixes: tuple[MixPlan, ...] = field(repr=False)
    cache: CacheShape = field(repr=False)
    context: int
    k_type: QType
    v_type: QType
    overhead: int
    memory: int | None
    experts_used: int

    @property
    def cache_nbytes(self) -> int:
        """Bytes of the cache at this context."""
        return self.cache.nbytes(self.context, self.k_type, self.v_type)

    def __getitem__(self, mix: FileType | str) -> MixPlan:
        ftype = FileType.parse(mix)
        for m in self.mixes:
            if m.ftype is ftype:
                return m
        raise ValueError(f"{ftype.name} isn't planned: it wasn't asked for, or this model can't be made so")

    def total(self, mix: MixPlan) -> int:
        """Weights, cache and overhead; without the cache where its size isn't known."""
        return mix.nbytes + self.cache_nbytes + self.overhead

    def fits(self, mix: MixPlan) -> bool:
        """Whether the mix fits into the memory (True where no memory is given)."""
        if self.memory is None:
            return True
        self._need_cache()
        return self.total(mix) <= self.memory

    def _need_cache(self) -> None:
        if not self.cache.known:
            raise GGUFError(
                f"metadata has no {self.facts.arch}.attention.head_count: the cache's size can't be known, "
                "nor what fits into a memory"
            )

    @property
    def best(self) -> MixPlan | None:
        """The largest mix of :data:`LADDER` that fits, or None."""
        if self.memory is None:
            return None
        fitting = [m for m in self.mixes if m.ftype in LADDER and self.fits(m)]
        return max(fitting, key=lambda m: m.nbytes, default=None)

    def offload(self, mix: MixPlan, gpu_memory: int) -> Offload:
        """How many layers of the mix a GPU of this memory holds, with their part of the cache.

        The output goes onto the GPU after all layers; the overhead is the GPU's.
        """
        self._need_cache()
        n_layer = len(self.cache.layers)
        weights = [0] * (n_layer + 1)
        tied = all(c.name != "output.weight" for c in mix.choices)
        stays = 0
        for c in mix.choices:
            number, size = block_number(c.name), _tensor_nbytes(c.shape, c.qtype)
            if 0 <= number < n_layer:
                weights[number] += size
            elif c.name in EMBEDDINGS and not tied:
                stays += size  # looked up row by row, beside the GPU
            else:
                weights[n_layer] += size
        per_layer = [
            weights[n] + layer.nbytes(self.context, self.k_type, self.v_type)
            for n, layer in enumerate(self.cache.layers)
        ] + [weights[n_layer]]
        room, layers, used = gpu_memory - self.overhead, 0, 0
        # The last layers go first, the output after them all: llama.cpp's order.
        for size in [*reversed(per_layer[:-1]), per_layer[-1]]:
            if used + size > room:
                break
            used += size
            layers += 1
        return Offload(layers, n_layer + 1, used, sum(per_layer) - used + stays)

    def bytes_per_token(self, mix: MixPlan) -> int:
        """Bytes read to generate one token at the full context: weights that are used, and the cache."""
        tied = all(c.name != "output.weight" for c in mix.choices)
        total = self.cache_nbytes
        for c in mix.choices:
            size = _tensor_nbytes(c.shape, c.qtype)
            if c.name in EMBEDDINGS and not tied:
                size //= max(c.shape[0], 1)
            elif "_exps." in c.name and self.facts.n_expert:
                size = size * self.experts_used // self.facts.n_expert
            total += size
        return total

    def tokens_per_second(
        self,
        mix: MixPlan,
        bandwidth: float,
        *,
        gpu_memory: int | None = None,
        gpu_bandwidth: float | None = None,
    ) -> float:
        """An upper bound on the speed of generating, which waits for memory.

        Parameters
        ----------
        mix : MixPlan
        bandwidth : float
            Bytes per second of the memory that holds the model.
        gpu_memory, gpu_bandwidth : optional
            Of a GPU that takes as many layers as fit.
        """
        if bandwidth <= 0 or (gpu_bandwidth is not None and gpu_bandwidth <= 0):
            raise ValueError("a bandwidth is above 0")
        used = self.bytes_per_token(mix)
        if gpu_memory is None or gpu_bandwidth is None:
            return bandwidth / used
        split = self.offload(mix, gpu_memory)
        share = split.gpu_nbytes / max(split.gpu_nbytes + split.cpu_nbytes, 1)
        return 1 / (used * share / gpu_bandwidth + used * (1 - share) / bandwidth)


def plan(
    tensors: Iterable[TensorLike],
    metadata: Mapping[str, Any],
    *,
    memory: int | None = None,
    context: int = 8192,
    k_type: QType = QType.F16,
    v_type: QType = QType.F16,
    overhead: int = OVERHEAD,
    imatrix: bool = False,
    pure: bool = False,
    mixes: Sequence[FileType] | None = None,
) -> Plan:
    """Plan a model: the size of every mix, and what fits.

    Parameters
    ----------
    tensors : iterable
        ``f.tensors.values()`` of an opened file, or :class:`~ggufx.requantize.choices.TensorSpec`.
    metadata : mapping
        ``f.metadata``, or the keys of a model that isn't there yet.
    memory : int, optional
        Bytes there are for weights, cache and overhead.
    context : int
        Tokens.
    k_type, v_type : QType
        Types of the cached keys and values.
    overhead : int
        Bytes for activations, the runtime and its buffers.
    imatrix : bool
        Whether an importance matrix will be used.
    pure : bool
        Every tensor of the mix's default type.
    mixes : sequence of FileType, optional
        Those to plan; all by default.

    Returns
    -------
    Plan

    Raises
    ------
    GGUFError
        If the metadata lacks what the sizes depend on.
    ValueError
        If the context isn't positive, or no cache can have one of its types.
    """
    if context < 1:
        raise ValueError(f"context is {context} tokens, at least 1 was expected")
    for name, qtype in (("k_type", k_type), ("v_type", v_type)):
        if qtype not in CACHE_TYPES:
            known = ", ".join(t.name for t in CACHE_TYPES)
            raise ValueError(f"{name} is {type_name(qtype)}; llama.cpp keeps caches as {known}")
    specs = list(tensors)
    facts = ModelFacts.from_metadata(metadata)
    planned = []
    for ftype in mixes if mixes is not None else [f for f in FileType if f is not FileType.NVFP4]:
        try:
            choices = tuple(choose(specs, facts, Request(ftype, imatrix=imatrix, pure=pure)))
        except GGUFError:
            continue  # a type without a fallback: this mix can't be made of this model
        size = sum(math.prod(c.shape) for c in choices)
        total = sum(_tensor_nbytes(c.shape, c.qtype) for c in choices)
        planned.append(MixPlan(ftype, choices, total, size, any(c.needs_imatrix for c in choices)))
    used = max(Hyperparameters(metadata).per_layer("expert_used_count", facts.n_expert))
    return Plan(
        facts,
        sum(math.prod(t.shape) for t in specs),
        tuple(sorted(planned, key=lambda m: m.nbytes)),
        CacheShape.from_metadata(metadata),
        context,
        k_type,
        v_type,
        overhead,
        memory,
        used,
    )


def _tensor_nbytes(shape: tuple[int, ...], qtype: QType | int) -> int:
    return nbytes(shape, qtype) if isinstance(qtype, QType) else 0
