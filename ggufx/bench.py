"""How fast this machine decodes: ``python -m ggufx.bench``.

Every type on every path, beside what the memory can do: filling the output, and copying as many bytes. The blocks are
those of the sample model, repeated until the output no longer fits a cache, or a given model's own. One thread, pages
touched before the clock starts, best of several runs; and every result is compared with the numpy reference.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from . import __version__
from .cli.sample import path_or_sample
from .cli.terminal import printable
from .codec import dispatch
from .codec.decode import dequantize
from .codec.reference.decode import DECODERS, decode
from .formats.tensor_types import QType
from .read.reader import GGUFFile
from .read.reader import open as open_gguf

__all__ = ["ceilings", "machine", "main", "run"]

DTYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(np.uint16),
}
# Seconds that the runs of one row may take together, and how many there are at least and at most.
BUDGET, LEAST, MOST = 0.15, 2, 7
# A model's tensors are compared with the reference up to this many values each.
CHECKED = 1 << 22


def machine() -> dict[str, Any]:
    """Describe what the figures were measured on.

    Returns
    -------
    dict
        CPU, core count, system, Python, numpy, compiler and version of ggufx.
    """
    cpu = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as f:
            cpu = next((line.split(":", 1)[1].strip() for line in f if line.startswith("model name")), cpu)
    except OSError:
        pass
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "ggufx": __version__,
        "compiler": None if dispatch.native is None else dispatch.native.compiler(),
        "paths": list(dispatch.available()),
    }


def _best(action: Callable[[], object], budget: float = BUDGET) -> float:
    """Seconds of the fastest run, after one that isn't timed."""
    action()
    best, spent, runs = float("inf"), 0.0, 0
    while runs < LEAST or (spent < budget and runs < MOST):
        start = time.perf_counter()
        action()
        seconds = time.perf_counter() - start
        best, spent, runs = min(best, seconds), spent + seconds, runs + 1
    return best


def ceilings(nbytes: int) -> dict[str, float]:
    """Measure what memory allows, by the fastest of what numpy and the C library offer.

    Parameters
    ----------
    nbytes : int
        Size of the output.

    Returns
    -------
    dict
        ``fill`` and ``copy``: bytes written per second. A copy reads as many bytes as it writes.
    """
    target, source = np.ones(nbytes, np.uint8), np.ones(nbytes, np.uint8)
    to, of = target.ctypes.data, source.ctypes.data
    fill = min(_best(lambda: target.fill(2)), _best(lambda: ctypes.memset(to, 3, nbytes)))
    copy = min(_best(lambda: np.copyto(target, source)), _best(lambda: ctypes.memmove(to, of, nbytes)))
    return {"fill": nbytes / fill, "copy": nbytes / copy}


