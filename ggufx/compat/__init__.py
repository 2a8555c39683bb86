"""Speed up the installed `gguf` package in place, and with it the programs that read GGUF files through it.

``install()`` changes methods on the package's own classes, so that names imported before and after are both covered;
``uninstall()`` puts everything back. What can't be covered safely stays as it was, and is logged once.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import NamedTuple

from _ggufx_compat import WATCHED, Watcher, is_wanted

from .patching import Patches, say_once

__all__ = ["WATCHED", "Status", "imported", "install", "patched", "status", "uninstall", "vllm_plugin"]


class Status(NamedTuple):
    """What is patched.

    Attributes
    ----------
    installed : bool
        Whether ``install()`` was called, and not undone.
    packages : dict
        Name of each patched module -> its parts -> ``"patched"`` or why it was left alone.
    waiting : tuple of str
        Modules that will be patched when they are imported.
    """

    installed: bool
    packages: dict[str, dict[str, str]]
    waiting: tuple[str, ...]


_Parts = dict[str, Callable[[Patches], str]]


def _gguf(module: ModuleType) -> _Parts:
    from . import gguf_package

    return gguf_package.parts(module)


def _transformers_loader(module: ModuleType) -> _Parts:
    from . import transformers_package

    return transformers_package.loader_parts(module)


def _transformers_reader(module: ModuleType) -> _Parts:
    from . import transformers_package

    return transformers_package.reader_parts(module)


def _transformers_decoders(module: ModuleType) -> _Parts:
    from . import transformers_package

    return transformers_package.decoder_parts(module)


_FindParts = Callable[[ModuleType], _Parts]
_WATCHED: dict[str, _FindParts] = dict(
    zip(WATCHED, (_gguf, _transformers_loader, _transformers_reader, _transformers_decoders), strict=True)
)
# Modules of gguf whose classes are patched: reloading one makes them anew.
_INNER = ("gguf.gguf_reader", "gguf.quants", "gguf.tensor_mapping")


class _Done(NamedTuple):
    module: ModuleType
    patches: Patches
    parts: dict[str, str]


_lock = threading.RLock()


def _after_fork() -> None:
    """Another thread may have held the lock, and doesn't exist here."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

_active = False
_done: dict[str, _Done] = {}


def _apply(name: str, module: ModuleType, find_parts: _FindParts) -> None:
    """Patch what isn't patched yet, or not any more since a module was reloaded or imported a second time."""
    with _lock:
        before = _done.get(name)
        same = before is not None and before.module is module
        if before is not None and same and not before.patches.moved():
            return
        # Of a module imported a second time the first copy may still be in use, and is put back with the second.
        patches = Patches() if before is None else before.patches
        found = find_parts(module)
        moved = patches.moved() if same else set(found)
        parts = {}
        for part, patch in found.items():
            if before is not None and part not in moved:
                parts[part] = before.parts[part]
                continue
            parts[part] = patches.apply(part, patch)
            if parts[part] != "patched":
                say_once(f"{name}, {part}: {parts[part]}")
        _done[name] = _Done(module, patches, parts)


def imported(module: ModuleType) -> None:
    """Patch a watched module that has just been imported; called by the import hook."""
    if _active:
        _apply(module.__name__, module, _WATCHED[module.__name__])


def _inner_imported(module: ModuleType) -> None:
    with _lock:
        done = _done.get("gguf")
        # Not while the package itself is being imported: its own turn comes after.
        if _active and done is not None and done.module is sys.modules.get("gguf"):
            _apply("gguf", done.module, _gguf)


_CALLBACKS: dict[str, Callable[[ModuleType], object]] = {
    **dict.fromkeys(_WATCHED, imported),
    **dict.fromkeys(_INNER, _inner_imported),
}
_watcher = Watcher(_CALLBACKS)


def install(package: ModuleType | None = None) -> Status:
    """Patch the `gguf` package, and transformers' use of it, now or when they are imported.

    Parameters
    ----------
    package : module, optional
        Another copy of the `gguf` package, imported under another name, to patch as well.

    Returns
    -------
    Status
        What was patched, and what is waited for.

    Raises
    ------
    TypeError
        If `package` isn't a module.

    Notes
    -----
    Calling it again changes nothing, unless a module was reloaded in between: then its new classes are patched too.
    Child processes inherit the patches by fork; under spawn, set GGUFX_COMPAT=1 or call it in the child. Nothing is
    imported, no thread is started.

    Examples
    --------
    >>> import ggufx.compat
    >>> ggufx.compat.install()  # doctest: +SKIP
    """
    global _active
    if package is not None and not isinstance(package, ModuleType):
        raise TypeError(f"package must be a module, not {type(package).__name__}")
    with _lock:
        _active = True
        _watcher.start()
        for name, patch in _WATCHED.items():
            module = sys.modules.get(name)
            # A module that is still being imported is left to the watcher.
            if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
                _apply(name, module, patch)
        if package is not None:
            _apply(package.__name__, package, _gguf)
        return status()


def uninstall() -> None:
    """Put back everything that `install` changed; objects already made keep working."""
    global _active
    with _lock:
        _active = False
        _watcher.stop()
        while _done:
            _done.popitem()[1].patches.undo()


@contextmanager
def patched(package: ModuleType | None = None) -> Iterator[Status]:
    """Patch inside a ``with`` block; what was installed before it stays installed after it.

    Parameters
    ----------
    package : module, optional
        As for `install`.
    """
    before = set(_done)
    was_active = _active
    try:
        yield install(package)
    finally:
        if not was_active:
            uninstall()
        else:
            with _lock:
                for name in set(_done) - before - set(_WATCHED):
                    _done.pop(name).patches.undo()


def status() -> Status:
    """Tell what is patched now."""
    with _lock:
        packages = {name: {part: _now(done, part) for part in done.parts} for name, done in _done.items()}
        return Status(_active, packages, tuple(n for n in _WATCHED if n not in packages) if _active else ())


def _now(done: _Done, part: str) -> str:
    if part in done.patches.moved():
        return "not patched: its module was reloaded since; install() again patches it"
    others = done.patches.overridden(part)
    if others:
        return f"{done.parts[part]}, but somebody else has replaced {', '.join(others)} since"
    return done.parts[part]


def vllm_plugin() -> None:
    """Entry point of the group ``vllm.general_plugins``: installs where GGUFX_COMPAT is set."""
    if is_wanted():
        install()
