"""Plain quantizers that any other should beat: the largest value sets the scale, and nothing is searched.

In blocks of 32 with a scale in half precision, as the simplest of ggml's types.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ..codec.reference.codebooks import IQ4NL_VALUES

__all__ = ["BASELINES", "BLOCK"]

Floats = npt.NDArray[np.float32]
BLOCK = 32
SCALE_BITS = 16


def _absmax(bits: int) -> Callable[[Floats], Floats]:
    steps = np.float32(2 ** (bits - 1) - 1)

    def quantized(x: Floats) -> Floats:
        blocks = x.reshape(-1, BLOCK)
        scale = (np.abs(blocks).max(axis=1, keepdims=True) / steps).astype(np.float16).astype(np.float32)
        inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)
        values: Floats = np.clip(np.rint(blocks * inverse), -steps, steps) * scale
        return values.reshape(x.shape)

    return quantized


def _grid(x: Floats) -> Floats:
    """The 16 levels of IQ4_NL, the largest value on the lowest of them."""
    levels = np.asarray(IQ4NL_VALUES, np.float32)
    blocks = x.reshape(-1, BLOCK)
    largest = np.take_along_axis(blocks, np.argmax(np.abs(blocks), axis=1)[:, None], axis=1)
    scale = (largest / levels[0]).astype(np.float16).astype(np.float32)
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)
    nearest = np.searchsorted((levels[1:] + levels[:-1]) / 2, blocks * inverse)
    values: Floats = levels[nearest] * scale
    return values.reshape(x.shape)


# Name, bits per weight, and from values to what they become.
BASELINES: dict[str, tuple[float, Callable[[Floats], Floats]]] = {
    **{f"absmax {bits}": (bits + SCALE_BITS / BLOCK, _absmax(bits)) for bits in range(8, 1, -1)},
    "grid 4": (4 + SCALE_BITS / BLOCK, _grid),
}
