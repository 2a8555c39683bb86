"""Waits for modules to be imported, to patch them then. Imports nothing itself, so that starting Python stays fast.

The file ``ggufx_compat.pth`` beside it runs in every interpreter of the environment, and imports this module only where
GGUFX_COMPAT is set at all. Everything else is in ``ggufx.compat``.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

__all__ = ["WATCHED", "Watcher", "activate", "is_wanted", "take_over"]

WATCHED = (
    "gguf.gguf_reader",
    "gguf.quants",
    "gguf.tensor_mapping",
    "gguf_connector.reader",
    "gguf_connector.quant",
    "transformers.modeling_gguf_pytorch_utils",
    "transformers.integrations.gguf.reader",
    "transformers.integrations.gguf.dequant",
    "transformers.modeling_utils",
)


class Watcher:
    """A finder that finds nothing itself: it lets the others find the watched modules, and calls back after each.

    Parameters
    ----------
    callback : function
        Called with the name and the module once it has been imported.
    """

    def __init__(self, callback: "Callable[[str, ModuleType], object]") -> None:
        self._callback = callback
        self._busy: set[str] = set()  # importlib looks for one module at a time

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        if name not in WATCHED or name in self._busy:
            return None
        self._busy.add(name)
        try:
            for finder in sys.meta_path:
                find = getattr(finder, "find_spec", None)
                spec = None if find is None or finder is self else find(name, path, target)
                if spec is not None:
                    self._follow(name, spec.loader)
                    return spec  # type: ignore[no-any-return]
        finally:
            self._busy.discard(name)
        return None

    def _follow(self, name: str, loader: "Any") -> None:
        """Call back when the loader has run the module."""
        run: Any = getattr(loader, "exec_module", None)

        def exec_module(module: "ModuleType") -> None:
            vars(loader).pop("exec_module", None)
            run(module)
            self._callback(name, module)

        # A loader that is a class, or has no attributes of its own, isn't one of a file's source.
        if run is not None and not isinstance(loader, type) and hasattr(loader, "__dict__"):
            loader.exec_module = exec_module

    def start(self) -> None:
        """Watch from now on."""
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def stop(self) -> None:
        """Watch no longer."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)


def _install(name: str, module: "ModuleType") -> None:
    # Whatever goes wrong here must not keep anybody's program from starting.
    try:
        from ggufx import compat  # takes over from here

        compat.imported(name, module)
    except Exception as error:
        _waiting.stop()
        print(f"ggufx: GGUFX_COMPAT is set, but patching failed: {error!r}", file=sys.stderr)


_waiting = Watcher(_install)


def is_wanted() -> bool:
    """Whether GGUFX_COMPAT is set, and not to nothing, 0, no, off or false."""
    return os.environ.get("GGUFX_COMPAT", "").strip().lower() not in ("", "0", "no", "off", "false")


def take_over() -> bool:
    """Stop waiting, for good; tells whether anything was waited for."""
    waits = _waiting in sys.meta_path
    _waiting.stop()
    return waits


def activate() -> None:
    """Call ``ggufx.compat.install`` as soon as the first of the watched modules is imported, where it is wanted."""
    if is_wanted():
        _waiting.start()
        for name in WATCHED:
            if name in sys.modules:  # by another line of the environment
                _install(name, sys.modules[name])
