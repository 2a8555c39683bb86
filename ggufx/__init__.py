"""Open GGUF model files in milliseconds and decode every tensor type at the speed of memory, bit-exact with ggml."""

from ._dispatch import available as paths
from ._version import __version__
from .decode import dequantize
from .encode import quantize
from .errors import GGUFError, GGUFWarning
from .formats import QType, nbytes
from .loading import load
from .reader import GGUFFile, open
from .tensor import Tensor

__all__ = [
    "GGUFError",
    "GGUFFile",
    "GGUFWarning",
    "QType",
    "Tensor",
    "__version__",
    "dequantize",
    "load",
    "nbytes",
    "open",
    "paths",
    "quantize",
]
