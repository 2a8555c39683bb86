"""Products with packed rows: exactness, independence of company, threads and alignment, and what is refused."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest
from gguf_bytes import File
from oracle import BLOCK_TYPES, make_blocks

import ggufx
from ggufx import GGUFError, QType
from ggufx.codec import matmul as module
from ggufx.codec.decode import swap_bytes

LIMIT = 1e-6
ROWS = 11


def packed_rows(qtype, rng, rows=ROWS, width=None):
    """Packed rows, and their values as float64."""
    width = width or (qtype.block_size * 2 if qtype.block_size > 1 else 71) + 512 * (qtype.block_size > 1)
    values = (rng.standard_normal((rows, width)) * 0.05).astype(np.float32)
    if qtype.is_quantized:
        packed = ggufx.quantize(values, qtype, imatrix=np.ones(width, np.float32))
    elif qtype is QType.BF16:
        packed = values.astype(ml_dtypes.bfloat16).view(np.uint8)
    else:
        packed = values.astype(f"f{qtype.block_bytes}").view(np.uint8)
    if qtype is QType.F64:
        return packed, packed.view(np.float64)
    return packed, ggufx.dequantize(packed, qtype, path="numpy").astype(np.float64)


def exact(x, w):
    """The products, and what errors are measured by."""
    x = x.astype(np.float64)
    return x @ w.T, np.abs(x) @ np.abs(w).T


@pytest.fixture(params=["float32", "int8"])
def precision(request):
    return request.param


def seen(x, precision, qtype=QType.Q4_K):
    """What x is multiplied as."""
    return module._rounded(x) if precision == "int8" and qtype.is_quantized else x


def assert_close(got, x, w):
    want, scale = exact(x, w)
    assert got.dtype == np.float32
    assert got.shape == want.shape
    assert (np.abs(got - want) <= LIMIT * scale).all(), (np.abs(got - want) / scale).max()


def activations(rng, rows, width):
    x = rng.standard_normal((rows, width)).astype(np.float32)
    x[1::4] *= 1e4
    x[2::4, ::7] = 0
    return x


# ---- values


def test_every_type(decodable, path, precision, rng):
    packed, w = packed_rows(decodable, rng)
    x = activations(rng, 40, w.shape[1])
    for count in (1, 2, 5, 31, 32, 40):  # fused, and from 32 on by BLAS, which rounds nothing to codes
        wanted = x if count >= 32 and path != "numpy" else seen(x, precision, decodable)
        got = ggufx.matmul(x[:count], packed, qtype=decodable, path=path, precision=precision)
        if decodable is QType.F64 and count >= 32:
            wanted = x
        assert_close(got, wanted[:count], w)


def test_rounding_to_codes(path, rng):
    """Half a step of the largest of 32, and no more: seen through a unit matrix."""
    unit = ggufx.quantize(np.eye(64, dtype=np.float32) * 127, "Q8_0")
    x = activations(rng, 20, 64)
    x[3], x[4, :32], x[5, 32:], x[6] = 0, 1e-38, 1e36, np.float32(1e-40)
    x[7, 5] = -1e30
    x[8] = np.round(x[8] * 30)
    got = ggufx.matmul(x, unit, qtype="Q8_0", path=path, precision="int8").astype(np.float64) / 127
    most = np.abs(x.reshape(20, 2, 32)).max(axis=2).astype(np.float64).repeat(32, axis=1)
    assert (np.abs(got - x) <= most / 254 * 1.00001 + 2e-36).all()
    assert (got[3] == 0).all()
    assert np.array_equal(ggufx.matmul(x[3:4], unit, qtype="Q8_0", path=path, precision="int8")[0], got[3])


def test_infinities_and_nan_in_codes(path, rng):
    """Products that aren't finite are those of float32."""
    packed, w = packed_rows(QType.Q8_0, rng, rows=6)
    packed[1, :2], packed[2, 34:36] = [0x00, 0x7C], [0x00, 0x7E]  # an infinite scale, and a NaN
    x = np.abs(activations(rng, 7, w.shape[1]))
    x[1, 3], x[2, 60], x[3, 7] = np.nan, np.inf, -np.inf
    codes = ggufx.matmul(x, packed, qtype="Q8_0", path=path, precision="int8")
    floats = ggufx.matmul(x, packed, qtype="Q8_0", path=path)
    special = ~np.isfinite(codes)
    assert special[[1, 2, 3]].all()
    assert special[:, [1, 2]].all()
    assert np.array_equal(special, ~np.isfinite(floats))
    if path in ("numpy", "scalar"):  # these multiply floats; infinities among rounded ones may differ from NaN
        return
    assert np.array_equal(codes[special], floats[special], equal_nan=True)


