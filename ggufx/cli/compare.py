"""Compare models: structure, errors by type and tensor, and what is wrong with a tensor, said by name."""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
from collections.abc import Iterator

from ..evaluate.compared import Comparison
from .progressbar import add_progress_argument, progress_bar
from .terminal import human_count, printable

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("first", metavar="A", help="what is right: a GGUF file, a shard, a URL, a checkpoint's folder")
    parser.add_argument("others", nargs="+", metavar="B", help="what is judged by it")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument("--names", metavar="PATTERN", help="only tensors whose name matches, as blk.0.*")
    parser.add_argument("--worst", type=int, default=10, metavar="N", help="how many of the worst tensors (10)")
    parser.add_argument("--all", action="store_true", help="list every tensor, and every difference of the structure")
    parser.add_argument("--threads", type=int, metavar="N", help="at most N threads (default: all)")
    add_progress_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the comparisons; the exit code is 1 if something is missing or wrong, not for ordinary errors."""
    from ..evaluate.comparison import compare

    pattern = arguments.names
    results = []
    for other in arguments.others:
        with progress_bar(arguments.progress, "compare") as progress:
            names = None if pattern is None else lambda name: fnmatch.fnmatchcase(name, pattern)
            results.append(compare(arguments.first, other, names=names, threads=arguments.threads, progress=progress))
    if arguments.json:
        reports = [result.as_dict() for result in results]
        json.dump(reports[0] if len(reports) == 1 else reports, sys.stdout, indent=1)
        print()
    else:
        for k, result in enumerate(results):
            if k:
                print()
            for line in _lines(result, arguments.worst, arguments.all):
                print(line)
    return 0 if all(result.ok for result in results) else 1


def _lines(result: Comparison, worst: int, everything: bool) -> Iterator[str]:
    yield f"{printable(result.a)} and {printable(result.b)}"
    if result.identical:
        yield "identical: the same metadata, and tensors of the same bits"
        return
    limit = len(result.structure) if everything else 12
    shown = [f for f in result.structure if everything or f.kind != "type"]
    for finding in shown[:limit]:
        yield printable(str(finding))
    if len(shown) > limit:
        yield f"... and {len(shown) - limit} more (--all)"
    verdicts: dict[str, int] = {}
    for t in result.tensors:
        verdicts[t.verdict or "with errors"] = verdicts.get(t.verdict or "with errors", 0) + 1
    yield f"{len(result.tensors)} tensors compared: " + ", ".join(f"{n} {name}" for name, n in verdicts.items())
    for t in result.tensors:
        for finding in t.findings:
            yield printable(str(finding))
    yield ""
    yield f"{'types':24} {'tensors':>7} {'values':>7} {'RMSE':>10} {'relative':>9} {'SNR dB':>7} {'largest':>9}"
    for row in result.types():
        types = f"{row.type_a} -> {row.type_b}"
        yield (
            f"{types:24} {row.tensors:7} {human_count(row.n):>7} {row.rmse:10.4g} {row.relative_rmse:9.5f} "
            f"{row.snr_db:7.2f} {row.max_error:9.4g}"
        )
    listed = result.tensors if everything else result.worst(worst)
    if listed:
        yield ""
        title = "tensor" if everything else "worst tensors"
        yield f"{title:36} {'type':8} {'RMSE':>10} {'relative':>9} {'SNR dB':>7} {'largest':>9} {'cosine':>9}"
    for t in listed:
        yield (
            f"{printable(t.name):36} {t.type_b:8} {t.rmse:10.4g} {t.relative_rmse:9.5f} {t.snr_db:7.2f} "
            f"{t.max_error:9.4g} {t.cosine:9.6f} {t.verdict}"
        ).rstrip()
