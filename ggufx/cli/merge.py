"""Join the shards of a model into one file."""

from __future__ import annotations

import argparse

from .progressbar import add_progress_argument, progress_bar
from .terminal import printable

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("input", metavar="SHARD", help="any shard of the set")
    parser.add_argument("output", metavar="OUT", help="the file to write")
    parser.add_argument("--keep-split-keys", action="store_true", help="leave split.* keys, as llama-gguf-split does")
    add_progress_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Merge and name the file."""
    from ..write.split import merge

    with progress_bar(arguments.progress, "merge") as progress:
        (path,) = merge(arguments.input, arguments.output, keep_split_keys=arguments.keep_split_keys, progress=progress)
    print(printable(path))
    return 0
