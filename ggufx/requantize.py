"""GGUF to GGUF in other tensor types: the choices of llama-quantize, or the best ones under a size.

Tensors are cut into slabs of rows that are decoded and quantized on all cores, in order, a few ahead of the writer: the
cores stay busy across tensors, and memory holds some slabs whatever the size of the model.
"""

from __future__ import annotations

import math
import os
import re
import threading
import warnings
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from . import budget
from .encode import NEEDS_IMATRIX
from .errors import GGUFError, GGUFWarning
from .filetypes import FileType
from .formats import QType, nbytes
from .reader import GGUFFile
from .reader import open as open_gguf
from .recipes import NEED_IMATRIX, Choice, ModelFacts, Request, TensorSpec, choose, fitting_type, visiting_order
from .sizes import format_size
from .splits import SplitFile, shard_name
from .stream import Progress, padded
from .tensor import Tensor
from .threads import thread_count
from .writer import SPLIT_KEYS, Writer

__all__ = ["Importance", "Override", "Report", "requantize"]

Floats = npt.NDArray[np.float32]
T = TypeVar("T")
R = TypeVar("R")

# The version of ggml's block formats, written as general.quantization_version.
QUANTIZATION_VERSION = 2
# llama.cpp's mark in general.file_type that it is a guess.
GUESSED = 1024
# llama-quantize cuts the imatrix file's and dataset's names to this many bytes.
LONGEST_TEXT = 127
# Values of a slab: 4 MB of float32, so that a slab and its blocks stay in a core's share of the cache.
SLAB = 1 << 20
# Slabs that may be finished or under way ahead of the writer, for each thread.
AHEAD = 3
# Values of a tensor that the search under a size looks at.
SAMPLE = 1 << 17
# Besides the packed types, what other types can be made of.
FLOATS = frozenset({QType.F32, QType.F16, QType.BF16, QType.F64})


class Override(NamedTuple):
    """A metadata key that is set in the output, with the type llama-quantize gives it."""

    key: str
    value: Any
    type: str

    @classmethod
    def parse(cls, text: str) -> Override:
        """``KEY=int:N``, ``KEY=float:X``, ``KEY=bool:true`` or ``KEY=str:TEXT``.

        Raises
        ------
        ValueError
            If it is none of these.
        """
        key, equals, rest = text.partition("=")
        kind, colon, value = rest.partition(":")
        if not key or not equals or not colon:
            raise ValueError(f"{text!r}: KEY=TYPE:VALUE was expected, with TYPE int, float, bool or str")
        if kind == "int":
            return cls(key, abs(int(value)), "uint32")  # llama-quantize, too, writes unsigned integers
        if kind == "float":
            return cls(key, float(value), "float32")
        if kind == "bool" and value in ("true", "false"):
            return cls(key, value == "true", "bool")
        if kind == "str":
            return cls(key, value, "string")
        raise ValueError(f"{text!r}: TYPE is int, float, bool (true or false) or str")


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


@dataclass(frozen=True)
class Report:
    """What a requantization did, or would do.

    Attributes
    ----------
    ftype : FileType
        Written as ``general.file_type``.
    choices : tuple of Choice
        Each tensor's old and new type, in file order.
    nbytes_before, nbytes_after : int
        Bytes of all tensors.
    paths : tuple of str
        Files written; empty after a dry run.
    error : float or None
        After a search under a size: the sum over the tensors of their relative weighted errors, on the sample.
    """

    ftype: FileType
    choices: tuple[Choice, ...] = field(repr=False)
    nbytes_before: int
    nbytes_after: int
    paths: tuple[str, ...] = ()
    error: float | None = None

    @property
    def size(self) -> int:
        """Values in all tensors."""
        return sum(math.prod(c.shape) for c in self.choices)

    @property
    def bits_per_weight(self) -> float:
        """Average of the output."""
        return 8 * self.nbytes_after / self.size if self.size else 0.0

    @property
    def fallbacks(self) -> tuple[Choice, ...]:
        """Tensors whose rows aren't whole blocks of the type they should have had."""
        return tuple(c for c in self.choices if c.wanted is not None)

    @property
    def requantized(self) -> tuple[Choice, ...]:
        """Tensors that were quantized before and get another type."""
        return tuple(c for c in self.choices if c.qtype != c.source and _is_packed(c.source))

    def notes(self) -> list[str]:
        """Lines for the user: sizes, the share left as it was, fallbacks and what they cost, what is lost."""
        lines = [
            f"{format_size(self.nbytes_before)} -> {format_size(self.nbytes_after)}, {self.bits_per_weight:.3f} bits "
            f"per weight: " + ", ".join(f"{n} {t}" for t, n in Counter(_name(c.qtype) for c in self.choices).items())
        ]
        kept = Counter(c.kept for c in self.choices if c.kept is not None)
        if kept:
            values = sum(math.prod(c.shape) for c in self.choices if c.kept is not None)
            reasons = ", ".join(f"{n} {reason}" for reason, n in kept.items())
            lines.append(f"{100 * values / self.size:.2f}% of the weights stay as they are ({reasons})")
        if self.fallbacks:
            lines += [_fallback_note(self.fallbacks), *_fallback_lines(self.fallbacks)]
        if self.requantized:
            lines.append(_requantize_note(self.requantized))
        return lines


def _name(qtype: QType | int) -> str:
    return qtype.name if isinstance(qtype, QType) else f"type {qtype}"


def _is_packed(qtype: QType | int) -> bool:
    return isinstance(qtype, QType) and qtype.is_quantized


def _fallback_lines(fallbacks: Sequence[Choice]) -> list[str]:
    """One line for each kind of tensor that falls back: which, how wide, to what, how many."""
    kinds: dict[tuple[str, int, str], list[Choice]] = {}
    for c in fallbacks:
        part = _ANY_BLOCK.sub("blk.*.", c.name, 1)
        kinds.setdefault((part, c.shape[-1], f"{_name(c.wanted or 0)} -> {_name(c.qtype)}"), []).append(c)
    lines = []
    for (part, width, pair), group in kinds.items():
        qtype, wanted = QType(group[0].qtype), QType(group[0].wanted or 0)
        extra = qtype.bits_per_weight - wanted.bits_per_weight
        tensors = f"{len(group)} tensors" if len(group) > 1 else "1 tensor"
        lines.append(f"  {part}: rows of {width}, {pair} ({extra:+.2f} bits per weight), {tensors}")
    return lines


def _fallback_note(fallbacks: Sequence[Choice]) -> str:
    values = sum(math.prod(c.shape) for c in fallbacks)
    bits = sum(8 * nbytes(c.shape, c.qtype) for c in fallbacks) / values
    wanted = sum(c.wanted.bits_per_weight * math.prod(c.shape) for c in fallbacks if c.wanted is not None) / values
    pairs = Counter(f"{_name(c.wanted or 0)} -> {_name(c.qtype)}" for c in fallbacks)
    return (
        f"{len(fallbacks)} tensors have rows that aren't whole blocks and fall back to other types: {bits:.2f} bits "
        f"per weight there, {wanted:.2f} were asked for ({', '.join(f'{n} {pair}' for pair, n in pairs.items())})"
    )


def _requantize_note(requantized: Sequence[Choice]) -> str:
    pairs = Counter(f"{_name(c.source)} -> {_name(c.qtype)}" for c in requantized)
    return (
        f"{len(requantized)} tensors were quantized already ({', '.join(f'{n} {pair}' for pair, n in pairs.items())}): "
        "the new rounding adds its error to the old one's; more bits make them larger, not better"
    )