def test_long_rows_are_no_less_exact(path, rng):
    for qtype in (QType.Q4_K, QType.F32):
        packed, w = packed_rows(qtype, rng, rows=2, width=1 << 16)
        x = np.abs(activations(rng, 4, w.shape[1]))  # nothing cancels
        assert_close(ggufx.matmul(x, packed, qtype=qtype, path=path), x, w)


def test_long_rows_of_one_sign(path):
    """Sums that only grow lose the most; 1e-6 of them is some eight roundings."""
    w = np.full((1, 100_000), 0.1, np.float32)
    x = np.full((1, 100_000), 1.1, np.float32)
    assert_close(ggufx.matmul(x, w, qtype="F32", path=path), x, w.astype(np.float64))


def test_a_row_does_not_depend_on_its_company(decodable, path, precision, rng):
    packed, w = packed_rows(decodable, rng)
    x = activations(rng, 9, w.shape[1])
    how = {"qtype": decodable, "path": path, "precision": precision}
    alone = np.concatenate([ggufx.matmul(row[None], packed, **how) for row in x])
    for count in range(2, 10):
        assert np.array_equal(ggufx.matmul(x[:count], packed, **how), alone[:count])
    assert np.array_equal(ggufx.matmul(x[::-1], packed, **how)[::-1], alone)
    one_row = np.concatenate([ggufx.matmul(x, row[None], **how) for row in packed], axis=1)
    assert np.array_equal(one_row, alone)


def test_chunks_of_packed_rows(path, precision, rng):
    """More packed rows than the kernels keep in the cache for the next four rows of x."""
    packed, _ = packed_rows(QType.Q8_0, rng, rows=1, width=8192)
    many = np.repeat(packed, 70, axis=0)
    x = activations(rng, 6, 8192)
    want = ggufx.matmul(x, packed, qtype="Q8_0", path=path, precision=precision)
    got = ggufx.matmul(x, many, qtype="Q8_0", path=path, precision=precision, threads=1)
    assert np.array_equal(got, np.repeat(want, 70, axis=1))


@pytest.mark.parametrize("qtype", [QType.Q4_K, QType.Q8_0, QType.F16], ids=lambda t: t.name)
def test_threads_and_alignment(qtype, path, precision, rng, monkeypatch):
    packed, w = packed_rows(qtype, rng, rows=101)
    x = activations(rng, 3, w.shape[1])
    want = ggufx.matmul(x, packed, qtype=qtype, path=path, precision=precision, threads=1)
    monkeypatch.setattr(module, "PRODUCTS_PER_THREAD", 1 << 10)
    started = []
    monkeypatch.setattr(module, "run", lambda work, parts, n: started.append(n) or run(work, parts, n))
    for threads in (1, 2, 3, 7):
        assert np.array_equal(
            ggufx.matmul(x, packed, qtype=qtype, path=path, precision=precision, threads=threads), want
        )
    if path != "numpy":
        assert started == [2, 3, 7]
    monkeypatch.setattr(module, "ALIGNED_FROM", 1 << 30)  # else x is copied to where it suits the kernels
    for shift in (1, 2, 3, 17):
        moved = np.empty(packed.size + shift, np.uint8)[shift:].reshape(packed.shape)
        moved[...] = packed
        shifted = np.empty(x.size + 1 + shift, np.float32)[shift:-1].reshape(x.shape)
        shifted[...] = x
        assert np.array_equal(
            ggufx.matmul(shifted, moved, qtype=qtype, path=path, precision=precision, threads=1), want
        )
    copies = []
    monkeypatch.setattr(module, "ALIGNED_FROM", 64)
    monkeypatch.setattr(module, "_aligned", lambda x, f=module._aligned: copies.append(f(x)) or copies[-1])
    assert np.array_equal(ggufx.matmul(shifted, moved, qtype=qtype, path=path, precision=precision, threads=1), want)
    assert len(copies) == (path != "numpy" and (precision == "float32" or not qtype.is_quantized))
    assert all(x.ctypes.data % 32 == 0 for x in copies)


