"""Quantizing against ggml's frozen and live bytes, on every path and thread count, and what it refuses."""

from __future__ import annotations

import os
import warnings
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from conftest import VECTORS
from oracle import ENCODED_TYPES, Ggml

import ggufx
from ggufx import GGUFError, GGUFWarning, QType
from ggufx.codec import dispatch
from ggufx.codec import encode as encoding
from ggufx.codec.encode import NEEDS_IMATRIX
from ggufx.codec.reference.codebooks import GRIDS
from ggufx.codec.reference.lattice import LATTICES, PAD, lattice
from ggufx.formats.tensor_types import ENCODINGS

CODEBOOKS = [t for t in ENCODED_TYPES if t.name in LATTICES]
FAST = [t for t in ENCODED_TYPES if t not in CODEBOOKS]
ROWS = [t for t in ENCODED_TYPES if t not in (QType.Q8_1, QType.Q8_K)]  # ggml's chunk call lacks these two


@pytest.fixture(params=ENCODED_TYPES, ids=lambda t: t.name)
def qtype(request: pytest.FixtureRequest) -> QType:
    """Every type there is an encoder for."""
    return request.param


@pytest.fixture(scope="session")
def frozen() -> dict[str, np.ndarray]:
    """Rows `x` of the kinds `row_kinds`, `imatrix`, and ggml's bytes T.plain and T.imatrix."""
    with np.load(VECTORS / "quantize.npz") as vectors:
        return dict(vectors)


def quiet(*args, **options) -> np.ndarray:
    """Quantize without the warning about scales that overflow: what counts here is the bytes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GGUFWarning)
        return ggufx.quantize(*args, **options)


def assert_same_rows(got: np.ndarray, want: np.ndarray, labels) -> None:
    assert got.shape == want.shape
    bad = np.flatnonzero((got != want).any(1))
    assert not bad.size, (
        f"rows {[str(labels[i]) for i in bad]}, first byte {np.flatnonzero(got[bad[0]] != want[bad[0]])[0]}"
    )


def kinds_of_rows(rng: np.random.Generator, width: int = 512) -> dict[str, np.ndarray]:
    """Rows that reach the corners of every search."""
    gauss = rng.standard_normal(width)
    at = np.arange(width)
    rows = {
        "gauss": gauss * 0.02,
        "gauss of any scale": gauss * 10 ** rng.uniform(-38, 8),
        "tiny": gauss * 10 ** rng.uniform(-44, -36),
        "heavy tail": rng.standard_t(1, width),
        "laplace": rng.laplace(size=width) * 0.02,
        "uniform": rng.uniform(-1, 1, width),
        "positive": np.abs(gauss),
        "negative": -np.abs(gauss),
        "constant": np.full(width, rng.choice([0.5, -0.25, 1e-3])),
        "beyond halves": np.full(width, 1e7),
        "zeros": np.where(rng.random(width) < 0.5, 0.0, -0.0),
        "outlier": np.where(at == rng.integers(width), 30, gauss * 0.02),
        "sparse": np.where(rng.random(width) < 0.05, gauss, 0),
        "ternary": rng.integers(-1, 2, width) * 0.04,
        "between codes": rng.integers(-17, 17, width) / 2,
        "ramp": np.linspace(-1, 1, width),
        "zero groups": np.where(at // 32 % 2, 0, gauss),
        "zero sub-groups": np.where(at // 16 % 3, 0, gauss),
        "shifted": gauss * 0.02 + 0.3,
        "powers": 2.0 ** rng.integers(-20, 10, width) * rng.choice([-1, 1], width),
        "below powers": (1 - 2.0**-24 * (at + 1)) * 2.0 ** np.repeat(rng.integers(-60, 25, width // 32), 32),
        "scaled blocks": gauss * np.repeat(np.exp(rng.standard_normal(width // 32)), 32),
        "lattice": rng.integers(-8, 8, width) / 8,
    }
    return {name: row.astype(np.float32) for name, row in rows.items()}


def test_a_type_without_encoder_is_refused(monkeypatch):
    monkeypatch.delitem(ENCODINGS, QType.Q4_0)
    monkeypatch.setattr(encoding, "QUANTIZABLE", encoding.QUANTIZABLE - {QType.Q4_0})
    with pytest.raises(ValueError, match="Q4_0 isn't a type to quantize to"):
        ggufx.quantize(np.ones(32, np.float32), "Q4_0")


def test_without_a_compiled_encoder_the_reference_quantizes(monkeypatch, rng, path):
    """The extension is asked what it has, whatever Python's tables say."""
    x = rng.standard_normal((3, 64)).astype(np.float32)
    want = ggufx.quantize(x, "Q4_0", imatrix=np.ones(64))
    if dispatch.native is not None:
        lacking = SimpleNamespace(**vars(dispatch.native))
        lacking.encodes = lambda number: False
        monkeypatch.setattr(dispatch, "native", lacking)
    np.testing.assert_array_equal(ggufx.quantize(x, "Q4_0", imatrix=np.ones(64), path=path), want)


