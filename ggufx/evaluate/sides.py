"""One side of a comparison: a GGUF file, a set of shards, a URL or a checkpoint, as weights by GGUF name."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..codec.decode import dequantize
from ..errors import GGUFError
from ..formats.tensor_types import QType, type_name
from ..read.reader import open as open_gguf

if TYPE_CHECKING:
    from ..read.reader import GGUFFile
    from ..read.tensor import Tensor

__all__ = ["Side", "Weights", "open_side"]

Array = npt.NDArray[Any]


class Weights:
    """A tensor of one side.

    Attributes
    ----------
    name : str
    shape : tuple of int
        In numpy's order.
    type_name : str
        Of its values as they are stored.
    block_size : int
        Values that share scales; 1 for plain numbers.
    nbytes : int or None
        As stored; None where a conversion makes the values.
    tensor : Tensor or None
        Where it lies in a GGUF file.
    """

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        kind: str,
        *,
        block_size: int = 1,
        nbytes: int | None = None,
        tensor: Tensor | None = None,
        make: Callable[[], Array] | None = None,
    ) -> None:
        self.name, self.shape, self.type_name = name, shape, kind
        self.block_size, self.nbytes, self.tensor = block_size, nbytes, tensor
        self._make = make

    @property
    def width(self) -> int:
        """Values of a row."""
        return self.shape[-1] if self.shape else 1

    @property
    def size(self) -> int:
        """Number of values."""
        return prod(self.shape)

    @property
    def count(self) -> int:
        """Rows, of all experts together."""
        return self.size // self.width if self.width else 0

    @contextmanager
    def reader(self) -> Iterator[Callable[[int, int], Array]]:
        """Yield a function from a range of rows to their values, float32 of shape (rows, width).

        What a conversion makes is made once and kept as long as the context lasts.
        """
        if self.tensor is None:
            assert self._make is not None
            values = self._make().reshape(self.count, self.width)
            yield lambda start, stop: values[start:stop].astype(np.float32)
        else:
            yield self._rows

    def _rows(self, start: int, stop: int) -> Array:
        tensor = self.tensor
        assert tensor is not None
        part = tensor.rows(start, stop) if tensor.shape else tensor
        with np.errstate(all="ignore"):
            values: Array = np.asarray(part.dequantize(threads=1), np.float32)
        return values.reshape(stop - start, self.width)

    def packed(self) -> npt.NDArray[np.uint8] | None:
        """The stored bytes, where they lie in a file's order."""
        return None if self.tensor is None else self.tensor.packed()


class Side:
    """All weights of one file or checkpoint.

    Attributes
    ----------
    path : str
    file : GGUFFile or None
        The open file; None for a checkpoint.
    weights : dict
        By name, in the file's order.
    """

    def __init__(self, path: str, file: GGUFFile | None, weights: dict[str, Weights]) -> None:
        self.path, self.file, self.weights = path, file, weights


@contextmanager
def open_side(path: str | os.PathLike[str]) -> Iterator[Side]:
    """Open a GGUF file, a set of shards, a URL, a checkpoint's folder or one safetensors file.

    A checkpoint's tensors get the names, shapes and row orders that a conversion gives them. A safetensors file without
    a config.json beside it keeps its names.

    Raises
    ------
    GGUFError
        If it is none of these, or broken.
    """
    name = os.fspath(path)
    if "://" not in name and (os.path.isdir(name) or name.endswith((".safetensors", ".safetensors.index.json"))):
        yield Side(name, None, _checkpoint(Path(name)))
        return
    with open_gguf(path) as f:
        yield Side(name, f, {t.name: _weights(t) for t in f.tensors.values()})


def _weights(tensor: Tensor) -> Weights:
    block = tensor.qtype.block_size if isinstance(tensor.qtype, QType) else 1
    kind = type_name(tensor.qtype)
    return Weights(tensor.name, tensor.shape, kind, block_size=block, nbytes=tensor.nbytes, tensor=tensor)


def _checkpoint(path: Path) -> dict[str, Weights]:
    from ..convert.checkpoint import read_safetensors

    folder = path if path.is_dir() else path.parent
    if (folder / "config.json").is_file():
        from ..convert.job import Job

        return {p.name: _planned(p) for p in Job(folder).planned}
    if path.is_dir() or not path.is_file():
        raise GGUFError(f"{path}: no config.json there, so its names can't be mapped to GGUF's")
    stored = read_safetensors(path)
    return {t.name: Weights(t.name, t.shape, t.dtype, nbytes=None, make=t.values) for t in stored}


def _planned(planned: Any) -> Weights:
    kind: QType | None = planned.packed
    if kind is None:
        return Weights(planned.name, planned.shape, "checkpoint", make=planned.make)

    def make() -> Array:
        return dequantize(np.ascontiguousarray(planned.make()).view(np.uint8), kind, shape=planned.shape)

    return Weights(planned.name, planned.shape, kind.name, block_size=kind.block_size, make=make)
