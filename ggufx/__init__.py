"""Open GGUF model files in milliseconds and decode every tensor type at the speed of memory, bit-exact with ggml."""

from ._dispatch import available as paths
from ._version import __version__
from .decode import dequantize
from .errors import GGUFError, GGUFWarning
from .formats import QType, nbytes

__all__ = ["GGUFError", "GGUFWarning", "QType", "__version__", "dequantize", "nbytes", "paths"]
