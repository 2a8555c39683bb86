"""New files and changed ones: metadata and tensors to bytes, and files that appear whole or not at all."""

from typing import TYPE_CHECKING, Any

from ..callable_module import make_callable

if TYPE_CHECKING:
    from .writer import Writer, write

__all__ = ["Writer", "write"]


def __getattr__(name: str) -> Any:
    # Late, since modules of this room are imported by others that don't need the writer.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import writer

    return getattr(writer, name)


make_callable(__name__)
