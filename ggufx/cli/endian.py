"""Turn a file's byte order: header and tensor data."""

from __future__ import annotations

import argparse

from .progressbar import add_progress_argument, progress_bar
from .terminal import printable

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("input", metavar="IN", help="a GGUF file")
    parser.add_argument("output", metavar="OUT", help="the file to write")
    parser.add_argument("order", choices=("little", "big"), help="byte order of the output")
    add_progress_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Convert and name the file."""
    from ..write.split import convert_endian

    with progress_bar(arguments.progress, "convert") as progress:
        (path,) = convert_endian(arguments.input, arguments.output, arguments.order, progress=progress)
    print(printable(path))
    return 0
