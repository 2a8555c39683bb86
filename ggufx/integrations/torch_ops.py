"""Operators of torch on packed blocks: they run on the CPU, torch.compile and torch.export trace them.

All take blocks as uint8 tensors whose last dimension holds the bytes of a row, and the number of their type. Gradients
reach x alone: blocks are constants.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from ..codec import matmul as products
from ..codec.decode import dequantize as decode_array
from ..formats.tensor_types import QType

__all__ = ["dequantize", "experts", "linear", "take"]

NAMES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
"""The dtypes that results can have, by the names that decoding knows."""

# Values of a decoded panel: 4 MiB of float32. Smaller ones cost more calls of BLAS, larger ones leave the cache.
PANEL_VALUES = 1 << 20


def _threads() -> int:
    """What torch.set_num_threads and GGUFX_THREADS allow; asking the cgroup costs more than a small product."""
    limit = os.environ.get("GGUFX_THREADS", "")
    count = torch.get_num_threads()
    return min(count, int(limit)) if limit.isdecimal() and int(limit) else count


def _bfloat16_is_fast() -> bool:
    """Whether this CPU multiplies bfloat16 as such; elsewhere torch's product is slower than that of float32."""
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, bool)() for name in names)


BFLOAT16_IS_FAST = _bfloat16_is_fast()


def _width(blocks: torch.Tensor, qtype: int) -> int:
    """Values of a row."""
    kind = QType(qtype)
    return blocks.shape[-1] // kind.block_bytes * kind.block_size


def _array(blocks: torch.Tensor) -> np.ndarray[Any, Any]:
    return blocks.detach().contiguous().numpy()


def _decoded(raw: np.ndarray[Any, Any], qtype: int, dtype: torch.dtype, threads: int) -> torch.Tensor:
    kind = QType(qtype)
    shape = (*raw.shape[:-1], raw.shape[-1] // kind.block_bytes * kind.block_size)
    values = decode_array(raw, kind, shape=shape, dtype=NAMES[dtype], threads=threads)
    return torch.from_numpy(values.view(np.int16)).view(dtype) if dtype == torch.bfloat16 else torch.from_numpy(values)


def _panels(blocks: torch.Tensor, qtype: int, dtype: torch.dtype) -> Iterator[tuple[int, int, torch.Tensor]]:
    """The rows decoded a panel at a time, with their numbers."""
    threads = _threads()
    raw, rows = _array(blocks), max(1, PANEL_VALUES // max(1, _width(blocks, qtype)))
    for first in range(0, len(raw), rows):
        part = raw[first : first + rows]
        yield first, first + len(part), _decoded(part, qtype, dtype, threads)


def _rows(x: torch.Tensor) -> torch.Tensor:
    return x.detach().reshape(-1, x.shape[-1]) if x.shape[-1] else x.detach().reshape(x.shape[:-1].numel(), 0)


@torch.library.custom_op("ggufx::linear", mutates_args=())
def linear(x: torch.Tensor, blocks: torch.Tensor, qtype: int, dtype: torch.dtype, precision: str) -> torch.Tensor:
    """Multiply rows of x (..., K) with packed rows (N, bytes): (..., N) of `dtype`."""
    rows, n = _rows(x), blocks.shape[0]
    if len(rows) < products._blas_rows() or not rows.shape[1]:
        y = torch.from_numpy(
            products.matmul(
                rows.float().contiguous().numpy(),
                _array(blocks),
                qtype=QType(qtype),
                precision=precision,
                threads=_threads(),
            )
        )
    else:
        halves = dtype == torch.bfloat16 and x.dtype == dtype and BFLOAT16_IS_FAST
        compute = torch.bfloat16 if halves else torch.float32
        rows = rows.to(compute)
        y = torch.empty((len(rows), n), dtype=compute)
        for first, last, w in _panels(blocks, qtype, compute):
            torch.mm(rows, w.T, out=y[:, first:last])
    return y.to(dtype).reshape(*x.shape[:-1], n)


@linear.register_fake
def _(x: torch.Tensor, blocks: torch.Tensor, qtype: int, dtype: torch.dtype, precision: str) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], blocks.shape[0]), dtype=dtype)


@torch.library.custom_op("ggufx::linear_backward", mutates_args=())
def linear_backward(dy: torch.Tensor, blocks: torch.Tensor, qtype: int, dtype: torch.dtype) -> torch.Tensor:
    """Multiply rows of dy (..., N) with the packed matrix itself: (..., K) of `dtype`."""
    rows = _rows(dy).float()
    dx = torch.zeros((len(rows), _width(blocks, qtype)), dtype=torch.float32)
    for first, last, w in _panels(blocks, qtype, torch.float32):
        dx.addmm_(rows[:, first:last], w)
    return dx.to(dtype).reshape(*dy.shape[:-1], dx.shape[1])


@linear_backward.register_fake
def _(dy: torch.Tensor, blocks: torch.Tensor, qtype: int, dtype: torch.dtype) -> torch.Tensor:
    return dy.new_empty((*dy.shape[:-1], _width(blocks, qtype)), dtype=dtype)


def _linear_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, blocks, ctx.qtype, _, ctx.precision = inputs
    ctx.dtype = x.dtype
    ctx.save_for_backward(blocks)


def _linear_gradient(ctx: Any, dy: torch.Tensor) -> tuple[Any, ...]:
    (blocks,) = ctx.saved_tensors
    return linear_backward(dy, blocks, ctx.qtype, ctx.dtype), None, None, None, None


