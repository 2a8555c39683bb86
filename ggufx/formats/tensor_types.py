"""The table of ggml's tensor types, and the arithmetic between shapes and bytes.

One row per type, checked against ggml's own type traits by the tests. Everything else in the package
(reader, decoders, encoders, benchmarks, documentation) reads the types from here.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from ..errors import GGUFError, near_names

__all__ = [
    "CODE_BYTES",
    "ENCODINGS",
    "NUMERIC_DTYPES",
    "SWAP_FIELDS",
    "Encoding",
    "QType",
    "nbytes",
    "row_nbytes",
    "type_name",
]


class QType(IntEnum):
    """A ggml tensor type: the member's value is ggml's type id, its name is ggml's name.

    Attributes
    ----------
    block_size : int
        Values per block (1 for plain number types).
    block_bytes : int
        Bytes per block.
    bits_per_weight : float
        ``8 * block_bytes / block_size``.
    is_quantized : bool
        True for the block types, False for plain numbers (F32, F16, BF16, F64, I8 to I64).
    """

    block_size: int
    block_bytes: int
    bits_per_weight: float
    is_quantized: bool

    # The defaults are for type checkers, which take the look-up QType(12) for this call.
    def __new__(cls, value: int, block_size: int = 0, block_bytes: int = 0) -> QType:
        member = int.__new__(cls, value)
        member._value_ = value
        member.block_size = block_size
        member.block_bytes = block_bytes
        member.bits_per_weight = 8 * block_bytes / block_size
        member.is_quantized = block_size > 1
        return member

    @classmethod
    def parse(cls, spec: QType | int | str) -> QType:
        """Look a tensor type up by whatever it is called.

        Parameters
        ----------
        spec : QType, int or str
            The type, its id, or its name in any case, with or without underscores (``"q4_k"``, ``"Q4K"``); names of
            number types too (``"float16"``, ``"fp16"``, ``"bfloat16"``).

        Returns
        -------
        QType

        Raises
        ------
        ValueError
            If there is no such type (GGUFError for an id); the message has near names, and tells a mix such as
            ``Q4_K_M`` from a type.
        TypeError
            If `spec` is something else.

        Examples
        --------
        >>> QType.parse("q4k")
        <QType.Q4_K: 12>
        """
        if isinstance(spec, cls):
            return spec
        if isinstance(spec, str):
            return _by_name(spec)
        try:
            number = operator.index(spec)
        except TypeError:
            raise TypeError(f"a tensor type is a QType, its id or its name, not {type(spec).__name__}") from None
        try:
            return cls(number)
        except ValueError:
            raise GGUFError(f"tensor type id {number} isn't one that ggufx knows") from None

    # name = id, values per block, bytes per block.
    # Source: enum ggml_type and ggml_type_size() of ggml 0.20; ids 4, 5, 31-33 and 36-38 were removed upstream.
    F32 = 0, 1, 4
    F16 = 1, 1, 2
    Q4_0 = 2, 32, 18
    Q4_1 = 3, 32, 20
    Q5_0 = 6, 32, 22
    Q5_1 = 7, 32, 24
    Q8_0 = 8, 32, 34
    Q8_1 = 9, 32, 36
    Q2_K = 10, 256, 84
    Q3_K = 11, 256, 110
    Q4_K = 12, 256, 144
    Q5_K = 13, 256, 176
    Q6_K = 14, 256, 210
    Q8_K = 15, 256, 292
    IQ2_XXS = 16, 256, 66
    IQ2_XS = 17, 256, 74
    IQ3_XXS = 18, 256, 98
    IQ1_S = 19, 256, 50
    IQ4_NL = 20, 32, 18
    IQ3_S = 21, 256, 110
    IQ2_S = 22, 256, 82
    IQ4_XS = 23, 256, 136
    I8 = 24, 1, 1
    I16 = 25, 1, 2
    I32 = 26, 1, 4
    I64 = 27, 1, 8
    F64 = 28, 1, 8
    IQ1_M = 29, 256, 56
    BF16 = 30, 1, 2
    TQ1_0 = 34, 256, 54
    TQ2_0 = 35, 256, 66
    MXFP4 = 39, 32, 17
    NVFP4 = 40, 64, 36
    Q1_0 = 41, 128, 18
    Q2_0 = 42, 64, 18


def _by_name(name: str) -> QType:
    found = QType.__members__.get(name)
    if found is not None:
        return found
    plain = {member.replace("_", ""): kind for member, kind in QType.__members__.items()}
    asked = re.sub(r"[\s_.-]", "", name).upper()
    found = plain.get(asked) or plain.get(re.sub(r"^(B?)(?:FP|FLOAT)(?=\d+$)", r"\1F", asked).replace("INT", "I"))
    if found is not None:
        return found
    from .file_types import FileType

    if mix := next((m for m in FileType.__members__ if m.replace("_", "") == asked), None):
        raise ValueError(
            f"{mix} is a mix of types, which files are quantized to; a tensor has one type, "
            f"{FileType[mix].default_type.name} for most of this mix's"
        )
    raise ValueError(f"unknown tensor type {name!r}{near_names(name.upper(), QType.__members__)}")


# The types whose values are plain numbers numpy can view in place (BF16 has no numpy dtype; it shows as uint16).
NUMERIC_DTYPES = {
    QType.F32: "f4",
    QType.F16: "f2",
    QType.F64: "f8",
    QType.I8: "i1",
    QType.I16: "i2",
    QType.I32: "i4",
    QType.I64: "i8",
    QType.BF16: "u2",
}

# Bytes of a block that hold the values' codes (with codebook indices and signs). The rest are scales, minimums, shifts
# and, in Q8_1 and Q8_K, sums: what the type pays for its groups.
CODE_BYTES = {
    QType.Q4_0: 16,
    QType.Q4_1: 16,
    QType.Q5_0: 20,
    QType.Q5_1: 20,
    QType.Q8_0: 32,
    QType.Q8_1: 32,
    QType.Q2_K: 64,
    QType.Q3_K: 96,
    QType.Q4_K: 128,
    QType.Q5_K: 160,
    QType.Q6_K: 192,
    QType.Q8_K: 256,
    QType.IQ2_XXS: 60,
    QType.IQ2_XS: 64,
    QType.IQ3_XXS: 92,
    QType.IQ1_S: 44,
    QType.IQ4_NL: 16,
    QType.IQ3_S: 104,
    QType.IQ2_S: 72,
    QType.IQ4_XS: 128,
    QType.IQ1_M: 44,
    QType.TQ1_0: 52,
    QType.TQ2_0: 64,
    QType.MXFP4: 16,
    QType.NVFP4: 32,
    QType.Q1_0: 16,
    QType.Q2_0: 16,
}

# Fields wider than a byte inside a block, as (offset, width, count): what a big-endian file stores swapped.
# Byte arrays that the decoders read as words (qh of Q5_0, scales of Q3_K and IQ1_M, signs of IQ3_XXS) are not.
SWAP_FIELDS: dict[QType, tuple[tuple[int, int, int], ...]] = {
    QType.F32: ((0, 4, 1),),
    QType.F16: ((0, 2, 1),),
    QType.BF16: ((0, 2, 1),),
    QType.F64: ((0, 8, 1),),
    QType.I8: (),
    QType.I16: ((0, 2, 1),),
    QType.I32: ((0, 4, 1),),
    QType.I64: ((0, 8, 1),),
    QType.Q4_0: ((0, 2, 1),),
    QType.Q4_1: ((0, 2, 2),),
    QType.Q5_0: ((0, 2, 1),),
    QType.Q5_1: ((0, 2, 2),),
    QType.Q8_0: ((0, 2, 1),),
    QType.Q8_1: ((0, 2, 2),),
    QType.Q2_K: ((80, 2, 2),),
    QType.Q3_K: ((108, 2, 1),),
    QType.Q4_K: ((0, 2, 2),),
    QType.Q5_K: ((0, 2, 2),),
    QType.Q6_K: ((208, 2, 1),),
    QType.Q8_K: ((0, 4, 1), (260, 2, 16)),
    QType.IQ2_XXS: ((0, 2, 33),),
    QType.IQ2_XS: ((0, 2, 33),),
    QType.IQ3_XXS: ((0, 2, 1),),
    QType.IQ1_S: ((0, 2, 1), (34, 2, 8)),
    QType.IQ4_NL: ((0, 2, 1),),
    QType.IQ3_S: ((0, 2, 1),),
    QType.IQ2_S: ((0, 2, 1),),
    QType.IQ4_XS: ((0, 2, 2),),
    QType.IQ1_M: (),
    QType.TQ1_0: ((52, 2, 1),),
    QType.TQ2_0: ((64, 2, 1),),
    QType.MXFP4: (),
    QType.NVFP4: (),
    QType.Q1_0: ((0, 2, 1),),
    QType.Q2_0: ((0, 2, 1),),
}


class Encoding(NamedTuple):
    """What is to be known about quantizing to a type, besides how."""

    halves: tuple[int, ...] = ()
    """Offsets of the half-precision numbers of a block, which overflow where the values are too large."""

    half_in_nibbles: int | None = None
    """Offset of four 16-bit words whose highest nibbles are such a number, the lowest first."""

    by_row: bool = False
    """Whether importance is weighed with the mean square of the whole row. Other types never look beyond a block."""

    searches: bool = False
    """Whether it takes 5 to 100 ns for a value to find scales, instead of 0.3."""

    needs_imatrix: bool = False
    """Whether ggml, too, has no such call without importance."""

    codebook: bool = False
    """Whether values are looked up in a codebook with its neighbours (reference/lattice.py)."""


# The types that can be quantized to. Their rows in csrc/types.def say the same to the C drivers.
ENCODINGS: dict[QType, Encoding] = {
    QType.Q4_0: Encoding((0,), by_row=True),
    QType.Q4_1: Encoding((0, 2), by_row=True),
    QType.Q5_0: Encoding((0,), by_row=True),
    QType.Q5_1: Encoding((0, 2), by_row=True),
    QType.Q8_0: Encoding((0,)),
    QType.Q8_1: Encoding((0, 2)),
    QType.Q2_K: Encoding((80, 82), searches=True),
    QType.Q3_K: Encoding((108,), searches=True),
    QType.Q4_K: Encoding((0, 2), searches=True),
    QType.Q5_K: Encoding((0, 2), searches=True),
    QType.Q6_K: Encoding((208,), searches=True),
    QType.Q8_K: Encoding(),
    QType.IQ2_XXS: Encoding((0,), searches=True, needs_imatrix=True, codebook=True),
    QType.IQ2_XS: Encoding((0,), searches=True, needs_imatrix=True, codebook=True),
    QType.IQ3_XXS: Encoding((0,), searches=True, codebook=True),
    QType.IQ1_S: Encoding((0,), searches=True, needs_imatrix=True, codebook=True),
    QType.IQ4_NL: Encoding((0,), searches=True),
    QType.IQ3_S: Encoding((0,), searches=True, codebook=True),
    QType.IQ2_S: Encoding((0,), searches=True, codebook=True),
    QType.IQ4_XS: Encoding((0,), searches=True),
    QType.IQ1_M: Encoding(half_in_nibbles=48, searches=True, codebook=True),
    QType.TQ1_0: Encoding((52,)),
    QType.TQ2_0: Encoding((64,)),
    QType.MXFP4: Encoding(),
    QType.NVFP4: Encoding(),
    QType.Q1_0: Encoding((0,)),
    QType.Q2_0: Encoding((0,)),
}


def row_nbytes(width: int, qtype: QType) -> int:
    """Bytes of one row of `width` values.

    Raises
    ------
    GGUFError
        If the row isn't a whole number of blocks.
    """
    blocks, rest = divmod(width, qtype.block_size)
    if rest:
        raise GGUFError(
            f"{qtype.name}: a row of {width} values isn't a whole number of blocks of {qtype.block_size} values"
        )
    return blocks * qtype.block_bytes


def nbytes(shape: Iterable[int] | int, qtype: QType | int | str) -> int:
    """Packed size in bytes of a tensor.

    Parameters
    ----------
    shape : int or iterable of int
        Logical shape in numpy's order (the last dimension is the row). ``()`` is one element.
    qtype : QType, int or str
        The tensor type, its id or its name.

    Returns
    -------
    int
        Exact, however large.

    Raises
    ------
    GGUFError
        If the last dimension isn't a whole number of blocks.
    ValueError
        If a dimension is negative or `qtype` isn't a known type.

    Examples
    --------
    >>> nbytes((32000, 2048), QType.Q4_K)
    36864000
    """
    qtype = QType.parse(qtype)
    dims = (operator.index(shape),) if hasattr(shape, "__index__") else tuple(map(operator.index, shape))  # type: ignore[arg-type]
    if any(d < 0 for d in dims):
        raise ValueError(f"negative dimension in shape {dims}")
    if not dims:
        dims = (1,)
    total = row_nbytes(dims[-1], qtype)
    for d in dims[:-1]:
        total *= d
    return total


def type_name(qtype: QType | int) -> str:
    """The type's name, or ``type 99`` for an id that isn't known."""
    return qtype.name if isinstance(qtype, QType) else f"type {qtype}"
