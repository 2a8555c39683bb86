"""Whole files against llama.cpp's: shards as llama-gguf-split makes them, and what llama-quantize names and writes.

``python tests/read/test_llama_files.py FOLDER`` records the digests anew with the programs in the folder.
"""

import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggufx import GGUFError, Writer
from ggufx.requantize import requantize
from ggufx.splitting import merge, split

RECORDED = Path(__file__).parents[1] / "vectors" / "llama_files.json"
# Case: llama-gguf-split's options, ours.
SPLITS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "size": (["--split-max-size", "1M"], {"max_bytes": 10**6}),
    "size, first empty": (
        ["--split-max-size", "1M", "--no-tensor-first-split"],
        {"max_bytes": 10**6, "first_empty": True},
    ),
    "tensors": (["--split-max-tensors", "7"], {"max_tensors": 7}),
    "tensors without rest": (["--split-max-tensors", "3"], {"max_tensors": 3}),
    "tensors, first empty": (
        ["--split-max-tensors", "7", "--no-tensor-first-split"],
        {"max_tensors": 7, "first_empty": True},
    ),
    "one shard": (["--split-max-tensors", "99"], {"max_tensors": 99}),
}
# Case: what is quantized (a case of SPLITS, or the whole file), mix, llama-quantize's options, ours.
QUANTIZED: dict[str, tuple[str | None, str, list[str], dict[str, Any]]] = {
    "whole": (None, "Q4_K_M", [], {}),
    "whole, kept split": (None, "Q4_K_M", ["--keep-split"], {"keep_split": True}),
    "shards joined": ("tensors", "Q4_K_M", [], {}),
    "shards kept": ("tensors", "Q4_K_M", ["--keep-split"], {"keep_split": True}),
    "shards kept, first empty": ("tensors, first empty", "Q4_K_M", ["--keep-split"], {"keep_split": True}),
    "copied": (None, "COPY", [], {}),
    "pruned": (None, "Q3_K_L", ["--prune-layers", "0"], {"prune_layers": [0]}),
}


def make_model(path: Path) -> Path:
    """A llama of two layers, its blocks in reverse order, whose values follow from their position."""
    with Writer(path, sync=False) as w:
        w.set("general.architecture", "llama")
        w.set("split.count", 0, "uint16")  # as llama-gguf-split leaves it in a merged file
        for key, value in {
            "block_count": 2,
            "context_length": 128,
            "embedding_length": 256,
            "feed_forward_length": 512,
            "attention.head_count": 4,
            "rope.dimension_count": 64,
        }.items():
            w.set(f"llama.{key}", value)
        w.set("llama.attention.layer_norm_rms_epsilon", 1e-5)
        shapes = {"token_embd": (37, 256), "output_norm": (256,), "output": (37, 256)}
        for layer in (1, 0):
            for name, shape in (("ffn_down", (256, 512)), ("ffn_up", (512, 256)), ("ffn_gate", (512, 256))):
                shapes[f"blk.{layer}.{name}"] = shape
            for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
                shapes[f"blk.{layer}.{name}"] = (256, 256)
            for name in ("attn_norm", "ffn_norm"):
                shapes[f"blk.{layer}.{name}"] = (256,)
        for n, (name, shape) in enumerate(shapes.items()):
            values = (np.arange(np.prod(shape)) * (37 + n) % 251 - 125) / 64
            w.add(f"{name}.weight", values.astype(np.float32).reshape(shape))
    return path


def digests(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest()[:16] for p in sorted(folder.iterdir())}


def first_of(folder: Path) -> Path:
    return min(folder.iterdir())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model") / "in.gguf")


@pytest.fixture(scope="module")
def recorded() -> dict[str, dict[str, dict[str, str]]]:
    return json.loads(RECORDED.read_text())


@pytest.mark.parametrize("case", SPLITS)
def test_shards_are_llama_gguf_split_s(model: Path, tmp_path: Path, recorded: dict, case: str) -> None:
    split(model, tmp_path / "part", **SPLITS[case][1], sync=False)
    assert digests(tmp_path) == recorded["split"][case]


@pytest.mark.parametrize("case", SPLITS)
def test_merged_with_its_keys_as_llama_gguf_split_leaves_them(
    model: Path, tmp_path: Path, recorded: dict, case: str
) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "whole").mkdir()
    split(model, tmp_path / "parts" / "part", **SPLITS[case][1], sync=False)
    merge(first_of(tmp_path / "parts"), tmp_path / "whole" / "whole.gguf", keep_split_keys=True, sync=False)
    assert digests(tmp_path / "whole") == recorded["merge"][case]


def test_the_count_of_a_merged_file_stands_last(model: Path, tmp_path: Path, recorded: dict) -> None:
    """llama-quantize's shards have it in the middle."""
    for folder in ("parts", "kept", "whole"):
        (tmp_path / folder).mkdir()
    split(model, tmp_path / "parts" / "part", **SPLITS["tensors"][1], sync=False)
    requantize(first_of(tmp_path / "parts"), tmp_path / "kept" / "q.gguf", "Q4_K_M", keep_split=True, sync=False)
    merge(first_of(tmp_path / "kept"), tmp_path / "whole" / "whole.gguf", keep_split_keys=True, sync=False)
    assert digests(tmp_path / "whole") == recorded["merge"]["quantized"]


def test_a_file_that_is_no_shard_is_not_merged(model: Path, tmp_path: Path) -> None:
    with pytest.raises(GGUFError, match=r"no shard of a set"):
        merge(model, tmp_path / "out.gguf")


@pytest.mark.parametrize("case", QUANTIZED)
def test_files_are_llama_quantize_s(model: Path, tmp_path: Path, recorded: dict, case: str) -> None:
    shards, mix, _, options = QUANTIZED[case]
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    if shards is not None:
        split(model, tmp_path / "in" / "part", **SPLITS[shards][1], sync=False)
    source = model if shards is None else first_of(tmp_path / "in")
    report = requantize(source, tmp_path / "out" / "q.gguf", mix, **options, sync=False)
    assert digests(tmp_path / "out") == recorded["quantize"][case]
    assert [Path(p).name for p in report.paths] == list(recorded["quantize"][case])


def record(programs: Path) -> None:
    """Run llama.cpp's programs on the same model."""
    found: dict[str, dict[str, dict[str, str]]] = {"split": {}, "merge": {}, "quantize": {}}

    def run(*arguments: object) -> None:
        subprocess.run([str(a) for a in arguments], check=True, capture_output=True)

    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        model = make_model(top / "in.gguf")
        for case, (options, _) in SPLITS.items():
            for part in ("split", "merge"):
                (top / part / case).mkdir(parents=True)
            run(programs / "llama-gguf-split", *options, model, top / "split" / case / "part")
            merged = top / "merge" / case / "whole.gguf"
            run(programs / "llama-gguf-split", "--merge", first_of(top / "split" / case), merged)
        for case, (shards, mix, options, _) in QUANTIZED.items():
            (top / "quantize" / case).mkdir(parents=True)
            source = model if shards is None else first_of(top / "split" / shards)
            run(programs / "llama-quantize", *options, source, top / "quantize" / case / "q.gguf", mix, 2)
        (top / "merge" / "quantized").mkdir()
        shard = first_of(top / "quantize" / "shards kept")
        run(programs / "llama-gguf-split", "--merge", shard, top / "merge" / "quantized" / "whole.gguf")
        for part, cases in found.items():
            cases.update({case.name: digests(case) for case in sorted((top / part).iterdir())})
    RECORDED.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    record(Path(sys.argv[1]))
