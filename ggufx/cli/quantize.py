"""Write a model in other tensor types: a mix of llama-quantize, or the best types under a size."""

from __future__ import annotations

import argparse
import re
from typing import Any

from ..errors import GGUFError
from ..formats.file_types import FileType
from ..formats.tensor_types import QType, type_name
from ..sizes import format_size, size_option
from .progressbar import add_progress_argument, progress_bar
from .terminal import printable, warnings_as_lines

__all__ = ["TensorType", "add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    mixes = " ".join(f.name for f in FileType)
    parser.add_argument("input", metavar="IN", help="a GGUF file, or any shard of a set")
    parser.add_argument("output", metavar="OUT", help="the file to write, never the input")
    parser.add_argument("type", nargs="?", metavar="TYPE", help=f"a mix: {mixes}; or COPY")
    parser.add_argument(
        "--target-size", metavar="SIZE", help="instead of TYPE: search the types with the least error under this size"
    )
    parser.add_argument("--imatrix", metavar="FILE", help="importance matrix, as .dat or .gguf")
    parser.add_argument(
        "--include-weights", action="append", default=[], metavar="PART", help="importance only for these"
    )
    parser.add_argument(
        "--exclude-weights", action="append", default=[], metavar="PART", help="no importance for these"
    )
    parser.add_argument(
        "--tensor-type",
        action=TensorType,
        default=[],
        metavar="PATTERN=TYPE",
        help="type of the tensors that match",
    )
    parser.add_argument(
        "--tensor-type-file",
        action=_TensorTypeFile,
        dest="tensor_type",
        default=[],
        metavar="FILE",
        help="PATTERN=TYPE, one a line; lines that begin with # are passed over",
    )
    parser.add_argument("--output-tensor-type", metavar="TYPE", help="type of output.weight")
    parser.add_argument("--token-embedding-type", metavar="TYPE", help="type of the token embeddings")
    parser.add_argument("--pure", action="store_true", help="the mix's default type for every tensor")
    parser.add_argument("--leave-output-tensor", action="store_true", help="keep output.weight as it is")
    parser.add_argument(
        "--allow-requantize", action="store_true", help="go on although tensors are quantized already; quality is lost"
    )
    parser.add_argument(
        "--override-kv",
        action="append",
        default=[],
        metavar="KEY=TYPE:VALUE",
        help="metadata to set (int float bool str)",
    )
    parser.add_argument("--prune-layers", metavar="N,N", help="blocks to leave out")
    parser.add_argument(
        "--keep-split", action="store_true", help="write as many shards as there are, named OUT-0000N-of-0000M"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, write nothing")
    parser.add_argument("--threads", type=int, metavar="N", help="threads at most")
    parser.add_argument("--list", action="store_true", help="list every tensor's old and new type")
    add_progress_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Quantize and report."""
    from ..requantize.job import Options, Override, requantize

    if arguments.type is None and arguments.target_size is None:
        raise ValueError("TYPE or --target-size is needed")
    options = Options(
        imatrix=arguments.imatrix,
        include_weights=arguments.include_weights,
        exclude_weights=arguments.exclude_weights,
        override_kv=[Override.parse(text) for text in arguments.override_kv],
        prune_layers=_numbers(arguments.prune_layers or ""),
        tensor_types=arguments.tensor_type,
        output_type=_qtype(arguments.output_tensor_type),
        embedding_type=_qtype(arguments.token_embedding_type),
        pure=arguments.pure,
        leave_output=arguments.leave_output_tensor,
        keep_split=arguments.keep_split,
        allow_requantize=arguments.allow_requantize,
        target_size=size_option("--target-size", arguments.target_size),
    )
    with warnings_as_lines(), progress_bar(arguments.progress, "quantize") as progress:
        report = requantize(
            arguments.input,
            arguments.output,
            arguments.type,
            options=options,
            dry_run=arguments.dry_run,
            threads=arguments.threads,
            progress=progress,
        )
    if arguments.list:
        for c in report.choices:
            old, new = type_name(c.source), type_name(c.qtype)
            why = f"  ({c.kept})" if c.kept else f"  (instead of {c.wanted.name})" if c.wanted is not None else ""
            print(f"{printable(c.name)}  {'x'.join(map(str, c.shape))}  {old} -> {new}{why}")
    for note in report.notes():
        print(printable(note))
    if report.error is not None:
        print(f"sum of the tensors' relative errors, estimated on a sample: {report.error:.4g}")
    if missing := [c for c in report.choices if c.needs_imatrix and c.qtype != c.source and not arguments.imatrix]:
        print(f"{len(missing)} tensors need an importance matrix (--imatrix)")
    if report.refused is not None:
        raise GGUFError(f"the real run would be refused: {report.refused}")
    for path in report.paths:
        print(f"{printable(path)}: {report.ftype.name}, {format_size(report.nbytes_after)} of tensors")
    return 0


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")] if text else []
    except ValueError:
        raise ValueError(f"--prune-layers {text!r}: block numbers were expected, as in 3,4,5") from None


def _tensor_type(text: str, where: str = "--tensor-type") -> tuple[str, QType]:
    pattern, equals, name = text.rpartition("=")
    if not (pattern and equals and name):
        raise ValueError(f"{where} {text!r}: PATTERN=TYPE was expected")
    try:
        re.compile(pattern.lower())
        return pattern.lower(), _qtype(name)
    except re.error as error:
        raise ValueError(f"{where} {pattern!r} is no regular expression: {error}") from None
    except ValueError as error:
        raise ValueError(f"{where} {text!r}: {error}") from None


class TensorType(argparse.Action):
    """A pattern and its type, checked at once; those of files take their place among them: the first match counts."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, value: Any, *_: Any) -> None:
        namespace.tensor_type = [*namespace.tensor_type, _tensor_type(value)]


class _TensorTypeFile(argparse.Action):
    """Patterns and types, one a line."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, value: Any, *_: Any) -> None:
        pairs = []
        with open(value, encoding="utf-8", errors="surrogateescape") as lines:
            for number, line in enumerate(lines, 1):
                if (text := line.strip()) and not text.startswith("#"):
                    pairs.append(_tensor_type(text, f"{value}, line {number}:"))
        namespace.tensor_type = [*namespace.tensor_type, *pairs]


def _qtype(name: str | None) -> Any:
    return None if name is None else QType.parse(name)
