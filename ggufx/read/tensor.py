"""One tensor of an open file: what it is, its packed bytes, and its values on demand."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from math import prod
from operator import index
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from ..codec.arrays import given_array
from ..codec.decode import check_out, dequantize, output_dtype
from ..errors import GGUFError, NoAttributeError
from ..formats.tensor_types import NUMERIC_DTYPES, QType, row_nbytes
from .gathering import entries
from .slices import locate, reshaped
from .sources import Hint, Source

if TYPE_CHECKING:
    import numpy.typing as npt


__all__ = ["Tensor"]

# What the names of stacked expert tensors hold, also of their biases and scales.
STACK_MARKS = ("_exps", "_chexps", "ffn_gate_inp.", "exp_probs_b")


class Tensor:
    """A tensor of a GGUF file. Made by :func:`ggufx.open`; holds no values of its own.

    Attributes
    ----------
    name : str
        Its name in the file.
    qtype : QType or int
        Its type; the plain type id where this version doesn't know it.
    shape : tuple of int
        Logical shape in numpy's order; the last dimension is the row. ``()`` is one element.
    ggml_shape : tuple of int
        The same as the file stores it, row length first.
    nbytes : int
        Packed size in bytes. Of an unknown type: the span to the next tensor.
    offset : int
        Where the packed bytes begin in the file.
    is_aligned : bool
        Whether the stored offset is a multiple of the file's alignment, as ggml expects.
    problem : str or None
        Why the tensor can't be read, in a file opened with ``strict=False``.
    """

    __slots__ = ("_source", "ggml_shape", "is_aligned", "name", "nbytes", "offset", "problem", "qtype")

    def __init__(
        self,
        source: Source,
        name: str,
        qtype: QType | int,
        ggml_shape: tuple[int, ...],
        offset: int,
        nbytes: int,
        *,
        is_aligned: bool = True,
        problem: str | None = None,
    ) -> None:
        self._source = source
        self.name = name
        self.qtype = qtype
        self.ggml_shape = ggml_shape
        self.offset = offset
        self.nbytes = nbytes
        self.is_aligned = is_aligned
        self.problem = problem

    @property
    def shape(self) -> tuple[int, ...]:
        """Logical shape in numpy's order."""
        return self.ggml_shape[::-1]

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.ggml_shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.ggml_shape)

    @property
    def byteorder(self) -> str:
        """Byte order of the stored fields, ``"little"`` or ``"big"``."""
        return "big" if self._source.big_endian else "little"

    @property
    def path(self) -> str:
        """The file it lies in, as it was opened."""
        return self._source.label

    @property
    def is_mapped(self) -> bool:
        """Whether the bytes lie in a map, so that reading them costs nothing until they are touched."""
        return self._source.mapped

    @property
    def label(self) -> str:
        """The file and the tensor, for messages."""
        return f"{self._source.label}: tensor {self.name!r}"

    @property
    def data(self) -> npt.NDArray[Any]:
        """The packed values as they are stored, without a copy where the file is mapped.

        Block types give uint8 of shape ``(..., bytes per row)``; F32, F64, F16 and integers give an array of their own
        dtype (a big-endian one in a big-endian file), BF16 its bit patterns as uint16. An unknown type gives its bytes
        in one dimension. Read-only unless the file was opened with ``mode="c"`` or ``mode="read"``.

        Raises
        ------
        GGUFError
            If the file is closed, or the tensor has a :attr:`problem`.
        """
        raw = self.packed()
        if not isinstance(self.qtype, QType):
            return raw
        if code := NUMERIC_DTYPES.get(self.qtype):
            return raw.view(np.dtype(code).newbyteorder(">" if self._source.big_endian else "<")).reshape(self.shape)
        return raw.reshape(*self.shape[:-1], row_nbytes(self.shape[-1], self.qtype))

    def packed(self) -> npt.NDArray[np.uint8]:
        """Return the stored bytes in one dimension."""
        if self.problem is not None:
            raise GGUFError(f"{self.problem}; it can't be read")
        return self._source.read(self.offset, self.offset + self.nbytes)

    def dequantize(
        self,
        dtype: npt.DTypeLike | str | None = None,
        out: npt.NDArray[Any] | None = None,
        *,
        threads: int | None = None,
        path: str | None = None,
    ) -> npt.NDArray[Any]:
        """Decode the values, bit-exact with ggml.

        Parameters
        ----------
        dtype : dtype-like, optional
            float32 (the default), float16, ``"bfloat16"`` (uint16 bit patterns) or ``ml_dtypes.bfloat16``. Integer
            tensors keep their own dtype.
        out : ndarray, optional
            Where to put the values: exactly :attr:`shape`, C-contiguous, writable, of the dtype asked for.
        threads : int, optional
            At most this many; ``None`` lets ggufx choose, 1 starts none.
        path : str, optional
            As for :func:`ggufx.dequantize`.

        Returns
        -------
        ndarray
            Of shape :attr:`shape`; `out` if it was given.

        Raises
        ------
        GGUFError
            If the type is unknown or has no decoder, the file is closed, or the tensor has a :attr:`problem`.
        """
        self.check_readable()
        if out is not None:
            self.check_out(out, self.shape, dtype)
        return dequantize(
            self.packed(),
            self.qtype,
            shape=self.shape,
            dtype=dtype,
            out=out,
            threads=threads,
            path=path,
            byteorder=self.byteorder,
        )

    def to_torch(self, device: Any = "cpu", dtype: Any = None, *, threads: int | None = None) -> Any:
        """Decode into a torch tensor; see :func:`ggufx.torch.to_torch`. Needs the extra ``torch``."""
        from ..integrations.torch import to_torch

        return to_torch(self, device, dtype, threads=threads)

    def check_readable(self) -> None:
        """Raise GGUFError if the values can't be decoded."""
        if not isinstance(self.qtype, QType):
            raise GGUFError(
                f"{self.label} has type id {self.qtype}, which this version doesn't know; its {self.nbytes} bytes are "
                "in .data"
            )
        if self.problem is not None:
            raise GGUFError(f"{self.problem}; it can't be read")

    def check_out(self, out: object, shape: tuple[int, ...], dtype: npt.DTypeLike | str | None) -> None:
        """Refuse an `out` that can't take values of this tensor, or lies in the memory that they come from.

        Raises
        ------
        TypeError, ValueError
            Naming the tensor.
        """
        check_out(out, shape, QType(self.qtype), dtype, label=self.label)
        self.refuse_own(out)

    def refuse_own(self, out: Any) -> None:
        """Raise ValueError if an array lies in the memory that the file is read from."""
        if self._source.owns(out):
            raise ValueError(
                f"{self.label}: out lies in the file's own memory, which is read; decode into another array"
            )

    def reading(self) -> AbstractContextManager[None]:
        """Keep the file open to this thread for a call that reads several times, whoever closes it meanwhile."""
        return self._source.reading()

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            data = self.data
            if self.qtype not in NUMERIC_DTYPES or self.qtype == QType.BF16 or dtype not in (None, data.dtype):
                raise ValueError(f"{self.label}: its values must be decoded, which copy=False rules out")
            return data
        if dtype is None or self.qtype not in NUMERIC_DTYPES:
            wanted = None if dtype is None else np.dtype(dtype)
            if wanted is None or wanted.name in ("float32", "float16", "bfloat16"):
                return self.dequantize(wanted)
            return self.dequantize().astype(wanted)
        if self.qtype == QType.BF16:
            return self.dequantize().astype(dtype)
        with np.errstate(all="ignore"):
            return self.data.astype(dtype)

    def _view(self, suffix: str, shape: tuple[int, ...], start: int, nbytes: int) -> Tensor:
        return Tensor(
            self._source,
            self.name + suffix,
            self.qtype,
            shape[::-1],
            self.offset + start,
            nbytes,
            is_aligned=self.is_aligned,
            problem=self.problem,
        )

    def __getitem__(self, key: Any) -> Tensor:
        """Part of the tensor, still packed: ``t[i]``, ``t[a:b]``, ``t[i, a:b]`` ...

        The values must lie next to each other in the file, and rows can only be cut between blocks; anything else
        raises and says what is possible.
        """
        self.check_readable()
        run = locate(key, self.shape, QType(self.qtype), self.label)
        return self._view(run.suffix, run.shape, *run.bytes(QType(self.qtype)))

    def rows(self, start: int, stop: int) -> Tensor:
        """Rows `start` to `stop` of the tensor seen as one matrix of rows, as a packed view.

        Parameters
        ----------
        start, stop : int
            ``0 <= start <= stop <= size / row length``; unlike a slice's, they aren't clamped.

        Returns
        -------
        Tensor
            Of shape ``(stop - start, row length)``.
        """
        self.check_readable()
        if not self.ggml_shape:
            raise GGUFError(f"{self.label} has no dimensions, so no rows")
        width = self.ggml_shape[0]
        count = prod(self.ggml_shape[1:])
        start, stop = index(start), index(stop)
        if not 0 <= start <= stop <= count:
            raise IndexError(f"{self.label}: rows {start} to {stop} are out of range, there are {count}")
        row = row_nbytes(width, QType(self.qtype))
        return self._view(f".rows({start}, {stop})", (stop - start, width), start * row, (stop - start) * row)

    def take(
        self,
        indices: npt.ArrayLike,
        *,
        dtype: npt.DTypeLike | str | None = None,
        out: npt.NDArray[Any] | None = None,
        threads: int | None = None,
    ) -> npt.NDArray[Any]:
        """Decode chosen entries of the first axis (rows of an embedding, experts of a stack) into one array.

        Parameters
        ----------
        indices : array-like of int
            Any shape, any order, repeats allowed; negative ones count from the end.
        out, dtype, threads
            As for :meth:`dequantize`.

        Returns
        -------
        ndarray
            Of shape ``(*indices.shape, *shape[1:])``. Only the bytes of the chosen entries are read.

        Raises
        ------
        IndexError
            If an index is out of range.
        GGUFError
            If an entry isn't a whole number of blocks.
        """
        self.check_readable()
        kind = QType(self.qtype)
        if not self.ggml_shape:
            raise GGUFError(f"{self.label} has no dimensions to take entries of")
        count, item = self.shape[0], self.shape[1:]
        chosen = given_array(indices, f"{self.label}: indices")
        if chosen.size == 0:
            chosen = chosen.astype(np.intp)
        if chosen.dtype.kind not in "iu":
            raise TypeError(f"{self.label}: indices should be integers, not {chosen.dtype}")
        if chosen.size and not (-count <= int(chosen.min()) and int(chosen.max()) < count):
            bad = int(chosen.min()) if int(chosen.min()) < -count else int(chosen.max())
            raise IndexError(f"{self.label}: index {bad} is out of range for axis 0 of size {count}")
        values = prod(item)
        if not item and kind.block_size > 1:
            raise GGUFError(
                f"{self.label}: its {count} values are one row of blocks of {kind.block_size}; decode the whole row, "
                "or a slice on block boundaries"
            )
        shape = (*chosen.shape, *item)
        if out is None:
            out = np.empty(shape, output_dtype(dtype, kind))
        else:
            self.check_out(out, shape, dtype)
            if np.may_share_memory(chosen, out):
                raise ValueError(f"{self.label}: out overlaps the indices")
        flat = (chosen.astype(np.int64) % max(count, 1)).reshape(-1)
        each = values // kind.block_size * kind.block_bytes
        target = out.reshape(len(flat), *item) if item else out.reshape(-1)

        for first, last, packed in entries(self._source, self.offset, count, each, flat):
            part = target[first:last]
            dequantize(packed, kind, shape=part.shape, dtype=dtype, out=part, threads=threads, byteorder=self.byteorder)
        return out

    def expert(self, k: int) -> Tensor:
        """Expert `k` of a stack of experts, as a packed view.

        The stack's first axis counts the experts (ggml's last stored dimension). A tensor of fewer than three
        dimensions is a stack only if its name says so (``_exps``, a router's ``ffn_gate_inp``, ``exp_probs_b``);
        of another, entry `k` would be a row, not an expert.
        """
        self.check_stack()
        count = self.shape[0]
        k = index(k)
        if not 0 <= k < count:
            raise IndexError(f"{self.label} has experts 0 to {count - 1}, not {k}")
        return self[k]

    def experts(
        self,
        chosen: Sequence[int] | npt.NDArray[np.integer[Any]],
        *,
        dtype: npt.DTypeLike | str | None = None,
        out: npt.NDArray[Any] | None = None,
        threads: int | None = None,
    ) -> npt.NDArray[Any]:
        """Decode chosen experts of a stack into one array, of shape ``(len(chosen), *shape[1:])``.

        Only their bytes are read. Arguments as for :meth:`take`, but a negative index is refused.
        """
        self.check_stack()
        numbers = given_array(chosen, f"{self.label}: chosen experts")
        if any(index(k) < 0 for k in chosen):
            raise IndexError(f"{self.label} has experts 0 to {self.shape[0] - 1}, not {min(chosen)}")
        return self.take(numbers, out=out, dtype=dtype, threads=threads)

    def check_stack(self) -> None:
        """Raise GGUFError if this isn't a stack of experts."""
        if self.ndim < 3 and not (self.ndim and any(mark in self.name for mark in STACK_MARKS)):
            raise GGUFError(
                f"{self.label} of shape {self.shape} isn't a stack of experts: stacks have three dimensions "
                f"(n_expert, out, in), or a name with one of {', '.join(STACK_MARKS)}"
            )

    def reshape(self, *shape: Any) -> Tensor:
        """Return the same packed bytes under another shape whose rows are whole blocks too; one ``-1`` is resolved."""
        self.check_readable()
        return self._view("", reshaped(shape, self.shape, QType(self.qtype), self.label), 0, self.nbytes)

    def transpose(self, *axes: int) -> Tensor:
        """Raise GGUFError: packed rows can't be turned. ``tensor.dequantize().transpose(...)`` can."""
        raise GGUFError(
            f"{self.label}: packed rows can't be transposed; decode first (tensor.dequantize().T), or change the shape "
            "with reshape()"
        )

    @property
    def T(self) -> Tensor:
        """Raise GGUFError, as :meth:`transpose` does; an AttributeError too, so that ``hasattr`` says no."""
        try:
            return self.transpose()
        except GGUFError as error:
            raise NoAttributeError(str(error)) from None

    def advise(self, hint: Hint) -> None:
        """Tell the system how the packed bytes will be used.

        Parameters
        ----------
        hint : {"normal", "sequential", "random", "willneed", "dontneed"}
            ``"willneed"`` reads ahead, ``"dontneed"`` drops the pages from this process (they stay in the system's
            cache and come back on the next access). Ignored where the file isn't mapped; a copy-on-write map ignores
            ``"dontneed"``, which would lose what was written.
        """
        if hint not in get_args(Hint):
            raise ValueError(f"hint should be one of {', '.join(get_args(Hint))}, not {hint!r}")
        self._source.check_open()
        self._source.advise(hint, self.offset, self.offset + self.nbytes)

    def unpermute(
        self, n_head: int, n_kv_head: int | None = None, *, dtype: npt.DTypeLike | str | None = None
    ) -> npt.NDArray[Any]:
        """Decode a q or k projection with its rows in the order that Hugging Face's models store.

        See :func:`ggufx.model.permute.unpermuted_rows`, and :func:`~ggufx.model.permute.permute` for the inverse.
        """
        from ..model.permute import unpermuted_rows

        return self.take(unpermuted_rows(self.shape[0] if self.shape else 0, n_head, n_kv_head), dtype=dtype)

    def __len__(self) -> int:
        if not self.ggml_shape:
            raise TypeError("len() of a tensor without dimensions")
        return self.ggml_shape[-1]

    def __repr__(self) -> str:
        kind = self.qtype.name if isinstance(self.qtype, QType) else f"unknown type {self.qtype}"
        text = f"<Tensor {self.name!r} {kind} {self.shape}, {self.nbytes} bytes"
        return text + (", faulty>" if self.problem else ", closed>" if self._source.closed else ">")

    def __copy__(self) -> Tensor:
        return self

    def __deepcopy__(self, memo: object) -> Tensor:
        return self

    def __reduce__(self) -> Any:
        raise TypeError(
            f"{self.label} is a view of an open file and can't be pickled; send the path and the name, "
            "or the array that dequantize() gives"
        )
