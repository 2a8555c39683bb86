"""Working through a model layer by layer in memory that stays flat."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ..codec.decode import output_dtype
from ..codec.threads import start_threads
from ..errors import UnknownNameError
from ..formats.tensor_types import QType
from ..read.tensor import Tensor
from .holding import holding
from .loading import ALIGN, INTEGERS, aligned_memory

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["BufferPool", "Layer", "Layers"]


class BufferPool:
    """Buffers handed on from layer to layer.

    :meth:`take` carves a layer's arrays out of one buffer, :meth:`give` takes the buffer back for the next layer. A
    buffer that is too small is let go before a larger one is made, so what the pool holds never exceeds what was in use
    at once.

    Parameters
    ----------
    nbytes : int
        The least size of a new buffer: the largest layer's, where that is known.
    """

    def __init__(self, nbytes: int = 0) -> None:
        self.nbytes = nbytes
        self._free: list[npt.NDArray[np.uint8]] = []
        self._taken: dict[int, tuple[dict[str, npt.NDArray[Any]], npt.NDArray[np.uint8]]] = {}
        self._lock = threading.Lock()

    @staticmethod
    def size(wanted: Mapping[str, tuple[tuple[int, ...], npt.DTypeLike]]) -> int:
        """Bytes that a set of arrays takes in a buffer."""
        return sum(-(-prod(shape) * np.dtype(dtype).itemsize // ALIGN) * ALIGN for shape, dtype in wanted.values())

    def take(self, wanted: Mapping[str, tuple[tuple[int, ...], npt.DTypeLike]]) -> dict[str, npt.NDArray[Any]]:
        """Hand out arrays of given shapes and dtypes, 64-byte aligned; what they hold is undefined.

        Parameters
        ----------
        wanted : mapping of str to (shape, dtype)
            What to make.

        Returns
        -------
        dict of str to ndarray
        """
        size = self.size(wanted)
        with self._lock:
            memory = next((free for free in self._free if len(free) >= size), None)
            if memory is not None:
                self._free = [free for free in self._free if free is not memory]
            elif self._free:
                self._free.pop()
        if memory is None:
            memory = aligned_memory(max(size, self.nbytes, ALIGN))
        arrays, start = {}, 0
        for name, (shape, dtype) in wanted.items():
            nbytes = prod(shape) * np.dtype(dtype).itemsize
            arrays[name] = memory[start : start + nbytes].view(dtype).reshape(shape)
            start += -(-nbytes // ALIGN) * ALIGN
        with self._lock:
            self._taken[id(arrays)] = arrays, memory
        return arrays

    def give(self, arrays: dict[str, npt.NDArray[Any]]) -> None:
        """Take back what :meth:`take` returned; its arrays will be overwritten."""
        with self._lock:
            taken = self._taken.pop(id(arrays), None)
            if taken is None:
                raise ValueError("these arrays aren't from this pool, or were given back already")
            self._free.append(taken[1])


class Layer(Mapping[str, Tensor]):
    """The tensors of one block by their names inside it (``attn_q.weight``); full names work too.

    Attributes
    ----------
    number : int
        The block's number.
    """

    def __init__(self, number: int, prefix: str, tensors: dict[str, Tensor]) -> None:
        self.number = number
        self._prefix = f"{prefix}.{number}."
        self._tensors = tensors

    def __getitem__(self, name: str) -> Tensor:
        try:
            return self._tensors[name.removeprefix(self._prefix)]
        except KeyError:
            raise UnknownNameError(f"block {self.number} has no tensor {name!r}", name, self) from None

    def __len__(self) -> int:
        return len(self._tensors)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __repr__(self) -> str:
        return f"<Layer {self.number}: {len(self)} tensors, {sum(t.nbytes for t in self.values())} bytes>"

    def wanted(self, dtype: npt.DTypeLike | str | None) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Shape and dtype of each tensor's array when decoded to `dtype`; integers keep theirs."""
        found = {}
        for name, tensor in self.items():
            tensor.check_readable()
            kind = QType(tensor.qtype)
            found[name] = tensor.shape, output_dtype(None if kind in INTEGERS else dtype, kind)
        return found

    def dequantize(
        self,
        dtype: npt.DTypeLike | str | None = None,
        out: dict[str, npt.NDArray[Any]] | None = None,
        *,
        threads: int | None = None,
        drop: bool = False,
    ) -> dict[str, npt.NDArray[Any]]:
        """Decode the layer.

        Parameters
        ----------
        dtype, threads
            As for :func:`ggufx.dequantize`; integer tensors keep their dtype.
        out : dict of str to ndarray, optional
            An array for each tensor, from an earlier layer of the same shapes or a :class:`BufferPool`.
        drop : bool
            Let go of the file's pages behind each tensor.

        Returns
        -------
        dict of str to ndarray
            `out` if it was given.
        """
        if out is not None and out.keys() != self.keys():
            raise ValueError(f"out has {sorted(out)}, block {self.number} has {sorted(self)}")
        arrays = {} if out is None else out
        with holding(self.values(), out):
            for name, tensor in self.items():
                own = None if tensor.qtype in INTEGERS else dtype
                arrays[name] = tensor.dequantize(own, None if out is None else out[name], threads=threads)
                if drop:
                    tensor.advise("dontneed")
        return arrays


