"""Checksums of a file's tensors and metadata, apart from how the file is laid out: a manifest, and holding one."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..errors import GGUFError
from ..formats.tensor_types import type_name
from ..write.outfile import OutputFile
from .findings import ERROR, Finding

if TYPE_CHECKING:
    from ..read.reader import GGUFFile
    from ..read.tensor import Tensor

__all__ = ["check_manifest", "make_manifest", "read_manifest", "tensor_checksum", "write_manifest"]

FORM = "ggufx manifest 1"


def tensor_checksum(tensor: Tensor) -> str:
    """SHA-256 of the packed bytes, in hexadecimal."""
    return hashlib.sha256(tensor.packed().data).hexdigest()


def _printable(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def make_manifest(f: GGUFFile, checksums: dict[str, str]) -> dict[str, Any]:
    """Describe a file's contents.

    Parameters
    ----------
    f : GGUFFile
    checksums : dict
        Of the tensors, by name.

    Returns
    -------
    dict
        ``form``, ``byteorder``, ``metadata`` (SHA-256 of each key's type and stored value; ``split.*`` and the
        alignment, which belong to the layout, left out) and ``tensors`` (type, shape and SHA-256 of each).
    """
    metadata = {}
    for key, kind in f.metadata.types.items():
        if not key.startswith("split.") and key != "general.alignment":
            digest = hashlib.sha256(f"{kind}\0".encode())
            digest.update(f.metadata.raw(key).data)
            metadata[_printable(key)] = digest.hexdigest()
    tensors = {
        _printable(name): {"type": type_name(t.qtype), "shape": list(t.shape), "sha256": checksums[name]}
        for name, t in f.tensors.items()
        if name in checksums
    }
    return {"form": FORM, "byteorder": f.byteorder, "metadata": metadata, "tensors": tensors}


def write_manifest(manifest: dict[str, Any], path: str | os.PathLike[str], inputs: list[str]) -> None:
    """Write a manifest as JSON, whole or not at all, never over one of `inputs`."""
    data = (json.dumps(manifest, indent=1, ensure_ascii=False) + "\n").encode()
    file = OutputFile(os.fspath(path), inputs=inputs)
    try:
        file.write(data)
        file.finish(len(data))
        file.publish()
    finally:
        file.discard()


def read_manifest(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a manifest.

    Raises
    ------
    GGUFError
        If it isn't one.
    """
    with open(path, "rb") as file:
        data = file.read()
    try:
        manifest = json.loads(data)
    except ValueError as error:
        raise GGUFError(f"{os.fspath(path)}: not a manifest of ggufx: {error}") from None
    if not isinstance(manifest, dict) or manifest.get("form") != FORM:
        raise GGUFError(f"{os.fspath(path)}: not a manifest of ggufx: {FORM!r} was expected as its form")
    for part in ("metadata", "tensors"):
        if not isinstance(manifest.get(part), dict):
            raise GGUFError(f"{os.fspath(path)}: the manifest has no {part}")
    return manifest


def check_manifest(found: dict[str, Any], expected: dict[str, Any]) -> Iterator[Finding]:
    """Hold a file's manifest against another one.

    Parameters
    ----------
    found, expected : dict
        As `make_manifest` gives them.

    Yields
    ------
    Finding
        ``manifest``, for each tensor and key that is missing, new or different.
    """
    if found["byteorder"] != expected.get("byteorder"):
        text = f"byte order is {found['byteorder']}, the manifest has {expected.get('byteorder')}"
        yield Finding(ERROR, "manifest", "", text)
    for part, what in (("metadata", "metadata key"), ("tensors", "tensor")):
        ours, theirs = found[part], expected[part]
        for name in [*theirs, *(n for n in ours if n not in theirs)]:
            if name not in ours:
                text = f"{what} {name!r} is in the manifest, but not (or not readable) in the file"
            elif name not in theirs:
                text = f"{what} {name!r} is not in the manifest"
            elif ours[name] == theirs[name]:
                continue
            elif part == "metadata":
                text = f"{what} {name!r} has another value or type than in the manifest"
            else:
                one, other = ours[name], theirs[name] if isinstance(theirs[name], dict) else {}
                different = [k for k in ("type", "shape", "sha256") if one[k] != other.get(k)]
                k = different[0] if different else "sha256"
                text = f"{what} {name!r} has {k} {one[k]}, the manifest has {other.get(k)}"
            yield Finding(ERROR, "manifest", name, text)
