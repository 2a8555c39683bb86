"""`ggufx evaluate`: results that can be gone on with, and a page that stands alone."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from tiny_checkpoints import checkpoint

import ggufx
from ggufx.cli import main
from ggufx.evaluate import evaluate, perplexity
from ggufx.evaluate.reporting import read_results

X = np.random.default_rng(9).standard_normal((64, 256)).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    with ggufx.Writer(folder / "base.gguf") as w:
        w.set("general.architecture", "llama")
        w.set("llama.block_count", 3)
        w.add("token_embd.weight", X)
        for block in range(3):
            w.add(f"blk.{block}.attn_q.weight", X + block)
            w.add(f"blk.{block}.ffn_down.weight", X * 2)
            w.add(f"blk.{block}.attn_norm.weight", X[0])
    for kind in ("Q8_0", "Q4_0"):
        assert main(["quantize", str(folder / "base.gguf"), str(folder / f"<{kind}>.gguf"), kind, "--pure"]) == 0
    return folder


def models(folder):
    return [str(folder / "<Q8_0>.gguf"), str(folder / "<Q4_0>.gguf")]


def test_results(folder):
    base, saved = str(folder / "base.gguf"), []
    results = evaluate(models(folder), base, save=lambda r: saved.append(json.dumps(r)))
    assert len(saved) == 3  # both models' weights, and the curve
    one, two = results["models"]
    assert (one["name"], one["types"]) == ("<Q8_0>", {"F32": 3, "Q8_0": 7})
    assert one["bits"] == pytest.approx(8.5, abs=0.2)
    (row,) = (t for t in two["weights"]["types"] if t["type_b"] == "Q4_0")
    assert row["tensors"] == 7
    assert {t["kind"] for t in two["weights"]["tensors"]} == {"token_embd", "attn_q", "ffn_down", "attn_norm"}
    assert results["curve"]["tensors"] == 7
    # What is there isn't done again.
    again = evaluate(models(folder), base, earlier=json.loads(json.dumps(results)), save=lambda r: saved.append(r))
    assert again == results
    assert len(saved) == 4
    changed = evaluate(models(folder)[:1], str(folder / "<Q4_0>.gguf"), earlier=results, with_curve=False)
    assert changed["models"][0]["weights"] != one["weights"]


def with_text(results):
    """The same results as if a text had been predicted."""
    rng = np.random.default_rng(2)
    table = rng.standard_normal((40, 40)).astype(np.float32) * 2
    tokens = rng.integers(0, 40, 600)
    base = perplexity(lambda ids: table[ids], tokens=tokens, n_ctx=64, keep=10)
    results["terms"] |= {"text": "a.txt", "n_ctx": 64}
    results["base"]["text"] = base.as_dict()
    for k, m in enumerate(results["models"]):
        noisy = table + rng.standard_normal(table.shape).astype(np.float32) * 0.1 * (k + 1)
        m["text"] = perplexity(lambda ids, t=noisy: t[ids], tokens=tokens, n_ctx=64, base=base.top).as_dict()
    return json.loads(json.dumps(results))


def test_page_and_pictures(folder, tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="matplotlib (extra `evaluate`) is not installed")
    pytest.importorskip("jinja2", reason="jinja2 (extra `evaluate`) is not installed")
    out, figures = tmp_path / "report.html", tmp_path / "results.json"
    options = ["--base", str(folder / "base.gguf"), "-o", str(out), "--json", str(figures)]
    assert main(["evaluate", *models(folder), *options]) == 0
    page = out.read_text(encoding="utf-8")
    assert "&lt;Q8_0&gt;" in page
    assert "<Q8_0>" not in page
    assert page.count("data:image/svg+xml;base64,") == 4  # curve and heat map, light and dark
    assert "perplexity" not in page
    results = with_text(read_results(figures))
    figures.write_text(json.dumps(results))
    png = tmp_path / "png"
    assert main(["evaluate", "--from", str(figures), "-o", str(out), "--png", str(png), "--title", "A & B"]) == 0
    page = out.read_text(encoding="utf-8")
    assert "<h1>A &amp; B</h1>" in page
    assert page.count("data:image/svg+xml;base64,") == 6
    assert f"{results['models'][1]['text']['perplexity']:.4f}" in page
    assert "may be too small" in page
    without = re.sub(r"data:image/svg\+xml;base64,[^\"]*", "", page)
    assert not re.search(r"https?:|src=\"(?!\")|href=|<script", without)
    names = {f"{name}-{theme}.png" for name in ("curve", "heat", "text") for theme in ("light", "dark")}
    assert {p.name for p in png.iterdir()} == names
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in png.iterdir())
    before = out.read_bytes()
    assert main(["evaluate", "--from", str(figures), "-o", str(out), "--title", "A & B"]) == 0
    assert out.read_bytes() == before  # the same figures make the same page


def test_refusals(folder, tmp_path, capsys):
    (tmp_path / "junk.json").write_text("{}")
    assert main(["evaluate", "--from", str(tmp_path / "junk.json"), "-o", str(tmp_path / "x.html")]) == 1
    assert "no results of an evaluation" in capsys.readouterr().err
    assert main(["evaluate", *models(folder), "-o", str(tmp_path / "x.html")]) == 2
    assert main(["evaluate", *models(folder), "--base", str(folder / "base.gguf")]) == 2
    assert not (tmp_path / "x.html").exists()


@pytest.mark.filterwarnings("default")
def test_with_a_text(tmp_path):
    pytest.importorskip("torch", reason="torch (extra `evaluate`) is not installed")
    pytest.importorskip("transformers", reason="transformers (extra `evaluate`) is not installed")
    source = checkpoint("Tiny-Llama-3.2-1B-Instruct", tmp_path)
    base = tmp_path / "f32.gguf"
    ggufx.convert(source, base, "f32", pre="llama-bpe", sync=False)
    assert main(["quantize", str(base), str(tmp_path / "q4.gguf"), "Q4_0"]) == 0
    text = "the quick brown fox jumps over the lazy dog " * 30
    options = {"text": text, "text_name": "fox", "n_ctx": 64, "windows": 3, "with_curve": False}
    results = evaluate([str(tmp_path / "q4.gguf")], str(base), **options)
    found = results["models"][0]["text"]
    assert found["scored"] == 3 * 31
    assert found["divergence"]["kl"][0] > 0
    again = evaluate([str(tmp_path / "q4.gguf")], str(base), **options, earlier=results)
    assert again == results
