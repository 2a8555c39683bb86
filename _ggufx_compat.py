"""Waits for packages to be imported, to patch them then. Imports nothing itself, so that starting Python stays fast.

The file ``ggufx_compat.pth`` beside it runs in every interpreter of the environment, and imports this module only where
GGUFX_COMPAT is set at all. Everything else is in ``ggufx.compat``.
"""

import os
import sys
from _frozen_importlib import ModuleSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any

__all__ = ["WATCHED", "Watcher", "activate", "is_wanted", "take_over"]


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
        self._watcher.running.add(self._name)
        try:
            self._loader.exec_module(module)
        finally:
            self._watcher.running.discard(self._name)
        self._watcher.imported(self._name, module)


def _is_being_imported(spec: object) -> bool:
    return getattr(spec, "_initializing", False) is True  # a mock's attribute is something else


class Watcher:
    """A finder that finds nothing itself: it lets the others find the watched modules, and calls back after each.

    Parameters
    ----------
    callbacks : dict
        Module name -> function called with the name and the module once it has been imported.
    """

    def __init__(self, callbacks: "dict[str, Callable[[str, ModuleType], object]]") -> None:
        self._callbacks = callbacks
        self._busy: set[str] = set()  # importlib looks for one module at a time
        self.running: set[str] = set()

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        if name not in self._callbacks or name in self._busy:
            # A package may have been found just before anybody watched, and been noticed by nobody.
            package = name.rpartition(".")[0]
            if package in self._callbacks and package not in self.running:
                self.follow(package)
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
        """Call back; what stands in sys.modules counts, which the module itself may have replaced."""
        self._callbacks[name](name, sys.modules.get(name, module))

    def follow(self, name: str) -> bool:
        """Call back when a module has been imported whose import began before anybody watched.

        Parameters
        ----------
        name : str
            Of a watched module.

        Returns
        -------
        bool
            Whether it is still being imported.
        """
        spec = getattr(sys.modules.get(name), "__spec__", None)
        if not _is_being_imported(spec):
            return False
        watcher = self

        class Followed(ModuleSpec):
            # All that importlib does at the end of an import, whose finder and loader are chosen already.
            def __setattr__(self, key: str, value: object) -> None:
                if key == "_initializing" and not value and type(self) is Followed:
                    object.__setattr__(self, "__class__", ModuleSpec)
                    try:
                        if name in sys.modules:  # otherwise it failed
                            watcher.imported(name, sys.modules[name])
                    finally:
                        object.__setattr__(self, key, value)
                else:
                    object.__setattr__(self, key, value)

        if type(spec) is ModuleSpec:
            spec.__class__ = Followed
            if not _is_being_imported(spec):  # it ended while we looked
                spec.__class__ = ModuleSpec
                return False
        return True

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


WATCHED = (
    "gguf",
    "transformers.modeling_gguf_pytorch_utils",
    "transformers.integrations.gguf.reader",
    "transformers.integrations.gguf.dequant",
    "transformers.modeling_utils",
    "gguf_connector.reader",
    "gguf_connector.quant",
)
_waiting = Watcher(dict.fromkeys(WATCHED, _install))


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
    if not is_wanted():
        return
    _waiting.start()
    if "gguf" in sys.modules and not _waiting.follow("gguf"):
        _install("gguf", sys.modules["gguf"])
