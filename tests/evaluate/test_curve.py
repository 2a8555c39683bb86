"""`ggufx curve`: the plain quantizers' known errors on Gaussian values, and errors as quantizing itself has them."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import ggufx
from ggufx.cli import main
from ggufx.evaluate import curve
from ggufx.evaluate.baselines import BASELINES
from ggufx.evaluate.curves import tensor_kind

X = np.random.default_rng(7).standard_normal((2048, 256)).astype(np.float32)
# RMSE over sigma on Gaussian weights in blocks of 32.
PLAIN = {"absmax 8": 0.0053, "absmax 7": 0.0107, "absmax 6": 0.0217, "absmax 5": 0.0447, "absmax 4": 0.0962,
         "absmax 3": 0.2256, "absmax 2": 0.6494, "grid 4": 0.0793}  # fmt: skip


def test_plain_quantizers():
    found = {p.type: p for p in curve(X, types=[]).points}
    assert set(found) == set(PLAIN) == set(BASELINES)
    for name, expected in PLAIN.items():
        assert found[name].relative_rmse == pytest.approx(expected, rel=0.015)
    assert found["absmax 4"].bits == 4.5
    zero = curve(np.zeros((4, 32), np.float32), types=["Q4_0"]).points
    assert {p.relative_rmse for p in zero} == {0.0}


def test_types_as_quant_error_has_them():
    importance = np.abs(X[:40]).mean(axis=0)
    found = {(p.type, p.imatrix): p for p in curve(X[:64], imatrix=importance, sample=0).points}
    for qtype in ggufx.QType:
        if (qtype.name, True) not in found:
            continue
        point, exact = found[qtype.name, True], ggufx.quant_error(X[:64], qtype, imatrix=importance)
        assert point.relative_rmse == pytest.approx(exact.relative_rmse, rel=1e-9)
        weight = np.sum(X[:64].astype(np.float64) ** 2 * importance)
        assert point.weighted == pytest.approx(math.sqrt(exact.weighted_error / weight), rel=1e-6)
        assert point.bits == 8 * qtype.block_bytes / qtype.block_size
    assert ("IQ2_XXS", True) in found
    assert ("IQ2_XXS", False) not in found
    assert found["Q4_K", False].relative_rmse == pytest.approx(ggufx.quant_error(X[:64], "Q4_K").relative_rmse)
    assert found["Q4_K", True].weighted < found["Q4_K", False].weighted


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("curve") / "m.gguf"
    with ggufx.Writer(path) as w:
        w.set("general.architecture", "llama")
        w.add("blk.0.attn_q.weight", X[:64])
        w.add("blk.0.attn_norm.weight", X[0])
        w.add("blk.1.attn_q.weight", X[64:96] * 2)
        w.add("blk.1.ffn_up_exps.weight", X[:96].reshape(3, 32, 256))
        w.add("blk.1.ffn_down.weight", np.ascontiguousarray(X[:64, :96]))
    return path


def test_models(model):
    types = ["Q8_0", "Q4_K", "Q4_0"]
    one = curve(model, types=types, threads=1)
    assert one.as_dict() == curve(model, types=types, threads=3).as_dict()
    assert one.tensors == 4
    found = {p.type: p for p in one.points}
    assert (found["Q8_0"].tensors, found["Q4_K"].tensors) == (4, 3)  # rows of 96 aren't blocks of 256
    assert found["Q8_0"].n == X[:64].size + X[:32].size + X[:96].size + 64 * 96
    assert set(found["Q8_0"].by_kind) == {"attn_q", "ffn_up_exps", "ffn_down"}
    both = np.concatenate([X[:64], X[64:96] * 2])
    assert found["Q4_0"].by_kind["attn_q"] == pytest.approx(ggufx.quant_error(both, "Q4_0").relative_rmse)
    few = curve(model, types=types, sample=1024)
    assert few.n == 3 * 1024 + 10 * 96
    only = curve(model, types=types, names=lambda name: "ffn" in name)
    assert only.tensors == 2
    with pytest.raises(ggufx.GGUFError, match="no matrix has such a name"):
        curve(model, names=lambda name: False)


def test_importance_by_expert(model):
    importance = {"blk.1.ffn_up_exps.weight": np.abs(X[:3]) + 0.1}
    found = curve(model, types=["IQ2_XS"], imatrix=importance, names=lambda name: "exps" in name)
    point = next(p for p in found.points if p.type == "IQ2_XS")
    stack = X[:96].reshape(3, 32, 256)
    exact = ggufx.quant_error(stack, "IQ2_XS", imatrix=importance["blk.1.ffn_up_exps.weight"])
    assert point.relative_rmse == pytest.approx(exact.relative_rmse)


def test_bad_values(tmp_path):
    bad = X[:2].copy()
    bad[1, 3] = np.nan
    with pytest.raises(ggufx.GGUFError, match="'values' has values that aren't finite"):
        curve(bad)


def test_kinds():
    assert tensor_kind("blk.13.ffn_up.weight") == "ffn_up"
    assert tensor_kind("token_embd.weight") == "token_embd"


def test_command(model, capsys):
    assert main(["curve", str(model), "--types", "Q8_0,Q4_K", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [p["type"] for p in report["points"] if p["type"][0] == "Q"] == ["Q8_0", "Q4_K"]
    assert main(["curve", str(model), "--types", "Q8_0", "--names", "*attn_q*", "--kinds"]) == 0
    out = capsys.readouterr().out
    assert "Q8_0" in out
    assert "    attn_q" in out
    assert main(["curve", str(model), "--types", "Q9"]) == 2
