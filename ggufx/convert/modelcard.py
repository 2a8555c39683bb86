"""Model cards: the YAML between two lines of ``---`` at the top of README.md.

YAML is large, and cards use little of it: keys with a value, a list, or a list of mappings. That is read here, with
YAML 1.1's ideas of what is a number or a truth value; what goes beyond it is left to PyYAML where that is installed.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ..errors import GGUFError

__all__ = ["read_card"]

_KEY = re.compile(r"""("[^"]*"|'[^']*'|[^\s"'\[\]{}#,&*!|>%@`-][^#:]*?|-[^\s:]+)\s*:(?:\s+(.*))?$""")
_TRUE, _FALSE, _NULL = {"true", "yes", "on"}, {"false", "no", "off"}, {"", "~", "null"}
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9_]*)")
_FLOAT = re.compile(r"[-+]?([0-9][0-9_]*)\.[0-9_]*([eE][-+][0-9]+)?")
# Numbers in other bases and of base sixty, and dates, which YAML 1.1 knows too.
_FLOW_ITEM = re.compile(r"""\s*("[^"\\]*"|'[^']*'|[^"'\[\]{}]*)\s*""")
_ODD = re.compile(
    r"[-+]?0[0-7_]+|[-+]?0[bx][0-9a-fA-F_]+|[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?|\d{4}-\d\d?-\d\d?.*"
)


class _Beyond(Exception):
    """A card uses more of YAML than is read here."""


def read_card(folder: Path) -> dict[str, Any]:
    """What a folder's README.md says at its top; nothing where there is none.

    Raises
    ------
    GGUFError
        If it can't be read.
    """
    path = folder / "README.md"
    if not path.is_file():
        return {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise GGUFError(f"{path} isn't UTF-8: {error}") from None
    if not lines or lines[0] != "---":
        return {}
    end = lines.index("---", 1) if "---" in lines[1:] else len(lines)
    # Tabs aren't indentation in YAML, but cards have them; and the language code "no" is no truth value.
    lines = [re.sub(r"^(.*- )no$", r'\1"no"', line.replace("\t", "  ")) for line in lines[1:end]]
    try:
        return _mapping([line for line in lines if line.strip() and not line.lstrip().startswith("#")], 0)
    except _Beyond as beyond:
        return _by_pyyaml(path, lines, str(beyond))


def _by_pyyaml(path: Path, lines: list[str], what: str) -> dict[str, Any]:
    try:
        import yaml
    except ImportError:
        raise GGUFError(f"{path}: its card has {what!r}; to read it, install PyYAML: pip install pyyaml") from None
    try:
        card = yaml.safe_load("\n".join(lines) + "\n")
    except yaml.YAMLError as error:
        raise GGUFError(f"{path}: its card is no YAML: {error}") from None
    return card if isinstance(card, dict) else {}


def _mapping(lines: list[str], indent: int) -> dict[str, Any]:
    """Lines of keys, each with what stands beside it or is indented below."""
    out: dict[str, Any] = {}
    at = 0
    while at < len(lines):
        line = lines[at]
        match = _KEY.match(line[indent:])
        if _indent(line) != indent or match is None:
            raise _Beyond(line)
        at += 1
        start = at
        while at < len(lines) and (_indent(lines[at]) > indent or _is_item(lines[at], indent)):
            at += 1
        key = _scalar(match[1].rstrip())
        out[str(key)] = _value(match[2] or "", lines[start:at], line)
    return out


def _value(beside: str, below: list[str], line: str) -> Any:
    beside = _without_comment(beside)
    if not below:
        return _inline(beside)
    if beside or len({_indent(row) for row in below if _is_item(row, _indent(below[0]))}) > 1:
        raise _Beyond(line)
    indent = _indent(below[0])
    return _sequence(below, indent) if _is_item(below[0], indent) else _mapping(below, indent)


def _sequence(lines: list[str], indent: int) -> list[Any]:
    out: list[Any] = []
    at = 0
    while at < len(lines):
        line = lines[at]
        if not _is_item(line, indent):
            raise _Beyond(line)
        at += 1
        start = at
        while at < len(lines) and _indent(lines[at]) > indent:
            at += 1
        rest = line[indent + 1 :].lstrip()
        if _KEY.match(rest) and not rest.startswith(("{", "[")):
            inner = len(line) - len(rest)
            out.append(_mapping([" " * inner + rest, *lines[start:at]], inner))
        elif start == at and not _is_item(rest, 0):
            out.append(_inline(_without_comment(rest)))
        else:
            raise _Beyond(line)
    return out


def _inline(text: str) -> Any:
    """A scalar, or a list between brackets on one line."""
    if not text.startswith("["):
        return _scalar(text)
    items = [item for item in text[1:-1].split(",") if item.strip()]
    if not text.endswith("]") or not all(map(_FLOW_ITEM.fullmatch, items)):
        raise _Beyond(text)
    return [_scalar(item.strip()) for item in items]


def _scalar(text: str) -> Any:
    if len(text) > 1 and text[0] == text[-1] == "'":
        return text[1:-1].replace("''", "'")
    if text.startswith('"'):
        if not re.fullmatch(r'"[^"\\]*"', text):
            raise _Beyond(text)
        return text[1:-1]
    low = text.lower()
    if low in _NULL:
        return None
    if low in _TRUE or low in _FALSE:
        # YAML 1.1 takes these in lower case, in capitals, or with the first letter as a capital.
        return low in _TRUE if text in (low, low.upper(), low.capitalize()) else text
    if (
        _ODD.fullmatch(text)
        or text[0] in "{[&*!|>%@`'"
        or ": " in text
        or text.endswith(":")
        or text[:2] in ("? ", "- ")
    ):
        raise _Beyond(text)
    if _INTEGER.fullmatch(text):
        return int(text.replace("_", ""))
    if _FLOAT.fullmatch(text):
        return float(text.replace("_", ""))
    return text


def _without_comment(text: str) -> str:
    if text.startswith(('"', "'")):
        end = text.find(text[0], 1)
        return text if end < 0 or " #" not in text[end:] else text[: end + 1]
    return re.split(r"\s#|^#", text, maxsplit=1)[0].strip()


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _is_item(line: str, indent: int) -> bool:
    rest = line[indent:]
    return _indent(line) == indent and (rest == "-" or rest.startswith("- "))
