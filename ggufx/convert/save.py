"""A GGUF file as a Hugging Face checkpoint: weights under their names there, config.json, and the tokenizer's files."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import GGUFError
from ..formats.tensor_types import QType
from ..read.reader import open as open_gguf
from ..write.outfile import OutputFile
from ..write.stream import Progress
from .architectures import architecture_of, architectures_named
from .back import Restored, main_dtype, restored_tensors, xielu_tensors
from .back_config import config_text, derived_config
from .back_tokenizer import tokenizer_files
from .checkpoint import read_json
from .hparams import Config

__all__ = ["SavedCheckpoint", "save_checkpoint"]

_DTYPES = {"float32": ("F32", 4), "float16": ("F16", 2), "bfloat16": ("BF16", 2)}
_SHORT = {"f32": "float32", "fp32": "float32", "f16": "float16", "fp16": "float16", "bf16": "bfloat16"}


@dataclass(frozen=True)
class SavedCheckpoint:
    """What was written.

    Attributes
    ----------
    paths : tuple of str
        The files.
    arch : str
        The GGUF file's architecture.
    class_name : str
        The model's class.
    dtype : str
        The weights' type.
    tensors : int
    tokenizer : str
        Why there are no tokenizer files, else empty.
    """

    paths: tuple[str, ...]
    arch: str
    class_name: str
    dtype: str
    tensors: int
    tokenizer: str = ""


def save_checkpoint(
    source: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    dtype: str | None = None,
    sync: bool = True,
    progress: Progress | None = None,
) -> SavedCheckpoint:
    """Write a GGUF file as a Hugging Face checkpoint: the way back of :func:`ggufx.convert`.

    Parameters
    ----------
    source : path-like
        A GGUF file.
    folder : path-like
        Where model.safetensors, config.json, tokenizer_config.json and tokenizer.json or tokenizer.model go; it is
        made where it isn't there.
    config : mapping or path-like, optional
        The original config.json, which says more than a file does. Without it one is made from the metadata, and
        proved by making the metadata of it again.
    dtype : str, optional
        float32, float16 or bfloat16; by default the file's own half precision, bfloat16 for quantized files, float32
        where all is that. Float32 tensors that would lose by it stay.
    sync : bool
        Wait for the disk before each file appears.
    progress : callable, optional
        Called as ``progress(name, done, total)`` with bytes of weights.

    Returns
    -------
    SavedCheckpoint

    Raises
    ------
    GGUFError
        If the architecture isn't known, a tensor has no name in a checkpoint, or the file doesn't say enough for a
        configuration.
    """
    wanted = None if dtype is None else _SHORT.get(dtype, dtype)
    if wanted is not None and wanted not in _DTYPES:
        raise ValueError(f"dtype is {dtype!r}, float32, float16 or bfloat16 was expected")
    with open_gguf(source) as f:
        arch = str(f.metadata.get("general.architecture"))
        rows = architectures_named(arch)
        if not rows:
            raise GGUFError(f"{source}: models of architecture {arch!r} have no way back to a checkpoint yet")
        if config is None:
            made = derived_config(f.metadata, f.tensors, rows[0])
        elif isinstance(config, Mapping):
            made = Config(config, "config")
        else:
            made = Config(read_json(Path(config)), os.fspath(config))
        row = architecture_of(made)
        if row.name != arch:
            raise GGUFError(f"{made.source}: a {made.class_name} is {row.name}, the file is {arch}")
        kind = wanted or main_dtype(f.tensors)
        restored = restored_tensors(f.tensors, row, made)
        restored = sorted([*restored, *xielu_tensors(f.metadata)], key=lambda r: r.name)
        files = {"config.json": config_text(made, kind).encode()}
        reason = ""
        try:
            files.update(tokenizer_files(f.metadata))
        except GGUFError as error:
            reason = str(error)
        os.makedirs(folder, exist_ok=True)
        weights = os.path.join(os.fspath(folder), "model.safetensors")
        paths = [_write(weights, restored, kind, [os.fspath(source)], sync=sync, progress=progress)]
        for name, data in files.items():
            paths.append(_write_whole(os.path.join(os.fspath(folder), name), data, sync=sync))
    return SavedCheckpoint(tuple(paths), arch, made.class_name, kind, len(restored), reason)


def _cast(values: npt.NDArray[Any], kind: str) -> npt.NDArray[Any]:
    """Values in a type, halves rounded to the nearest even; bfloat16 as its bits."""
    values = np.ascontiguousarray(values, np.float32)
    if kind == "float32":
        return values
    if kind == "float16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16)
    from ..codec.encode import quantize

    flat = values.reshape(1, -1)
    return quantize(flat, QType.BF16, threads=1, nonfinite="error").view("<u2").reshape(values.shape)


def _kind_of(r: Restored, kind: str) -> str:
    """The type of one tensor: float32 where the file has that, and less would lose something."""
    if kind == "float32" or not all(t.qtype == QType.F32 for t in r.sources):
        return kind
    values = np.ascontiguousarray(r.make(), np.float32)
    cast = _cast(values, kind)
    wide = (cast.astype(np.uint32) << 16).view(np.float32) if kind == "bfloat16" else cast.astype(np.float32)
    # What a conversion added and that is taken away again may be off in the last bits.
    return kind if np.allclose(wide, values, rtol=2**-16, atol=2**-24) else "float32"


def _write(
    path: str, restored: list[Restored], kind: str, inputs: list[str], *, sync: bool, progress: Progress | None
) -> str:
    kinds = [_kind_of(r, kind) for r in restored]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for r, own in zip(restored, kinds, strict=True):
        dtype, size = _DTYPES[own]
        end = at + math.prod(r.shape) * size
        header[r.name] = {"dtype": dtype, "shape": list(r.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    out = OutputFile(path, inputs=inputs, sync=sync)
    try:
        out.write(len(text).to_bytes(8, "little") + text)
        done = 0
        for r, own in zip(restored, kinds, strict=True):
            values = r.make()
            if values.shape != r.shape:
                raise GGUFError(f"tensor {r.name!r}: its values have shape {values.shape}, {r.shape} was planned")
            data = _cast(values, own)
            out.write(data.reshape(-1).view(np.uint8).data)
            done += data.nbytes
            if progress is not None:
                progress(r.name, done, at)
        out.finish(8 + len(text) + at)
        out.publish()
    finally:
        out.discard()
    return out.target


def _write_whole(path: str, data: bytes, *, sync: bool) -> str:
    out = OutputFile(path, sync=sync)
    try:
        out.write(data)
        out.finish(len(data))
        out.publish()
    finally:
        out.discard()
    return out.target
