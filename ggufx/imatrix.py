"""Public path of :mod:`ggufx.requantize.imatrix`: importance matrices."""

from .requantize.imatrix import Accumulator, Entry, ImportanceMatrix, load

__all__ = ["Accumulator", "Entry", "ImportanceMatrix", "load"]
