"""Show what a model takes under every mix, what fits into memory, and what raising tensors costs."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from ..cli import sample
from ..formats.file_types import FileType
from ..formats.tensor_types import QType
from ..requantize.plan import OVERHEAD, MixPlan, Plan, plan
from ..sizes import counted, format_size, size_option
from .terminal import printable

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("file", nargs="?", metavar="MODEL", help="a GGUF file or URL (default: the sample model)")
    parser.add_argument("--memory", metavar="SIZE", help="memory for weights, cache and overhead, as in 8GiB")
    parser.add_argument("--context", type=int, default=8192, metavar="N", help="tokens of context (default: 8192)")
    for part in "kv":
        parser.add_argument(
            f"--cache-type-{part}",
            default="f16",
            metavar="TYPE",
            help=f"type of cached {'keys' if part == 'k' else 'values'}: f16, q8_0, q4_0 ... (default: f16)",
        )
    parser.add_argument("--overhead", metavar="SIZE", help="memory for everything else (default: 1GiB)")
    parser.add_argument("--imatrix", action="store_true", help="choose as with an importance matrix")
    parser.add_argument("--pure", action="store_true", help="every tensor of the mix's default type")
    parser.add_argument("--mix", metavar="MIX", help="show this mix's tensors by group, and the price of raising them")
    parser.add_argument("--gpu-memory", metavar="SIZE", help="how many layers fit onto a GPU of this memory")
    parser.add_argument("--bandwidth", metavar="SIZE", help="memory bandwidth a second, as in 60GB: tokens per second")
    parser.add_argument("--gpu-bandwidth", metavar="SIZE", help="the GPU's memory bandwidth a second")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run(arguments: argparse.Namespace) -> int:
    """Print the table of mixes, and a mix's groups if asked."""
    import ggufx

    for option in ("gpu_memory", "bandwidth", "gpu_bandwidth"):  # wrong ones are told before anything is printed
        size_option(f"--{option.replace('_', '-')}", getattr(arguments, option))
    with sample.path_or_sample(arguments.file) as path, ggufx.open(path) as f:
        p = plan(
            f.tensors.values(),
            f.metadata,
            memory=size_option("--memory", arguments.memory),
            context=arguments.context,
            k_type=QType.parse(arguments.cache_type_k),
            v_type=QType.parse(arguments.cache_type_v),
            overhead=OVERHEAD if (overhead := size_option("--overhead", arguments.overhead)) is None else overhead,
            imatrix=arguments.imatrix,
            pure=arguments.pure,
        )
    chosen = p[arguments.mix] if arguments.mix else p.best
    if arguments.json:
        json.dump(_report(p, chosen, arguments), sys.stdout, indent=1)
        print()
        return 0
    _print_mixes(p, arguments)
    if chosen is not None:
        print()
        _print_groups(chosen)
    return 0


def _speed(p: Plan, mix: MixPlan, arguments: argparse.Namespace) -> float | None:
    bandwidth = size_option("--bandwidth", arguments.bandwidth)
    if bandwidth is None:
        return None
    return p.tokens_per_second(
        mix,
        bandwidth,
        gpu_memory=size_option("--gpu-memory", arguments.gpu_memory),
        gpu_bandwidth=size_option("--gpu-bandwidth", arguments.gpu_bandwidth),
    )


def _print_mixes(p: Plan, arguments: argparse.Namespace) -> None:
    print(f"{p.size:,} weights, {printable(p.facts.arch)}, {p.facts.n_layer} layers")
    cache = format_size(p.cache_nbytes) if p.cache.known else "of unknown size: no attention.head_count"
    print(
        f"cache for {p.context} tokens {cache} ({p.k_type.name} keys, {p.v_type.name} values), "
        f"overhead {format_size(p.overhead)}"
    )
    gpu = size_option("--gpu-memory", arguments.gpu_memory)
    print(f"\n{'mix':10} {'size':>12} {'bits':>7} {'in all':>12}" + ("  gpu layers" if gpu else "") + "  ")
    for mix in p.mixes:
        line = f"{mix.ftype.name:10} {format_size(mix.nbytes):>12} {mix.bits_per_weight:7.3f} "
        line += f"{format_size(p.total(mix)):>12}"
        if gpu:
            split = p.offload(mix, gpu)
            line += f"  {f'{split.layers} of {split.total}':>10}"
        if (speed := _speed(p, mix, arguments)) is not None:
            line += f"  {speed:6.1f} tokens/s at most"
        remarks = []
        if p.memory is not None:
            remarks.append("fits" if p.fits(mix) else "too large")
        if mix.needs_imatrix and not arguments.imatrix:
            remarks.append("needs an importance matrix")
        if mix.fallbacks:
            cost = 8 * mix.fallback_nbytes / mix.size
            remarks.append(f"{counted(len(mix.fallbacks), 'fallback')}, {cost:+.2f} bits")
        print(f"{line}  {', '.join(remarks)}".rstrip())
    if p.memory is not None:
        best = p.best.ftype.name if p.best else "none of the mixes from Q3_K_S up fits"
        print(f"\nbest for {format_size(p.memory)}: {best}")


# What the groups of a mix are compared with: the next types up.
_RAISED = (QType.Q4_K, QType.Q5_K, QType.Q6_K, QType.Q8_0)


def _prices(mix: MixPlan) -> list[dict[str, Any]]:
    rows = []
    for group in mix.groups():
        if all(isinstance(q, QType) and not q.is_quantized for q in group.qtypes):
            continue
        prices = {}
        for qtype in _RAISED:
            try:
                price = group.price(qtype)
            except ValueError:
                continue  # rows that aren't whole blocks of it
            if price > 0:
                prices[qtype.name] = price
        rows.append({"name": group.name, "strip": group.strip, "bytes": group.nbytes, "prices": prices})
    return rows


def _print_groups(mix: MixPlan) -> None:
    print(f"{mix.ftype.name}: tensors by group, share of the size, price of making all of a group another type")
    for row in _prices(mix):
        prices = ", ".join(f"{name} +{format_size(price)}" for name, price in row["prices"].items())
        strip = row["strip"] if len(row["strip"]) <= 48 else row["strip"][:45] + "..."
        share = 100 * row["bytes"] / mix.nbytes
        print(f"{printable(row['name']):20} {format_size(row['bytes']):>12} {share:5.1f}%  {strip}  {prices}")


def _report(p: Plan, chosen: MixPlan | None, arguments: argparse.Namespace) -> dict[str, Any]:
    gpu = size_option("--gpu-memory", arguments.gpu_memory)
    mixes = []
    for mix in p.mixes:
        row: dict[str, Any] = {
            "mix": mix.ftype.name,
            "bytes": mix.nbytes,
            "bits_per_weight": mix.bits_per_weight,
            "total_bytes": p.total(mix),
            "fits": p.fits(mix),
            "needs_imatrix": mix.needs_imatrix,
            "fallbacks": len(mix.fallbacks),
            "fallback_bytes": mix.fallback_nbytes,
        }
        if gpu:
            row["gpu_layers"] = p.offload(mix, gpu).layers
        if (speed := _speed(p, mix, arguments)) is not None:
            row["tokens_per_second"] = speed
        mixes.append(row)
    return {
        "weights": p.size,
        "architecture": p.facts.arch,
        "context": p.context,
        "cache_bytes": p.cache_nbytes if p.cache.known else None,
        "overhead_bytes": p.overhead,
        "memory": p.memory,
        "best": p.best.ftype.name if p.best else None,
        "mixes": mixes,
        "groups": {"mix": FileType(chosen.ftype).name, "rows": _prices(chosen)} if chosen else None,
    }