run = module.run


@pytest.mark.parametrize("count", [1, 4, 5])
def test_nothing_beyond_the_arrays_is_touched(decodable, path, precision, rng, guarded, count):
    packed, w = packed_rows(decodable, rng, rows=3)
    x = activations(rng, count, w.shape[1])
    want = ggufx.matmul(x, packed, qtype=decodable, path=path, precision=precision)
    memory = [guarded(packed.nbytes), guarded(x.nbytes), guarded(want.nbytes)]
    for place in ("at_end", "at_start"):
        source, left, out = (
            getattr(m, place)(a.nbytes).view(a.dtype).reshape(a.shape)
            for m, a in zip(memory, (packed, x, want), strict=True)
        )
        source[...], left[...] = packed, x
        if place == "at_start":
            memory[0].read_only()
            memory[1].read_only()
        assert ggufx.matmul(left, source, qtype=decodable, path=path, precision=precision, out=out) is out
        assert np.array_equal(out, want)


def test_infinities_and_nan(path):
    w = np.full((5, 96), 0.5, np.float32)
    w[1, 70], w[2, 3], w[3, [1, 2]], w[4, 95] = np.inf, -np.inf, [np.inf, -np.inf], np.nan
    x = np.ones((6, 96), np.float32)
    x[1, 70], x[2, 0], x[3, 0], x[4], x[5, 0] = 0, np.inf, np.nan, -1, 3e38
    with np.errstate(all="ignore"):
        want = np.stack([(w * row).sum(axis=1, dtype=np.float64) for row in x])
    assert np.array_equal(ggufx.matmul(x, w, qtype="F32", path=path), want.astype(np.float32), equal_nan=True)
    infinite = np.zeros((1, 34), np.uint8)
    infinite[0, :2], infinite[0, 2:] = [0x00, 0x7C], 1  # every value is infinite
    assert ggufx.matmul(np.ones((1, 32), np.float32), infinite, qtype="Q8_0", path=path)[0, 0] == np.inf
    assert np.isnan(ggufx.matmul(np.zeros((1, 32), np.float32), infinite, qtype="Q8_0", path=path)[0, 0])


@pytest.mark.parametrize("qtype", BLOCK_TYPES, ids=lambda t: t.name)
def test_any_blocks_at_all(qtype, path, precision, rng):
    """Scales of every size, infinite and NaN: as float64 has it, wherever float32 doesn't overflow on the way."""
    blocks = make_blocks(qtype, rng, 60)
    with np.errstate(all="ignore"):
        w = ggufx.dequantize(blocks, qtype, path="numpy").astype(np.float64)
    x = rng.uniform(0.5, 1, (2, w.shape[1])).astype(np.float32)
    got = ggufx.matmul(x, blocks, qtype=qtype, path=path, precision=precision)
    with np.errstate(all="ignore"):
        wanted = seen(x, precision).astype(np.float64)
        want = np.stack([(w * row).sum(axis=1) for row in wanted])
        scale = np.stack([(np.abs(w) * row).sum(axis=1) for row in wanted])
    small = scale < 1e37
    assert small.any()
    # Codes with minimums cancel what may be larger than their sum.
    limit = LIMIT if precision == "float32" or path in ("scalar", "numpy") else 4e-6
    assert (np.abs(got[small] - want[small]) <= limit * scale[small] + 1e-42).all()
    assert np.isnan(got[np.isnan(want)]).all()


def test_subnormal_numbers_are_kept(path, rng):
    w = np.full((1, 32), 1e-42, np.float32)
    assert ggufx.matmul(np.ones((1, 32), np.float32), w, qtype="F32", path=path)[0, 0] == pytest.approx(
        32e-42, rel=0.01
    )


# ---- arguments


