"""`ggufx compare`: figures are right, and what was planted is found by name."""

from __future__ import annotations

import json
import math
import shutil
import struct

import numpy as np
import pytest
from range_server import RangeServer
from tiny_checkpoints import checkpoint, vectors

import ggufx
from ggufx.cli import main, sample
from ggufx.evaluate import compare
from ggufx.model.permute import permuted_rows

RNG = np.random.default_rng(5)
NAMES = {
    "token_embd.weight": (96, 256),
    "blk.0.attn_norm.weight": (256,),
    "blk.0.attn_q.weight": (256, 256),
    "blk.0.attn_k.weight": (128, 256),
    "blk.0.ffn_down.weight": (256, 256),
    "blk.0.ffn_up_exps.weight": (4, 64, 256),
}
VALUES = {name: (RNG.standard_normal(shape) * 0.05).astype(np.float32) for name, shape in NAMES.items()}


def write(path, values=VALUES, kind=None, **metadata):
    with ggufx.Writer(path) as w:
        for key, value in {"general.architecture": "llama", "llama.block_count": 1, **metadata}.items():
            w.set(key, value)
        for name, x in values.items():
            w.add(name, x, qtype=None if x.ndim == 1 else kind)
    return path


def changed(name, change):
    return {**VALUES, name: change(VALUES[name])}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return write(tmp_path_factory.mktemp("compare") / "f32.gguf")


def by_name(result):
    return {t.name: t for t in result.tensors}


def test_figures(plain, tmp_path):
    other = write(tmp_path / "q4.gguf", kind="Q4_K")
    result = compare(plain, other, threads=2)
    assert result.ok
    assert not result.identical
    for t in result.tensors:
        x = VALUES[t.name].astype(np.float64)
        with ggufx.open(other) as f:
            y = f[t.name].dequantize().astype(np.float64)
        e = y - x
        assert t.n == x.size
        assert t.max_error == np.abs(e).max()
        if x.ndim == 1:
            assert t.verdict == "equal bits"
            continue
        assert t.max_at == np.abs(e).argmax()
        assert t.rmse == pytest.approx(math.sqrt(np.mean(e * e)), rel=1e-12)
        assert t.relative_rmse == pytest.approx(math.sqrt(np.sum(e * e) / np.sum(x * x)), rel=1e-12)
        assert t.snr_db == pytest.approx(10 * math.log10(np.sum(x * x) / np.sum(e * e)), rel=1e-12)
        assert t.cosine == pytest.approx(np.sum(x * y) / math.sqrt(np.sum(x * x) * np.sum(y * y)), rel=1e-12)
        assert t.bits == 4.5
        assert sum(t.histogram.values()) == np.count_nonzero(e)
        k = max(t.histogram)
        assert t.histogram[k] == np.count_nonzero(np.abs(e.astype(np.float32)) >= 2.0**k)
        assert t.verdict == ""
    row = next(r for r in result.types() if r.type_b == "Q4_K")
    assert (row.tensors, row.type_a) == (5, "F32")
    assert 0.05 < row.relative_rmse < 0.1
    assert result.worst(2)[0].relative_rmse == max(t.relative_rmse for t in result.tensors)


def test_threads_and_pieces_change_nothing(plain, tmp_path, monkeypatch):
    other = write(tmp_path / "q4.gguf", kind="Q4_0")
    before = compare(plain, other, threads=1).as_dict()
    assert compare(plain, other, threads=2).as_dict() == before
    monkeypatch.setattr("ggufx.evaluate.comparison.PIECE", 4096)
    pieces = compare(plain, other, threads=2).as_dict()
    for one, two in zip(before["tensors"], pieces["tensors"], strict=True):
        assert two["rmse"] == pytest.approx(one["rmse"], rel=1e-12)
        assert (two["max_at"], two["histogram"]) == (one["max_at"], one["histogram"])


def test_equal_in_every_way(plain, tmp_path):
    shutil.copyfile(plain, tmp_path / "copy.gguf")
    assert compare(plain, tmp_path / "copy.gguf").identical
    for kind in ("F16", "BF16"):
        half = write(tmp_path / f"{kind}.gguf", kind=kind)
        there = by_name(compare(plain, half))
        assert there["blk.0.attn_q.weight"].verdict == "equal after rounding"
        assert there["blk.0.attn_norm.weight"].verdict == "equal bits"
        with ggufx.open(half) as f:
            decoded = {t.name: t.dequantize() for t in f.tensors.values()}
        wide = write(tmp_path / f"wide-{kind}.gguf", decoded)
        assert by_name(compare(half, wide))["blk.0.attn_q.weight"].verdict == "equal values"


