"""What dequantize() takes and refuses: dtype, out, src, shape, byte order, path."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from oracle import BLOCK_TYPES, INTEGER_TYPES, make_blocks, round_to
from samples import STORED, assert_same, sample, specified

import ggufx
from ggufx import GGUFError, QType, dequantize
from ggufx.codec import dispatch

pytestmark = pytest.mark.usefixtures("threads_pay_early")


# ---- dtype


@pytest.mark.parametrize(
    ("asked", "stored", "name"),
    [
        (None, np.float32, "float32"),
        (np.float32, np.float32, "float32"),
        ("f4", np.float32, "float32"),
        ("float32", np.float32, "float32"),
        (np.dtype("=f2"), np.float16, "float16"),
        ("half", np.float16, "float16"),
        ("bfloat16", np.uint16, "bfloat16"),
        (ml_dtypes.bfloat16, ml_dtypes.bfloat16, "bfloat16"),
        (np.dtype(ml_dtypes.bfloat16), ml_dtypes.bfloat16, "bfloat16"),
    ],
    ids=str,
)
def test_dtypes(asked, stored, name, path):
    for kind in (QType.Q4_K, QType.F64):
        blocks, want = sample(kind, name)
        got = dequantize(blocks, kind, dtype=asked, path=path)
        assert got.dtype == stored
        assert got.flags.c_contiguous
        assert got.flags.writeable
        assert_same(got.view(want.dtype), want)
        out = np.empty(want.shape, stored)
        assert dequantize(blocks, kind, dtype=asked, path=path, out=out) is out
        assert_same(out.view(want.dtype), want)


@pytest.mark.parametrize("asked", [np.float64, np.int32, np.uint16, ">f4", ">f2", "complex64", object, "U4"], ids=str)
@pytest.mark.parametrize("qtype", [QType.Q4_K, QType.F64], ids=lambda t: t.name)
def test_other_dtypes_are_refused(asked, qtype):
    with pytest.raises(TypeError, match=f"{qtype.name} decodes to float32, float16 or bfloat16, not "):
        dequantize(np.zeros((1, qtype.block_bytes), np.uint8), qtype, dtype=asked)


def test_a_dtype_numpy_does_not_know():
    with pytest.raises(TypeError, match="'float33' isn't float32, float16 or bfloat16"):
        dequantize(np.zeros(18, np.uint8), "Q4_0", dtype="float33")


@pytest.mark.parametrize("qtype", INTEGER_TYPES, ids=lambda t: t.name)
def test_integers_keep_their_dtype(qtype, path, rng):
    own = np.dtype(f"i{qtype.block_bytes}")
    want = rng.integers(np.iinfo(own).min, np.iinfo(own).max, (3, 33), own, endpoint=True)
    for order in "<>":
        src = want.astype(own.newbyteorder(order)).view(np.uint8)
        options = {"path": path, "byteorder": {"<": "little", ">": "big"}[order]}
        for asked in (None, own, own.name):
            got = dequantize(src, qtype, dtype=asked, **options)
            assert got.dtype == own
            assert np.array_equal(got, want)
            assert not np.shares_memory(got, src)
        out = np.empty((9, 11), own)
        assert dequantize(src, qtype, shape=(9, 11), out=out, **options) is out
        assert np.array_equal(out.reshape(3, 33), want)
    for asked in (np.float32, "bfloat16", "u4", own.newbyteorder("S") if own.itemsize > 1 else "u1"):
        with pytest.raises(TypeError, match=f"{qtype.name} holds integers, which keep their dtype {own}"):
            dequantize(src, qtype, dtype=asked)
    for wrong in (np.empty((3, 33), np.float32), [0] * 99):
        with pytest.raises(TypeError, match=f"out must be a native {own} array"):
            dequantize(src, qtype, out=wrong)
    with pytest.raises(ValueError, match=r"out has shape \(99,\)"):
        dequantize(src, qtype, out=np.empty(99, own))
    with pytest.raises(ValueError, match="out overlaps src"):
        dequantize(src, qtype, out=src.view(own))


# ---- out

BLOCKS = make_blocks(QType.Q4_0, np.random.default_rng(0), 6)[:6]
VALUES = specified(BLOCKS, QType.Q4_0, "float32")


def read_only() -> np.ndarray:
    out = np.empty((6, 32), np.float32)
    out.flags.writeable = False
    return out


@pytest.mark.parametrize(
    ("error", "match", "out", "dtype"),
    [
        (ValueError, r"out has shape \(192,\), the values have \(6, 32\)", lambda: np.empty(192, "f4"), None),
        (ValueError, r"out has shape \(6, 33\)", lambda: np.empty((6, 33), "f4"), None),
        (ValueError, r"out has shape \(1, 6, 32\)", lambda: np.empty((1, 6, 32), "f4"), None),
        (ValueError, "out isn't C-contiguous", lambda: np.empty((32, 6), "f4").T, None),
        (ValueError, "out isn't C-contiguous", lambda: np.empty((6, 64), "f4")[:, ::2], None),
        (ValueError, "out isn't C-contiguous", lambda: np.empty((12, 32), "f4")[::2], None),
        (ValueError, "out isn't C-contiguous", lambda: np.empty((6, 32), "f4")[::-1], None),
        (ValueError, "out isn't C-contiguous", lambda: np.broadcast_to(np.empty(32, "f4"), (6, 32)), None),
        (ValueError, "out is read-only", read_only, None),
        (ValueError, "aligned to its 4-byte", lambda: np.empty(769, "u1")[1:].view("f4").reshape(6, 32), None),
        (ValueError, "aligned to its 2-byte", lambda: np.empty(385, "u1")[1:].view("f2").reshape(6, 32), None),
        (TypeError, "out has dtype >f4", lambda: np.empty((6, 32), ">f4"), None),
        (TypeError, "out has dtype >f2", lambda: np.empty((6, 32), ">f2"), None),
        (TypeError, "out has dtype >u2", lambda: np.empty((6, 32), ">u2"), "bfloat16"),
        (TypeError, "out has dtype float64", lambda: np.empty((6, 32)), None),
        (TypeError, "out has dtype int16", lambda: np.empty((6, 32), "i2"), "bfloat16"),
        (TypeError, "out has dtype object", lambda: np.empty((6, 32), object), None),
        (TypeError, "float32, but dtype=float16 was", lambda: np.empty((6, 32), "f4"), np.float16),
        (TypeError, "float16, but dtype=bfloat16 was", lambda: np.empty((6, 32), "f2"), ml_dtypes.bfloat16),
        (TypeError, "uint16, but dtype=float32 was", lambda: np.empty((6, 32), "u2"), "f4"),
        (TypeError, "bfloat16, but dtype=float16 was", lambda: np.empty((6, 32), ml_dtypes.bfloat16), "f2"),
        (TypeError, "out must be a numpy array, not list", lambda: [[0.0] * 32] * 6, None),
        (TypeError, "out must be a numpy array, not bytearray", lambda: bytearray(768), None),
    ],
)  # fmt: skip
def test_other_outputs_are_refused(error, match, out, dtype):
    target = out()
    before = np.array(target, copy=True) if isinstance(target, np.ndarray) else None
    with pytest.raises(error, match=match):
        dequantize(BLOCKS, QType.Q4_0, out=target, dtype=dtype)
    if before is not None and before.dtype != object:
        assert before.tobytes() == target.tobytes(), "a refused output was written to"


def test_overlap_is_refused(path):
    memory = np.zeros(4096, np.uint8)
    src = memory[:108].reshape(6, 18)  # zeros, which decode to -0
    for start in (0, 64, 104):
        for order in ("little", "big"):
            out = memory[start : start + 768].view("f4").reshape(6, 32)
            with pytest.raises(ValueError, match="out overlaps src"):
                dequantize(src, QType.Q4_0, out=out, path=path, byteorder=order)
            assert not memory.any(), "a refused output was written to"
    out = memory[112 : 112 + 768].view("f4").reshape(6, 32)
    src[:] = BLOCKS
    assert_same(dequantize(src, QType.Q4_0, out=out, path=path), VALUES)


def test_out_gives_its_dtype(path):
    for kind, name in ((np.float32, "float32"), (np.float16, "float16"), (np.uint16, "bfloat16")):
        out = np.empty((6, 32), kind)
        assert dequantize(BLOCKS, QType.Q4_0, out=out, path=path) is out
        assert_same(out, round_to(VALUES, name))
    for asked in (None, "bfloat16", ml_dtypes.bfloat16):  # either spelling of bfloat16, whichever was asked for
        for kind in (np.uint16, ml_dtypes.bfloat16):
            out = np.empty((6, 32), kind)
            assert dequantize(BLOCKS, QType.Q4_0, out=out, dtype=asked, path=path) is out
            assert_same(out.view(np.uint16), round_to(VALUES, "bfloat16"))


def test_out_may_be_a_file(tmp_path):
    out = np.memmap(tmp_path / "out", np.float32, "w+", shape=(6, 32))
    assert dequantize(BLOCKS, QType.Q4_0, out=out) is out
    out.flush()
    assert (tmp_path / "out").read_bytes() == VALUES.tobytes()


# ---- src


def mapped(data: bytes) -> mmap.mmap:
    memory = mmap.mmap(-1, len(data))
    memory[:] = data
    return memory


@pytest.mark.parametrize(
    "wrap",
    [
        bytes, bytearray, memoryview, mapped,
        lambda b: memoryview(b"xyz" + b)[3:],
        lambda b: memoryview(b).cast("B", (6, 18)),
        lambda b: memoryview(b).cast("H"),
        lambda b: np.frombuffer(b, np.float16),
        lambda b: np.frombuffer(b, ml_dtypes.bfloat16),
        lambda b: np.frombuffer(b, ">i4"),
        lambda b: np.frombuffer(b, "V18"),
        lambda b: np.frombuffer(b, "V108").reshape(()),
        lambda b: np.frombuffer(b, np.uint8).view(np.recarray),
    ],
    ids=["bytes", "bytearray", "memoryview", "mmap", "slice", "2-D view", "u16 view", "float16", "bfloat16", "i4",
         "void", "0-d", "subclass"],
)  # fmt: skip
def test_sources(wrap, path):
    src = wrap(BLOCKS.tobytes())
    assert_same(dequantize(src, "Q4_0", path=path).reshape(6, 32), VALUES)
    assert_same(dequantize(src, "Q4_0", shape=(2, 3, 32), path=path), VALUES.reshape(2, 3, 32))


def test_result_has_the_shape_of_the_rows(path):
    for shape in ((108,), (6, 18), (2, 54), (1, 2, 3, 18), (2, 1, 54)):
        got = dequantize(BLOCKS.reshape(shape), QType.Q4_0, path=path)
        assert got.shape == (*shape[:-1], shape[-1] // 18 * 32)
        assert_same(got.reshape(6, 32), VALUES)


@pytest.mark.parametrize(
    "strided",
    [BLOCKS[::2], BLOCKS[:, ::2], BLOCKS[::-1], np.asfortranarray(BLOCKS), BLOCKS.T, np.repeat(BLOCKS, 2, 1)[:, :18],
     memoryview(BLOCKS.tobytes())[::2]],
    ids=["rows", "columns", "reversed", "Fortran", "transposed", "part", "memoryview"],
)  # fmt: skip
def test_strided_sources_are_refused_with_a_hint(strided):
    with pytest.raises(ValueError, match=r"src isn't C-contiguous; copy it first, e\.g\. with np\.ascontiguousarray"):
        dequantize(strided, QType.Q4_0)


@pytest.mark.parametrize("src", [np.array([b"x"] * 18, object), np.zeros(3, "O,f4"), "x" * 18, [0] * 18, None, 18])
def test_what_holds_no_bytes_is_refused(src):
    with pytest.raises(TypeError, match="src"):
        dequantize(src, QType.Q4_0)


@pytest.mark.parametrize(
    ("src", "options", "match"),
    [
        (np.zeros(17, np.uint8), {}, "Q4_0: src has 17 bytes.*blocks of 18 bytes"),
        (np.zeros(19, np.uint8), {}, "Q4_0: src has 19 bytes"),
        (np.zeros((2, 9), np.uint8), {}, r"Q4_0: rows of 9 bytes \(src shape \(2, 9\)\) aren't whole blocks"),
        (BLOCKS, {"shape": (6, 31)}, r"src's 108 bytes hold 192 values, shape \(6, 31\) has 186"),
        (BLOCKS, {"shape": 191}, "hold 192 values, shape"),
        (BLOCKS, {"shape": (32, 6)}, r"a row of 6 values \(shape \(32, 6\)\) isn't a whole number of blocks of 32"),
        (BLOCKS, {"shape": ()}, "has 1"),
        (BLOCKS, {"shape": (1 << 40, 1 << 40)}, "hold 192 values"),
        (BLOCKS, {"shape": (0, 32)}, "has 0"),
    ],
)  # fmt: skip
def test_sizes_that_do_not_fit(src, options, match):
    with pytest.raises(GGUFError, match=match):
        dequantize(src, QType.Q4_0, **options)


def test_shape(path):
    for shape in (192, (192,), [6, 32], (2, 96), (np.int64(3), 64), (1, 6, 1, 32)):
        got = dequantize(BLOCKS, QType.Q4_0, shape=shape, path=path)
        assert got.shape == (tuple(shape) if isinstance(shape, list | tuple) else (shape,))
        assert_same(got.reshape(6, 32), VALUES)
    scalar = dequantize(np.float32(3).tobytes(), QType.F32, shape=(), path=path)
    assert scalar.shape == ()
    assert scalar == 3
    with pytest.raises(ValueError, match=r"negative dimension in shape \(-6, -32\)"):
        dequantize(BLOCKS, QType.Q4_0, shape=(-6, -32))
    with pytest.raises(TypeError):
        dequantize(BLOCKS, QType.Q4_0, shape=(6.0, 32))


def test_empty_inputs(path, dtype):
    for qtype in [*BLOCK_TYPES, QType.F32, QType.F16, QType.BF16, QType.F64]:
        for src, shape in (
            (b"", (0,)),
            (np.empty((0, qtype.block_bytes), np.uint8), (0, qtype.block_size)),
            (np.empty((3, 0), np.uint8), (3, 0)),
            (np.empty((2, 0, 5 * qtype.block_bytes), np.uint8), (2, 0, 5 * qtype.block_size)),
        ):
            for order in ("little", "big"):
                got = dequantize(src, qtype, dtype=dtype, path=path, byteorder=order, threads=2)
                assert got.shape == shape
                assert got.dtype == STORED[dtype]
            out = np.empty(shape, STORED[dtype])
            assert dequantize(src, qtype, out=out, dtype=dtype, path=path) is out
    assert dequantize(b"", QType.I32, path=path).dtype == np.int32
    assert dequantize(b"", QType.Q4_0, shape=(0, 7), path=path).shape == (0, 7)


# ---- other arguments


def test_names_of_types():
    for spelling in (QType.Q4_0, 2, np.int64(2), "Q4_0", "q4_0"):
        assert_same(dequantize(BLOCKS, spelling), VALUES)
    for wrong, error, match in (
        ("Q4_9", ValueError, "unknown tensor type 'Q4_9'"),
        (99, GGUFError, "type id 99 isn"),
        (4, GGUFError, "type id 4 "),
        (-1, GGUFError, "type id -1"),
        (2.0, TypeError, "is a QType, its id or its name, not float"),
        (None, TypeError, "needs qtype"),
    ):
        with pytest.raises(error, match=match):
            dequantize(BLOCKS, wrong)


def test_byte_orders_have_two_names():
    for wrong in ("BIG", "native", ">", "", None):
        with pytest.raises(ValueError, match="byteorder must be 'little' or 'big', not"):
            dequantize(BLOCKS, QType.Q4_0, byteorder=wrong)


def test_unknown_path_lists_the_choices():
    with pytest.raises(ValueError, match=f"path 'sse2' isn't available; choose one of {', '.join(ggufx.paths())}"):
        dequantize(BLOCKS, QType.Q4_0, path="sse2")


def test_paths_and_problems_are_all_there_is():
    names, problems = ggufx.paths(), dispatch.problems()
    assert names[-1] == "numpy"
    assert sorted([*names, *problems]) == ["avx2", "avx512", "neon", "numpy", "scalar"]
    assert "scalar" in names or "isn't there" in problems["scalar"]
    for name, why in problems.items():
        assert why
        with pytest.raises(ValueError, match=f"path '{name}' isn't available: .*choose one of"):
            dequantize(BLOCKS, QType.Q4_0, path=name)


def python(code: str, **environ: str) -> str:
    """What a fresh interpreter prints."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GGUFX_")} | environ
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, cwd="/")
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


