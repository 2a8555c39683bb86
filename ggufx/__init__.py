"""Open GGUF model files in milliseconds and decode every tensor type at the speed of memory, bit-exact with ggml."""

from typing import TYPE_CHECKING, Any

from ._dispatch import available as paths
from ._version import __version__
from .decode import dequantize
from .encode import quantize
from .errors import GGUFError, GGUFWarning
from .formats import QType, nbytes
from .loading import load
from .reader import GGUFFile, open
from .tensor import Tensor

if TYPE_CHECKING:
    from . import edit, imatrix, quants, splitting
    from .filetypes import FileType
    from .gguf_reader import GGUFReader
    from .gguf_writer import GGUFWriter
    from .quality import quant_error
    from .writer import Writer, write

__all__ = [
    "FileType",
    "GGUFError",
    "GGUFFile",
    "GGUFReader",
    "GGUFWarning",
    "GGUFWriter",
    "QType",
    "Tensor",
    "Writer",
    "__version__",
    "dequantize",
    "edit",
    "imatrix",
    "load",
    "nbytes",
    "open",
    "paths",
    "quant_error",
    "quantize",
    "quants",
    "splitting",
    "write",
]

# Names that most programs don't need, and their modules: imported when they are asked for.
_LATE = {
    "FileType": ".filetypes",
    "GGUFReader": ".gguf_reader",
    "GGUFWriter": ".gguf_writer",
    "Writer": ".writer",
    "edit": ".edit",
    "imatrix": ".imatrix",
    "quant_error": ".quality",
    "quants": ".quants",
    "splitting": ".splitting",
    "write": ".writer",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module = import_module(_LATE[name], __name__)
    # A module that holds a function of its own name stays the module, as after `import ggufx.edit`.
    value = globals()[name] = module if _LATE[name] == f".{name}" else getattr(module, name)
    return value
