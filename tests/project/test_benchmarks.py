"""The benchmarks run, refuse wrong values, and their --check complains when it should. Speeds are not asserted."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

pytestmark = [
    pytest.mark.skipif(not BENCHMARKS.exists(), reason="benchmarks/ is not here: not a source tree"),
    pytest.mark.skipif(shutil.which(os.environ.get("CC", "cc")) is None, reason="the ceilings need a C compiler"),
]


def run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture(scope="module")
def report():
    spec = importlib.util.spec_from_file_location("benchmark_report", BENCHMARKS / "report.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_decode(tmp_path):
    options = ["--sizes", "tiny", "--types", "Q4_K,IQ2_S", "--contenders", "ggufx_paths,gguf_package,ggml"]
    done = run("decode.py", *options, "--out", tmp_path / "r")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "r.json").read_text())["rows"]
    ours = [row for row in rows if row["contender"].startswith("ggufx")]
    assert {row["type"] for row in ours} == {"Q4_K", "IQ2_S"}
    assert all(row["result"] == "bits" for row in rows)
    assert "| Q4_K |" in (tmp_path / "r.md").read_text()


@pytest.mark.parametrize(
    ("script", "extra"),
    [
        ("opening.py", ["--readers", "ggufx,ggufx without the extension"]),
        ("loading.py", []),
        ("quantize.py", []),
        ("programs.py", ["--rows", "GiB"]),
    ],
)
def test_quick(script, extra, tmp_path):
    done = run(script, "--quick", "--out", tmp_path / "r", *extra)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "r.json").read_text())["rows"]
    assert not [row for row in rows if "error" in row and "No module named" not in row["error"]], rows


def test_matmul(tmp_path):
    done = run("matmul.py", "--quick", "--out", tmp_path / "r")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "r.json").read_text())["rows"]
    ours = [row for row in rows if row["contender"].startswith(("int8", "float32"))]
    assert {(row["type"], row["rows"]) for row in ours} == {(t, n) for t in ("Q4_K", "IQ2_XXS") for n in (1, 4)}
    assert "| Q4_K |" in (tmp_path / "r.md").read_text()


def row(contender: str, seconds: float, of_move: float) -> dict[str, object]:
    return {
        "contender": contender,
        "type": "Q4_K",
        "dtype": "float32",
        "size": "DRAM",
        "seconds": seconds,
        "of_move": of_move,
    }


@pytest.mark.parametrize(
    ("now", "before", "words"),
    [
        ([row("ggufx avx2", 1.0, 0.9), row("ggufx scalar", 1.1, 0.8)], [], []),
        ([row("ggufx avx2", 1.1, 0.9), row("ggufx scalar", 1.0, 0.9)], [], []),
        ([row("ggufx avx2", 1.3, 0.9), row("ggufx scalar", 1.0, 0.9)], [], ["avx2", "of scalar"]),
        ([row("ggufx avx2", 1.0, 0.8)], [row("ggufx avx2", 9.0, 0.9)], []),
        ([row("ggufx avx2", 1.0, 0.7)], [row("ggufx avx2", 1.0, 0.9)], ["0.70 of the ceiling", "committed 0.90"]),
    ],
)
def test_complaints(report, now, before, words):
    found = report.complaints({"rows": now}, {"rows": before})
    assert len(found) == bool(words)
    for word in words:
        assert word.replace("of scalar", "of ggufx scalar") in found[0]


def test_wrong_values_are_not_counted(tmp_path):
    """A contender whose values are wrong gives no row, and ggufx's fail the run."""
    folder = tmp_path / "benchmarks"
    shutil.copytree(BENCHMARKS, folder, ignore=shutil.ignore_patterns("results", "__pycache__"))
    ours = folder / "contenders" / "ggufx_paths.py"
    code = ours.read_text()
    assert "    return partial(ggufx.dequantize, " in code
    ours.write_text(
        code.replace("    return partial(ggufx.dequantize, ", "    return lambda: out.fill(1) or out\n    partial(")
    )
    command = [sys.executable, str(folder / "decode.py"), "--sizes", "tiny", "--types", "Q4_0", "--dtypes", "float32"]
    done = subprocess.run(
        [*command, "--contenders", "ggufx_paths", "--out", str(tmp_path / "r")], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "WRONG VALUES" in done.stdout
    assert json.loads((tmp_path / "r.json").read_text())["rows"] == []


def test_programs_page():
    """The table in the documentation is the one that was measured."""
    page = BENCHMARKS.parent / "docs" / "drop-in.md"
    shown = page.read_text(encoding="utf-8").partition("## Measured")[2]
    measured = (BENCHMARKS / "results" / "programs.md").read_text(encoding="utf-8")
    tables = [[line for line in text.splitlines() if line.startswith("|")] for text in (shown, measured)]
    assert len(tables[0]) > 10
    assert tables[0] == tables[1]
