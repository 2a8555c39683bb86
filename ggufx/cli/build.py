"""What this installation of ggufx is: its version, its decode paths, how it was built."""

from __future__ import annotations

import platform

import numpy as np

from .. import __version__
from ..codec import dispatch, threads

__all__ = ["report", "version"]


def version() -> str:
    """Return the line that ``ggufx --version`` prints."""
    return f"ggufx {__version__}"


def report() -> list[str]:
    """Return the lines that ``ggufx --info`` prints."""
    paths = [f"{name} (active)" if name == dispatch.active() else name for name in dispatch.available()]
    lines = [version(), f"paths:    {', '.join(paths)}"]
    if dispatch.native is None:
        why = next(iter(dispatch.problems().values()))
        lines.append(f"not here: {', '.join(dispatch.problems())}: {why}; everything works, slower, on the numpy path")
    else:
        lines += [f"not here: {name}: {why}" for name, why in dispatch.problems().items()]
        lines.append(f"compiler: {dispatch.native.compiler()}")
    lines.append(f"threads:  {threads.thread_count(None)}")
    lines.append(
        f"python:   {platform.python_implementation()} {platform.python_version()}, numpy {np.__version__}, "
        f"{platform.system()} {platform.machine()}"
    )
    return lines
