"""The numpy reference against ggml's frozen and live output, the gguf package, and blocks worked out by hand."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from oracle import INTEGER_TYPES, assert_same_bits, make_blocks, round_to

from ggufx import QType, nbytes
from ggufx.codec.reference import codebooks, decode

ROOT = Path(__file__).parents[2]


def decoded(blocks: np.ndarray, qtype: QType, dtype: str = "float32") -> np.ndarray:
    blocks = np.ascontiguousarray(blocks).reshape(-1, qtype.block_bytes)
    out = np.empty((len(blocks), qtype.block_size), np.uint16 if dtype == "bfloat16" else dtype)
    decode.decode(blocks.reshape(-1), qtype, dtype, out.reshape(-1))
    return out


def test_golden_bits(golden, qtype, dtype):
    want = golden[f"{qtype.name}.f32"]
    assert_same_bits(decoded(golden[f"{qtype.name}.raw"], qtype, dtype), round_to(want, dtype), qtype.name)


def test_live_ggml_bits(ggml, qtype, rng):
    if qtype == QType.Q8_1:
        pytest.skip("ggml has no decoder of Q8_1: golden vectors only")
    blocks = make_blocks(qtype, rng, 200)
    assert_same_bits(decoded(blocks, qtype), ggml.dequantize(blocks, qtype), qtype.name)


def test_live_ggml_sizes(ggml):
    for t in QType:
        traits = ggml.traits(t)
        assert (traits.blck_size, traits.type_size) == (t.block_size, t.block_bytes), t.name


def test_gguf_package_bits(qtype, rng):
    quants = pytest.importorskip("gguf.quants", reason="no independent decoder: the gguf package is not installed")
    blocks = make_blocks(qtype, rng)
    # Its table gives Q8_1 40 bytes; ids newer than the package can't even be named.
    if qtype in (QType.Q8_1, QType.Q8_K, QType.Q1_0, QType.Q2_0):
        pytest.skip(f"the gguf package can't decode {qtype.name}")
    with np.errstate(all="ignore"):
        want = np.ascontiguousarray(quants.dequantize(blocks, quants.GGMLQuantizationType(int(qtype))), np.float32)
    assert_same_bits(decoded(blocks, qtype), want, qtype.name)


def test_chunks_join(qtype, rng, monkeypatch):
    blocks = make_blocks(qtype, rng)
    whole = decoded(blocks, qtype)
    monkeypatch.setattr(decode, "CHUNK", 3 * qtype.block_size)
    assert_same_bits(decoded(blocks, qtype), whole)


# ---- blocks worked out by hand


def block(qtype: QType, **fields: tuple[int, object]) -> np.ndarray:
    """One block of zeros with some bytes set: name=(offset, bytes, or a number stored as f16)."""
    raw = np.zeros(qtype.block_bytes, np.uint8)
    for at, value in fields.values():
        data = np.float16(value).tobytes() if isinstance(value, int | float) else bytes(value)
        raw[at : at + len(data)] = np.frombuffer(data, np.uint8)
    return raw


K4_SCALE_BYTES = bytes.fromhex("bf e8 4c 05 40 07 94 3f f1 22 d1 91")
K4_SCALES = [63, 40, 12, 5, 33, 50, 17, 1]
K4_MINS = [0, 7, 20, 63, 31, 2, 45, 9]


@pytest.mark.parametrize("qtype", [QType.Q4_K, QType.Q5_K], ids=lambda t: t.name)
def test_k4_scale_bytes(qtype):
    at = 16 if qtype == QType.Q4_K else 48
    raw = block(qtype, d=(0, 1.0), m=(2, 2.0), scales=(4, K4_SCALE_BYTES), qs=(at, b"\x31" * 128))
    want = [(1 if group % 2 == 0 else 3) * K4_SCALES[group] - 2 * K4_MINS[group] for group in range(8)]
    assert decoded(raw, qtype).reshape(8, 32).tolist() == [[float(w)] * 32 for w in want]


def test_q2_k_low_nibble_is_the_scale():
    raw = block(QType.Q2_K, scales=(0, [0x21] * 16), qs=(16, [0b11100100] * 64), d=(80, 1.0), m=(82, 1.0))
    # Bits 0-1 of 32 bytes are 32 neighbours: codes 0, 1, 2, 3 in runs of 32, times scale 1, less minimum 2.
    assert decoded(raw, QType.Q2_K).reshape(8, 32).tolist() == [[float(q - 2)] * 32 for q in [0, 1, 2, 3] * 2]


@pytest.mark.parametrize(
    ("qtype", "at", "want"),
    [
        (QType.Q4_0, 2, (-7.0, -6.0)),
        (QType.Q4_1, 4, (1.0, 2.0)),
        (QType.Q5_0, 6, (-15.0, -14.0)),
        (QType.Q5_1, 8, (1.0, 2.0)),
        (QType.IQ4_NL, 2, (-104.0, -83.0)),
    ],
    ids=lambda v: getattr(v, "name", None),
)
def test_low_nibbles_are_the_first_half(qtype, at, want):
    values = decoded(block(qtype, d=(0, 1.0), qs=(at, b"\x21" * 16)), qtype)
    assert values.tolist() == [[want[0]] * 16 + [want[1]] * 16]


def test_q6_k_codes_and_signed_scales():
    raw = block(QType.Q6_K, ql=(0, b"\x2f" * 128), qh=(128, b"\xe4" * 64), sc=(192, [0xFF] * 16), d=(208, 2.0))
    runs = [15, 15 + 16, 2 + 32, 2 + 48]
    assert decoded(raw, QType.Q6_K).reshape(2, 4, 32).tolist() == [[[-2.0 * (q - 32)] * 32 for q in runs]] * 2


def test_fp4_scales_as_ggml_has_them():
    mxfp4 = decoded(block(QType.MXFP4, e=(0, [255]), qs=(1, [0x11] * 16)), QType.MXFP4)
    assert mxfp4.tolist() == [[2.0**127] * 32]
    nvfp4 = decoded(block(QType.NVFP4, d=(0, [0x7F, 0xFF, 0x38, 0x01]), qs=(4, [0x11] * 32)), QType.NVFP4)
    assert nvfp4.reshape(4, 16)[:, 0].tolist() == [0.0, 240.0, 0.5, 2.0**-10]


def test_sizes_worked_by_hand():
    assert nbytes((32000, 2048), QType.Q4_K) == 36_864_000
    assert nbytes((32000, 2048), QType.Q6_K) == 53_760_000


# ---- plain numbers and dtypes


def test_plain_floats(dtype, rng):
    halves = np.arange(1 << 16, dtype=np.uint16)
    with np.errstate(all="ignore"):
        widened = {
            QType.F16: halves.view(np.float16).astype(np.float32),
            QType.BF16: halves.view(ml_dtypes.bfloat16).astype(np.float32),
            QType.F32: rng.integers(0, 1 << 32, 1 << 16, np.uint32).view(np.float32),
        }
    for t, want in widened.items():
        raw = want.astype("<f4").view(np.uint8) if t == QType.F32 else halves.astype("<u2").view(np.uint8)
        assert_same_bits(decoded(raw, t, dtype).reshape(-1), round_to(want, dtype), t.name)


def nearest(value: Fraction, mantissa_bits: int, lowest: int, highest: int) -> Fraction | None:
    """Nearest number with that many fraction bits, ties to even, exponents lowest..highest; None past the largest."""
    if value < 0:
        below = nearest(-value, mantissa_bits, lowest, highest)
        return None if below is None else -below
    if value == 0:
        return value
    exponent = max(value.numerator.bit_length() - value.denominator.bit_length(), lowest)
    while exponent > lowest and value < Fraction(2) ** exponent:
        exponent -= 1
    while value >= Fraction(2) ** (exponent + 1):
        exponent += 1
    ulp = Fraction(2) ** (exponent - mantissa_bits)
    rounded = round(value / ulp) * ulp  # Fraction rounds ties to even
    return rounded if rounded < Fraction(2) ** (highest + 1) else None


@pytest.mark.parametrize(
    ("dtype", "bits", "lowest", "highest"),
    [("float32", 23, -126, 127), ("float16", 10, -14, 15), ("bfloat16", 7, -126, 127)],
)
def test_f64_rounds_once(dtype, bits, lowest, highest, rng):
    scale = Fraction(2) ** -bits
    ties = [(1 + k * scale / 2) * (1 + e * Fraction(2) ** -50) for k in (1, 3, 5) for e in (-1, 0, 1)]
    tiny = [Fraction(2) ** (lowest - bits) * k / 4 for k in (1, 2, 3, 5, 6, 7)]
    top = [(2 - scale / 2) * Fraction(2) ** highest * (1 + e * Fraction(2) ** -50) for e in (-1, 0, 1)]
    values = [float(s * v) for v in [*ties, *tiny, *top] for s in (1, -1)]
    values += [*rng.standard_normal(500), *(rng.standard_normal(200) * 2.0**lowest), 0.0, -0.0, 1e308, -1e308, 5e-324]
    got = decoded(np.array(values, "<f8").view(np.uint8), QType.F64, dtype).reshape(-1)
    floats = got.view(ml_dtypes.bfloat16) if dtype == "bfloat16" else got
    for x, y in zip(values, floats.astype(np.float64).tolist(), strict=True):
        want = nearest(Fraction(x), bits, lowest, highest)
        assert y == (np.copysign(np.inf, x) if want is None else float(want)), (x, y)
        assert np.signbit(y) == np.signbit(x)


def test_nan_and_infinity_survive_every_dtype(dtype):
    signalling = np.array([0x7FF0000000000001, 0xFFF8000000000000, 0x7FF0000000000000, 0xFFF0000000000000], "<u8")
    got = decoded(signalling.view(np.uint8), QType.F64, dtype).reshape(-1)
    floats = got.view(ml_dtypes.bfloat16) if dtype == "bfloat16" else got
    with np.errstate(all="ignore"):
        assert np.isnan(floats).tolist() == [True, True, False, False]
        assert floats[2:].astype(float).tolist() == [np.inf, -np.inf]


@pytest.mark.parametrize("qtype", INTEGER_TYPES, ids=lambda t: t.name)
def test_integers_are_copied_in_their_own_dtype(qtype, rng):
    name = {1: "int8", 2: "int16", 4: "int32", 8: "int64"}[qtype.block_bytes]
    want = rng.integers(np.iinfo(name).min, np.iinfo(name).max, 99, name, endpoint=True)
    raw = want.astype(want.dtype.newbyteorder("<")).view(np.uint8)
    assert decoded(raw, qtype, name).reshape(-1).tolist() == want.tolist()
    with pytest.raises(TypeError, match=f"{qtype.name} holds integers"):
        decoded(raw, qtype, "float32")


def test_wrong_sizes_are_refused():
    with pytest.raises(ValueError, match="Q4_0: 17 bytes"):
        decode.decode(np.zeros(17, np.uint8), QType.Q4_0, "float32", np.zeros(32, np.float32))
    with pytest.raises(ValueError, match="for 31 values"):
        decode.decode(np.zeros(18, np.uint8), QType.Q4_0, "float32", np.zeros(31, np.float32))
    with pytest.raises(TypeError, match="not int8"):
        decode.decode(np.zeros(18, np.uint8), QType.Q4_0, "int8", np.zeros(32, np.int8))


# ---- tables


def test_codebooks_are_lattice_like():
    shapes = {name: grid.shape for name, grid in codebooks.GRIDS.items()}
    assert shapes == {
        "iq1s_grid": (2048, 8), "iq2xxs_grid": (256, 8), "iq2xs_grid": (512, 8), "iq2s_grid": (1024, 8),
        "iq3xxs_grid": (256, 4), "iq3s_grid": (512, 4),
    }  # fmt: skip
    for name, grid in codebooks.GRIDS.items():
        assert len(np.unique(grid, axis=0)) == len(grid), f"{name} has an entry twice"
    parity = np.unpackbits(codebooks.KSIGNS[:, None], axis=1).sum(axis=1) & 1
    assert not parity.any()


def test_c_tables_are_current():
    script = ROOT / "csrc" / "make_tables.py"
    if not script.exists():
        pytest.skip("csrc/make_tables.py is not here: not a source tree")
    run = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
