"""The aarch64 kernels under an emulator, and every C source under each compiler's warnings.

tests/neon/check.c is compiled together with csrc/, statically, and compares paths `neon` and `scalar` with records
written here: blocks with the reference's values, rows with ggml's bytes, and rows with their exact products.
"""

from __future__ import annotations

import platform
import shutil
import struct
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from conftest import VECTORS
from oracle import BLOCK_TYPES, ENCODED_TYPES
from samples import blocks_of, specified

import ggufx
from ggufx import QType
from ggufx.codec.encode import _overflows
from ggufx.codec.reference.lattice import LATTICES, lattice

ROOT = Path(__file__).parents[2]
CSRC = ROOT / "csrc"
SOURCES = sorted([*CSRC.glob("*.c"), *CSRC.glob("paths/*.c")])
FLAGS = ["-std=c11", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror"]
HEADER = "<16s12I"
DECODE, ENCODE, MULTIPLY = 0, 1, 2

pytestmark = pytest.mark.skipif(not SOURCES, reason="csrc/ is not here: not a source tree")


def compiled(compiler: list[str], folder: Path, sources: list[Path] = SOURCES) -> list[Path]:
    """Objects of the sources; a warning is an error."""

    def one(source: Path) -> Path:
        target = folder / f"{source.stem}-{source.parent.name}.o"
        run = subprocess.run([*compiler, *FLAGS, "-c", source, "-o", target], capture_output=True, text=True)
        assert run.returncode == 0, f"{' '.join(compiler)} {source}\n{run.stderr}"
        return target

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, sources))


def header(
    qtype: QType, kind: int, count: int, width: int = 0, weighted: bool = False,
    tables: tuple[int, ...] = (0, 0, 0, 0), overflowed: int = 0,
) -> bytes:  # fmt: skip
    """Pack struct record of check.c."""
    numbers = (kind, qtype, qtype.block_size, qtype.block_bytes, count, width, weighted, *tables, overflowed)
    return struct.pack(HEADER, qtype.name.encode(), *numbers)


def decode_record(qtype: QType, blocks: np.ndarray) -> bytes:
    values = [specified(blocks, qtype, dtype).tobytes() for dtype in ("float32", "float16", "bfloat16")]
    return b"".join([header(qtype, DECODE, len(blocks)), blocks.tobytes(), *values])


def encode_record(qtype: QType, x: np.ndarray, imatrix: np.ndarray | None, want: np.ndarray) -> bytes:
    found = lattice(qtype.name) if qtype.name in LATTICES else None
    tables = [] if found is None else [found.place, found.count, found.neighbours, found.words]
    sizes = tuple(table.nbytes for table in tables) or (0, 0, 0, 0)
    overflowed = _overflows(want.reshape(-1, qtype.block_bytes), qtype)
    arrays = [x, *([] if imatrix is None else [imatrix]), *tables, want]
    first = header(qtype, ENCODE, *x.shape, imatrix is not None, sizes, overflowed)
    return b"".join([first, *(array.tobytes() for array in arrays)])


def decode_records(golden: dict[str, np.ndarray]) -> Iterator[bytes]:
    for qtype in [QType.F32, QType.F16, QType.BF16, *BLOCK_TYPES]:
        frozen = [golden[f"{qtype.name}.raw"]] if qtype.is_quantized else []
        yield decode_record(qtype, np.concatenate([*frozen, blocks_of(qtype)]))


def encode_records() -> Iterator[bytes]:
    with np.load(VECTORS / "quantize.npz") as frozen:
        x, importance = frozen["x"], {"plain": None, "imatrix": frozen["imatrix"]}
        for qtype in ENCODED_TYPES:
            for kind, imatrix in importance.items():
                if f"{qtype.name}.{kind}" in frozen:  # else ggml has no such call
                    yield encode_record(qtype, x, imatrix, frozen[f"{qtype.name}.{kind}"])


def product_record(qtype: QType) -> bytes:
    """Packed rows, rows of x, the products in float64 and the sums of their magnitudes."""
    rng = np.random.default_rng(int(qtype))
    width = 768 if qtype.is_quantized else 197
    values = rng.standard_normal((5, width)).astype(np.float32)
    packed = ggufx.quantize(values, qtype, imatrix=np.ones(width, np.float32) if qtype.is_quantized else None)
    x = rng.standard_normal((6, width)).astype(np.float32)
    w, rows = ggufx.dequantize(packed, qtype, path="numpy").astype(np.float64), x.astype(np.float64)
    exact = np.stack([rows @ w.T, np.abs(rows) @ np.abs(w).T], axis=-1)
    first = header(qtype, MULTIPLY, 5, width, tables=(6, 0, 0, 0))
    return b"".join([first, packed.tobytes(), x.tobytes(), exact.tobytes()])


