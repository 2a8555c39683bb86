"""ggml's own decoders, as the libggml-python wheel ships them, called through ctypes."""

import ctypes
import importlib.util
from functools import partial
from importlib import metadata
from pathlib import Path

import numpy as np

VARIANTS = ["ggml"]


class _Traits(ctypes.Structure):
    """The beginning of ggml's struct ggml_type_traits."""

    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("blck_size", ctypes.c_int64),
        ("blck_size_interleave", ctypes.c_int64),
        ("type_size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.c_void_p),
    )


def version():
    """Version of the wheel."""
    return metadata.version("libggml-python")


def decoder(variant, case, src, out):
    """The decoder in ggml's type traits; float32 only."""
    spec = importlib.util.find_spec("libggml")
    library = ctypes.CDLL(str(next(Path(spec.origin).parent.rglob("libggml-base.so"))))
    library.ggml_get_type_traits.restype = ctypes.POINTER(_Traits)
    address = library.ggml_get_type_traits(int(case.qtype)).contents.to_float
    if case.dtype != "float32" or not address:
        return None
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(address)
    call = partial(function, src.ctypes.data, out.ctypes.data, case.weights)

    def decode() -> np.ndarray:
        call()
        return out

    return decode
