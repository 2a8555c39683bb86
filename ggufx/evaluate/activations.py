"""Collecting an importance matrix by running a model on a text, and what such a matrix says of each tensor."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import GGUFError, GGUFWarning
from ..read.reader import open as open_gguf
from ..requantize.imatrix import Accumulator, ImportanceMatrix, load
from .windows import as_tokens, plan_windows

__all__ = ["TensorStatistics", "collect", "statistics"]

Progress = Callable[[str, int, int], None]
# A column is active if its mean square is over this.
ACTIVE = 1e-5


def collect(
    model: str | os.PathLike[str],
    text: str | None = None,
    *,
    tokens: npt.ArrayLike | None = None,
    dataset: str = "",
    n_ctx: int = 512,
    windows: int | None = None,
    output: bool = False,
    save: str | os.PathLike[str] | None = None,
    save_every: int = 10,
    resume: bool = False,
    dtype: str = "float32",
    threads: int | None = None,
    progress: Progress | None = None,
) -> ImportanceMatrix:
    """Run a model on a text and collect what goes into its weights, as llama-imatrix does.

    Parameters
    ----------
    model : path-like
        A GGUF file, run through transformers and torch (extra ``evaluate``).
    text : str, optional
        Calibration text.
    tokens : array_like of int, optional
        Instead of `text`: its ids, BOS in front where the vocabulary has one.
    dataset : str
        The text's name, for the file.
    n_ctx : int
        Tokens of a window; all its positions count, BOS included.
    windows : int, optional
        At most this many.
    output : bool
        Collect for ``output.weight`` too, where the model has one of its own.
    save : path-like, optional
        Write what there is so far to this file, whole each time, after every `save_every` windows and at the end.
    save_every : int
    resume : bool
        Go on where the file `save` ends, if it is there and of the same text and window.
    dtype : str
        Of torch's weights and computation.
    threads : int, optional
        Torch's threads.
    progress : callable, optional
        Called with the model, windows done and windows in all.

    Returns
    -------
    ImportanceMatrix

    Raises
    ------
    GGUFError
        If the text is too short, or `resume` finds a matrix of another text.
    ImportError
        If a package is missing that running a model needs.

    Warns
    -----
    GGUFWarning
        Where weights of the file aren't linear layers in torch, such as stacked experts: they get no importance.
    """
    from .runner import Runner, Vocabulary

    if (text is None) == (tokens is None):
        raise TypeError("either a text or its tokens are needed")
    vocabulary = Vocabulary(model)
    ids = as_tokens(vocabulary.encode(text) if text is not None else tokens)  # type: ignore[arg-type]
    plan = plan_windows(ids, n_ctx, bos=vocabulary.bos, limit=windows)
    start = ImportanceMatrix(chunk_size=n_ctx)
    if resume and save is not None and os.path.exists(save):
        start = _earlier(save, dataset, n_ctx)
    done = min(start.chunk_count, len(plan))
    names = {}
    runner = Runner(model, dtype=dtype, threads=threads)
    for own, name in runner.weight_names().items():
        if name.startswith("blk.") or (output and name == "output.weight"):
            names[own] = name
    seen = Accumulator(n_ctx)

    def result() -> ImportanceMatrix:
        matrix = seen.result([dataset])
        matrix.chunk_count = done - start.chunk_count
        if start.entries:
            matrix = start.merge(matrix)
            matrix.datasets = start.datasets
        return matrix

    with seen.watch(runner.model, names):
        for window in plan[done:]:
            runner.run(window.ids, head=output)
            done += 1
            if progress is not None:
                progress(os.fspath(model), done, len(plan))
            if save is not None and save_every and done % save_every == 0 and done < len(plan):
                result().save(save)
    matrix = result()
    _tell_missing(model, matrix)
    if save is not None:
        matrix.save(save)
    return matrix


def _earlier(path: str | os.PathLike[str], dataset: str, n_ctx: int) -> ImportanceMatrix:
    found = load(path)
    if found.datasets != [dataset] or found.chunk_size != n_ctx:
        raise GGUFError(
            f"{os.fspath(path)}: of {', '.join(map(repr, found.datasets)) or 'no text'} in windows of "
            f"{found.chunk_size}; it can't be gone on with {dataset!r} in windows of {n_ctx}"
        )
    return found


def _tell_missing(path: str | os.PathLike[str], matrix: ImportanceMatrix) -> None:
    with open_gguf(path) as f:
        weights = [
            t.name
            for t in f.tensors.values()
            if t.name.startswith("blk.") and t.name.endswith(".weight") and t.ndim >= 2 and t.name not in matrix.entries
        ]
    if weights:
        warnings.warn(
            f"{len(weights)} weights aren't linear layers in torch and get no importance, {weights[0]!r} for one",
            GGUFWarning,
            stacklevel=3,
        )


@dataclass
class TensorStatistics:
    """What goes into one weight: mean squares of its columns, of all experts together.

    Attributes
    ----------
    name : str
    rows : int
        Rows of activations.
    experts, idle : int
        How many experts, and how many of them never fired.
    total, mean, deviation, least, most : float
        Of the columns' mean squares.
    active : float
        The part of the columns whose mean square is over 0.00001.
    entropy : float
        Of the columns' shares of the total, in bits; `evenness` is that over the logarithm of their number.
    evenness : float
    likeness : float or None
        Cosine to the same weight of the block before.
    """

    name: str
    rows: int
    experts: int
    idle: int
    total: float
    mean: float
    deviation: float
    least: float
    most: float
    active: float
    entropy: float
    evenness: float
    likeness: float | None = None


def statistics(matrix: ImportanceMatrix) -> list[TensorStatistics]:
    """Statistics of every tensor, the largest total first."""
    return sorted(_each(matrix), key=lambda s: -s.total)


def _each(matrix: ImportanceMatrix) -> Iterator[TensorStatistics]:
    means: dict[str, npt.NDArray[np.float64]] = {}
    for name, entry in matrix.entries.items():
        fired = entry.counts > 0
        per_expert = np.zeros(entry.sums.shape)
        np.divide(entry.sums, entry.counts[:, None], out=per_expert, where=fired[:, None])
        means[name] = per_expert.reshape(-1)
    for name, values in means.items():
        entry = matrix.entries[name]
        total = float(values.sum())
        shares = values[values > 0] / total if total else values[:0]
        entropy = float(-(shares * np.log2(shares)).sum())
        yield TensorStatistics(
            name,
            int(entry.counts.sum()),
            len(entry.counts),
            int(np.count_nonzero(entry.counts <= 0)),
            total,
            float(values.mean()),
            float(values.std()),
            float(values.min()),
            float(values.max()),
            float(np.mean(values > ACTIVE)),
            entropy,
            entropy / float(np.log2(len(values))) if len(values) > 1 else 1.0,
            _likeness(name, means),
        )


def _likeness(name: str, means: dict[str, Any]) -> float | None:
    match = re.match(r"blk\.(\d+)\.(.*)", name)
    if match is None:
        return None
    before, values = means.get(f"blk.{int(match[1]) - 1}.{match[2]}"), means[name]
    if before is None or before.shape != values.shape:
        return None
    size = float(np.linalg.norm(before) * np.linalg.norm(values))
    return float(before @ values) / size if size else None
