"""dequantize() against ggml's frozen values and the numpy reference: the same bits everywhere.

What is compared: every path, type and dtype; outputs that stay in the cache and outputs written past it; any place in
memory; one thread and several; any state of the floating-point control.
"""

from __future__ import annotations

import types

import numpy as np
import pytest
from guard import GuardedMemory
from oracle import STRUCTS, round_to
from samples import assert_same, large_sample, sample

from ggufx import QType, dequantize
from ggufx.codec import decode as decoding
from ggufx.codec import dispatch

pytestmark = pytest.mark.usefixtures("threads_pay_early")

PLAIN = [QType.F32, QType.F16, QType.BF16]
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
    if dispatch.native is None:
        pytest.skip("numpy never writes past the cache")
    streamed: list[object] = []

    def decode(*arguments: object) -> None:
        streamed.append(arguments[-1])

    monkeypatch.setattr(dispatch, "native", types.SimpleNamespace(decodes=lambda _: True, decode=decode))
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
