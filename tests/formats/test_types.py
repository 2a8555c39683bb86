"""Every list that must know every type: each test names the step that adding one has missed.

Run as a script, this rewrites the table of types in README.md.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from oracle import STRUCTS

import ggufx
from ggufx import QType, nbytes
from ggufx.cli.sample import path_or_sample
from ggufx.codec.encode import QUANTIZABLE
from ggufx.codec.reference import decode
from ggufx.codec.reference.encode import ENCODERS
from ggufx.codec.reference.lattice import LATTICES
from ggufx.formats.tensor_types import CODE_BYTES, ENCODINGS, NUMERIC_DTYPES, SWAP_FIELDS, Encoding

ROOT = Path(__file__).parents[2]
VECTORS = ROOT / "tests" / "vectors"
BLOCK_TYPES = {t for t in QType if t.is_quantized}
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


def test_nbytes_takes_names_as_dequantize_does():
    assert nbytes((32000, 2048), "q4_k") == nbytes((32000, 2048), QType.Q4_K) == 36_864_000
    assert nbytes((32000, 2048), "Q6_K") == 53_760_000
    with pytest.raises(ValueError, match="unknown tensor type 'Q4_9'"):
        nbytes((32,), "Q4_9")


# ---- the steps of adding a type, in CONTRIBUTING's order


def test_swap_fields_cover_every_type():
    assert set(SWAP_FIELDS) == set(QType), "add a row to SWAP_FIELDS in ggufx/formats/tensor_types.py"
    for t, fields in SWAP_FIELDS.items():
        end = 0
        for at, width, count in fields:
            assert at >= end, t.name
            end = at + width * count
        assert end <= t.block_bytes, t.name


def test_code_bytes_cover_every_block_type():
    assert set(CODE_BYTES) == set(BLOCK_TYPES), "add a row to CODE_BYTES in ggufx/formats/tensor_types.py"
    assert all(0 < CODE_BYTES[t] < t.block_bytes for t in CODE_BYTES)


def test_plain_types_have_a_numpy_dtype():
    assert {t for t in QType if not t.is_quantized} == set(NUMERIC_DTYPES)


def test_every_type_is_specified():
    missing = decodable() - set(decode.DECODERS)
    assert not missing, f"add a function and a DECODERS row in ggufx/codec/reference/decode.py: {missing}"


class CRow(NamedTuple):
    """A row of csrc/types.def."""

    name: str
    id: int
    values: int
    bytes: int
    encoded: str
    halves: str
    by: str


def c_table() -> dict[QType, CRow]:
    rows = re.findall(
        r"^GGUFX_TYPE\((\w+), (\d+), (\d+), (\d+), (\w+), (\w+(?:\([\d, ]+\))?), (\w+)\)$",
        source("csrc/types.def"),
        re.M,
    )
    return {QType(int(row[1])): CRow(row[0], *map(int, row[1:4]), *row[4:]) for row in rows}


def c_text(folder: str) -> str:
    return "".join(p.read_text(encoding="utf-8") for p in (ROOT / "csrc" / folder).glob("*.h"))


def test_c_table():
    """types.def has a row for every type that decodes in C, of the same layout."""
    in_c, kernels = c_table(), c_text("kernels")
    missing = decodable() - set(in_c) - {QType.F64}
    assert not missing, f"add rows to csrc/types.def: {missing}"
    for t, row in in_c.items():
        assert row.name == t.name.lower()
        assert row.values * t.block_bytes == row.bytes * t.block_size, row.name
        assert row.values % t.block_size == 0, row.name
        assert f"decode_{row.name}(" in kernels, f"write csrc/kernels/{row.name}.h"


@pytest.mark.parametrize(
    ("folder", "template"), [("kernels", "csrc/paths/kernels.h"), ("encoders", "csrc/paths/encode_template.h")]
)
def test_headers_are_included(folder, template):
    including = source(template) + c_text(folder)
    for header in (ROOT / "csrc" / folder).glob("*.h"):
        assert re.search(rf'#include "(?:\.\./{folder}/)?{header.name}"', including), f"include {header} in {template}"


def test_golden_has_every_type(golden):
    missing = {t.name for t in BLOCK_TYPES} - {key.split(".")[0] for key in golden}
    assert not missing, f"add blocks and ggml's values to tests/vectors/dequantize.npz: {missing}"


def test_layouts_cover_every_type():
    assert decodable() == set(STRUCTS), "add the block's fields to STRUCTS in tests/support/oracle.py"


def test_sample_has_every_type():
    with path_or_sample(None) as path, ggufx.open(path) as f:
        missing = set(QType) - {tensor.qtype for tensor in f.tensors.values()}
    assert not missing, f"add a tensor to tools/make_sample.py and run it: {missing}"


def test_readme_table():
    text = source("README.md")
    assert readme_table() in text, "run python tests/formats/test_types.py"


# ---- the steps of adding an encoder


def test_encoders_are_specified():
    assert set(ENCODERS) == set(ENCODINGS), (
        "a type that is quantized to needs a row in ENCODINGS of ggufx/formats/tensor_types.py and a function in "
        f"ggufx/codec/reference/: {set(ENCODERS) ^ set(ENCODINGS)} lack one"
    )
    assert {*ENCODINGS, QType.F32, QType.F16, QType.BF16} == QUANTIZABLE
    assert {t.name for t, encoding in ENCODINGS.items() if encoding.codebook} == set(LATTICES)


def test_c_table_of_encoders():
    encoders = c_text("encoders")
    for t, row in c_table().items():
        encoding = ENCODINGS.get(t)
        assert row.encoded == ("NOT_ENCODED" if encoding is None else "ENCODED"), (
            f"csrc/types.def and ENCODINGS in ggufx/formats/tensor_types.py differ in {row.name}"
        )
        encoding = encoding or Encoding()
        offsets = tuple(map(int, re.findall(r"\d+", row.halves)))
        if row.halves.startswith("HALF_IN_NIBBLES"):
            assert (offsets, ()) == ((encoding.half_in_nibbles,), encoding.halves), row.name
        else:
            assert (offsets, None) == (encoding.halves, encoding.half_in_nibbles), row.name
        assert row.by == ("BY_ROW" if encoding.by_row else "BY_BLOCK"), row.name
        if t in ENCODINGS:
            assert f"encode_{row.name}(" in encoders, f"write encode_{row.name}() in csrc/encoders/"


def test_extension_has_the_tables_encoders():
    native = pytest.importorskip("ggufx._native", reason="built without the C extension")
    assert {t for t in QType if native.encodes(t)} == set(ENCODINGS), "compile the extension again"
    assert not any(
        native.encodes(number) or native.decodes(number) for number in (-1, 4, 5, *range(max(QType) + 1, 300))
    )


def test_vectors_have_every_encoder():
    with np.load(VECTORS / "quantize.npz") as frozen:
        missing = {t.name for t in ENCODINGS} - {key.split(".")[0] for key in frozen}
    assert not missing, f"add ggml's bytes to tests/vectors/quantize.npz: {missing}"


if __name__ == "__main__":
    readme = ROOT / "README.md"
    before, rest = readme.read_text(encoding="utf-8").split(README_MARKS[0])
    readme.write_text(
        before + README_MARKS[0] + readme_table() + README_MARKS[1] + rest.split(README_MARKS[1])[1], encoding="utf-8"
    )
    sys.exit(0)
