"""dequantize() against ggml's frozen values and the numpy reference: bits everywhere, then every rule of its arguments.

What is compared: every path, type and dtype; outputs that stay in the cache and outputs written past it; any place in
memory; one thread and several.
"""

from __future__ import annotations

import ctypes
import functools
import io
import mmap
import os
import shutil
import signal
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from guard import GuardedMemory
from oracle import BLOCK_TYPES, INTEGER_TYPES, assert_same_bits, make_blocks, round_to
from samples import STORED, sample, specified

import ggufx
from ggufx import GGUFError, QType, _dispatch, dequantize
from ggufx import decode as decoding
from ggufx import threads as threading_rules

PLAIN = [QType.F32, QType.F16, QType.BF16]


@functools.lru_cache(maxsize=1)
def large_sample(qtype: QType, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Blocks that decode to over 4 MiB in any dtype, enough for three threads, an odd number of them."""
    blocks, values = sample(qtype, dtype)
    pick = np.random.default_rng(1).integers(0, len(blocks), 2_200_000 // qtype.block_size | 1)
    return blocks[pick], values[pick]


SCRATCH = np.empty(10 << 20, np.uint8)


def place(nbytes: int, past_line: int, scratch: np.ndarray = SCRATCH) -> np.ndarray:
    """`nbytes` bytes of the scratch memory that start so far beyond a 64-byte line, framed with marks."""
    start = -scratch.ctypes.data % 64 + 64 + past_line
    scratch[:start] = scratch[start + nbytes : start + nbytes + 64] = 0xA5
    return scratch[start : start + nbytes]


def assert_frame_intact(nbytes: int, past_line: int) -> None:
    start = -SCRATCH.ctypes.data % 64 + 64 + past_line
    assert (SCRATCH[:start] == 0xA5).all(), "written before the output"
    assert (SCRATCH[start + nbytes : start + nbytes + 64] == 0xA5).all(), "written beyond the output"


def assert_same(got: np.ndarray, want: np.ndarray, label: str = "") -> None:
    bits = f"u{want.dtype.itemsize}"
    if got.shape != want.shape or got.dtype != want.dtype or not np.array_equal(got.view(bits), want.view(bits)):
        assert_same_bits(got, want, label)  # lets NaN equal any NaN, which takes its time


# ---- bits


def test_golden_bits(golden, qtype, dtype, path):
    want = round_to(golden[f"{qtype.name}.f32"], dtype)
    assert_same(dequantize(golden[f"{qtype.name}.raw"], qtype, dtype=dtype, path=path), want)


@pytest.mark.parametrize("threads", [1, 2])
def test_cached_bits(decodable, dtype, path, threads):
    """Any number of blocks, anywhere in memory."""
    blocks, values = sample(decodable, dtype)
    for count in (1, 2, 3, 5, 32, 33, len(blocks)):
        first = (7 * count) % (len(blocks) - count + 1)
        source, want = blocks[first : first + count], values[first : first + count]
        for src_at, out_at in ((0, 0), (1, 4), (3, 16), (6, 2), (8, 60)):
            if out_at % want.itemsize:
                continue
            src = np.empty(source.size + 16, np.uint8)[src_at : src_at + source.size].reshape(source.shape)
            src[:] = source
            out = place(want.nbytes, out_at).view(want.dtype).reshape(want.shape)
            assert dequantize(src, decodable, dtype=dtype, path=path, out=out, threads=threads) is out
            assert_same(out, want, f"{count} blocks, src at {src_at}, out at {out_at}")
            assert_frame_intact(want.nbytes, out_at)


def test_streamed_bits(decodable, dtype, path, monkeypatch):
    """Outputs that don't fit the cache: on lines and off them, on one thread and on three."""
    monkeypatch.setattr(decoding, "STREAM_BYTES", 4 << 20)
    if path == "numpy":
        pytest.skip("numpy never writes past the cache; its bits are the reference's, whatever the size")
    blocks, want = large_sample(decodable, dtype)
    assert want.nbytes >= decoding.STREAM_BYTES
    src = blocks.reshape(-1)
    assert_same(dequantize(src, decodable, dtype=dtype, path=path), want.reshape(-1), "new array")
    for out_at, threads in ((0, 1), (0, 2), (0, 3), (16, 1), (4, 2), (60, 3), (2, 1)):
        if out_at % want.itemsize:
            continue
        out = place(want.nbytes, out_at).view(want.dtype)
        out.view(np.uint8)[:] = 0x5A
        dequantize(src, decodable, path=path, out=out, dtype=dtype, threads=threads)
        assert_same(out, want.reshape(-1), f"{threads} threads, out {out_at} bytes past a line")
        assert_frame_intact(want.nbytes, out_at)


def test_only_large_outputs_pass_the_cache(monkeypatch):
    """Those that begin on a line where dequantize makes them; the size depends on the machine's cache."""
    assert 4 << 20 <= decoding.STREAM_BYTES <= 32 << 20
    monkeypatch.setattr(decoding, "STREAM_BYTES", 4 << 20)
    if _dispatch.native is None:
        pytest.skip("numpy never writes past the cache")
    streamed: list[object] = []

    def decode(*arguments: object) -> None:
        streamed.append(arguments[-1])

    monkeypatch.setattr(_dispatch, "native", types.SimpleNamespace(decodes=lambda _: True, decode=decode))
    for dtype, item in (("float32", 4), ("float16", 2), ("bfloat16", 2)):
        least = (4 << 20) // item // 32
        for blocks, past_cache in ((least - 1, False), (least, True)):
            for order in ("little", "big"):
                streamed.clear()
                src = np.zeros((blocks, 18), np.uint8)
                made = [dequantize(src, QType.Q4_0, dtype=dtype, threads=1, byteorder=order) for _ in range(3)]
                assert set(streamed) == {past_cache}
                assert not past_cache or all(out.ctypes.data % 64 == 0 for out in made)


def test_numpy_is_the_same_in_large(dtype):
    blocks, want = large_sample(QType.Q4_K, dtype)
    for threads in (1, 2, 3):
        assert_same(dequantize(blocks, QType.Q4_K, dtype=dtype, path="numpy", threads=threads), want)


@pytest.mark.parametrize("qtype", PLAIN, ids=lambda t: t.name)
def test_tails_of_plain_numbers(qtype, dtype, path, monkeypatch):
    """Numbers come in no blocks, while kernels take 32 at a time: every remainder, cached and streamed."""
    blocks, values = sample(qtype, dtype)
    for stream in (1 << 40, 1):
        monkeypatch.setattr(decoding, "STREAM_BYTES", stream)
        for n in (*range(1, 67), 1023, 1024, 1025, 1055, 2047, 3001):
            for out_at in (0, 4):
                want = values[n : 2 * n, 0]
                out = place(want.nbytes, out_at).view(want.dtype)
                dequantize(blocks[n : 2 * n].reshape(-1), qtype, path=path, out=out, dtype=dtype)
                assert_same(out, want, f"{n} numbers")
                assert_frame_intact(want.nbytes, out_at)


@pytest.mark.parametrize("side", ["at_start", "at_end"])
@pytest.mark.parametrize("stream", [False, True], ids=["cached", "streamed"])
def test_nothing_beyond_either_end_is_touched(decodable, dtype, path, guarded, monkeypatch, stream, side):
    monkeypatch.setattr(decoding, "STREAM_BYTES", 1 if stream else 1 << 40)
    blocks, values = sample(decodable, dtype)
    sources: GuardedMemory = guarded(1 << 16)
    targets: GuardedMemory = guarded(1 << 16)
    for count in (1, 3, 13, 7000 // decodable.block_size | 1):
        source, want = blocks[-count:], values[-count:]
        src = getattr(sources, side)(source.size).reshape(source.shape)
        src[:] = source
        out = getattr(targets, side)(want.nbytes).view(want.dtype).reshape(want.shape)
        dequantize(src, decodable, dtype=dtype, path=path, out=out, threads=1)
        assert_same(out, want, f"{count} blocks")


def test_source_may_be_forbidden_to_write(qtype, path, guarded):
    blocks, want = sample(qtype, "float32")
    memory = guarded(blocks.size)
    memory.at_end(blocks.size)[:] = blocks.reshape(-1)
    memory.read_only()
    assert_same(dequantize(memory.at_end(blocks.size), qtype, path=path), want.reshape(-1))


# ggml's block structs, field by field. Everything wider than a byte is swapped in a big-endian file.
STRUCTS = {
    QType.F32: "f4", QType.F16: "f2", QType.BF16: "u2", QType.F64: "f8",
    QType.Q4_0: "f2,16u1", QType.Q4_1: "f2,f2,16u1", QType.Q5_0: "f2,4u1,16u1", QType.Q5_1: "f2,f2,4u1,16u1",
    QType.Q8_0: "f2,32i1", QType.Q8_1: "f2,f2,32i1",
    QType.Q2_K: "16u1,64u1,f2,f2", QType.Q3_K: "32u1,64u1,12u1,f2", QType.Q4_K: "f2,f2,12u1,128u1",
    QType.Q5_K: "f2,f2,12u1,32u1,128u1", QType.Q6_K: "128u1,64u1,16i1,f2", QType.Q8_K: "f4,256i1,16i2",
    QType.IQ2_XXS: "f2,32u2", QType.IQ2_XS: "f2,32u2,8u1", QType.IQ2_S: "f2,64u1,8u1,8u1",
    QType.IQ3_XXS: "f2,96u1", QType.IQ3_S: "f2,64u1,8u1,32u1,4u1", QType.IQ1_S: "f2,32u1,8u2",
    QType.IQ1_M: "32u1,16u1,8u1", QType.IQ4_NL: "f2,16u1", QType.IQ4_XS: "f2,u2,4u1,128u1",
    QType.TQ1_0: "48u1,4u1,f2", QType.TQ2_0: "64u1,f2", QType.MXFP4: "u1,16u1", QType.NVFP4: "4u1,32u1",
    QType.Q1_0: "f2,16u1", QType.Q2_0: "f2,16u1",
}  # fmt: skip


def test_big_endian_blocks(decodable, dtype, path, monkeypatch):
    blocks, want = sample(decodable, dtype)
    swapped = blocks.view(STRUCTS[decodable]).byteswap().view(np.uint8).reshape(blocks.shape)
    before = swapped.copy()
    for part in (decoding.PART_VALUES, 4096):  # whole, then in many parts
        monkeypatch.setattr(decoding, "PART_VALUES", part)
        assert_same(dequantize(swapped, decodable, dtype=dtype, path=path, byteorder="big"), want)
    assert np.array_equal(swapped, before)
    assert np.array_equal(decoding.swap_bytes(blocks, decodable), swapped)


def test_big_endian_in_large(path):
    if path == "numpy":
        pytest.skip("the same code as in small")
    blocks, want = large_sample(QType.Q6_K, "float16")
    swapped = decoding.swap_bytes(blocks, QType.Q6_K)
    got = dequantize(swapped, QType.Q6_K, dtype=np.float16, path=path, byteorder="big", threads=3)
    assert_same(got, want)


# ---- the thread's floating-point control

CONTROL = """
#if defined(__x86_64__)
#include <xmmintrin.h>
unsigned long control_get(void) { return _mm_getcsr() & ~0x3Fu; }
void control_set(unsigned long x) { _mm_setcsr((unsigned)x); }
#elif defined(__aarch64__)
unsigned long control_get(void) { unsigned long x; __asm__ volatile("mrs %0, fpcr" : "=r"(x)); return x; }
void control_set(unsigned long x) { __asm__ volatile("msr fpcr, %0" : : "r"(x)); }
#else
#error another architecture
#endif
"""
UNUSUAL = {
    "flushing": {"x86_64": 0x9FC0, "aarch64": 1 << 24},  # FTZ and DAZ; FZ
    "truncating": {"x86_64": 0x7F80, "aarch64": 3 << 22},
}


@pytest.fixture(scope="session")
def control(tmp_path_factory) -> ctypes.CDLL:
    """Get and set the floating-point control of the calling thread."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None or os.uname().machine not in UNUSUAL["flushing"]:
        pytest.skip("no C compiler to set flush-to-zero with, or a CPU this test doesn't know")
    source = tmp_path_factory.mktemp("control") / "control.c"
    source.write_text(CONTROL)
    library = source.with_suffix(".so")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, source], check=True)
    functions = ctypes.CDLL(str(library))
    functions.control_get.restype = ctypes.c_ulong
    functions.control_set.argtypes = [ctypes.c_ulong]
    return functions


@pytest.mark.parametrize("mode", UNUSUAL)
def test_floating_point_control_changes_nothing(decodable, dtype, path, control, mode):
    """Other libraries leave flush-to-zero on; scales of blocks are subnormal often enough to notice."""
    if _dispatch.native is None:
        pytest.skip("without the extension numpy computes as its thread is set to")
    blocks, want = sample(decodable, dtype)
    usual, unusual = control.control_get(), UNUSUAL[mode][os.uname().machine]
    out = np.empty(want.shape, want.dtype)
    control.control_set(unusual)
    try:
        dequantize(blocks, decodable, dtype=dtype, path=path, out=out)
        left = control.control_get()
    finally:
        control.control_set(usual)
    assert left == unusual, "the caller's control was not restored"
    assert_same(out, want, mode)


def test_floating_point_control_of_worker_threads(control, path):
    if path == "numpy":
        pytest.skip("numpy computes as its thread is set to")
    blocks, want = large_sample(QType.Q4_K, "float32")
    usual = control.control_get()
    out = np.empty(want.shape, want.dtype)
    control.control_set(UNUSUAL["flushing"][os.uname().machine])
    try:
        dequantize(blocks, QType.Q4_K, path=path, out=out, threads=3)
    finally:
        control.control_set(usual)
    assert_same(out, want)


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
    with pytest.raises(TypeError, match="'float33' isn't one numpy knows"):
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
    src = memory[:108].reshape(6, 18)
    for start in (0, 64, 104):
        with pytest.raises(ValueError, match="out overlaps src"):
            dequantize(src, QType.Q4_0, out=memory[start : start + 768].view("f4").reshape(6, 32), path=path)
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
    for qtype in [*BLOCK_TYPES, *PLAIN, QType.F64]:
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
        (99, GGUFError, "type id 99 has no decoder"),
        (4, GGUFError, "type id 4 "),
        (-1, GGUFError, "type id -1"),
        (2.0, TypeError, "qtype must be a QType, its id or its name, not float"),
        (None, TypeError, "not NoneType"),
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
    names, problems = ggufx.paths(), _dispatch.problems()
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


ACTIVE = "from ggufx import _dispatch; print(_dispatch.active())"
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


# ---- threads


def test_threads_must_be_positive_integers():
    for wrong, error in ((0, ValueError), (-1, ValueError), (1.0, TypeError), ("2", TypeError), (True, TypeError)):
        with pytest.raises(error, match="threads must be"):
            dequantize(BLOCKS, QType.Q4_0, threads=wrong)
    assert_same(dequantize(BLOCKS, QType.Q4_0, threads=np.int64(5)), VALUES)


def test_threads_from_the_environment(monkeypatch):
    monkeypatch.setattr(threading_rules, "available_cpus", lambda: 6)
    for value, want in (("", 6), ("1", 1), ("4", 4), ("64", 6)):
        monkeypatch.setenv("GGUFX_THREADS", value)
        assert threading_rules.thread_count(None) == want
        assert threading_rules.thread_count(9) == 9  # an explicit number is the caller's business
    monkeypatch.delenv("GGUFX_THREADS")
    assert threading_rules.thread_count(None) == 6
    large = np.zeros((2 * decoding.VALUES_PER_THREAD // 32, 18), np.uint8)
    for value in ("0", "-1", "two", "1.5", " "):
        monkeypatch.setenv("GGUFX_THREADS", value)
        with pytest.raises(ValueError, match="GGUFX_THREADS must be a positive integer, not"):
            dequantize(large, QType.Q4_0)


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({}, 16),
        ({"cpu.max": "max 100000\n"}, 16),
        ({"cpu.max": "400000 100000\n"}, 4),
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "120000 100000\n"}, 1),
        ({"cpu.max": "1000 100000\n"}, 1),
        ({"cpu.max": "6400000 100000\n"}, 16),
        ({"cpu.max": ""}, 16),
        ({"cpu.max": "nonsense 1"}, 16),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 16),
        ({"cpu/cpu.cfs_quota_us": "300000\n"}, 16),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "0\n"}, 16),
    ],
)
def test_cpus_are_the_least_of_affinity_and_quota(files, cpus, monkeypatch, tmp_path):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    def elsewhere(name: str) -> io.StringIO:
        return io.StringIO(Path(name.replace("/sys/fs/cgroup", str(tmp_path))).read_text())

    monkeypatch.setattr(threading_rules, "open", elsewhere, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)
    assert threading_rules.available_cpus() == cpus


@pytest.fixture(autouse=True)
def _threads_that_pay_early(monkeypatch):
    """A quarter of the values that would make a thread pay, so that samples can be small."""
    monkeypatch.setattr(decoding, "VALUES_PER_THREAD", 1 << 19)


@pytest.fixture
def started(monkeypatch) -> list[threading.Thread]:
    """Threads that were started."""
    found: list[threading.Thread] = []
    start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", lambda self: (found.append(self), start(self))[1])
    return found


def test_one_thread_starts_none(started, monkeypatch):
    blocks, _ = large_sample(QType.Q4_K, "float32")
    dequantize(blocks, QType.Q4_K, threads=1)
    dequantize(blocks[:3], QType.Q4_K, threads=8)  # nothing to share
    monkeypatch.setenv("GGUFX_THREADS", "1")
    dequantize(blocks, QType.Q4_K)
    assert not started


def test_threads_end_with_the_call(started):
    blocks, _ = large_sample(QType.Q4_K, "float32")
    if ggufx.paths() == ("numpy",):
        pytest.skip("numpy decodes on one thread")
    for threads in (2, 3):
        started.clear()
        dequantize(blocks, QType.Q4_K, threads=threads)
        assert len(started) == threads - 1  # the caller's works too
        assert not any(thread.is_alive() for thread in started)


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="this system doesn't list a process's threads")
def test_the_system_knows_no_thread_afterwards():
    """In a process of its own: other tests' libraries keep threads."""
    code = """
import os, time, numpy as np, ggufx
tasks = lambda: len(os.listdir("/proc/self/task"))
before, blocks = tasks(), np.zeros((1 << 16, 144), np.uint8)
ggufx.dequantize(blocks, "Q4_K", threads=3)
deadline = time.monotonic() + 10
while tasks() > before and time.monotonic() < deadline:
    time.sleep(0.001)  # the system may learn of an end a moment after Python
assert tasks() == before, (tasks(), before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_fork_after_threads():
    blocks, want = large_sample(QType.Q4_K, "float32")
    dequantize(blocks, QType.Q4_K, threads=3)
    child = os.fork()
    if not child:
        try:
            signal.alarm(20)  # a child that hangs is ended, which the parent sees
            assert_same(dequantize(blocks, QType.Q4_K, threads=3), want)
            os._exit(0)
        finally:
            os._exit(4)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert_same(dequantize(blocks, QType.Q4_K, threads=3), want)


def fails_at(call: int, error: BaseException) -> types.SimpleNamespace:
    """Stand for the extension; the given call of decode() fails."""
    native = _dispatch.native
    calls = iter(range(1, 1000))

    def decode(*arguments: object) -> None:
        if next(calls) == call:
            raise error
        native.decode(*arguments)

    return types.SimpleNamespace(decodes=native.decodes, decode=decode)


@pytest.mark.parametrize("call", [1, 2, 3, 7])
@pytest.mark.parametrize("error", [MemoryError("injected"), KeyboardInterrupt("injected")], ids=lambda e: repr(e))
def test_errors_of_worker_threads_surface(call, error, started, monkeypatch):
    if _dispatch.native is None:
        pytest.skip("numpy decodes on one thread")
    blocks, want = large_sample(QType.Q4_K, "float32")
    with monkeypatch.context() as patch:
        patch.setattr(_dispatch, "native", fails_at(call, error))
        with pytest.raises(type(error), match="injected"):
            dequantize(blocks, QType.Q4_K, threads=3)
    assert not any(thread.is_alive() for thread in started)
    assert_same(dequantize(blocks, QType.Q4_K, threads=3), want)


def test_run_does_everything_once():
    seen: list[int] = []
    lock = threading.Lock()

    def note(item: int) -> None:
        with lock:
            seen.append(item)

    for threads in (1, 2, 5):
        seen.clear()
        threading_rules.run(note, range(100), threads)
        assert sorted(seen) == list(range(100))


def test_run_stops_at_the_first_error():
    seen: list[int] = []

    def fail(item: int) -> None:
        seen.append(item)
        raise RuntimeError(f"item {item}")

    for threads in (1, 3):
        seen.clear()
        with pytest.raises(RuntimeError, match="item "):
            threading_rules.run(fail, range(1000), threads)
        assert len(seen) <= threads


def test_concurrent_callers(path):
    """Calls share nothing: many at once, each with its own output, under one source."""
    blocks, want = sample(QType.IQ2_XS, "float32")
    wrong: list[object] = []

    def work(check: Callable[[np.ndarray], bool]) -> None:
        for _ in range(20):
            try:
                if not check(dequantize(blocks, QType.IQ2_XS, path=path, threads=2)):
                    wrong.append("other bits")
            except BaseException as error:
                wrong.append(error)

    nan = np.isnan(want)
    callers = [
        threading.Thread(target=work, args=(lambda got: np.array_equal(got[~nan], want[~nan]),)) for _ in range(4)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong
