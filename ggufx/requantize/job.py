"""GGUF to GGUF in other tensor types: the choices of llama-quantize, or the best ones under a size."""

from __future__ import annotations

import os
import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..codec.encode import NEEDS_IMATRIX
from ..codec.threads import thread_count
from ..errors import GGUFError, GGUFWarning
from ..formats.file_types import FileType
from ..formats.tensor_types import QType, nbytes, type_name
from ..model.hyperparameters import ModelFacts
from ..read.reader import GGUFFile
from ..read.reader import open as open_gguf
from ..read.shards import SplitFile, shard_name
from ..read.tensor import Tensor
from ..sizes import size_of
from ..write.outfile import refuse_inputs
from ..write.stream import Progress, padded
from ..write.writer import Writer, shard_prefix
from . import target_size as budget
from .choices import Choice, Request, block_number, choose
from .importance import Importance
from .metadata import GUESSED, Override, declared_or_guessed, fill_metadata, heaviest_mix
from .mixes import EMBEDDINGS, FLOATS
from .report import Report, fallback_note, grouped, requantize_note
from .slabs import cut, ordered, quantized, taken

__all__ = ["Importance", "Override", "Report", "requantize"]


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
    target_size: int | str | None = None,
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
        The mix. ``"COPY"`` keeps every type. None, and only None, takes the types from `target_size`.
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
    target_size : int or str, optional
        Bytes the output may have (``"4GiB"`` is as good): the types with the least error that keep within it are
        searched for. Where the types the tensors have fit, they stay.
    dry_run : bool
        Choose and report, write nothing. What would be refused is in the report.
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
        If the output is the input or the importance matrix's file, nothing fits into `target_size`, or the arguments
        contradict each other: a mix or `pure` with `target_size`, types with COPY.

    Warns
    -----
    GGUFWarning
        For fallback types, for tensors that were quantized already, and for scales that overflow.
    """
    budget_bytes = None if target_size is None else size_of("target_size", target_size)
    asked = {
        "pure": pure,
        "tensor_types": bool(tensor_types),
        "output_type": output_type is not None,
        "embedding_type": embedding_type is not None,
    }
    _check_arguments(ftype, target_size, [name for name, given in asked.items() if given])
    for override in override_kv:
        override.check()
    with open_gguf(source) as model:
        files = model.shards if isinstance(model, SplitFile) else (model,)
        importance = Importance.of(imatrix)
        job = _Job(files, importance.filtered(include_weights, exclude_weights), override_kv, prune_layers)
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
        split = keep_split and len(files) > 1
        if keep_split and not split:
            if not shard_prefix(os.fsdecode(output)):
                raise ValueError(f"{os.fsdecode(output)!r} names no file to write")
            output = shard_name(os.fsdecode(output).removesuffix(".gguf"), 1, 1)
        if budget_bytes is not None:
            job.check_importance()
            job.search(budget_bytes, workers, split=split)
        report = job.report()
        if dry_run:
            try:
                refuse_inputs(os.fsdecode(output), job.inputs)
                job.check(allow_requantize)
            except GGUFError as error:
                return replace(report, refused=str(error))
            return report
        if not split:
            refuse_inputs(os.fsdecode(output), job.inputs)
        job.check(allow_requantize)
        job.warn_of_missing(importance)
        if report.fallbacks:
            warnings.warn(fallback_note(report.fallbacks), GGUFWarning, stacklevel=2)
        if report.requantized:
            warnings.warn(requantize_note(report.requantized), GGUFWarning, stacklevel=2)
        paths = job.write(output, workers, split=split, sync=sync, progress=progress)
        return replace(report, paths=tuple(paths))


def _check_arguments(ftype: object, target_size: object, types: Sequence[str]) -> None:
    """Refuse arguments of which one would go unheard."""
    if ftype is None and target_size is None:
        raise ValueError("a mix or target_size (--target-size) is needed")
    if ftype is not None and target_size is not None:
        raise ValueError(
            f"{ftype} and target_size (--target-size) contradict each other: a mix settles the types, a size searches "
            "for them; give one of them"
        )
    if target_size is not None and "pure" in types:
        raise ValueError("pure (--pure) gives every tensor a mix's type; target_size (--target-size) has no mix")
    if isinstance(ftype, str) and ftype.upper() == "COPY" and types:
        raise ValueError(f"COPY keeps every type, which {' and '.join(types)} would change")


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


class _Job:
    """One requantization: the tensors, what each becomes, and the writing."""

    def __init__(
        self, files: Sequence[GGUFFile], importance: Importance, overrides: Sequence[Override], prune: Sequence[int]
    ) -> None:
        self.files = files
        self.importance = importance
        self.overrides = overrides
        self.facts = ModelFacts.known({**files[0].metadata, **{o.key: o.value for o in overrides}})
        if prune and not self.facts.n_layer:
            raise ValueError("blocks can't be pruned: the file doesn't count a model's blocks")
        self.sources, self.n_layer = _pruned(
            [_Source(name, t, n) for n, f in enumerate(files) for name, t in f.tensors.items()], prune
        )
        self.ftype = FileType.F32
        self.file_type = 0  # what the output's metadata says
        self.error: float | None = None
        self.limit: int | None = None
        self.inputs = [f.path for f in files] + [file for file in (importance.file,) if file is not None]

    # --- choosing ----------------------------------------------------------------------------------------------------

    def choose(self, ftype: FileType | str | int | None, request: Request, *, keep_order: bool) -> None:
        if keep_order:
            self.sources.sort(key=lambda s: (s.shard, s.tensor.offset))
        if isinstance(ftype, str) and ftype.upper() == "COPY":
            choices = choose(self.sources, self.facts, request, keep_order=keep_order)
            self.choices = [
                c._replace(qtype=c.source, wanted=None, kept="copied", needs_imatrix=False) for c in choices
            ]
            self.file_type = declared_or_guessed(self.files)
            self.ftype = FileType(known) if (known := self.file_type & ~GUESSED) in set(FileType) else FileType.F32
        else:
            self.file_type = self.ftype = FileType.Q4_K_M if ftype is None else FileType.parse(ftype)
            self.choices = choose(self.sources, self.facts, replace(request, ftype=self.ftype), keep_order=keep_order)
        self.request = request
        self.by_name = {s.name: s for s in self.sources}

    def search(self, target_size: int, threads: int, *, split: bool) -> None:
        """Replace the mix's choices by the best ones whose file keeps within `target_size` bytes."""
        patterns = [pattern for pattern, _ in self.request.patterns()]
        tied = "output.weight" not in self.by_name  # the embeddings are the output then
        asked = {"output.weight", *(EMBEDDINGS if tied else ())} if self.request.output_type is not None else set()
        asked.update(EMBEDDINGS if self.request.embedding_type is not None else ())
        free = [
            c
            for c in self.choices
            if not (c.kept or 0 in c.shape or c.name in asked or any(p.search(c.name) for p in patterns))
        ]
        fixed = {c.name for c in self.choices} - {c.name for c in free}
        # Everything but the free tensors' bytes: header, padding, and the tensors whose types are settled.
        writer = self.writer(os.devnull, split=split, sync=False, progress=None)
        shard = 0
        for c in self.choices:
            if split and self.by_name[c.name].shard != shard:
                writer.new_shard()
                shard = self.by_name[c.name].shard
            if c.qtype == c.source:
                writer.add(c.name, self.by_name[c.name].tensor)
            else:
                writer.add(c.name, bytes, shape=c.shape, qtype=QType(c.qtype))
        rest = sum(
            len(file.header) + sum(padded(e.nbytes, writer.alignment) for e in file.entries if e.name in fixed)
            for file in writer.plan()
        )
        tensors = {c.name: self.by_name[c.name].tensor for c in free}
        weights = {c.name: self.weights_of(c) for c in free}
        measured = budget.measure(free, tensors, weights, writer.alignment, threads)
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
        if all(c.qtype == c.source for c in self.choices):
            self.file_type = declared_or_guessed(self.files)
            self.ftype = FileType(known) if (known := self.file_type & ~GUESSED) in set(FileType) else FileType.F32
        else:
            self.file_type = self.ftype = heaviest_mix(self.choices)
        self.limit = target_size

    def weights_of(self, c: Choice) -> npt.NDArray[np.float32] | None:
        return self.importance.columns(self.by_name[c.name].tensor.name, c.shape)

    def check(self, allow_requantize: bool) -> None:
        """Refuse before any work what would fail or do harm in the middle of it."""
        for c in self.choices:
            if c.qtype == c.source:
                continue
            if not isinstance(c.source, QType) or not (c.source.is_quantized or c.source in FLOATS):
                raise GGUFError(f"tensor {c.name!r}: {type_name(c.source)} values can't become {type_name(c.qtype)}")
            if c.source.is_quantized and c.qtype is not QType.F32 and not allow_requantize:
                raise GGUFError(
                    f"tensor {c.name!r} is quantized already ({c.source.name}): making it {type_name(c.qtype)} adds "
                    "error to error; allow_requantize (--allow-requantize) does it all the same"
                )
            if c.shape[-1] % QType(c.qtype).block_size:
                raise GGUFError(f"tensor {c.name!r}: rows of {c.shape[-1]} values can't be {type_name(c.qtype)}")

        self.check_importance()

    def check_importance(self) -> None:
        """Refuse an importance matrix of another model, and types that can't do without where it has no entry."""
        quantized = self.quantized()
        missing = [c for c in quantized if not self.importance.has(self.by_name[c.name].tensor.name, c.shape)]
        if self.importance.given and quantized and len(missing) == len(quantized):
            missing.sort(key=lambda c: block_number(c.name) < 0)
            own = ", ".join(map(repr, list(self.importance.weights)[:3])) or "none at all"
            raise GGUFError(
                f"{self.importance.file or 'the importance matrix'} has entries for 0 of {len(quantized)} tensors that "
                f"are quantized: {', '.join(repr(c.name) for c in missing[:3])} ... were expected, it has {own}"
                + (" ..." if len(self.importance.weights) > 3 else "")
            )
        # llama-quantize lets the embeddings and the output pass here, and ggml then aborts on some types.
        lacking = [c for c in missing if c.needs_imatrix or c.qtype in NEEDS_IMATRIX]
        if len(lacking) == 1:
            raise GGUFError(
                f"tensor {lacking[0].name!r}: {type_name(lacking[0].qtype)} needs an importance matrix, and there is "
                "none for it"
            )
        if lacking:
            types = " and ".join(sorted({type_name(c.qtype) for c in lacking}))
            raise GGUFError(
                f"{types} {'need' if ' and ' in types else 'needs'} an importance matrix, and there is none for "
                f"{len(lacking)} tensors: {grouped(c.name for c in lacking)}"
            )

    def quantized(self) -> list[Choice]:
        """The tensors that are made packed blocks of, which an importance matrix can serve."""
        return [c for c in self.choices if c.qtype != c.source and isinstance(c.qtype, QType) and c.qtype.is_quantized]

    def warn_of_missing(self, whole: Importance) -> None:
        """Warn where an importance matrix, before any of it is left out, lacks tensors.

        The embeddings and the output don't count: they are rarely in one.
        """
        if not whole.given:
            return
        quantized = [c for c in self.quantized() if c.name != "output.weight" and c.name not in EMBEDDINGS]
        missing = [c for c in quantized if not whole.has(self.by_name[c.name].tensor.name, c.shape)]
        if missing:
            warnings.warn(
                f"the importance matrix has entries for {len(quantized) - len(missing)} of {len(quantized)} tensors; "
                f"none for {', '.join(repr(c.name) for c in missing[:3])}{' ...' if len(missing) > 3 else ''}",
                GGUFWarning,
                stacklevel=3,
            )

    def report(self) -> Report:
        before = sum(s.tensor.nbytes for s in self.sources)
        after = sum(
            nbytes(c.shape, c.qtype) if isinstance(c.qtype, QType) else self.by_name[c.name].tensor.nbytes
            for c in self.choices
        )
        weighed = None
        if self.importance.given:
            quantized = self.quantized()
            have = sum(self.importance.has(self.by_name[c.name].tensor.name, c.shape) for c in quantized)
            weighed = (have, len(quantized))
        return Report(
            self.ftype,
            tuple(self.choices),
            before,
            after,
            error=self.error,
            weighed=weighed,
            described=self.facts.n_layer > 0,
        )

    # --- writing -----------------------------------------------------------------------------------------------------

    def writer(self, output: str | os.PathLike[str], *, split: bool, sync: bool, progress: Progress | None) -> Writer:
        """A writer that has the output's metadata."""
        first = self.files[0]
        writer = Writer(
            output,
            byteorder=first.byte_order,
            split_always=split,
            split_first_empty=split and self.sources[0].shard > 0,
            inputs=self.inputs,
            sync=sync,
            progress=progress,
        )
        fill_metadata(
            writer,
            first.metadata,
            file_type=self.file_type,
            overrides=self.overrides,
            importance=self.importance,
            block_count=None if self.n_layer is None else (f"{self.facts.arch}.block_count", self.n_layer),
        )
        return writer

    def write(
        self, output: str | os.PathLike[str], threads: int, *, split: bool, sync: bool, progress: Progress | None
    ) -> list[str]:
        writer = self.writer(output, split=split, sync=sync, progress=progress)
        overflows: Counter[str] = Counter()  # of each tensor: the user hears of it once, not for every slab

        slabs = {
            c.name: list(cut(c.name, self.by_name[c.name].tensor, QType(c.qtype), self.weights_of(c)))
            for c in self.choices
            if c.qtype != c.source
        }
        results = ordered(quantized, (slab for part in slabs.values() for slab in part), threads)
        shard = 0
        for c in self.choices:
            source = self.by_name[c.name]
            if split and source.shard != shard:
                writer.new_shard()
                shard = source.shard
            if c.name in slabs:
                count = len(slabs[c.name])
                writer.add(
                    c.name, partial(taken, results, count, c.name, overflows), shape=c.shape, qtype=QType(c.qtype)
                )
            else:
                writer.add(c.name, source.tensor)
        planned = sum(
            len(file.header) + sum(padded(e.nbytes, writer.alignment) for e in file.entries) for file in writer.plan()
        )
        if self.limit is not None and planned > self.limit:
            raise GGUFError(f"{os.fsdecode(output)}: {planned} bytes are planned, {self.limit} were allowed")
        try:
            paths = writer.close()
        finally:
            results.close()
        if overflows:
            worst = ", ".join(f"{n} in {name!r}" for name, n in overflows.most_common(3))
            warnings.warn(
                f"{sum(overflows.values())} scales or values overflow half precision and become infinite ({worst})",
                GGUFWarning,
                stacklevel=3,
            )
        return paths


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
