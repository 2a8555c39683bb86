"""What a checked GGUF header is: its fields, its table of tensors, the faults found, and the limits it has to keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..formats.value_types import ValueType

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["Field", "Header", "Limits", "NeedMore", "Problem", "TensorTable"]


class Limits(NamedTuple):
    """What a header may hold; the defaults exceed any published model many times over."""

    max_header_bytes: int = 1 << 28
    max_tensors: int = 1 << 20
    max_nesting: int = 16
    max_array_elements: int = 1 << 24


class NeedMore(Exception):
    """The buffer is a beginning of the file, and parsing needs at least `wanted` bytes of it."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted


class Field(NamedTuple):
    """One metadata field: where its value lies and how it is declared.

    For an array, `start` is the first byte after its count, `item` the declared type of the items and `length` their
    number; `begin` is where the value begins either way.
    """

    type: ValueType
    begin: int
    start: int
    stop: int
    item: ValueType | None = None
    length: int = 0


class Problem(NamedTuple):
    """A fault found while checking the header.

    Attributes
    ----------
    kind : str
        ``"outside"``, ``"overlap"``, ``"duplicate"``, ``"shape"``, ``"misaligned"``, ``"duplicate key"`` or
        ``"empty key"``.
    name : str
        The tensor or key.
    message : str
        What was found and what was expected.
    """

    kind: str
    name: str
    message: str

    @property
    def is_fatal(self) -> bool:
        """Whether reading the tensor raises; a misaligned tensor is only flagged."""
        return self.kind != "misaligned"

    def __str__(self) -> str:
        return self.message


class TensorTable(NamedTuple):
    """The tensor infos, column by column; rows are in file order, duplicates included.

    `offsets` are as stored, counted from where the data section begins; `starts` are places in the file.
    """

    names: list[str]
    rows: dict[str, int]
    n_dims: npt.NDArray[np.uint64]
    dims: npt.NDArray[np.uint64]
    types: npt.NDArray[np.uint64]
    offsets: npt.NDArray[np.uint64]
    starts: npt.NDArray[np.int64]
    nbytes: npt.NDArray[np.int64]
    faults: dict[int, Problem]


class Header(NamedTuple):
    """What a GGUF header says, checked."""

    version: int
    big_endian: bool
    alignment: int
    data_offset: int
    fields: dict[str, Field]
    tensors: TensorTable
    problems: tuple[Problem, ...]
