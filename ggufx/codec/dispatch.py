"""Which path decodes: the compiled ones this CPU can run, best first, and numpy, which always can."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from ..errors import PathUnavailableError

try:
    from .. import _native
except ImportError as _error:  # installed without a compiler, or on a platform the extension wasn't built for
    _native = None  # type: ignore[assignment]
    # "Cannot import name" is how Python says that there is no such file; anything else is the loader's complaint.
    _missing_extension = "it wasn't built" if "cannot import name" in str(_error) else str(_error)
    _PACKAGE = os.path.dirname(os.path.dirname(__file__))
    if os.path.exists(os.path.join(_PACKAGE, os.pardir, "setup.py")):
        # The current folder comes first for `python -m`, so this may not be the package that was installed.
        _missing_extension += f" in the source tree {os.path.dirname(_PACKAGE)!r}"

__all__ = ["NUMPY", "available", "default_floats", "native", "problems", "resolve"]

NUMPY: Final = -1
"""The index that stands for the numpy reference; compiled paths count from 0."""

native = _native

_KNOWN = ("avx512", "avx2", "neon", "scalar") if _native is None else tuple(name for name, _ in _native.paths())


def _find_problems() -> dict[str, str]:
    if _native is None:
        why = f"the compiled extension isn't there ({_missing_extension})"
        return dict.fromkeys(_KNOWN, why)
    return {name: problem for name, problem in _native.paths() if problem is not None}


_problems = _find_problems()
_indices = {name: i for i, name in enumerate(_KNOWN) if name not in _problems} | {"numpy": NUMPY}
_forced = os.environ.get("GGUFX_PATH") or None  # read once: the path is chosen at import
_best = next(iter(_indices.values()))


def available() -> tuple[str, ...]:
    """Names of the paths that can run here, best first.

    Returns
    -------
    tuple of str
        Some of ``"avx512"``, ``"avx2"``, ``"neon"``, ``"scalar"``, and always ``"numpy"``.
    """
    return tuple(_indices)


def problems() -> Mapping[str, str]:
    """Why each of the other paths can't run here."""
    return _problems


def resolve(path: str | None) -> int:
    """Index of a path by name; None means GGUFX_PATH, or the best.

    Raises
    ------
    PathUnavailableError
        If this CPU or build lacks the path; the message lists the choices.
    """
    if path is None:
        if _forced is None:
            return _best
        path = _forced
    try:
        return _indices[path]
    except KeyError:
        why = f": {_problems[path]}" if path in _problems else ""
        origin = " (from GGUFX_PATH)" if path == _forced else ""
        raise PathUnavailableError(
            f"path {path!r}{origin} isn't available{why}; choose one of {', '.join(_indices)}"
        ) from None


def active() -> str:
    """Name of the path used where none is given."""
    index = resolve(None)
    return next(name for name, i in _indices.items() if i == index)


@contextmanager
def default_floats() -> Iterator[None]:
    """Let numpy compute as IEEE 754 has it, in this thread.

    It computes as the thread is set to, and other libraries leave flush-to-zero on. Compiled paths see to it
    themselves; without the extension there is no way to.
    """
    if native is None:
        yield
        return
    control = native.fp_default()
    try:
        yield
    finally:
        native.fp_restore(control)
