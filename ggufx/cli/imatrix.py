"""Collect an importance matrix by running a model on a text; merge, convert and look into such matrices."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict

from .terminal import printable, warnings_as_lines

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", nargs="?", metavar="MODEL", help="a GGUF file, or any shard of a set")
    parser.add_argument("--text", metavar="FILE", help="calibration text in UTF-8")
    parser.add_argument("-o", "--output", metavar="OUT", help="the file to write: .dat in that form, else GGUF")
    parser.add_argument(
        "--in-file", action="append", default=[], metavar="FILE", help="a matrix to add in, of either form; repeatable"
    )
    parser.add_argument("--show-statistics", action="store_true", help="print what the matrix says of each tensor")
    parser.add_argument("-c", "--ctx", type=int, default=512, metavar="N", help="tokens of a window (512)")
    parser.add_argument("--windows", type=int, metavar="N", help="the first N windows only")
    parser.add_argument("--process-output", action="store_true", help="collect for output.weight too")
    parser.add_argument("--save-every", type=int, default=10, metavar="N", help="write OUT after every N windows (10)")
    parser.add_argument("--resume", action="store_true", help="go on where OUT ends")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32", help="torch's dtype")
    parser.add_argument("--json", action="store_true", help="print the statistics as JSON")
    parser.add_argument("--threads", type=int, metavar="N", help="at most N threads (default: all)")


def run(arguments: argparse.Namespace) -> int:
    """Collect or merge, write, and report."""
    from ..evaluate.activations import collect, statistics
    from ..requantize.imatrix import ImportanceMatrix, load

    if (arguments.model is None) != (arguments.text is None):
        raise ValueError("MODEL and --text go together; without them --in-file is needed")
    if arguments.model is None and not arguments.in_file:
        raise ValueError("MODEL and --text, or --in-file, are needed")
    if arguments.output is None and not arguments.show_statistics:
        raise ValueError("-o or --show-statistics is needed")
    if arguments.in_file and arguments.resume:
        raise ValueError("--in-file and --resume don't go together: a merged matrix can't be told from its parts")
    more: ImportanceMatrix | None = load(*arguments.in_file) if arguments.in_file else None
    if arguments.model is None:
        assert more is not None
        matrix = more
    else:
        from ..evaluate.runner import read_text

        with warnings_as_lines():
            matrix = collect(
                arguments.model,
                read_text(arguments.text),
                dataset=arguments.text,
                n_ctx=arguments.ctx,
                windows=arguments.windows,
                output=arguments.process_output,
                save=None if more is not None else arguments.output,
                save_every=arguments.save_every,
                resume=arguments.resume,
                dtype=arguments.dtype,
                threads=arguments.threads,
                progress=_tell if sys.stderr is not None and sys.stderr.isatty() else None,
            )
        if more is not None:
            matrix = more.merge(matrix)
    if arguments.output is not None:
        if arguments.model is None or more is not None:
            matrix.save(arguments.output)
        if not arguments.json:
            print(f"{printable(arguments.output)}: {len(matrix)} tensors, {matrix.chunk_count} windows")
    if arguments.show_statistics:
        rows = statistics(matrix)
        if arguments.json:
            json.dump([asdict(row) for row in rows], sys.stdout, indent=1)
            print()
            return 0
        print(
            f"{'tensor':36} {'rows':>9} {'total':>11} {'mean':>10} {'most':>10} {'active':>7} {'even':>6} {'like':>6}"
        )
        for s in rows:
            like = "" if s.likeness is None else f"{s.likeness:6.3f}"
            print(
                f"{printable(s.name):36} {s.rows:9} {s.total:11.5g} {s.mean:10.4g} {s.most:10.4g} "
                f"{s.active * 100:6.2f}% {s.evenness:6.3f} {like}".rstrip()
            )
    return 0


def _tell(label: str, done: int, total: int) -> None:
    end = "\n" if done == total else ""
    print(f"\r{printable(os.path.basename(label))}: window {done} of {total}", end=end, file=sys.stderr, flush=True)
