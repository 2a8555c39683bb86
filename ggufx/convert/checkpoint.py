"""Reading checkpoints: safetensors files, one or many, by a small reader of our own; .bin files through torch.

A checkpoint is an index of tensors by name; the bytes of one are read when they are asked for. Everything a header
says is checked before use, since a file is data from a stranger.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..codec.decode import dequantize
from ..errors import GGUFError
from ..formats.tensor_types import QType

__all__ = ["Checkpoint", "StoredTensor", "read_json", "read_safetensors"]

Array = npt.NDArray[Any]

# The format's own limit on headers, in bytes.
MAX_HEADER = 100_000_000
# safetensors' type names and numpy's; what numpy doesn't know is read as its bits.
DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "|i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "|u1",
    "BOOL": "|u1",
    "F8_E4M3": "|u1",
    "F8_E5M2": "|u1",
    "F8_E8M0": "|u1",
}
FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
TORCH_NAMES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}


class StoredTensor(NamedTuple):
    """A tensor of a checkpoint, whose bytes haven't been read yet.

    Attributes
    ----------
    name : str
    dtype : str
        As safetensors names it: F32, BF16, F8_E4M3 ...
    shape : tuple of int
    path : str
        The file that holds it.
    start : int
        Where its bytes begin in the file.
    loaded : object or None
        The torch tensor, where the file is a pickled one.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: str
    start: int
    loaded: Any = None

    def bits(self, start: int = 0, stop: int | None = None) -> Array:
        """The tensor as stored, or a part of its first axis; bfloat16 comes as uint16, 8-bit floats as uint8."""
        if self.loaded is not None:
            whole = _torch_bits(self.loaded, self.dtype).reshape(self.shape)
            return whole if stop is None else whole[start:stop]
        shape = self.shape if stop is None else (stop - start, *self.shape[1:])
        count, dtype = math.prod(shape), np.dtype(DTYPES[self.dtype])
        offset = self.start + start * math.prod(self.shape[1:]) * dtype.itemsize
        array: Array = np.fromfile(self.path, dtype, count, offset=offset)
        if array.size != count:
            raise GGUFError(f"{self.path}: tensor {self.name!r} ends after {array.size} of {count} values")
        return array.reshape(shape)

    def values(self, start: int = 0, stop: int | None = None) -> Array:
        """The tensor, or a part, as float16 where it is that, else as float32, as the reference computes."""
        if self.dtype not in FLOATS and self.dtype not in ("I8", "I16", "I32", "I64", "U8", "BOOL"):
            raise GGUFError(f"{self.path}: tensor {self.name!r} is {self.dtype}, which this conversion can't read")
        bits = self.bits(start, stop)
        if self.dtype == "BF16":
            return dequantize(bits.reshape(-1), QType.BF16, shape=bits.shape, threads=1)
        if self.dtype == "F64":
            with np.errstate(over="ignore"):
                return bits.astype(np.float32)
        return bits if self.dtype in ("F32", "F16") else bits.astype(np.float32)


class Checkpoint(Mapping[str, StoredTensor]):
    """The tensors of a folder, in the reference's order: file by file, and in a file as its header says.

    Parameters
    ----------
    folder : path-like
        With ``model*.safetensors``, or ``pytorch_model*.bin`` where there are none of these.

    Raises
    ------
    GGUFError
        If there are no weights, a file is damaged, a name is there twice, or the index and the files disagree.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise GGUFError(f"{self.folder} is no folder; a checkpoint's folder with config.json was expected")
        self.paths, index = _parts(self.folder)
        self.tensors: dict[str, StoredTensor] = {}
        for path in self.paths:
            for tensor in read_tensors(path):
                if tensor.name in self.tensors:
                    raise GGUFError(f"{path}: tensor {tensor.name!r} is in {self.tensors[tensor.name].path} too")
                self.tensors[tensor.name] = tensor
        if index is not None:
            for name in sorted(set(index) ^ set(self.tensors)):
                where = "only in the index" if name in index else "not in the index"
                raise GGUFError(f"{self.folder}: tensor {name!r} is {where}; files are missing or of another model")
        if not self.tensors:
            raise GGUFError(f"{self.folder}: the weights files hold no tensor")

    def __getitem__(self, name: str) -> StoredTensor:
        return self.tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)


def _parts(folder: Path) -> tuple[list[Path], dict[str, str] | None]:
    """The weights files, sorted, and the index's map from tensor to file, where there is an index."""
    names = sorted(os.listdir(folder))
    for prefix, suffix, index_name in (
        ("model", ".safetensors", "model.safetensors.index.json"),
        ("pytorch_model", ".bin", "pytorch_model.bin.index.json"),
    ):
        parts = [name for name in names if name.startswith(prefix) and name.endswith(suffix)]
        if index_name in names:
            index = read_json(folder / index_name).get("weight_map")
            if not isinstance(index, dict) or not all(isinstance(v, str) for v in index.values()):
                raise GGUFError(f"{folder / index_name}: weight_map isn't a map from tensors to files")
            parts = sorted(set(index.values()))
            for part in parts:
                if os.path.basename(part) != part or part not in names:
                    raise GGUFError(f"{folder / index_name} names the file {part!r}, which isn't in the folder")
            return [folder / part for part in parts], index
        if parts:
            return [folder / part for part in parts], None
    raise GGUFError(f"{folder}: no weights there; model*.safetensors or pytorch_model*.bin was expected")


