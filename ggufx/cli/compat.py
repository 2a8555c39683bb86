"""Show what is or would be patched in gguf and transformers, and try it."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import struct
import tempfile
import warnings
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from _ggufx_compat import is_wanted

from .. import __version__, compat

__all__ = ["add_arguments", "run"]

PACKAGES = ("gguf", "transformers", "diffusers", "torch", "vllm")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--no-test", action="store_true", help="only report, don't compare patched with unpatched")


def run(arguments: argparse.Namespace) -> int:
    """Print the report; the exit code is 1 if the self-test finds a difference."""
    print(f"ggufx {__version__}")
    for name in PACKAGES:
        try:
            print(f"{name:13} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            print(f"{name:13} not installed")
    setting = os.environ.get("GGUFX_COMPAT")
    ignored = "" if setting is None or is_wanted() else " (as good as not set)"
    print(f"GGUFX_COMPAT  {'not set' if setting is None else setting}{ignored}")
    hook = importlib.util.find_spec("_ggufx_compat")
    beside = hook is not None and hook.origin is not None and Path(hook.origin).with_name("ggufx_compat.pth").exists()
    print(f"import hook   {'installed' if beside else 'no ggufx_compat.pth found: GGUFX_COMPAT=1 has no effect here'}")
    if importlib.util.find_spec("gguf") is None:
        print("Nothing to patch: the gguf package isn't installed.")
        return 0
    import gguf

    active = compat.status().installed
    plain = None
    if not arguments.no_test:
        compat.uninstall()
        plain = _observe(gguf)
        if active:
            compat.install()
    with compat.patched() as state:
        for name in compat.WATCHED[1:]:
            if importlib.util.find_spec(name.partition(".")[0]) is not None and name not in state.packages:
                _try_import(name)
        for package, parts in compat.status().packages.items():
            for part, what in parts.items():
                print(f"{package}, {part}: {what if active or what != 'patched' else 'would be patched'}")
        if plain is None:
            return 0
        differences = [name for name, value in _observe(gguf).items() if value != plain[name]]
    if differences:
        print(f"self-test: patched and unpatched differ in {', '.join(differences)}")
        return 1
    print(f"self-test: {len(plain)} results, patched and unpatched alike")
    return 0


def _try_import(name: str) -> None:
    try:
        importlib.import_module(name)
    except Exception as error:  # a broken or missing dependency of somebody else's package
        print(f"{name} can't be imported: {error!r}")


def _small_file() -> bytes:
    """Make a GGUF file with a number, a string, arrays of both and an F32 tensor."""

    def text(value: bytes) -> bytes:
        return struct.pack("<Q", len(value)) + value

    words = [b"word %d" % i for i in range(100)]
    fields = [
        (b"general.architecture", 8, text(b"llama")),
        (b"number", 6, struct.pack("<f", 0.5)),
        (b"words", 9, struct.pack("<IQ", 8, len(words)) + b"".join(map(text, words))),
        (b"numbers", 9, struct.pack("<IQ", 5, 99) + struct.pack("<99i", *range(99))),
    ]
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, len(fields))
    head += b"".join(text(key) + struct.pack("<I", kind) + value for key, kind, value in fields)
    head += text(b"weight") + struct.pack("<IQQIQ", 2, 4, 3, 0, 0)
    return head + bytes(-len(head) % 32) + struct.pack("<12f", *range(12))


def _lists(a: list[int], b: list[int]) -> tuple[object, ...]:
    """Results of the operations on two lists."""
    longer = [*a]
    longer += b
    longer[:0] = b
    compared = (a == b, a != b, a < b, a <= b, a > b, a >= b, a in [b], (a,) == (b,), {0: a} == {0: b})
    return (*compared, a + b, [0, *b], a * 2, longer, sorted(a), a.copy(), list(reversed(a)), [b].index(a))


def _observe(gguf: Any) -> dict[str, object]:
    """Results of the package's calls, by a name for each."""
    seen: dict[str, object] = {}
    rng = np.random.default_rng(0)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for qtype in gguf.GGMLQuantizationType:
            raw = rng.integers(0, 256, (16, 2 * gguf.GGML_QUANT_SIZES[qtype][1]), np.uint8)
            try:
                values = gguf.dequantize(raw, qtype)
            except NotImplementedError:
                continue
            seen[f"dequantize {qtype.name}"] = np.where(np.isnan(values), np.float32(np.nan), values).tobytes()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "small.gguf"
        path.write_bytes(_small_file())
        reader = gguf.GGUFReader(path)
        for key, field in reader.fields.items():
            seen[f"field {key}"] = (field.offset, [p.tolist() for p in field.parts], list(field.data), field.types)
            if hasattr(field, "contents"):
                seen[f"contents {key}"] = field.contents()
        again = gguf.GGUFReader(path).fields
        for key in ("words", "numbers"):
            one, other = reader.fields[key], again[key]
            seen[f"lists of {key}"] = (*_lists(one.data, other.data), *_lists(other.data, list(one.data)))
            seen[f"parts of {key}"] = (
                one.parts == list(one.parts),
                one.parts in [one.parts],
                len(one.parts + other.parts),
            )
        for tensor in reader.tensors:
            seen[f"tensor {tensor.name}"] = (tensor.data.tolist(), tensor.shape.tolist(), tensor.data_offset)
        del reader, field, tensor, again, one, other
    return seen
