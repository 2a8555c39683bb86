"""Bringing checkpoints in: Hugging Face folders to GGUF files."""

from typing import TYPE_CHECKING, Any

from ..callable_module import make_callable

if TYPE_CHECKING:
    from .job import Converted, convert

__all__ = ["Converted", "convert"]


def __getattr__(name: str) -> Any:
    # Late, so that a module of this room can be imported without all the others.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import job

    return getattr(job, name)


make_callable(__name__)
