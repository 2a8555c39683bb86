"""What the patched `gguf` package gains whole programs: results/programs.{json,md}, and the table in docs/drop-in.md.

Each figure is the time, or memory, of one program in processes of its own, plain and with ggufx, the files in the page
cache and the modules imported; the fastest of two runs plain, of five with ggufx. ``--model FILE`` is the real model
(Gemma-3 270M as Q4_K_M). Results are written by one run of everything, about six minutes with at most 5 GB of memory;
``--rows`` and ``--quick`` only show theirs, unless ``--out`` says where to. What isn't installed is left out, and said.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import report

from ggufx import Writer

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "drop-in.md"
PACKAGES = ("gguf", "transformers", "tokenizers", "torch", "diffusers", "accelerate")
RUNS = {"plain": 2}
RUNS_WITH = 5

# Bodies that define once(), with `path` set; the time of the fastest of `runs` calls counts.
HEAD = """
import gc, json, os, sys, time, warnings
path, way, runs = sys.argv[1], sys.argv[2], int(sys.argv[3])
folder, name = os.path.split(path)
os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
warnings.simplefilter("ignore")
if way != "plain":
    import ggufx.compat
    ggufx.compat.install()
"""
TIMED = """
best = 1e9
for _ in range(runs):
    gc.collect()
    start = time.perf_counter(); kept = once(); best = min(best, time.perf_counter() - start)
    del kept
print(json.dumps({"value": best}))
"""
MODEL = """
import torch
from transformers import AutoModelForCausalLM
from transformers.models.gemma3 import modeling_gemma3
import transformers.modeling_gguf_pytorch_utils
from transformers.utils import logging
logging.set_verbosity_error(); logging.disable_progress_bar()
import gguf
if way == "direct":
    from ggufx.integrations.transformers import load
    def once():
        return load(path, dtype=DTYPE)
else:
    def once():
        return AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=DTYPE)
"""
DECODE = """
import gguf
reader = gguf.GGUFReader(path)
decode = gguf.dequantize
def once():
    for tensor in reader.tensors:
        decode(tensor.data, tensor.tensor_type)
"""
LAYER = """
import numpy as np, torch
import gguf
from diffusers.quantizers.gguf import utils
if way != "plain":
    from ggufx.integrations import diffusers
    diffusers.install()
raw = np.fromfile(path, np.uint8)[-(4096 * 56 * 144) :].reshape(4096, 56 * 144)
weight = utils.GGUFParameter(torch.from_numpy(raw), quant_type=gguf.GGMLQuantizationType.Q4_K)
def once():
    return utils.dequantize_gguf_tensor(weight)
"""
NEWER = MODEL.replace("DTYPE", "torch.float32").replace("gemma3 import modeling_gemma3", "lfm2 import modeling_lfm2")
# The same file through the older loader, which still knows its architecture.
OLDER = (
    NEWER
    + """
from transformers.quantizers import quantizer_gguf
quantizer_gguf.is_gguf_arch_supported = lambda architecture: False
"""
)
LFM2 = "LFM2 of 0.5 G weights as Q4_K, float32"
BODIES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "transformers: model, float32": ("model", MODEL.replace("DTYPE", "torch.float32"), ("patched", "direct")),
    "transformers: model, bfloat16": ("model", MODEL.replace("DTYPE", "torch.bfloat16"), ("patched", "direct")),
    "transformers: tokenizer": (
        "model",
        """
from transformers import AutoTokenizer
import transformers.modeling_gguf_pytorch_utils
from transformers.utils import logging
logging.set_verbosity_error()
import gguf
def once():
    return AutoTokenizer.from_pretrained(folder, gguf_file=name)
""",
        ("patched",),
    ),
    "transformers' newer loader: its decoders, float32, Q4_K": (
        "blocks",
        """