class Layers(Sequence[Layer]):
    """A model's blocks in order of their numbers.

    Attributes
    ----------
    outside : dict of str to Tensor
        The tensors that belong to no block: embeddings, output, final norm.
    """

    def __init__(self, tensors: Mapping[str, Tensor], prefix: str = "blk") -> None:
        pattern = re.compile(re.escape(prefix) + r"\.(\d{1,6})\.(.+)", re.DOTALL)
        blocks: dict[int, dict[str, Tensor]] = {}
        self.outside: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            if match := pattern.fullmatch(name):
                blocks.setdefault(int(match[1]), {})[match[2]] = tensor
            else:
                self.outside[name] = tensor
        self._layers = [Layer(number, prefix, blocks[number]) for number in sorted(blocks)]

    def __getitem__(self, i: Any) -> Any:
        return self._layers[i]

    def __len__(self) -> int:
        return len(self._layers)

    def __repr__(self) -> str:
        return f"<Layers: {len(self)} blocks, {len(self.outside)} tensors outside them>"

    def decoded(
        self,
        dtype: npt.DTypeLike | str | None = None,
        *,
        pool: BufferPool | None = None,
        ahead: bool = True,
        threads: int | None = None,
        drop: bool = True,
    ) -> Iterator[tuple[int, dict[str, npt.NDArray[Any]]]]:
        """Decode layer after layer into recycled buffers.

        Parameters
        ----------
        dtype, threads
            As for :func:`ggufx.dequantize`.
        pool : BufferPool, optional
            Where the buffers come from and return to; by default one of this loop's own.
        ahead : bool
            Decode the next layer in a thread while the caller uses this one: two layers are in memory, without it one.
        drop : bool
            Let go of the file's pages behind each tensor, so that the map doesn't count as memory in use.

        Yields
        ------
        number : int
            The block's number.
        arrays : dict of str to ndarray
            Its values by name inside the block, **valid until the next step**: copy what should stay.

        Examples
        --------
        >>> for number, weights in f.layers().decoded("bfloat16"):  # doctest: +SKIP
        ...     run(number, weights["attn_q.weight"])
        """
        if pool is None:
            pool = BufferPool(max((BufferPool.size(layer.wanted(dtype)) for layer in self), default=0))

        def decode(layer: Layer) -> dict[str, npt.NDArray[Any]]:
            arrays = pool.take(layer.wanted(dtype))
            try:
                return layer.dequantize(dtype, arrays, threads=threads, drop=drop)
            except BaseException:
                pool.give(arrays)
                raise

        return self._steps(decode, pool, ahead)

    def _steps(self, decode: Any, pool: BufferPool, ahead: bool) -> Iterator[tuple[int, dict[str, npt.NDArray[Any]]]]:
        following: _Ahead | None = None
        try:
            for i, layer in enumerate(self):
                arrays = decode(layer) if following is None else following.result()
                following = _Ahead.of(decode, self[i + 1]) if ahead and i + 1 < len(self) else None
                try:
                    yield layer.number, arrays
                finally:
                    pool.give(arrays)
        finally:
            if following is not None:  # the caller stopped early, or an error did
                following.join()
                if following.arrays is not None:
                    pool.give(following.arrays)


class _Ahead:
    """One layer being decoded in a thread of its own."""

    def __init__(self, decode: Any, layer: Layer) -> None:
        self.arrays: dict[str, npt.NDArray[Any]] | None = None
        self.error: BaseException | None = None
        self.threads: list[threading.Thread] = []
        start_threads(partial(self._run, decode, layer), 1, self.threads)

    @classmethod
    def of(cls, decode: Any, layer: Layer) -> _Ahead | None:
        """Begin with a layer; None where no thread can be started, so that it's decoded when its turn comes."""
        ahead = cls(decode, layer)
        return ahead if ahead.threads else None

    def _run(self, decode: Any, layer: Layer) -> None:
        try:
            self.arrays = decode(layer)
        except BaseException as error:  # raised again where the result is asked for
            self.error = error

    def join(self) -> None:
        for thread in self.threads:
            thread.join()

    def result(self) -> dict[str, npt.NDArray[Any]]:
        self.join()
        if self.error is not None:
            error, self.error = self.error, None
            try:
                raise error
            finally:
                del error  # its traceback holds this frame
        assert self.arrays is not None
        return self.arrays
