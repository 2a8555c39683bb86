"""Note down source blocks of versions of the `gguf` and `transformers` packages, in ggufx/compat/fingerprints.txt.

Run it with the folders of unpacked wheels, after having read what changed between them and run the tests with each:

    python tools/fingerprint_gguf.py gguf-0.18.0 gguf-0.19.0 transformers-5.24.0

With ``--check`` it writes nothing, and fails if the file would change.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

from ggufx.compat import patching

TARGET = Path(__file__).parent.parent / "ggufx/compat/fingerprints.txt"
HEADINGS = {
    "gguf/gguf_reader.py": ("class GGUFReader", "class ReaderField", "class ReaderTensor"),
    "gguf/quants.py": ("class __Quant", "def _apply_over_grouped_rows", "def quant_shape_from_byte_shape"),
    "gguf/tensor_mapping.py": ("    def __init__(self, arch: MODEL_ARCH, n_blocks: int)",),
    "transformers/integrations/ggml.py": ("def _gguf_parse_value",),
    "transformers/integrations/gguf/reader.py": (
        "def _read_value",
        "def _read_string",
        "class GgufHeader",
        "def load_gguf_state_dict",
        "def read_gguf_metadata",
    ),
    "transformers/integrations/gguf/dequant.py": ("def dequantize",),
}


def blocks(path: Path, headings: tuple[str, ...]) -> dict[str, str]:
    """Fingerprints of the blocks of one source file, by heading."""
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    if path.name == "quants.py":
        names = re.findall(r"^class (\w+)\(__Quant,", path.read_text(encoding="utf-8"), re.MULTILINE)
        headings = (*headings, *(f"class {name}" for name in names))
    if path.name == "dequant.py":
        names = re.findall(r"^def (_dequant_\w+)\(", path.read_text(encoding="utf-8"), re.MULTILINE)
        headings = (*headings, *(f"def {name}" for name in names))
    found = {}
    for heading in headings:
        block = patching.source_block(module, heading)
        if block is None:
            raise SystemExit(f"{path} has no {heading!r}")
        found[heading.strip()] = patching.fingerprint(block)
    return found


def main(arguments: list[str]) -> None:
    """Collect, and write or compare."""
    check = "--check" in arguments
    rows: dict[tuple[str, str], list[str]] = {}
    for folder in (Path(a) for a in arguments if a != "--check"):
        for name, headings in HEADINGS.items():
            if (folder / name).exists():
                for heading, digest in blocks(folder / name, headings).items():
                    rows.setdefault((digest, heading), []).append(folder.name)
    lines = [
        "# Source blocks that ggufx.compat knows: digest, versions, heading.",
        "# Made by tools/fingerprint_gguf.py.",
        *(f"{digest} {','.join(versions)} {heading}" for (digest, heading), versions in rows.items()),
    ]
    text = "\n".join(lines) + "\n"
    if not check:
        TARGET.write_text(text)
    elif TARGET.read_text() != text:
        raise SystemExit(f"{TARGET} isn't what these versions give")


if __name__ == "__main__":
    main(sys.argv[1:])
