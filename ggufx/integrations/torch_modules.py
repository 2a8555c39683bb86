"""Modules of torch whose weights stay the packed blocks of a file: linear layers, embeddings, stacks of experts.

The blocks are a buffer of uint8 over the file's own map: nothing is decoded or copied when a module is made, and
processes that map one file share its memory. The buffer is never written to.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import nn

from ..codec.decode import swap_bytes
from ..codec.matmul import PRECISIONS
from ..errors import GGUFError
from ..formats.tensor_types import QType, row_nbytes
from ..model.loading import INTEGERS
from . import torch_ops as ops
from .packed_weight import PackedWeight

__all__ = ["Embedding", "Experts", "Linear"]


class _Memory:
    """Memory of an array that may be read-only, as numpy takes it without asking: torch warns about such arrays.

    What is made from it keeps it, and so the array, alive.
    """

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array
        address = array.__array_interface__["data"][0]
        self.__array_interface__ = {"shape": array.shape, "typestr": "|u1", "data": (address, False), "version": 3}


def _over(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """A torch tensor over an array of bytes, without a copy."""
    if not array.size:
        return torch.empty(array.shape, dtype=torch.uint8)
    return torch.from_numpy(array if array.flags.writeable else np.asarray(_Memory(array)))


def packed_blocks(weight: Any, qtype: QType | int | str | None, dims: int) -> tuple[torch.Tensor, QType]:
    """The blocks of a file's tensor, or given ones, as a tensor of uint8 with rows last, and their type."""
    label = "weight"
    if hasattr(weight, "check_readable"):
        weight.check_readable()
        label, kind = weight.label, QType(weight.qtype)
        if qtype is not None and QType.parse(qtype) != kind:
            raise ValueError(f"{label} is {kind.name}, but qtype={QType.parse(qtype).name} was given")
        if weight.ndim != dims:
            raise GGUFError(f"{label} has shape {weight.shape}; {dims} dimensions were expected")
        try:
            row = row_nbytes(weight.shape[-1], kind)
        except GGUFError as error:
            raise GGUFError(f"{label}: {error}") from None
        raw = weight.packed().reshape(*weight.shape[:-1], row)
        blocks = _over(swap_bytes(raw, kind) if weight.byteorder == "big" else raw)
    else:
        if qtype is None:
            raise TypeError(f"weight must be a Tensor, or blocks with qtype=, not {type(weight).__name__} alone")
        kind = QType.parse(qtype)
        blocks = _over(np.ascontiguousarray(weight)) if isinstance(weight, np.ndarray) else weight.detach()
        if blocks.dtype != torch.uint8 or blocks.ndim != dims:
            raise ValueError(
                f"blocks are {blocks.dtype} of shape {tuple(blocks.shape)}; uint8 of {dims} dimensions was expected"
            )
        if blocks.shape[-1] % kind.block_bytes:
            raise GGUFError(f"{kind.name}: rows of {blocks.shape[-1]} bytes aren't whole blocks of {kind.block_bytes}")
        blocks = blocks.contiguous()
    if kind in INTEGERS:
        raise GGUFError(f"{label} holds integers ({kind.name}); block types and floats can be multiplied")
    return blocks, kind


