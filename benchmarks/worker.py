"""One variant's measurements, in a process of its own: decode.py sends a plan, and gets one JSON row a line."""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any

import ceilings
import numpy as np
from cases import DTYPES, SIZES, Case, source, verdict
from clock import best

from ggufx import QType

# Budgets in seconds for one measurement.
BUDGET = {"L2": 0.15, "LLC": 0.15, "DRAM": 0.4, "tiny": 0.0}


def measure(contender: Any, variant: str, case: Case, memory: Any) -> dict[str, Any] | None:
    """One row, or None if the contender can't decode the case."""
    src = source(case)
    out = memory[: case.out_bytes].view(DTYPES[case.dtype])
    decode = contender.decoder(variant, case, src, out)
    if decode is None:
        return None
    budget = BUDGET[case.size]
    with np.errstate(all="ignore"):
        result = verdict(case, decode())
        before = ceilings.move(src, out, budget / 4)
        timing = best(decode, budget)
        after = ceilings.move(src, out, budget / 4)
    return {
        "contender": variant,
        "type": case.qtype.name,
        "dtype": case.dtype,
        "size": case.size,
        "result": result,
        "seconds": timing.seconds,
        "runs": timing.runs,
        "gigaweights_per_second": case.weights / timing.seconds / 1e9,
        # The better of two measurements around the decoder's: the machine may have slowed down in between.
        "of_move": min(before, after) / timing.seconds,
        "of_fill": ceilings.fill(out, budget / 4) / timing.seconds,
    }


def main() -> None:
    """Read a plan from standard input: contender, variant, types, dtypes, sizes."""
    plan = json.load(sys.stdin)
    variant = plan["variant"]
    if "threads" not in variant and hasattr(os, "sched_setaffinity"):
        # Libraries that start threads unasked see one CPU, and nobody is moved between caches.
        os.sched_setaffinity(0, [max(os.sched_getaffinity(0))])
    contender = importlib.import_module(f"contenders.{plan['contender']}")
    try:
        version = contender.version()
    except ImportError as error:
        print(json.dumps({"absent": variant, "why": str(error)}))
        return
    print(json.dumps({"contender": variant, "version": version}))
    memory = ceilings.touched(4 * max(SIZES[size] for size in plan["sizes"]))
    for size in plan["sizes"]:
        for qtype in plan["types"]:
            for dtype in plan["dtypes"]:
                row = measure(contender, variant, Case(QType[qtype], dtype, size), memory)
                if row is not None:
                    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
