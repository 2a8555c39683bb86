"""Which file systems let a file change under its readers.

Reading a mapped page that isn't there any more (another machine has shortened the file, the server is gone) ends the
process with SIGBUS; an ordinary read gives an error.
"""

from __future__ import annotations

import os
import re

__all__ = ["changes_under_readers"]

# Types as /proc/self/mountinfo names them: file systems whose files other machines write, and those that a program in
# user space answers for ("fuse.sshfs", "fuse.s3fs" ...). fuseblk is a disk of this machine.
SHARED = frozenset(
    (
        *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "fuse", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4"),
        *("orangefs", "prl_fs", "pvfs2", "smb3", "smbfs", "vboxsf", "vmhgfs"),
    )
)
MOUNTS = "/proc/self/mountinfo"


def changes_under_readers(path: str) -> bool:
    """Whether a file lies in a file system whose files are known to change under readers; False where nothing tells."""
    try:
        with open(MOUNTS, encoding="utf-8", errors="surrogateescape") as f:
            lines = f.read().splitlines()
    except OSError:
        return False
    real = os.path.realpath(path)
    found, kind = "", ""
    for line in lines:
        # 36 35 98:0 /root /mount/point options ... - type source options; blanks in names are written as \040.
        before, _, after = line.partition(" - ")
        words = before.split(" ")
        if len(words) < 5 or not after:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), words[4])
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(found):  # the last one mounted on a point hides those before
            found, kind = point, after.split(" ")[0]
    return kind in SHARED or kind.startswith("fuse.")