@pytest.mark.parametrize("importance", ["plain", "imatrix"])
def test_frozen_bytes(frozen, qtype, path, importance):
    want = frozen.get(f"{qtype.name}.{importance}")
    if want is None:
        pytest.skip("ggml has no such call")
    imatrix = frozen["imatrix"] if importance == "imatrix" else None
    assert_same_rows(quiet(frozen["x"], qtype, imatrix=imatrix, path=path), want, frozen["row_kinds"])


def live_importance(rng: np.random.Generator, width: int) -> list[np.ndarray | None]:
    some = np.where(rng.random(width) < 0.5, 0, rng.random(width) * 10 ** rng.uniform(-10, 6))
    return [None, rng.random(width) ** 2 * 10 + 0.01, np.zeros(width), some]


@pytest.mark.parametrize("qtype", [t for t in FAST if t in ROWS], ids=lambda t: t.name)
def test_live_bytes(ggml: Ggml, rng, qtype):
    """Fresh rows of every kind; GGUFX_TEST_ROUNDS repeats with more of them."""
    for _ in range(int(os.environ.get("GGUFX_TEST_ROUNDS", "3"))):
        rows = kinds_of_rows(rng)
        x = np.stack(list(rows.values()))
        for imatrix in live_importance(rng, x.shape[1]):
            assert_same_rows(quiet(x, qtype, imatrix=imatrix), ggml.quantize(x, qtype, imatrix), list(rows))


@pytest.mark.skipif(not os.environ.get("GGUFX_TEST_ROUNDS"), reason="ggml takes 30 s to set up; set GGUFX_TEST_ROUNDS")
@pytest.mark.parametrize("qtype", CODEBOOKS, ids=lambda t: t.name)
def test_live_codebook_bytes(ggml: Ggml, rng, qtype):
    for _ in range(int(os.environ["GGUFX_TEST_ROUNDS"])):
        rows = kinds_of_rows(rng)
        x = np.stack(list(rows.values()))
        for imatrix in live_importance(rng, x.shape[1]):
            if imatrix is not None or qtype not in NEEDS_IMATRIX:
                assert_same_rows(quiet(x, qtype, imatrix=imatrix), ggml.quantize(x, qtype, imatrix), list(rows))


def test_live_activations(ggml: Ggml, rng):
    """Q8_1 and Q8_K, which ggml quantizes only through functions of their own."""
    from ctypes import c_int64, c_void_p

    x = np.stack(list(kinds_of_rows(rng).values()))
    for qtype, name in ((QType.Q8_1, "quantize_row_q8_1_ref"), (QType.Q8_K, "quantize_row_q8_K_ref")):
        want = np.zeros((len(x), ggufx.nbytes(x.shape[1], qtype)), np.uint8)
        function = getattr(ggml.lib, name)
        function.argtypes = [c_void_p, c_void_p, c_int64]
        function(x.ctypes.data, want.ctypes.data, x.size)
        assert_same_rows(quiet(x, qtype), want, list(kinds_of_rows(rng)))


def test_paths_agree(rng, qtype, path):
    """Row counts and widths that leave lanes empty, and importance that changes from row to row of blocks."""
    for rows, width in ((1, 256), (3, 768), (17, 256), (2, 2304)):
        x = rng.standard_normal((rows, width)).astype(np.float32)
        for imatrix in (rng.random(width), None):
            if imatrix is None and qtype in NEEDS_IMATRIX:
                continue
            np.testing.assert_array_equal(
                quiet(x, qtype, imatrix=imatrix, path=path), quiet(x, qtype, imatrix=imatrix, path="numpy")
            )