def test_dtypes_of_x(path, rng):
    packed, w = packed_rows(QType.Q4_K, rng)
    x = rng.standard_normal((3, w.shape[1])).astype(ml_dtypes.bfloat16)
    want = ggufx.matmul(x.astype(np.float32), packed, qtype="Q4_K", path=path)
    assert np.array_equal(ggufx.matmul(x, packed, qtype="Q4_K", path=path), want)
    assert np.array_equal(ggufx.matmul(x.view(np.uint16), packed, qtype="Q4_K", path=path), want)
    half = x.astype(np.float16)
    want = ggufx.matmul(half.astype(np.float32), packed, qtype="Q4_K", path=path)
    assert np.array_equal(ggufx.matmul(half, packed, qtype=int(QType.Q4_K), path=path), want)


def test_torch_tensors(rng):
    torch = pytest.importorskip("torch", reason="torch (extra `torch`) is not installed")
    packed, w = packed_rows(QType.Q4_K, rng)
    x = torch.from_numpy(activations(rng, 3, w.shape[1])).bfloat16()
    want = ggufx.matmul(x.float().numpy(), packed, qtype="Q4_K")
    assert np.array_equal(ggufx.matmul(x, torch.from_numpy(packed), qtype="Q4_K"), want)
    assert np.array_equal(ggufx.matmul_experts(x, packed[None], [[0], [0], [0]], qtype="Q4_K")[:, 0], want)
    memory = torch.zeros(1, w.shape[1])
    with pytest.raises(ValueError, match="out overlaps"):
        ggufx.matmul(memory, packed, qtype="Q4_K", out=memory.numpy()[:, :ROWS].reshape(1, ROWS))


@pytest.mark.parametrize("dtype", [np.float64, np.int32, np.int8, np.uint8, ">f4", ">f2", "c8", object], ids=str)
def test_other_dtypes_of_x_are_refused(dtype, rng):
    packed, w = packed_rows(QType.Q8_0, rng)
    with pytest.raises(TypeError, match="float32, float16 or bfloat16"):
        ggufx.matmul(np.zeros((1, w.shape[1]), dtype), packed, qtype="Q8_0")


@pytest.mark.parametrize("lead", [(), (1,), (2, 3), (2, 1, 4), (0,), (3, 0), (33, 2)], ids=str)
def test_leading_dimensions(lead, path, rng):
    packed, w = packed_rows(QType.Q5_0, rng)
    x = rng.standard_normal((*lead, w.shape[1])).astype(np.float32)
    got = ggufx.matmul(x, packed, qtype="Q5_0", path=path)
    assert got.shape == (*lead, ROWS)
    assert_close(got.reshape(-1, ROWS), x.reshape(-1, w.shape[1]), w)
    out = np.full(got.shape, np.nan, np.float32)
    assert ggufx.matmul(x, packed, qtype="Q5_0", path=path, out=out) is out
    assert np.array_equal(out, got)


@pytest.mark.parametrize("qtype", ["Q4_0", "F32", "F64"])
def test_nothing_to_multiply(qtype, path):
    qtype = QType[qtype]
    assert (
        ggufx.matmul(np.zeros((2, 0), np.float32), np.zeros((3, 0), np.uint8), qtype=qtype, path=path).tolist()
        == [[0, 0, 0]] * 2
    )
    x = np.zeros((2, qtype.block_size), np.float32)
    assert ggufx.matmul(x, np.zeros((0, qtype.block_bytes), np.uint8), qtype=qtype, path=path).shape == (2, 0)


def test_strided_x(path, rng):
    packed, w = packed_rows(QType.Q6_K, rng)
    wide = rng.standard_normal((4, 2 * w.shape[1])).astype(np.float32)
    for x in (wide[:, ::2], wide[::2, : w.shape[1]], wide[::-1, ::-2], np.asfortranarray(wide[:, ::2])):
        want = ggufx.matmul(np.ascontiguousarray(x), packed, qtype="Q6_K", path=path)
        assert np.array_equal(ggufx.matmul(x, packed, qtype="Q6_K", path=path), want)
    unaligned = np.empty(w.shape[1] * 4 + 1, np.uint8)[1:].view(np.float32)
    unaligned[:] = wide[0, : w.shape[1]]
    want = ggufx.matmul(wide[0, : w.shape[1]], packed, qtype="Q6_K", path=path)
    assert np.array_equal(ggufx.matmul(unaligned, packed, qtype="Q6_K", path=path), want)


