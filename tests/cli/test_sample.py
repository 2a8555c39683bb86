"""The sample model that ships with the package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from oracle import INTEGER_TYPES

import ggufx
from ggufx import QType
from ggufx.cli.sample import path_or_sample
from ggufx.read.metadata import ValueType

SCRIPT = Path(__file__).parents[2] / "tools" / "make_sample.py"


@pytest.fixture
def f():
    with path_or_sample(None) as path, ggufx.open(path) as opened:
        yield opened


def test_script_generates_the_shipped_file():
    if not SCRIPT.exists():
        pytest.skip("tools/make_sample.py is not here: not a source tree")
    run = subprocess.run([sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    with path_or_sample(None) as path:
        assert path.read_bytes() == (SCRIPT.parent.parent / "ggufx" / "sample.gguf").read_bytes()


def test_small_and_complete(f):
    assert Path(f.path).stat().st_size < 300_000
    assert {t.qtype for t in f.tensors.values()} == set(QType)
    kinds = {kind.type for kind in f.metadata.types.values()} | {kind.item for kind in f.metadata.types.values()}
    assert kinds >= set(ValueType)


def test_experts_are_stacked(f):
    stacks = [t for t in f.tensors.values() if "_exps" in t.name]
    assert len(stacks) == 6
    assert all(t.shape[0] == f.metadata["qwen2moe.expert_count"] for t in stacks)


def test_values_look_like_weights(f):
    for t in f.tensors.values():
        if t.qtype in INTEGER_TYPES or "norm" in t.name or "rope" in t.name:
            continue
        values = t.dequantize()
        assert np.isfinite(values).all(), t.name
        assert 0.01 < values.std() < 0.05, t.name


def test_gguf_package_reads_its_header(f):
    """All but the types the package doesn't know (or, for Q8_1, sizes differently)."""
    gguf = pytest.importorskip("gguf", reason="the gguf package is not installed")
    with pytest.raises(ValueError, match="not a valid GGMLQuantizationType"):
        gguf.GGUFReader(f.path)
