"""The errors and warnings of ggufx.

Anything wrong *in a file or its data* is a :class:`GGUFError`; wrong *arguments* raise ``TypeError`` or
``ValueError`` in numpy's manner; a missing optional package raises ``ImportError`` naming the extra.
"""

from __future__ import annotations

__all__ = ["GGUFError", "GGUFWarning", "PathUnavailableError"]


class GGUFError(ValueError):
    """A GGUF file, or the bytes of a tensor, are not what they should be.

    The message names the file, the tensor or key, what was found and what was expected.
    """


class PathUnavailableError(ValueError):
    """A decode path was asked for that this CPU or this build does not have."""


class GGUFWarning(UserWarning):
    """A choice that loses something: values that overflow a half, a fallback type, an expert that never fired."""
