"""Running a GGUF file through transformers and torch, where they are installed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tiny_checkpoints import checkpoint

import ggufx
from ggufx.cli import main
from ggufx.evaluate import perplexity

pytest.importorskip("torch", reason="torch (extra `evaluate`) is not installed")
pytest.importorskip("transformers", reason="transformers (extra `evaluate`) is not installed")

from ggufx.evaluate.runner import Runner, Vocabulary, read_text

pytestmark = pytest.mark.filterwarnings("default")  # those of other packages
VECTORS = Path(__file__).parent.parent / "vectors"
TEXT = VECTORS / "evaluate" / "gettysburg.txt"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = checkpoint("Tiny-Llama-3.2-1B-Instruct", tmp_path_factory.mktemp("running"))
    path = folder / "f32.gguf"
    ggufx.convert(folder, path, "f32", pre="llama-bpe", sync=False)
    assert main(["quantize", str(path), str(path.with_name("q4.gguf")), "Q4_0"]) == 0
    return path


def test_vocabulary_and_logits(model):
    import torch
    import transformers

    text = read_text(TEXT)
    assert not text.endswith("\n")
    assert text.encode() + b"\n" == TEXT.read_bytes()
    vocabulary = Vocabulary(model)
    ids = vocabulary.encode(text)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model.parent)
    assert ids[0] == vocabulary.bos == tokenizer.bos_token_id
    assert ids[1:].tolist() == tokenizer(text, add_special_tokens=False)["input_ids"]
    special = vocabulary.encode("<|begin_of_text|>")
    assert vocabulary.bos not in special[1:]  # plain text
    reference = transformers.AutoModelForCausalLM.from_pretrained(model.parent, dtype=torch.float32)
    with torch.inference_mode():
        expected = reference(torch.tensor(ids[None, :64].astype(np.int64))).logits[0, 32:].numpy()
    found = Runner(model).logits_from(ids[:64], 32)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_perplexity_of_a_file(model):
    text = read_text(TEXT)
    found = perplexity(model, text, n_ctx=128, windows=3)
    runner, vocabulary = Runner(model), Vocabulary(model)
    again = perplexity(
        lambda ids: runner.logits_from(ids, 0), tokens=vocabulary.encode(text), bos=vocabulary.bos, n_ctx=128, windows=3
    )
    np.testing.assert_allclose(np.concatenate(found.nll), np.concatenate(again.nll), atol=1e-5)
    assert found.label == str(model)


def test_command(model, tmp_path, capsys):
    q4, base = str(model.with_name("q4.gguf")), str(tmp_path / "base.kld")
    options = ["--text", str(TEXT), "-c", "128", "--windows", "2", "--json"]
    assert main(["perplexity", str(model), "--save-base", base, *options]) == 0
    (plain,) = json.loads(capsys.readouterr().out)
    reports = {}
    for name, more in {
        "coded": ["--base", base],
        "exact": ["--base", str(model), "--exact"],
        "kept": ["--base", str(model), "--keep", "100"],
    }.items():
        assert main(["perplexity", q4, str(model), *more, *options]) == 0
        reports[name] = json.loads(capsys.readouterr().out)
        if name == "kept":  # the base ran first, and is told too
            base_row = reports[name].pop(0)
            assert base_row["perplexity"] == pytest.approx(plain["perplexity"], rel=1e-6)
            assert "divergence" not in base_row
        first, second = reports[name]
        assert second["perplexity"] == pytest.approx(plain["perplexity"], rel=1e-6)
        assert first["divergence"]["kl"][0] > 10 * abs(second["divergence"]["kl"][0])
    exact = reports["exact"][0]["divergence"]
    assert reports["coded"][0]["divergence"]["kl"][0] == pytest.approx(exact["kl"][0], rel=1e-2, abs=1e-5)
    kept = reports["kept"][0]["divergence"]
    assert kept["kl"][0] <= exact["kl"][0] + 1e-7
    assert kept["kl"][0] + kept["kl_may_lack"] >= exact["kl"][0] - 1e-7
    small = str(tmp_path / "base.npz")
    assert main(["perplexity", str(model), "--save-base", small, "--keep", "100", *options]) == 0
    capsys.readouterr()
    assert main(["perplexity", q4, "--base", small, *options[:-1]]) == 0
    out = capsys.readouterr().out
    assert "2 windows of 128, 126 scored" in out
    assert "may be too small" in out


def test_made_up_weights_are_refused(tmp_path):
    """Transformers fills in what it can't find; figures of such a model would be noise."""
    ggufx.convert(checkpoint("tiny-mixtral", tmp_path), tmp_path / "m.gguf", "f32", sync=False)
    with pytest.raises(ggufx.GGUFError, match="would make them up"):
        Runner(tmp_path / "m.gguf")