def requantize(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    ftype: FileType | str | int | None,
    *,
    imatrix: Importance | Mapping[str, npt.NDArray[Any]] | str | os.PathLike[str] | None = None,
    include_weights: Sequence[str] = (),
    exclude_weights: Sequence[str] = (),
    override_kv: Sequence[Override] = (),
    prune_layers: Sequence[int] = (),
    tensor_types: Sequence[tuple[str, QType]] = (),
    output_type: QType | None = None,
    embedding_type: QType | None = None,
    pure: bool = False,
    leave_output: bool = False,
    keep_split: bool = False,
    allow_requantize: bool = False,
    target_size: int | None = None,
    dry_run: bool = False,
    threads: int | None = None,
    sync: bool = True,
    progress: Progress | None = None,
) -> Report:
    """Write a model in other tensor types.

    Parameters
    ----------
    source : path-like
        A GGUF file, or any shard of a set.
    output : path-like
        Where to write; never the input.
    ftype : FileType, str, int or None
        The mix. ``"COPY"`` keeps every type. None takes the types from `target_size` alone.
    imatrix : Importance, mapping, or path-like, optional
        Importance of input columns by tensor name, or the file that holds it.
    include_weights, exclude_weights : sequence of str
        Use the importance of tensors only where one of these is (not) part of the name.
    override_kv : sequence of Override
        Metadata to set in the output; the choices follow it.
    prune_layers : sequence of int
        Blocks to leave out; those behind move up.
    tensor_types : sequence of (pattern, QType)
        Types for the tensors whose names a regular expression is found in; the first pattern counts.
    output_type, embedding_type : QType, optional
        Types of the output tensor and of the token embeddings.
    pure : bool
        The mix's default type for every tensor.
    leave_output : bool
        Keep ``output.weight`` as it is.
    keep_split : bool
        Write as many shards as the input has, of the same tensors in the same order. One that isn't split gets a
        shard's name, ``-00001-of-00001.gguf``, and no ``split.*`` keys.
    allow_requantize : bool
        Go on although tensors are quantized already.
    target_size : int, optional
        Bytes the output may have: the types with the least error that keep within it are searched for.
    dry_run : bool
        Choose and report, write nothing.
    threads : int, optional
        Threads that decode and quantize; None as everywhere.
    sync : bool
        Wait for the disk before the file appears.
    progress : callable, optional
        Called as ``progress(name, done, total)`` with bytes written.

    Returns
    -------
    Report

    Raises
    ------
    GGUFError
        If a tensor is quantized already and `allow_requantize` isn't given; if a type needs an importance matrix that
        isn't there; if a value isn't finite (the message names tensor and position); if the file is damaged.
    ValueError
        If the output is the input or the importance matrix's file, or nothing fits into `target_size`.

    Warns
    -----
    GGUFWarning
        For fallback types, for tensors that were quantized already, and for scales that overflow.
    """
    with open_gguf(source) as model:
        files = model.shards if isinstance(model, SplitFile) else (model,)
        job = _Job(files, _importance(imatrix).filtered(include_weights, exclude_weights), override_kv, prune_layers)
        job.choose(
            ftype,
            Request(
                FileType.F32,
                imatrix=bool(job.importance.weights),
                pure=pure,
                tensor_types=tuple(tensor_types),
                output_type=output_type,
                embedding_type=embedding_type,
                leave_output=leave_output,
            ),
            keep_order=keep_split,
        )
        workers = thread_count(threads)
        if target_size is not None:
            job.search(target_size, workers)
        report = job.report()
        if dry_run:
            return report
        job.check(allow_requantize)
        if report.fallbacks:
            warnings.warn(_fallback_note(report.fallbacks), GGUFWarning, stacklevel=2)
        if report.requantized:
            warnings.warn(_requantize_note(report.requantized), GGUFWarning, stacklevel=2)
        split = keep_split and len(files) > 1
        if keep_split and not split:
            output = shard_name(os.fspath(output).removesuffix(".gguf"), 1, 1)
        paths = job.write(output, workers, split=split, sync=sync, progress=progress)
        return replace(report, paths=tuple(paths))


def _importance(imatrix: Any) -> Importance:
    """An importance matrix in whatever form it is given."""
    if imatrix is None:
        return Importance({})
    if isinstance(imatrix, Importance):
        return imatrix
    from .imatrix import ImportanceMatrix, load

    file = None
    if not isinstance(imatrix, Mapping):
        file, imatrix = os.fspath(imatrix), load(imatrix)
    if not isinstance(imatrix, ImportanceMatrix):
        return Importance(imatrix)
    return Importance(imatrix, file, imatrix.datasets[0] if imatrix.datasets else None, imatrix.chunk_count)


class _Source(NamedTuple):
    """A tensor of the input under its name in the output."""

    name: str
    tensor: Tensor
    shard: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape

    @property
    def qtype(self) -> QType | int:
        return self.tensor.qtype


class _Slab(NamedTuple):
    """Rows of one tensor, all under one expert's importance."""

    source: _Source
    qtype: QType
    start: int
    stop: int
    importance: Floats | None


