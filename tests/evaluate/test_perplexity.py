"""Scoring with numpy alone: windows, llama-perplexity's arithmetic, its base files, and what is kept of a reference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ggufx
from ggufx.evaluate import perplexity
from ggufx.evaluate.basefile import BaseFile, BaseFileWriter, decode_rows, encode_rows, row_words, scored_positions
from ggufx.evaluate.divergence import Divergence, against_log_probabilities, against_logits
from ggufx.evaluate.scoring import mean_and_error, nll_of, softmax_of
from ggufx.evaluate.texts import Perplexity, open_base
from ggufx.evaluate.topbase import TopBase, TopRows
from ggufx.evaluate.windows import as_tokens, plan_windows

VECTORS = Path(__file__).parent.parent / "vectors" / "evaluate" / "llama_perplexity.npz"
# torch's perplexity of Gemma-3 270M in F32 on 14 windows of 512, cumulative, as another program computed it.
CUMULATIVE = [12.86876384, 13.80509337, 13.73633791, 15.07253987, 14.81156331, 14.45871097, 14.74426549, 14.89252453,
              15.14264143, 14.93347853, 14.82861861, 14.72478624, 13.99711572, 13.82907462]  # fmt: skip


@pytest.fixture(scope="module")
def golden():
    with np.load(VECTORS) as found:
        return dict(found)


def test_coding_is_llama_perplexitys(golden):
    rows = encode_rows(golden["base_logits"])
    assert rows.dtype == np.uint16
    assert np.array_equal(rows, golden["rows"])
    assert row_words(257) == golden["rows"].shape[1]
    # A whole file's size: 262144 tokens, 14 windows of 512.
    assert 20 + 4 * 512 * 14 + 2 * row_words(262144) * scored_positions(512) * 14 == 1871765412


def test_masked_tokens_are_coded_at_the_floor():
    logits = np.array([[1.0, -np.inf, 3.0, 0.5]], np.float32)
    rows = encode_rows(logits)
    assert rows[0, 4:].tolist()[1:3] == [0, 65535]
    softmax = softmax_of(logits)
    found = against_log_probabilities(logits, decode_rows(rows, 4), np.array([2], np.int32), softmax)
    assert abs(found.kl[0]) < 1e-3


def test_divergence_is_llama_perplexitys(golden):
    base = decode_rows(golden["rows"], 257)
    logits, targets = golden["test_logits"], golden["targets"]
    found = against_log_probabilities(logits, base, targets, softmax_of(logits))
    np.testing.assert_allclose(found.kl, golden["kl"], rtol=0, atol=1e-8)
    assert np.array_equal(found.nll, golden["nll"])
    assert np.array_equal(found.nll_base, golden["nll_coded"])
    assert np.array_equal(found.same_top, golden["same_top"].astype(bool))
    np.testing.assert_allclose(Divergence.of([found]).change, golden["p_diff"], rtol=0, atol=1e-7)
    np.testing.assert_allclose(nll_of(golden["base_logits"], targets), golden["base_nll_plain"], rtol=0, atol=1e-7)


def test_means_and_errors(golden):
    mean, error = mean_and_error(golden["window_nll_coded"])
    assert np.exp(mean) == pytest.approx(13.8109559, abs=5e-6)
    assert np.exp(mean) * error == pytest.approx(0.6418894102, abs=1e-6)
    result = Perplexity("model", 512, 0, 7562, list(golden["window_nll_torch"].astype(np.float64)))
    assert result.cumulative == pytest.approx(CUMULATIVE, abs=2e-6)
    assert (result.value, result.error) == pytest.approx((13.82907462, 0.6444162843), abs=2e-6)
    assert result.per_window[0] == pytest.approx(CUMULATIVE[0], abs=2e-6)
    again = 2 * np.log(CUMULATIVE[1]) - np.log(CUMULATIVE[0])
    assert result.per_window[1] == pytest.approx(np.exp(again), abs=1e-5)


def test_windows():
    tokens = as_tokens(np.arange(100, 173))
    plan = plan_windows(tokens, 16, bos=2)
    assert [w.ids.tolist()[0] for w in plan] == [2] * 4
    assert all(w.ids.tolist()[1:] == list(range(101 + 16 * w.number, 116 + 16 * w.number)) for w in plan)
    assert (plan[1].first, plan[1].targets.tolist()) == (8, list(range(125, 132)))
    assert plan_windows(tokens, 16)[2].ids[0] == 132
    assert len(plan_windows(tokens, 16, limit=3)) == 3
    with pytest.raises(ggufx.GGUFError, match="31 tokens, windows of 16 need at least 32"):
        plan_windows(tokens[:31], 16)
    with pytest.raises(TypeError, match="integers"):
        as_tokens([0.5])


def test_strided_windows():
    tokens = as_tokens(np.arange(2000))
    plan = plan_windows(tokens, 512, stride=256, bos=2)
    assert [len(w.ids) for w in plan] == [768] * 5
    assert [w.ids[0] for w in plan] == [0, 256, 512, 768, 1024]
    assert [w.targets.tolist() for w in plan] == [list(range(512 + k, 768 + k)) for k in range(0, 1280, 256)]


def guesser(seed, vocabulary=61):
    table = np.random.default_rng(seed).standard_normal((vocabulary, vocabulary)).astype(np.float32) * 3

    def model(ids):
        return table[ids]

    return model


TOKENS = np.random.default_rng(3).integers(0, 61, 400)


def test_any_callable_is_judged():
    model = guesser(1)
    result = perplexity(model, tokens=TOKENS, n_ctx=32, bos=5)
    assert len(result.nll) == 12
    ids = TOKENS[64:96].copy()
    logits = model(ids).astype(np.float64)
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    expected = -log_p[np.arange(16, 31), ids[17:]]
    np.testing.assert_allclose(result.nll[2], expected, rtol=0, atol=1e-5)
    assert result.as_dict()["scored"] == 12 * 15
    assert (result.run, result.tokens) == (384, 400)
    strided = perplexity(model, tokens=TOKENS, n_ctx=32, stride=64)
    assert len(strided.nll) == 3
    assert perplexity(model, tokens=TOKENS, n_ctx=32, windows=2).nll[1] == pytest.approx(result.nll[1])


def test_pieces_and_threads_change_nothing(monkeypatch):
    model, base = guesser(1), guesser(2)
    whole = perplexity(model, tokens=TOKENS, n_ctx=32, base=base, keep=7, threads=1)
    monkeypatch.setattr("ggufx.evaluate.texts.PIECE", 200)
    pieces = perplexity(model, tokens=TOKENS, n_ctx=32, base=base, keep=7, threads=3)
    assert np.array_equal(np.concatenate(whole.nll), np.concatenate(pieces.nll))
    assert np.array_equal(whole.divergence.kl, pieces.divergence.kl)
    assert np.array_equal(whole.top.rows[3].ids, pieces.top.rows[3].ids)


def test_base_files(tmp_path):
    model, other = guesser(1), guesser(2)
    path = tmp_path / "base.kld"
    first = perplexity(model, tokens=TOKENS, n_ctx=32, bos=0, save_base=path)
    file = BaseFile(path)
    assert (file.n_ctx, file.n_vocab, len(file)) == (32, 61, 12)
    assert np.array_equal(file.tokens.reshape(-1), TOKENS[:384])  # as tokenized: no BOS put in
    assert path.stat().st_size == 20 + 4 * 384 + 2 * 66 * 15 * 12
    itself = perplexity(model, tokens=TOKENS, n_ctx=32, bos=0, base=path).divergence
    assert np.abs(itself.kl).max() < 1e-3
    assert itself.same_top.all()
    nll = np.concatenate(first.nll)
    likely = nll < 15  # what is 16 nats under the top comes back at that floor
    assert likely.sum() > 150
    np.testing.assert_allclose(itself.nll_base[likely], nll[likely], atol=2e-4)
    assert (itself.nll_base[~likely] <= nll[~likely] + 2e-4).all()
    coded = perplexity(other, tokens=TOKENS, n_ctx=32, bos=0, base=path).divergence
    exact = perplexity(other, tokens=TOKENS, n_ctx=32, bos=0, base=model).divergence
    np.testing.assert_allclose(coded.kl, exact.kl, atol=2e-3)
    assert np.array_equal(coded.same_top, exact.same_top)
    with pytest.raises(ggufx.GGUFError, match="another text"):
        perplexity(model, tokens=TOKENS[::-1], n_ctx=32, base=path)
    with pytest.raises(ggufx.GGUFError, match="12 windows of 32 tokens, 25 of 16"):
        perplexity(model, tokens=TOKENS, n_ctx=16, base=path)
    with pytest.raises(ggufx.GGUFError, match="50 logits, the reference has 61"):
        perplexity(lambda ids: np.zeros((len(ids), 61), np.float32)[:, :50], tokens=TOKENS % 50, n_ctx=32, base=model)
    data = path.read_bytes()
    path.write_bytes(data[:-2])
    with pytest.raises(ggufx.GGUFError, match=f"{len(data) - 2} bytes, {len(data)} were expected"):
        BaseFile(path)


def test_half_a_base_file_does_not_appear(tmp_path):
    path = tmp_path / "base.kld"
    tokens = TOKENS[:64].astype(np.int32).reshape(2, 32)
    with (
        pytest.raises(ggufx.GGUFError, match="15 rows were given, 30 belong there"),
        BaseFileWriter(path, tokens, 61) as w,
    ):
        w.add(guesser(1)(tokens[0])[:15])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("keep", [1, 5, 30, 61])
def test_what_is_kept_bounds_the_divergence(keep, tmp_path):
    model, other = guesser(1), guesser(2)
    kept = perplexity(model, tokens=TOKENS, n_ctx=32, keep=keep).top
    kept.save(tmp_path / "base.npz")
    exact = perplexity(other, tokens=TOKENS, n_ctx=32, base=model).divergence
    for base in (kept, tmp_path / "base.npz"):
        found = perplexity(other, tokens=TOKENS, n_ctx=32, base=base).divergence
        assert (found.kl <= exact.kl + 1e-5).all()
        assert (found.kl + found.spread >= exact.kl - 1e-5).all()
        np.testing.assert_allclose(found.nll_base, exact.nll_base, atol=1e-5)
        assert np.array_equal(found.same_top, exact.same_top)
        if keep == 61:
            np.testing.assert_allclose(found.kl, exact.kl, atol=1e-5)
            assert not found.spread.any()
    assert found.summary()["kl_may_lack"] == pytest.approx(found.spread.mean())
    (tmp_path / "junk.npz").write_bytes(b"junk")
    with pytest.raises(ggufx.GGUFError, match="not a base file"):
        TopBase.load(tmp_path / "junk.npz")
    assert isinstance(open_base(tmp_path / "base.npz"), TopBase)


def test_rest_of_the_kept(golden):
    rows = TopRows.of(golden["base_logits"], golden["targets"], 3)
    p = np.exp(golden["base_logits"].astype(np.float64))
    p /= p.sum(axis=1, keepdims=True)
    order = np.sort(p, axis=1)[:, ::-1]
    np.testing.assert_allclose(np.exp(rows.log_p), order[:, :3], rtol=1e-5)
    np.testing.assert_allclose(rows.rest, order[:, 3:].sum(axis=1), rtol=1e-4, atol=1e-7)


def test_summary():
    rng = np.random.default_rng(0)
    kl, base = rng.gamma(1, 0.1, 500), rng.gamma(2, 1, 500)
    nll = base + rng.standard_normal(500) * 0.1
    d = Divergence(kl, nll, base, rng.random(500) < 0.9, np.zeros(500))
    s = d.summary()
    assert s["ln_ratio"][0] == pytest.approx(np.mean(nll - base))
    assert s["ln_ratio"][1] == pytest.approx(np.std(nll - base) / np.sqrt(499))  # paired: variances less the covariance
    assert s["ratio"][0] == pytest.approx(np.exp(np.mean(nll - base)))
    assert s["difference"][0] == pytest.approx(np.exp(nll.mean()) - np.exp(base.mean()))
    assert s["correlation"] == pytest.approx(np.corrcoef(nll, base)[0, 1])
    change = np.exp(-nll) - np.exp(-base)
    assert s["change_rms"][0] == pytest.approx(np.sqrt(np.mean(change**2)))
    top = d.same_top.mean()
    assert s["same_top"] == pytest.approx((top, np.sqrt(top * (1 - top) / 499)))
    assert s["kl_percentiles"][99.9] == pytest.approx(np.percentile(kl, 99.9), rel=1e-6)
    assert s["kl_percentiles"][50] == pytest.approx(np.median(kl), rel=1e-6)


def test_whole_divergence():
    rng = np.random.default_rng(4)
    a, b = (rng.standard_normal((6, 40)).astype(np.float32) * 9 for _ in range(2))
    b[:, 7] = -np.inf
    a[:, 7] = -np.inf
    targets = rng.integers(0, 7, 6).astype(np.int32)
    p, q = (np.exp(x.astype(np.float64)) / np.exp(x.astype(np.float64)).sum(axis=1, keepdims=True) for x in (b, a))
    with np.errstate(all="ignore"):
        expected = np.nansum(np.where(p > 0, p * np.log(p / q), 0), axis=1)
    np.testing.assert_allclose(against_logits(a, b, targets, softmax_of(a)).kl, expected, atol=1e-4)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_broken_logits_are_named(bad):
    model = guesser(1)

    def broken(ids):
        logits = model(ids).copy()
        if ids[0] == TOKENS[32]:
            logits[20, 3] = bad
        return logits

    with pytest.raises(ggufx.GGUFError, match="broken: window 1, position 20: the logits aren't finite"):
        perplexity(broken, tokens=TOKENS, n_ctx=32, windows=2)
    with pytest.raises(ggufx.GGUFError, match="logits of shape"):
        perplexity(lambda ids: model(ids)[:-1], tokens=TOKENS, n_ctx=32)
    with pytest.raises(ggufx.GGUFError, match="token 60 is beyond its 40 logits"):
        perplexity(lambda ids: model(ids)[:, :40], tokens=np.full(64, 60), n_ctx=32)
