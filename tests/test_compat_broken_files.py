"""Broken files in the patched GGUFReader, beside what `gguf` says of them."""

from __future__ import annotations

import pytest
from compat_files import CORRUPT, ENDLESS, write_corrupt
from compat_runs import probe

import ggufx
from ggufx import compat

gguf = pytest.importorskip("gguf")


def test_corrupt_files(tmp_path):
    """The classes of error that gguf raises, or better; and never a wait."""
    paths = write_corrupt(tmp_path, CORRUPT)
    plain, patched = probe("plain", "errors", *paths), probe("patched", "errors", *paths)
    for name, path in zip(CORRUPT, map(str, paths), strict=True):
        assert patched[path] != ["opened"] or plain[path] == ["opened"], name
        assert plain[path] == ["opened"] or plain[path][0] in patched[path] or "GGUFError" in patched[path], name


def test_messages(tmp_path):
    """What is wrong, and where, in words."""
    wrong = ("tensor past the end", "offset past the end", "string past the end")
    paths = write_corrupt(tmp_path, {name: CORRUPT[name] for name in wrong})
    for path, words in zip(paths, ("tensor 'a'", "tensor 'a'", "field 'a'"), strict=True):
        with compat.patched(), pytest.raises(ggufx.GGUFError) as caught:
            gguf.GGUFReader(path)
        assert all(word in str(caught.value) for word in (path.name, words, "the file ends at byte"))


def test_endless_files(tmp_path):
    """Counts that keep gguf busy until memory runs out are refused at once."""
    for errors in probe("patched", "errors", *write_corrupt(tmp_path, ENDLESS)).values():
        assert "GGUFError" in errors
