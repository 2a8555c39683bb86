"""Decoding blocks that lie in torch tensors, on the CPU, into new tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import torch

from ..codec import decode
from ..formats.tensor_types import QType

__all__ = ["decode_blocks", "decoder", "decodes_here"]

_NAMES: dict[torch.dtype, str] = {
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
}


def decodes_here(blocks: torch.Tensor, dtype: torch.dtype | None) -> bool:
    """Whether these blocks can be decoded here: on the CPU, real, not being traced, to a float dtype."""
    return blocks.device.type == "cpu" and dtype in _NAMES and not torch.compiler.is_compiling()


def decode_blocks(blocks: torch.Tensor, qtype: QType, dtype: torch.dtype) -> torch.Tensor:
    """Decode blocks to a dtype, the half ones rounded once from float32.

    Parameters
    ----------
    blocks : Tensor of uint8
        Shape (blocks, bytes per block), of any strides, on the CPU.
    qtype : QType
        The tensor type.
    dtype : torch.dtype
        float32, float16 or bfloat16.

    Returns
    -------
    Tensor
        Shape (blocks, values per block).
    """
    raw = blocks.detach().as_subclass(torch.Tensor).contiguous().view(torch.uint8).numpy()
    # Into an array of numpy's: its large ones ask for huge pages, whose first touch is cheaper; torch's don't.
    values = decode.dequantize(raw, qtype, dtype=_NAMES[dtype])
    if dtype == torch.bfloat16:
        return torch.from_numpy(values.view(np.int16)).view(dtype)
    return torch.from_numpy(values)


def decoder(
    qtype: QType, original: Callable[..., torch.Tensor] | None, dtypes: frozenset[torch.dtype]
) -> Callable[[torch.Tensor, torch.dtype], torch.Tensor]:
    """Make a function (blocks, dtype) that decodes here where it can, and as `original` does elsewhere.

    The values of a block have the shape that `original` gives them, or lie in one row.
    """

    @cache
    def shape() -> tuple[int, ...]:
        if original is None:
            return (qtype.block_size,)
        block = torch.zeros((1, qtype.block_bytes), dtype=torch.uint8, device="cpu")
        return tuple(original(block, torch.float32).shape[1:])

    def decode_here(blocks: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        if dtype in dtypes and decodes_here(blocks, dtype):
            return decode_blocks(blocks, qtype, dtype).reshape(-1, *shape())
        if original is not None:
            return original(blocks, dtype)
        # Nobody else decodes this type: through the CPU, then.
        return decode_blocks(blocks.cpu(), qtype, dtype).to(blocks.device)

    return decode_here
