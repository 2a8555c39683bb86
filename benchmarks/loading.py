"""Loading a whole model into fresh memory, and what each remedy against page faults gains: results/loading.{json,md}.

The first touch of fresh memory costs more than decoding into it, so each row runs in a process of its own, after one
round that makes the host back the memory. ``--model FILE`` measures a real model; without it, a file of Q4_K is made.
"""

from __future__ import annotations

import argparse
import json
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import report
from cases import Case, source

from ggufx import QType

HERE = Path(__file__).resolve().parent

HEAD = """
import json, mmap, sys, threading, time, numpy as np, ggufx
path, total = sys.argv[1], int(sys.argv[2])
def fresh(advice=None):
    m = mmap.mmap(-1, total + (2 << 20), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if advice is not None and hasattr(mmap, advice):
        m.madvise(getattr(mmap, advice))
    a = np.frombuffer(m, np.uint8)
    start = -a.ctypes.data % (2 << 20)
    return a[start : start + total]
with open(path, "rb") as f:
    while f.read(1 << 24):
        pass
"""
TAIL = """
once()
best = 1e9
for _ in range(3):
    start = time.perf_counter(); result = once(); best = min(best, time.perf_counter() - start); del result
print(json.dumps({"seconds": best}))
"""
ROWS = {
    "touch fresh memory, 4 KiB pages": "def once():\n    a = fresh('MADV_NOHUGEPAGE'); a[::4096] = 1; return a",
    "touch fresh memory, huge pages": "def once():\n    a = fresh('MADV_HUGEPAGE'); a[::4096] = 1; return a",
    "touch fresh memory, huge pages, 2 threads": """
def half(a):
    a[::4096] = 1
def once():
    a = fresh('MADV_HUGEPAGE'); cut = len(a) // 2 >> 21 << 21
    t = threading.Thread(target=half, args=(a[cut:],)); t.start(); half(a[:cut]); t.join(); return a""",
    "fill touched memory": "kept = fresh('MADV_HUGEPAGE')\ndef once():\n    kept.fill(1)",
    "ggufx.load, 1 thread": "def once():\n    return ggufx.load(path, threads=1)",
    "ggufx.load": "def once():\n    return ggufx.load(path)",
    "ggufx.load, bfloat16": "def once():\n    return ggufx.load(path, dtype='bfloat16')",
    "each tensor into fresh memory": """
def once():
    with ggufx.open(path) as f:
        return [t.dequantize(threads=1) for t in f.tensors.values()]""",
    "each tensor into reused memory (out=)": """
f = ggufx.open(path)
kept = {n: t.dequantize() for n, t in f.tensors.items()}
def once():
    for n, t in f.tensors.items():
        t.dequantize(out=kept[n], threads=1)""",
    "gguf package": """
from gguf import GGUFReader
from gguf.quants import dequantize
r = GGUFReader(path)
def once():
    return [dequantize(t.data, t.tensor_type) for t in r.tensors]""",
}


def make(path: Path, tensors: int, size: str = "LLC") -> Path:
    """Write a file of equal Q4_K tensors of one of the benchmark's sizes."""
    case = Case(QType.Q4_K, "float32", size)
    blocks = source(case)
    name = b"blk.%d.weight"
    head = b"GGUF" + struct.pack("<IQQ", 3, tensors, 0)
    for i in range(tensors):
        text = name % i
        rows, width = blocks.shape[0], case.weights // blocks.shape[0]
        head += struct.pack("<Q", len(text)) + text + struct.pack("<IQQIQ", 2, width, rows, 12, i * blocks.nbytes)
    with open(path, "wb") as f:
        f.write(head + bytes(-len(head) % 32))
        for _ in range(tensors):
            f.write(blocks.tobytes())
    return path


def main() -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--model", type=Path, help="a GGUF file (default: a generated one of 128 Q4_K tensors, 1 GiB decoded)"
    )
    parser.add_argument("--quick", action="store_true", help="a small generated file, to try it out")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "loading")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="ggufx-loading-") as folder:
        path = arguments.model or make(Path(folder) / "model.gguf", 4 if arguments.quick else 128)
        import ggufx

        with ggufx.open(path) as f:
            total = sum(4 * t.size for t in f.tensors.values())
        for label, code in ROWS.items():
            command = [sys.executable, "-c", HEAD + code + TAIL, str(path), str(total)]
            done = subprocess.run(command, capture_output=True, text=True, cwd=HERE)
            if done.returncode:
                rows.append({"row": label, "error": done.stderr.strip().splitlines()[-1]})
            else:
                seconds = json.loads(done.stdout)["seconds"]
                rows.append({"row": label, "seconds": seconds, "gigabytes_per_second": total / seconds / 1e9})
            print(rows[-1], flush=True)
    measured = {"machine": report.machine(), "decoded_bytes": total, "rows": rows,
                "model": arguments.model.name if arguments.model else "generated, Q4_K"}  # fmt: skip
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.with_suffix(".json").write_text(json.dumps(measured, indent=1) + "\n")
    arguments.out.with_suffix(".md").write_text(markdown(measured))
    return 0


def markdown(measured: dict[str, Any]) -> str:
    """One line per row."""
    m = measured["machine"]
    lines = [
        f"| {r['row']} | {r['seconds']:.3f} | {r['gigabytes_per_second']:.1f} |"
        if "seconds" in r
        else f"| {r['row']} | - | - |"
        for r in measured["rows"]
    ]
    return "\n".join(
        [
            "# Loading into fresh memory",
            "",
            f"{measured['model']}, {measured['decoded_bytes'] / 1e6:.0f} MB as float32. {m['cpu']},",
            f"{m['cores']} cores, huge pages {m['huge_pages']}, {m['compiler']}, numpy {m['numpy']},",
            f"commit {m['commit']}. Page cache warm, best of three.",
            "",
            "| what | seconds | GB/s of float32 |",
            "|---|---|---|",
            *lines,
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
