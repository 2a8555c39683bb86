"""The worked example of docs/experts.md gives the right numbers, in memory that stays flat."""

from __future__ import annotations

import re
import tracemalloc
from pathlib import Path

import gguf_bytes as gb
import numpy as np
import pytest
from gguf_bytes import Array, File
from labelled import add

DOCS = Path(__file__).parents[2] / "docs"


def examples(page):
    path = DOCS / page
    if not path.exists():
        pytest.skip(f"docs/{page} is not here: not a source tree")
    return re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.S)


@pytest.fixture
def model(tmp_path, monkeypatch):
    """model.gguf in the working directory: two blocks of four small experts; and its values."""
    file, values = File().add("general.architecture", gb.STRING, b"llama"), {}
    file.add("llama.expert_count", gb.U32, 4).add("llama.expert_used_count", gb.U32, 2)
    file.add("tokenizer.ggml.tokens", gb.ARRAY, Array(gb.STRING, [b"a", b"b"]))
    values["token_embd.weight"] = add(file, "token_embd.weight", (32, 64), 8)
    for block in range(2):
        shapes = {"attn_k.weight": (16, 64), "ffn_gate_inp.weight": (4, 64), "ffn_gate_exps.weight": (4, 96, 64)}
        shapes |= {"ffn_up_exps.weight": (4, 96, 64), "ffn_down_exps.weight": (4, 64, 96)}
        for name, shape in shapes.items():
            values[f"blk.{block}.{name}"] = add(file, f"blk.{block}.{name}", shape, 0 if "inp" in name else 8)
    file.write(tmp_path / "model.gguf")
    monkeypatch.chdir(tmp_path)
    return values


def expected(values, block, x):
    """The mixture in plain numpy, from the whole decoded layer."""
    router, gate, up, down = (
        values[f"blk.{block}.ffn_{part}.weight"].astype(np.float64)
        for part in ("gate_inp", "gate_exps", "up_exps", "down_exps")
    )
    logits = router @ x
    first, second = sorted(range(4), key=lambda k: -logits[k])[:2]
    share = 1 / (1 + np.exp(logits[second] - logits[first]))
    total = 0
    for k, weight in ((first, share), (second, 1 - share)):
        hidden = gate[k] @ x
        total = total + weight * (down[k] @ (hidden / (1 + np.exp(-hidden)) * (up[k] @ x)))
    return total


def test_worked_example_is_right_and_flat(model):
    import ggufx

    names = {}
    for text in examples("experts.md"):
        exec(compile(text, "experts.md", "exec"), names)
    rng = np.random.default_rng(0)
    with ggufx.open("model.gguf") as f:
        block = names["Block"](f.moe[1], f.moe.top_k)
        tokens = (rng.standard_normal((40, 64)) / 100).astype(np.float32)
        for x in tokens:
            want = expected(model, 1, x)
            assert np.abs(block(x) - want).max() <= 1e-3 * np.abs(want).max()
        if ggufx.paths() == ("numpy",):
            return  # the numpy path makes arrays of its own as it goes
        tracemalloc.start()
        for x in tokens:
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            block(x)
            assert tracemalloc.get_traced_memory()[1] - before < 96 * 64 * 4, "nothing of an expert's size is made"
        tracemalloc.stop()