def test_overflowing_squares(rng, qtype, path):
    """Finite values whose squares aren't: ggml aborts or writes nonsense; here all paths do the same, and end."""
    x = np.stack([rng.standard_normal(512) * s for s in (1e18, 1e20, 1e30, 1e37)]).astype(np.float32)
    x = np.concatenate([x, np.full((1, 512), np.finfo(np.float32).max, np.float32)])
    for imatrix in (np.ones(512), None):
        if imatrix is None and qtype in NEEDS_IMATRIX:
            continue
        got, want = (quiet(x, qtype, imatrix=imatrix, path=p) for p in (path, "numpy"))
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_threads_agree(rng, qtype, threads):
    x = rng.standard_normal((96, 4096) if qtype in FAST else (24, 2048)).astype(np.float32)
    imatrix = rng.random(x.shape[1])
    one = ggufx.quantize(x, qtype, imatrix=imatrix, threads=1)
    np.testing.assert_array_equal(ggufx.quantize(x, qtype, imatrix=imatrix, threads=threads), one)
    if qtype not in NEEDS_IMATRIX:
        one = ggufx.quantize(x, qtype, threads=1)
        np.testing.assert_array_equal(ggufx.quantize(x, qtype, threads=threads), one)


def test_memory_is_respected(rng, qtype, path, guarded):
    """Source and target end, or begin, at a forbidden page; five blocks leave lanes over on every path."""
    if path == "numpy":
        pytest.skip("numpy guards itself")
    rows, width = 5, qtype.block_size
    x = rng.standard_normal((rows, width)).astype(np.float32)
    qw = rng.random(width).astype(np.float32)
    want = ggufx.quantize(x, qtype, imatrix=qw, path="numpy")
    from ggufx.codec.encode import _lattice

    for side in ("at_end", "at_start"):
        spaces = [guarded(max(x.nbytes, want.nbytes)) for _ in range(3)]
        source, weights, target = (
            getattr(space, side)(n) for space, n in zip(spaces, (x.nbytes, qw.nbytes, want.nbytes), strict=True)
        )
        source[:] = x.reshape(-1).view(np.uint8)
        weights[:] = qw.view(np.uint8)
        out = target.reshape(want.shape)
        assert dispatch.native is not None
        dispatch.native.encode(
            dispatch.resolve(path), qtype, source.view(np.float32).reshape(x.shape), weights.view(np.float32),
            _lattice(qtype), True, out,
        )  # fmt: skip
        np.testing.assert_array_equal(out, want)
        assert dispatch.native.all_finite(dispatch.resolve(path), source.view(np.float32))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64, ">f4", ">f8"], ids=str)
def test_inputs_are_converted(rng, qtype, path, dtype):
    x = rng.standard_normal((3, 512)).astype(dtype)
    imatrix = np.ones(512)
    want = ggufx.quantize(x.astype(np.float32), qtype, imatrix=imatrix)
    np.testing.assert_array_equal(ggufx.quantize(x, qtype, imatrix=imatrix, path=path), want)


def test_any_layout(rng):
    x = rng.standard_normal((6, 5, 512)).astype(np.float32)
    want = ggufx.quantize(x, "Q4_K")
    assert want.shape == (6, 5, 288)
    np.testing.assert_array_equal(ggufx.quantize(np.asfortranarray(x), QType.Q4_K), want)
    np.testing.assert_array_equal(ggufx.quantize(x[::2], 12), want[::2])
    np.testing.assert_array_equal(ggufx.quantize(x[1, 2], "q4_k"), want[1, 2])
    np.testing.assert_array_equal(ggufx.quantize(x[1].tolist(), "q4_k"), ggufx.quantize(x[1].astype(float), "q4_k"))
    assert ggufx.quantize(np.zeros((0, 512), np.float32), "Q4_K").shape == (0, 288)
    assert ggufx.quantize(np.zeros((3, 0), np.float32), "Q4_K").shape == (3, 0)


@pytest.mark.parametrize("qtype", [QType.Q4_K, QType.Q4_0, QType.IQ2_XS, QType.Q8_0], ids=lambda t: t.name)
def test_importance_of_experts(rng, qtype):
    x = rng.standard_normal((3, 40, 512)).astype(np.float32)
    imatrix = rng.random((3, 512)).astype(np.float32)
    got = ggufx.quantize(x, qtype, imatrix=imatrix, threads=3)
    for k in range(3):
        np.testing.assert_array_equal(got[k], ggufx.quantize(x[k], qtype, imatrix=imatrix[k]))


def test_plain_types(rng, path):
    x = np.concatenate([rng.standard_normal((7, 33)), rng.standard_normal((7, 33)) * 1e-7]).astype(np.float32)
    np.testing.assert_array_equal(ggufx.quantize(x, "F32", path=path).view(np.float32), x)
    np.testing.assert_array_equal(ggufx.quantize(x, "F16", path=path).view(np.float16), x.astype(np.float16))
    np.testing.assert_array_equal(
        ggufx.quantize(x, "BF16", path=path).view(np.uint16), x.astype(ml_dtypes.bfloat16).view(np.uint16)
    )


