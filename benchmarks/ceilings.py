"""The ceilings: what filling the output, and moving as many bytes as a decoder reads and writes, takes here."""

from __future__ import annotations

import ctypes
import functools
import os
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from clock import best

SOURCE = Path(__file__).with_name("ceiling.c")


@functools.cache
def _library() -> ctypes.CDLL:
    folder = tempfile.mkdtemp(prefix="ggufx-ceiling-")
    target = os.path.join(folder, "ceiling.so")
    compiler = shlex.split(os.environ.get("CC", "cc"))
    subprocess.run([*compiler, "-O2", "-shared", "-fPIC", str(SOURCE), "-o", target], check=True)
    library = ctypes.CDLL(target)
    library.ceiling_move.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t]
    library.ceiling_fill.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    library.ceiling_move.restype = library.ceiling_fill.restype = None
    return library


def move(src: npt.NDArray[Any], out: npt.NDArray[Any], budget: float) -> float:
    """Seconds to read all of `src` and write all of `out` with streaming stores."""
    lib = _library()
    return best(lambda: lib.ceiling_move(src.ctypes.data, src.nbytes, out.ctypes.data, out.nbytes), budget).seconds


def stream(out: npt.NDArray[Any]) -> None:
    """Write all of `out` past the cache, once; the GIL is released meanwhile."""
    _library().ceiling_move(None, 0, out.ctypes.data, out.nbytes)


def fill(out: npt.NDArray[Any], budget: float) -> float:
    """Seconds to write all of `out` through the cache."""
    lib = _library()
    return best(lambda: lib.ceiling_fill(out.ctypes.data, out.nbytes), budget).seconds


def touched(nbytes: int) -> npt.NDArray[np.uint8]:
    """Memory that has been written to, on a boundary of huge pages."""
    huge = 2 << 20
    raw = np.empty(nbytes + huge, np.uint8)
    start = -raw.ctypes.data % huge
    memory = raw[start : start + nbytes]
    memory.fill(1)
    return memory