def read_tensors(path: Path) -> list[StoredTensor]:
    """The tensors of a .safetensors or .bin file, by name in the former."""
    return _read_torch(path) if path.suffix == ".bin" else read_safetensors(path)


def read_safetensors(path: Path) -> list[StoredTensor]:
    """The tensors of a safetensors file by name, every number of the header checked."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        start = file.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length > min(MAX_HEADER, size - 8):
            raise GGUFError(f"{path}: a header of {length} bytes in a file of {size}; this is no safetensors file")
        try:
            header = json.loads(file.read(length))
        except ValueError as error:
            raise GGUFError(f"{path}: the header is no JSON: {error}") from None
    if not isinstance(header, dict):
        raise GGUFError(f"{path}: the header is no JSON object")
    first = 8 + length
    tensors = []
    for name, entry in sorted(header.items()):
        if name == "__metadata__":
            continue
        try:
            dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
            fine = all(type(n) is int and n >= 0 for n in (*shape, begin, end))
        except (KeyError, TypeError, ValueError):
            fine = False
        if not fine:
            raise GGUFError(f"{path}: tensor {name!r}: its header entry isn't dtype, shape and data_offsets")
        if dtype not in DTYPES:
            raise GGUFError(f"{path}: tensor {name!r} has type {dtype!r}, which isn't known")
        need = math.prod(shape) * np.dtype(DTYPES[dtype]).itemsize
        if end - begin != need or first + end > size:
            raise GGUFError(
                f"{path}: tensor {name!r}: {shape} of {dtype} is {need} bytes, the header says {begin} to {end} of "
                f"{size - first}"
            )
        tensors.append(StoredTensor(name, dtype, shape, str(path), first + begin))
    return tensors


def _read_torch(path: Path) -> list[StoredTensor]:
    """The tensors of a pickled file, loaded without running what it contains."""
    try:
        import torch
    except ImportError as error:
        raise ImportError(f"{path}: .bin files need torch; install it with: pip install ggufx[torch]") from error
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # torch raises whatever its unpickler meets
        raise GGUFError(f"{path}: torch can't load it as weights only: {error}") from error
    if not isinstance(loaded, dict):
        raise GGUFError(f"{path}: {type(loaded).__name__} instead of a dict of tensors")
    tensors = []
    for name, tensor in loaded.items():
        dtype = TORCH_NAMES.get(str(getattr(tensor, "dtype", "")).removeprefix("torch."))
        if dtype is None:
            raise GGUFError(f"{path}: {name!r} is {type(tensor).__name__}, a tensor of a known type was expected")
        tensors.append(StoredTensor(name, dtype, tuple(tensor.shape), str(path), 0, tensor.detach()))
    return tensors


def _torch_bits(tensor: Any, dtype: str) -> Array:
    import torch

    wide = {"BF16": torch.int16, "F8_E4M3": torch.uint8, "F8_E5M2": torch.uint8, "BOOL": torch.uint8}.get(dtype)
    flat = tensor.contiguous()
    array: Array = (flat if wide is None else flat.view(wide)).numpy()
    return array.view(np.uint16) if dtype == "BF16" else array


def read_json(path: Path, kind: type = dict) -> Any:
    """A JSON object, or value of another `kind`, from a file.

    Raises
    ------
    GGUFError
        If the file isn't there or holds something else.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise GGUFError(f"{path} isn't there") from None
    except ValueError as error:
        raise GGUFError(f"{path} is no JSON: {error}") from None
    if not isinstance(value, kind):
        raise GGUFError(f"{path}: a JSON {kind.__name__} was expected, not {type(value).__name__}")
    return value