@pytest.fixture(scope="module")
def records(tmp_path_factory, golden) -> Path:
    path = tmp_path_factory.mktemp("records") / "records"
    with open(path, "wb") as f:
        f.writelines(decode_records(golden))
        f.writelines(encode_records())
        f.writelines(product_record(qtype) for qtype in [QType.F32, QType.F16, QType.BF16, *BLOCK_TYPES])
    return path


@pytest.fixture(scope="module")
def toolchain() -> tuple[str, list[str]]:
    """The compiler for aarch64, and what runs its programs."""
    if platform.machine() in ("aarch64", "arm64"):
        compiler = shutil.which("gcc") or shutil.which("cc")
        return (compiler, []) if compiler else pytest.skip("no C compiler")
    compiler = shutil.which("aarch64-linux-gnu-gcc")
    emulator = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    if compiler is None or emulator is None:
        pytest.skip(
            "the NEON path is not tested: it takes aarch64-linux-gnu-gcc and qemu-aarch64 "
            "(Debian: gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user)"
        )
    return compiler, [emulator]


@pytest.fixture(scope="module")
def program(toolchain, tmp_path_factory) -> Path:
    """check.c and all of csrc/ in one static program."""
    folder = tmp_path_factory.mktemp("neon")
    compiler, _ = toolchain
    objects = compiled([compiler, "-O2"], folder, [*SOURCES, ROOT / "tests" / "neon" / "check.c"])
    subprocess.run([compiler, "-static", "-o", folder / "check", *objects, "-lm"], check=True)
    return folder / "check"


def check(command: list[object]) -> str:
    run = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, f"{run.stdout}{run.stderr} (exit status {run.returncode})"
    return run.stdout


def test_bits_and_bytes(program, toolchain, records):
    told = check([*toolchain[1], program, records, "neon", "scalar"])
    expected = 2 * (3 + len(BLOCK_TYPES)) + 2 * len(ENCODED_TYPES) - 5  # five quantizing calls are ggml's to refuse
    assert told.startswith(f"{expected} records, "), told


def test_pages_of_16_kib(program, toolchain, records):
    """As on Apple's and some servers' systems: guards stand elsewhere, and so do all arrays that end at one."""
    if not toolchain[1]:
        pytest.skip("not emulated: pages are as large as they are")
    assert "pages of 16384" in check([*toolchain[1], "-p", 16384, program, records, "neon"])


def test_without_dot_products(program, toolchain, tmp_path):
    """A CPU of the first generation, which lacks an instruction that products of codes use where it is there."""
    if not toolchain[1]:
        pytest.skip("not emulated: the CPU is what it is")
    (tmp_path / "products").write_bytes(b"".join(product_record(qtype) for qtype in BLOCK_TYPES))
    command = [*toolchain[1], "-cpu", "cortex-a72", program, tmp_path / "products", "neon"]
    assert check(command).startswith(f"{len(BLOCK_TYPES)} records, ")


def test_differences_are_found(program, toolchain, tmp_path, golden):
    """The comparison itself, given one wrong bit of a value or of a quantized byte."""
    decoded = bytearray(decode_record(QType.Q6_K, golden["Q6_K.raw"][:40]))
    encoded = bytearray(encode_record(QType.Q8_0, np.eye(3, 64, dtype=np.float32), None, np.zeros((3, 68), np.uint8)))
    multiplied = bytearray(product_record(QType.Q4_K))
    for record, told in (
        (decoded, "wrong bits: path scalar, type Q6_K, dtype bfloat16"),
        (encoded, "wrong bytes: "),
        (multiplied, "wrong product: "),
    ):
        record[-1] ^= (
            0x80  # a sign of the last value, or of what errors are measured by; the bytes are wrong throughout
        )
        (tmp_path / "record").write_bytes(record)
        command = [str(part) for part in (*toolchain[1], program, tmp_path / "record", "scalar")]
        run = subprocess.run(command, capture_output=True, text=True)
        assert run.returncode == 1
        assert run.stdout.startswith(told)


@pytest.mark.parametrize(("compiler", "effort"), [("gcc", "-Og"), ("clang", "-fsyntax-only")])
def test_no_warnings(compiler, effort, tmp_path):
    """With as much work as it takes to find them: gcc follows values only when it optimizes."""
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    compiled([compiler, effort], tmp_path)
