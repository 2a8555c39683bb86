"""Replacing attributes of classes and functions so that everything can be put back."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any, TypeAlias

__all__ = ["DIFFERS", "Patches", "State", "is_own", "log", "say_once", "static"]

log = logging.getLogger("ggufx.compat")

_MISSING = object()
_said: set[str] = set()

DIFFERS = "left alone: its results aren't ours"

State: TypeAlias = str | Callable[[], str]
"""``"patched"``, why something was left alone, or a function that finds that out."""


def say_once(message: str) -> None:
    """Log a warning the first time it comes up in this process."""
    if message not in _said:
        _said.add(message)
        log.warning(message)


def static(cls: type, name: str) -> object:
    """What stands under a name in a class or those it descends from."""
    return next((vars(c)[name] for c in cls.__mro__ if name in vars(c)), None)


def is_own(cls: type, name: str) -> bool:
    """Whether a method of a class is one that the source of a class it descends from defines, not put there later."""
    method = static(cls, name)
    function = getattr(method, "__func__", method)
    # A wrapper bears the name of what it wraps, but not its module's globals.
    return isinstance(function, FunctionType) and any(
        function.__globals__.get("__name__") == c.__module__ and function.__qualname__ == f"{c.__name__}.{name}"
        for c in cls.__mro__
    )


@dataclass(eq=False)
class _Change:
    """One attribute of an object, or one item of a dictionary, before and after."""

    owner: Any
    key: Any
    is_item: bool
    new: object
    old: object = _MISSING

    def now(self) -> object:
        if self.is_item:
            return self.owner.get(self.key, _MISSING)
        # Only a function's code is no entry of its dictionary.
        return self.owner.__code__ if self.key == "__code__" else vars(self.owner).get(self.key, _MISSING)

    def put(self, value: object) -> None:
        if self.is_item and value is _MISSING:
            self.owner.pop(self.key, None)
        elif self.is_item:
            self.owner[self.key] = value
        elif value is _MISSING:
            delattr(self.owner, self.key)
        else:
            setattr(self.owner, self.key, value)


# Changes of all `Patches`: one may stand on another's, and go after it.
_standing: list[_Change] = []


class Patches:
    """What was replaced, and how to put it back."""

    def __init__(self) -> None:
        self._changes: list[_Change] = []

    def set(self, owner: Any, name: str, value: object) -> None:
        """Set attribute `name` of `owner`, a class or a module; remembers what its own dictionary held."""
        self._make(_Change(owner, name, False, value))

    def set_item(self, mapping: dict[Any, Any], key: Any, value: object) -> None:
        """Set one item of a dictionary."""
        self._make(_Change(mapping, key, True, value))

    def set_code(self, function: FunctionType, code: CodeType) -> None:
        """Replace the body of a function, so that every name bound to it is covered."""
        self._make(_Change(function, "__code__", False, code))

    def add(self, others: Patches) -> None:
        """Take over what others have replaced."""
        self._changes += others._changes

    def _make(self, change: _Change) -> None:
        change.old = change.now()
        change.put(change.new)
        self._changes.append(change)
        _standing.append(change)

    def undo(self) -> None:
        """Put everything back, last change first, but what somebody else has replaced since."""
        while self._changes:
            change = self._changes.pop()
            _standing.remove(change)
            above = next(
                (c for c in _standing if c.owner is change.owner and c.key == change.key and c.old is change.new), None
            )
            if above is not None:
                above.old = change.old
            elif change.now() is change.new:
                change.put(change.old)
