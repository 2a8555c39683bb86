"""mode="auto", and what becomes of a file that is shortened while it is open."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import gguf_bytes as gb
import pytest
from gguf_bytes import File
from labelled import add

import ggufx
from ggufx.read import filesystems

MOUNTS = """\
22 1 252:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
23 22 0:5 / /proc rw - proc proc rw
30 22 0:40 / /mnt/nas rw,relatime - nfs4 server:/export rw,vers=4.2
31 30 252:2 / /mnt/nas/disk rw - xfs /dev/vdb rw
32 22 0:41 / /mnt/two\\040words rw - fuse.sshfs me@host: rw
33 22 0:42 / /mnt/usb rw - fuseblk /dev/sdb1 rw
34 22 0:43 / /mnt/over rw - nfs server:/a rw
35 34 252:3 / /mnt/over rw - ext4 /dev/vdc rw
broken line
36 22 0:44 / /mnt/share rw - cifs //server/share rw
"""


@pytest.mark.parametrize(
    ("path", "shared"),
    [
        ("/home/me/model.gguf", False),
        ("/mnt/nas/model.gguf", True),
        ("/mnt/nas/disk/model.gguf", False),
        ("/mnt/nasty/model.gguf", False),
        ("/mnt/two words/model.gguf", True),
        ("/mnt/usb/model.gguf", False),
        ("/mnt/over/model.gguf", False),
        ("/mnt/share/deep/er/model.gguf", True),
    ],
)
def test_file_systems(path, shared, tmp_path, monkeypatch):
    (tmp_path / "mounts").write_text(MOUNTS)
    monkeypatch.setattr(filesystems, "MOUNTS", str(tmp_path / "mounts"))
    assert filesystems.changes_under_readers(path) is shared
    monkeypatch.setattr(filesystems, "MOUNTS", str(tmp_path / "absent"))
    assert filesystems.changes_under_readers(path) is False


@pytest.fixture
def path(tmp_path):
    file = File().add("general.architecture", gb.STRING, b"x")
    add(file, "x", (4096, 32), 0)
    file.write(tmp_path / "model.gguf")
    return tmp_path / "model.gguf"


@pytest.mark.parametrize("shared", [False, True])
def test_auto_reads_where_mapping_is_no_good(path, shared, tmp_path, monkeypatch):
    kind = "nfs4" if shared else "ext4"
    (tmp_path / "mounts").write_text(
        f"22 1 252:1 / / rw - ext4 /dev/vda1 rw\n30 22 0:40 / {tmp_path} rw - {kind} a rw\n"
    )
    monkeypatch.setattr(filesystems, "MOUNTS", str(tmp_path / "mounts"))
    with ggufx.open(path, mode="auto") as f:
        assert f.is_mapped is not shared
        assert f["x"].dequantize().shape == (4096, 32)
    pytest.importorskip("fsspec")
    with ggufx.open(f"file://{path}", mode="auto") as f:
        assert f.is_mapped is not shared


SHORTENED = """
import os, sys, ggufx
f = ggufx.open(sys.argv[1], mode=sys.argv[2])
t = f["x"]
os.truncate(sys.argv[1], t.offset)
try:
    print(t.dequantize().sum())
except ggufx.GGUFError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="signals of mapped files differ")
@pytest.mark.parametrize("mode", ["r", "read"])
def test_a_shortened_file(path, mode):
    """What docs/files.md says of it."""
    command = [sys.executable, "-c", SHORTENED, str(path), mode]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    said = "the file became shorter while it was open"
    if mode == "r":
        assert done.returncode == -signal.SIGBUS
    else:
        assert done.stdout == f"{path}: {said}\n", done.stderr
    page = Path(__file__).parents[2] / "docs" / "files.md"
    if page.exists():
        assert said in " ".join(page.read_text(encoding="utf-8").split())
        assert "SIGBUS" in page.read_text(encoding="utf-8")