def test_out_is_exact_or_refused(rng):
    packed, w = packed_rows(QType.Q8_0, rng)
    x = np.zeros((2, w.shape[1]), np.float32)
    read_only = np.zeros((2, ROWS), np.float32)
    read_only.flags.writeable = False
    unaligned = np.zeros(8 * ROWS + 1, np.uint8)[1:].view(np.float32).reshape(2, ROWS)
    for out, error, words in (
        (np.zeros((ROWS, 2), np.float32), ValueError, "out has shape"),
        (np.zeros(2 * ROWS, np.float32), ValueError, "out has shape"),
        (np.zeros((2, 2 * ROWS), np.float32)[:, ::2], ValueError, "C-contiguous"),
        (np.zeros((2, ROWS)), TypeError, "out has dtype float64"),
        (np.zeros((2, ROWS), ">f4"), TypeError, "out has dtype >f4"),
        (np.ma.zeros((2, ROWS), np.float32), TypeError, "mask"),
        ([[0.0] * ROWS] * 2, TypeError, "not list"),
        (read_only, ValueError, "read-only"),
        (unaligned, ValueError, "aligned"),
    ):
        with pytest.raises(error, match=words):
            ggufx.matmul(x, packed, qtype="Q8_0", out=out)


def test_out_over_what_is_read_is_refused(rng):
    packed, w = packed_rows(QType.Q8_0, rng)
    memory = np.zeros(1 << 16, np.uint8)
    x = memory[: 8 * w.shape[1]].view(np.float32).reshape(2, -1)
    over_x = memory[4 : 4 + 8 * ROWS].view(np.float32).reshape(2, ROWS)
    with pytest.raises(ValueError, match="out overlaps"):
        ggufx.matmul(x, packed, qtype="Q8_0", out=over_x)
    blocks = memory[-packed.size :].reshape(packed.shape)
    blocks[...] = packed
    over_blocks = memory[-8 * ROWS :].view(np.float32).reshape(2, ROWS)
    with pytest.raises(ValueError, match="out overlaps"):
        ggufx.matmul(x, blocks, qtype="Q8_0", out=over_blocks)
    assert np.array_equal(blocks, packed)
    ids = memory[:16].view(np.int64).reshape(2, 1)
    over_ids = memory[: 8 * ROWS].view(np.float32).reshape(2, 1, ROWS)
    with pytest.raises(ValueError, match="out overlaps"):
        ggufx.matmul_experts(x.copy(), packed[None], ids, qtype="Q8_0", out=over_ids)


def test_wrong_arguments(rng):
    packed, w = packed_rows(QType.Q4_K, rng)
    x = np.zeros((1, w.shape[1]), np.float32)
    for arguments, error, words in (
        ({"x": x[:, 1:]}, GGUFError, rf"x has shape \(1, {w.shape[1] - 1}\), but rows of weight have {w.shape[1]}"),
        ({"x": np.float32(1)}, TypeError, "x must be a numpy array"),
        ({"x": np.zeros((), np.float32)}, GGUFError, "x has shape"),
        ({"x": np.ma.masked_equal(x, 0)}, ValueError, "masked"),
        ({"x": [1.0]}, TypeError, "not list"),
        ({"qtype": None}, TypeError, "qtype="),
        ({"qtype": "Q4_9"}, ValueError, "unknown tensor type"),
        ({"qtype": 999}, GGUFError, "999"),
        ({"qtype": "I8"}, TypeError, "integers"),
        ({"weight": packed[:, :-1].copy()}, GGUFError, "aren't whole blocks of 144 bytes"),
        ({"weight": packed[::2]}, ValueError, "C-contiguous"),
        ({"weight": packed.reshape(-1)}, ValueError, "2 dimensions"),
        ({"weight": 7}, TypeError, "buffer"),
        ({"precision": "float16"}, ValueError, "choose one of float32, int8"),
        ({"path": "sse9"}, ValueError, "sse9"),
        ({"threads": 0}, ValueError, "threads"),
        ({"threads": 1.5}, TypeError, "threads"),
    ):
        given = {"x": x, "weight": packed, "qtype": "Q4_K", **arguments}
        with pytest.raises(error, match=words):
            ggufx.matmul(given.pop("x"), given.pop("weight"), **given)