X = np.ones((2, 3, 256), np.float32)
NAN_AT_265 = np.where(np.arange(512) == 265, np.nan, 1).reshape(2, 256)


@pytest.mark.parametrize(
    ("error", "match", "change", "options"),
    [
        (GGUFError, r"x\[1, 2, 70\] is nan, which is not finite", {(1, 2, 70): np.nan}, {}),
        (GGUFError, r"x\[0, 0, 0\] is -inf", {(0, 0, 0): -np.inf, (1, 1, 1): np.nan}, {}),
        (GGUFError, "100 values isn't a whole number of blocks of 256", None, {"x": np.ones((2, 100), np.float32)}),
        (GGUFError, r"x\[255\] is 1e\+39, which is too large for float32", None, {"x": np.array([1.0] * 255 + [1e39])}),
        (GGUFError, r"imatrix\[3\] is -1, which is negative", {}, {"imatrix": [1, 1, 1, -1] * 64}),
        (GGUFError, r"imatrix\[1, 9\] is nan", {}, {"imatrix": NAN_AT_265}),
        (GGUFError, r"imatrix\[0\] is inf", {}, {"imatrix": np.full(256, np.inf)}),
        (GGUFError, r"imatrix\[0\] is 1e\+40, which is too large", {}, {"imatrix": np.full(256, 1e40)}),
        (ValueError, r"imatrix has shape \(3,\); x .* takes \(256,\) or \(2, 256\)", {}, {"imatrix": np.ones(3)}),
        (ValueError, "IQ2_XS can't be quantized without an importance matrix", {}, {"qtype": "IQ2_XS"}),
        (ValueError, "I32 isn't a type to quantize to", {}, {"qtype": QType.I32}),
        (ValueError, "unknown tensor type 'Q9'", {}, {"qtype": "Q9"}),
        (ValueError, "nonfinite must be", {}, {"nonfinite": "ignore"}),
        (ValueError, "path 'avx9' isn't available", {}, {"path": "avx9"}),
        (ValueError, "threads must be at least 1", {}, {"threads": 0}),
        (ValueError, "at least one dimension", {}, {"x": np.float32(1)}),
        (TypeError, "not int64", {}, {"x": np.ones(256, np.int64)}),
        (TypeError, "uint16; bfloat16 patterns", {}, {"x": np.ones(256, np.uint16)}),
        (TypeError, "imatrix must hold numbers", {}, {"imatrix": np.ones(256, complex)}),
    ],
)  # fmt: skip
def test_refused(error, match, change, options):
    x = X.copy()
    for at, value in (change or {}).items():
        x[at] = value
    options = {"x": x, "qtype": "Q4_K"} | options
    with pytest.raises(error, match=match):
        ggufx.quantize(options.pop("x"), options.pop("qtype"), **options)


def test_refused_on_every_path_and_dtype(path):
    for dtype in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64):
        x = np.ones((40, 4096), dtype)
        x[39, 4095] = np.inf
        with pytest.raises(GGUFError, match=r"x\[39, 4095\] is inf"):
            ggufx.quantize(x, "Q8_0", path=path, threads=2)


def test_nonfinite_as_zero(rng, path):
    x = rng.standard_normal((4, 512)).astype(np.float32)
    x[1, 7], x[2, 300], x[3, 0] = np.nan, np.inf, -np.inf
    want = ggufx.quantize(np.where(np.isfinite(x), x, 0), "Q6_K")
    np.testing.assert_array_equal(ggufx.quantize(x, "Q6_K", nonfinite="zero", path=path), want)
    assert np.isnan(x[1, 7])


@pytest.mark.parametrize(
    ("qtype", "message"),
    [
        ("F16", "F16: 256 of 512 values are beyond the largest F16 number"),
        ("Q8_0", "Q8_0: 8 of 16 blocks have a scale beyond"),
        ("Q4_1", "Q4_1: 8 of 16 blocks"),
        ("Q2_K", "Q2_K: 1 of 2 blocks"),
        ("TQ2_0", "TQ2_0: 1 of 2 blocks"),
        ("IQ4_NL", "IQ4_NL: 8 of 16 blocks"),
        ("IQ1_M", "IQ1_M: 1 of 2 blocks"),
        ("Q1_0", "Q1_0: 2 of 4 blocks"),
    ],
)
def test_overflow_is_told(path, qtype, message):
    x = np.stack([np.full(256, 1e8), np.ones(256)]).astype(np.float32)
    if qtype in ("Q2_K", "Q4_1"):
        x[0] *= np.where(np.arange(256) % 2, 1, -1)
    with pytest.warns(GGUFWarning) as told:
        ggufx.quantize(x, qtype, path=path, threads=2)
    assert len(told) == 1
    assert message in str(told[0].message)
    assert told[0].filename == __file__


