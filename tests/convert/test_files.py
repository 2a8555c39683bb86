"""Whole files against llama.cpp's converter: the sha256 of what it wrote for the same checkpoints."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest

import ggufx
from ggufx.cli import main

VECTORS = Path(__file__).parent.parent / "vectors" / "convert"
MODELS = sorted(path.name for path in VECTORS.iterdir())


def record(model: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((VECTORS / model / "record.json").read_text())
    return found


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "q8_0", "auto"])
@pytest.mark.parametrize("model", MODELS)
def test_whole_files(model: str, kind: str, tmp_path: Path) -> None:
    expected, out = record(model), tmp_path / "out.gguf"
    done = ggufx.convert(VECTORS / model, out, kind, pre=expected["pre"], sync=False)
    assert digest(out) == expected["file"][kind]
    assert done.paths == (str(out),)
    assert done.tensors == len(expected["tensors"])


def test_threads_do_not_change_the_file(tmp_path: Path) -> None:
    for threads in (1, 2, 5):
        ggufx.convert(VECTORS / "tiny-mixtral", tmp_path / f"{threads}.gguf", "q8_0", threads=threads, sync=False)
    assert digest(tmp_path / "1.gguf") == digest(tmp_path / "2.gguf") == digest(tmp_path / "5.gguf")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, folder = tmp_path / "out.gguf", VECTORS / "tiny-lfm2"
    assert main(["convert", str(folder), str(out), "--type", "q8_0", "--pre", "lfm2", "--no-progress"]) == 0
    assert digest(out) == record("tiny-lfm2")["file"]["q8_0"]
    assert "lfm2, Q8_0, 21 tensors" in capsys.readouterr().out


def test_the_command_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, folder = tmp_path / "out.gguf", VECTORS / "tiny-lfm2"
    assert main(["convert", str(folder), str(out)]) == 1
    assert "pre-tokenizer isn't known" in capsys.readouterr().err
    assert main(["convert", str(folder), str(out), "--pre", "nobodys"]) == 1
    assert "'nobodys' isn't known" in capsys.readouterr().err
    assert main(["convert", str(folder), str(out), "--pre", "lfm2", "--type", "q9"]) == 2
    assert not out.exists()
    assert not list(tmp_path.iterdir())


def test_an_interrupted_conversion_leaves_nothing(tmp_path: Path) -> None:
    def stop(name: str, done: int, total: int) -> None:
        if done * 2 > total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ggufx.convert(VECTORS / "tiny-mixtral", tmp_path / "out.gguf", "f16", progress=stop)
    assert not list(tmp_path.iterdir())


def test_progress_ends_at_the_total(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    done = ggufx.convert(
        VECTORS / "tiny-mixtral", tmp_path / "o", "f16", progress=lambda name, n, total: seen.append((n, total))
    )
    assert seen[-1] == (done.nbytes, done.nbytes)


def test_the_folders_name_is_the_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "some-thing-7B-v2"
    shutil.copytree(VECTORS / "tiny-lfm2", folder)
    monkeypatch.chdir(folder)
    ggufx.convert(".", "../out.gguf", "f16", pre="lfm2", sync=False)
    with ggufx.open(tmp_path / "out.gguf") as f:
        assert f.metadata["general.name"] == "Some Thing 7B v2"


RECORDS = Path(os.environ.get("GGUFX_CONVERT_RECORDS", "nowhere"))


@pytest.mark.skipif(not RECORDS.is_dir(), reason="GGUFX_CONVERT_RECORDS names no folder of records")
@pytest.mark.parametrize("path", sorted(RECORDS.glob("models/tiny-*.json")), ids=lambda path: path.stem)
def test_all_records(path: Path, tmp_path: Path) -> None:
    expected, folder = json.loads(path.read_text()), RECORDS / "ckpt" / path.stem
    if not folder.is_dir():
        pytest.skip("its checkpoint isn't there")
    for kind in expected["outtypes"]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ggufx.GGUFWarning)
            ggufx.convert(folder, tmp_path / "out.gguf", kind, pre=expected["pre"], sync=False)
        assert digest(tmp_path / "out.gguf") == expected["file"][kind]["sha256"], kind
