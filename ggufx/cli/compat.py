"""Show what is or would be patched in gguf and transformers, compared with the originals."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
from importlib import metadata
from pathlib import Path

from _ggufx_compat import is_wanted

from .. import __version__, compat
from ..compat.patching import DIFFERS

__all__ = ["add_arguments", "run"]

PACKAGES = ("gguf", "gguf-connector", "transformers", "diffusers", "torch", "vllm")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments: none."""


def run(arguments: argparse.Namespace) -> int:
    """Print the report; the exit code is 1 where a part gives other results than ggufx, and so stays as it is."""
    print(f"ggufx {__version__}")
    for name in PACKAGES:
        try:
            print(f"{name:14} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            print(f"{name:14} not installed")
    setting = os.environ.get("GGUFX_COMPAT")
    ignored = "" if setting is None or is_wanted() else " (as good as not set)"
    print(f"GGUFX_COMPAT   {'not set' if setting is None else setting}{ignored}")
    hook = importlib.util.find_spec("_ggufx_compat")
    beside = hook is not None and hook.origin is not None and Path(hook.origin).with_name("ggufx_compat.pth").exists()
    print(f"import hook    {'installed' if beside else 'no ggufx_compat.pth found: GGUFX_COMPAT=1 has no effect here'}")
    active = compat.status().installed
    differs = []
    with compat.patched():
        for name in compat.WATCHED:
            if importlib.util.find_spec(name.partition(".")[0]) is not None:
                _try_import(name)
        for module, parts in compat.status().packages.items():
            for part, what in parts.items():
                print(f"{module}, {part}: {what if active or what != 'patched' else 'would be patched'}")
                if DIFFERS in what:
                    differs.append(f"{module}, {part}")
    if differs:
        print(f"compared with the originals: not all alike in {'; '.join(differs)}")
        return 1
    print("compared with the originals: alike")
    return 0


def _try_import(name: str) -> None:
    try:
        importlib.import_module(name)
    except Exception as error:  # a broken or missing dependency of somebody else's package
        print(f"{name} can't be imported: {error!r}")
