"""The patched quantization classes, lazy tensors and name maps of `gguf`."""

from __future__ import annotations

import warnings
from unittest import mock

import numpy as np
import pytest
from compat_runs import assert_alike, probe

import ggufx
from ggufx import QType, compat

gguf = pytest.importorskip("gguf")


@pytest.mark.parametrize("job", ["decoded", "lazy", "name_maps"])
def test_results(job):
    """Decoding, lazy tensors and name maps."""
    assert_alike(job)


def test_encoding():
    """The bytes of every class that gguf encodes; and types that it can't encode become possible."""
    plain, patched = probe("plain", "encoded"), probe("patched", "encoded")
    new = {key for key in plain if plain[key] == "NotImplementedError" != patched[key]}
    assert {key: patched[key] for key in plain if key not in new} == {k: v for k, v in plain.items() if k not in new}
    assert {key.split()[0] for key in new} == {
        "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ1_M", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS",
        "NVFP4",
    }  # fmt: skip
    assert all(patched[key] == "QuantError" or patched[key][0] == "ndarray" for key in new)
    values = np.linspace(-1, 1, 1024, dtype=np.float32).reshape(2, 512)
    with compat.patched():
        for qtype in (QType.Q4_K, QType.IQ4_XS, QType.Q6_K):
            got = gguf.quantize(values, gguf.GGMLQuantizationType(qtype))
            np.testing.assert_array_equal(got, ggufx.quantize(values, qtype))
        values[1, 7] = np.nan
        with pytest.raises(ggufx.GGUFError, match=r"finite|NaN|nan"):
            gguf.quantize(values, gguf.GGMLQuantizationType.Q4_K)


def test_strides_that_gguf_refuses():
    """Fortran order, which gguf can't decode, decodes."""
    raw = np.random.default_rng(0).integers(0, 256, (6, 288), np.uint8)
    with compat.patched():
        got = gguf.dequantize(np.asfortranarray(raw), gguf.GGMLQuantizationType.Q4_K)
        np.testing.assert_array_equal(got, gguf.dequantize(raw, gguf.GGMLQuantizationType.Q4_K))


def test_new_types_at_run_time(tmp_path):
    """Classes that a program adds or changes keep their own methods."""
    raw = np.ones((2, 144), np.uint8)

    class Mine(gguf.quants.Q4_K, qtype=gguf.GGMLQuantizationType.Q8_K):
        @classmethod
        def dequantize_blocks(cls, blocks):
            return np.full((len(blocks), cls.block_size), 5, np.float32)

    try:
        with compat.patched():
            assert (gguf.dequantize(np.ones((1, 292), np.uint8), gguf.GGMLQuantizationType.Q8_K) == 5).all()
    finally:
        del gguf.quants._type_traits[gguf.GGMLQuantizationType.Q8_K]
    original = vars(gguf.quants.Q4_K)["dequantize_blocks"]
    with compat.patched():
        try:
            gguf.quants.Q4_K.dequantize_blocks = classmethod(lambda cls, b: np.full((len(b), 256), 7, np.float32))
            assert (gguf.dequantize(raw, gguf.GGMLQuantizationType.Q4_K) == 7).all()
        finally:
            gguf.quants.Q4_K.dequantize_blocks = original


METHODS = (staticmethod, classmethod, mock.Mock)


@pytest.mark.parametrize("make", METHODS, ids=lambda m: m.__name__)
def test_methods_replaced_after_install(make):
    """Whatever stands in for a step of a class, gguf's own code calls it, and status tells."""
    quants, kinds = gguf.quants, gguf.GGMLQuantizationType

    def replacement(answer):
        return mock.Mock(side_effect=answer) if make is mock.Mock else make(lambda *args: answer(args[-1]))

    raw, values = np.ones((2, 288), np.uint8), np.ones((2, 64), np.float32)
    cases = [
        (quants.Q4_K, "dequantize_blocks", lambda b: np.full((len(b), 256), 7, np.float32), gguf.dequantize, raw, 7),
        (quants.Q4_K, "dequantize_rows", lambda r: np.full((len(r), 512), 8, np.float32), gguf.dequantize, raw, 8),
        (quants.Q8_0, "quantize_blocks", lambda b: np.full((len(b), 34), 9, np.uint8), gguf.quantize, values, 9),
        (quants.Q4_K, "quantize_blocks", lambda b: np.full((len(b), 144), 6, np.uint8), gguf.quantize,
         np.ones((2, 256), np.float32), 6),
    ]  # fmt: skip
    with compat.patched():
        for cls, name, answer, call, given, want in cases:
            with mock.patch.object(cls, name, replacement(answer)):
                assert (call(given, kinds(cls.qtype)) == want).all(), name
                assert f"except {cls.__name__}'s" in compat.status().packages["gguf.quants"]["quants"]
            assert compat.status().packages["gguf.quants"]["quants"] == "patched"
            assert not (call(given, kinds(cls.qtype)) == want).all(), name


