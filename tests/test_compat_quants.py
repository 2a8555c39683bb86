"""The patched quantization classes, lazy tensors and name maps of `gguf`."""

from __future__ import annotations

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
