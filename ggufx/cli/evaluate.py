"""Report what quantizations of a model cost: errors of weights, perplexity, divergence; tables and pictures."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from .terminal import printable

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("models", nargs="*", metavar="MODEL", help="GGUF files, quantized from one model")
    parser.add_argument("--base", metavar="BASE", help="what they were made from: a GGUF file or a checkpoint")
    parser.add_argument("--text", metavar="FILE", help="a text in UTF-8 to predict")
    parser.add_argument("-o", "--output", metavar="OUT", help="the report: one HTML file")
    parser.add_argument("--png", metavar="FOLDER", help="write the pictures there too, for light and dark pages")
    parser.add_argument("--json", metavar="FILE", help="write all figures there, after every step")
    parser.add_argument("--resume", action="store_true", help="don't do again what --json's FILE has of the same files")
    parser.add_argument("--from", dest="source", metavar="FILE", help="only make the report of what --json wrote")
    parser.add_argument("--imatrix", metavar="FILE", help="for the curve: types with this importance matrix too")
    parser.add_argument("--no-curve", action="store_true", help="don't try every type on the base's weights")
    parser.add_argument("-c", "--ctx", type=int, default=512, metavar="N", help="tokens of a window (512)")
    parser.add_argument("--windows", type=int, metavar="N", help="the first N windows only")
    parser.add_argument("--keep", type=int, metavar="N", help="keep N tokens of each of BASE's predictions (4096)")
    parser.add_argument("--title", default="", help="of the report")
    parser.add_argument("--threads", type=int, metavar="N", help="at most N threads (default: all)")


def run(arguments: argparse.Namespace) -> int:
    """Evaluate, and write what was asked for."""
    from ..evaluate.reporting import read_results

    if not (arguments.output or arguments.json or arguments.png):
        raise ValueError("-o, --json or --png is needed")
    if (arguments.source is None) != bool(arguments.models and arguments.base):
        raise ValueError("either MODELs and --base, or --from, are needed")
    if arguments.resume and not arguments.json:
        raise ValueError("--resume goes on with --json's FILE, which wasn't given")
    results = _evaluate(arguments) if arguments.source is None else read_results(arguments.source)
    _write(results, arguments)
    return 0


def _evaluate(arguments: argparse.Namespace) -> dict[str, Any]:
    from ..evaluate.reporting import evaluate, read_results, write_results
    from ..evaluate.runner import read_text
    from ..requantize.imatrix import load

    earlier = None
    if arguments.resume and os.path.exists(arguments.json):
        earlier = read_results(arguments.json)
    return evaluate(
        arguments.models,
        arguments.base,
        text=read_text(arguments.text) if arguments.text else None,
        text_name=os.path.basename(arguments.text or ""),
        n_ctx=arguments.ctx,
        windows=arguments.windows,
        imatrix=load(arguments.imatrix) if arguments.imatrix else None,
        with_curve=not arguments.no_curve,
        keep=arguments.keep,
        earlier=earlier,
        save=None if arguments.json is None else lambda results: write_results(results, arguments.json),
        threads=arguments.threads,
        progress=_tell if sys.stderr is not None and sys.stderr.isatty() else None,
    )


def _write(results: dict[str, Any], arguments: argparse.Namespace) -> None:
    from ..evaluate.page import render
    from ..evaluate.pictures import FIGURES, draw
    from ..evaluate.reporting import write_results, write_whole

    if arguments.json is not None:
        write_results(results, arguments.json)
    if arguments.png is not None:
        os.makedirs(arguments.png, exist_ok=True)
        for name in FIGURES:
            for theme in ("light", "dark"):
                picture = draw(results, name, theme, "png")
                if picture is not None:
                    path = os.path.join(arguments.png, f"{name}-{theme}.png")
                    write_whole(path, picture)
                    print(printable(path))
    if arguments.output is not None:
        write_whole(arguments.output, render(results, arguments.title).encode())
        print(printable(arguments.output))


def _tell(label: str, done: int, total: int) -> None:
    end = "\n" if done == total else ""
    print(f"\r{printable(os.path.basename(label)):40} {done} of {total}", end=end, file=sys.stderr, flush=True)
