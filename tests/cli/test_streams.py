"""Every command without a standard error or output: closed by the shell, absent as under pythonw, or full."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ggufx
from ggufx import Writer
from ggufx.cli import main
from ggufx.cli.terminal import some_streams

COMMANDS = {
    "info": ["info", "model.gguf"],
    "decode": ["decode", "model.gguf", "-o", "out.npz"],
    "decode to safetensors": ["decode", "model.gguf", "-o", "out.safetensors"],
    "quantize": ["quantize", "model.gguf", "out.gguf", "Q8_0"],
    "plan": ["plan", "model.gguf"],
    "validate": ["validate", "model.gguf"],
    "compare": ["compare", "model.gguf", "model.gguf"],
    "edit": ["edit", "model.gguf", "-o", "out.gguf", "--set", "general.name=x"],
    "split": ["split", "model.gguf", "out", "--max-tensors", "2"],
    "endian": ["endian", "model.gguf", "out.gguf", "big"],
    "sample": ["sample", "out.gguf"],
    "version": ["--version"],
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    with Writer(path, sync=False) as w:
        w.set("general.architecture", "llama")
        w.set("llama.block_count", 1)
        for part in ("attn_q", "attn_k", "ffn_up"):
            # One value overflows the half scale of its block in every type, of which quantize warns.
            w.add(f"blk.0.{part}.weight", np.full((8, 256), 1e8, np.float32))
    return tmp_path


def made(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.name != "model.gguf"}


@pytest.mark.parametrize("name", COMMANDS)
def test_without_streams(model, monkeypatch, capfd, name):
    """The files are the same, and the exit code."""
    monkeypatch.chdir(model)
    code = main(COMMANDS[name])
    want = made(model)
    for path in want:
        os.unlink(path)
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    assert main(COMMANDS[name]) == code == 0
    assert sys.stdout is None
    assert sys.stderr is None
    assert made(model) == want


@pytest.mark.skipif(os.name != "posix", reason="needs a POSIX shell")
@pytest.mark.parametrize("closed", ["2>&-", ">&- 2>&-", "<&- >&- 2>&-", "2>/dev/full"])
@pytest.mark.parametrize("name", ["decode", "quantize", "split", "endian"])
def test_streams_closed_by_the_shell(model, name, closed):
    if "full" in closed and not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    words = [sys.executable, "-m", "ggufx", *COMMANDS[name]]
    done = subprocess.run(["sh", "-c", f'"$@" {closed}', "sh", *words], cwd=model, capture_output=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert made(model)
    for path in model.glob("out*.gguf"):
        with ggufx.open(path) as f:
            assert f


def test_errors_keep_their_exit_code(model, monkeypatch):
    monkeypatch.chdir(model)
    monkeypatch.setattr(sys, "stderr", None)
    assert main(["info", "absent/x.gguf"]) == 1
    with pytest.raises(SystemExit) as stop:
        main(["quantize"])
    assert stop.value.code == 2


def test_descriptors_are_taken(monkeypatch):
    """No file of ours becomes number 2, where what other code complains of would go."""
    code = (
        "import os, sys; os.close(2); from ggufx.cli.terminal import some_streams\n"
        "with some_streams():\n"
        "    fd = os.open(os.devnull, os.O_RDONLY); print(fd > 2); os.close(fd)\n"
        "print(os.open(os.devnull, os.O_RDONLY))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.stdout == "True\n2\n"


def test_streams_that_are_there_stay():
    before = sys.stdout, sys.stderr
    with some_streams():
        assert (sys.stdout, sys.stderr) == before