# ---- many rows


def test_the_limit_of_blas(path, rng, monkeypatch):
    packed, w = packed_rows(QType.Q4_0, rng)
    x = activations(rng, 8, w.shape[1])
    calls = []
    blas = module._by_blas
    monkeypatch.setattr(module, "_by_blas", lambda *given: calls.append(1) or blas(*given))
    alone = ggufx.matmul(x[:1], packed, qtype="Q4_0", path=path)
    for limit, expected in (("8", 1), ("9", 0), ("", 0), ("2", 1)):
        monkeypatch.setenv("GGUFX_BLAS_ROWS", limit)
        calls.clear()
        got = ggufx.matmul(x, packed, qtype="Q4_0", path=path)
        assert len(calls) == (path != "numpy") * expected
        assert_close(got, x, w)
        assert np.array_equal(ggufx.matmul(x[:1], packed, qtype="Q4_0", path=path), alone)
    for limit in ("1", "-3", "many"):
        monkeypatch.setenv("GGUFX_BLAS_ROWS", limit)
        if path != "numpy":
            with pytest.raises(ValueError, match="GGUFX_BLAS_ROWS must be"):
                ggufx.matmul(x, packed, qtype="Q4_0", path=path)


def test_panels(path, rng, monkeypatch):
    """More rows than a panel takes, a panel of one row, and rows that are longer than a panel."""
    packed, w = packed_rows(QType.Q8_0, rng, rows=50)
    x = activations(rng, 33, w.shape[1])
    for values in (7 * w.shape[1], w.shape[1], 100):
        monkeypatch.setattr(module, "PANEL_VALUES", values)
        assert_close(ggufx.matmul(x, packed, qtype="Q8_0", path=path), x, w)


# ---- tensors of files


@pytest.fixture
def model(tmp_path, rng):
    def make(big=False):
        file = File(big=big)
        for name, kind, shape in (("q8", 8, (5, 96)), ("q4k", 12, (5, 512)), ("f16", 1, (5, 33)), ("f32", 0, (5, 33))):
            packed, _ = packed_rows(QType(kind), rng, shape[0], shape[1])
            file.tensor(name, shape, kind, (swap_bytes(packed, QType(kind)) if big else packed).tobytes())
        experts, _ = packed_rows(QType.Q8_0, rng, 12, 64)
        file.tensor("experts", (3, 4, 64), 8, (swap_bytes(experts, QType.Q8_0) if big else experts).tobytes())
        file.tensor("i8", (5, 32), 24, bytes(160))
        file.tensor("one", (32,), 0, bytes(128))
        return file.write(tmp_path / f"model-{big}.gguf")

    return make


@pytest.mark.parametrize("big", [False, True], ids=["little", "big"])
def test_tensors(model, big, path, rng):
    with ggufx.open(model(big)) as f:
        for name in ("q8", "q4k", "f16", "f32"):
            w = f[name].dequantize()
            for rows in (1, 5, 33):
                x = activations(rng, rows, w.shape[1])
                assert_close(ggufx.matmul(x, f[name], path=path), x, w.astype(np.float64))
        x = activations(rng, 2, 64)
        got = ggufx.matmul_experts(x, f["experts"], [[2, 0], [1, 1]], path=path)
        w = f["experts"].dequantize().astype(np.float64)
        for (t, e), expert in np.ndenumerate([[2, 0], [1, 1]]):
            assert_close(got[t, e][None], x[t][None], w[expert])


