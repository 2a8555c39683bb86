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

from _ggufx_compat import WATCHED, Watcher, is_wanted, take_over

from .locks import Lock
from .patching import Patches, State, say_once

__all__ = ["WATCHED", "Status", "imported", "install", "patched", "status", "uninstall", "vllm_plugin"]


class Status(NamedTuple):
    """What is patched.

    Attributes
    ----------
    installed : bool
        Whether ``install()`` was called and not undone, GGUFX_COMPAT=1 did so, or a block of ``patched()`` is running.
    packages : dict
        Name of each patched module -> its parts -> ``"patched"`` or why it was left alone.
    waiting : tuple of str
        Modules that will be patched when they are imported.
    """

    installed: bool
    packages: dict[str, dict[str, str]]
    waiting: tuple[str, ...]


_Parts = dict[str, Callable[[Patches], State]]


def _gguf(module: ModuleType) -> _Parts:
    from ..compat import gguf_package

    return gguf_package.parts(module)


def _transformers_loader(module: ModuleType) -> _Parts:
    from ..compat import transformers_package

    return transformers_package.loader_parts(module)


def _transformers_reader(module: ModuleType) -> _Parts:
    from ..compat import transformers_package

    return transformers_package.reader_parts(module)


def _transformers_decoders(module: ModuleType) -> _Parts:
    from ..compat import transformers_package

    return transformers_package.decoder_parts(module)


def _transformers_models(module: ModuleType) -> _Parts:
    from ..compat import transformers_loads

    return transformers_loads.parts(module)


_FindParts = Callable[[ModuleType], _Parts]
_WATCHED: dict[str, _FindParts] = dict(
    zip(
        WATCHED,
        (
            _gguf,
            _transformers_loader,
            _transformers_reader,
            _transformers_decoders,
            _transformers_models,
            _gguf,
            _gguf,
        ),
        strict=True,
    )
)
# Modules of gguf whose classes are patched: reloading one makes them anew.
_INNER = ("gguf.gguf_reader", "gguf.quants", "gguf.tensor_mapping")


class _Done(NamedTuple):
    module: ModuleType
    patches: Patches
    parts: dict[str, State]


class _Hold:
    """What keeps the patches in place: ``install()``, or one block of ``patched()``."""

    def __init__(self, thread: int | None) -> None:
        self.thread = thread
        self.packages: set[str] = set()  # other copies of gguf


_lock = Lock()
_by_install = _Hold(None)
# Those that hold now; the last to go takes the patches with it.
_holds: list[_Hold] = []
_done: dict[str, _Done] = {}


def _after_fork() -> None:
    """Blocks of other threads don't run here, and what they were just patching is to be patched anew."""
    for name in [n for n, done in _done.items() if done.patches.was_lost]:
        del _done[name]
    _holds[:] = [h for h in _holds if h.thread in (None, threading.get_ident())]
    _undo_unheld()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


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
        parts: dict[str, State] = {}
        with patches.by_this_thread():
            try:
                for part, patch in found.items():
                    if before is not None and part not in moved:
                        parts[part] = before.parts[part]
                        continue
                    parts[part] = state = patches.apply(part, patch)
                    if isinstance(state, str) and state != "patched":
                        say_once(f"{name}, {part}: {parts[part]}")
            finally:
                _done[name] = _Done(module, patches, parts)


def _undo_unheld() -> None:
    """Put back what nobody holds any more, the last first."""
    if not _holds:
        _watcher.stop()
    held = set().union(*(h.packages for h in _holds), _WATCHED if _holds else ())
    for name in [n for n in reversed(_done) if n not in held]:
        patches = _done[name].patches
        with patches.by_this_thread():
            del _done[name]
            patches.undo()


def _hold(hold: _Hold, package: ModuleType | None) -> Status:
    with _lock:
        if hold not in _holds:
            _holds.append(hold)
        _watcher.start()
        for name, patch in _WATCHED.items():
            module = sys.modules.get(name)
            # One that is still being imported, by whatever thread, is patched when it has been.
            if module is not None and not _watcher.follow(name):
                _apply(name, module, patch)
        if package is not None:
            # One that calls itself something else may be here already.
            name = next((n for n, done in _done.items() if done.module is package), package.__name__)
            hold.packages.add(name)
            _apply(name, package, _gguf)
        return _status(False)


def _release(hold: _Hold) -> None:
    with _lock:
        if hold in _holds:
            _holds.remove(hold)
        hold.packages.clear()
        _undo_unheld()


def _check(package: ModuleType | None) -> None:
    if package is not None and not isinstance(package, ModuleType):
        raise TypeError(f"package must be a module, not {type(package).__name__}")


def imported(name: str, module: ModuleType) -> None:
    """Patch the watched module `name` that has just been imported; called by the import hooks."""
    # Whatever goes wrong here must not break the import.
    try:
        with _lock:
            if _holds:
                _apply(name, module, _WATCHED[name])
    except Exception as error:
        say_once(f"{name}: left alone: patching it failed ({error!r})")


def _inner_imported(name: str, module: ModuleType) -> None:
    with _lock:
        done = _done.get("gguf")
        # Not while the package itself is being imported: its own turn comes after.
        if done is not None and done.module is sys.modules.get("gguf"):
            imported("gguf", done.module)


_CALLBACKS: dict[str, Callable[[str, ModuleType], object]] = {
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
    imported, no thread is started: a module that is being imported just now is patched when that ends.

    Examples
    --------
    >>> import ggufx.compat
    >>> ggufx.compat.install()  # doctest: +SKIP
    """
    _check(package)
    return _hold(_by_install, package)


def uninstall() -> None:
    """Take back `install`, and GGUFX_COMPAT=1; objects already made keep working.

    Everything that was changed is put back, at once or, while a block of `patched` is running, when that ends.
    """
    _release(_by_install)


@contextmanager
def patched(package: ModuleType | None = None) -> Iterator[Status]:
    """Patch inside a ``with`` block; what `install` or other blocks, of any thread, have patched stays after it.

    Parameters
    ----------
    package : module, optional
        As for `install`.

    Raises
    ------
    TypeError
        If `package` isn't a module.

    Notes
    -----
    The patches are in place for all threads meanwhile. A child forked by another thread doesn't have them.
    """
    _check(package)
    hold = _Hold(threading.get_ident())
    try:
        yield _hold(hold, package)
    finally:
        _release(hold)


def status() -> Status:
    """Tell what is patched now.

    What wasn't used yet is compared with the original for it, which takes a tenth of a second; `install` and `patched`
    take it for patched.
    """
    return _status(True)


def _status(compare: bool) -> Status:
    with _lock:
        packages = {name: {part: _now(done, part, compare) for part in done.parts} for name, done in _done.items()}
        return Status(bool(_holds), packages, tuple(n for n in _WATCHED if n not in packages) if _holds else ())


def _now(done: _Done, part: str, compare: bool) -> str:
    if part in done.patches.moved():
        return "not patched: its module was reloaded since; install() again patches it"
    others = done.patches.overridden(part)
    state = done.parts[part]
    if not isinstance(state, str):
        state = state() if compare else "patched"
    return f"{state}, but somebody else has replaced {', '.join(others)} since" if others else state


def vllm_plugin() -> None:
    """Entry point of the group ``vllm.general_plugins``: installs where GGUFX_COMPAT is set."""
    if is_wanted():
        install()


# GGUFX_COMPAT=1 has asked for it, and was waiting for the first import: from here on that's a call of install().
if take_over():
    install()
