"""The libgguf package: ggml's C code in an extension, float32 only."""

from importlib import metadata

import numpy as np

VARIANTS = ["libgguf", "libgguf, all threads"]  # it starts as many as there are CPUs


def version():
    """Version of the package."""
    return metadata.version("libgguf")


def decoder(variant, case, src, out):
    """libgguf.dequantize_rows_into_raw, where it has the type."""
    import libgguf

    if case.dtype != "float32":
        return None
    rows, width = src.shape[0], case.weights // src.shape[0]

    def decode() -> np.ndarray:
        libgguf.dequantize_rows_into_raw(int(case.qtype), src, out, rows, width)
        return out

    try:
        decode()
    except ValueError:
        return None
    return decode