import torch
from transformers.integrations.gguf.dequant import dequantize
import numpy as np
blocks = torch.from_numpy(np.fromfile(path, np.uint8)[-(64 << 20) // 144 * 144 :][: (64 << 20) // 144 * 144])
def once():
    return dequantize(blocks, 12)
""",
        ("patched",),
    ),
    f"transformers' newer loader: {LFM2}": ("lfm2", NEWER, ("patched",)),
    f"transformers' older loader: {LFM2}": ("lfm2", OLDER, ("patched", "direct")),
    "GGUFReader": ("model", "from gguf import GGUFReader\ndef once():\n    return GGUFReader(path)\n", ("patched",)),
    "diffusers: a layer's weights in each forward pass, Q4_K to float16, opt-in": ("blocks", LAYER, ("patched",)),
    "dequantize, every tensor of the real model": ("model", DECODE, ("patched",)),
    "dequantize, 2 GiB of Q4_K": ("blocks", DECODE, ("patched",)),
}
MEMORY = """
from gguf import GGUFReader
def rss():
    with open("/proc/self/smaps_rollup") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith("Private_Dirty"))
before = rss()
reader = GGUFReader(path)
print(json.dumps({"value": rss() - before}))
"""
PROCESS = "-m gguf.scripts.gguf_dump"


def make(path: Path, gibibytes: float) -> None:
    """Write a file of equal Q4_K tensors, of a large model's size."""
    rows, width = 4096, 14336
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, (rows * width // 256, 144), np.uint8)
    blocks[:, :4] = np.array([0.01, 0.02], np.float16).view(np.uint8)
    count = round(gibibytes * 2**30 / blocks.nbytes)
    with Writer(path, sync=False) as w:
        w.set("general.architecture", "llama")
        for i in range(count):
            w.add(f"blk.{i}.ffn_up.weight", blocks.reshape(rows, -1), shape=(rows, width), qtype="Q4_K")


def make_lfm2(path: Path) -> None:
    """Write a model of an architecture that transformers' newer loader takes: random weights of eight layers."""
    width, inner, layers, words = 2048, 8192, 8, 32000
    rng = np.random.default_rng(0)

    def blocks(rows: int, columns: int) -> np.ndarray:
        raw = rng.integers(0, 256, (rows * columns // 256, 144), np.uint8)
        raw[:, :4] = np.array([0.001, 0.002], np.float16).view(np.uint8)
        return raw.reshape(rows, -1)

    with Writer(path, sync=False) as w:
        w.set("general.architecture", "lfm2")
        for key, value in {
            "context_length": 4096, "embedding_length": width, "feed_forward_length": inner, "block_count": layers,
            "attention.head_count": 32, "shortconv.l_cache": 3,
        }.items():  # fmt: skip
            w.set(f"lfm2.{key}", value)
        w.set("lfm2.attention.head_count_kv", [8 if i % 4 == 2 else 0 for i in range(layers)], "int32")
        w.set("lfm2.attention.layer_norm_rms_epsilon", 1e-5)
        w.set("lfm2.rope.freq_base", 1e6)
        w.set("tokenizer.ggml.tokens", [f"word{i}" for i in range(words)])
        shapes = {"token_embd": (words, width)}
        norms = {"token_embd_norm": width}
        for i in range(layers):
            if i % 4 == 2:
                mixer = {"attn_q": (width, width), "attn_k": (width // 4, width), "attn_v": (width // 4, width),
                         "attn_output": (width, width)}  # fmt: skip
                norms |= {f"blk.{i}.attn_q_norm": 64, f"blk.{i}.attn_k_norm": 64}
            else:
                mixer = {"shortconv.in_proj": (3 * width, width), "shortconv.out_proj": (width, width)}
                w.add(f"blk.{i}.shortconv.conv.weight", rng.standard_normal((width, 3), np.float32))
            mixer |= {"ffn_gate": (inner, width), "ffn_up": (inner, width), "ffn_down": (width, inner)}
            shapes |= {f"blk.{i}.{name}": shape for name, shape in mixer.items()}
            norms |= {f"blk.{i}.attn_norm": width, f"blk.{i}.ffn_norm": width}
        for name, shape in shapes.items():
            w.add(f"{name}.weight", blocks(*shape), shape=shape, qtype="Q4_K")
        for name, size in norms.items():
            w.add(f"{name}.weight", np.ones(size, np.float32))


def run(code: str, path: Path, way: str, runs: int, empty: Path) -> dict[str, Any]:
    """Measure one way in a process of its own, in an empty folder: Python imports from the one it runs in."""
    command = [sys.executable, "-c", code, str(path), way, str(runs)]
    # What the variable would patch, a plain run must not have.
    env = {k: v for k, v in os.environ.items() if k != "GGUFX_COMPAT"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=empty, env=env)
    if done.returncode:
        return {"way": way, "error": (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]}
    measured: dict[str, Any] = {"way": way} | json.loads(done.stdout.strip().splitlines()[-1])
    return measured


def warm(path: Path) -> None:
    """Read a file into the page cache."""
    with open(path, "rb") as f:
        while f.read(1 << 24):
            pass


def run_dump(path: Path, setting: str, runs: int, empty: Path) -> float:
    """Seconds of gguf-dump as a process."""
    env = os.environ | {"GGUFX_COMPAT": setting}
    best = float("inf")
    for _ in range(runs):
        start = time.perf_counter()
        command = [sys.executable, *PROCESS.split(), str(path)]
        subprocess.run(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True, cwd=empty)
        best = min(best, time.perf_counter() - start)
    return best


def versions() -> dict[str, str]:
    """Of the packages measured."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def main() -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", type=Path, help="the real model")
    parser.add_argument("--rows", action="append", help="only rows whose name contains this, to look at; repeatable")
    parser.add_argument("--gib", type=float, default=2, help="size of the made file of Q4_K (default: 2)")
    parser.add_argument("--quick", action="store_true", help="one run each, a small made file: tries the script out")
    parser.add_argument("--out", type=Path, help="where to write, without suffix (default: results/programs)")
    arguments = parser.parse_args()
    picked = arguments.rows or [""]
    rows: list[dict[str, Any]] = []
    began, start = datetime.now(timezone.utc), time.perf_counter()
    gibibytes = 0.1 if arguments.quick else arguments.gib

    def runs_of(way: str) -> int:
        return 1 if arguments.quick else RUNS.get(way, RUNS_WITH)

    def note(name: str, unit: str, measured: list[dict[str, Any]]) -> None:
        rows.append({"program": name, "unit": unit, "ways": measured})
        print(rows[-1], flush=True)

    model = None if arguments.model is None else arguments.model.resolve()
    if model is not None:
        warm(model)
    with tempfile.TemporaryDirectory(prefix="ggufx-programs-") as folder:
        made, lfm2, empty = (Path(folder) / name for name in ("model.gguf", "lfm2.gguf", "empty"))
        empty.mkdir()
        for name, (kind, body, ways) in BODIES.items():
            if not any(part in name for part in picked) or (kind == "model" and model is None):
                continue
            path = {"blocks": made, "lfm2": lfm2}.get(kind) or model
            assert path is not None
            if not path.exists() and path == made:
                make(made, gibibytes)
            elif not path.exists():
                make_lfm2(lfm2)
            note(name, "s", [run(HEAD + body + TIMED, path, w, runs_of(w), empty) for w in ("plain", *ways)])
        if model is not None:
            if any(part in "memory of a header" for part in picked):
                note(
                    "memory of a header",
                    "B",
                    [run(HEAD + MEMORY, model, way, 1, empty) for way in ("plain", "patched")],
                )
            if any(part in "gguf-dump, the process" for part in picked):
                dumps = [
                    {"way": w, "value": run_dump(model, s, runs_of(w), empty)}
                    for w, s in (("plain", "0"), ("patched", "1"))
                ]
                note("gguf-dump, the process", "s", dumps)
    measured = {
        "machine": report.machine(),
        "versions": versions(),
        "run": {
            "began": began.isoformat(timespec="seconds"),
            "seconds": round(time.perf_counter() - start),
            "command": " ".join(["programs.py", *(a if a.startswith("-") else Path(a).name for a in sys.argv[1:])]),
            "in_one_run": True,
            # Of the largest process; Linux counts in KiB. The files' own pages in the cache are part of it.
            "peak_bytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
        },
        "rows": rows,
    }
    print(markdown(measured))
    # What isn't installed is no failure.
    failed = any("No module" not in way.get("error", "No module") for row in rows for way in row["ways"])
    whole = not arguments.rows and not arguments.quick and model is not None
    if arguments.out is None and not whole:
        print("not written: this wasn't everything")
        return failed
    out = arguments.out or HERE / "results" / "programs"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.with_suffix(".json").write_text(json.dumps(measured, indent=1) + "\n")
    out.with_suffix(".md").write_text(markdown(measured))
    if arguments.out is None:
        text = PAGE.read_text()
        PAGE.write_text(text[: text.index(HEADING)] + section(measured))
    return failed


HEADING = "## Measured\n"


def conditions(measured: dict[str, Any]) -> list[str]:
    """Tell what it was measured on, in lines of text."""
    m, v, run = measured["machine"], measured["versions"], measured["run"]
    return [
        f"{m['cpu']}, {m['cores']} cores, {m['compiler']}, Python {m['python']}, numpy {m['numpy']}, gguf {v['gguf']},",
        f"transformers {v['transformers']}, torch {v['torch']}, diffusers {v['diffusers']}, commit {m['commit']},",
        f"{run['began'][:10]}; everything in one run. The files lie in the page cache, the modules are imported; the",
        "fastest of two runs without ggufx, of five with it.",
    ]


def table(measured: dict[str, Any]) -> list[str]:
    """One line per program and way."""

    def show(value: float, unit: str) -> str:
        if unit == "B":
            return f"{value / 1e6:.1f} MB"
        return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.3g} ms"

    lines = ["| program | plain | with ggufx | gain |", "|---|---|---|---|"]
    for row in measured["rows"]:
        plain, *others = row["ways"]
        for way in others:
            if "value" not in plain or "value" not in way:
                lines.append(f"| {row['program']} | {plain.get('error', '')} | {way.get('error', '')} | - |")
                continue
            direct = ", direct loader" if way["way"] == "direct" else ""
            lines.append(
                f"| {row['program']}{direct} | {show(plain['value'], row['unit'])} | {show(way['value'], row['unit'])} "
                f"| {plain['value'] / way['value']:.3g} |"
            )
    both = [way for row in measured["rows"] if row["program"].endswith(LFM2) for way in row["ways"] if "value" in way]
    theirs, ours = ([w["value"] for w in both if (w["way"] == "plain") == is_plain] for is_plain in (True, False))
    if len(theirs) == 2 and ours:
        best = f"{show(min(theirs), 's')} | {show(min(ours), 's')} | {min(theirs) / min(ours):.3g}"
        lines.append(f"| transformers' faster loader beside the fastest with ggufx: {LFM2} | {best} |")
    return lines


def markdown(measured: dict[str, Any]) -> str:
    """Everything, as a page."""
    heading = "# Programs with and without ggufx.compat"
    return "\n".join([heading, "", *conditions(measured), "", *table(measured), ""])


def section(measured: dict[str, Any]) -> str:
    """The last section of the documentation's page."""
    about = (
        "The real model is Gemma-3 270M as Q4_K_M (253 MB, 262,144 tokens). `benchmarks/programs.py` measures it again."
    )
    return "\n".join([HEADING, *conditions(measured), about, "", *table(measured), ""])


if __name__ == "__main__":
    raise SystemExit(main())
