"""Show what every type would lose on a model's tensors: error against bits per weight."""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys

from . import sample
from .terminal import human_count, printable

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "file", nargs="?", metavar="MODEL", help="a GGUF file, a URL or a checkpoint (default: a sample)"
    )
    parser.add_argument("--names", metavar="PATTERN", help="only tensors whose name matches, as blk.*.ffn_down.weight")
    parser.add_argument("--imatrix", metavar="FILE", help="importance matrix, as .dat or .gguf")
    parser.add_argument("--types", metavar="T,T", help="only these types")
    parser.add_argument("--sample", type=int, metavar="N", help="values of each tensor at most (65536); 0 for all")
    parser.add_argument("--kinds", action="store_true", help="list the errors by kind of tensor too")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.add_argument("--threads", type=int, metavar="N", help="at most N threads (default: all)")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print a table."""
    from ..evaluate.curves import SAMPLE, curve
    from ..requantize.imatrix import load

    pattern = arguments.names
    with sample.path_or_sample(arguments.file) as path:
        found = curve(
            path,
            types=arguments.types.split(",") if arguments.types else None,
            imatrix=load(arguments.imatrix) if arguments.imatrix else None,
            names=None if pattern is None else lambda name: fnmatch.fnmatchcase(name, pattern),
            sample=SAMPLE if arguments.sample is None else arguments.sample,
            threads=arguments.threads,
        )
    if arguments.json:
        json.dump(found.as_dict(), sys.stdout, indent=1)
        print()
        return 0
    print(f"{human_count(found.n)} values of {found.tensors} tensors")
    weighted = any(p.imatrix for p in found.points)
    print(
        f"{'type':12} {'imatrix':8} {'bits':>7} {'error':>8}" + (f" {'weighted':>9}" if weighted else "") + " tensors"
    )
    for p in found.points:
        row = f"{p.type:12} {'yes' if p.imatrix else '':8} {p.bits:7.4f} {p.relative_rmse:8.5f}"
        row += f" {p.weighted:9.5f}" if weighted else ""
        print(f"{row} {p.tensors:7}")
        if arguments.kinds:
            for kind, error in p.by_kind.items():
                print(f"    {printable(kind):24} {error:8.5f}")
    return 0
