"""Replacing attributes of classes and functions so that everything can be put back, and knowing source text again."""

from __future__ import annotations

import hashlib
import inspect
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeAlias

from .locks import Lock

__all__ = [
    "Patches",
    "State",
    "Steps",
    "are_as_they_were",
    "fingerprint",
    "is_known",
    "is_original",
    "log",
    "say_once",
    "source_block",
]

log = logging.getLogger("ggufx.compat")

_MISSING = object()
_said: set[str] = set()

Steps: TypeAlias = tuple[tuple[Mapping[str, object], str, object], ...]
"""Attributes that replaced code would have used, as they were: in which dictionary, their names, what they were."""

State: TypeAlias = str | Callable[[], str]
"""``"patched"``, why something was left alone, or a function that finds that out."""


def are_as_they_were(steps: Steps) -> bool:
    """Whether nobody has replaced any of these attributes."""
    return all(place.get(name, _MISSING) is was for place, name, was in steps)


def say_once(message: str) -> None:
    """Log a warning the first time it comes up in this process."""
    if message not in _said:
        _said.add(message)
        log.warning(message)


@dataclass(eq=False)
class _Change:
    """One attribute of an object, or one item of a dictionary, before and after."""

    owner: Any
    key: Any
    is_item: bool
    part: str
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

    def above(self) -> _Change | None:
        """The change that was made on top of this one, if it still stands."""
        return next((c for c in _standing if c.owner is self.owner and c.old is self.new and c is not self), None)

    def __str__(self) -> str:
        return f"{getattr(self.owner, '__qualname__', 'an item')}.{self.key}"


# Changes of all `Patches`: one may stand on another's, and go after it. The lock is held for one change at a time.
_standing: list[_Change] = []
_lock = Lock()
# Patches that a thread is making or taking back, or has made for as long as it does something.
_of_threads: list[tuple[int, Patches]] = []


def _after_fork() -> None:
    """Put back what was other threads' own: they don't exist here to finish it."""
    for thread, patches in list(_of_threads):
        if thread != threading.get_ident():
            _of_threads.remove((thread, patches))
            patches.undo()
            patches.was_lost = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Patches:
    """What was replaced, part by part, and how to put it back.

    Attributes
    ----------
    was_lost : bool
        Whether this process was forked while another thread was at it: then everything was put back.
    """

    def __init__(self) -> None:
        self.was_lost = False
        self._changes: list[_Change] = []
        self._bases: dict[str, list[tuple[Callable[[], object], object]]] = {}
        self._steps: dict[str, dict[str, Steps]] = {}
        self._part = ""

    @contextmanager
    def by_this_thread(self) -> Iterator[None]:
        """Inside, the patches are this thread's own: a child that another thread forks meanwhile puts them back."""
        mine = (threading.get_ident(), self)
        _of_threads.append(mine)
        try:
            yield
        finally:
            _of_threads.remove(mine)

    def apply(self, part: str, patch: Callable[[Patches], State]) -> State:
        """Run a function that replaces things; returns what it says, or why everything stayed as it was."""
        # What a reload of the module has overwritten isn't there to be put back.
        lost = [c for c in self._changes if c.part == part and c.now() is not c.new and c.above() is None]
        for change in lost:
            self._changes.remove(change)
            _standing.remove(change)
        self._part, self._bases[part], self._steps[part] = part, [], {}
        mark = len(self._changes)
        _source_lines.cache_clear()
        try:
            return patch(self)
        except Exception as error:  # a stub, or something stranger
            self.undo(mark)
            return f"left alone: it isn't what it should be ({error!r})"

    def rely_on(self, find: Callable[[], object]) -> Any:
        """Return what `find` finds, and note it: the part being applied has moved when that is another object."""
        found = find()
        self._bases[self._part].append((find, found))
        return found

    def moved(self) -> set[str]:
        """Parts whose classes or functions have been made anew since, as reloading a module does."""
        return {part for part, bases in self._bases.items() if any(_found(find) is not base for find, base in bases)}

    def steps(self, owner: Any, names: Iterable[str]) -> Steps:
        """Note attributes of a class or module that the code of this part's originals uses, and return them."""
        place = vars(owner)
        found = tuple((place, name, place.get(name, _MISSING)) for name in names)
        title = getattr(owner, "__qualname__", owner.__name__)
        self._steps[self._part].update({f"{title}.{step[1]}": (step,) for step in found})
        return found

    def overridden(self, part: str) -> list[str]:
        """What this part replaced, or its originals use, and somebody else has replaced since."""
        mine = (c for c in self._changes if c.part == part)
        found = [str(c) for c in mine if c.now() is not c.new and c.above() is None]
        used = (name for name, steps in self._steps.get(part, {}).items() if not are_as_they_were(steps))
        return list(dict.fromkeys([*found, *used]))

    def set(self, owner: Any, name: str, value: object) -> None:
        """Set attribute `name` of `owner`, a class or a module; remembers what its own dictionary held."""
        self._make(_Change(owner, name, False, self._part, value))

    def set_item(self, mapping: dict[Any, Any], key: Any, value: object) -> None:
        """Set one item of a dictionary."""
        self._make(_Change(mapping, key, True, self._part, value))

    def set_code(self, function: FunctionType, code: CodeType) -> None:
        """Replace the body of a function, so that every name bound to it is covered."""
        self._make(_Change(function, "__code__", False, self._part, code))

    def _make(self, change: _Change) -> None:
        with _lock:
            change.old = change.now()
            # Noted before it is made, and until it is taken back: a child forked in between has to find it.
            self._changes.append(change)
            _standing.append(change)
            change.put(change.new)

    def undo(self, mark: int = 0) -> None:
        """Put back everything, or everything since there were `mark` changes, last change first."""
        while len(self._changes) > mark:
            with _lock:
                change = self._changes[-1]
                now, above = change.now(), change.above()
                if now is change.new:
                    change.put(change.old)
                elif above is not None:
                    above.old = change.old
                elif now is not change.old:
                    say_once(f"{change} was replaced by somebody else since, and stays as it is")
                self._changes.pop()
                _standing.remove(change)


def _found(find: Callable[[], object]) -> object:
    try:
        return find()
    except Exception:  # whatever it was, it isn't there any more
        return _MISSING


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
        # A wrapper bears the name of what it wraps, but not its module's globals.
        if not isinstance(function, FunctionType) or function.__globals__ is not vars(module):
            return False
        if not function.__qualname__.startswith(owner.__name__ + "."):
            return False
    return True
