"""python -m ggufx.bench: it measures what it says and notices wrong bits. Nothing here asserts a speed."""

from __future__ import annotations

import json

import numpy as np
import pytest
from oracle import make_blocks, round_to

import ggufx
from ggufx import QType, bench
from ggufx.cli.sample import path_or_sample
from ggufx.codec.reference.decode import DECODERS


def test_every_type_and_path():
    report = bench.run(weights=1 << 12)
    rows = {(row["type"], row["path"]) for row in report["rows"]}
    assert rows == {(t.name, path) for t in DECODERS for path in ggufx.paths()}
    assert all(row["exact"] for row in report["rows"])
    assert report["ceilings"]["fill"] > 0
    assert report["machine"]["ggufx"] == ggufx.__version__


def test_units():
    (row,) = bench.run(weights=1 << 16, types=[QType.Q4_K], paths=["numpy"], dtypes=["bfloat16"])["rows"]
    assert row["weights"] == 1 << 16
    assert row["gigaweights_per_second"] == pytest.approx(row["weights"] / row["seconds"] / 1e9)
    assert row["gigabytes_per_second"] == pytest.approx(2 * row["gigaweights_per_second"])


def test_model(dtype):
    with path_or_sample(None) as path:
        report = bench.run(model=path, dtypes=[dtype], weights=1 << 12, paths=["numpy", ggufx.paths()[0]])
    assert all(row["exact"] for row in report["rows"])
    assert {QType[row["type"]] for row in report["rows"]} == set(DECODERS)


@pytest.mark.parametrize("source", ["sample", "model"])
def test_wrong_bits_are_noticed(monkeypatch, capsys, source):
    honest = bench.dequantize

    def lying(*args, **kwargs):
        out = honest(*args, **kwargs)
        if "out" in kwargs:
            out.reshape(-1)[7] += 1
        return out

    monkeypatch.setattr(bench, "dequantize", lying)
    with path_or_sample(None) as path:
        extra = [] if source == "sample" else ["--model", str(path)]
        code = bench.main(["--types", "Q6_K", "--mib", "1", "--paths", "numpy", *extra])
    assert code == 1
    assert "DIFFER" in capsys.readouterr().out


def test_same_bits(dtype, rng):
    with np.errstate(all="ignore"):
        values = DECODERS[QType.Q4_0](make_blocks(QType.Q4_0, rng)).reshape(-1)
    want = round_to(values, dtype)
    assert bench._same(want.copy(), want, dtype)
    assert np.isnan(values).any()
    for at in (int(np.isnan(values).argmax()), int(np.isfinite(values).argmax())):
        other = want.copy()
        other[at] = 0x3F80 if dtype == "bfloat16" else 77
        assert not bench._same(other, want, dtype)
    unsigned = want.view(f"u{want.dtype.itemsize}").copy()
    unsigned[np.isnan(values)] ^= unsigned.dtype.type(1 << 8 * unsigned.itemsize - 1)
    assert bench._same(unsigned.view(want.dtype), want, dtype)


def test_json(capsys):
    assert bench.main(["--json", "--types", "Q4_0,F16", "--mib", "1", "--dtypes", "float32,float16"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {row["dtype"] for row in report["rows"]} == {"float32", "float16"}


@pytest.mark.parametrize(
    "arguments", [["--types", "Q4_9"], ["--dtypes", "int8"], ["--mib", "0"], ["--threads", "0"]], ids=" ".join
)
def test_wrong_arguments(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        bench.main(arguments)
    assert stop.value.code == 2


def test_errors_are_one_line(capsys, tmp_path):
    assert bench.main(["--model", str(tmp_path / "none.gguf"), "--mib", "1"]) == 1
    assert bench.main(["--paths", "pdp11", "--mib", "1"]) == 1
    assert capsys.readouterr().err.count("\n") == 2
