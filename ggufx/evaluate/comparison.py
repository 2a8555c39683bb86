"""Two files or checkpoints laid beside each other: what differs in their build, and by how much in their values."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np

from ..codec.threads import run, thread_count
from .compared import Comparison, TensorComparison
from .permutations import find_order
from .sides import Side, Weights, open_side
from .structure import metadata_findings, tensor_findings
from .sums import Sums
from .verdicts import judge

__all__ = ["compare"]

# Values of either side held at a time by each thread.
PIECE = 1 << 20
# Plain numbers are grouped in blocks of this many.
NUMBER_BLOCK = 32
Progress = Callable[[str, int, int], None]


def compare(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    names: Callable[[str], bool] | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare two models: structure first, then every value.

    Parameters
    ----------
    a, b : path-like or URL
        What is, and what should be judged by it: GGUF files, any shard of a set, a checkpoint's folder, or one
        safetensors file. Checkpoints are compared under the names, shapes and orders that a conversion gives them.
    names : callable, optional
        Which tensors to compare, by name; all by default.
    threads : int, optional
        As everywhere. Each thread keeps some 40 MB; a checkpoint's tensors are held one at a time for each thread.
    progress : callable, optional
        Called with a tensor's name, values done and values in all.

    Returns
    -------
    Comparison

    Raises
    ------
    GGUFError
        If a file is broken.

    Examples
    --------
    >>> compare("model-f16.gguf", "model-Q4_K_M.gguf").worst(3)  # doctest: +SKIP
    """
    with ExitStack() as stack:
        one, other = stack.enter_context(open_side(a)), stack.enter_context(open_side(b))
        result = Comparison(one.path, other.path)
        if one.file is not None and other.file is not None:
            result.structure += metadata_findings(one.file, other.file)
        result.structure += tensor_findings(one, other)
        pairs = list(_pairs(one, other, names))
        result.tensors = _measure(pairs, thread_count(threads), progress)
    return result


def _pairs(one: Side, other: Side, names: Callable[[str], bool] | None) -> Iterator[tuple[Weights, Weights]]:
    for name, weights in one.weights.items():
        their = other.weights.get(name)
        readable = all(w is None or w.tensor is None or w.tensor.problem is None for w in (weights, their))
        if their is not None and their.shape == weights.shape and readable and (names is None or names(name)):
            yield weights, their


def _half(kind: str) -> Any:
    """Rounding to a half precision and back, for a side that is stored so."""
    if kind == "F16":
        return lambda x: x.astype(np.float16).astype(np.float32)
    if kind == "BF16":
        from ..codec.decode import dequantize
        from ..codec.encode import quantize

        return lambda x: dequantize(quantize(x[None], "BF16", threads=1), "BF16", threads=1).reshape(-1)
    return None


class _Task:
    """Some rows of one pair; a tensor made by a conversion is done in one."""

    def __init__(self, pair: tuple[Weights, Weights], start: int, stop: int) -> None:
        self.pair, self.start, self.stop = pair, start, stop
        self.sums: Sums | None = None

    def run(self) -> None:
        a, b = self.pair
        block = b.block_size if b.block_size > 1 else a.block_size
        sums = Sums(block if block > 1 else NUMBER_BLOCK, _half(b.type_name))
        step = max(1, PIECE // max(1, a.width))
        with a.reader() as ours, b.reader() as theirs:
            for start in range(self.start, self.stop, step):
                stop = min(start + step, self.stop)
                sums.add(ours(start, stop), theirs(start, stop), start * a.width)
        self.sums = sums


def _equal_bits(a: Weights, b: Weights) -> bool:
    if a.tensor is None or b.tensor is None or a.type_name != b.type_name or a.nbytes != b.nbytes:
        return False
    if a.tensor.byteorder != b.tensor.byteorder:
        return False
    ours, theirs = a.tensor.packed(), b.tensor.packed()
    return all(np.array_equal(ours[k : k + (4 << 20)], theirs[k : k + (4 << 20)]) for k in range(0, len(ours), 4 << 20))


def _measure(pairs: list[tuple[Weights, Weights]], threads: int, progress: Progress | None) -> list[TensorComparison]:
    equal = {a.name for a, b in pairs if _equal_bits(a, b)}
    tasks: list[_Task] = []
    for a, b in pairs:
        whole = a.tensor is None or b.tensor is None
        step = a.count if whole else max(1, 4 * PIECE // max(1, a.width))
        if a.name not in equal:
            tasks += [_Task((a, b), k, min(k + step, a.count)) for k in range(0, a.count, max(1, step))]
    total, done, lock = sum(a.size for a, _ in pairs if a.name not in equal), 0, threading.Lock()

    def work(task: _Task) -> None:
        nonlocal done
        task.run()
        with lock:
            done += (task.stop - task.start) * task.pair[0].width
            if progress is not None:
                progress(task.pair[0].name, done, total)

    run(work, sorted(tasks, key=lambda t: (t.start - t.stop) * t.pair[0].width), threads)
    sums: dict[str, Sums] = {}
    for task in tasks:  # in order, so that the result doesn't depend on the threads
        assert task.sums is not None
        name = task.pair[0].name
        if name in sums:
            sums[name].merge(task.sums)
        else:
            sums[name] = task.sums
    compared = [TensorComparison.of(a, b, sums.get(a.name)) for a, b in pairs]
    by_name = {a.name: (a, b) for a, b in pairs}
    for c in compared:
        found = sums.get(c.name)
        judge(c, found, lambda c=c: find_order(*by_name[c.name]))  # type: ignore[misc]
    return compared