def warned(call) -> list[tuple[type, str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            call()
        except Exception as error:
            return [(type(error), str(error))]
    return [(w.category, str(w.message)) for w in caught]


@pytest.mark.parametrize("modes", [{}, {"all": "ignore"}, {"all": "raise"}, {"over": "raise"}], ids=str)
def test_warnings(modes):
    """Overflows and what else numpy warns of: as gguf does, under np.errstate."""
    kinds = gguf.GGMLQuantizationType
    values = {"huge": 1e7, "half": 65520, "tiny": 1e-40, "small": 1e-10, "one": 1, "none": 0, "nan": np.nan}
    for name, value in values.items():
        given = np.full((2, 256), value, np.float32)
        given[:, ::2] *= np.float32(0.5)
        for kind in (kinds.Q4_0, kinds.Q4_1, kinds.Q5_0, kinds.Q5_1, kinds.Q8_0, kinds.TQ1_0, kinds.TQ2_0, kinds.BF16):
            for x in (given, given.astype(np.float64) * 1e36):
                with np.errstate(**modes):
                    plain = warned(lambda x=x, kind=kind: gguf.quantize(x, kind))
                    with compat.patched():
                        assert warned(lambda x=x, kind=kind: gguf.quantize(x, kind)) == plain, (name, kind)
    raw = np.zeros((2, 144), np.uint8)
    raw[1, 1] = 0x7C  # an infinite scale, times 0
    with np.errstate(**modes):
        plain = warned(lambda: gguf.dequantize(raw, kinds.Q4_K))
        assert plain or modes == {"all": "ignore"}
        with compat.patched():
            found = warned(lambda: gguf.dequantize(raw, kinds.Q4_K))
    assert found == (plain if "raise" in modes.values() else [])


@pytest.mark.parametrize("qtype", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q8_1", "Q4_K", "IQ4_NL"])
def test_own_warnings(qtype, path):
    """Those of numpy never escape from ggufx."""
    for value in (65520, 1e7, 1e-40):
        found = warned(lambda value=value: ggufx.quantize(np.full((1, 256), value, np.float32), qtype, path=path))
        assert {category for category, _ in found} <= {ggufx.GGUFWarning}


def test_types_that_gguf_cannot_encode():
    """Any real numbers are taken, of any class and number; what isn't a number is told."""
    kind = gguf.GGMLQuantizationType.Q4_K
    whole = np.arange(512).reshape(2, 256)
    want = ggufx.quantize(whole.astype(np.float32), "Q4_K")
    subclass = type("Mine", (np.ndarray,), {})
    with compat.patched():
        of_subclass = whole.astype(np.float32).view(subclass)
        for given in (whole, whole.astype(np.uint16), whole.astype(np.float64), of_subclass):
            np.testing.assert_array_equal(gguf.quantize(given, kind), want)
        assert gguf.quantize(np.zeros((0, 256), np.float32), kind).shape == (0, 144)
        with pytest.raises(NotImplementedError, match="complex128 to Q4_K"):
            gguf.quantize(whole.astype(complex), kind)


def test_grids():
    """Decoding leaves the class as gguf leaves it: its own steps can be called afterwards."""
    cls, raw = gguf.quants.IQ2_S, np.zeros((1, 82), np.uint8)
    with mock.patch.object(cls, "grid", None), compat.patched():
        gguf.dequantize(raw, gguf.GGMLQuantizationType.IQ2_S)
        assert cls.grid is not None
        assert cls.dequantize_blocks(raw).shape == (1, 256)
