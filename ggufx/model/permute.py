"""The order of q and k rows: Llama's GGUF files interleave the two halves of each head, Hugging Face's don't.

ggml rotates neighbouring values of a head, Hugging Face's code rotates value i with value i + half. Converters for
Llama and Mistral therefore reorder the rows of ``attn_q`` and ``attn_k``: row ``h * d + 2 * i + j`` of the GGUF file is
row ``h * d + j * d / 2 + i`` of the checkpoint (head h of size d, half j). Other architectures don't; nothing in the
file tells, so the call is explicit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["permute", "permuted_rows", "unpermute", "unpermuted_rows"]


def _heads(n_rows: int, n_head: int, n_kv_head: int | None) -> int:
    heads = n_head if n_kv_head is None else n_kv_head
    if heads < 1 or n_rows % (2 * heads):
        raise ValueError(f"{n_rows} rows don't divide into {heads} heads of two halves")
    return heads


def unpermuted_rows(n_rows: int, n_head: int, n_kv_head: int | None = None) -> npt.NDArray[np.int64]:
    """Which rows of a GGUF tensor, in order, make the checkpoint's.

    Parameters
    ----------
    n_rows : int
        Rows of the projection.
    n_head : int
        Query heads.
    n_kv_head : int, optional
        Key heads: give them for ``attn_k``, leave them out for ``attn_q``.

    Returns
    -------
    ndarray of int64
        Of shape ``(n_rows,)``.

    Raises
    ------
    ValueError
        If the rows don't divide into heads of an even size.
    """
    heads = _heads(n_rows, n_head, n_kv_head)
    return np.arange(n_rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)


def permuted_rows(n_rows: int, n_head: int, n_kv_head: int | None = None) -> npt.NDArray[np.int64]:
    """Which rows of the checkpoint, in order, make a GGUF tensor's: the inverse of :func:`unpermuted_rows`."""
    heads = _heads(n_rows, n_head, n_kv_head)
    return np.arange(n_rows).reshape(heads, 2, -1).swapaxes(1, 2).reshape(-1)


def unpermute(rows: npt.NDArray[Any], n_head: int, n_kv_head: int | None = None) -> npt.NDArray[Any]:
    """Reorder a q or k projection (or bias) from GGUF's order to the checkpoint's.

    Works on values and on packed rows alike: whole rows move, so no bit changes.
    """
    return rows[unpermuted_rows(len(rows), n_head, n_kv_head)]


def permute(rows: npt.NDArray[Any], n_head: int, n_kv_head: int | None = None) -> npt.NDArray[Any]:
    """Reorder a q or k projection (or bias) from the checkpoint's order to GGUF's."""
    return rows[permuted_rows(len(rows), n_head, n_kv_head)]
