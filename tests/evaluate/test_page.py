"""docs/evaluate.md: every command and example runs as it stands."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from ggufx.cli import main, sample

PAGE = Path(__file__).parents[2] / "docs" / "evaluate.md"


def blocks(language):
    if not PAGE.exists():
        pytest.skip("docs/evaluate.md is not here: not a source tree")
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    with sample.path_or_sample(None) as path:
        shutil.copyfile(path, tmp_path / "model.gguf")
    monkeypatch.chdir(tmp_path)


def test_commands(folder, capsys):
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    assert lines
    for line in lines:
        program, *arguments = shlex.split(line, comments=True)
        assert program == "ggufx"
        assert main(arguments) == 0, line
    assert capsys.readouterr().out


def test_examples(folder, capsys):
    names = {}
    for text in blocks("python"):
        exec(compile(text, "evaluate.md", "exec"), names)
    assert capsys.readouterr().out.splitlines()[:2] == ["True []", "True []"]
