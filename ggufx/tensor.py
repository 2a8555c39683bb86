"""One tensor of an open file: what it is, its packed bytes, and its values on demand."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from .decode import dequantize
from .errors import GGUFError
from .formats import NUMERIC_DTYPES, QType, row_nbytes

if TYPE_CHECKING:
    import numpy.typing as npt

    from .sources import Source

__all__ = ["Tensor"]


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
    def byte_order(self) -> str:
        """Byte order of the stored fields, ``"little"`` or ``"big"``."""
        return "big" if self._source.big_endian else "little"

    @property
    def path(self) -> str:
        """The file it lies in, as it was opened."""
        return self._source.label

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
        self, dtype: npt.DTypeLike | str | None = None, out: npt.NDArray[Any] | None = None, threads: int | None = None
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
        return dequantize(
            self.packed(),
            self.qtype,
            shape=self.shape,
            dtype=dtype,
            out=out,
            threads=threads,
            byteorder=self.byte_order,
        )

    def check_readable(self) -> None:
        """Raise GGUFError if the values can't be decoded."""
        if not isinstance(self.qtype, QType):
            raise GGUFError(
                f"{self.label} has type id {self.qtype}, which this version doesn't know; its {self.nbytes} bytes are "
                "in .data"
            )
        if self.problem is not None:
            raise GGUFError(f"{self.problem}; it can't be read")

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
