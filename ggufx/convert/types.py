"""The types that llama.cpp's converter gives tensors: one for all, but for those that suffer or are tiny."""

from __future__ import annotations

import re

from ..formats.tensor_types import QType
from .planned import Planned

__all__ = ["MOSTLY", "PLAIN", "plain_type"]

# The converter's own types; every other name is a mix of llama-quantize.
PLAIN = {
    "F32": (QType.F32, 0),
    "F16": (QType.F16, 1),
    "BF16": (QType.BF16, 32),
    "Q8_0": (QType.Q8_0, 7),
    "TQ1_0": (QType.TQ1_0, 36),
    "TQ2_0": (QType.TQ2_0, 37),
}
# Types in which weights are kept whatever is asked for, and what a file of them says it is.
MOSTLY = {QType.NVFP4: 39, QType.MXFP4: 38}
_ALWAYS_F32 = re.compile(
    r"^(blk\.\d+\.(ffn_gate_inp|ffn_gate_inp_shexp|ssm_conv1d|shortconv\.conv|altup_correct_coef|altup_predict_coef)"
    r"|position_embd|token_types)\.weight$"
)
_TABLES = ("token_embd.weight", "per_layer_token_embd.weight", "output.weight")


def plain_type(p: Planned, wanted: QType) -> QType:
    """The type the converter gives a tensor."""
    if p.packed is not None:
        return p.packed
    if len(p.shape) <= 1 or p.name.endswith("_norm.weight") or not p.name.endswith((".weight", ".lora_a", ".lora_b")):
        return QType.F32
    if _ALWAYS_F32.match(p.name):
        return QType.F32
    if wanted in (QType.TQ1_0, QType.TQ2_0) and p.name in _TABLES:
        return QType.F16
    return wanted if p.shape[-1] % wanted.block_size == 0 else QType.F16
