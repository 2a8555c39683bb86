"""Quantizing speed of every path against ggml's own quantizer, one thread: results/quantize.{json,md}.

ggml is the x86-64 library of the libggml-python wheel, whose bytes are the reference; every result is compared with
them before a time counts. Its neighbour tables are built before the clock starts, as ours are.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import clock
import numpy as np
import report

import ggufx
from ggufx.codec.encode import NEEDS_IMATRIX
from ggufx.codec.reference.lattice import LATTICES, lattice

HERE = Path(__file__).resolve().parent
WIDTH = 4096
BLIND = {"Q8_0", "Q1_0", "Q2_0", "TQ1_0", "TQ2_0", "MXFP4", "NVFP4"}  # take no notice of importance


def ggml() -> Any:
    """ggml_quantize_chunk, or None without the wheel."""
    spec = importlib.util.find_spec("libggml")
    if spec is None or spec.origin is None:
        return None
    library = ctypes.CDLL(str(next(Path(spec.origin).parent.rglob("libggml-base.so"))))
    chunk = library.ggml_quantize_chunk
    chunk.restype = ctypes.c_size_t
    chunk.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3, ctypes.c_void_p]
    return chunk


def measure(qtype: ggufx.QType, weighted: bool, chunk: Any, paths: list[str], budget: float) -> list[dict[str, Any]]:
    """Nanoseconds per weight of ggml and of each path."""
    rows = 4 if qtype.name in LATTICES else 64
    x = (np.random.default_rng(0).standard_normal((rows, WIDTH)) * 0.02).astype(np.float32)
    importance = np.ones(WIDTH, np.float32) if weighted else None
    found = []
    want = None
    if chunk is not None:
        want = np.zeros((rows, WIDTH // qtype.block_size * qtype.block_bytes), np.uint8)
        weights = None if importance is None else importance.ctypes.data
        call = partial(chunk, int(qtype), x.ctypes.data, want.ctypes.data, 0, rows, WIDTH, weights)
        found.append({"contender": "ggml", "ns": clock.best(call, budget).seconds / x.size * 1e9})
    for path in paths:
        quantize = partial(ggufx.quantize, x, qtype, imatrix=importance, threads=1, path=path)
        if want is not None and not np.array_equal(quantize(), want):
            found.append({"contender": f"ggufx {path}", "error": "other bytes than ggml's"})
            continue
        found.append({"contender": f"ggufx {path}", "ns": clock.best(quantize, budget).seconds / x.size * 1e9})
    return [{"type": qtype.name, "importance": weighted} | row for row in found]


def markdown(measured: dict[str, Any]) -> str:
    """One row per type: ggml's time, ours, and how often ours fits into it."""
    m, rows = measured["machine"], measured["rows"]
    contenders = list(dict.fromkeys(row["contender"] for row in rows))
    lines = [f"| type | {' | '.join(contenders)} |", "|---|" + "---|" * len(contenders)]
    for key in dict.fromkeys((row["type"], row["importance"]) for row in rows):
        here = {row["contender"]: row for row in rows if (row["type"], row["importance"]) == key}
        base = here.get("ggml", {}).get("ns")
        cells = []
        for name in contenders:
            ns = here.get(name, {}).get("ns")
            ratio = f" ({base / ns:.1f}x)" if base and ns and name != "ggml" else ""
            cells.append("-" if ns is None else f"{ns:.2f}{ratio}")
        lines.append(f"| {key[0]}{', importance' if key[1] else ''} | " + " | ".join(cells) + " |")
    return "\n".join(
        [
            "# Quantizing",
            "",
            f"{m['cpu']}, {m['compiler']}, Python {m['python']}, numpy {m['numpy']}, commit {m['commit']}.",
            "Nanoseconds per weight, one thread, Gaussian rows; in brackets how often it fits into ggml's time. The",
            "same bytes from all.",
            "",
            *lines,
            "",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "quantize")
    parser.add_argument("--types", help="comma-separated; all by default")
    parser.add_argument("--paths", help="comma-separated; all compiled ones by default")
    parser.add_argument("--budget", type=float, default=0.3, help="seconds for each measurement")
    parser.add_argument("--quick", action="store_true", help="two types, briefly")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", ggufx.GGUFWarning)
    names = (arguments.types or ("Q4_0,Q4_K" if arguments.quick else "")).split(",")
    types = [t for t in ggufx.QType if t.is_quantized and t.name not in ("Q8_1", "Q8_K")]
    types = [t for t in types if t.name in names or names == [""]]
    paths = arguments.paths.split(",") if arguments.paths else [p for p in ggufx.paths() if p != "numpy"]
    chunk, rows = ggml(), []
    for qtype in types:
        if qtype.name in LATTICES:
            lattice(qtype.name)
        for weighted in (False, True):
            if (weighted and qtype.name in BLIND) or (not weighted and qtype in NEEDS_IMATRIX):
                continue
            rows += measure(qtype, weighted, chunk, paths, 0.01 if arguments.quick else arguments.budget)
            print(rows[-1], flush=True)
    measured = {"machine": report.machine(), "rows": rows}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.with_suffix(".json").write_text(json.dumps(measured, indent=1) + "\n")
    arguments.out.with_suffix(".md").write_text(markdown(measured))
    return 1 if any("error" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
