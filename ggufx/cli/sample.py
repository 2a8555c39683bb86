"""The sample model that comes with the package, for commands that are given no file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import as_file, files
from pathlib import Path

__all__ = ["path_or_sample"]


@contextmanager
def path_or_sample(path: str | os.PathLike[str] | None) -> Iterator[Path | str]:
    """Yield `path`, or where the sample model lies if it is None."""
    if isinstance(path, str) and "://" in path:
        yield path  # a URL, whose slashes a Path would take away
    elif path is not None:
        yield Path(path)
    else:
        with as_file(files("ggufx") / "sample.gguf") as sample:
            yield sample
