"""Opening time against file size, vocabulary size and tensor count: results/opening.{json,md}.

Each reader opens each file in a process of its own, and gets one metadata value and one tensor's entry out of it.
Where a reader takes longer than the limit, it is stopped and the limit is reported.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import report

HERE = Path(__file__).resolve().parent

# Best of several openings in one process, seconds; the first includes whatever the reader puts off until then.
READERS = {
    "ggufx": """
import ggufx
def once(path):
    with ggufx.open(path) as f:
        return f.metadata["general.architecture"], len(f.tensors), next(iter(f.tensors.values())).shape
""",
    "ggufx without the extension": """
import sys
sys.modules["ggufx._native"] = None
import ggufx
def once(path):
    with ggufx.open(path) as f:
        return f.metadata["general.architecture"], len(f.tensors), next(iter(f.tensors.values())).shape
""",
    "gguf package": """
from gguf import GGUFReader
def once(path):
    r = GGUFReader(path)
    return r.fields["general.architecture"].contents(), len(r.tensors), tuple(r.tensors[0].shape)
""",
    "transformers reader": """
from transformers.integrations.gguf.reader import read_gguf_metadata
def once(path):
    return read_gguf_metadata(path)[0]["general.architecture"]
""",
}
TIMED = """
import json, resource, sys, time
path, limit = sys.argv[1], float(sys.argv[2])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
best, spent, runs = 1e9, 0.0, 0
while runs < 20 and (runs == 0 or spent < limit):
    start = time.perf_counter(); once(path); seconds = time.perf_counter() - start
    best, spent, runs = min(best, seconds), spent + seconds, runs + 1
memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
print(json.dumps({"seconds": best, "runs": runs, "memory": memory}))
"""


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def make(path: Path, *, size: int = 1 << 20, tokens: int = 0, tensors: int = 10) -> Path:
    """Write a valid file of F16 tensors, `size` bytes of data in all; the data is a hole and takes no room."""
    each = max(32, size // tensors // 64 * 64)
    fields = [_string("general.architecture") + struct.pack("<I", 8) + _string("llama")]
    if tokens:
        words = b"".join(_string(f"token{i:06}") for i in range(tokens))
        fields += [
            _string("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, tokens) + words,
            _string("tokenizer.ggml.scores") + struct.pack("<IIQ", 9, 6, tokens) + bytes(4 * tokens),
            _string("tokenizer.ggml.token_type") + struct.pack("<IIQ", 9, 5, tokens) + bytes(4 * tokens),
        ]
    index = [_string(f"blk.{i}.weight") + struct.pack("<IQIQ", 1, each // 2, 1, i * each) for i in range(tensors)]
    head = b"GGUF" + struct.pack("<IQQ", 3, tensors, len(fields)) + b"".join(fields) + b"".join(index)
    head += bytes(-len(head) % 32)
    path.write_bytes(head)
    os.truncate(path, len(head) + tensors * each)
    return path


def measure(reader: str, path: Path, limit: float) -> dict[str, Any]:
    """Time one reader on one file."""
    command = [sys.executable, "-c", READERS[reader] + TIMED, str(path), str(limit / 10)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, cwd=HERE)
    except subprocess.TimeoutExpired:
        return {"reader": reader, "over": limit}
    if done.returncode:
        return {"reader": reader, "error": done.stderr.strip().splitlines()[-1]}
    row: dict[str, Any] = {"reader": reader} | json.loads(done.stdout)
    return row


def main() -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small files only, to try it out")
    parser.add_argument("--limit", type=float, default=60, help="seconds that a reader may take (default: 60)")
    parser.add_argument("--readers", default=",".join(READERS))
    parser.add_argument("--out", type=Path, default=HERE / "results" / "opening")
    arguments = parser.parse_args()
    few = arguments.quick
    files = [(f"{s >> 20} MiB, 10 tensors", {"size": s}) for s in ([1 << 20] if few else [1 << 20, 1 << 28, 1 << 33])]
    files += [(f"{n:,} tokens", {"tokens": n}) for n in ([1000] if few else [1000, 32_000, 128_000, 262_144])]
    files += [
        (f"{n:,} tensors", {"tensors": n, "size": 64 * n}) for n in ([100] if few else [100, 1000, 10_000, 100_000])
    ]
    rows = []
    with tempfile.TemporaryDirectory(prefix="ggufx-opening-") as folder:
        for label, shape in files:
            path = make(Path(folder) / "model.gguf", **shape)
            for reader in arguments.readers.split(","):
                rows.append({"file": label} | measure(reader, path, arguments.limit))
                print(rows[-1], flush=True)
    measured = {"machine": report.machine(), "rows": rows}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.with_suffix(".json").write_text(json.dumps(measured, indent=1) + "\n")
    arguments.out.with_suffix(".md").write_text(markdown(measured))
    return 0


def markdown(measured: dict[str, Any]) -> str:
    """One row per file, one column per reader."""
    m, rows = measured["machine"], measured["rows"]
    readers = list(dict.fromkeys(row["reader"] for row in rows))

    def cell(row: dict[str, Any]) -> str:
        if "over" in row:
            return f"over {row['over']:.0f} s"
        if "error" in row:
            return "-"
        return f"{row['seconds'] * 1e3:.2f} ms, {row['memory'] / 1e6:.1f} MB"

    lines = [f"| file | {' | '.join(readers)} |", "|---|" + "---|" * len(readers)]
    for label in dict.fromkeys(row["file"] for row in rows):
        cells = {row["reader"]: cell(row) for row in rows if row["file"] == label}
        lines.append(f"| {label} | " + " | ".join(cells.get(r, "") for r in readers) + " |")
    return "\n".join(
        [
            "# Opening a file and reading one key",
            "",
            f"{m['cpu']}, {m['compiler']}, Python {m['python']}, numpy {m['numpy']}, commit {m['commit']}.",
            "Files in the page cache; fastest opening, and by how much the process grew.",
            "",
            *lines,
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
