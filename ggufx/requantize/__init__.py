"""A file into another mix of types: mixes, importance, sizes and plans, and the job that does it."""

from typing import TYPE_CHECKING, Any

from ..callable_module import make_callable

if TYPE_CHECKING:
    from .job import requantize
    from .metadata import Override
    from .options import Options
    from .report import Report

__all__ = ["Options", "Override", "Report", "requantize"]

_LATE = {"Options": ".options", "Override": ".metadata", "Report": ".report", "requantize": ".job"}


def __getattr__(name: str) -> Any:
    # Late, so that a module of this room can be imported without all the others.
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LATE[name], __name__), name)


make_callable(__name__)
