"""What a quantization costs: faults of a file, errors of weights, perplexity and divergence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .activations import collect, statistics
    from .comparison import compare
    from .curves import curve
    from .page import render
    from .reporting import evaluate
    from .texts import perplexity
    from .validation import validate

__all__ = ["collect", "compare", "curve", "evaluate", "perplexity", "render", "statistics", "validate"]

# Names and the modules that hold them: each is imported when it is asked for.
_LATE = {
    "collect": ".activations",
    "statistics": ".activations",
    "compare": ".comparison",
    "curve": ".curves",
    "evaluate": ".reporting",
    "render": ".page",
    "perplexity": ".texts",
    "validate": ".validation",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_LATE[name], __name__), name)
    return value
