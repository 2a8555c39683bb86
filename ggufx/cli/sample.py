"""Write the sample model that comes with ggufx to a file, to try commands and examples on."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import as_file, files
from pathlib import Path

from .terminal import printable

__all__ = ["add_arguments", "path_or_sample", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("output", metavar="OUT", help="the file to write")


def run(arguments: argparse.Namespace) -> int:
    """Write the sample and name the file."""
    from ..write.outfile import OutputFile

    with path_or_sample(None) as sample:
        data = Path(sample).read_bytes()
        out = OutputFile(arguments.output, inputs=[sample])
        try:
            out.write(data)
            out.finish(len(data))
            out.publish()
        finally:
            out.discard()
    print(printable(out.target))
    return 0


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
