"""Other libraries leave a thread's floating-point control set to flush or to truncate: no bits and no bytes change."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess

import numpy as np
import pytest
from samples import assert_same, large_sample, sample

from ggufx import QType, dequantize, quantize
from ggufx.codec import dispatch

pytestmark = pytest.mark.usefixtures("threads_pay_early")

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
    if dispatch.native is None:
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


@pytest.mark.parametrize("mode", UNUSUAL)
@pytest.mark.parametrize("given", ["float32", "float64"])
def test_quantizing(qtype, path, control, mode, given):
    """Weights so small that blocks get subnormal scales, ordinary ones, and doubles to be rounded."""
    if dispatch.native is None:
        pytest.skip("without the extension numpy computes as its thread is set to")
    rng = np.random.default_rng(3)
    x = rng.standard_normal((12, 256)) * np.repeat([1e-39, 3e-7, 1.0], 4)[:, None]
    x, importance = x.astype(given), np.ones(256, np.float32)
    want = quantize(x, qtype, imatrix=importance, path=path)
    usual = control.control_get()
    control.control_set(UNUSUAL[mode][os.uname().machine])
    try:
        got = quantize(x, qtype, imatrix=importance, path=path)
    finally:
        control.control_set(usual)
    assert_same(got, want, mode)