def _reference(blocks: npt.NDArray[np.uint8], qtype: QType, dtype: str) -> npt.NDArray[Any]:
    values: npt.NDArray[Any] = np.empty(blocks.size // qtype.block_bytes * qtype.block_size, DTYPES[dtype])
    decode(blocks, qtype, dtype, values)
    return values


def _same(got: npt.NDArray[Any], want: npt.NDArray[Any], dtype: str) -> bool:
    """Equal bits, a NaN equal to any NaN."""
    unsigned = f"u{want.dtype.itemsize}"
    a, b = got.view(unsigned), want.view(unsigned)
    if np.array_equal(a, b):
        return True
    infinity = {"float32": 0x7F800000, "float16": 0x7C00, "bfloat16": 0x7F80}[dtype]
    sign = 1 << 8 * want.dtype.itemsize - 1
    a_nan, b_nan = (a & ~a.dtype.type(sign)) > infinity, (b & ~b.dtype.type(sign)) > infinity
    return bool((a_nan == b_nan).all() and ((a == b) | b_nan).all())


def _row(label: str, path: str, dtype: str, weights: int, seconds: float, exact: bool) -> dict[str, Any]:
    written = weights * DTYPES[dtype].itemsize
    return {
        "type": label,
        "path": path,
        "dtype": dtype,
        "weights": weights,
        "seconds": seconds,
        "gigaweights_per_second": weights / seconds / 1e9,
        "gigabytes_per_second": written / seconds / 1e9,
        "exact": exact,
    }


def _sample_rows(
    f: GGUFFile, types: Sequence[QType], paths: Sequence[str], dtypes: Sequence[str], weights: int, threads: int
) -> Iterator[dict[str, Any]]:
    pieces = {t.qtype: t.packed() for t in sorted(f.tensors.values(), key=lambda t: t.size)}
    memory = np.ones(4 * max(weights, max(t.size for t in f.tensors.values())), np.uint8)
    for qtype in types:
        piece = pieces[qtype]
        values = piece.size // qtype.block_bytes * qtype.block_size
        repeats = max(1, weights // values)
        source = np.tile(piece, repeats)
        for dtype in dtypes:
            want = _reference(piece, qtype, dtype)
            out = memory[: repeats * values * DTYPES[dtype].itemsize].view(DTYPES[dtype])
            for name in paths:
                memory[:] = 1
                seconds = _best(partial(dequantize, source, qtype, dtype=dtype, out=out, threads=threads, path=name))
                exact = all(_same(part, want, dtype) for part in out.reshape(repeats, values))
                yield _row(qtype.name, name, dtype, out.size, seconds, exact)


def _model_rows(
    f: GGUFFile, types: Sequence[QType], paths: Sequence[str], dtypes: Sequence[str], _weights: int, threads: int
) -> Iterator[dict[str, Any]]:
    tensors = [t for t in f.tensors.values() if t.qtype in types and t.size]
    memory = np.ones(4 * max((t.size for t in tensors), default=0), np.uint8)
    for qtype in dict.fromkeys(QType(t.qtype) for t in tensors):
        group = [t for t in tensors if t.qtype == qtype]
        for dtype in dtypes:
            for name in paths:
                seconds, exact = 0.0, True
                for t in group:
                    packed, out = t.packed(), memory[: t.size * DTYPES[dtype].itemsize].view(DTYPES[dtype])
                    as_asked = partial(dequantize, qtype=qtype, dtype=dtype, byteorder=t.byteorder)
                    seconds += _best(
                        partial(as_asked, packed, out=out, threads=threads, path=name), BUDGET / len(group)
                    )
                    blocks = min(t.size, CHECKED) // qtype.block_size
                    want = as_asked(packed[: blocks * qtype.block_bytes], path="numpy")
                    exact &= _same(out[: want.size], want, dtype)
                yield _row(qtype.name, name, dtype, sum(t.size for t in group), seconds, exact)


def run(
    *,
    model: str | os.PathLike[str] | None = None,
    types: Sequence[QType] | None = None,
    paths: Sequence[str] | None = None,
    dtypes: Sequence[str] = ("float32",),
    weights: int = 1 << 24,
    threads: int = 1,
    progress: Callable[[dict[str, Any]], None] = lambda report: None,
) -> dict[str, Any]:
    """Measure, and return everything measured.

    Parameters
    ----------
    model : path-like, optional
        A GGUF file whose tensors are decoded, type by type, instead of the sample's blocks.
    types : sequence of QType, optional
        All that decode, by default.
    paths : sequence of str, optional
        All that are available here, by default.
    dtypes : sequence of str
        Of ``"float32"``, ``"float16"``, ``"bfloat16"``.
    weights : int
        Values per measurement without a model.
    threads : int
        Threads a call may use.
    progress : callable
        Called with the report so far, when the ceilings are measured and after each row.

    Returns
    -------
    dict
        ``machine``, ``ceilings`` (bytes written per second) and ``rows``: type, path, dtype, weights, seconds,
        gigaweights_per_second, gigabytes_per_second (of output) and exact (equal to the reference).
    """
    paths = dispatch.available() if paths is None else paths
    for name in paths:
        dispatch.resolve(name)
    types = list(DECODERS) if types is None else types
    report: dict[str, Any] = {
        "machine": machine(),
        "model": None if model is None else str(model),
        "threads": threads,
        "ceilings": ceilings(max(4 * weights, 1 << 20)),
        "rows": [],
    }
    progress(report)
    with path_or_sample(model) as file, open_gguf(file) as f:
        rows = _sample_rows if model is None else _model_rows
        for row in rows(f, types, paths, dtypes, weights, threads):
            report["rows"].append(row)
            progress(report)
    return report


def _print_progress(report: dict[str, Any]) -> None:
    ceiling = report["ceilings"]
    if not report["rows"]:
        m = report["machine"]
        print(f"{m['cpu']}, {m['cores']} cores, {m['compiler'] or 'no compiled extension'}, ggufx {m['ggufx']}")
        print(f"filling {ceiling['fill'] / 1e9:.1f} GB/s, copying {ceiling['copy'] / 1e9:.1f} GB/s, "
              f"threads: {report['threads']}")  # fmt: skip
        print("type     path    dtype     Gweights/s   GB/s  of fill  of copy  bits", flush=True)
        return
    row = report["rows"][-1]
    rate = row["gigabytes_per_second"]
    print(
        f"{row['type']:8} {row['path']:7} {row['dtype']:8} {row['gigaweights_per_second']:11.2f} {rate:6.1f} "
        f"{rate * 1e9 / ceiling['fill']:8.2f} {rate * 1e9 / ceiling['copy']:8.2f}  "
        f"{'equal' if row['exact'] else 'DIFFER'}",
        flush=True,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line; the exit code is 1 if any bits differ from the reference."""
    parser = argparse.ArgumentParser(prog="python -m ggufx.bench", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", metavar="FILE", help="decode this file's tensors instead of the sample's blocks")
    parser.add_argument("--types", metavar="T,T", help="only these types, e.g. Q4_K,Q6_K")
    parser.add_argument("--paths", metavar="P,P", help="only these paths (default: all available)")
    parser.add_argument("--dtypes", metavar="D,D", default="float32", help=f"of {', '.join(DTYPES)} (default: float32)")
    parser.add_argument("--mib", type=int, default=64, help="output size in MiB of float32 (default: 64)")
    parser.add_argument("--threads", type=int, default=1, help="threads a call may use (default: 1)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    arguments = parser.parse_args(argv)
    try:
        types = [QType.parse(name) for name in arguments.types.split(",")] if arguments.types else None
    except ValueError as error:
        parser.error(f"--types: {error}")
    dtypes = arguments.dtypes.split(",")
    if bad := [d for d in dtypes if d not in DTYPES]:
        parser.error(f"--dtypes: {bad[0]!r} isn't one of {', '.join(DTYPES)}")
    if arguments.mib < 1 or arguments.threads < 1:
        parser.error("--mib and --threads must be at least 1")
    try:
        report = run(
            model=arguments.model,
            types=types,
            paths=arguments.paths.split(",") if arguments.paths else None,
            dtypes=dtypes,
            weights=arguments.mib << 18,
            threads=arguments.threads,
            progress=(lambda report: None) if arguments.json else _print_progress,
        )
    except (ValueError, OSError) as error:
        print(f"ggufx.bench: {printable(str(error))}", file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps(report, indent=1))
    return 0 if all(row["exact"] for row in report["rows"]) else 1


if __name__ == "__main__":
    sys.exit(main())
