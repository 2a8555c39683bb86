"""Whatever goes wrong while writing: old files stay as they were, new ones are whole, nothing is left behind."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ggufx
from ggufx.cli import main
from ggufx.edit import edit
from ggufx.splitting import split
from ggufx.write import outfile
from ggufx.write.outfile import OutputFile
from ggufx.write.writer import Writer

OLD = b"what was there before"


def write_model(path: Path, *, progress: object = None, split: int | None = None) -> list[str]:
    with Writer(path, progress=progress, split_max_tensors=split) as w:
        w.set("general.architecture", "llama")
        w.set("tokenizer.ggml.tokens", [f"token {n}" for n in range(1000)])
        for n in range(6):
            w.add(f"t{n}", np.full(5001, n, np.float32))
        return w.close()


def listing(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir())}


@pytest.fixture
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("whole")
    write_model(folder / "m.gguf")
    return listing(folder)


CHILD = """
import os, signal, sys
sys.path.insert(0, {tests!r})
import test_outfile as t
from ggufx.write import outfile
path, stage, split = sys.argv[1], sys.argv[2], int(sys.argv[3]) or None
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
if stage.startswith("piece"):
    t.write_model(path, progress=lambda name, done, total: die() if name == "t" + stage[5:] else None, split=split)
else:
    setattr(outfile.OutputFile, stage, die)
    t.write_model(path, split=split)
"""


@pytest.mark.parametrize("stage", ["write", "pad", "piece0", "piece3", "piece5", "finish", "publish"])
@pytest.mark.parametrize("split", [0, 2])
def test_killed_at_every_stage(tmp_path: Path, whole: dict[str, bytes], stage: str, split: int) -> None:
    target = tmp_path / "m.gguf"
    names = [f"m-{n + 1:05d}-of-00003.gguf" for n in range(3)] if split else ["m.gguf"]
    for name in names:
        (tmp_path / name).write_bytes(OLD)
    code = CHILD.format(tests=str(Path(__file__).parent))
    child = subprocess.run([sys.executable, "-c", code, str(target), stage, str(split)], cwd="/", timeout=60)
    assert child.returncode == -signal.SIGKILL
    after = listing(tmp_path)
    assert all(after[name] == OLD for name in names)
    write_model(target, split=split or None)  # the next writer takes over what the killed one left
    assert sorted(p.name for p in tmp_path.iterdir()) == names
    if not split:
        assert listing(tmp_path) == whole


@pytest.mark.parametrize("call", range(1, 14, 3))
@pytest.mark.parametrize("existing", [False, True])
def test_a_full_disk_at_every_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int, existing: bool) -> None:
    if existing:
        (tmp_path / "m.gguf").write_bytes(OLD)
    before = listing(tmp_path)
    real, calls = os.write, [0]

    def write(fd: int, data: object) -> int:
        calls[0] += 1
        if calls[0] == call:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data)

    monkeypatch.setattr("ggufx.write.outfile.os.write", write)
    with pytest.raises(OSError, match="No space left"):
        write_model(tmp_path / "m.gguf")
    assert listing(tmp_path) == before


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: dict[str, bytes]) -> None:
    real = os.write
    monkeypatch.setattr("ggufx.write.outfile.os.write", lambda fd, data: real(fd, data[:777]))
    write_model(tmp_path / "m.gguf")
    assert listing(tmp_path) == whole


@pytest.mark.parametrize("limit", [1, 5000, 40_000, 100_000])
def test_a_file_size_limit(tmp_path: Path, limit: int) -> None:
    (tmp_path / "m.gguf").write_bytes(OLD)
    code = f"""
import resource, signal, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import test_outfile as t
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
try:
    t.write_model(sys.argv[1])
except OSError as error:
    sys.exit(error.errno)
