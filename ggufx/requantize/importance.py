"""An importance matrix as it serves a model: where it comes from, and whose columns it weighs."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..codec.arrays import given_array
from ..errors import GGUFError, GGUFWarning
from ..model.experts import SEPARATE, STACKED
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
        given = len(self.weights)
        kept = {
            name: w
            for name, w in self.weights.items()
            if not any(part in name for part in exclude) and (not include or any(part in name for part in include))
        }
        if given and not kept:
            what = f"include_weights {list(include)}" if include else f"exclude_weights {list(exclude)}"
            raise ValueError(f"{what} leave none of the importance matrix's {given} entries")
        return self._replace(weights=kept)

    @property
    def given(self) -> bool:
        """Whether there is an importance matrix, be it an empty one."""
        return self.file is not None or bool(self.weights)

    def has(self, name: str, shape: Sequence[int]) -> bool:
        """Whether there is importance for a tensor, under its own name or as part of a stack or its experts."""
        if name in EMBEDDINGS:
            return self.columns(name, shape) is not None
        return name in self.weights or bool(_other_names(self.weights, name, shape))

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
            given = self._by_experts(name, shape)
        if given is None:
            return None
        weights = given_array(given, f"importance of {name!r}", np.float32).reshape(-1)
        experts = math.prod(shape[:-2]) if len(shape) > 2 else 1
        if weights.size != experts * shape[-1]:
            if name in EMBEDDINGS:
                return None
            raise GGUFError(
                f"tensor {name!r}: the importance matrix has {weights.size} values, "
                f"{experts} x {shape[-1]} were expected"
            )
        return weights if experts == 1 else weights.reshape(experts, -1)

    def _by_experts(self, name: str, shape: Sequence[int]) -> npt.NDArray[np.float32] | None:
        """A stack's importance from its experts' entries, or an expert's from the stack's entry."""
        names = _other_names(self.weights, name, shape)
        if not names:
            return None
        if match := SEPARATE.fullmatch(name):
            rows = given_array(self.weights[names[0]], f"importance of {names[0]!r}", np.float32).reshape(-1)
            if rows.size % shape[-1] or rows.size // shape[-1] <= int(match[3]):
                raise GGUFError(
                    f"tensor {name!r}: the importance matrix has {rows.size} values for all experts "
                    f"({names[0]!r}), expert {match[3]} of rows of {shape[-1]} isn't among them"
                )
            return np.ascontiguousarray(rows.reshape(-1, shape[-1])[int(match[3])])
        stack = np.ones((shape[0], shape[-1]), np.float32)
        for other in names:
            row = given_array(self.weights[other], f"importance of {other!r}", np.float32).reshape(-1)
            if row.size != shape[-1]:
                raise GGUFError(
                    f"tensor {name!r}: the importance matrix has {row.size} values in {other!r}, "
                    f"{shape[-1]} were expected"
                )
            stack[int(other.split(".")[3])] = row
        if len(names) < shape[0]:
            warnings.warn(
                f"importance of {name!r}: {shape[0] - len(names)} of {shape[0]} experts have no entry and get neutral "
                "weights",
                GGUFWarning,
                stacklevel=4,
            )
        return stack


def _other_names(weights: Mapping[str, Any], name: str, shape: Sequence[int]) -> list[str]:
    """The entries that serve a tensor under other names: its stack's for an expert, its experts' for a stack."""
    if match := SEPARATE.fullmatch(name):
        return [n for n in (f"blk.{match[1]}.ffn_{match[2]}_exps.{match[4]}",) if n in weights]
    if (match := STACKED.fullmatch(name)) and len(shape) == 3:
        names = (f"blk.{match[1]}.ffn_{match[2]}.{k}.{match[3]}" for k in range(shape[0]))
        return [n for n in names if n in weights]
    return []
