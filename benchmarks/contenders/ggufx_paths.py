"""ggufx, once for each path, and on two threads."""

from functools import partial

import ggufx

VARIANTS = [f"ggufx {path}" for path in ggufx.paths()] + ["ggufx 2 threads"]


def version():
    """Version of the installed package."""
    return ggufx.__version__


def decoder(variant, case, src, out):
    """Through the public call, into `out`."""
    name = variant.removeprefix("ggufx ")
    options = {"threads": 2} if name == "2 threads" else {"threads": 1, "path": name}
    return partial(ggufx.dequantize, src.reshape(-1), case.qtype, dtype=case.dtype, out=out, **options)
