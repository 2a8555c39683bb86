"""Replacing attributes of classes and functions so that everything can be put back, and knowing source text again."""

from __future__ import annotations

import hashlib
import inspect
import logging
from functools import cache, lru_cache
from importlib import resources
from types import FunctionType, ModuleType
from typing import Any

__all__ = ["Patches", "fingerprint", "is_known", "is_original", "log", "say_once", "source_block"]

log = logging.getLogger("ggufx.compat")

_MISSING = object()
_said: set[str] = set()


def say_once(message: str) -> None:
    """Log a warning the first time it comes up in this process."""
    if message not in _said:
        _said.add(message)
        log.warning(message)


class Patches:
    """What was replaced, and how to put it back."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: object) -> None:
        """Set attribute `name` of `owner`, a class or a module; remembers what its own dictionary held."""
        self._undo.append((owner, name, vars(owner).get(name, _MISSING)))
        setattr(owner, name, value)

    def set_item(self, mapping: dict[Any, Any], key: Any, value: object) -> None:
        """Set one item of a dictionary."""
        self._undo.append((mapping, "[]", (key, mapping.get(key, _MISSING))))
        mapping[key] = value

    def set_code(self, function: FunctionType, code: Any) -> None:
        """Replace the body of a function, so that every name bound to it is covered."""
        self._undo.append((function, "__code__", function.__code__))
        function.__code__ = code

    def follow(self, earlier: Patches) -> None:
        """Undo `earlier` too, after these."""
        self._undo[:0] = earlier._undo
        earlier._undo = []

    def undo(self) -> None:
        """Put everything back, last change first."""
        while self._undo:
            owner, name, value = self._undo.pop()
            if name == "[]":
                key, old = value
                if old is _MISSING:
                    owner.pop(key, None)
                else:
                    owner[key] = old
            elif value is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


@lru_cache(maxsize=4)
def _source_lines(module: ModuleType) -> list[str]:
    try:
        return inspect.getsource(module).splitlines()
    except (OSError, TypeError):
        return []


def source_block(module: ModuleType, heading: str) -> str | None:
    """Text of the class or function of a module whose first line begins with `heading`, without white space.

    None where the source can't be read or has no such heading.
    """
    lines = _source_lines(module)
    size = len(heading)
    starts = (i for i, line in enumerate(lines) if line.startswith(heading) and not line[size : size + 1].isalnum())
    start = next((i for i in starts if lines[i][size : size + 1] != "_"), None)
    if start is None:
        return None
    indent = len(heading) - len(heading.lstrip())
    block = [lines[start]]
    for line in lines[start + 1 :]:
        text = line.lstrip()
        # The closing line of a long signature stands at the heading's own depth.
        if text and not text.startswith(("#", ")")) and len(line) - len(text) <= indent:
            break
        if not text.startswith("#"):
            block.append(line)
    return "".join("".join(block).split())


@cache
def _fingerprints() -> frozenset[str]:
    lines = resources.files(__package__).joinpath("fingerprints.txt").read_text().splitlines()
    return frozenset(line.split()[0] for line in lines if line and not line.startswith("#"))


def fingerprint(text: str) -> str:
    """Short digest of a source block."""
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def is_known(module: ModuleType, *headings: str) -> bool:
    """Whether these blocks of a module's source are among those that were read and tested."""
    blocks = [source_block(module, heading) for heading in headings]
    return all(block is not None and fingerprint(block) in _fingerprints() for block in blocks)


def is_original(module: ModuleType, owner: type, *names: str) -> bool:
    """Whether these methods of a class are the ones its module's own source defines, not replaced by anyone."""
    for name in names:
        function = getattr(vars(owner).get(name), "__func__", vars(owner).get(name))
        if not isinstance(function, FunctionType) or function.__module__ != module.__name__:
            return False
        if not function.__qualname__.startswith(owner.__name__ + "."):
            return False
    return True
