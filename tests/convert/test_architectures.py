"""Whole files of every architecture: the sha256 of what llama.cpp's converter made of the same checkpoints."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from pathlib import Path

import pytest
from tiny_checkpoints import checkpoint, vectors

import ggufx
from ggufx.convert.architectures import ARCHITECTURES

CHECKPOINTS = vectors()["checkpoints"]
REFUSED = {name: entry["refused"] for name, entry in CHECKPOINTS.items() if "refused" in entry}


@pytest.mark.parametrize("model", sorted(set(CHECKPOINTS) - set(REFUSED)))
@pytest.mark.parametrize("slab", [1 << 20, 1 << 8])
def test_whole_files(model: str, slab: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ggufx.convert.encoding.SLAB", slab)  # whole tensors, and many parts of each
    entry, folder = CHECKPOINTS[model], checkpoint(model, tmp_path)
    for kind, wanted in entry["sha256"].items():
        out = tmp_path / f"{kind}.gguf"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ggufx.GGUFWarning)  # auto of a float32 checkpoint
            ggufx.convert(folder, out, kind, pre=entry.get("pre"), sync=False)
        assert hashlib.sha256(out.read_bytes()).hexdigest() == wanted, kind


def test_every_class_has_its_vector() -> None:
    """A class that no file proves would be a guess."""
    proved = {entry["config"]["architectures"][0] for name, entry in CHECKPOINTS.items() if name not in REFUSED}
    # Other names of the same classes, which the reference registers together.
    same = {"LLaMAForCausalLM", "LFM2ForCausalLM", "BloomModel", "MambaLMHeadModel", "T5WithLMHeadModel"}
    same |= {"PhimoeForCausalLM", "Ernie4_5_ForCausalLM", "BitNetForCausalLM", "HunYuanDenseV1ForCausalLM"}
    assert {name for row in ARCHITECTURES for name in row.classes} - proved <= same


RECORDS = Path(os.environ.get("GGUFX_CONVERT_RECORDS", "nowhere"))


@pytest.mark.skipif(not RECORDS.is_dir(), reason="GGUFX_CONVERT_RECORDS names no folder of records")
@pytest.mark.parametrize("path", sorted(RECORDS.glob("models/tiny-*.json")), ids=lambda path: path.stem)
def test_all_records(path: Path, tmp_path: Path) -> None:
    expected, folder = json.loads(path.read_text(encoding="utf-8")), RECORDS / "ckpt" / path.stem
    if not folder.is_dir():
        pytest.skip("its checkpoint isn't there")
    for kind in expected["outtypes"]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ggufx.GGUFWarning)
            ggufx.convert(folder, tmp_path / "out.gguf", kind, pre=expected["pre"], sync=False)
        digest = hashlib.sha256((tmp_path / "out.gguf").read_bytes()).hexdigest()
        assert digest == expected["file"][kind]["sha256"], kind
