"""What docs/writing.md and docs/models.md show must run as it stands."""

import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from ggufx import GGUFWarning, Writer
from ggufx.cli import main
from ggufx.imatrix import Entry, ImportanceMatrix

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page: str) -> list[tuple[str, str]]:
    path = DOCS / page
    if not path.exists():
        pytest.skip(f"docs/{page} is not here: not a source tree")
    return re.findall(r"```(python|sh)\n(.*?)```", path.read_text(encoding="utf-8"), re.S)


def run(page: str) -> None:
    names: dict[str, object] = {}
    ran = 0
    for language, code in blocks(page):
        if language == "python":
            exec(compile(code, page, "exec"), names)
            ran += 1
            continue
        for line in code.splitlines():
            assert main(shlex.split(line)[1:]) == 0, line
            ran += 1
    assert ran > 3


def test_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run("writing.md")
    assert Path("whole.gguf").read_bytes() == Path("new.gguf").read_bytes()


def test_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    names = ["output.weight", "token_embd.weight"]
    names += [
        f"blk.{n}.{part}.weight" for n in range(2) for part in ("attn_q", "attn_k", "attn_v", "ffn_up", "ffn_down")
    ]
    with Writer("model-f32.gguf") as w:
        w.set("general.architecture", "llama")
        for key in ("block_count", "attention.head_count", "attention.head_count_kv"):
            w.set(f"llama.{key}", 2)
        w.set("llama.embedding_length", 256)
        for name in names:
            w.add(name, rng.standard_normal((64, 256), dtype=np.float32))
    entries = {name: Entry(rng.random((1, 256)).astype(np.float32), np.array([512])) for name in names}
    ImportanceMatrix(entries, ["text"], 1).save("model.imatrix.gguf")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", GGUFWarning)
        run("models.md")


def test_modules_that_the_pages_name_are_there_at_once() -> None:
    """`import ggufx` is enough for what is called by its full name."""
    names = sorted(
        {
            name
            for page in DOCS.glob("*.md")
            for name in re.findall(r"`(ggufx\.[a-z_]+(?:\.\w+)?)", page.read_text("utf-8"))
        }
    )
    assert "ggufx.edit.edit" in names
    code = "import sys, ggufx\nfor name in sys.argv[1:]:\n    eval(name)"
    names = [n for n in names if not n.startswith(("ggufx.torch", "ggufx.integrations", "ggufx.compat", "ggufx.bench"))]
    subprocess.run([sys.executable, "-c", code, *names], cwd="/", check=True, timeout=60)
    for module in ("edit", "splitting"):
        code = f"import ggufx, types; assert isinstance(ggufx.{module}, types.ModuleType), ggufx.{module}"
        subprocess.run([sys.executable, "-c", code], cwd="/", check=True, timeout=60)