@pytest.mark.parametrize("kind", [None, "Q8_0", "Q4_K"])
@pytest.mark.parametrize("name", ["blk.0.attn_norm.weight", "blk.0.ffn_down.weight"])
def test_planted_offset(plain, tmp_path, kind, name):
    result = compare(plain, write(tmp_path / "x.gguf", changed(name, lambda x: x + 1), kind))
    (found,) = (f for f in result.findings if f.severity == "error")
    assert (found.kind, found.name) == ("offset", name)
    assert "the second is the first +1" in found.message or "+0.99" in found.message
    assert not result.ok


def test_planted_scale(plain, tmp_path):
    result = compare(plain, write(tmp_path / "x.gguf", changed("blk.0.ffn_down.weight", lambda x: x * 1.5)))
    (found,) = (f for f in result.findings if f.severity == "error")
    assert (found.kind, found.name) == ("scaled", "blk.0.ffn_down.weight")
    assert "times 1.5" in found.message


@pytest.mark.parametrize("kind", [None, "Q4_0", "Q2_K"])
def test_planted_permutation(plain, tmp_path, kind):
    values = changed("blk.0.attn_k.weight", lambda x: x[permuted_rows(128, 2)])
    result = compare(plain, write(tmp_path / "x.gguf", values, kind))
    (found,) = (f for f in result.findings if f.severity == "error")
    assert (found.kind, found.name) == ("rows permuted", "blk.0.attn_k.weight")
    assert "interleaved in 2 heads of 64" in found.message
    swapped = np.arange(128)
    swapped[[3, 90]] = 90, 3
    values = changed("blk.0.attn_k.weight", lambda x: x[swapped[::-1]])
    result = compare(plain, write(tmp_path / "y.gguf", values, kind))
    (found,) = (f for f in result.findings if f.severity == "error")
    assert "128 of 128 rows have other places: row 0 is the other side's row 127" in found.message


def plant(path, name, at, raw):
    with ggufx.open(path) as f:
        start = f[name].offset + at
    with open(path, "r+b") as file:
        file.seek(start)
        file.write(raw)


@pytest.mark.parametrize(("kind", "size"), [("Q8_0", 34), ("Q4_K", 144), ("Q2_K", 84)])
def test_planted_wrong_block(plain, tmp_path, kind, size):
    path = write(tmp_path / "x.gguf", kind=kind)
    blocks = 256 // (32 if kind == "Q8_0" else 256)
    name = "blk.0.ffn_up_exps.weight"
    with ggufx.open(path) as f:
        other = f[name].data.reshape(-1, size)[3].tobytes()
    plant(path, name, ((2 * 64 + 5) * blocks + blocks - 1) * size, other)
    result = compare(plain, path)
    (found,) = (f for f in result.findings if f.severity == "error")
    assert (found.kind, found.name) == ("wrong block", name)
    assert (found.expert, found.row, found.block, found.count) == (2, 5, blocks - 1, 1)
    # Against the right file of the same type, all other blocks are equal.
    result = compare(write(tmp_path / "right.gguf", kind=kind), path)
    assert [(f.name, f.row) for f in result.findings if f.severity == "error"] == [(name, 5)]


def test_planted_nan_scale(plain, tmp_path):
    path = write(tmp_path / "x.gguf", kind="Q8_0")
    plant(path, "blk.0.ffn_down.weight", (7 * 8 + 2) * 34, struct.pack("<H", 0x7E00))
    result = compare(plain, path)
    (found,) = (f for f in result.findings if f.severity == "error")
    assert (found.kind, found.name, found.row, found.block, found.count) == ("nan", "blk.0.ffn_down.weight", 7, 2, 32)
    assert by_name(result)["blk.0.ffn_down.weight"].n == 256 * 256 - 32
    assert compare(path, path).ok  # in both alike


