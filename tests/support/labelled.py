"""Tensors whose every value tells where it lies, so that a wrong stride shows as a wrong number."""

from __future__ import annotations

import numpy as np


def labels(shape):
    """Values that differ between neighbours along every axis and are exact in every type used here."""
    value = np.zeros(shape, np.int64)
    for axis, step in zip(range(len(shape) - 1, -1, -1), (1, 7, 31), strict=False):
        value = value + step * np.arange(shape[axis]).reshape(-1, *[1] * (len(shape) - 1 - axis))
    return (value % 101 - 50).astype(np.float32)


def q8_0(values, big=False):
    """Q8_0 blocks of small integers: scale 1, so the codes are the values."""
    blocks = values.reshape(-1, 32).astype(np.int8).view(np.uint8)
    scale = np.full((len(blocks), 1), 1, ">f2" if big else "<f2").view(np.uint8)
    return np.concatenate([scale, blocks], axis=1).tobytes()


def q4_0(values):
    """Q4_0 blocks of integers -8 to 7: low nibbles are the first half of a block."""
    codes = (values.reshape(-1, 2, 16) + 8).astype(np.uint8)
    scale = np.full((len(codes), 1), 1, "<f2").view(np.uint8)
    return np.concatenate([scale, codes[:, 0] | codes[:, 1] << 4], axis=1).tobytes()


def add(file, name, shape, kind, big=False):
    """Add a labelled tensor to a gguf_bytes.File; returns its values."""
    values = labels(shape)
    if kind == 8:
        raw = q8_0(values, big)
    elif kind == 2:
        values = values % 16 - 8
        raw = q4_0(values)
    else:
        raw = values.astype({0: "f4", 1: "f2", 26: "i4"}[kind]).tobytes()
        values = values.astype(np.int32) if kind == 26 else values
    file.tensor(name, shape, kind, raw)
    return values