class _Packed(nn.Module):
    """What the modules share: blocks that stay as they are, whatever happens to dtypes around them.

    Attributes
    ----------
    blocks : Tensor of uint8
        A buffer, over the file's map; part of the state_dict.
    qtype : QType
        The type of the blocks.
    dtype : torch.dtype
        Of the results; what ``module.to(dtype)`` changes.
    """

    blocks: torch.Tensor

    def _hold(self, blocks: torch.Tensor, qtype: QType, dtype: torch.dtype | None) -> None:
        self.qtype = qtype
        self._qtype_id = int(qtype)
        self.dtype = torch.get_default_dtype() if dtype is None else dtype
        if self.dtype not in ops.NAMES:
            raise TypeError(f"dtype should be torch.float32, torch.float16 or torch.bfloat16, not {self.dtype}")
        self.register_buffer("blocks", blocks)

    @property
    def width(self) -> int:
        """Values of a row."""
        return self.blocks.shape[-1] // self.qtype.block_bytes * self.qtype.block_size

    def dequantize(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Decode the whole weight, to float32 unless another dtype is given."""
        decoded: torch.Tensor = ops.dequantize(self.blocks, self._qtype_id, dtype or torch.float32)
        return decoded

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        integers = {name: value for name, value in self._buffers.items() if value is not None}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, value in integers.items():
            if self._buffers[name].dtype != value.dtype:  # type: ignore[union-attr]
                self._buffers[name] = value  # module.type(...) converts integers too
        wanted = fn(torch.empty(0, dtype=self.dtype)).dtype
        if wanted not in ops.NAMES:
            raise TypeError(f"results can be torch.float32, torch.float16 or torch.bfloat16, not {wanted}")
        self.dtype = wanted
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        # Blocks are constants: copies share them, as processes do.
        memo[id(self.blocks)] = self.blocks
        new = memo[id(self)] = self.__new__(type(self))
        new.__dict__ = deepcopy(self.__dict__, memo)
        return new

    def get_extra_state(self) -> torch.Tensor:
        """The type of the blocks, for the state_dict: types that differ may have blocks of one size."""
        return torch.tensor(self._qtype_id)

    def set_extra_state(self, state: torch.Tensor) -> None:
        """Refuse blocks of another type.

        Raises
        ------
        GGUFError
            Naming both types.
        """
        if int(state) != self._qtype_id:
            raise GGUFError(
                f"the state_dict holds blocks of {QType.parse(int(state)).name}, {self.qtype.name} expected"
            )

    def _load_from_state_dict(self, state_dict: Any, prefix: str, local_metadata: Any, *args: Any) -> None:
        given, kind = state_dict.get(prefix + "blocks"), state_dict.get(prefix + "_extra_state")
        if kind is not None:
            self.set_extra_state(kind)
        if isinstance(given, torch.Tensor):
            if given.dtype != torch.uint8:
                raise GGUFError(f"{prefix}blocks should be torch.uint8, not {given.dtype}")
            if not local_metadata.get("assign_to_params_buffers", False):
                # Values are copied into what is there, and that may be a file's memory.
                self.blocks = torch.empty_like(self.blocks)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)


def _check_precision(precision: str) -> str:
    if precision not in PRECISIONS:
        raise ValueError(f"precision {precision!r} isn't known; choose one of {', '.join(PRECISIONS)}")
    return precision


def _bias(bias: Any, shape: tuple[int, ...], dtype: torch.dtype) -> nn.Parameter | None:
    """A parameter of what was given as a bias: a file's tensor, an array or a tensor."""
    if bias is None:
        return None
    if hasattr(bias, "check_readable"):
        bias = torch.from_numpy(bias.dequantize())
    elif not isinstance(bias, torch.Tensor):
        bias = torch.from_numpy(np.array(bias, np.float32))
    if tuple(bias.shape) != shape:
        raise ValueError(f"bias has shape {tuple(bias.shape)}, {shape} was expected")
    return nn.Parameter(bias.detach().to(dtype), requires_grad=False)


class Linear(_Packed, nn.Linear):
    """A linear layer straight from packed blocks, frozen; gradients reach its input.

    It is an :class:`torch.nn.Linear` to whoever asks, so that peft adapts it. Its `weight` says the decoded one's
    shape and dtype, and is decoded, each time anew, where something computes with it.

    Parameters
    ----------
    weight : Tensor, or array or tensor of uint8
        A file's tensor of shape (out_features, in_features), whose memory is used as it lies there, or blocks of shape
        (out_features, bytes of a row) with their `qtype`. Big-endian files' blocks are copied.
    bias : Tensor, array or tensor, optional
        Of shape (out_features,); it becomes a frozen parameter.
    qtype : QType, int or str, optional
        The type of blocks; of a file's tensor it may be left out.
    dtype : torch.dtype, optional
        Of the results: float32, float16 or bfloat16; torch's default dtype if left out. Inputs may be any of the three.
    order : array or tensor of int, optional
        Which row of the blocks makes each output, where that isn't their own order.
    precision : str
        As for :func:`ggufx.matmul`.

    Notes
    -----
    With fewer than 32 rows of input the sums are those of :func:`ggufx.matmul` and a row's result doesn't depend on the
    others; from 32 rows on (GGUFX_BLAS_ROWS) panels of the weight are decoded and multiplied by torch, in bfloat16
    where inputs and results are bfloat16 and the CPU multiplies it. Threads are torch's, and at most GGUFX_THREADS.
    """

    order: torch.Tensor | None

    def __init__(
        self,
        weight: Any,
        bias: Any = None,
        *,
        qtype: QType | int | str | None = None,
        dtype: torch.dtype | None = None,
        order: Any = None,
        precision: str = "float32",
    ) -> None:
        nn.Module.__init__(self)
        self.precision = _check_precision(precision)
        self._hold(*packed_blocks(weight, qtype, 2), dtype)
        self.in_features, self.out_features = self.width, len(self.blocks)
        if order is not None:
            order = torch.as_tensor(order, dtype=torch.int64).detach().clone()
            if order.ndim != 1 or not torch.equal(order.sort().values, torch.arange(len(self.blocks))):
                raise ValueError(f"order must hold each of the rows 0 to {len(self.blocks) - 1} once")
        self.register_buffer("order", order)
        self.bias = _bias(bias, (self.out_features,), self.dtype)  # type: ignore[assignment]

    @property
    def weight(self) -> torch.Tensor:  # type: ignore[override]
        """The weight as others know it; computing with it decodes all of it."""
        return PackedWeight.of(self)

    def dequantize(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Decode the whole weight, to float32 unless another dtype is given."""
        decoded = super().dequantize(dtype)
        return decoded if self.order is None else decoded[self.order]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply x (..., in_features) with the weight: (..., out_features) of :attr:`dtype`."""
        y: torch.Tensor = ops.linear(x, self.blocks, self._qtype_id, self.dtype, self.precision)
        if self.order is not None:
            y = y.index_select(-1, self.order)
        return y if self.bias is None else y + self.bias

    def extra_repr(self) -> str:
        """What `print` shows."""
        text = f"{self.in_features}, {self.out_features}, {self.qtype.name}, dtype={self.dtype}"
        return text + (", reordered" if self.order is not None else "") + (", bias" if self.bias is not None else "")


class Embedding(_Packed, nn.Embedding):
    """An embedding whose table stays packed: the rows asked for are decoded.

    Parameters
    ----------
    weight : Tensor, or array or tensor of uint8
        As for :class:`Linear`: (num_embeddings, embedding_dim).
    qtype, dtype
        As for :class:`Linear`.
    padding_idx : int, optional
        Kept for those who ask for it.
    """

    def __init__(
        self,
        weight: Any,
        *,
        qtype: QType | int | str | None = None,
        dtype: torch.dtype | None = None,
        padding_idx: int | None = None,
    ) -> None:
        nn.Module.__init__(self)
        self._hold(*packed_blocks(weight, qtype, 2), dtype)
        self.num_embeddings, self.embedding_dim = len(self.blocks), self.width
        self.padding_idx = padding_idx
        self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse = None, 2.0, False, False

    @property
    def weight(self) -> torch.Tensor:  # type: ignore[override]
        """The table as others know it; computing with it decodes all of it."""
        return PackedWeight.of(self)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Decode the rows of some ids: (..., embedding_dim) of :attr:`dtype`."""
        values: torch.Tensor = ops.take(input, self.blocks, self._qtype_id, self.dtype)
        return values

    def extra_repr(self) -> str:
        """What `print` shows."""
        return f"{self.num_embeddings}, {self.embedding_dim}, {self.qtype.name}, dtype={self.dtype}"


class Experts(_Packed):
    """A stack of experts' matrices, packed; each row of the input goes through those chosen for it.

    Parameters
    ----------
    weight : Tensor, or array or tensor of uint8
        As for :class:`Linear`, of three dimensions: (num_experts, out_features, in_features).
    bias : Tensor, array or tensor, optional
        Of shape (num_experts, out_features).
    qtype, dtype, precision
        As for :class:`Linear`.
    """

    def __init__(
        self,
        weight: Any,
        bias: Any = None,
        *,
        qtype: QType | int | str | None = None,
        dtype: torch.dtype | None = None,
        precision: str = "float32",
    ) -> None:
        nn.Module.__init__(self)
        self.precision = _check_precision(precision)
        self._hold(*packed_blocks(weight, qtype, 3), dtype)
        self.num_experts, self.out_features = self.blocks.shape[:2]
        self.in_features = self.width
        self.bias = _bias(bias, (self.num_experts, self.out_features), self.dtype)

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Multiply rows of x with their experts.

        Parameters
        ----------
        x : Tensor
            (T, in_features), the same row for all its experts, or (T, E, in_features).
        ids : Tensor of int
            (T, E): the experts of each row.

        Returns
        -------
        Tensor
            (T, E, out_features) of :attr:`dtype`.
        """
        y: torch.Tensor = ops.experts(x, self.blocks, ids, self._qtype_id, self.dtype, self.precision)
        return y if self.bias is None else y + self.bias[ids]

    def extra_repr(self) -> str:
        """What `print` shows."""
        shape = f"{self.num_experts}, {self.in_features}, {self.out_features}"
        return f"{shape}, {self.qtype.name}, dtype={self.dtype}" + (", bias" if self.bias is not None else "")
