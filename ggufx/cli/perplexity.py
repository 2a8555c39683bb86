"""Measure how well models predict a text, and how far they are from a reference: perplexity and KL divergence."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from .terminal import printable

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("models", nargs="+", metavar="MODEL", help="GGUF files (any shard of a set) of one vocabulary")
    parser.add_argument("--text", required=True, metavar="FILE", help="a text in UTF-8")
    parser.add_argument(
        "--base", metavar="BASE", help="the reference: a GGUF file, or a base file by --save-base or llama-perplexity"
    )
    parser.add_argument("--exact", action="store_true", help="run a BASE that is a model beside each, and keep nothing")
    parser.add_argument("--keep", type=int, metavar="N", help="keep N tokens of each of BASE's predictions (4096)")
    parser.add_argument(
        "--save-base", metavar="OUT", help="write the first model's predictions: .npz with --keep tokens, else whole"
    )
    parser.add_argument("-c", "--ctx", type=int, default=512, metavar="N", help="tokens of a window (512)")
    parser.add_argument("--stride", type=int, default=0, metavar="N", help="overlapping windows, each N further")
    parser.add_argument("--windows", type=int, metavar="N", help="the first N windows only")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32", help="torch's dtype")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument("--threads", type=int, metavar="N", help="at most N threads (default: all)")


def run(arguments: argparse.Namespace) -> int:
    """Run the models one after the other and print a table."""
    from ..evaluate.runner import Runner, Vocabulary, read_text
    from ..evaluate.texts import KEPT, Perplexity, perplexity

    text = read_text(arguments.text)
    vocabulary = Vocabulary(arguments.models[0])
    options: dict[str, Any] = {
        "tokens": vocabulary.encode(text),
        "bos": vocabulary.bos,
        "n_ctx": arguments.ctx,
        "stride": arguments.stride,
        "windows": arguments.windows,
        "threads": arguments.threads,
        "progress": _tell if not arguments.json and sys.stderr is not None and sys.stderr.isatty() else None,
    }

    def load(path: str) -> Runner:
        return Runner(path, dtype=arguments.dtype, threads=arguments.threads)

    results: list[Perplexity] = []
    base: Any = arguments.base
    if base is not None and _is_gguf(base):
        if arguments.exact:
            base = load(base)
        else:
            own = perplexity(load(base), **options, keep=arguments.keep or KEPT)
            base, own.top = own.top, None
            results.append(own)
    for k, path in enumerate(arguments.models):
        out = arguments.save_base if k == 0 else None
        small = out is not None and out.endswith(".npz")
        result = perplexity(
            load(path),
            **options,
            base=base,
            save_base=None if small else out,
            keep=(arguments.keep or KEPT) if small else 0,
        )
        if out is not None and result.top is not None:
            result.top.save(out)
        result.top = None
        results.append(result)
    if arguments.json:
        json.dump([r.as_dict() for r in results], sys.stdout, indent=1)
        print()
    else:
        print("\n".join(lines(results)))
    return 0


def _is_gguf(path: str) -> bool:
    if "://" in path:
        return True
    with open(path, "rb") as file:
        return file.read(4) in (b"GGUF", b"FUGG")


def _tell(label: str, done: int, total: int) -> None:
    end = "\n" if done == total else ""
    print(f"\r{printable(os.path.basename(label))}: window {done} of {total}", end=end, file=sys.stderr, flush=True)


def lines(results: list[Any]) -> Iterator[str]:
    """The table of some results."""
    first = results[-1]
    scored = sum(map(len, first.nll))
    yield f"{first.tokens} tokens, {len(first.nll)} windows of {first.n_ctx}, {scored} scored"
    compared = first.divergence is not None
    head = f"{'model':32} {'perplexity':>10} {'+/-':>8}"
    if compared:
        head += f" {'ln ratio':>9} {'+/-':>8} {'mean KL':>9} {'+/-':>8} {'90 %':>8} {'99 %':>8} {'99.9 %':>8}"
        head += f" {'same top':>8}"
    yield head + f" {'tokens/s':>9}"
    lack = 0.0
    for r in results:
        row = f"{printable(os.path.basename(r.label)):32} {r.value:10.4f} {r.error:8.4f}"
        if r.divergence is None:
            row += " " * (len(head) - len(row))
        else:
            s = r.divergence.summary()
            lack = max(lack, s["kl_may_lack"])
            p = s["kl_percentiles"]
            row += f" {s['ln_ratio'][0]:9.6f} {s['ln_ratio'][1]:8.6f} {s['kl'][0]:9.6f} {s['kl'][1]:8.6f}"
            row += f" {p[90]:8.5f} {p[99]:8.5f} {p[99.9]:8.5f} {s['same_top'][0] * 100:7.2f}%"
        yield row + f" {r.tokens_per_second:9.1f}"
    if lack:
        yield f"only the base's likeliest tokens were kept: a mean KL may be too small, by no more than {lack:.4f}"
