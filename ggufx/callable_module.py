"""Modules that can be called: ``ggufx.write(...)`` is a function's name, and ``ggufx.write`` a package's as well.

Importing a submodule binds it in its package, over a function of the same name. Such a module passes calls on to its
function, so that ``ggufx.edit(...)`` and ``from ggufx.edit import edit`` both work, in any order.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

__all__ = ["make_callable"]


class _CallableModule(ModuleType):
    @property
    def _function(self) -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(self, self.__name__.rpartition(".")[2])
        return function

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


def make_callable(name: str) -> None:
    """Let the imported module of this dotted name pass calls on to its function of the same name.

    Parameters
    ----------
    name : str
        The module's ``__name__``. The function may come from the module's ``__getattr__``.
    """
    sys.modules[name].__class__ = _CallableModule
