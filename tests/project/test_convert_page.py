"""docs/convert.md: what it shows runs, and the architectures it lists are those there are."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from tiny_checkpoints import adapter, checkpoint

from ggufx.cli import main
from ggufx.convert.architectures import ARCHITECTURES

PAGE = Path(__file__).parents[2] / "docs" / "convert.md"


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The page's text, with a small model in the place of the one it names."""
    if not PAGE.exists():
        pytest.skip("docs/convert.md is not here: not a source tree")
    checkpoint("tiny-mixtral", tmp_path).rename(tmp_path / "Qwen3-0.6B")
    adapter(tmp_path / "my-lora")
    monkeypatch.chdir(tmp_path)
    return PAGE.read_text(encoding="utf-8")


def test_commands(page: str) -> None:
    commands = [line for block in re.findall(r"```sh\n(.*?)```", page, re.S) for line in block.splitlines()]
    assert len(commands) >= 3
    for command in commands:
        assert main(shlex.split(command, comments=True)[1:]) == 0, command


def test_python(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    for code in re.findall(r"```python\n(.*?)```", page, re.S):
        exec(compile(code, "convert.md", "exec"), {})
    assert capsys.readouterr().out.startswith("llama ")


def test_architectures(page: str) -> None:
    listed = re.findall(r"^\| `([\w-]+)` \| (.+) \|$", page, re.M)
    assert listed == [(row.name, ", ".join(row.classes)) for row in ARCHITECTURES]
