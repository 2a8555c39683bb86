"""Error measures of quantizations against numpy, and against numbers worked out before."""

from __future__ import annotations

import numpy as np
import pytest
from oracle import ENCODED_TYPES

import ggufx
from ggufx.codec.quality import ErrorSums


@pytest.mark.parametrize("qtype", ENCODED_TYPES, ids=lambda t: t.name)
@pytest.mark.parametrize("weighted", [False, True])
def test_against_numpy(rng, qtype, weighted):
    x = rng.standard_normal((5, 512)).astype(np.float32)
    w = rng.random(512)
    imatrix = w if weighted or qtype in ggufx.codec.encode.NEEDS_IMATRIX else None
    error = ggufx.dequantize(ggufx.quantize(x, qtype, imatrix=imatrix), qtype).astype(float) - x
    found = ggufx.quant_error(x, qtype, imatrix)
    assert found.n == x.size
    assert found.rmse == pytest.approx(np.sqrt(np.mean(error**2)))
    assert found.relative_rmse == pytest.approx(found.rmse / np.sqrt(np.mean(x.astype(float) ** 2)))
    assert found.max_error == np.abs(error).max()
    assert found.squared_error == pytest.approx((error**2).sum())
    assert found.weighted_error == pytest.approx((error**2 * (1 if imatrix is None else imatrix)).sum())
    assert found.snr_db == pytest.approx(10 * np.log10((x.astype(float) ** 2).sum() / (error**2).sum()))


def test_experts_and_pieces(rng):
    x = rng.standard_normal((3, 700, 1024)).astype(np.float32)
    w = rng.random((3, 1024))
    parts = [ggufx.quant_error(x[k], "Q4_0", w[k]) for k in range(3)]
    whole = ggufx.quant_error(x, "Q4_0", w)
    assert whole.weighted_error == pytest.approx(sum(p.weighted_error for p in parts))
    assert whole.n == x.size
    assert ggufx.quant_error(x[0, 0], "Q4_0").n == 1024


def test_worked_example():
    """A group of eight at four bits: the scale that is best by weight isn't the one that is best without."""
    x = np.array([0.90, -0.35, 0.12, 0.51, -0.77, 0.05, 0.33, -0.18])
    w = np.array([0.1, 9, 0.2, 8, 0.1, 0.3, 7.5, 0.2])
    for scale, plain, weighted in ((0.9 / 7, 0.00962, 0.03620), (0.126, 0.00910, 0.02602), (0.16714, 0.01368, 0.00502)):
        sums = ErrorSums()
        sums.add(x, np.clip(np.round(x / scale), -8, 7) * scale, w)
        found = sums.result()
        assert round(found.squared_error, 5) == plain
        assert round(found.weighted_error, 5) == weighted


def test_corners():
    assert ggufx.quant_error(np.zeros((2, 32), np.float32), "Q8_0") == (64, 0, 0, 0, 0, 0, np.inf)
    assert ggufx.quant_error(np.zeros((0, 32), np.float32), "Q8_0").n == 0
    with pytest.warns(ggufx.GGUFWarning):
        assert ggufx.quant_error(np.full((1, 32), 1e8, np.float32), "Q8_0").rmse == np.inf
    with pytest.raises(ValueError, match="imatrix has shape"):
        ggufx.quant_error(np.ones((2, 32), np.float32), "Q8_0", np.ones(31))
    with pytest.raises(ValueError, match="at least one dimension"):
        ggufx.quant_error(1.0, "Q8_0")
