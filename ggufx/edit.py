"""Public path of :mod:`ggufx.write.edit`: change a file's metadata."""

from .callable_module import make_callable
from .write.edit import Edited, edit, undo_unfinished

__all__ = ["Edited", "edit", "undo_unfinished"]

make_callable(__name__)
