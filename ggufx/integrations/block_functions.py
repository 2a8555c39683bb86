"""What diffusers and ComfyUI-GGUF have in common: a dictionary of functions that decode blocks in each forward pass.

Their functions take (blocks, block size, bytes per block, dtype), and compute in that dtype, or float16 for None. Ours
decode to it and round once, so results differ in their last bits and are nearer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..compat.patching import Patches
from ..compat.torch_blocks import decode_blocks, decodes_here
from ..formats.tensor_types import QType

__all__ = ["replace_functions"]


def _function(qtype: QType, original: Callable[..., torch.Tensor] | None) -> Callable[..., torch.Tensor]:
    # Without a dtype theirs give the scale's, float16; those of BF16 always give float32.
    default = torch.float32 if qtype is QType.BF16 else torch.float16

    def dequantize_blocks(
        blocks: torch.Tensor, block_size: int, type_size: int, dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        wanted = default if dtype is None or qtype is QType.BF16 else dtype
        sizes = (block_size, type_size) == (qtype.block_size, qtype.block_bytes)
        if sizes and decodes_here(blocks, wanted):
            return decode_blocks(blocks, qtype, wanted)
        if original is not None:
            return original(blocks, block_size, type_size, dtype)
        return decode_blocks(blocks.cpu(), qtype, wanted).to(blocks.device)

    return dequantize_blocks


def replace_functions(functions: dict[Any, Any], types: Any, patches: Patches) -> list[Any]:
    """Replace each function of the dictionary, and add those of the types it lacks; returns the added types.

    Parameters
    ----------
    functions : dict
        Type -> function.
    types : enum
        ``gguf.GGMLQuantizationType``.
    patches : Patches
        Takes what was replaced.
    """
    added = []
    for kind in types:
        qtype = next((t for t in QType if t == int(kind)), None)
        if qtype is None or not (qtype.is_quantized or qtype is QType.BF16) or qtype in (QType.Q8_1, QType.Q8_K):
            continue
        if kind not in functions:
            added.append(kind)
        patches.set_item(functions, kind, _function(qtype, functions.get(kind)))
    return added
