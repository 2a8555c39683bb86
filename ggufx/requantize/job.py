"""GGUF to GGUF in other tensor types: the choices of llama-quantize, or the best ones under a size."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ..codec.threads import thread_count
from ..errors import GGUFError, GGUFWarning
from ..formats.file_types import FileType
from ..formats.tensor_types import QType, nbytes
from ..read.reader import open as open_gguf
from ..read.shards import shard_name
from ..sizes import size_of
from ..write.outfile import refuse_inputs
from ..write.stream import Progress, padded
from ..write.writer import Writer, shard_prefix
from . import target_size as budget
from .checks import check_importance, check_types, lacks_importance, made_blocks, warn_of_missing
from .choices import Choice, Request, choose
from .importance import Importance
from .inputs import Input, input_of
from .metadata import GUESSED, Override, declared_or_guessed, fill_metadata, heaviest_mix
from .mixes import EMBEDDINGS
from .options import Options
from .report import Report, fallback_note, requantize_note
from .slabs import cut, ordered, quantized, taken

__all__ = ["Importance", "Options", "Override", "Report", "requantize"]


def requantize(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    ftype: FileType | str | int | None,
    *,
    options: Options | None = None,
    dry_run: bool = False,
    threads: int | None = None,
    sync: bool = True,
    progress: Progress | None = None,
    **named: Any,
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
    options : Options, optional
        What is asked for beside the mix: importance, types of some tensors, a size, overrides ...
    dry_run : bool
        Choose and report, write nothing. What would be refused is in the report.
    threads : int, optional
        Threads that decode and quantize; None as everywhere.
    sync : bool
        Wait for the disk before the file appears.
    progress : callable, optional
        Called as ``progress(name, done, total)`` with bytes written.
    **named
        Options by their names (``imatrix=``, ``tensor_types=``, ``target_size=`` ...), over those in `options`; see
        :class:`ggufx.requantize.Options`.

    Returns
    -------
    Report

    Raises
    ------
    GGUFError
        If a tensor is quantized already and `allow_requantize` isn't given; if a type needs an importance matrix that
        isn't there, or the one given is another model's; if a value isn't finite (the message names tensor and
        position); if the file is damaged.
    TypeError
        If there is no option of a name.
    ValueError
        If the output is the input or the importance matrix's file, nothing fits into `target_size`, or the arguments
        contradict each other: a mix or `pure` with `target_size`, types with COPY.

    Warns
    -----
    GGUFWarning
        For fallback types, tensors that were quantized already, scales that overflow, and tensors that an importance
        matrix lacks.

    Examples
    --------
    >>> requantize("model-f32.gguf", "model.gguf", "Q4_K_M", imatrix="model.imatrix.gguf")  # doctest: +SKIP
    """
    options = replace(options or Options(), **named)
    options.check(ftype)
    with open_gguf(source) as opened:
        model = input_of(opened, options)
        whole = Importance.of(options.imatrix)
        importance = whole.filtered(options.include_weights, options.exclude_weights)
        decision = decide(model, ftype, options, importance)
        workers = thread_count(threads)
        split = options.keep_split and len(model.files) > 1
        if options.keep_split and not split:
            if not shard_prefix(os.fsdecode(output)):
                raise ValueError(f"{os.fsdecode(output)!r} names no file to write")
            output = shard_name(os.fsdecode(output).removesuffix(".gguf"), 1, 1)
        if options.target_size is not None:
            check_importance(model, decision.choices, importance)
            decision = search(model, decision, options, importance, workers, split=split)
        report = report_of(model, decision, importance)
        try:
            if dry_run or not split:
                refuse_inputs(os.fsdecode(output), inputs_of(model, importance))
            check_types(decision.choices, allow_requantize=options.allow_requantize)
            check_importance(model, decision.choices, importance)
        except GGUFError as error:
            if dry_run:
                return replace(report, refused=str(error))
            raise
        if dry_run:
            return report
        warn_of_missing(model, decision.choices, whole)
        if report.fallbacks:
            warnings.warn(fallback_note(report.fallbacks), GGUFWarning, stacklevel=2)
        if report.requantized:
            warnings.warn(requantize_note(report.requantized), GGUFWarning, stacklevel=2)
        writer = writer_of(model, decision, options, importance, output, split=split, sync=sync, progress=progress)
        paths = write(model, decision, importance, writer, workers, split=split)
        return replace(report, paths=tuple(paths))


