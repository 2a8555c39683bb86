"""An importance matrix as it serves a model: where it comes from, and whose columns it weighs."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import GGUFError
from .mixes import EMBEDDINGS

__all__ = ["Importance"]


class Importance(NamedTuple):
    """An importance matrix and where it comes from.

    Attributes
    ----------
    weights : mapping of str to ndarray
        Importance of the input columns of each tensor, of shape (width,) or (n_expert, width).
    file, dataset : str, optional
        Named in the output's metadata.
    chunks : int, optional
        Chunks of text it was computed on.
    """

    weights: Mapping[str, npt.NDArray[Any]]
    file: str | None = None
    dataset: str | None = None
    chunks: int | None = None

    def filtered(self, include: Sequence[str], exclude: Sequence[str]) -> Importance:
        """Without the names that hold a part of `exclude`, or only those that hold one of `include`."""
        if include and exclude:
            raise ValueError("include_weights and exclude_weights exclude each other")
        kept = {
            name: w
            for name, w in self.weights.items()
            if not any(part in name for part in exclude) and (not include or any(part in name for part in include))
        }
        return self._replace(weights=kept)

    @classmethod
    def of(cls, imatrix: Any) -> Importance:
        """An importance matrix in whatever form it is given: a mapping, a file's path, or None for none."""
        if imatrix is None:
            return cls({})
        if isinstance(imatrix, Importance):
            return imatrix
        from .imatrix import ImportanceMatrix, load

        file = None
        if not isinstance(imatrix, Mapping):
            file, imatrix = os.fspath(imatrix), load(imatrix)
        if not isinstance(imatrix, ImportanceMatrix):
            return cls(imatrix)
        return cls(imatrix, file, imatrix.datasets[0] if imatrix.datasets else None, imatrix.chunk_count)

    def columns(self, name: str, shape: Sequence[int]) -> npt.NDArray[np.float32] | None:
        """The importance of a tensor's columns, one row for each expert where it has experts; None if there is none.

        Raises
        ------
        GGUFError
            If there are more or fewer values than columns (for embeddings that means none, as in llama-quantize).
        """
        given = self.weights.get(name)
        if given is None:
            return None
        weights = np.ascontiguousarray(given, np.float32).reshape(-1)
        experts = math.prod(shape[:-2]) if len(shape) > 2 else 1
        if weights.size != experts * shape[-1]:
            if name in EMBEDDINGS:
                return None
            raise GGUFError(
                f"tensor {name!r}: the importance matrix has {weights.size} values, "
                f"{experts} x {shape[-1]} were expected"
            )
        return weights if experts == 1 else weights.reshape(experts, -1)
