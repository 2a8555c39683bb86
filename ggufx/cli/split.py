"""Divide a model into shards, by size or by number of tensors."""

from __future__ import annotations

import argparse

from ..sizes import size_option
from .progressbar import add_progress_argument, progress_bar
from .terminal import printable

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("input", metavar="IN", help="a GGUF file")
    parser.add_argument("output", metavar="PREFIX", help="shards are named PREFIX-00001-of-0000N.gguf")
    parser.add_argument("--max-size", metavar="SIZE", help="tensor data of a shard at most, as in 4GB")
    parser.add_argument("--max-tensors", type=int, metavar="N", help="tensors of a shard at most")
    parser.add_argument("--first-empty", action="store_true", help="keep tensors out of the first shard")
    add_progress_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Split and list the shards."""
    from ..write.split import split

    if arguments.max_size is None and arguments.max_tensors is None:
        raise ValueError("--max-size or --max-tensors is needed")
    with progress_bar(arguments.progress, "split") as progress:
        paths = split(
            arguments.input,
            arguments.output,
            max_bytes=size_option("--max-size", arguments.max_size),
            max_tensors=arguments.max_tensors,
            first_empty=arguments.first_empty,
            progress=progress,
        )
    for path in paths:
        print(printable(path))
    return 0
