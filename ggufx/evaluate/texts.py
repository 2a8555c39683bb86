"""How well a model predicts a text: perplexity and divergence, window by window."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..codec.threads import run, thread_count
from ..errors import GGUFError
from .basefile import MAGIC, BaseFile, BaseFileWriter
from .divergence import Divergence, Rows, against_log_probabilities, against_logits
from .scoring import Doubles, Floats, mean_and_error, nll_of, softmax_of
from .topbase import TopBase, TopRows
from .windows import Tokens, Window, as_tokens, plan_windows

__all__ = ["KEPT", "Perplexity", "open_base", "perplexity"]

# Logits looked at at a time by each thread.
PIECE = 1 << 22
# Tokens of the reference kept for each position, where the reference is a model.
KEPT = 4096
Base = BaseFile | TopBase
Progress = Callable[[str, int, int], None]


@dataclass
class Perplexity:
    """What came out.

    Attributes
    ----------
    label : str
        The model.
    n_ctx, stride : int
    tokens : int
        Of the whole text.
    nll : list of ndarray of float64
        -log p of the scored tokens, window by window.
    seconds : float
        Spent in the model.
    run : int
        Tokens that went through it.
    divergence : Divergence or None
        From the reference, if there was one.
    top : TopBase or None
        What was kept of the predictions, if that was asked for.
    """

    label: str
    n_ctx: int
    stride: int
    tokens: int
    nll: list[Doubles] = field(default_factory=list)
    seconds: float = 0.0
    run: int = 0
    divergence: Divergence | None = None
    top: TopBase | None = None

    @property
    def value(self) -> float:
        """Perplexity of all scored tokens."""
        return float(np.exp(mean_and_error(np.concatenate(self.nll))[0]))

    @property
    def error(self) -> float:
        """Its standard error, tokens taken as independent."""
        mean, error = mean_and_error(np.concatenate(self.nll))
        return float(np.exp(mean) * error)

    @property
    def cumulative(self) -> list[float]:
        """Perplexity of the first k windows, as llama-perplexity lists it."""
        sums = np.cumsum([w.sum() for w in self.nll]) / np.cumsum([len(w) for w in self.nll])
        return [float(v) for v in np.exp(sums)]

    @property
    def per_window(self) -> list[float]:
        """Perplexity of each window alone."""
        return [float(np.exp(w.mean())) for w in self.nll]

    @property
    def tokens_per_second(self) -> float:
        """Through the model."""
        return self.run / self.seconds if self.seconds else 0.0

    def as_dict(self) -> dict[str, Any]:
        """The figures, for JSON."""
        report: dict[str, Any] = {
            "model": self.label,
            "n_ctx": self.n_ctx,
            "stride": self.stride,
            "tokens": self.tokens,
            "scored": int(sum(map(len, self.nll))),
            "perplexity": self.value,
            "error": self.error,
            "cumulative": self.cumulative,
            "per_window": self.per_window,
            "seconds": self.seconds,
            "tokens_per_second": self.tokens_per_second,
        }
        if self.divergence is not None:
            report["divergence"] = self.divergence.summary()
        return report


def open_base(path: str | os.PathLike[str]) -> Base:
    """Open a base file: llama-perplexity's form, or ours with the likeliest tokens alone.

    Raises
    ------
    GGUFError
        If it is neither.
    """
    with open(path, "rb") as file:
        head = file.read(8)
    return BaseFile(path) if head == MAGIC else TopBase.load(path)


def perplexity(
    model: Any,
    text: str | None = None,
    *,
    tokens: npt.ArrayLike | None = None,
    n_ctx: int = 512,
    stride: int = 0,
    bos: int | None = None,
    windows: int | None = None,
    base: Any = None,
    save_base: str | os.PathLike[str] | None = None,
    keep: int = 0,
    dtype: str = "float32",
    threads: int | None = None,
    progress: Progress | None = None,
) -> Perplexity:
    """Measure how well a model predicts a text, as llama-perplexity does.

    Parameters
    ----------
    model : path-like or callable
        A GGUF file, run through transformers and torch (extra ``evaluate``); or any function that takes the ids of a
        window, int32 (n,), and gives its logits, (n, vocabulary).
    text : str, optional
        The text, for a GGUF file. llama.cpp's tools leave out the last newline of a file.
    tokens : array_like of int, optional
        Instead of `text`: its ids, BOS in front where the vocabulary has one.
    n_ctx, stride : int
        Windows; see `ggufx.evaluate.windows.plan_windows`.
    bos : int, optional
        Put in the first place of each window; a GGUF file's own by default.
    windows : int, optional
        At most this many.
    base : optional
        A reference to compute the divergence from: the path of a base file, llama-perplexity's or ours; a TopBase; or
        another model as a callable or a `Runner`, which then runs beside the first, and nothing is lost.
    save_base : path-like, optional
        Write this model's predictions in llama-perplexity's form.
    keep : int
        Keep so many of the likeliest tokens for each position, in the result's `top`.
    dtype : str
        Of torch's weights and computation.
    threads : int, optional
        As everywhere.
    progress : callable, optional
        Called with the model, windows done and windows in all.

    Returns
    -------
    Perplexity

    Raises
    ------
    GGUFError
        If the text is too short, logits aren't finite, or the reference is of another text or vocabulary.
    ImportError
        If a package is missing that running a GGUF file needs.

    Examples
    --------
    >>> import numpy as np
    >>> guess = lambda ids: np.zeros((len(ids), 50), np.float32)
    >>> round(perplexity(guess, tokens=np.arange(64) % 50, n_ctx=16).value, 6)
    50.0
    """
    label = _label(model)
    if (text is None) == (tokens is None):
        raise TypeError("either a text or its tokens are needed")
    if isinstance(model, str | os.PathLike):
        from .runner import Runner, Vocabulary

        if text is not None or bos is None:
            vocabulary = Vocabulary(model)
            bos = vocabulary.bos if bos is None else bos
            tokens = vocabulary.encode(text) if text is not None else tokens
        model = Runner(model, dtype=dtype, threads=threads)
    if tokens is None:
        raise TypeError("a text can't be turned into tokens without a GGUF file's vocabulary: give its tokens")
    ids = as_tokens(tokens)
    plan = plan_windows(ids, n_ctx, stride=stride, bos=bos, limit=windows)
    if stride and (base is not None or save_base is not None or keep):
        raise ValueError("a reference goes with windows that don't overlap: no stride")
    if isinstance(base, str | os.PathLike):
        base = open_base(base)
    if isinstance(base, BaseFile | TopBase):
        _check_base(base, ids, n_ctx, len(plan))
    return _Run(label, model, base, keep, thread_count(threads)).run(ids, plan, n_ctx, stride, save_base, progress)


def _label(model: Any) -> str:
    if isinstance(model, str | os.PathLike):
        return os.fspath(model)
    return str(getattr(model, "label", getattr(model, "__name__", "model")))


def _check_base(base: Base, ids: Tokens, n_ctx: int, count: int) -> None:
    name = getattr(base, "path", "the reference")
    if base.n_ctx != n_ctx or len(base) < count:
        raise GGUFError(f"{name}: {len(base)} windows of {base.n_ctx} tokens, {count} of {n_ctx} are needed")
    if not np.array_equal(base.tokens[:count], ids[: count * n_ctx].reshape(count, n_ctx)):
        raise GGUFError(f"{name}: its tokens are of another text, or another vocabulary")


class _Run:
    def __init__(self, label: str, model: Any, base: Any, keep: int, threads: int) -> None:
        self.label, self.model, self.base, self.keep, self.threads = label, model, base, keep, threads

    def run(
        self,
        ids: Tokens,
        plan: list[Window],
        n_ctx: int,
        stride: int,
        save_base: str | os.PathLike[str] | None,
        progress: Progress | None,
    ) -> Perplexity:
        result = Perplexity(self.label, n_ctx, stride, len(ids))
        whole = ids[: len(plan) * n_ctx].reshape(-1, n_ctx) if not stride else ids[:0].reshape(0, n_ctx)
        found: list[Rows] = []
        kept: list[TopRows] = []
        n_vocab = 0
        with ExitStack() as stack:
            writer: BaseFileWriter | None = None
            for window in plan:
                start = time.perf_counter()
                logits = self._logits(self.model, window)
                result.seconds += time.perf_counter() - start
                result.run += len(window.ids)
                n_vocab = logits.shape[1]
                kept_base = isinstance(self.base, BaseFile | TopBase)
                other = None if kept_base or self.base is None else self._logits(self.base, window)
                size = self.base.n_vocab if kept_base else n_vocab if other is None else other.shape[1]
                if size != n_vocab:
                    raise GGUFError(f"{self.label}: {n_vocab} logits, the reference has {size}")
                if save_base is not None and writer is None:
                    writer = stack.enter_context(BaseFileWriter(save_base, whole, n_vocab))
                nll, rows, top = self._score(window, logits, other)
                result.nll.append(nll)
                found += rows
                kept += top
                if writer is not None:
                    step = max(1, PIECE // n_vocab)
                    for k in range(0, len(logits), step):
                        writer.add(logits[k : k + step])
                if progress is not None:
                    progress(self.label, window.number + 1, len(plan))
        if found:
            result.divergence = Divergence.of(found)
        if kept:
            result.top = TopBase(whole, n_vocab, kept)
        return result

    def _logits(self, model: Any, window: Window) -> Floats:
        count = len(window.targets)
        if hasattr(model, "logits_from"):
            logits = np.asarray(model.logits_from(window.ids, window.first), np.float32)[:count]
        else:
            logits = np.asarray(model(window.ids), np.float32)
            if logits.ndim != 2 or len(logits) != len(window.ids):
                raise GGUFError(
                    f"{self.label}: logits of shape {logits.shape} for a window of {len(window.ids)} tokens; "
                    f"({len(window.ids)}, vocabulary) was expected"
                )
            logits = logits[window.first : window.first + count]
        if window.targets.size and int(window.targets.max()) >= logits.shape[1]:
            raise GGUFError(f"{self.label}: token {window.targets.max()} is beyond its {logits.shape[1]} logits")
        return logits

    def _score(self, window: Window, logits: Floats, other: Floats | None) -> tuple[Doubles, list[Rows], list[TopRows]]:
        count, step = len(logits), max(1, PIECE // logits.shape[1])
        starts = list(range(0, count, step))
        nll = np.empty(count)
        rows: dict[int, Rows] = {}
        tops: dict[int, TopRows] = {}

        def work(start: int) -> None:
            part, targets = logits[start : start + step], window.targets[start : start + step]
            softmax = softmax_of(part)
            bad = ~(np.isfinite(softmax.top) & np.isfinite(softmax.log_sum))
            if bad.any():
                at = window.first + start + int(np.argmax(bad))
                raise GGUFError(f"{self.label}: window {window.number}, position {at}: the logits aren't finite")
            nll[start : start + step] = nll_of(part, targets, softmax)
            if isinstance(self.base, BaseFile):
                coded = self.base.log_probabilities(window.number, start, start + len(part))
                rows[start] = against_log_probabilities(part, coded, targets, softmax)
            elif other is not None:
                rows[start] = against_logits(part, other[start : start + step], targets, softmax)
            elif self.base is not None:
                rows[start] = self.base.part(window.number, start, start + len(part)).compare(part, targets, softmax)
            if self.keep:
                tops[start] = TopRows.of(part, targets, self.keep)

        run(work, starts, self.threads)
        top = [TopRows.joined([tops[k] for k in starts])] if self.keep else []
        return nll, [rows[k] for k in starts] if self.base is not None else [], top
