"""Results as JSON, as a Markdown table and as a plot; and the judgement of ``--check``."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ggufx import bench

# How much slower a row may be before --check complains.
TOLERANCE = 0.85
# Paths from the best to the last resort.
ORDER = ("ggufx avx512", "ggufx avx2", "ggufx neon", "ggufx scalar", "ggufx numpy")


def machine() -> dict[str, Any]:
    """What was measured on, with the commit of the source tree."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    commit = subprocess.run(command, capture_output=True, text=True).stdout.strip() or None
    pages = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return bench.machine() | {
        "commit": commit,
        "kernel": platform.release(),
        "huge_pages": pages.read_text(encoding="utf-8").strip() if pages.exists() else None,
    }


def _key(row: dict[str, Any]) -> tuple[str, ...]:
    return tuple(row[k] for k in ("contender", "type", "dtype", "size"))


def complaints(measured: dict[str, Any], committed: dict[str, Any]) -> list[str]:
    """Every path slower than a lower one, every compiled path's ratio behind the committed one, beyond the tolerance.

    The ceiling is one thread's, so several threads have no ratio to hold; numpy's time is mostly its allocator's.
    """
    now, before = ({_key(row): row for row in run["rows"]} for run in (measured, committed))
    found = []
    for key, row in now.items():
        for lower in ORDER[ORDER.index(key[0]) + 1 :] if key[0] in ORDER else ():
            other = now.get((lower, *key[1:]))
            if other and row["seconds"] * TOLERANCE > other["seconds"]:
                found.append(f"{' '.join(key)}: {row['seconds'] / other['seconds']:.2f} times the time of {lower}")
        old = before.get(key)
        if old and key[0] in ORDER[:-1] and row["of_move"] < TOLERANCE * old["of_move"]:
            found.append(f"{' '.join(key)}: {row['of_move']:.2f} of the ceiling, committed {old['of_move']:.2f}")
    return found


def _table(rows: Iterable[dict[str, Any]], value: str, contenders: list[str], label: str) -> list[str]:
    by_type: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        by_type.setdefault(row["type"], {})[row["contender"]] = row
    present = [c for c in contenders if any(c in group for group in by_type.values())]
    lines = [f"| {label} | " + " | ".join(present) + " |", "|---|" + "---|" * len(present)]
    for name, group in by_type.items():
        cells = []
        for c in present:
            row = group.get(c)
            mark = "" if row is None or row["result"] == "bits" else " ~"
            cells.append("" if row is None else f"{row[value]:.2f}{mark}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def markdown(measured: dict[str, Any]) -> str:
    """Tables of rates, and of ggufx's ratios to the ceilings."""
    m, rows = measured["machine"], measured["rows"]
    contenders = list(dict.fromkeys(row["contender"] for row in rows))
    text = [
        "# Decoding speed",
        "",
        f"{m['cpu']}, {m['cores']} cores, Linux {m['kernel']}, {m['compiler']}, Python {m['python']}, numpy",
        f"{m['numpy']}, commit {m['commit']}. One thread unless named otherwise, warm memory, fastest of several runs,",
        "each contender in its own process. Values are compared with the reference before a time counts; ~ marks",
        "results that differ from ggml's in the last bits.",
        "",
        *(f"- {v['contender']}: {v['version']}" for v in measured["versions"] if "version" in v),
        *(f"- {v['absent']}: not measured, {v['why']}" for v in measured["versions"] if "absent" in v),
    ]
    for size in dict.fromkeys(row["size"] for row in rows):
        for dtype in dict.fromkeys(row["dtype"] for row in rows):
            part = [row for row in rows if row["size"] == size and row["dtype"] == dtype]
            text += [
                "",
                f"## {size}, {dtype}: Gweights/s",
                "",
                *_table(part, "gigaweights_per_second", contenders, "type"),
            ]
            ours = [row for row in part if row["contender"].startswith("ggufx") and row["contender"] in ORDER[:4]]
            against, ceiling = (
                ("of_move", "moving as many bytes") if size == "DRAM" else ("of_fill", "filling the output")
            )
            text += ["", f"### of {ceiling}", "", *_table(ours, against, contenders, "type")]
    return "\n".join(text) + "\n"


def plot(measured: dict[str, Any], path: Path) -> None:
    """Bars of the float32 rates at the largest size measured; needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = [row for row in measured["rows"] if row["dtype"] == "float32"]
    size = rows[-1]["size"] if rows else ""
    rows = [row for row in rows if row["size"] == size and "threads" not in row["contender"]]
    types = list(dict.fromkeys(row["type"] for row in rows))
    contenders = list(dict.fromkeys(row["contender"] for row in rows))
    figure, axes = plt.subplots(figsize=(16, 6))
    width = 0.85 / max(1, len(contenders))
    for i, contender in enumerate(contenders):
        rate = {row["type"]: row["gigaweights_per_second"] for row in rows if row["contender"] == contender}
        axes.bar([t + i * width for t in range(len(types))], [rate.get(t, 0) for t in types], width, label=contender)
    axes.set_xticks([t + 0.4 for t in range(len(types))], types, rotation=60, ha="right")
    axes.set_ylabel("Gweights/s")
    axes.set_yscale("log")
    axes.set_title(f"Decoding to float32, {size}, one thread: {measured['machine']['cpu']}")
    axes.legend(ncols=4, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


# What the README's picture shows: types that published models are made of, one of each kind.
PICTURED = ("Q8_0", "Q4_0", "Q6_K", "Q4_K", "Q3_K", "IQ4_XS", "IQ2_XXS", "MXFP4")


def picture(measured: dict[str, Any], path: Path) -> None:
    """Draw the best path beside everyone else for a few types, as the README shows it; needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = [r for r in measured["rows"] if r["dtype"] == "float32" and r["size"] == "DRAM" and r["type"] in PICTURED]
    ours = next((c for c in ORDER if any(r["contender"] == c for r in rows)), None)
    if ours is None:
        return
    names = dict.fromkeys(r["contender"] for r in rows if not r["contender"].startswith("ggufx"))
    contenders = [ours, *(name for name in names if "threads" not in name)]
    colours = ["#d9480f", "#1864ab", "#4dabf7", "#868e96", "#ced4da"]
    figure, axes = plt.subplots(figsize=(9, 3.4))
    width = 0.84 / len(contenders)
    for i, contender in enumerate(contenders):
        rate = {r["type"]: r["gigaweights_per_second"] for r in rows if r["contender"] == contender}
        places = [t + (i - len(contenders) / 2 + 0.5) * width for t in range(len(PICTURED))]
        label = contender.split()[0] if contender == ours else contender
        bars = axes.bar(places, [rate.get(t, 0) for t in PICTURED], width, label=label, color=colours[i % 5])
        if contender == ours:
            axes.bar_label(bars, [f"{rate[t]:.1f}" if t in rate else "" for t in PICTURED], fontsize=8, padding=2)
    axes.set_xticks(range(len(PICTURED)), PICTURED)
    axes.set_ylabel("billion weights a second")
    axes.set_title(f"Decoding to float32 in memory, one thread of an {measured['machine']['cpu']}", fontsize=10)
    axes.margins(y=0.12)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="lower center", ncols=len(contenders), fontsize=8, frameon=False)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    figure.savefig(path, dpi=130)
    plt.close(figure)


