"""Waits for packages to be imported, to patch them then. Imports nothing itself, so that starting Python stays fast.

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

__all__ = ["WATCHED", "Watcher", "activate", "is_wanted"]


class _Loader:
    """Stands in for a module's loader until the module has run, then calls back."""

    def __init__(self, loader: "Any", watcher: "Watcher", name: str) -> None:
        self._loader = loader
        self._watcher = watcher
        self._name = name

    def __getattr__(self, name: str) -> "Any":
        return getattr(self._loader, name)

    def create_module(self, spec: "ModuleSpec") -> "Any":
        return self._loader.create_module(spec)

    def exec_module(self, module: "ModuleType") -> None:
        # Nobody is to see the stand-in: inspect, pickle and importlib.resources ask a module for its loader.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._watcher.imported(self._name, module)


class Watcher:
    """A finder that finds nothing itself: it lets the others find the watched modules, and calls back after each.

    Parameters
    ----------
    callbacks : dict
        Module name -> function called with the module once it has been imported.
    """

    def __init__(self, callbacks: "dict[str, Callable[[ModuleType], object]]") -> None:
        self._callbacks = callbacks
        self._busy: set[str] = set()

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        if name not in self._callbacks or name in self._busy:
            return None
        self._busy.add(name)
        try:
            for finder in sys.meta_path:
                find = getattr(finder, "find_spec", None)
                spec = None if find is None or finder is self else find(name, path, target)
                if spec is not None:
                    if hasattr(spec.loader, "exec_module"):
                        spec.loader = _Loader(spec.loader, self, name)
                    return spec  # type: ignore[no-any-return]
        finally:
            self._busy.discard(name)
        return None

    def imported(self, name: str, module: "ModuleType") -> None:
        callback = self._callbacks.get(name)
        if callback is not None and self in sys.meta_path:
            callback(module)

    def start(self) -> None:
        """Watch from now on."""
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def stop(self) -> None:
        """Watch no longer."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)


def _install(module: "ModuleType") -> None:
    # Whatever goes wrong here must not keep anybody's program from starting.
    try:
        _waiting.stop()
        from ggufx import compat

        compat.install()
        compat.imported(module)
    except Exception as error:
        print(f"ggufx: GGUFX_COMPAT is set, but patching failed: {error!r}", file=sys.stderr)


WATCHED = (
    "gguf",
    "transformers.modeling_gguf_pytorch_utils",
    "transformers.integrations.gguf.reader",
    "transformers.integrations.gguf.dequant",
)
_waiting = Watcher(dict.fromkeys(WATCHED, _install))


def is_wanted() -> bool:
    """Whether GGUFX_COMPAT is set, and not to nothing, 0, no, off or false."""
    return os.environ.get("GGUFX_COMPAT", "").strip().lower() not in ("", "0", "no", "off", "false")


def activate() -> None:
    """Call ``ggufx.compat.install`` as soon as the first of the watched modules is imported, where it is wanted."""
    if not is_wanted():
        return
    if "gguf" in sys.modules:
        _install(sys.modules["gguf"])
    else:
        _waiting.start()
