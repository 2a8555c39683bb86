"""Byte counts as people write them."""

from __future__ import annotations

import operator
import re
from typing import Any

__all__ = ["count_of", "counted", "format_size", "parse_size", "size_of", "size_option"]

_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", 1):
    _UNITS[_letter] = _UNITS[f"{_letter}IB"] = 1024**_power
    _UNITS[f"{_letter}B"] = 1000**_power
_SIZE = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-z]*)\s*")


def parse_size(text: str | int) -> int:
    """Bytes that ``"7.5GiB"``, ``"700M"`` (binary, as the bare letter is), ``"8GB"`` (decimal) or a number mean.

    Raises
    ------
    ValueError
        If it is no size.
    """
    if isinstance(text, int):
        return text
    match = _SIZE.fullmatch(text)
    if not match or match[2].upper() not in _UNITS:
        raise ValueError(f"{text!r} is no size; write it like 7.5GiB, 800MB or 1048576")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def size_option(option: str, text: str | None) -> int | None:
    """The bytes that an option of the command line means, None where it isn't given.

    Raises
    ------
    ValueError
        If it is no size, or a small number without a unit, which hardly means bytes.
    """
    if text is None:
        return None
    try:
        size = parse_size(text)
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from None
    if size < 1 << 20 and not text.strip()[-1:].isalpha():
        raise ValueError(
            f"{option} {text}: {size} bytes? Write the unit: {text.strip()}GiB, or {size}B if that is meant"
        )
    return size


def count_of(name: str, value: Any) -> int:
    """An argument that counts something.

    Raises
    ------
    TypeError, ValueError
        If it is no integer, or below 1; the message names the argument.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} is {value!r}, an integer was expected")
    count = operator.index(value)
    if count < 1:
        raise ValueError(f"{name} is {count}, at least 1 was expected")
    return count


def size_of(name: str, value: Any) -> int:
    """An argument that is a byte count: an integer, or text as :func:`parse_size` takes it.

    Raises
    ------
    TypeError, ValueError
        If it is neither, or below 1; the message names the argument.
    """
    if isinstance(value, str):
        try:
            value = parse_size(value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    elif isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} is {value!r}; bytes were expected, as an integer or as text like '4GiB'")
    return count_of(name, value)


def format_size(nbytes: float) -> str:
    """A byte count in the binary unit that leaves two to four digits before the point.

    Examples
    --------
    >>> format_size(4_920_000_000)
    '4.58 GiB'
    """
    sign, value = ("-", -nbytes) if nbytes < 0 else ("", nbytes)
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{sign}{value:.0f} {unit}" if unit == "bytes" else f"{sign}{value:.2f} {unit}"


def counted(count: int, what: str) -> str:
    """A number of things: ``1 tensor``, ``2 tensors``."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
