"""Every list that must know every type: each test names the step that adding one has missed.

Run as a script, this rewrites the table of types in README.md.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from ggufx import QType, nbytes
from ggufx.formats.tensor_types import CODE_BYTES, NUMERIC_DTYPES, SWAP_FIELDS

ROOT = Path(__file__).parents[2]
INTEGERS = {QType.I8, QType.I16, QType.I32, QType.I64}
README_MARKS = ("<!-- types: kept by tests/formats/test_types.py -->\n", "<!-- end -->\n")


def source(name: str) -> str:
    path = ROOT / name
    if not path.exists():
        pytest.skip(f"{name} is not here: not a source tree")
    return path.read_text(encoding="utf-8")


def decodable() -> set[QType]:
    return set(QType) - INTEGERS


def readme_table() -> str:
    rows = ["| type | values per block | bytes | bits per weight | of them scales |", "|---|---|---|---|---|"]
    for t in sorted(decodable(), key=lambda t: (t.is_quantized, t.name.startswith("I"), t)):
        scales = 8 * (t.block_bytes - CODE_BYTES.get(t, t.block_bytes)) / t.block_size
        rows.append(f"| {t.name} | {t.block_size} | {t.block_bytes} | {t.bits_per_weight:g} | {scales:g} |")
    return "\n".join(rows) + "\n"


def test_readme_table():
    text = source("README.md")
    assert readme_table() in text, "run python tests/formats/test_types.py"


def test_nbytes_takes_names_as_dequantize_does():
    assert nbytes((32000, 2048), "q4_k") == nbytes((32000, 2048), QType.Q4_K) == 36_864_000
    assert nbytes((32000, 2048), "Q6_K") == 53_760_000
    with pytest.raises(ValueError, match="unknown tensor type 'Q4_9'"):
        nbytes((32,), "Q4_9")


def test_swap_fields_cover_every_type():
    assert set(SWAP_FIELDS) == set(QType), "add a row to SWAP_FIELDS in ggufx/formats/tensor_types.py"
    for t, fields in SWAP_FIELDS.items():
        end = 0
        for at, width, count in fields:
            assert at >= end, t.name
            end = at + width * count
        assert end <= t.block_bytes, t.name


def test_plain_types_have_a_numpy_dtype():
    assert {t for t in QType if not t.is_quantized} == set(NUMERIC_DTYPES)


def test_c_table():
    """types.def has a row for every type that decodes in C, of the same layout."""
    rows = re.findall(r"^GGUFX_TYPE\((\w+), (\d+), (\d+), (\d+)\)", source("csrc/types.def"), re.M)
    in_c = {QType(int(number)): (name, int(values), int(size)) for name, number, values, size in rows}
    missing = decodable() - set(in_c) - {QType.F64}
    assert not missing, f"add rows to csrc/types.def: {missing}"
    for t, (name, values, size) in in_c.items():
        assert name == t.name.lower()
        assert values * t.block_bytes == size * t.block_size, name
        assert values % t.block_size == 0, name
        assert f"decode_{name}(" in "".join(p.read_text() for p in (ROOT / "csrc" / "kernels").glob("*.h")), (
            f"write csrc/kernels/{name}.h"
        )


def test_kernels_are_included():
    kernels = source("csrc/paths/kernels.h")
    for kernel in (ROOT / "csrc" / "kernels").glob("*.h"):
        assert f'#include "../kernels/{kernel.name}"' in kernels, f"include {kernel.name} in csrc/paths/kernels.h"


if __name__ == "__main__":
    readme = ROOT / "README.md"
    before, rest = readme.read_text(encoding="utf-8").split(README_MARKS[0])
    readme.write_text(
        before + README_MARKS[0] + readme_table() + README_MARKS[1] + rest.split(README_MARKS[1])[1], encoding="utf-8"
    )
    sys.exit(0)
