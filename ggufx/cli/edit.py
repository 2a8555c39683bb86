"""Set, delete and rename a file's metadata, in place where its header keeps its size."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ..sizes import format_size
from ..valuetypes import ValueType
from .terminal import printable

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
        help="uint32, float32, string ...; of an array, its elements' type; by default what the key has",
    )
    parser.add_argument("--delete", action="append", default=[], metavar="KEY", help="repeatable")
    parser.add_argument("--rename", action="append", default=[], metavar="OLD=NEW", help="repeatable")


def run(arguments: argparse.Namespace) -> int:
    """Edit and say how."""
    import ggufx

    from ..edit import edit, undo_unfinished
    from ..fieldbytes import value_type

    types = {key: value_type(name) for key, name in (_pair(text, "--type") for text in arguments.type)}
    pairs = [_pair(text, "--set") for text in arguments.set]
    if undo_unfinished(arguments.file):
        print(f"{printable(arguments.file)}: an edit that was interrupted is undone")
    with ggufx.open(arguments.file, shards=False) as f:
        declared = {key: (kind.item or kind.type, kind.item is not None) for key, kind in f.metadata.types.items()}
    values = {}
    for key, text in pairs:
        kind, is_array = declared.get(key, (None, False))
        values[key] = _value(key, text, types.get(key, kind), is_array)
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
    except TypeError as error:
        raise ValueError(str(error)) from None
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
        return json.loads(text)
    except ValueError:
        if kind is not None:
            wanted = f"a JSON list of {kind.name.lower()}" if is_array else kind.name.lower()
            raise ValueError(f"--set {key}: {text!r} is no {wanted}") from None
        return text
