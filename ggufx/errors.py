"""The errors and warnings of ggufx.

Anything wrong *in a file or its data* is a :class:`GGUFError`; wrong *arguments* raise ``TypeError`` or
``ValueError`` in numpy's manner; a missing optional package raises ``ImportError`` naming the extra.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

__all__ = [
    "GGUFError",
    "GGUFWarning",
    "NoAttributeError",
    "PathUnavailableError",
    "UnknownNameError",
    "naming",
    "near_names",
]


class GGUFError(ValueError):
    """A GGUF file, or the bytes of a tensor, are not what they should be.

    The message names the file, the tensor or key, what was found and what was expected.
    """


class NoAttributeError(GGUFError, AttributeError):
    """What arrays have and packed data can't; the message says what to do instead."""


class PathUnavailableError(ValueError):
    """A decode path was asked for that this CPU or this build does not have."""


class UnknownNameError(KeyError):
    """A tensor, metadata key or block that isn't there; the message has near names.

    Parameters
    ----------
    message : str
        What was looked for, and where.
    name : str, optional
        The name that wasn't there.
    known : iterable of str, optional
        The names that are. They are compared only when the message is read, since most lookups that fail are caught.
    """

    def __init__(self, message: str, name: object = None, known: Iterable[str] = ()) -> None:
        super().__init__(message)
        self._name, self._known = name, known

    def __str__(self) -> str:
        # Without the quotes that KeyError puts around its message.
        return f"{self.args[0]}{near_names(self._name, self._known)}"

    def __reduce__(self) -> tuple[type[UnknownNameError], tuple[str]]:
        return UnknownNameError, (str(self),)


class GGUFWarning(UserWarning):
    """A choice that loses something: values that overflow a half, a fallback type, an expert that never fired."""


def near_names(name: object, known: Iterable[str]) -> str:
    """Word the names that `name` may have been meant for, to follow an error message; empty if none is near."""
    from difflib import get_close_matches

    if not isinstance(name, str):
        return ""
    found = get_close_matches(name, list(known), 3, 0.6)
    return f"; did you mean {' or '.join(map(repr, found))}?" if found else ""


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Give a system error that names no file (of a map, a write, a sync ...) the file's name."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            raise OSError(error.errno, error.strerror or os.strerror(error.errno), path) from error
        raise
