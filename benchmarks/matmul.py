"""Products with packed rows: ours in both precisions on every path, ggml's vec_dot, torch's linear on decoded weights.

``python benchmarks/matmul.py`` takes ten minutes; ``--quick`` tries it out. Each contender runs in a process of its
own, one after another on one CPU unless ``--threads`` says more, and no time counts before the results were checked
against float64. Writes results/matmul.{json,md}. ggml is that of libggml-python, or with ``--ggml DIRECTORY`` another
build of libggml-base.so and libggml-cpu.so.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import report
from clock import best

import ggufx
from ggufx import QType

HERE = Path(__file__).resolve().parent
WIDTH = 4096
# Packed rows: 1 Mi and 64 Mi weights.
SIZES = {"L2": 256, "DRAM": 16384, "tiny": 8}
TYPES = [t for t in QType if t.is_quantized and t.name not in ("Q8_1", "Q8_K")]
# The error that a result may have, in units of sum(|x||w|), before its time doesn't count.
LIMITS = {"float32": 1e-6, "int8": 4e-3, "ggml": 3e-2, "torch float32": 1e-5, "torch bfloat16": 2e-2}


def weights(qtype: QType, size: str) -> np.ndarray:
    """Packed rows: 64 different ones at most, quantized from a normal distribution."""
    rng = np.random.default_rng(int(qtype))
    count = SIZES[size]
    values = (rng.standard_normal((min(count, 64), WIDTH)) * 0.05).astype(np.float32)
    packed = ggufx.quantize(values, qtype, imatrix=np.ones(WIDTH, np.float32))
    return np.ascontiguousarray(np.resize(packed, (count, packed.shape[1])))


def ours(
    variant: str, qtype: QType, packed: np.ndarray, x: np.ndarray, threads: int
) -> Callable[[], np.ndarray] | None:
    """Our product on one path, given as "int8 avx2"."""
    precision, path = variant.split()
    if path not in ggufx.paths():
        return None
    out = np.empty((len(x), len(packed)), np.float32)
    return lambda: ggufx.matmul(x, packed, qtype=qtype, precision=precision, path=path, threads=threads, out=out)


# Loops over rows as ggml's graph does, without what Python would add to each of them.
LOOP = """
#include <stddef.h>
#include <stdint.h>
typedef void vec_dot(int, float *, size_t, const void *, size_t, const void *, size_t, int);
void products(vec_dot *dot, const uint8_t *src, size_t row, size_t rows, const uint8_t *x, size_t x_row, size_t x_rows,
              float *out, int width) {
    for (size_t n = 0; n < rows; n++)
        for (size_t m = 0; m < x_rows; m++)
            dot(width, out + m * rows + n, 0, src + n * row, 0, x + m * x_row, 0, 1);
}
"""


class _CpuTraits(ctypes.Structure):
    """The struct ggml_type_traits_cpu of ggml-cpu.h."""

    _fields_ = (
        ("from_float", ctypes.c_void_p),
        ("vec_dot", ctypes.c_void_p),
        ("vec_dot_type", ctypes.c_int),
        ("nrows", ctypes.c_int64),
    )


def ggml(folder: str, qtype: QType, packed: np.ndarray, x: np.ndarray) -> Callable[[], np.ndarray] | None:
    """Ggml's vec_dot, with the rounding of x, on one thread."""
    ctypes.CDLL(f"{folder}/libggml-base.so", mode=ctypes.RTLD_GLOBAL)
    library = ctypes.CDLL(f"{folder}/libggml-cpu.so", mode=ctypes.RTLD_GLOBAL)
    library.ggml_cpu_init()
    library.ggml_get_type_traits_cpu.restype = ctypes.POINTER(_CpuTraits)
    with tempfile.TemporaryDirectory() as made:
        source = Path(made, "loop.c")
        source.write_text(LOOP, encoding="utf-8")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", f"{made}/loop.so", source], check=True)
        loop = ctypes.CDLL(f"{made}/loop.so")
    traits = library.ggml_get_type_traits_cpu(int(qtype)).contents
    if not traits.vec_dot:
        return None
    kind = QType(traits.vec_dot_type)
    round_row = library.ggml_get_type_traits_cpu(int(kind)).contents.from_float
    convert = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(round_row)
    x_row = ggufx.nbytes(WIDTH, kind)
    codes, out = np.zeros(x_row * len(x) + 64, np.uint8), np.empty((len(x), len(packed)), np.float32)
    size, pointer = ctypes.c_size_t, ctypes.c_void_p

    def product() -> np.ndarray:
        for m in range(len(x)):
            convert(x.ctypes.data + m * x.strides[0], codes.ctypes.data + m * x_row, WIDTH)
        loop.products(
            pointer(traits.vec_dot), pointer(packed.ctypes.data), size(packed.shape[1]), size(len(packed)),
            pointer(codes.ctypes.data), size(x_row), size(len(x)), pointer(out.ctypes.data), WIDTH,
        )  # fmt: skip
        return out

    return product


def torch_linear(dtype: str, qtype: QType, packed: np.ndarray, x: np.ndarray, threads: int) -> Callable[[], np.ndarray]:
    """Torch's linear on weights that were decoded in advance: what a program does that keeps them decoded."""
    import torch

    torch.set_num_threads(threads)
    kept = getattr(torch, dtype)
    w = torch.from_numpy(ggufx.dequantize(packed, qtype)).to(kept)
    left = torch.from_numpy(x).to(kept)
    with torch.inference_mode():
        return lambda: torch.nn.functional.linear(left, w).float().numpy()


def make(contender: str, options: dict[str, Any], *case: Any) -> Callable[[], np.ndarray] | None:
    """The contender's product of a case, or None where it has none."""
    if contender.startswith("torch"):
        return torch_linear(contender.split()[1], *case, options["threads"])
    if contender == "ggml":
        return ggml(options["ggml"], *case) if options["threads"] == 1 else None
    return ours(contender, *case, options["threads"])


