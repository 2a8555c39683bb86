"""Checkpoints in and out: Hugging Face folders to GGUF files, and the way back."""

from typing import TYPE_CHECKING, Any

from ..callable_module import make_callable

if TYPE_CHECKING:
    from .job import Converted, convert
    from .save import SavedCheckpoint, save_checkpoint

__all__ = ["Converted", "SavedCheckpoint", "convert", "save_checkpoint"]

_LATE = {"Converted": ".job", "SavedCheckpoint": ".save", "convert": ".job", "save_checkpoint": ".save"}


def __getattr__(name: str) -> Any:
    # Late, so that a module of this room can be imported without all the others.
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LATE[name], __name__), name)


make_callable(__name__)
