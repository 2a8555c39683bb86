"""What appears on the disk, and when: threads, interruptions, progress, names, and the command."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest
from tiny_checkpoints import checkpoint, vectors

import ggufx
from ggufx.cli import main


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def mixtral(tmp_path: Path) -> Path:
    return checkpoint("tiny-mixtral", tmp_path / "in")


@pytest.fixture
def lfm2(tmp_path: Path) -> Path:
    return checkpoint("tiny-lfm2", tmp_path / "in")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "out.gguf"


def test_threads_do_not_change_the_file(mixtral: Path, tmp_path: Path) -> None:
    for threads in (1, 2, 5):
        ggufx.convert(mixtral, tmp_path / f"{threads}.gguf", "q8_0", threads=threads, sync=False)
    assert digest(tmp_path / "1.gguf") == digest(tmp_path / "2.gguf") == digest(tmp_path / "5.gguf")


def test_the_command(lfm2: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", str(lfm2), str(out), "--type", "q8_0", "--pre", "lfm2", "--no-progress"]) == 0
    assert digest(out) == vectors()["checkpoints"]["tiny-lfm2"]["sha256"]["q8_0"]
    assert "lfm2, Q8_0, 21 tensors" in capsys.readouterr().out


def test_the_command_refuses(lfm2: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", str(lfm2), str(out)]) == 1
    assert "pre-tokenizer isn't known" in capsys.readouterr().err
    assert main(["convert", str(lfm2), str(out), "--pre", "nobodys"]) == 1
    assert "'nobodys' isn't known" in capsys.readouterr().err
    assert main(["convert", str(lfm2), str(out), "--pre", "lfm2", "--type", "q9"]) == 2
    assert not list(out.parent.iterdir())


def test_an_interrupted_conversion_leaves_nothing(mixtral: Path, out: Path) -> None:
    def stop(name: str, done: int, total: int) -> None:
        if done * 2 > total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ggufx.convert(mixtral, out, "f16", progress=stop)
    assert not list(out.parent.iterdir())


def test_progress_ends_at_the_total(mixtral: Path, out: Path) -> None:
    seen: list[tuple[int, int]] = []
    done = ggufx.convert(mixtral, out, "f16", progress=lambda name, n, total: seen.append((n, total)))
    assert seen[-1] == (done.nbytes, done.nbytes)


def test_the_folders_name_is_the_models(lfm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "some-thing-7B-v2"
    shutil.copytree(lfm2, folder)
    monkeypatch.chdir(folder)
    ggufx.convert(".", "../out.gguf", "f16", pre="lfm2", sync=False)
    with ggufx.open(tmp_path / "out.gguf") as f:
        assert f.metadata["general.name"] == "Some Thing 7B v2"
