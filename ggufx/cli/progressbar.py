"""A progress bar for commands that write, where there is a terminal and the tqdm package."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ..write.stream import Progress

__all__ = ["add_progress_argument", "progress_bar"]


def add_progress_argument(parser: argparse.ArgumentParser) -> None:
    """Declare ``--progress`` and ``--no-progress``."""
    parser.add_argument(
        "--progress",
        action=argparse.BooleanOptionalAction,
        help="show a progress bar (default: on a terminal, if the tqdm package is there)",
    )


@contextmanager
def progress_bar(wanted: bool | None, label: str) -> Iterator[Progress | None]:
    """A callback for writers that moves a bar, or None."""
    if wanted is False or (wanted is None and not sys.stderr.isatty()):
        yield None
        return
    try:
        from tqdm import tqdm
    except ImportError:
        if wanted:
            raise ImportError("a progress bar needs the tqdm package: pip install 'ggufx[progress]'") from None
        yield None
        return
    with tqdm(desc=label, unit="B", unit_scale=True) as bar:

        def show(name: str, done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield show
