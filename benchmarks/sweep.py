"""The sweeps behind decode.py's and driver.c's constants: results/sweep.{json,md}.

- Through the cache or past it, for outputs from 256 KiB to 64 MiB, into touched memory (STREAM_BYTES).
- One thread or two, for 64 Ki to 64 Mi values, into touched memory and fresh (VALUES_PER_THREAD).
- The cost of a call on one block.
- Two threads together on 64 Mi values, against both cores filling the same memory with streaming stores.
"""

from __future__ import annotations

import argparse
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from ceilings import stream, touched
from clock import best
from report import machine

import ggufx
import ggufx.codec.decode as decoding
from ggufx import QType
from ggufx.codec import dispatch

TYPES = (QType.Q4_K, QType.Q8_0, QType.IQ2_XXS)
# Bound by memory and bound by the kernel, into memory that is there and into memory that the system has yet to give.
THREADED = (
    (QType.Q4_K, "float32", "touched"),
    (QType.Q4_K, "float32", "fresh"),
    (QType.Q4_K, "bfloat16", "touched"),
    (QType.IQ3_S, "float32", "touched"),
    (QType.IQ3_S, "float32", "fresh"),
    (QType.IQ3_S, "bfloat16", "touched"),
)
HERE = Path(__file__).resolve().parent


def _blocks(qtype: QType, values: int) -> npt.NDArray[np.uint8]:
    rng = np.random.default_rng(0)
    few = rng.integers(0, 60, (64, qtype.block_bytes), dtype=np.uint8)  # small bytes: finite scales
    return np.resize(few, values // qtype.block_size * qtype.block_bytes)


def main() -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=HERE / "results" / "sweep")
    out_path = parser.parse_args().out
    path = dispatch.resolve(None)
    native = dispatch.native
    lines = ["# Sweeps", "", machine_line(), ""]
    result: dict[str, Any] = {"machine": machine()}

    lines += ["## Through the cache or past it", "", "Gweights/s of float32, one thread, into touched memory.", ""]
    lines += ["| output | " + " | ".join(f"{t.name} through | past" for t in TYPES) + " |"]
    lines += ["|---" * (1 + 2 * len(TYPES)) + "|"]
    result["stream"] = []
    for kib in (256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536):
        n = kib << 8
        out = touched(4 * n).view(np.float32)
        cells = []
        for qtype in TYPES:
            src = _blocks(qtype, n)
            for past in (False, True):
                seconds = best(lambda: native.decode(path, qtype, 0, src, 0, out, 0, n, past), 0.15).seconds  # noqa: B023
                cells.append(n / seconds / 1e9)
        result["stream"].append([kib, *cells])
        lines.append(f"| {kib} KiB | " + " | ".join(f"{c:.1f}" for c in cells) + " |")

    lines += ["", "## One thread or two", "", "Gweights/s.", ""]
    lines += ["| values | " + " | ".join(f"{t.name} {d} {m}: one | two" for t, d, m in THREADED) + " |"]
    lines += ["|---" * (1 + 2 * len(THREADED)) + "|"]
    result["threads"] = []
    least = decoding.VALUES_PER_THREAD
    for n in (1 << k for k in (16, 18, 20, 21, 22, 23, 24, 26)):
        memory = touched(4 * n)
        cells = []
        for qtype, dtype, kind in THREADED:
            src = _blocks(qtype, n)
            out = None if kind == "fresh" else memory.view(np.float32 if dtype == "float32" else np.uint16)[:n]
            for threads in (1, 2):
                decoding.VALUES_PER_THREAD = 1 << 12  # type: ignore[misc]
                seconds = best(
                    lambda: ggufx.dequantize(src, qtype, dtype=dtype, out=out, threads=threads),  # noqa: B023
                    0.15,
                ).seconds
                cells.append(n / seconds / 1e9)
        decoding.VALUES_PER_THREAD = least  # type: ignore[misc]
        result["threads"].append([n, *cells])
        lines.append(f"| {n:,} | " + " | ".join(f"{c:.1f}" for c in cells) + " |")

    lines += ["", "## One block a call", "", "Microseconds, with `out=`.", ""]
    result["call"] = {}
    for qtype in TYPES:
        src, out = _blocks(qtype, qtype.block_size), np.empty(qtype.block_size, np.float32)
        result["call"][qtype.name] = best(lambda: ggufx.dequantize(src, qtype, out=out), 0.15).seconds * 1e6  # noqa: B023
    lines += [", ".join(f"{name} {us:.1f}" for name, us in result["call"].items())]

    n = 1 << 26
    out = touched(4 * n).view(np.float32)

    def fill_by_halves() -> None:
        work = [threading.Thread(target=stream, args=(half,)) for half in (out[: n // 2], out[n // 2 :])]
        for thread in work:
            thread.start()
        for thread in work:
            thread.join()

    lines += ["", "## Two threads on 64 Mi values", ""]
    result["two_threads"] = {}
    for qtype in TYPES:
        src = _blocks(qtype, n)
        ours = best(lambda: ggufx.dequantize(src, qtype, out=out, threads=2), 1).seconds  # noqa: B023
        fill = best(fill_by_halves, 1).seconds
        result["two_threads"][qtype.name] = [n / ours / 1e9, n / fill / 1e9]
        lines.append(
            f"- {qtype.name}: {n / ours / 1e9:.1f} Gweights/s, {fill / ours:.2f} of both cores filling "
            f"({n / fill / 1e9:.1f})"
        )
    out_path.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    out_path.with_suffix(".md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    return 0


def machine_line() -> str:
    """Machine, compiler and commit in one line."""
    return ", ".join(f"{key} {value}" for key, value in machine().items())


if __name__ == "__main__":
    raise SystemExit(main())
