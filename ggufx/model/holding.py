"""Calls that decode several tensors into several arrays: checked together, and none of their files closed midway."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import combinations
from typing import Any

import numpy as np

from ..read.tensor import Tensor

__all__ = ["holding"]


@contextmanager
def holding(tensors: Iterable[Tensor], outs: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Keep the files of tensors open for one call, whoever closes them meanwhile.

    Parameters
    ----------
    tensors : iterable of Tensor
        All that the call reads.
    outs : mapping of str to ndarray, optional
        All that it writes, by name.

    Raises
    ------
    ValueError
        If what it writes overlaps, or lies in the memory of a file that it reads.
    GGUFError
        If a file is closed.
    """
    arrays = {name: out for name, out in (outs or {}).items() if isinstance(out, np.ndarray)}  # others fail later
    for (one, first), (other, second) in combinations(arrays.items(), 2):
        if np.may_share_memory(first, second):
            raise ValueError(f"out[{one!r}] and out[{other!r}] overlap")
    with ExitStack() as stack:
        for tensor in tensors:
            for out in arrays.values():
                tensor.refuse_own(out)
            stack.enter_context(tensor.reading())
        yield
