"""Set, delete and rename a file's metadata, in place where its header keeps its size."""

from __future__ import annotations

import argparse
import json
from math import isinf
from typing import Any

from ..formats.value_types import ValueType
from ..sizes import format_size
from .terminal import printable, warnings_as_lines

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("file", metavar="FILE", help="a GGUF file")
    parser.add_argument("-o", "--output", metavar="OUT", help="write a new file and leave FILE alone")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="arrays as JSON lists; repeatable"
    )
    parser.add_argument(
        "--type",
        action="append",
        default=[],
        metavar="KEY=TYPE",
        help="uint32, float32, string ...; of an array, its elements' type; by default what the key has. With string, "
        "a JSON list becomes an array too, unless the key is there as one string",
    )
    parser.add_argument("--delete", action="append", default=[], metavar="KEY", help="repeatable")
    parser.add_argument("--rename", action="append", default=[], metavar="OLD=NEW", help="repeatable")


def run(arguments: argparse.Namespace) -> int:
    """Edit and say how."""
    import ggufx

    from ..write.edit import edit, undo_unfinished
    from ..write.serialize import value_type

    types = {key: value_type(name) for key, name in (_pair(text, "--type") for text in arguments.type)}
    pairs = [_pair(text, "--set") for text in arguments.set]
    with warnings_as_lines():
        if undo_unfinished(arguments.file):
            print(f"{printable(arguments.file)}: an edit that was interrupted is undone")
    with ggufx.open(arguments.file, shards=False) as f:
        declared = dict(f.metadata.types)
    values = {}
    for key, text in pairs:
        own = declared.get(key)
        is_array = own is not None and own.item is not None
        kind = types.get(key, None if own is None else own.type if own.item is None else own.item)
        if kind is ValueType.STRING and not is_array and (own is None or own.type is not ValueType.STRING):
            is_array = text.lstrip().startswith("[") and _is_json(key, text)
        values[key] = _value(key, text, kind, is_array)
    try:
        result = edit(
            arguments.file,
            set=values,
            delete=arguments.delete,
            rename=dict(_pair(text, "--rename") for text in arguments.rename),
            types=types,
            output=arguments.output,
        )
    except KeyError as error:
        raise ValueError(error.args[0]) from None
    how = f"{result.nbytes} bytes of the header changed" if result.in_place else f"{format_size(result.nbytes)} written"
    print(f"{printable(result.path)}: {how}")
    return 0


def _pair(text: str, option: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ValueError(f"{option} {text!r}: KEY=VALUE was expected")
    return key, value


def _value(key: str, text: str, kind: ValueType | None, is_array: bool) -> Any:
    """A value from its text: by its type where that is known, else whatever JSON makes of it, else a string."""
    if kind is ValueType.STRING and not is_array:
        return text
    try:
        return _json(key, text)
    except json.JSONDecodeError:
        if kind is not None:
            wanted = f"a JSON list of {kind.name.lower()}" if is_array else kind.name.lower()
            raise ValueError(f"--set {key}: {text!r} is no {wanted}") from None
        return text


def _json(key: str, text: str) -> Any:
    """What a text is as JSON; a number that Python would make infinite is refused, ``Infinity`` is one."""

    def number(digits: str) -> float:
        value = float(digits)
        if isinf(value):
            raise ValueError(f"--set {key}: {digits} is too large for any type")
        return value

    try:
        return json.loads(text, parse_float=number)
    except json.JSONDecodeError:
        raise
    except RecursionError:
        raise ValueError(f"--set {key}: the value is nested too deeply") from None
    except ValueError as error:
        raise ValueError(str(error) if str(error).startswith("--set") else f"--set {key}: {error}") from None


def _is_json(key: str, text: str) -> bool:
    try:
        _json(key, text)
    except json.JSONDecodeError:
        return False
    return True
