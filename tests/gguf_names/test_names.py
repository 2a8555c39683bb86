"""ggufx's own GGUFReader and quants, beside those of `gguf`."""

from __future__ import annotations

import numpy as np
import pytest
from compat_files import CORRUPT, ENDLESS, write_corrupt
from gguf_bytes import ARRAY

import ggufx
from ggufx import QType

gguf = pytest.importorskip("gguf")


def test_own_reader_and_quants(good_files):
    """The GGUFReader and quants of ggufx show what those of gguf do."""
    for path in good_files:
        own, theirs = ggufx.GGUFReader(path), gguf.GGUFReader(path)
        assert list(own.fields) == list(theirs.fields)
        assert (own.byte_order, own.endianess, own.alignment, own.data_offset) == (
            theirs.byte_order, theirs.endianess, theirs.alignment, theirs.data_offset,
        )  # fmt: skip
        for a, b in zip(own.fields.values(), theirs.fields.values(), strict=True):
            assert (a.offset, a.name, list(a.data), a.types) == (b.offset, b.name, b.data, b.types)
            assert [(p.dtype, p.tobytes()) for p in a.parts] == [(p.dtype, p.tobytes()) for p in b.parts]
            if "not-utf8" not in str(path) and not a.name.startswith("nested"):
                assert a.contents() == b.contents()
                if a.data and a.types[0] == ARRAY:
                    assert a.contents(-1) == b.contents(-1)
        for a, b in zip(own.tensors, theirs.tensors, strict=True):
            assert (a.name, a.tensor_type, a.n_elements, a.n_bytes, a.data_offset, a.shape.tolist()) == (
                b.name, b.tensor_type, b.n_elements, b.n_bytes, b.data_offset, b.shape.tolist(),
            )  # fmt: skip
            assert (a.data.dtype, a.data.shape, a.data.tobytes()) == (b.data.dtype, b.data.shape, b.data.tobytes())
    assert own.get_field("nothing") is None
    raw = np.random.default_rng(3).integers(0, 60, (4, 288), np.uint8)
    want = gguf.dequantize(raw, gguf.GGMLQuantizationType.Q4_K)
    for kind in (12, QType.Q4_K, gguf.GGMLQuantizationType.Q4_K):
        np.testing.assert_array_equal(ggufx.quants.dequantize(raw, kind), want)
    np.testing.assert_array_equal(ggufx.quants.dequantize(raw[:, ::-1][:, ::-1].T.copy().T, 12), want)
    floats = want[0, :64]
    assert ggufx.quants.dequantize(floats, 0).base is not None
    assert ggufx.quants.dequantize(floats.astype(np.float16), 1).dtype == np.float32
    assert ggufx.quants.quantize(floats, 0) is floats
    assert ggufx.quants.quantize(floats, 1).dtype == np.float16
    for call in (ggufx.quants.dequantize, ggufx.quants.quantize):
        for kind in (QType.I8, QType.F64, 99):
            with pytest.raises(NotImplementedError):
                call(floats, kind)
    for kind in (QType.Q8_0, QType.Q5_1, QType.BF16):
        theirs = gguf.quantize(want, gguf.GGMLQuantizationType(kind))
        np.testing.assert_array_equal(ggufx.quants.quantize(want, kind), theirs)
    with pytest.raises(NotImplementedError, match="importance matrix"):
        ggufx.quants.quantize(want, QType.IQ1_S)
    with pytest.raises(ggufx.quants.QuantError):
        ggufx.quants.quantize(floats[:7], QType.Q8_0)
    for ours, gguf_s in (
        (ggufx.quants.quant_shape_to_byte_shape, gguf.quants.quant_shape_to_byte_shape),
        (ggufx.quants.quant_shape_from_byte_shape, gguf.quants.quant_shape_from_byte_shape),
    ):
        size = 512 if "to" in ours.__name__ else 288
        assert ours((3, size), QType.Q4_K) == gguf_s((3, size), gguf.GGMLQuantizationType.Q4_K)
        with pytest.raises(ValueError, match="is not a multiple of Q4_K"):
            ours((3, 7), QType.Q4_K)


@pytest.mark.parametrize("case", [*CORRUPT, *ENDLESS])
def test_own_reader_on_corrupt_files(tmp_path, case):
    [path] = write_corrupt(tmp_path, {case: (CORRUPT | ENDLESS)[case]})
    with pytest.raises((ValueError, KeyError)):
        ggufx.GGUFReader(path)
