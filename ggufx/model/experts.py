"""A model's experts, whichever way its file stores them.

Files hold experts in one of two ways: stacked, one tensor of shape (n_expert, out, in) for all experts of a layer
(``blk.N.ffn_gate_exps.weight``; gate and up may be fused in ``ffn_gate_up_exps``), or, in older files, one tensor for
each (``blk.N.ffn_gate.K.weight``). Biases and scales are stacked the same way. Names are ggml's, whatever the
architecture; counts come from the metadata and are checked against the tensors.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from ..codec.arrays import refuse_masked
from ..codec.decode import output_dtype
from ..errors import GGUFError, UnknownNameError
from ..formats.tensor_types import QType
from ..read.tensor import Tensor
from .holding import holding
from .layers import BufferPool

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..read.reader import GGUFFile

__all__ = ["ExpertStack", "MoE", "MoELayer", "find_experts"]

# blk.3.ffn_gate_exps.weight, blk.3.ffn_up.7.weight, blk.3.ffn_down_shexp.weight, blk.3.ffn_gate_inp.weight ...
STACKED = re.compile(r"blk\.(\d{1,6})\.ffn_(gate_up|gate|up|down)_exps\.(weight|bias|scale|input_scale)")
SEPARATE = re.compile(r"blk\.(\d{1,6})\.ffn_(gate_up|gate|up|down)\.(\d{1,6})\.(weight|bias|scale)")
CHUNKED = re.compile(r"blk\.(\d{1,6})\.ffn_(gate|up|down)_chexps\.(weight|bias|scale)")
SHARED = re.compile(r"blk\.(\d{1,6})\.(ffn_(?:gate_up|gate|up|down|gate_inp)_shexp\.\w+)")
ROUTER = re.compile(r"blk\.(\d{1,6})\.(ffn_gate_inp\.\w+|exp_probs_b(?:\.\w+)?)")


class ExpertStack(Sequence[Tensor]):
    """One part (say, all ``up`` matrices) of a layer's experts: ``stack[k]`` is expert k, a packed Tensor.

    Attributes
    ----------
    name : str
        ``"gate"``, ``"up"``, ``"down"``, ``"gate_up"``; with ``.bias`` or ``.scale`` behind it for those.
    shape : tuple of int
        ``(n_expert, *shape of one expert)``.
    """

    __slots__ = ("_parts", "_stacked", "name", "shape")

    def __init__(self, name: str, stacked: Tensor | None, parts: Sequence[Tensor] = ()) -> None:
        self.name = name
        self._stacked = stacked
        self._parts = tuple(parts)
        if stacked is not None:
            self.shape = stacked.shape
            if not self.shape or self.shape[0] > sys.maxsize:
                raise GGUFError(f"{stacked.label} has shape {self.shape}, which is no stack of experts")
            return
        shapes = {part.shape for part in self._parts}
        if len(shapes) != 1:
            raise GGUFError(f"{self._parts[0].label}: the experts of one layer have different shapes: {sorted(shapes)}")
        self.shape = (len(self._parts), *shapes.pop())

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The file's tensors behind the stack: one, or one for each expert."""
        return self._parts if self._stacked is None else (self._stacked,)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, k: Any) -> Any:
        if isinstance(k, slice):
            return [self[i] for i in range(*k.indices(len(self)))]
        k = index(k)
        if not -len(self) <= k < len(self):
            raise IndexError(f"{self.tensors[0].label}: there are {len(self)} experts, index {k} is out of range")
        return self._stacked.expert(k % len(self)) if self._stacked is not None else self._parts[k]

    def wanted(self, n: int, dtype: npt.DTypeLike | str | None) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Shape and dtype of the array that decoding `n` experts makes."""
        for tensor in self.tensors:
            tensor.check_readable()
        return (n, *self.shape[1:]), output_dtype(dtype, QType(self.tensors[0].qtype))

    def decode(
        self,
        chosen: Sequence[int] | npt.NDArray[np.integer[Any]],
        *,
        dtype: npt.DTypeLike | str | None = None,
        out: npt.NDArray[Any] | None = None,
        threads: int | None = None,
    ) -> npt.NDArray[Any]:
        """Decode chosen experts into one array of shape ``(len(chosen), *shape[1:])``, reading only their bytes."""
        if self._stacked is not None:
            return self._stacked.experts(chosen, out=out, dtype=dtype, threads=threads)
        shape, own = self.wanted(len(chosen), dtype)
        refuse_masked(chosen, f"{self.tensors[0].label}: chosen experts")
        numbers = [index(k) for k in chosen]
        for k in numbers:
            if not 0 <= k < len(self):
                raise IndexError(f"{self._parts[0].label}: there are {len(self)} experts, index {k} is out of range")
        if out is None:
            out = np.empty(shape, own)
        else:
            self._parts[0].check_out(out, shape, dtype)
        with holding({k: self._parts[k] for k in numbers}.values(), {self.name: out}):
            for i, k in enumerate(numbers):
                self._parts[k].dequantize(dtype, out[i, ...], threads=threads)
        return out

    def __repr__(self) -> str:
        how = "stacked" if self._stacked is not None else "one tensor each"
        return f"<ExpertStack {self.name} {self.shape}, {how}>"


class MoELayer(Mapping[str, ExpertStack]):
    """The experts of one layer: stacks by part (``"gate"``, ``"up"``, ``"down"`` or ``"gate_up"``, ``"up.bias"`` ...).

    Attributes
    ----------
    number : int
        The block's number.
    n_expert : int
        Experts in this layer.
    router : dict of str to Tensor
        What chooses among them: ``ffn_gate_inp.weight``, ``.bias``, ``exp_probs_b.bias``.
    shared : dict of str to Tensor
        What every token passes through: ``ffn_up_shexp.weight`` ...
    chunked : dict of str to ExpertStack
        Second, smaller stacks that some architectures have (``ffn_up_chexps``); their count may differ.
    """

    def __init__(self, number: int, stacks: dict[str, ExpertStack]) -> None:
        self.number = number
        self._stacks = stacks
        self.router: dict[str, Tensor] = {}
        self.shared: dict[str, Tensor] = {}
        self.chunked: dict[str, ExpertStack] = {}
        counts = {part: len(stack) for part, stack in stacks.items()}
        if len(set(counts.values())) > 1:
            label = next(iter(stacks.values())).tensors[0].label
            raise GGUFError(f"{label}: the parts of block {number} count different numbers of experts: {counts}")
        self.n_expert = next(iter(counts.values()), 0)

    def __getitem__(self, part: str) -> ExpertStack:
        try:
            return self._stacks[part]
        except KeyError:
            raise UnknownNameError(
                f"block {self.number} has no experts' {part!r}; there are {', '.join(self._stacks)}"
            ) from None

    def __len__(self) -> int:
        return len(self._stacks)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stacks)

    def expert(self, k: int) -> dict[str, Tensor]:
        """Every part of expert `k`, packed."""
        return {part: stack[k] for part, stack in self._stacks.items()}

    def decode(
        self,
        chosen: Sequence[int] | npt.NDArray[np.integer[Any]],
        *,
        dtype: npt.DTypeLike | str | None = None,
        out: dict[str, npt.NDArray[Any]] | None = None,
        threads: int | None = None,
    ) -> dict[str, npt.NDArray[Any]]:
        """Decode every part of the chosen experts (a token's top-k) in one call.

        Parameters
        ----------
        chosen : sequence of int
            Expert numbers, in the order wanted.
        out : dict of str to ndarray, optional
            An array for each part, as an earlier call returned it: decoded into again, so memory stays flat. Without it
            all parts lie in one fresh buffer.
        dtype, threads
            As for :func:`ggufx.dequantize`.

        Returns
        -------
        dict of str to ndarray
            Each of shape ``(len(chosen), ...)``; `out` if it was given.
        """
        if out is not None and set(out) != set(self._stacks):
            raise ValueError(f"out has parts {sorted(out)}, block {self.number} has {sorted(self._stacks)}")
        if out is None:
            out = BufferPool().take({part: s.wanted(len(chosen), dtype) for part, s in self._stacks.items()})
        with holding((t for stack in self._stacks.values() for t in stack.tensors), out):
            for part, stack in self._stacks.items():
                stack.decode(chosen, out=out[part], dtype=dtype, threads=threads)
        return out

    def __repr__(self) -> str:
        return f"<MoELayer {self.number}: {self.n_expert} experts of {', '.join(self._stacks)}>"


class MoE(Mapping[int, MoELayer]):
    """A model's mixture-of-experts layers by block number; dense blocks aren't among them.

    Attributes
    ----------
    architecture : str
        ``general.architecture``.
    n_expert : int
        Experts per layer, from the metadata, else from the tensors; 0 in a model without experts.
    top_k : int or None
        Experts used for each token, from the metadata.
    n_shared : int
        Shared experts, from the metadata, 0 where it doesn't say.
    """

    def __init__(self, layers: dict[int, MoELayer], architecture: str, counts: dict[str, int]) -> None:
        self._layers = layers
        self.architecture = architecture
        found = max((layer.n_expert for layer in layers.values()), default=0)
        self.n_expert = counts.get("expert_count", found)
        self.top_k = counts.get("expert_used_count")
        self.n_shared = counts.get("expert_shared_count", 0)

    def __getitem__(self, number: int) -> MoELayer:
        try:
            return self._layers[number]
        except KeyError:
            have = f"blocks {_ranges(self._layers)} have" if self._layers else "no block of this model has"
            raise UnknownNameError(f"block {number!r} has no experts; {have} some") from None

    def __len__(self) -> int:
        return len(self._layers)

    def __iter__(self) -> Iterator[int]:
        return iter(self._layers)

    def __bool__(self) -> bool:
        return bool(self._layers)

    def __repr__(self) -> str:
        return f"<MoE {self.architecture}: {len(self)} layers of {self.n_expert} experts, top {self.top_k}>"


def find_experts(file: GGUFFile) -> MoE:
    """Find the experts of a model; see :attr:`ggufx.GGUFFile.moe`.

    Raises
    ------
    GGUFError
        If an expert is missing, or the counts of the metadata and the tensors disagree.
    """
    stacked: dict[int, dict[str, Tensor]] = {}
    separate: dict[int, dict[str, dict[int, Tensor]]] = {}
    extra: list[tuple[int, str, str, Tensor]] = []
    for name, tensor in file.tensors.items():
        if match := STACKED.fullmatch(name):
            number, part, kind = match.groups()
            stacked.setdefault(int(number), {})[_part(part, kind)] = tensor
        elif match := SEPARATE.fullmatch(name):
            number, part, k, kind = match.groups()
            separate.setdefault(int(number), {}).setdefault(_part(part, kind), {})[int(k)] = tensor
        elif match := CHUNKED.fullmatch(name):
            number, part, kind = match.groups()
            extra.append((int(number), "chunked", _part(part, kind), tensor))
        elif match := SHARED.fullmatch(name):
            extra.append((int(match[1]), "shared", match[2], tensor))
        elif match := ROUTER.fullmatch(name):
            extra.append((int(match[1]), "router", match[2], tensor))
    architecture = str(file.metadata.get("general.architecture", ""))
    counts = {
        key: value
        for key in ("expert_count", "expert_used_count", "expert_shared_count")
        if isinstance(value := file.metadata.get(f"{architecture}.{key}"), int)
    }
    layers = {}
    for number in sorted(stacked.keys() | separate.keys()):
        stacks = {part: ExpertStack(part, tensor) for part, tensor in stacked.get(number, {}).items()}
        for part, experts in separate.get(number, {}).items():
            if len(experts) != max(max(experts) + 1, counts.get("expert_count", 0)):
                missing = next(k for k in range(len(experts) + 1) if k not in experts)
                raise GGUFError(f"{file.path}: block {number} lacks the {part} tensor of expert {missing}")
            stacks[part] = ExpertStack(part, None, [experts[k] for k in range(len(experts))])
        layer = layers[number] = MoELayer(number, stacks)
        if layer.n_expert != counts.get("expert_count", layer.n_expert):
            raise GGUFError(
                f"{file.path}: block {number} holds {layer.n_expert} experts ({stacks}), the metadata says "
                f"{architecture}.expert_count = {counts['expert_count']}"
            )
    for number, where, key, tensor in extra:
        if number in layers:
            if where == "chunked":
                layers[number].chunked[key] = ExpertStack(key, tensor)
            else:
                getattr(layers[number], where)[key] = tensor
    return MoE(layers, architecture, counts)


def _ranges(numbers: Iterable[int]) -> str:
    """Word sorted numbers, as in ``1 to 3, 5``."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)


def _part(part: str, kind: str) -> str:
    return part if kind == "weight" else f"{part}.{kind}"