linear.register_autograd(_linear_gradient, setup_context=_linear_context)


def _backward_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    dy, blocks, ctx.qtype, _ = inputs
    ctx.dtype = dy.dtype
    ctx.save_for_backward(blocks)


def _backward_gradient(ctx: Any, ddx: torch.Tensor) -> tuple[Any, ...]:
    (blocks,) = ctx.saved_tensors
    return linear(ddx, blocks, ctx.qtype, ctx.dtype, "float32"), None, None, None


linear_backward.register_autograd(_backward_gradient, setup_context=_backward_context)


@torch.library.custom_op("ggufx::experts", mutates_args=())
def experts(
    x: torch.Tensor, blocks: torch.Tensor, ids: torch.Tensor, qtype: int, dtype: torch.dtype, precision: str
) -> torch.Tensor:
    """Multiply rows of x, (T, K) or (T, E, K), with the experts (T, E) of a stack (experts, N, bytes): (T, E, N)."""
    y = products.matmul_experts(
        x.detach().float().contiguous().numpy(),
        _array(blocks),
        ids.detach().contiguous().numpy(),
        qtype=QType(qtype),
        precision=precision,
        threads=_threads(),
    )
    return torch.from_numpy(y).to(dtype)


@experts.register_fake
def _(
    x: torch.Tensor, blocks: torch.Tensor, ids: torch.Tensor, qtype: int, dtype: torch.dtype, precision: str
) -> torch.Tensor:
    return x.new_empty((*ids.shape, blocks.shape[1]), dtype=dtype)


@torch.library.custom_op("ggufx::experts_backward", mutates_args=())
def experts_backward(
    dy: torch.Tensor, blocks: torch.Tensor, ids: torch.Tensor, qtype: int, dtype: torch.dtype, summed: bool
) -> torch.Tensor:
    """Multiply rows of dy (T, E, N) with the chosen experts' matrices: (T, E, K), or its sum over E."""
    flat = ids.detach().reshape(-1)
    rows = dy.detach().reshape(flat.numel(), blocks.shape[1]).float()
    dx = torch.zeros((flat.numel(), _width(blocks, qtype)), dtype=torch.float32)
    for k in sorted(set(flat.tolist())):
        chosen = (flat == k).nonzero().squeeze(1)
        mine, found = rows[chosen], torch.zeros((len(chosen), dx.shape[1]), dtype=torch.float32)
        for first, last, w in _panels(blocks[k], qtype, torch.float32):
            found.addmm_(mine[:, first:last], w)
        dx[chosen] = found
    dx = dx.reshape(*ids.shape, dx.shape[1])
    return (dx.sum(1) if summed else dx).to(dtype)


@experts_backward.register_fake
def _(
    dy: torch.Tensor, blocks: torch.Tensor, ids: torch.Tensor, qtype: int, dtype: torch.dtype, summed: bool
) -> torch.Tensor:
    return dy.new_empty((*(ids.shape[:1] if summed else ids.shape), _width(blocks, qtype)), dtype=dtype)


def _experts_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, blocks, ids, ctx.qtype, _, _ = inputs
    ctx.dtype, ctx.summed = x.dtype, x.ndim == 2
    ctx.save_for_backward(blocks, ids)


def _experts_gradient(ctx: Any, dy: torch.Tensor) -> tuple[Any, ...]:
    blocks, ids = ctx.saved_tensors
    return experts_backward(dy, blocks, ids, ctx.qtype, ctx.dtype, ctx.summed), None, None, None, None, None


experts.register_autograd(_experts_gradient, setup_context=_experts_context)


def _experts_backward_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    dy, blocks, ids, ctx.qtype, _, _ = inputs
    ctx.dtype = dy.dtype
    ctx.save_for_backward(blocks, ids)


def _experts_backward_gradient(ctx: Any, ddx: torch.Tensor) -> tuple[Any, ...]:
    blocks, ids = ctx.saved_tensors
    return experts(ddx, blocks, ids, ctx.qtype, ctx.dtype, "float32"), None, None, None, None, None


experts_backward.register_autograd(_experts_backward_gradient, setup_context=_experts_backward_context)


@torch.library.custom_op("ggufx::take", mutates_args=())
def take(ids: torch.Tensor, blocks: torch.Tensor, qtype: int, dtype: torch.dtype) -> torch.Tensor:
    """Decode chosen rows of (N, bytes): (*ids.shape, K)."""
    chosen = ids.detach().contiguous().numpy()
    raw = _array(blocks)
    for bad in chosen[(chosen < 0) | (chosen >= len(raw))][:1].tolist():
        raise IndexError(f"row {bad} was asked for, but there are the rows 0 to {len(raw) - 1}")
    return _decoded(raw[chosen], qtype, dtype, _threads())


@take.register_fake
def _(ids: torch.Tensor, blocks: torch.Tensor, qtype: int, dtype: torch.dtype) -> torch.Tensor:
    return blocks.new_empty((*ids.shape, _width(blocks, qtype)), dtype=dtype)


@torch.library.custom_op("ggufx::dequantize", mutates_args=())
def dequantize(blocks: torch.Tensor, qtype: int, dtype: torch.dtype) -> torch.Tensor:
    """Decode all rows of (..., bytes): (..., K)."""
    return _decoded(_array(blocks), qtype, dtype, _threads())


@dequantize.register_fake
def _(blocks: torch.Tensor, qtype: int, dtype: torch.dtype) -> torch.Tensor:
    return blocks.new_empty((*blocks.shape[:-1], _width(blocks, qtype)), dtype=dtype)