class _Job:
    """One requantization: the tensors, what each becomes, and the writing."""

    def __init__(
        self, files: Sequence[GGUFFile], importance: Importance, overrides: Sequence[Override], prune: Sequence[int]
    ) -> None:
        self.files = files
        self.importance = importance
        self.overrides = overrides
        self.sources, self.n_layer = _pruned(
            [_Source(name, t, n) for n, f in enumerate(files) for name, t in f.tensors.items()], prune
        )
        metadata = dict(_Overlay(files[0].metadata, {o.key: o.value for o in overrides}))
        self.facts = ModelFacts.from_metadata(metadata)
        self.ftype = FileType.F32
        self.file_type = 0  # what the output's metadata says
        self.error: float | None = None

    # --- choosing ----------------------------------------------------------------------------------------------------

    def choose(self, ftype: FileType | str | int | None, request: Request, *, keep_order: bool) -> None:
        if keep_order:
            self.sources.sort(key=lambda s: (s.shard, s.tensor.offset))
        if isinstance(ftype, str) and ftype.upper() == "COPY":
            choices = choose(self.sources, self.facts, request, keep_order=keep_order)
            self.choices = [
                c._replace(qtype=c.source, wanted=None, kept="copied", needs_imatrix=False) for c in choices
            ]
            self.file_type = _declared_or_guessed(self.files)
            self.ftype = FileType(known) if (known := self.file_type & ~GUESSED) in set(FileType) else FileType.F32
        else:
            self.file_type = self.ftype = FileType.Q4_K_M if ftype is None else FileType.parse(ftype)
            self.choices = choose(self.sources, self.facts, replace(request, ftype=self.ftype), keep_order=keep_order)
        self.request = request
        self.by_name = {s.name: s for s in self.sources}

    def search(self, target_size: int, threads: int) -> None:
        """Replace the mix's choices by the best ones whose file keeps within `target_size` bytes."""
        patterns = [pattern for pattern, _ in self.request.patterns()]
        free = [
            c
            for c in self.choices
            if c.kept is None
            and 0 not in c.shape
            and not any(p.search(c.name) for p in patterns)
            and not (c.name == "output.weight" and self.request.output_type is not None)
        ]
        fixed = {c.name for c in self.choices} - {c.name for c in free}
        # Everything but the free tensors' bytes: header, padding, and the tensors whose types are settled.
        writer = self.writer(os.devnull, split=False, sync=False, progress=None)
        for c in self.choices:
            if c.qtype == c.source:
                writer.add(c.name, self.by_name[c.name].tensor)
            else:
                writer.add(c.name, bytes, shape=c.shape, qtype=QType(c.qtype))
        (planned,) = writer.plan()
        rest = len(planned.header) + sum(padded(e.nbytes, writer.alignment) for e in planned.entries if e.name in fixed)
        measured = self.measure(free, writer.alignment, threads)
        try:
            chosen = budget.assign(measured, max(target_size - rest, 0))
        except ValueError as error:
            raise ValueError(
                f"nothing fits into {target_size} bytes: header and other tensors need {rest}, and {error}"
            ) from None
        self.choices = [
            c._replace(qtype=chosen[c.name], wanted=None, needs_imatrix=False) if c.name in chosen else c
            for c in self.choices
        ]
        errors = {m.name: m.errors for m in measured}
        self.error = sum(errors[name][qtype] for name, qtype in chosen.items())
        self.file_type = self.ftype = _mix_of(_heaviest(self.choices))

    def measure(self, choices: Sequence[Choice], alignment: int, threads: int) -> list[budget.Measured]:
        """The error of every candidate type on a sample of every tensor."""
        wanted = budget.CANDIDATES + (budget.IMATRIX_CANDIDATES if self.importance.weights else ())

        def work(pair: tuple[Choice, QType]) -> float:
            c, qtype = pair
            rows, importance = self.sample(c.name)
            return budget.relative_error(rows, qtype, importance)

        pairs = []
        for c in choices:
            weights = self.weights_of(c)
            kinds = {fitting_type(c.name, c.shape, t) for t in wanted}
            kinds = {t for t in kinds if weights is not None or t not in NEED_IMATRIX}
            pairs += [(c, t) for t in sorted(kinds)]
        found: dict[str, dict[QType, float]] = {}
        for (c, qtype), error in zip(pairs, ordered(work, pairs, threads), strict=True):
            found.setdefault(c.name, {})[qtype] = error
        sizes = {c.name: {t: padded(nbytes(c.shape, t), alignment) for t in found[c.name]} for c in choices}
        return [budget.Measured(c.name, sizes[c.name], found[c.name]) for c in choices]

    def sample(self, name: str) -> tuple[Floats, Floats | None]:
        """Some rows of a tensor, and their importance."""
        source = self.by_name[name]
        width = source.shape[-1]
        rows = math.prod(source.shape[:-1])
        at = budget.sample_rows(rows, width, SAMPLE)
        values = source.tensor.reshape(rows, width).take(at, dtype=np.float32, threads=1)
        weights = self.weights_of(TensorSpec(name, source.shape))
        if weights is None or weights.ndim == 1:
            return values, weights
        per_expert = rows // len(weights)
        return values, np.ascontiguousarray(weights[at // per_expert])

    def weights_of(self, c: Any) -> Floats | None:
        """The importance of a tensor's columns, one row for each expert where it has experts."""
        name = self.by_name[c.name].tensor.name
        given = self.importance.weights.get(name)
        if given is None:
            return None
        weights = np.ascontiguousarray(given, np.float32).reshape(-1)
        experts = math.prod(c.shape[:-2]) if len(c.shape) > 2 else 1
        if weights.size != experts * c.shape[-1]:
            if c.name in ("token_embd.weight", "per_layer_token_embd.weight"):
                return None
            raise GGUFError(
                f"tensor {name!r}: the importance matrix has {weights.size} values, "
                f"{experts} x {c.shape[-1]} were expected"
            )
        return weights if experts == 1 else weights.reshape(experts, -1)

    def check(self, allow_requantize: bool) -> None:
        """Refuse before any work what would fail or do harm in the middle of it."""
        for c in self.choices:
            if c.qtype == c.source:
                continue
            if not isinstance(c.source, QType) or not (c.source.is_quantized or c.source in FLOATS):
                raise GGUFError(f"tensor {c.name!r}: {_name(c.source)} values can't become {_name(c.qtype)}")
            if c.source.is_quantized and not allow_requantize:
                raise GGUFError(
                    f"tensor {c.name!r} is quantized already ({c.source.name}): making it {_name(c.qtype)} adds error "
                    "to error; allow_requantize (--allow-requantize) does it all the same"
                )
            # llama-quantize lets the embeddings and the output pass here, and ggml then aborts on some types.
            if (c.needs_imatrix or c.qtype in NEEDS_IMATRIX) and self.weights_of(c) is None:
                raise GGUFError(
                    f"tensor {c.name!r}: {_name(c.qtype)} needs an importance matrix, and there is none for it"
                )
            if c.shape[-1] % QType(c.qtype).block_size:
                raise GGUFError(f"tensor {c.name!r}: rows of {c.shape[-1]} values can't be {_name(c.qtype)}")

    def report(self) -> Report:
        before = sum(s.tensor.nbytes for s in self.sources)
        after = sum(
            nbytes(c.shape, c.qtype) if isinstance(c.qtype, QType) else self.by_name[c.name].tensor.nbytes
            for c in self.choices
        )
        return Report(self.ftype, tuple(self.choices), before, after, error=self.error)

    # --- writing -----------------------------------------------------------------------------------------------------

    def writer(self, output: str | os.PathLike[str], *, split: bool, sync: bool, progress: Progress | None) -> Writer:
        """A writer with the output's metadata: llama-quantize's keys, in its order."""
        first = self.files[0]
        writer = Writer(
            output,
            byteorder=first.byte_order,
            split_always=split,
            split_first_empty=split and self.sources[0].shard > 0,
            inputs=[f.path for f in self.files] + [file for file in (self.importance.file,) if file is not None],
            sync=sync,
            progress=progress,
        )
        writer.update(first.metadata)

        def put(key: str, value: Any, kind: str) -> None:
            if key in writer:
                writer.delete(key)
            writer.set(key, value, kind)

        put("general.quantization_version", QUANTIZATION_VERSION, "uint32")
        put("general.file_type", int(self.file_type), "uint32")
        for key in SPLIT_KEYS:
            if key in writer:
                writer.delete(key)
        for override in self.overrides:
            put(*override)
        used = self.importance
        if used.weights:
            for key, text in (("file", used.file), ("dataset", used.dataset)):
                if text is not None:
                    put(f"quantize.imatrix.{key}", os.fsencode(text)[:LONGEST_TEXT], "string")
            put("quantize.imatrix.entries_count", len(used.weights), "uint32")
            if used.chunks:
                put("quantize.imatrix.chunks_count", used.chunks, "uint32")
        if self.n_layer is not None:
            put(f"{self.facts.arch}.block_count", self.n_layer, "uint32")
        return writer

    def write(
        self, output: str | os.PathLike[str], threads: int, *, split: bool, sync: bool, progress: Progress | None
    ) -> list[str]:
        writer = self.writer(output, split=split, sync=sync, progress=progress)
        overflows = _Overflows()

        def work(slab: _Slab) -> npt.NDArray[np.uint8]:
            return _quantized(slab, overflows)

        slabs = {c.name: list(self.slabs(c)) for c in self.choices if c.qtype != c.source}
        results = ordered(work, (slab for part in slabs.values() for slab in part), threads)
        shard = 0
        for c in self.choices:
            source = self.by_name[c.name]
            if split and source.shard != shard:
                writer.new_shard()
                shard = source.shard
            if c.name in slabs:
                count = len(slabs[c.name])
                writer.add(c.name, lambda n=count: _take(results, n), shape=c.shape, qtype=QType(c.qtype))
            else:
                writer.add(c.name, source.tensor)
        try:
            with overflows:
                paths = writer.close()
        finally:
            results.close()
        if counts := overflows.counts:
            worst = ", ".join(f"{n} in {name!r}" for name, n in counts.most_common(3))
            warnings.warn(
                f"{sum(counts.values())} scales or values overflow half precision and become infinite ({worst})",
                GGUFWarning,
                stacklevel=3,
            )
        return paths

    def slabs(self, c: Choice) -> Iterator[_Slab]:
        """A tensor's rows in pieces that don't cross from one expert to the next."""
        source, weights = self.by_name[c.name], self.weights_of(c)
        rows = math.prod(c.shape[:-1]) if c.shape[-1] else 0
        step = max(1, SLAB // max(c.shape[-1], 1))
        groups = 1 if weights is None or weights.ndim == 1 else len(weights)
        per_group = rows // groups
        for g in range(groups):
            importance = None if weights is None else weights if weights.ndim == 1 else weights[g]
            for start in range(g * per_group, (g + 1) * per_group, step):
                stop = min(start + step, (g + 1) * per_group)
                yield _Slab(source, QType(c.qtype), start, stop, importance)


class _Overlay(Mapping[str, Any]):
    """Metadata with some keys replaced."""

    def __init__(self, below: Mapping[str, Any], above: Mapping[str, Any]) -> None:
        self._below, self._above = below, above

    def __getitem__(self, key: str) -> Any:
        return self._above[key] if key in self._above else self._below[key]

    def __len__(self) -> int:
        return len(set(self._below) | set(self._above))

    def __iter__(self) -> Iterator[str]:
        yield from self._below
        yield from (key for key in self._above if key not in self._below)


def _pruned(sources: list[_Source], prune: Sequence[int]) -> tuple[list[_Source], int | None]:
    """The tensors without those of pruned blocks, the blocks behind renumbered; and how many blocks remain."""
    if not prune:
        return sources, None
    blocks = sorted({int(m[1]) for s in sources if (m := _ANY_BLOCK.search(s.name))})
    missing = sorted(set(prune) - set(blocks))
    if missing:
        raise ValueError(f"blocks {missing} to prune aren't there; the model has {len(blocks)} blocks")
    numbers = {old: new for new, old in enumerate(b for b in blocks if b not in set(prune))}
    kept = []
    for s in sources:
        match = _ANY_BLOCK.search(s.name)
        if match is None:
            kept.append(s)
        elif int(match[1]) in numbers:
            name = f"{s.name[: match.start(1)]}{numbers[int(match[1])]}{s.name[match.end(1) :]}"
            kept.append(s._replace(name=name))
    return kept, len(numbers)


_ANY_BLOCK = re.compile(r"blk\.(\d{1,9})\.")


def _declared_or_guessed(files: Sequence[GGUFFile]) -> int:
    """The files' ``general.file_type``, or llama.cpp's guess: by the type that first becomes that of most tensors."""
    own = files[0].metadata.get("general.file_type")
    if isinstance(own, int) and 0 <= own < 1 << 32:
        return own
    counts: Counter[QType | int] = Counter()
    most: QType | int = QType.F32
    for t in visiting_order(t for f in files for t in f.tensors.values()):
        counts[t.qtype] += 1
        if counts[t.qtype] > counts[most]:
            most = t.qtype
    return (FileType.F32 if most is QType.MXFP4 else _mix_of(most)) | GUESSED  # it doesn't know what mix MXFP4 is


def _heaviest(choices: Iterable[Choice]) -> QType | int:
    """The type that holds most of the values."""
    weight: Counter[QType | int] = Counter()
    for c in choices:
        weight[c.qtype] += math.prod(c.shape)
    return max(weight, key=lambda qtype: weight[qtype], default=QType.F32)


def _mix_of(qtype: QType | int) -> FileType:
    """The mix that llama.cpp takes a file of mostly this type for."""
    try:
        return FileType.parse(_name(qtype))
    except ValueError:
        return FileType.F32


def _decoded(rows: Tensor) -> Floats:
    """A matrix of rows as float32; what is float32 already stays where it is."""
    if rows.qtype is QType.F32 and rows.byte_order == "little":
        return rows.data
    return rows.dequantize(np.float32, threads=1)


def _quantized(slab: _Slab, overflows: _Overflows) -> npt.NDArray[np.uint8]:
    """Decode and quantize the rows of a slab."""
    from .encode import quantize

    rows = slab.source.tensor.rows(slab.start, slab.stop)
    values = _decoded(rows)
    try:
        with overflows.of(slab.source.name):
            packed = quantize(values, slab.qtype, imatrix=slab.importance, threads=1)
        rows.advise("dontneed")  # each page is needed once, and a process may be smaller than its model
        return packed
    except GGUFError as error:
        bad = np.argwhere(~np.isfinite(values))
        if not len(bad):
            raise GGUFError(f"{slab.source.tensor.label}: {error}") from error
        row, column = (int(i) for i in bad[0])
        at = [int(i) for i in np.unravel_index(row + slab.start, slab.source.shape[:-1])]
        raise GGUFError(
            f"{slab.source.tensor.label}: the value at {[*at, column]} is {values[row, column]}: no number to quantize"
        ) from error


class _Overflows:
    """Counts what quantize() warns of, by tensor, so that the user hears of it once and not for every slab.

    Python's filters belong to the process, so they are set once around all the work; each worker says which tensor it
    is on. Warnings of others pass through.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._here = threading.local()
        self._catch = warnings.catch_warnings()

    def __enter__(self) -> _Overflows:
        self._catch.__enter__()
        warnings.simplefilter("always", GGUFWarning)
        passed_on = warnings.showwarning

        def show(message: Any, category: type[Warning], filename: str, lineno: int, *rest: Any, **more: Any) -> None:
            name = getattr(self._here, "name", None)
            number = re.search(r": (\d+) of", str(message))
            if issubclass(category, GGUFWarning) and name is not None and number:
                self.counts[name] += int(number[1])
            else:
                passed_on(message, category, filename, lineno, *rest, **more)

        warnings.showwarning = show
        return self

    def __exit__(self, *_: object) -> None:
        self._catch.__exit__(None, None, None)

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """What this thread warns of inside belongs to the tensor `name`."""
        self._here.name = name
        try:
            yield
        finally:
            self._here.name = None


def ordered(work: Callable[[T], R], items: Iterable[T], threads: int) -> Generator[R, None, None]:
    """The results of ``work(item)`` in order, a bounded number of them worked on ahead on `threads` threads."""
    if threads == 1:
        for item in items:
            yield work(item)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="ggufx") as pool:
        queue: deque[Future[R]] = deque()
        try:
            for item in items:
                queue.append(pool.submit(work, item))
                if len(queue) >= AHEAD * threads:
                    yield queue.popleft().result()
            while queue:
                yield queue.popleft().result()
        finally:
            for future in queue:
                future.cancel()


def _take(results: Iterator[T], count: int) -> Iterator[T]:
    for _ in range(count):
        yield next(results)
