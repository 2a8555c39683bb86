"""docs/packed.md: its examples run as they stand."""

import re
from pathlib import Path

import pytest
from gguf_bytes import File
from labelled import add

PAGE = Path(__file__).parents[2] / "docs" / "packed.md"

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="docs aren't beside the tests")


def test_examples_run(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch", reason="torch (extra `torch`) is not installed")
    file = File()
    table = add(file, "token_embd.weight", (32, 64), 8)
    up = add(file, "blk.0.ffn_up.weight", (96, 64), 8)
    file.write(tmp_path / "model.gguf")
    monkeypatch.chdir(tmp_path)
    names = {}
    text = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)[0]
    exec(compile(text, PAGE.name, "exec"), names)
    assert torch.equal(names["y"][0], torch.from_numpy(table[[1, 5, 7]] @ up.T))
