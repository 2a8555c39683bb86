"""Every page of docs/ from top to bottom in an empty folder, as a reader would: commands in a shell, Python as it is.

Blocks marked ``no-run`` need what a test can't have (a remote store, other array libraries).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tiny_checkpoints import adapter, checkpoint

import ggufx
from ggufx import GGUFWarning
from ggufx.cli.sample import path_or_sample
from ggufx.imatrix import Entry, ImportanceMatrix

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(path.name for path in DOCS.glob("*.md") if path.name != "api.md")  # a list of names alone
# Packages and programs that a page is about.
NEEDS = {
    "arrays.md": ["torch"],
    "packed.md": ["torch"],
    "drop-in.md": ["gguf", "gguf-dump"],
    "convert.md": ["tokenizers"],
}


def blocks(page: str) -> list[tuple[str, str]]:
    return re.findall(r"^```(python|sh)\n(.*?)^```$", (DOCS / page).read_text(encoding="utf-8"), re.S | re.M)


def importance_of_the_sample() -> None:
    """What the page says comes from llama-imatrix."""
    rng = np.random.default_rng(0)
    entries = {}
    with path_or_sample(None) as path, ggufx.open(path) as f:
        for t in f.tensors.values():
            if t.ndim > 1:
                experts = t.shape[0] if t.ndim > 2 else 1
                sums = rng.random((experts, t.shape[-1])).astype(np.float32)
                entries[t.name] = Entry(sums, np.full(experts, 512))
    ImportanceMatrix(entries, ["text"], 1).save("model.imatrix.gguf")


def checkpoints() -> None:
    checkpoint("tiny-mixtral", Path()).rename("Qwen3-0.6B")
    adapter(Path("my-lora"))


# What a page says where to get.
GET = {
    "convert.md": checkpoints,
    "models.md": importance_of_the_sample,
}


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A shell that knows `ggufx` and the programs of this environment, in an empty folder."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    programs, folder = tmp_path / "bin", tmp_path / "empty"
    programs.mkdir()
    folder.mkdir()
    (programs / "ggufx").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ggufx "$@"\n')
    (programs / "ggufx").chmod(0o755)
    path = os.pathsep.join([str(programs), os.path.dirname(sys.executable), os.environ.get("PATH", "")])
    monkeypatch.setenv("PATH", path)
    monkeypatch.setenv("PYTHONPATH", str(Path(ggufx.__file__).parents[1]))
    monkeypatch.chdir(folder)
    yield bash
    if compat := sys.modules.get("ggufx.compat"):
        compat.uninstall()


@pytest.mark.parametrize("page", PAGES)
def test_page(page: str, shell: str) -> None:
    for name in NEEDS.get(page, ()):
        if shutil.which(name) is None:
            pytest.importorskip(name.replace("-", "_"), reason=f"{name} is not installed")
    if page in GET:
        GET[page]()
    found = blocks(page)
    assert found
    names: dict[str, object] = {}
    for language, code in found:
        if language == "python":
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                warnings.simplefilter("ignore", GGUFWarning)
                exec(compile(code, page, "exec"), names)
            continue
        run = subprocess.run([shell, "-ec", code], capture_output=True, text=True, timeout=300)
        assert run.returncode == 0, f"{code}\n{run.stderr}"


def test_writing_page_gives_the_file_back(shell: str) -> None:
    test_page("writing.md", shell)
    assert Path("whole.gguf").read_bytes() == Path("new.gguf").read_bytes()
