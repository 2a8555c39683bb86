"""The command lines of `gguf` with GGUFX_COMPAT set and unset, and ggufx's report on what is patched."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from compat_runs import run
from gguf_bytes import ARRAY, STRING, Array, File

import ggufx

gguf = pytest.importorskip("gguf")


SCRIPTS = "gguf.scripts.gguf_"


def test_processes_use_what_is_installed():
    done = run("-c", "import ggufx; print(ggufx.__file__, *ggufx.paths())")
    assert done.stdout.split() == [ggufx.__file__, *ggufx.paths()]


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("dump", ["little.gguf"]),
        ("dump", ["--json", "--json-array", "big.gguf"]),
        ("dump", ["--markdown", "fields.gguf"]),
        ("hash", ["little.gguf"]),
        ("new_metadata", ["aligned.gguf", "new.gguf", "--general-name", "New", "--force"]),
        ("set_metadata", ["--force", "little.gguf", "one 4", "7"]),
        ("convert_endian", ["aligned.gguf", "big"]),
        ("convert_endian", ["words.gguf", "big"]),
    ],
)
def test_scripts(good_files, tmp_path, script, arguments):
    """The command lines of gguf print and write the same."""
    seen = []
    words = File().add("general.architecture", STRING, b"llama").add("w", ARRAY, Array(STRING, [b"one", b"two"] * 20))
    for setting in ("0", "1"):
        folder = tmp_path / "same"
        shutil.copytree(good_files[0].parent, folder)
        words.write(folder / "words.gguf")
        code = (
            f"import os, runpy; os.chdir({str(folder)!r}); runpy.run_module({SCRIPTS + script!r}, run_name='__main__')"
        )
        done = run("-W", "ignore", "-c", f"import sys; sys.argv[1:] = {arguments!r}; {code}",
                   env={"GGUFX_COMPAT": setting, "TQDM_DISABLE": "1"}, text="YES\n")  # fmt: skip
        seen.append((done.returncode, done.stdout, done.stderr, {p.name: p.read_bytes() for p in folder.iterdir()}))
        shutil.rmtree(folder)
    assert seen[0][0] == 0, seen[0][2]
    assert seen[1] == seen[0]


@pytest.mark.parametrize("setting", ["0", "1"])
def test_command(setting):
    done = run("-m", "ggufx", "compat", env={"GGUFX_COMPAT": setting})
    assert done.returncode == 0, done.stderr
    assert "gguf           0.19.0" in done.stdout
    assert "compared with the originals: alike" in done.stdout
    hooked = (Path(ggufx.__file__).parent.parent / "ggufx_compat.pth").exists()
    assert (
        "gguf.gguf_reader, reader: " + ("patched" if setting == "1" and hooked else "would be patched")
    ) in done.stdout


def test_command_tells_differences(tmp_path):
    """What stays as it is because its results are others."""
    folder = shutil.copytree(
        Path(gguf.__file__).parent, tmp_path / "gguf", ignore=shutil.ignore_patterns("__pycache__")
    )
    source = (folder / "quants.py").read_text(encoding="utf-8")
    (folder / "quants.py").write_text(
        source.replace("np_roundf(blocks * id)", "np.rint(blocks * id)"), encoding="utf-8"
    )
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from ggufx import cli; sys.exit(cli.main(['compat']))"
    done = run("-c", code)
    assert done.returncode == 1, done.stderr
    assert "gguf.quants, quants: patched, except Q8_0's encoding, TQ1_0's encoding" in done.stdout
    assert "not all alike in gguf.quants, quants" in done.stdout
