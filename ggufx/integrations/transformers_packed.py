"""Models of transformers whose linear layers and embeddings stay packed.

While such a model loads, its packed weights are stand-ins: one number seen as a whole matrix, which takes no memory and
which the loader hands on like any other. Then the modules that hold them change into ones over the file's blocks.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from ..formats.tensor_types import QType
from ..model.loading import INTEGERS
from ..read.tensor import Tensor
from .torch_modules import Embedding, Linear, packed_blocks

__all__ = ["Packing"]


@dataclass
class _Kept:
    blocks: torch.Tensor  # over the file's map, which lives as long as they do
    qtype: QType
    order: np.ndarray[Any, Any] | None
    stand_in: torch.Tensor


@dataclass
class Packing:
    """What became of a file's tensors in a model, by the model's names for its parameters.

    Attributes
    ----------
    packed : dict of str to str
        Weights that stayed blocks, with the names of their types.
    decoded : dict of str to str
        Those of matrices that were decoded all the same, with the reason.
    """

    packed: dict[str, str] = field(default_factory=dict)
    decoded: dict[str, str] = field(default_factory=dict)
    _kept: dict[str, _Kept] = field(default_factory=dict, repr=False)

    def take(self, model: Any, name: str, tensor: Tensor, dtype: torch.dtype, transform: Any) -> torch.Tensor | None:
        """Keep a tensor packed if the model's weight of this name is its rows; returns what stands for it in loading.

        Parameters
        ----------
        model : PreTrainedModel
            Not loaded yet.
        name : str
            The weight's name in the model.
        tensor : Tensor
            Of the file.
        dtype : torch.dtype
            Of the model.
        transform : callable
            Makes the model's values of the file's, or None of what isn't an array of its own.
        """
        if tensor.ndim < 2:
            return None
        order, reason = _order(model, name, tensor, transform)
        if reason:
            self.decoded[name] = reason
            return None
        shape = tensor.shape[::-1] if isinstance(_owner(model, name), Conv1D) else tensor.shape
        stand_in = torch.zeros((), dtype=dtype).expand(shape)
        self._kept[name] = _Kept(*packed_blocks(tensor, None, 2), order, stand_in)
        return stand_in

    def apply(self, model: Any) -> None:
        """Change the modules of a loaded model whose weights were kept, those that share a weight too."""
        kept = {}
        for name, what in self._kept.items():
            module = _owner(model, name)
            if module is not None and module._parameters.get("weight") is not None:
                kept[id(module._parameters["weight"])] = (name, what)
        made: dict[str, torch.Tensor] = {}
        for place, module in list(model.named_modules()):
            weight = module._parameters.get("weight")
            if id(weight) not in kept or weight is None:
                continue
            name, what = kept[id(weight)]
            new = _packed_module(module, what, weight.dtype)
            if name in made:
                new.blocks = made[name]  # tied weights share the very tensor
            made[name] = new.blocks
            model.set_submodule(place, new)
            self.packed[f"{place}.weight"] = what.qtype.name
        self._kept.clear()
        # Ties are kept by sharing blocks; there is no parameter left that could be tied.
        for module in model.modules():
            if hasattr(module, "_tied_weights_keys"):
                module._tied_weights_keys = {}
            if hasattr(module, "all_tied_weights_keys"):
                module.all_tied_weights_keys = {}


def _owner(model: Any, name: str) -> nn.Module | None:
    """The module whose weight has this name."""
    place, _, last = name.rpartition(".")
    if last != "weight":
        return None
    try:
        found: nn.Module = model.get_submodule(place)
    except AttributeError:
        return None
    return found


def _order(model: Any, name: str, tensor: Tensor, transform: Any) -> tuple[np.ndarray[Any, Any] | None, str]:
    """In which order the file's rows make the weight (None: their own), or why the weight must be decoded."""
    module = _owner(model, name)
    if type(tensor.qtype) is not QType or tensor.qtype in INTEGERS:
        return None, "it holds integers, or its type is unknown"
    if module is None:
        return None, "it isn't the weight of a module"
    kind = type(module)
    if isinstance(module, nn.Embedding):
        if kind is not nn.Embedding and "super().forward" not in inspect.getsource(kind.forward):
            return None, f"{kind.__name__} looks rows up in a way of its own"
    elif kind not in (nn.Linear, Conv1D):
        return None, f"it belongs to a {kind.__name__}, not to a linear layer or an embedding"
    if tensor.ndim != 2:
        return None, f"it has {tensor.ndim} dimensions in the file"
    n, width = tensor.shape
    # Rows, then columns, that bear their numbers as values show where each goes, and whether values change.
    numbers = np.broadcast_to(np.arange(n, dtype=np.float32)[:, None], (n, width))
    columns = np.broadcast_to(np.arange(width, dtype=np.float32), (n, width))
    moved, across = transform(numbers), transform(columns)
    if moved is None or across is None:
        return None, "it becomes part of another parameter"
    if kind is Conv1D and moved.shape == (width, n):
        moved, across = moved.T, across.T
    if moved.shape != (n, width) or not (moved == moved[:, :1]).all() or not (across == columns).all():
        return None, "its values or columns change on the way into the model"
    order = np.ascontiguousarray(moved[:, 0]).astype(np.int64)
    if np.array_equal(order, np.arange(n)):
        return None, ""
    if isinstance(module, nn.Embedding) or not np.array_equal(np.sort(order), np.arange(n)):
        return None, "its rows are moved in a way that no order of outputs expresses"
    return order, ""


def _packed_module(module: nn.Module, what: _Kept, dtype: torch.dtype) -> Any:
    """A packed module in place of one, with its bias, its hooks and whatever else it holds."""
    if not isinstance(module, nn.Embedding):
        bias = module._parameters.get("bias")
        return Linear(what.blocks, bias, qtype=what.qtype, dtype=dtype, order=what.order).train(module.training)
    new = Embedding(what.blocks, qtype=what.qtype, dtype=dtype, padding_idx=module.padding_idx).train(module.training)
    kind: Any = type(module)
    if kind is nn.Embedding:
        return new
    # Its own forward goes on from the rows: let it find ours where it looks for torch's.
    mixed: Any = type(f"Packed{kind.__name__}", (kind, Embedding), {"__module__": __name__, "weight": Embedding.weight})  # type: ignore[call-overload, unused-ignore]
    whole = mixed.__new__(mixed)
    whole.__dict__.update(module.__dict__)
    for name, value in new.__dict__.items():
        mine = whole.__dict__.get(name)
        if name == "_parameters":
            whole.__dict__[name] = {k: v for k, v in mine.items() if k != "weight"}
        else:
            whole.__dict__[name] = {**mine, **value} if name in ("_buffers", "_modules") else value
    whole.__dict__["_non_persistent_buffers_set"] = set(module._non_persistent_buffers_set)
    return whole