def test_unrelated(plain, tmp_path):
    values = changed("blk.0.attn_q.weight", lambda x: RNG.standard_normal(x.shape).astype(np.float32))
    (found,) = compare(plain, write(tmp_path / "x.gguf", values)).findings
    assert (found.kind, found.name) == ("unrelated", "blk.0.attn_q.weight")


def test_structure(plain, tmp_path):
    values = {name: x for name, x in VALUES.items() if name != "blk.0.attn_q.weight"}
    values["blk.0.attn_k.weight"] = values["blk.0.attn_k.weight"][:64]
    values["extra.weight"] = np.ones(4, np.float32)
    result = compare(plain, write(tmp_path / "x.gguf", values, **{"llama.block_count": 2, "general.name": "other"}))
    found = {(f.kind, f.name): f for f in result.structure}
    assert set(found) == {
        ("metadata", "llama.block_count"),
        ("metadata", "general.name"),
        ("missing tensor", "blk.0.attn_q.weight"),
        ("missing tensor", "extra.weight"),
        ("shape", "blk.0.attn_k.weight"),
    }
    assert "is 1 in the first, 2 in the second" in found["metadata", "llama.block_count"].message
    assert "only in the second" in found["missing tensor", "extra.weight"].message
    assert not result.ok


def test_other_sides(plain, tmp_path):
    """Shards, URLs and safetensors files."""
    assert main(["split", str(plain), str(tmp_path / "part"), "--max-tensors", "2"]) == 0
    shard = min(tmp_path.glob("part-*.gguf"))
    assert {f.kind for f in compare(plain, shard).findings} <= {"metadata"}
    assert all(t.verdict == "equal bits" for t in compare(plain, shard).tensors)
    assert main(["decode", str(plain), "-o", str(tmp_path / "floats.safetensors"), "--dtype", "bfloat16"]) == 0
    result = compare(plain, tmp_path / "floats.safetensors")
    assert {t.verdict for t in result.tensors} == {"equal after rounding"}
    server = RangeServer()
    try:
        server.files["m.gguf"] = plain.read_bytes()
        assert all(t.verdict == "equal bits" for t in compare(plain, server.url("m.gguf")).tensors)
    finally:
        server.close()


@pytest.mark.parametrize("model", ["tiny-mixtral", "tiny-gpt-oss", "Tiny-Llama-3.2-1B-Instruct"])
def test_checkpoints(tmp_path, model):
    """A folder is read as a conversion would write it: names, stacked experts, order of rows, packed experts."""
    folder, pre = checkpoint(model, tmp_path), vectors()["checkpoints"][model].get("pre")
    ggufx.convert(folder, tmp_path / "f32.gguf", "f32", pre=pre, sync=False)
    ggufx.convert(folder, tmp_path / "f16.gguf", "f16", pre=pre, sync=False)
    result = compare(folder, tmp_path / "f32.gguf")
    assert result.findings == [f for f in result.structure if f.kind == "type"]
    assert len(result.tensors) > 20
    assert {t.verdict for t in result.tensors} == {"equal values"}
    found = {t.verdict for t in compare(folder, tmp_path / "f16.gguf").tensors}
    assert found <= {"equal values", "equal after rounding"}


def test_command(plain, tmp_path, capsys):
    q4, bad = write(tmp_path / "q4.gguf", kind="Q4_K"), write(tmp_path / "bad.gguf", kind="Q8_0")
    assert main(["compare", str(plain), str(q4)]) == 0
    out = capsys.readouterr().out
    assert "F32 -> Q4_K" in out
    assert "6 tensors compared: 5 with errors, 1 equal bits" in out
    plant(bad, "blk.0.ffn_down.weight", 0, struct.pack("<H", 0x7E00))
    assert main(["compare", str(plain), str(q4), str(bad), "--json"]) == 1
    first, second = json.loads(capsys.readouterr().out)
    assert (first["ok"], second["ok"]) == (True, False)
    assert second["tensors"][4]["findings"][0]["kind"] == "nan"
    assert main(["compare", str(plain), str(bad), "--names", "token*"]) == 0
    assert "1 tensors compared" in capsys.readouterr().out
    with sample.path_or_sample(None) as path:
        assert main(["compare", str(path), str(path)]) == 0
    assert "identical" in capsys.readouterr().out
