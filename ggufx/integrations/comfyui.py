"""ComfyUI-GGUF: decoding weights on the CPU in each forward pass, and without its slow fallback for lacking types.

With ``ggufx.compat.install`` (or GGUFX_COMPAT=1) that fallback, which goes through the `gguf` package, is already fast,
and so is opening files. This goes further and changes the last bits of float16 results:
``ggufx.integrations.comfyui.install()``, e.g. from a custom node's ``__init__.py``.
"""

from __future__ import annotations

import sys
import threading
from types import ModuleType
from typing import Any

from .. import compat
from ..compat.patching import Patches

__all__ = ["install", "uninstall"]

_lock = threading.Lock()
_patched: dict[ModuleType, Patches] = {}


def _looks_right(module: Any) -> bool:
    return (
        isinstance(module, ModuleType)
        and isinstance(vars(module).get("dequantize_functions"), dict)
        and callable(vars(module).get("dequantize_tensor"))
        and hasattr(vars(module).get("gguf"), "GGMLQuantizationType")
    )


def install(module: ModuleType | None = None) -> None:
    """Decode blocks on the CPU with ggufx in ComfyUI-GGUF; on other devices its own code runs.

    Parameters
    ----------
    module : module, optional
        Its module ``dequant``. By default every loaded module that has the same functions, since ComfyUI gives custom
        nodes names of its own.

    Raises
    ------
    ImportError
        If no such module is loaded yet.
    TypeError
        If `module` isn't one.
    """
    from .block_functions import replace_functions

    if module is not None and not _looks_right(module):
        raise TypeError(f"{module!r} isn't ComfyUI-GGUF's module dequant")
    found = [module] if module is not None else [m for m in list(sys.modules.values()) if _looks_right(m)]
    if not found:
        raise ImportError("no module of ComfyUI-GGUF is loaded: install after its custom node was imported")
    with _lock:
        compat.install()
        for each in found:
            if each not in _patched:
                _patched[each] = patches = Patches()
                replace_functions(each.dequantize_functions, each.gguf.GGMLQuantizationType, patches)


def uninstall() -> None:
    """Put back what `install` changed in ComfyUI-GGUF; ``ggufx.compat.uninstall`` does the rest."""
    with _lock:
        while _patched:
            _patched.popitem()[1].undo()