def write(measured: dict[str, Any], path: Path) -> None:
    """Write path.json, path.md and, where matplotlib is installed, path.png and path-few.png."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = json.dumps({key: value for key, value in measured.items() if key != "rows"}, indent=1)
    rows = ",\n  ".join(map(json.dumps, measured["rows"]))  # a line each, so that differences can be read
    path.with_suffix(".json").write_text(f'{head[:-2]},\n "rows": [\n  {rows}\n ]\n}}\n')
    path.with_suffix(".md").write_text(markdown(measured))
    try:
        plot(measured, path.with_suffix(".png"))
        picture(measured, path.with_name(f"{path.name}-few.png"))
    except ImportError:
        print("no plot: pip install 'ggufx[plot]'")


def readme_table(measured: dict[str, Any]) -> str:
    """The README's table: the largest size, float32, everyone's rate and the best path's ratio to the ceiling."""
    m = measured["machine"]
    rows = [row for row in measured["rows"] if row["dtype"] == "float32" and row["size"] == "DRAM"]
    ours = next(c for c in ORDER if any(row["contender"] == c for row in rows))
    columns = [ours, *(c for c in dict.fromkeys(row["contender"] for row in rows) if not c.startswith("ggufx"))]
    columns = [c for c in columns if "threads" not in c]
    ratios = {row["type"]: row["of_move"] for row in rows if row["contender"] == ours}
    lines = _table(rows, "gigaweights_per_second", columns, "Gweights/s")
    lines[0] += " of what memory allows |"
    lines[1] += "---|"
    lines[2:] = [f"{line} {ratios[line.split(' ')[1]]:.2f} |" for line in lines[2:] if line.split(" ")[1] in ratios]
    return "\n".join(
        [
            f"Decoding 64 Mi weights to float32 in touched memory, on one thread of: {m['cpu']}, {m['compiler']},",
            f"numpy {m['numpy']}, commit {m['commit']}; the other paths and the versions are in",
            "benchmarks/results/decode.md.",
            "",
            *lines,
            "",
        ]
    )


if __name__ == "__main__":
    here = Path(__file__).resolve().parent
    readme, marks = (
        here.parent / "README.md",
        ("<!-- speed: written by benchmarks/report.py -->\n", "<!-- end of speed -->\n"),
    )
    before, rest = readme.read_text(encoding="utf-8").split(marks[0])
    table = readme_table(json.loads((here / "results" / "decode.json").read_text()))
    readme.write_text(before + marks[0] + table + marks[1] + rest.split(marks[1])[1], encoding="utf-8")