"""
    child = subprocess.run([sys.executable, "-c", code, str(tmp_path / "m.gguf")], cwd="/", timeout=60)
    assert child.returncode == errno.EFBIG
    assert listing(tmp_path) == {"m.gguf": OLD}


@pytest.fixture
def small_disk(tmp_path: Path) -> Path:
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)], capture_output=True)
    if mount.returncode:
        pytest.skip("mounting a small tmpfs needs root")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_disk_that_fills_up_while_decoding(small_disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("m.safetensors", "m.npz"):
        assert main(["decode", "-o", str(small_disk / name)]) == 1
        assert f"{name}: No space left on device" in capsys.readouterr().err
    assert listing(small_disk) == {}


def test_a_disk_that_is_really_full(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (small_disk / "m.gguf").write_bytes(OLD)
    with pytest.raises(OSError, match=r"bytes are needed and \d+ are free"):
        write_model(small_disk / "m.gguf")
    monkeypatch.setattr("ggufx.write.stream.check_free_space", lambda *_: None)
    with pytest.raises(OSError, match=r"No space left.*m\.gguf"):
        write_model(small_disk / "m.gguf")
    writer = ggufx.GGUFWriter(small_disk / "m.gguf", "llama")
    writer.add_tensor("t", np.zeros(50_000, np.float32))
    monkeypatch.setattr("ggufx.gguf_names.writer.check_free_space", lambda *_: None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    with pytest.raises(OSError, match=r"No space left.*m\.gguf"):
        writer.write_tensors_to_file()
    with pytest.raises(ggufx.GGUFError, match="weren't written"):
        writer.close()
    assert listing(small_disk) == {"m.gguf": OLD}


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("split", [None, 2])
def test_an_interruption(tmp_path: Path, error: type[BaseException], split: int | None) -> None:
    def progress(name: str, done: int, total: int) -> None:
        if name == "t4":
            raise error

    with pytest.raises(error):
        write_model(tmp_path / "m.gguf", progress=progress, split=split)
    assert listing(tmp_path) == {}


def test_an_error_before_writing_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError), Writer(tmp_path / "m.gguf") as w:
        w.set("a", None)
    assert listing(tmp_path) == {}


def test_a_wrong_size_is_noticed_before_the_file_appears(tmp_path: Path) -> None:
    out = OutputFile(tmp_path / "m.gguf")
    out.write(b"abc")
    with pytest.raises(OSError, match="3 bytes were written, 4 were planned"):
        out.finish(4)
    out.discard()
    assert listing(tmp_path) == {}


@pytest.mark.parametrize("link", ["same", "hard", "symbolic"])
def test_never_over_an_input(tmp_path: Path, link: str) -> None:
    source, target = tmp_path / "in.gguf", tmp_path / "out.gguf"
    write_model(source)
    before = source.read_bytes()
    if link == "same":
        target = source
    elif link == "hard":
        os.link(source, target)
    else:
        target.symlink_to(source)
    with pytest.raises(ValueError, match="output is the input"), Writer(target, inputs=[source]) as w:
        w.set("a", 1)
    assert source.read_bytes() == before


PRECIOUS = b"what nobody may touch"


@pytest.mark.parametrize("kind", ["symbolic", "dangling", "hard", "folder", "pipe"])
@pytest.mark.parametrize("call", ["Writer", "GGUFWriter", "imatrix"])
def test_what_is_not_ours_under_the_hidden_name_is_left_alone(tmp_path: Path, kind: str, call: str) -> None:
    victim, hidden = tmp_path / "victim", tmp_path / ".m.gguf.partial"
    victim.write_bytes(PRECIOUS)
    if kind == "symbolic":
        hidden.symlink_to(victim)
    elif kind == "dangling":
        hidden.symlink_to(tmp_path / "nothing")
    elif kind == "hard":
        os.link(victim, hidden)
    elif kind == "folder":
        hidden.mkdir()
    else:
        os.mkfifo(hidden)
    names = sorted(os.listdir(tmp_path))
    write = {
        "Writer": write_model,
        "GGUFWriter": lambda path: ggufx.GGUFWriter(path, "llama").write_header_to_file(),
        "imatrix": ggufx.imatrix.ImportanceMatrix({}, [], 1).save,
    }[call]
    with pytest.raises(OSError, match="remove it to go on"):
        write(tmp_path / "m.gguf")
    assert victim.read_bytes() == PRECIOUS
    assert sorted(os.listdir(tmp_path)) == names


@pytest.mark.parametrize("kind", ["itself", "symbolic", "hard"])
@pytest.mark.parametrize("command", ["endian", "decode", "quantize", "merge", "split", "edit"])
def test_the_hidden_file_is_no_input(tmp_path: Path, kind: str, command: str) -> None:
    """An input may have the hidden name, or be linked from it; links to other files are refused as such."""
    source = tmp_path / "in.gguf"
    target = tmp_path / ("out.safetensors" if command == "decode" else "out.gguf")
    made = tmp_path / "out-00001-of-00001.gguf" if command == "split" else target
    hidden = tmp_path / f".{made.name}.partial"
    if command == "merge":
        split(Path(ggufx.__file__).with_name("sample.gguf"), tmp_path / "in", max_bytes=1 << 30)
        source = tmp_path / "in-00001-of-00001.gguf"
    else:
        shutil.copy(Path(ggufx.__file__).with_name("sample.gguf"), source)
    if kind == "itself" and command != "merge":
        source = source.rename(hidden)
    elif kind == "symbolic":
        hidden.symlink_to(source)
    else:
        os.link(source, hidden)
    before = source.read_bytes()
    arguments = {
        "endian": ["endian", source, target, "big"],
        "decode": ["decode", source, "-o", target],
        "quantize": ["quantize", source, target, "COPY"],
        "merge": ["merge", source, target],
        "split": ["split", source, tmp_path / "out", "--max-tensors", "1000"],
        "edit": ["edit", source, "--set", "a=1", "-o", target],
    }[command]
    assert main([str(a) for a in arguments]) != 0
    assert source.read_bytes() == before
    assert not made.exists()


def test_a_leftover_is_replaced_not_written_into(tmp_path: Path, whole: dict[str, bytes]) -> None:
    """Whoever still has the leftover open or mapped keeps its bytes."""
    hidden = tmp_path / ".m.gguf.partial"
    hidden.write_bytes(PRECIOUS)
    with hidden.open("rb") as held:
        write_model(tmp_path / "m.gguf")
        assert held.read() == PRECIOUS
    assert listing(tmp_path) == whole


def test_only_the_file_that_was_written_is_published(tmp_path: Path) -> None:
    out = OutputFile(tmp_path / "m.gguf")
    out.write(b"abc")
    out.finish(3)
    os.unlink(out.partial)
    Path(out.partial).write_bytes(PRECIOUS)
    with pytest.raises(OSError, match="another file has been put in place"):
        out.publish()
    out.discard()
    assert listing(tmp_path) == {".m.gguf.partial": PRECIOUS}


def test_errors_of_writing_name_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    out = OutputFile(tmp_path / "m.gguf")
    monkeypatch.setattr("ggufx.write.outfile.os.write", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*m\.gguf'"):
        out.write(b"abc")
    monkeypatch.undo()
    monkeypatch.setattr("ggufx.write.outfile.os.fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*m\.gguf'"):
        out.finish(0)
    out.discard()


def test_a_symbolic_link_stays_one(tmp_path: Path, whole: dict[str, bytes]) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link.gguf").symlink_to(tmp_path / "real" / "m.gguf")
    write_model(tmp_path / "link.gguf")
    assert (tmp_path / "link.gguf").is_symlink()
    assert listing(tmp_path / "real") == whole


def test_two_writers_do_not_mix(tmp_path: Path, whole: dict[str, bytes]) -> None:
    first = OutputFile(tmp_path / "m.gguf")
    with pytest.raises(OSError, match="another process is writing"):
        write_model(tmp_path / "m.gguf")
    first.discard()
    write_model(tmp_path / "m.gguf")
    assert listing(tmp_path) == whole


def test_a_longer_leftover_is_cut(tmp_path: Path, whole: dict[str, bytes]) -> None:
    (tmp_path / ".m.gguf.partial").write_bytes(bytes(1 << 20))
    write_model(tmp_path / "m.gguf")
    assert listing(tmp_path) == whole


def test_a_file_renamed_while_waiting_for_its_lock_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: dict[str, bytes]
) -> None:
    """The lock may come when the other writer has just finished: its file must not be written into."""
    done = tmp_path / "done.gguf"
    real = outfile.fcntl.flock

    def flock(fd: int, operation: int) -> None:
        if not done.exists():
            os.rename(tmp_path / ".m.gguf.partial", done)
        real(fd, operation)

    monkeypatch.setattr("ggufx.write.outfile.fcntl.flock", flock)
    write_model(tmp_path / "m.gguf")
    assert listing(tmp_path) == {"done.gguf": b"", **whole}


def test_a_file_system_whose_numbers_change_is_no_endless_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("ggufx.write.outfile.os.path.samestat", lambda a, b: False)
        with pytest.raises(OSError, match="another process is writing"):
            write_model(tmp_path / "m.gguf")
    write_model(tmp_path / "m.gguf")
    assert list(listing(tmp_path)) == ["m.gguf"]


def test_without_file_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: dict[str, bytes]) -> None:
    monkeypatch.setattr("ggufx.write.outfile.fcntl", None)
    (tmp_path / ".m.gguf.partial").write_bytes(OLD)
    write_model(tmp_path / "m.gguf")
    assert listing(tmp_path) == whole
    assert edit(tmp_path / "m.gguf", set={"general.architecture": "LLAMA"}).in_place
    assert not edit(tmp_path / "m.gguf", set={"general.architecture": "L" * 100}).in_place
    assert list(listing(tmp_path)) == ["m.gguf"]


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    for target in (tmp_path, Path("/dev/null")):
        with pytest.raises(OSError, match="no regular file"):
            write_model(target)
    with pytest.raises(FileNotFoundError):
        write_model(tmp_path / "missing" / "m.gguf")


def test_the_mode_of_a_replaced_file_stays(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(OLD)
    (tmp_path / "m.gguf").chmod(0o640)
    write_model(tmp_path / "m.gguf")
    assert (tmp_path / "m.gguf").stat().st_mode & 0o777 == 0o640


def test_memory_stays_at_about_one_tensor(tmp_path: Path) -> None:
    """40 tensors of 8 MB stream through a process that may not grow by 100 MB."""
    code = """
import resource, sys
import numpy as np
from ggufx.write.writer import Writer
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with Writer(sys.argv[1], sync=False) as w:
    for n in range(40):
        w.add(f"t{n}", lambda: np.ones(2_000_000, np.float32), shape=(2_000_000,), qtype="f32")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    child = subprocess.run([sys.executable, "-c", code, str(tmp_path / "m.gguf")], capture_output=True, cwd="/")
    assert child.returncode == 0, child.stderr
    assert int(child.stdout) < 40_000
    assert (tmp_path / "m.gguf").stat().st_size > 40 * 8_000_000