def test_errors_name_the_tensor(model):
    f = ggufx.open(model())
    x = np.zeros((1, 96), np.float32)
    for weight, given, words in (
        ("q4k", {}, r"x has shape \(1, 96\), but rows of .*model-False.gguf: tensor 'q4k' have 512"),
        ("i8", {}, "tensor 'i8' holds integers"),
        ("one", {}, r"tensor 'one' has shape \(32,\)"),
        ("experts", {}, r"tensor 'experts' has shape \(3, 4, 64\); 2 dimensions"),
        ("q8", {"qtype": "Q4_0"}, "tensor 'q8' is Q8_0, but qtype=Q4_0"),
    ):
        with pytest.raises(ValueError, match=words):
            ggufx.matmul(x, f[weight], **given)
    with pytest.raises(GGUFError, match=r"tensor 'q8' has shape \(5, 96\); 3 dimensions"):
        ggufx.matmul_experts(x, f["q8"], [[0]])
    assert ggufx.matmul(x, f["q8"], qtype="q8_0").shape == (1, 5)
    kept = f["q8"]
    f.close()
    with pytest.raises(GGUFError, match="closed"):
        ggufx.matmul(x, kept)


def test_unknown_types_are_refused(tmp_path):
    file = File().tensor("odd", (2, 32), 0)
    file.infos[0].kind = 77
    with (
        ggufx.open(file.write(tmp_path / "odd.gguf")) as f,
        pytest.raises(GGUFError, match="tensor 'odd' has type id 77"),
    ):
        ggufx.matmul(np.zeros((1, 32), np.float32), f["odd"])


# ---- experts


@pytest.mark.parametrize("each", [False, True], ids=["shared-rows", "own-rows"])
def test_experts(path, precision, rng, each, monkeypatch):
    packed, w = packed_rows(QType.Q4_K, rng, rows=7 * 6)
    stack, w = packed.reshape(7, 6, -1), w.reshape(7, 6, -1)
    ids = rng.integers(0, 6, (40, 3))  # the last one is never chosen; some are chosen by more rows than BLAS needs
    ids[:35, 1] = 4
    x = rng.standard_normal((40, 3, w.shape[2]) if each else (40, w.shape[2])).astype(np.float32)
    rows = x if each else np.broadcast_to(x[:, None], (40, 3, w.shape[2]))
    out = np.empty((40, 3, 6), np.float32)
    assert ggufx.matmul_experts(x, stack, ids, qtype="Q4_K", path=path, precision=precision, out=out) is out
    for t, e in itertools.product(range(40), range(3)):
        fused = path == "numpy" or np.count_nonzero(ids == ids[t, e]) < 32
        row = seen(rows[t, e], precision) if fused else rows[t, e]
        assert_close(out[t, e][None], row[None], w[ids[t, e]])
    monkeypatch.setattr(module, "PRODUCTS_PER_THREAD", 100)
    few = ggufx.matmul_experts(x[:5], stack, ids[:5], qtype="Q4_K", path=path, precision=precision, threads=2)
    for t, e in itertools.product(range(5), range(3)):
        alone = ggufx.matmul(rows[t, e], stack[ids[t, e]], qtype="Q4_K", path=path, precision=precision)
        assert np.array_equal(few[t, e], alone)


def test_no_experts_chosen(rng):
    packed, w = packed_rows(QType.Q8_0, rng, rows=6)
    for shape in ((0, 2), (2, 0), (0, 0)):
        x = np.zeros((shape[0], w.shape[1]), np.float32)
        got = ggufx.matmul_experts(x, packed.reshape(2, 3, -1), np.zeros(shape, np.int64), qtype="Q8_0")
        assert got.shape == (*shape, 3)


def test_wrong_ids(rng):
    packed, w = packed_rows(QType.Q8_0, rng, rows=6)
    stack, x = packed.reshape(2, 3, -1), np.zeros((1, w.shape[1]), np.float32)
    for ids, error, words in (
        ([[2]], IndexError, "ids holds 2, but weight has the experts 0 to 1"),
        ([[-1]], IndexError, "ids holds -1"),
        ([[0.0]], TypeError, "float64"),
        ([0], ValueError, r"ids has shape \(1,\)"),
        ([[0], [1]], ValueError, r"x has shape \(1, 576\), which doesn't go with ids of shape \(2, 1\)"),
    ):
        with pytest.raises(error, match=words):
            ggufx.matmul_experts(x, stack, ids, qtype="Q8_0")
