"""Tiny checkpoints of every architecture, made from what tests/vectors/checkpoints.json says of them.

Weights come from their names, so only names, types and shapes are stored, and the sha256 of the files that llama.cpp's
converter made of them. tools/make_convert_vectors.py writes the vectors.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

VECTORS = Path(__file__).parents[1] / "vectors" / "checkpoints.json"
ITEM_SIZES = {"F32": 4, "F16": 2, "BF16": 2, "U8": 1, "I32": 4, "I64": 8}


@functools.cache
def vectors() -> dict[str, Any]:
    """Files by their keys, and checkpoints by their names."""
    found: dict[str, Any] = json.loads(VECTORS.read_text(encoding="utf-8"))
    return found


def weights(name: str, dtype: str, shape: tuple[int, ...], scale: float = 0.125) -> bytes:
    """A tensor's bytes: normal numbers that its name decides."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    rng = np.random.Generator(np.random.PCG64(seed))
    if dtype == "U8":
        # Exponents where they are scales, which stay far from the largest.
        low, high = (110, 130) if name.endswith("_scales") else (0, 256)
        return rng.integers(low, high, shape, dtype=np.uint8).tobytes()
    if dtype in ("I32", "I64"):
        return np.zeros(shape, "<i4" if dtype == "I32" else "<i8").tobytes()
    values = rng.standard_normal(math.prod(shape), dtype=np.float32) * np.float32(scale)
    if name.endswith("A_log"):
        values[:] = 0  # minus one, whatever library takes the exponential
    if dtype == "F32":
        return values.tobytes()
    if dtype == "F16":
        return values.astype(np.float16).tobytes()
    return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()


def write_safetensors(path: Path, tensors: dict[str, tuple[str, tuple[int, ...], bytes]]) -> None:
    """Write tensors as type, shape and bytes."""
    header: dict[str, Any] = {}
    at = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data for _, _, data in tensors.values()))


def checkpoint(model: str, folder: Path) -> Path:
    """Write a checkpoint into a folder of the model's name; returns that folder."""
    entry = vectors()["checkpoints"][model]
    target = folder / model
    target.mkdir(parents=True)
    for name, content in {**vectors()["files"][entry["files"]], **entry.get("more", {})}.items():
        path = target / name
        path.parent.mkdir(exist_ok=True)
        if isinstance(content, dict):
            path.write_bytes(base64.b64decode(content["base64"]))
        else:
            path.write_text(content, encoding="utf-8")
    (target / "config.json").write_text(json.dumps(entry["config"]))
    scale = entry.get("scale", 0.125)
    tensors = {
        name: (dtype, tuple(shape), weights(name, dtype, tuple(shape), scale))
        for name, dtype, shape in entry["tensors"]
    }
    if entry.get("signs"):  # one size for all weights, so that their mean is it exactly
        tensors = {n: (d, s, _signs(n, b) if len(s) == 2 else b) for n, (d, s, b) in tensors.items()}
    write_safetensors(target / "model.safetensors", tensors)
    return target


def adapter(folder: Path, hidden: int = 64, rank: int = 4, keys: int = 32, inner: int = 96, **config: Any) -> Path:
    """Write a LoRA adapter of a model with two blocks; returns its folder."""
    folder.mkdir(parents=True)
    said = {"peft_type": "LORA", "lora_alpha": 16, "r": rank, **config}
    (folder / "adapter_config.json").write_text(json.dumps(said))
    sizes = {"self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (keys, hidden), "mlp.down_proj": (hidden, inner)}
    tensors = {}
    for block in range(2):
        for module, (rows, columns) in sizes.items():
            for part, shape in (("lora_A", (rank, columns)), ("lora_B", (rows, rank))):
                name = f"base_model.model.model.layers.{block}.{module}.{part}.weight"
                # The weights of the adapter that the reference's sha256 is of.
                tensors[name] = ("F32", shape, weights(f"lora/{name}", "F32", shape))
    write_safetensors(folder / "adapter_model.safetensors", tensors)
    return folder


def _signs(name: str, data: bytes) -> bytes:
    bits = np.frombuffer(data, np.uint16)
    return (bits & 0x8000 | 0x3F00).astype(np.uint16).tobytes()
