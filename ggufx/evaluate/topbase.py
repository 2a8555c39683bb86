"""A reference's predictions kept small: its likeliest tokens, and the rest of the probability as one number."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import GGUFError
from ..write.outfile import OutputFile
from .divergence import Rows
from .scoring import Doubles, Floats, Softmax, nll_of, softmax_of

__all__ = ["TopBase", "TopRows"]

FORM = "ggufx base 1"


@dataclass
class TopRows:
    """Some positions' likeliest tokens.

    Attributes
    ----------
    ids : ndarray of int32
        (positions, k), the likeliest first.
    log_p : ndarray of float32
        Their log probabilities.
    rest : ndarray of float64
        The probability of all other tokens together.
    rest_plogp : ndarray of float64
        The sum of p log p over these.
    nll : ndarray of float64
        -log p of the target.
    """

    ids: npt.NDArray[np.int32]
    log_p: Floats
    rest: Doubles
    rest_plogp: Doubles
    nll: Doubles

    @classmethod
    def of(cls, logits: Floats, targets: npt.NDArray[np.int32], k: int) -> TopRows:
        """The k likeliest of each row."""
        softmax = softmax_of(logits)
        log_p = logits - (softmax.top + softmax.log_sum.astype(np.float32))[:, None]
        k = min(k, logits.shape[1])
        if k < logits.shape[1]:
            ids = np.argpartition(log_p, logits.shape[1] - k, axis=1)[:, -k:]
        else:
            ids = np.broadcast_to(np.arange(k), logits.shape)
        kept = np.take_along_axis(log_p, ids, axis=1)
        order = np.lexsort((ids, -kept), axis=1)
        ids, kept = np.take_along_axis(ids, order, axis=1), np.take_along_axis(kept, order, axis=1)
        with np.errstate(under="ignore", invalid="ignore"):
            p = np.exp(log_p)
            plogp = np.where(p > 0, p * log_p, np.float32(0))
        np.put_along_axis(p, ids, 0, axis=1)
        np.put_along_axis(plogp, ids, 0, axis=1)
        rest, entropy = p.sum(axis=1, dtype=np.float64), plogp.sum(axis=1, dtype=np.float64)
        return cls(ids.astype(np.int32), kept, rest, entropy, nll_of(logits, targets, softmax))

    @classmethod
    def joined(cls, parts: list[TopRows]) -> TopRows:
        """Positions of several pieces in one."""
        return cls(**{n: np.concatenate([getattr(p, n) for p in parts]) for n in cls.__dataclass_fields__})

    def compare(self, logits: Floats, targets: npt.NDArray[np.int32], softmax: Softmax) -> Rows:
        """Divergences of a model's logits from these rows.

        The rest is taken as one token, which makes the divergence too small, by no more than `spread`: the rest's
        probability can't have met less likely tokens than the least likely of them all.
        """
        log_z = softmax.top + softmax.log_sum
        log_q = np.take_along_axis(logits, self.ids.astype(np.int64), axis=1) - log_z[:, None]
        p = np.exp(self.log_p.astype(np.float64))
        kl = np.einsum("ij,ij->i", p, self.log_p - log_q)
        with np.errstate(divide="ignore", invalid="ignore", under="ignore"):
            others = np.maximum(1 - np.exp(log_q).sum(axis=1), np.finfo(np.float64).tiny)
            lumped = np.where(self.rest > 0, self.rest * (np.log(self.rest) - np.log(others)), 0.0)
        if self.ids.shape[1] == logits.shape[1]:
            lumped, most = np.zeros(len(p)), np.zeros(len(p))
        else:
            most = self.rest_plogp - self.rest * (logits.min(axis=1) - log_z)
        nll = nll_of(logits, targets, softmax)
        same = self.ids[:, 0] == softmax.best
        return Rows(kl + lumped, nll, self.nll, same, np.maximum(most - lumped, 0.0))


class TopBase:
    """The likeliest tokens at all scored positions of some windows, in memory or in a file.

    Attributes
    ----------
    tokens : ndarray of int32
        (windows, n_ctx), as the text was tokenized.
    n_vocab : int
    rows : list of TopRows
        One for each window.
    """

    def __init__(self, tokens: npt.NDArray[np.int32], n_vocab: int, rows: list[TopRows]) -> None:
        self.tokens, self.n_vocab, self.rows = tokens, n_vocab, rows

    @property
    def n_ctx(self) -> int:
        """Tokens of a window."""
        return int(self.tokens.shape[1])

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, window: int, start: int, stop: int) -> TopRows:
        """Some of a window's positions."""
        rows = self.rows[window]
        return TopRows(**{n: getattr(rows, n)[start:stop] for n in TopRows.__dataclass_fields__})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a .npz file, whole or not at all."""
        import io

        buffer = io.BytesIO()
        names = TopRows.__dataclass_fields__
        arrays: dict[str, Any] = {n: np.stack([getattr(r, n) for r in self.rows]) for n in names}
        np.savez(buffer, form=np.array(FORM), tokens=self.tokens, n_vocab=np.array(self.n_vocab), **arrays)
        data = buffer.getvalue()
        file = OutputFile(os.fspath(path))
        try:
            file.write(data)
            file.finish(len(data))
            file.publish()
        finally:
            file.discard()

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TopBase:
        """Read what `save` wrote.

        Raises
        ------
        GGUFError
            If it isn't that.
        """
        name = os.fspath(path)
        try:
            with np.load(name, allow_pickle=False) as found:
                if str(found["form"]) != FORM:
                    raise KeyError("form")
                arrays = {n: found[n] for n in TopRows.__dataclass_fields__}
                tokens, n_vocab = found["tokens"], int(found["n_vocab"])
        except (ValueError, KeyError, EOFError) as error:
            raise GGUFError(f"{name}: not a base file of ggufx: {error}") from None
        count = len(tokens)
        shape = arrays["ids"].shape
        if tokens.ndim != 2 or len(shape) != 3 or any(a.shape[:2] != shape[:2] for a in arrays.values()):
            raise GGUFError(f"{name}: not a base file of ggufx: its arrays don't fit each other")
        if shape[0] != count or not (arrays["ids"].min() >= 0 and arrays["ids"].max() < n_vocab):
            raise GGUFError(f"{name}: not a base file of ggufx: its arrays don't fit each other")
        return cls(tokens, n_vocab, [TopRows(**{n: a[k] for n, a in arrays.items()}) for k in range(count)])