@dataclass(frozen=True)
class Decision:
    """What every tensor becomes, and what the output says it is.

    Attributes
    ----------
    choices : sequence of Choice
        In the order they are written.
    file_type : int
        ``general.file_type`` of the output.
    ftype : FileType
        The mix nearest to it.
    error : float, optional
        After a search: the sum of the tensors' relative errors.
    limit : int, optional
        Bytes that the output may have.
    """

    choices: Sequence[Choice]
    file_type: int
    ftype: FileType
    error: float | None = None
    limit: int | None = None


def decide(model: Input, ftype: FileType | str | int | None, options: Options, importance: Importance) -> Decision:
    """Give every tensor its type by the mix's rules; without a mix, by one that a search begins from."""
    sources = list(model.sources.values())
    copied = isinstance(ftype, str) and ftype.upper() == "COPY"
    mix = FileType.F32 if copied else FileType.Q4_K_M if ftype is None else FileType.parse(ftype)
    choices = choose(sources, model.facts, options.request(mix, importance), keep_order=options.keep_split)
    if not copied:
        return Decision(choices, mix, mix)
    return _as_declared(
        model, [c._replace(qtype=c.source, wanted=None, kept="copied", needs_imatrix=False) for c in choices]
    )


def _as_declared(model: Input, choices: Sequence[Choice]) -> Decision:
    """A decision that changes no type, so that the file stays what it says it is."""
    file_type = declared_or_guessed(model.files)
    known = file_type & ~GUESSED
    return Decision(choices, file_type, FileType(known) if known in set(FileType) else FileType.F32)


def search(
    model: Input, decision: Decision, options: Options, importance: Importance, threads: int, *, split: bool
) -> Decision:
    """Replace a mix's choices by the best ones whose file keeps within the size asked for."""
    target_size = size_of("target_size", options.target_size)
    free = _free(decision.choices, options.request(decision.ftype, importance))
    fixed = {c.name for c in decision.choices} - {c.name for c in free}
    # Everything but the free tensors' bytes: header, padding, and the tensors whose types are settled.
    writer = writer_of(model, decision, options, importance, os.devnull, split=split, sync=False)
    _plan(model, decision, writer, dict.fromkeys((c.name for c in _changed(decision)), bytes), split=split)
    rest = sum(
        len(file.header) + sum(padded(e.nbytes, writer.alignment) for e in file.entries if e.name in fixed)
        for file in writer.plan()
    )
    tensors = {c.name: model.sources[c.name].tensor for c in free}
    weights = {c.name: weights_of(model, c, importance) for c in free}
    measured = budget.measure(free, tensors, weights, writer.alignment, threads)
    try:
        chosen = budget.assign(measured, max(target_size - rest, 0))
    except ValueError as error:
        raise ValueError(
            f"nothing fits into {target_size} bytes: header and other tensors need {rest}, and {error}"
        ) from None
    choices = [
        c._replace(qtype=chosen[c.name], wanted=None, needs_imatrix=False) if c.name in chosen else c
        for c in decision.choices
    ]
    errors = {m.name: m.errors for m in measured}
    if all(c.qtype == c.source for c in choices):
        found = _as_declared(model, choices)
    else:
        mix = heaviest_mix(choices)
        found = Decision(choices, mix, mix)
    return replace(found, error=sum(errors[name][qtype] for name, qtype in chosen.items()), limit=target_size)


