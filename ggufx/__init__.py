"""Open GGUF model files in milliseconds and decode every tensor type at the speed of memory, bit-exact with ggml."""

from typing import TYPE_CHECKING, Any

from ._version import __version__
from .codec.decode import dequantize
from .codec.dispatch import available as paths
from .codec.encode import quantize
from .errors import GGUFError, GGUFWarning
from .formats.tensor_types import QType, nbytes
from .model.loading import load
from .read.reader import GGUFFile, open
from .read.tensor import Tensor

if TYPE_CHECKING:
    from .codec.matmul import matmul, matmul_experts
    from .codec.quality import quant_error
    from .convert import convert, save_checkpoint
    from .edit import edit
    from .formats.file_types import FileType
    from .gguf_names import quants
    from .gguf_names.reader import GGUFReader
    from .gguf_names.writer import GGUFWriter
    from .plan import plan
    from .requantize import imatrix, requantize
    from .write import split as splitting
    from .write.split import convert_endian, merge, split
    from .write.writer import Writer, write

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
    "convert",
    "convert_endian",
    "dequantize",
    "edit",
    "imatrix",
    "load",
    "matmul",
    "matmul_experts",
    "merge",
    "nbytes",
    "open",
    "paths",
    "plan",
    "quant_error",
    "quantize",
    "quants",
    "requantize",
    "save_checkpoint",
    "split",
    "splitting",
    "write",
]

# Names that most programs don't need, and their modules: imported when they are asked for.
_LATE = {
    "FileType": ".formats.file_types",
    "GGUFReader": ".gguf_names.reader",
    "GGUFWriter": ".gguf_names.writer",
    "Writer": ".write.writer",
    "convert": ".convert",
    "convert_endian": ".write.split",
    "edit": ".edit",
    "evaluate": ".evaluate",
    "imatrix": ".imatrix",
    "matmul": ".codec.matmul",
    "matmul_experts": ".codec.matmul",
    "merge": ".write.split",
    "plan": ".plan",
    "quant_error": ".codec.quality",
    "quants": ".quants",
    "requantize": ".requantize",
    "save_checkpoint": ".convert.save",
    "split": ".write.split",
    "splitting": ".splitting",
    "write": ".write",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module = import_module(_LATE[name], __name__)
    # A module that holds a function of its own name can be called as it.
    value = globals()[name] = module if _LATE[name] == f".{name}" else getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
