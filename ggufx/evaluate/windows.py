"""Cutting a text's tokens into windows, and saying which predictions count, as llama-perplexity does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..codec.arrays import given_array
from ..errors import GGUFError

__all__ = ["Window", "as_tokens", "plan_windows"]

Tokens = npt.NDArray[np.int32]


class Window(NamedTuple):
    """One window.

    Attributes
    ----------
    number : int
    ids : ndarray of int32
        What is run; its first one is BOS where the vocabulary wants that.
    first : int
        The first position whose prediction counts; all up to the last but one do.
    targets : ndarray of int32
        What was to be predicted there.
    """

    number: int
    ids: Tokens
    first: int
    targets: Tokens


def as_tokens(tokens: npt.ArrayLike) -> Tokens:
    """Ids of one text as int32.

    Raises
    ------
    TypeError, ValueError
        If they aren't integers in one dimension, none of them negative.
    """
    ids = given_array(tokens, "tokens")
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise TypeError(f"tokens should be integers in one dimension, not {ids.dtype} of shape {ids.shape}")
    if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < 1 << 31:
        raise ValueError(f"token ids from {ids.min()} to {ids.max()} aren't all ids")
    return ids.astype(np.int32)


def plan_windows(
    tokens: Tokens, n_ctx: int = 512, *, stride: int = 0, bos: int | None = None, limit: int | None = None
) -> list[Window]:
    """The windows of a text.

    Parameters
    ----------
    tokens : ndarray of int32
        The text, tokenized once.
    n_ctx : int
        Tokens of a window. Without a stride, windows follow each other, what is left over is dropped, and the second
        half of each is scored.
    stride : int
        If it isn't 0, windows of ``n_ctx + stride // 2`` tokens, rounded up to a multiple of 256, start at every
        `stride`, and the last `stride` targets of each are scored. None gets a BOS.
    bos : int, optional
        Replaces the first id of each window without a stride.
    limit : int, optional
        At most this many windows.

    Raises
    ------
    ValueError
        If `n_ctx` or `stride` is too small.
    GGUFError
        If the text is too short: two windows are needed at least, as in llama-perplexity.
    """
    if n_ctx < 4:
        raise ValueError(f"a window of {n_ctx} tokens is too short")
    if limit is not None and limit < 1:
        raise ValueError(f"{limit} windows were asked for")
    size = n_ctx if not stride else -(-(n_ctx + stride // 2) // 256) * 256
    if stride < 0 or stride >= size:
        raise ValueError(f"a stride of {stride} doesn't fit windows of {n_ctx} tokens")
    if len(tokens) < 2 * n_ctx or len(tokens) <= size:
        need = max(2 * n_ctx, size + 1)
        raise GGUFError(f"the text has {len(tokens)} tokens, windows of {n_ctx} need at least {need}")
    planned = list(_strided(tokens, size, stride) if stride else _plain(tokens, n_ctx, bos))
    return planned if limit is None else planned[:limit]


def _plain(tokens: Tokens, n_ctx: int, bos: int | None) -> Iterator[Window]:
    first = n_ctx // 2
    for k in range(len(tokens) // n_ctx):
        ids = tokens[k * n_ctx : (k + 1) * n_ctx].copy()
        targets = ids[first + 1 :].copy()
        if bos is not None:
            ids[0] = bos
        yield Window(k, ids, first, targets)


def _strided(tokens: Tokens, size: int, stride: int) -> Iterator[Window]:
    for k in range(-(-(len(tokens) - size) // stride)):
        ids = tokens[k * stride : k * stride + size]
        first = len(ids) - 1 - stride
        yield Window(k, ids, first, ids[first + 1 :])
