"""Loading several transformers models at once in threads of one process.

``from_pretrained`` makes a model without memory, and for that time changes what belongs to the process: torch's default
dtype, functions of torch, and ``PreTrainedModel.tie_weights``, which does nothing meanwhile. Of two threads that do so,
the second puts back for good what the first had put there, and who loads beside them gets a model whose tied weights
have no memory. Here one thread at a time does it, and tying is off for that thread alone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import unwrap
from types import FunctionType, ModuleType
from typing import Any

from .patching import Patches

__all__ = ["is_swapped", "patch_making"]

# Held while a model is made, and while what its file lacks is filled in.
_making = threading.RLock()
_here = threading.local()


def is_swapped(base: Any) -> bool:
    """Whether ``tie_weights`` is transformers' function that does nothing, at this moment or for good."""
    return ".<locals>.empty_func" in getattr(vars(base).get("tie_weights"), "__qualname__", "")


def patch_making(module: ModuleType, patches: Patches) -> str:
    """Patch ``transformers.modeling_utils``: one thread at a time makes a model."""
    base = module.PreTrainedModel
    contexts, finish = vars(base).get("get_init_context"), vars(base).get("_finalize_model_loading")
    if not isinstance(contexts, classmethod) or not isinstance(finish, staticmethod):
        return "left alone: this version isn't known"
    switch_off = getattr(getattr(module, "init", None), "no_tie_weights", None)
    code = getattr(unwrap(switch_off) if callable(switch_off) else None, "__code__", None)
    if code is None or not {"PreTrainedModel", "tie_weights"} <= set(code.co_names):
        return "left alone: this version isn't known"
    tie = vars(base).get("tie_weights")
    if not isinstance(tie, FunctionType) or is_swapped(base):
        return "left alone: another thread is loading a model, or has left PreTrainedModel.tie_weights replaced"

    @wraps(contexts.__func__)
    def get_init_context(cls: Any, *args: Any, **options: Any) -> list[Any]:
        return [_making, *contexts.__func__(cls, *args, **options)]

    @wraps(finish.__func__)
    def _finalize_model_loading(*args: Any, **options: Any) -> Any:
        with _making:
            return finish.__func__(*args, **options)

    @wraps(tie)
    def tie_weights(self: Any, *args: Any, **options: Any) -> Any:
        return None if getattr(_here, "untied", 0) else tie(self, *args, **options)

    @contextmanager
    def no_tie_weights() -> Iterator[None]:
        _here.untied = getattr(_here, "untied", 0) + 1
        try:
            yield
        finally:
            _here.untied -= 1

    patches.set(base, "tie_weights", tie_weights)
    patches.set(module.init, "no_tie_weights", no_tie_weights)
    patches.set(base, "_finalize_model_loading", staticmethod(_finalize_model_loading))
    patches.set(base, "get_init_context", classmethod(get_init_context))
    return "patched"