def _free(choices: Sequence[Choice], request: Request) -> list[Choice]:
    """The tensors whose types a search may choose: not those that are kept, empty, or asked for by name."""
    tied = all(c.name != "output.weight" for c in choices)  # the embeddings are the output then
    asked = {"output.weight", *(EMBEDDINGS if tied else ())} if request.output_type is not None else set()
    asked.update(EMBEDDINGS if request.embedding_type is not None else ())
    patterns = [pattern for pattern, _ in request.patterns()]
    return [
        c for c in choices if not (c.kept or 0 in c.shape or c.name in asked or any(p.search(c.name) for p in patterns))
    ]


def weights_of(model: Input, c: Choice, importance: Importance) -> npt.NDArray[np.float32] | None:
    """The importance of a tensor's columns, by the name it has in the input."""
    return importance.columns(model.sources[c.name].tensor.name, c.shape)


def inputs_of(model: Input, importance: Importance) -> list[str]:
    """The files that are read, which the output must not be."""
    return [f.path for f in model.files] + [file for file in (importance.file,) if file is not None]


def report_of(model: Input, decision: Decision, importance: Importance) -> Report:
    """What is to be told of a decision."""
    after = sum(
        nbytes(c.shape, c.qtype) if isinstance(c.qtype, QType) else model.sources[c.name].tensor.nbytes
        for c in decision.choices
    )
    weighed = None
    if importance.given:
        blocks = made_blocks(decision.choices)
        weighed = (len(blocks) - len(lacks_importance(model, blocks, importance)), len(blocks))
    return Report(
        decision.ftype,
        tuple(decision.choices),
        sum(s.tensor.nbytes for s in model.sources.values()),
        after,
        error=decision.error,
        weighed=weighed,
        described=model.facts.n_layer > 0,
    )


# --- writing ---------------------------------------------------------------------------------------------------------


def writer_of(
    model: Input,
    decision: Decision,
    options: Options,
    importance: Importance,
    output: str | os.PathLike[str],
    *,
    split: bool,
    sync: bool,
    progress: Progress | None = None,
) -> Writer:
    """A writer that has the output's metadata."""
    first = model.files[0]
    writer = Writer(
        output,
        byteorder=first.byteorder,
        split_always=split,
        split_first_empty=split and next(iter(model.sources.values())).shard > 0,
        inputs=inputs_of(model, importance),
        sync=sync,
        progress=progress,
    )
    fill_metadata(
        writer,
        first.metadata,
        file_type=decision.file_type,
        overrides=options.override_kv,
        importance=importance,
        block_count=None if model.n_layer is None else (f"{model.facts.arch}.block_count", model.n_layer),
    )
    return writer


def _changed(decision: Decision) -> list[Choice]:
    return [c for c in decision.choices if c.qtype != c.source]


def _plan(model: Input, decision: Decision, writer: Writer, made: dict[str, Any], *, split: bool) -> None:
    """Add the tensors to a writer: those in `made` from there, the others as they are stored."""
    shard = 0
    for c in decision.choices:
        source = model.sources[c.name]
        if split and source.shard != shard:
            writer.new_shard()
            shard = source.shard
        if c.name in made:
            writer.add(c.name, made[c.name], shape=c.shape, qtype=QType(c.qtype))
        else:
            writer.add(c.name, source.tensor)


def write(
    model: Input, decision: Decision, importance: Importance, writer: Writer, threads: int, *, split: bool
) -> list[str]:
    """Quantize and write, a few slabs ahead; returns the paths."""
    overflows: Counter[str] = Counter()  # of each tensor: the user hears of it once, not for every slab
    slabs = {
        c.name: list(cut(c.name, model.sources[c.name].tensor, QType(c.qtype), weights_of(model, c, importance)))
        for c in _changed(decision)
    }
    results = ordered(quantized, (slab for part in slabs.values() for slab in part), threads)
    made = {name: partial(taken, results, len(part), name, overflows) for name, part in slabs.items()}
    _plan(model, decision, writer, made, split=split)
    planned = sum(
        len(file.header) + sum(padded(e.nbytes, writer.alignment) for e in file.entries) for file in writer.plan()
    )
    if decision.limit is not None and planned > decision.limit:
        raise GGUFError(f"{writer.path}: {planned} bytes are planned, {decision.limit} were allowed")
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
