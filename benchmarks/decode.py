"""Decoding speed of everyone: runs each contender in its own process and writes results/decode.{json,md,png}.

``python benchmarks/decode.py`` takes about half an hour on an idle machine; ``--sizes tiny`` tries it out in a minute.
``--check`` measures ggufx alone and fails when a path is slower than a lower one, or its ratio to the ceiling fell
behind the committed one, by more than 15 %.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import report
from cases import DTYPES, SIZES, TYPES
from contenders import NAMES

from ggufx import QType

HERE = Path(__file__).resolve().parent


def run(contender: str, variant: str, plan: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of the process of one variant of a contender."""
    command = [sys.executable, str(HERE / "worker.py")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(plan | {"contender": contender, "variant": variant}))
    process.stdin.close()
    rows = []
    for line in process.stdout:
        rows.append(json.loads(line))
        row = rows[-1]
        if "seconds" in row:
            print(
                f"{row['contender']:22} {row['type']:8} {row['dtype']:8} {row['size']:4} "
                f"{row['gigaweights_per_second']:8.2f} Gw/s  {row['of_move']:.2f} of move  {row['result']}",
                flush=True,
            )
        else:
            print(row, flush=True)
    if process.wait():
        raise SystemExit(f"{variant} failed")
    return rows


def main() -> int:
    """Measure, write, and with ``--check`` judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--contenders", metavar="C,C", default=",".join(NAMES))
    parser.add_argument("--variants", metavar="V;V", default="", help="only these, e.g. 'ggufx avx2;ggml'")
    parser.add_argument("--types", metavar="T,T", default=",".join(t.name for t in TYPES))
    parser.add_argument("--dtypes", metavar="D,D", default=",".join(DTYPES))
    parser.add_argument("--sizes", metavar="S,S", default="L2,LLC,DRAM", help=f"of {', '.join(SIZES)}")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "decode", help="path of the results, no suffix")
    parser.add_argument("--check", action="store_true", help="measure ggufx and compare with the results at --out")
    arguments = parser.parse_args()
    plan = {
        "types": [QType[name].name for name in arguments.types.split(",")],
        "dtypes": arguments.dtypes.split(","),
        "sizes": arguments.sizes.split(","),
    }
    names = ["ggufx_paths"] if arguments.check else arguments.contenders.split(",")
    wanted = [v for v in arguments.variants.split(";") if v]
    pairs = [(n, v) for n in names for v in importlib.import_module(f"contenders.{n}").VARIANTS]
    rows = [row for name, variant in pairs if not wanted or variant in wanted for row in run(name, variant, plan)]
    counted, wrong = [], []
    for row in rows:
        if "seconds" in row:
            exact = row["result"] == "bits" or (row["result"] == "close" and not row["contender"].startswith("ggufx"))
            (counted if exact else wrong).append(row)
    for row in wrong:
        print(f"WRONG VALUES: {row['contender']} {row['type']} {row['dtype']} {row['size']}: its time doesn't count")
    versions = [row for row in rows if "seconds" not in row]
    measured = {"machine": report.machine(), "versions": versions, "rows": counted}
    if not arguments.check:
        report.write(measured, arguments.out)
        return 1 if wrong else 0
    results = arguments.out.with_suffix(".json")
    committed = json.loads(results.read_text()) if results.exists() else {"rows": []}
    complaints = report.complaints(measured, committed)
    for complaint in complaints:
        print(complaint)
    print(f"{len(complaints)} complaints about {len(counted)} rows")
    return 1 if complaints or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
