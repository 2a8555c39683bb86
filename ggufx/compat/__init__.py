"""Speed up the installed `gguf` package in place, and with it the programs that read GGUF files through it.

``install()`` changes methods on the package's own classes, so that names imported before and after are both covered;
``uninstall()`` puts everything back. What can't be covered safely stays as it was, and is logged once.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import NamedTuple

from _ggufx_compat import WATCHED, Watcher, is_wanted, take_over

from .patching import Patches, State, say_once

__all__ = [
    "WATCHED",
    "Status",
    "imported",
    "install",
    "patched",
    "status",
    "uninstall",
    "vllm_plugin",
]


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


def _parts(name: str, module: ModuleType) -> _Parts:
    """What there is to patch in a module, with the functions that do it; their packages are imported only then."""
    if name.startswith("transformers."):
        from . import transformers_package

        return transformers_package.parts(name, module)
    from . import gguf_package

    return gguf_package.parts(module)


class _Done(NamedTuple):
    name: str
    module: ModuleType
    patches: Patches
    parts: dict[str, State]


_lock = threading.RLock()
_installed = False
_blocks = 0  # of `patched` that are running
_done: list[_Done] = []


def _apply(name: str, module: ModuleType) -> None:
    done = _Done(name, module, Patches(), {})
    _done.append(done)
    for part, patch in _parts(name, module).items():
        mine = Patches()
        try:
            state = patch(mine)
        except Exception as error:  # a stub, or something stranger
            mine.undo()
            state = f"left alone: it isn't what it should be ({error!r})"
        done.patches.add(mine)
        done.parts[part] = state
        if isinstance(state, str) and state != "patched":
            say_once(f"{name}, {part}: {state}")


def _start(package: ModuleType | None) -> Status:
    _watcher.start()
    # One that is just being imported is told by the watcher, when it has been.
    here = {name: sys.modules[name] for name in WATCHED if name in sys.modules}
    found = {name: m for name, m in here.items() if not getattr(getattr(m, "__spec__", None), "_initializing", False)}
    if package is not None:
        from . import gguf_package

        copies = gguf_package.modules_of(package)
        if not copies:
            raise ValueError(f"{package.__name__} has none of gguf's classes: it isn't a copy of gguf")
        found |= {vars(module).get("__name__", "?"): module for module in copies}
    for name, module in found.items():
        if not any(done.module is module for done in _done):
            _apply(name, module)
    return _status(False)


def _stop_unwanted() -> None:
    """Put back everything, the last first, once nobody wants it any more."""
    if not (_installed or _blocks):
        _watcher.stop()
        while _done:
            _done.pop().patches.undo()


def _check(package: ModuleType | None) -> None:
    if package is not None and not isinstance(package, ModuleType):
        raise TypeError(f"package must be a module, not {type(package).__name__}")


def imported(name: str, module: ModuleType) -> None:
    """Patch the watched module `name` that has just been imported, or reloaded; called by the import hooks."""
    # Whatever goes wrong here must not break the import.
    try:
        with _lock:
            if _installed or _blocks:
                _apply(name, module)
    except Exception as error:
        say_once(f"{name}: left alone: patching it failed ({error!r})")


_watcher = Watcher(imported)


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

    ValueError
        If it has none of gguf's classes.

    Notes
    -----
    Call it before threads are started that import or use these packages: nothing waits for them. Calling it again
    changes nothing. Child processes inherit the patches by fork; under spawn, set GGUFX_COMPAT=1 or
    call it in the child. Nothing is imported, no thread is started.

    Examples
    --------
    >>> import ggufx.compat
    >>> ggufx.compat.install()  # doctest: +SKIP
    """
    global _installed
    _check(package)
    with _lock:
        _installed = True
        return _start(package)


def uninstall() -> None:
    """Take back `install`, and GGUFX_COMPAT=1; objects already made keep working.

    Everything that was changed is put back, at once or, while a block of `patched` is running, when that ends.
    """
    global _installed
    with _lock:
        _installed = False
        _stop_unwanted()


@contextmanager
def patched(package: ModuleType | None = None) -> Iterator[Status]:
    """Patch inside a ``with`` block, for all threads; what `install` or other blocks have patched stays after it.

    Parameters
    ----------
    package : module, optional
        As for `install`.

    Raises
    ------
    TypeError, ValueError
        As `install` does.
    """
    global _blocks
    _check(package)
    with _lock:
        _blocks += 1
    try:
        with _lock:
            state = _start(package)
        yield state
    finally:
        with _lock:
            _blocks -= 1
            _stop_unwanted()


def status() -> Status:
    """Tell what is patched now.

    What wasn't used yet is compared with the original for it, which takes a tenth of a second; `install` and `patched`
    take it for patched.
    """
    with _lock:
        return _status(True)


def _status(compare: bool) -> Status:
    packages: dict[str, dict[str, str]] = {}
    for done in _done:
        states = {
            part: state if isinstance(state, str) else state() if compare else "patched"
            for part, state in done.parts.items()
        }
        packages[done.name] = states
    wanted = bool(_installed or _blocks)
    return Status(wanted, packages, tuple(name for name in WATCHED if name not in packages) if wanted else ())


def vllm_plugin() -> None:
    """Entry point of the group ``vllm.general_plugins``: installs where GGUFX_COMPAT is set."""
    if is_wanted():
        install()


# GGUFX_COMPAT=1 has asked for it, and was waiting for the first import: from here on that's a call of install().
if take_over():
    install()
