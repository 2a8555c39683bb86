"""diffusers: decoding the weights of GGUF layers on the CPU in each forward pass, and the types diffusers lacks.

``ggufx.compat.install`` already speeds up opening the file. This goes further, and changes the last bits of float16
results, so it is a step of its own: ``ggufx.integrations.diffusers.install()``.
"""

from __future__ import annotations

import threading
from typing import Any

from .. import compat
from ..compat.patching import Patches

__all__ = ["install", "uninstall"]

_lock = threading.Lock()
_patches = Patches()
_installed: list[Any] = []


def install() -> None:
    """Decode blocks on the CPU with ggufx in diffusers' GGUF layers; on other devices diffusers' own code runs.

    Raises
    ------
    ImportError
        If diffusers (with GGUF support) isn't installed.
    """
    try:
        import gguf
        from diffusers.quantizers.gguf import utils
    except ImportError as error:
        raise ImportError(f"this needs diffusers, torch and gguf: {error}") from error
    from .block_functions import replace_functions

    with _lock:
        if _installed:
            return
        compat.install()
        added = replace_functions(utils.dequantize_functions, gguf.GGMLQuantizationType, _patches)
        # The list that its loader checks is another object.
        utils.SUPPORTED_GGUF_QUANT_TYPES.extend(added)
        _installed.append((utils.SUPPORTED_GGUF_QUANT_TYPES, added))


def uninstall() -> None:
    """Put back what `install` changed in diffusers; ``ggufx.compat.uninstall`` does the rest."""
    with _lock:
        _patches.undo()
        while _installed:
            supported, added = _installed.pop()
            for kind in added:
                supported.remove(kind)