def test_no_warning_without_overflow(qtype, path):
    x = np.full((2, 256), 2000 if qtype == QType.Q8_1 else 60000) * [[1.0], [-1.0]]  # Q8_1 stores sums of 32 values
    ggufx.quantize(x, qtype, imatrix=np.ones(256), path=path)


@pytest.mark.parametrize("imatrix", [np.zeros(256), np.eye(256)[3]], ids=["all zero", "one column"])
def test_vanishing_importance_gives_finite_blocks(rng, qtype, imatrix):
    x = rng.standard_normal((4, 256)).astype(np.float32)
    assert np.isfinite(ggufx.dequantize(ggufx.quantize(x, qtype, imatrix=imatrix), qtype)).all()


def test_importance_lowers_weighted_error(rng, qtype):
    imatrix = 10 ** rng.uniform(-2, 2, 512)
    x = rng.standard_normal((8, 512)).astype(np.float32)
    flat = ggufx.quantize(x, qtype, imatrix=np.ones(512))
    weighted = ggufx.quantize(x, qtype, imatrix=imatrix)
    losses = [((ggufx.dequantize(b, qtype) - x) ** 2 * imatrix).sum() for b in (weighted, flat)]
    weighs = ENCODINGS[qtype].by_row or ENCODINGS[qtype].searches
    assert losses[0] < losses[1] if weighs else losses[0] == losses[1]


class JavaRandom:
    """java.util.Random, for numbers that were once computed with it."""

    def __init__(self, seed: int) -> None:
        self.state = (seed ^ 0x5DEECE66D) & (1 << 48) - 1
        self.spare: float | None = None

    def bits(self, n: int) -> int:
        self.state = (self.state * 0x5DEECE66D + 0xB) & (1 << 48) - 1
        return self.state >> 48 - n

    def double(self) -> float:
        return ((self.bits(26) << 27) + self.bits(27)) * 2.0**-53

    def gaussian(self) -> float:
        if self.spare is not None:
            value, self.spare = self.spare, None
            return value
        while True:
            a, b = 2 * self.double() - 1, 2 * self.double() - 1
            s = a * a + b * b
            if 0 < s < 1:
                factor = np.sqrt(-2 * np.log(s) / s)
                self.spare = b * factor
                return float(a * factor)


@pytest.mark.parametrize(
    ("qtype", "rmse", "relative"),
    [
        ("Q4_0", 0.001662, 0.0851),
        ("IQ4_NL", 0.001487, 0.0753),
        ("IQ4_XS", 0.001496, 0.0760),
        ("Q4_K", 0.001390, 0.0711),
    ],
)
def test_known_errors(qtype, rmse, relative):
    random = JavaRandom(42)
    x = np.array([random.gaussian() * 0.02 for _ in range(32768)], np.float32)

    def error(values: np.ndarray) -> float:
        decoded = ggufx.dequantize(ggufx.quantize(values, qtype), qtype)
        return float(np.sqrt(np.mean((decoded.astype(float) - values) ** 2)))

    assert round(error(x[:4096]), 6) == rmse
    assert round(error(x) / 0.02, 4) == relative


@pytest.mark.parametrize("name", sorted({v[0] for v in LATTICES.values()}))
def test_neighbours(rng, name):
    """Lists of neighbours against the definition: the nearest shells, by distance, then by entry."""
    type_name, shells = next((t, v[1]) for t, v in LATTICES.items() if v[0] == name)
    table = lattice(type_name)
    levels = np.unique(GRIDS[name])
    grid = np.searchsorted(levels, GRIDS[name])
    shift = table.bits * np.arange(table.size)
    np.testing.assert_array_equal(table.words, (grid << shift).sum(1))
    for point in rng.integers(0, len(levels), (300, table.size)):
        word = int((point << shift).sum())
        place = int(table.place[word])
        if place >= 0:
            np.testing.assert_array_equal(grid[place], point)
            continue
        distance = ((grid - point) ** 2).sum(1)
        order = np.lexsort((np.arange(len(grid)), distance))
        nearest = np.unique(distance)[:shells]
        want = table.words[[i for i in order if distance[i] in nearest]]
        start, count = -1 - place, int(table.count[word])
        np.testing.assert_array_equal(table.neighbours[start : start + count], want)
        padding = table.neighbours[start + count : start + -(-count // PAD) * PAD]
        assert (padding == want[0]).all()
