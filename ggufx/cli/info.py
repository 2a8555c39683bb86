"""Show what is in a GGUF file: header, metadata, tensors, and what each type costs."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ..cli import sample
from ..formats.tensor_types import CODE_BYTES, QType
from ..sizes import format_size
from .terminal import human_count, printable, shortened

if TYPE_CHECKING:
    from ..read.reader import GGUFFile
    from ..read.tensor import Tensor

__all__ = ["add_arguments", "describe", "render", "run"]

# Items of an array that are shown, and characters of a string or name.
ITEMS, TEXT, NAME = 8, 80, 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("file", nargs="?", metavar="FILE", help="a GGUF file (default: the sample model)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run(arguments: argparse.Namespace) -> int:
    """Print the description; the exit code is 1 if the file has faults."""
    import ggufx

    with sample.path_or_sample(arguments.file) as path, ggufx.open(path, strict=False) as f:
        report = describe(f)
    if arguments.json:
        json.dump(report, sys.stdout, indent=1)
        print()
    else:
        for line in render(report):
            print(line)
    return 1 if report["problems"] else 0


# ---- the report: plain values, ready for JSON


def _text(text: str) -> str:
    """Turn bytes that weren't UTF-8 into escapes: JSON can't carry them."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _plain(value: Any) -> Any:
    """Put a metadata value into JSON's types, arrays cut to their first items."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, np.generic):
        return _plain(value.item())
    return [_plain(item) for item in value[:ITEMS]]


def _tensor_row(tensor: Tensor) -> dict[str, Any]:
    qtype = tensor.qtype if isinstance(tensor.qtype, QType) else None
    return {
        "name": _text(tensor.name),
        "type": f"unknown type {tensor.qtype}" if qtype is None else qtype.name,
        "shape": list(tensor.shape),
        "weights": tensor.size,
        "bytes": tensor.nbytes,
        "bits_per_weight": None if qtype is None else qtype.bits_per_weight,
    }


def _type_rows(tensors: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for t in tensors:
        row = rows.setdefault(t["type"], {"type": t["type"], "tensors": 0, "weights": 0, "bytes": 0})
        row["tensors"] += 1
        row["weights"] += t["weights"]
        row["bytes"] += t["bytes"]
    for name, row in rows.items():
        qtype = QType.__members__.get(name)
        row["bits_per_weight"] = None if qtype is None else qtype.bits_per_weight
        row["scale_bits"] = None
        if qtype is not None:
            scale_bytes = qtype.block_bytes - CODE_BYTES.get(qtype, qtype.block_bytes)
            row["scale_bits"] = 8 * scale_bytes / qtype.block_size
    return sorted(rows.values(), key=lambda row: -row["bytes"])


def describe(f: GGUFFile) -> dict[str, Any]:
    """Everything ``ggufx info`` tells of an open file, in JSON's types.

    Parameters
    ----------
    f : GGUFFile

    Returns
    -------
    dict
        ``file``, ``metadata``, ``tensors``, ``types``, ``total`` and ``problems``; sizes in bytes.
    """
    metadata = []
    for key, kind in f.metadata.types.items():
        row: dict[str, Any] = {"key": _text(key), "type": kind.type.name.lower(), "value": _plain(f.metadata[key])}
        if kind.item is not None:
            row |= {"items": kind.item.name.lower(), "count": kind.length}
        metadata.append(row)
    tensors = [_tensor_row(t) for t in f.tensors.values()]
    weights, nbytes = sum(t["weights"] for t in tensors), sum(t["bytes"] for t in tensors)
    return {
        "file": {
            "path": _text(str(f.path)),
            "bytes": f.size,
            "version": f.version,
            "byteorder": f.byteorder,
            "alignment": f.alignment,
        },
        "metadata": metadata,
        "tensors": tensors,
        "types": _type_rows(tensors),
        "total": {
            "tensors": len(tensors),
            "weights": weights,
            "bytes": nbytes,
            "bits_per_weight": 8 * nbytes / weights if weights else None,
            "f32_bytes": 4 * weights,
            "f16_bytes": 2 * weights,
        },
        "problems": [_text(str(p)) for p in f.problems],
    }


# ---- text


def _value_text(row: dict[str, Any]) -> str:
    value = row["value"]
    if not isinstance(value, list):
        return shortened(value if isinstance(value, str) else repr(value), TEXT)
    return shortened(_array_text(value, row["count"]), TEXT)


def _array_text(items: list[Any], count: int | None) -> str:
    shown = ", ".join(map(_item_text, items))
    cut = len(items) == ITEMS if count is None else len(items) < count
    return f"[{shown}{', ...' if cut else ''}]"


def _item_text(item: Any) -> str:
    if isinstance(item, list):
        return _array_text(item, None)
    return f"'{shortened(item, 24)}'" if isinstance(item, str) else str(item)


def _table(rows: list[list[str]], right: set[int]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        yield "  " + "  ".join(cells).rstrip()


def _bits(bits: float | None) -> str:
    return "?" if bits is None else f"{bits:.5g}"


def _scale_text(row: dict[str, Any]) -> str:
    if row["scale_bits"] is None:
        return "?"
    if not row["scale_bits"]:
        return "-"
    return f"{row['scale_bits']:.5g} ({row['scale_bits'] / row['bits_per_weight']:.1%})"


def render(report: dict[str, Any]) -> Iterator[str]:
    """Lines of text for a report of :func:`describe`, without anything a terminal could take for a command."""
    file, total = report["file"], report["total"]
    yield (
        f"{printable(file['path'])}: GGUF version {file['version']}, {file['byteorder']}-endian, "
        f"{format_size(file['bytes'])} ({file['bytes']:,} bytes), alignment {file['alignment']}"
    )
    yield ""
    yield f"metadata: {len(report['metadata'])} keys"
    if report["metadata"]:
        yield from _table(
            [
                [
                    shortened(m["key"], NAME),
                    f"{m['items']}[{m['count']}]" if "items" in m else m["type"],
                    _value_text(m),
                ]
                for m in report["metadata"]
            ],
            set(),
        )
    yield ""
    yield f"tensors: {total['tensors']}"
    if report["tensors"]:
        yield from _table(
            [["name", "type", "shape", "bits", "bytes"]]
            + [
                [
                    shortened(t["name"], NAME),
                    t["type"],
                    "(" + ", ".join(map(str, t["shape"])) + ")",
                    _bits(t["bits_per_weight"]),
                    f"{t['bytes']:,}",
                ]
                for t in report["tensors"]
            ],
            {3, 4},
        )
        yield ""
        yield "types:"
        yield from _table(
            [["type", "tensors", "weights", "bytes", "bits", "of them scales"]]
            + [
                [
                    row["type"],
                    str(row["tensors"]),
                    human_count(row["weights"]),
                    f"{row['bytes']:,}",
                    _bits(row["bits_per_weight"]),
                    _scale_text(row),
                ]
                for row in report["types"]
            ],
            {1, 2, 3, 4},
        )
        yield ""
        yield (
            f"total: {human_count(total['weights'])} weights ({total['weights']:,}) in {format_size(total['bytes'])}, "
            f"{_bits(total['bits_per_weight'])} bits each; F32 would take {format_size(total['f32_bytes'])}, "
            f"F16 {format_size(total['f16_bytes'])}"
        )
    for problem in report["problems"]:
        yield f"problem: {printable(problem)}"
