"""Everything that is wrong with a file, before others find out."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..codec.threads import run, thread_count
from ..errors import GGUFError
from ..formats.tensor_types import QType
from ..read.reader import GGUFFile
from ..read.reader import open as open_gguf
from ..read.tensor import Tensor
from .blocks import scan_blocks
from .findings import ERROR, Finding
from .manifest import check_manifest, make_manifest, read_manifest, tensor_checksum
from .rules import RULES, layout_findings

__all__ = ["Validation", "validate"]


@dataclass
class Validation:
    """What `validate` found.

    Attributes
    ----------
    path : str
        The file.
    findings : list of Finding
        Errors and warnings: the index's, the metadata's, then tensor by tensor in file order.
    tensors : int
        How many tensors the file has.
    checksums : dict
        SHA-256 of each readable tensor's packed bytes by name, if they were asked for.
    manifest : dict or None
        What a later check can be held against, if checksums were asked for.
    """

    path: str
    findings: list[Finding] = field(default_factory=list)
    tensors: int = 0
    checksums: dict[str, str] = field(default_factory=dict)
    manifest: dict[str, Any] | None = None

    @property
    def ok(self) -> bool:
        """Whether there is no error; warnings may be there."""
        return not any(f.severity == ERROR for f in self.findings)


def validate(
    path: str | os.PathLike[str],
    *,
    values: bool = True,
    checksums: bool = False,
    check: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Validation:
    """Look for everything that is wrong with a file.

    Parameters
    ----------
    path : path-like or URL
        The file, or any shard of a set.
    values : bool
        Decode and look at every block; without, only metadata and tensor infos are judged.
    checksums : bool
        Compute each tensor's checksum, and a manifest of them.
    check : path-like, optional
        A manifest to hold the file against.
    threads : int, optional
        As everywhere; tensors are looked at in parallel, in a few megabytes of memory each.
    progress : callable, optional
        Called with a tensor's name, bytes done and bytes in all.

    Returns
    -------
    Validation

    Raises
    ------
    GGUFError
        If the manifest isn't one. A file that can't be opened is a finding.
    OSError
        If a file isn't there.

    Examples
    --------
    >>> validate("model.gguf").ok  # doctest: +SKIP
    True
    """
    expected = None if check is None else read_manifest(check)
    result = Validation(os.fspath(path))
    f = _open(path, result)
    if f is None:
        return result
    with f:
        result.tensors = len(f.tensors)
        for problem in f.problems:
            result.findings.append(Finding(ERROR, problem.kind, problem.name, problem.message))
        for rule in RULES:
            result.findings += rule(f)
        for part in getattr(f, "shards", (f,)):
            result.findings += layout_findings(part)
        wanted = checksums or expected is not None
        found, result.checksums = _scan(f, values, wanted, thread_count(threads), progress)
        result.findings += found
        if wanted:
            result.manifest = make_manifest(f, result.checksums)
        if expected is not None and result.manifest is not None:
            result.findings += check_manifest(result.manifest, expected)
    return result


def _open(path: str | os.PathLike[str], result: Validation) -> GGUFFile | None:
    try:
        return open_gguf(path, strict=False)
    except GGUFError as error:
        result.findings.append(Finding(ERROR, "unreadable", "", str(error)))
    try:  # what can't be opened as a set may be whole by itself
        return open_gguf(path, strict=False, shards=False)
    except GGUFError:
        return None


def _scan(
    f: GGUFFile,
    values: bool,
    checksums: bool,
    threads: int,
    progress: Callable[[str, int, int], None] | None,
) -> tuple[list[Finding], dict[str, str]]:
    """Findings and checksums of the readable tensors, in file order."""
    findings: dict[str, list[Finding]] = {}
    sums: dict[str, str] = {}
    lock = threading.Lock()
    readable = [t for t in f.tensors.values() if t.problem is None]
    total, done = sum(t.nbytes for t in readable), 0

    def work(tensor: Tensor) -> None:
        nonlocal done
        if checksums:
            sums[tensor.name] = tensor_checksum(tensor)
        if values and isinstance(tensor.qtype, QType):
            findings[tensor.name] = list(scan_blocks(tensor))
        with lock:
            done += tensor.nbytes
            if progress is not None:
                progress(tensor.name, done, total)

    if values or checksums:
        # The largest first: none of them is left to one thread at the end.
        run(work, sorted(readable, key=lambda t: -t.nbytes), threads)
    return [x for name in f.tensors for x in findings.get(name, ())], sums
