"""Text that is safe and readable on a terminal, whatever a file put into its strings."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

__all__ = ["human_count", "printable", "shortened", "some_streams", "tell", "warnings_as_lines"]


@contextmanager
def some_streams() -> Iterator[None]:
    """Have a standard output and error, where the process was started with closed ones or without any, as pythonw does.

    What nobody can read is thrown away. Their descriptors are taken too: a file that was opened as number 2 would get
    what other code writes there.
    """
    taken = []
    before = sys.stdout, sys.stderr
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            taken.append(os.open(os.devnull, os.O_RDWR))  # the lowest free number, which is this one
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        sys.stdout, sys.stderr = (nowhere if s is None or s.closed else s for s in before)
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before
            for number in taken:
                os.close(number)


@contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Print each warning as a line on standard error, without the code that gave it."""
    with warnings.catch_warnings():
        warnings.showwarning = _show
        warnings.simplefilter("always")
        yield


def _show(message: Warning | str, *_: Any, **__: Any) -> None:
    tell(f"ggufx: warning: {printable(str(message))}")


def tell(line: str) -> None:
    """Write a line to standard error, whose failing is nobody's loss."""
    with suppress(OSError):
        print(line, file=sys.stderr)


def printable(text: str) -> str:
    r"""Escape everything that could move the cursor, change colours or reverse the writing.

    Control characters, escape sequences, bidirectional overrides and bytes that weren't UTF-8 come out as ``\x1b``,
    ``\n``, ``\u202e`` and the like; letters of any language stay.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(c: str) -> str:
    if "\udc80" <= c <= "\udcff":  # surrogateescape: the byte itself
        return f"\\x{ord(c) - 0xDC00:02x}"
    return c.encode("unicode_escape").decode("ascii")


def shortened(text: str, limit: int) -> str:
    """Make `text` printable and at most `limit` characters, the end given up for ``...``."""
    if len(text) > limit:  # cut before escaping: a hostile string may be megabytes
        text = text[:limit] + "..."
    text = printable(text)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def human_count(count: int) -> str:
    """Show a number of things with three digits: 268 M."""
    value, unit = float(count), ""
    for larger in ("k", "M", "G", "T", "P", "E"):
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    digits = 0 if not unit or value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f} {unit}".rstrip()