ACTIVE = "from ggufx.codec import dispatch; print(dispatch.active())"
DECODED = """
import ggufx
try:
    ggufx.dequantize(bytes(18), "Q4_0"{options})
    print("decoded")
except ValueError as error:
    print(error)
"""


def test_path_from_the_environment(path):
    assert python(ACTIVE) == ggufx.paths()[0]
    assert python(ACTIVE, GGUFX_PATH="") == ggufx.paths()[0]
    assert python(ACTIVE, GGUFX_PATH=path) == path


def test_wrong_path_from_the_environment_fails_at_the_first_use():
    told = python(DECODED.format(options=""), GGUFX_PATH="mmx")
    assert told == f"path 'mmx' (from GGUFX_PATH) isn't available; choose one of {', '.join(ggufx.paths())}"
    assert python(DECODED.format(options=', path="numpy"'), GGUFX_PATH="mmx") == "decoded"


def test_without_the_extension():
    hide = "import sys; sys.modules['ggufx._native'] = None\n"
    assert python(hide + ACTIVE) == "numpy"
    assert python(hide + "import ggufx; print(*ggufx.paths())") == "numpy"
    assert python(hide + DECODED.format(options="")) == "decoded"
    assert "the compiled extension isn't there" in python(hide + DECODED.format(options=', path="scalar"'))