def measured(contender: str, options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Rows of one contender, in its own process."""
    if hasattr(os, "sched_setaffinity") and options["threads"] == 1:
        os.sched_setaffinity(0, [max(os.sched_getaffinity(0))])
    for size in options["sizes"]:
        for name in options["types"]:
            packed = weights(QType[name], size)
            checked = packed[:64]
            w = ggufx.dequantize(checked, name).astype(np.float64)
            for rows in options["rows"]:
                x = np.random.default_rng(rows).standard_normal((rows, WIDTH)).astype(np.float32)
                product = make(contender, options, QType[name], packed, x)
                if product is None:
                    continue
                exact, scale = x.astype(np.float64) @ w.T, np.abs(x).astype(np.float64) @ np.abs(w).T
                error = float((np.abs(product()[:, : len(checked)] - exact) / scale).max())
                limit = LIMITS[contender if contender in LIMITS else contender.split()[0]]
                row = {"contender": contender, "type": name, "size": size, "rows": rows, "error": error}
                if error > limit:
                    yield row | {"wrong": f"error {error:.1e} of sum(|x||w|)"}
                    continue
                timing = best(product, options["budget"])
                weights_seen = packed.shape[0] * WIDTH
                yield row | {
                    "seconds": timing.seconds,
                    "gigaweights_per_second": weights_seen / timing.seconds / 1e9,
                    "gigabytes_per_second": packed.nbytes / timing.seconds / 1e9,
                }


def table(rows: list[dict[str, Any]], contenders: list[str]) -> str:
    """Markdown: gigaweights a second, that is weights, each for all rows of x, by size and number of rows."""
    lines = []
    for size, count in sorted({(row["size"], row["rows"]) for row in rows}, key=lambda k: (k[0] != "L2", k)):
        here = {(row["type"], row["contender"]): row for row in rows if (row["size"], row["rows"]) == (size, count)}
        present = [c for c in contenders if any(c == who for _, who in here)]
        lines += [
            f"\n### {size}, {count} row{'s' * (count > 1)} of x\n",
            "| Gweights/s | " + " | ".join(present) + " |",
        ]
        lines.append("|---|" + "---|" * len(present))
        for name in dict.fromkeys(name for name, _ in here):
            cells = [here.get((name, c)) for c in present]
            lines.append(
                f"| {name} | " + " | ".join(f"{c['gigaweights_per_second']:.1f}" if c else "" for c in cells) + " |"
            )
    worst = {c: max((r["error"] for r in rows if r["contender"] == c), default=0) for c in contenders}
    lines += ["\n### Largest error\n", "| contender | of sum(abs(x) * abs(w)) |", "|---|---|"]
    lines += [f"| {c} | {e:.1e} |" for c, e in worst.items() if e]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measure everyone and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--types", metavar="T,T", default=",".join(t.name for t in TYPES))
    parser.add_argument("--sizes", metavar="S,S", default="L2,DRAM")
    parser.add_argument("--rows", metavar="N,N", default="1,4,32")
    parser.add_argument("--contenders", metavar="C;C", default="", help='e.g. "int8 avx2;ggml"')
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--ggml", metavar="DIRECTORY", help="where libggml-base.so and libggml-cpu.so are")
    parser.add_argument("--quick", action="store_true", help="two types, tiny")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "matmul", help="path of the results, no suffix")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        options = json.loads(given.child)
        for row in measured(options["contender"], options):
            print(json.dumps(row), flush=True)
        return 0
    spec = importlib.util.find_spec("libggml")
    found = given.ggml or (spec and spec.origin and str(next(Path(spec.origin).parent.rglob("libggml-base.so")).parent))
    paths = [p for p in ggufx.paths() if p != "numpy"]
    contenders = [f"{precision} {path}" for path in paths for precision in ("int8", "float32")]
    contenders += ["ggml"] * bool(found) + [
        f"torch {dtype}" for dtype in ("float32", "bfloat16") if importlib.util.find_spec("torch")
    ]
    if given.contenders:
        contenders = given.contenders.split(";")
    options = {
        "types": ["Q4_K", "IQ2_XXS"] if given.quick else given.types.split(","),
        "sizes": ["tiny"] if given.quick else given.sizes.split(","),
        "rows": [1, 4] if given.quick else [int(n) for n in given.rows.split(",")],
        "threads": given.threads,
        "budget": 0.0 if given.quick else 0.1,
        "ggml": found,
    }
    rows = []
    for contender in contenders:
        # torch's weights are decoded, so their type makes no difference to it.
        types = options["types"][:1] if contender.startswith("torch") else options["types"]
        child = json.dumps(options | {"contender": contender, "types": types})
        run = subprocess.run([sys.executable, __file__, "--child", child], capture_output=True, text=True)
        if run.returncode:
            print(f"{contender}: {run.stderr.strip().splitlines()[-1]}")
            continue
        rows += [json.loads(line) for line in run.stdout.splitlines()]
        print(f"{contender}: {sum(row['contender'] == contender for row in rows)} rows", flush=True)
    wrong = [row for row in rows if "wrong" in row]
    for row in wrong:
        print(f"WRONG: {row}")
    rows = [row for row in rows if "wrong" not in row]
    machine = report.machine()
    results = {"machine": machine, "threads": given.threads, "ggml": found and Path(found).name, "rows": rows}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    head = (
        f"# Products with packed rows\n\n{machine.get('cpu', '')}, {given.threads} thread(s), rows of {WIDTH} values.\n"
    )
    given.out.with_suffix(".md").write_text(head + table(rows, contenders), encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
