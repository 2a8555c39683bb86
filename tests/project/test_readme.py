"""What README.md shows must run as it stands."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

import ggufx
from ggufx.cli import main
from ggufx.cli.sample import path_or_sample

README = Path(__file__).parents[2] / "README.md"


def blocks(language: str) -> list[str]:
    if not README.exists():
        pytest.skip("README.md is not here: not a source tree")
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(encoding="utf-8"), re.S)


@pytest.fixture
def in_a_checkout(tmp_path, monkeypatch):
    """A folder with ggufx/sample.gguf in it, as a clone has."""
    (tmp_path / "ggufx").mkdir()
    with path_or_sample(None) as sample:
        shutil.copy(sample, tmp_path / "ggufx" / "sample.gguf")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("in_a_checkout")
def test_python(capsys):
    for code in blocks("python"):
        names: dict[str, object] = {}
        exec(compile(code, "README.md", "exec"), names)
    assert capsys.readouterr().out.splitlines()[:2] == ["qwen2moe", "Q4_K (32, 256) 4608"]
    assert np.array_equal(names["values"], names["again"])


@pytest.mark.usefixtures("in_a_checkout")
def test_commands():
    commands = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("ggufx ")]
    assert commands
    for command in commands:
        assert main(shlex.split(command)[1:]) == 0, command


def test_paths_are_listed():
    listed = set(re.findall(r"^\| `(\w+)` \|", README.read_text(encoding="utf-8"), re.M))
    assert set(ggufx.paths()) <= listed
