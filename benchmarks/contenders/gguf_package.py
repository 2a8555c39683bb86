"""The gguf package: numpy, float32 only, into memory of its own."""

from functools import partial
from importlib import metadata

import numpy as np

VARIANTS = ["gguf package"]


def version():
    """Version of the package."""
    return metadata.version("gguf")


def decoder(variant, case, src, out):
    """gguf.quants.dequantize, where the package has the type."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    if case.dtype != "float32" or int(case.qtype) not in set(GGMLQuantizationType):
        return None
    try:
        dequantize(np.zeros((1, case.qtype.block_bytes), np.uint8), GGMLQuantizationType(int(case.qtype)))
    except (NotImplementedError, ValueError):
        return None
    return partial(dequantize, src, GGMLQuantizationType(int(case.qtype)))
