"""`ggufx imatrix`: files laid out as llama-imatrix's, statistics, and collecting through torch where it is there."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from tiny_checkpoints import checkpoint

import ggufx
from ggufx.cli import main
from ggufx.evaluate import statistics
from ggufx.requantize.imatrix import Entry, ImportanceMatrix, load

TEXT = Path(__file__).parent.parent / "vectors" / "evaluate" / "gettysburg.txt"
WIDTHS = {
    "attn_k": 640,
    "attn_output": 1024,
    "attn_q": 640,
    "attn_v": 640,
    "ffn_down": 2048,
    "ffn_gate": 640,
    "ffn_up": 640,
}


def test_llama_imatrix_layout(tmp_path):
    """The matrix of a Gemma-3 270M has the size that llama-imatrix's has, to the byte, in both forms."""
    matrix = ImportanceMatrix(datasets=["gpl3.txt"], chunk_count=14, chunk_size=512)
    for block in range(18):
        for kind, width in WIDTHS.items():
            sums = np.full((1, width), 7168.0, np.float32)
            matrix.entries[f"blk.{block}.{kind}.weight"] = Entry(sums, np.array([7168]))
    matrix.save(tmp_path / "m.gguf")
    matrix.save(tmp_path / "m.dat")
    assert (tmp_path / "m.gguf").stat().st_size == 471008
    assert (tmp_path / "m.dat").stat().st_size == 455728
    with ggufx.open(tmp_path / "m.gguf") as f:
        assert list(f.metadata) == ["general.type", "imatrix.datasets", "imatrix.chunk_count", "imatrix.chunk_size"]
        names = list(f.tensors)
        assert names[:3] == [
            "blk.0.attn_k.weight.in_sum2",
            "blk.0.attn_k.weight.counts",
            "blk.0.attn_output.weight.in_sum2",
        ]
        assert names[14] == "blk.1.attn_k.weight.in_sum2"
        assert names[28] == "blk.10.attn_k.weight.in_sum2"  # sorted as bytes
        assert f["blk.0.attn_k.weight.in_sum2"].ggml_shape == (640,)
        assert f["blk.0.attn_k.weight.counts"].ggml_shape == (1,)
    again = load(tmp_path / "m.gguf")
    assert again.entries["blk.3.ffn_down.weight"].sums.shape == (1, 2048)
    again.save(tmp_path / "again.gguf")
    assert (tmp_path / "again.gguf").read_bytes() == (tmp_path / "m.gguf").read_bytes()


def small():
    matrix = ImportanceMatrix(datasets=["a.txt"], chunk_count=2, chunk_size=4)
    matrix.entries["blk.0.ffn_up.weight"] = Entry(np.array([[8.0, 0, 8, 16]]), np.array([8]))
    matrix.entries["blk.1.ffn_up.weight"] = Entry(np.array([[16.0, 0, 16, 0]]), np.array([8]))
    experts = np.array([[4.0, 4], [0, 0], [2, 6]])
    matrix.entries["blk.1.ffn_up_exps.weight"] = Entry(experts, np.array([4, 0, 2]))
    return matrix


def test_statistics():
    found = {s.name: s for s in statistics(small())}
    one = found["blk.0.ffn_up.weight"]
    assert (one.total, one.mean, one.least, one.most, one.active, one.rows) == (4.0, 1.0, 0.0, 2.0, 0.75, 8)
    assert one.deviation == pytest.approx(math.sqrt(0.5))
    assert one.entropy == pytest.approx(1.5)
    assert one.evenness == pytest.approx(0.75)
    assert one.likeness is None
    two = found["blk.1.ffn_up.weight"]
    assert two.likeness == pytest.approx(4 / (math.sqrt(6) * math.sqrt(8)))
    experts = found["blk.1.ffn_up_exps.weight"]
    assert (experts.experts, experts.idle, experts.total, experts.rows) == (3, 1, 6.0, 6)
    assert [s.total for s in statistics(small())] == [6.0, 4.0, 4.0]


def test_command_without_a_model(tmp_path, capsys):
    small().save(tmp_path / "a.gguf")
    assert main(["imatrix", "--in-file", str(tmp_path / "a.gguf"), "-o", str(tmp_path / "b.dat")]) == 0
    files = ["--in-file", str(tmp_path / "a.gguf"), "--in-file", str(tmp_path / "a.gguf")]
    assert main(["imatrix", *files, "-o", str(tmp_path / "c.gguf")]) == 0
    both = load(tmp_path / "c.gguf")
    assert both.chunk_count == 4
    assert both.entries["blk.0.ffn_up.weight"].sums.tolist() == [[16, 0, 16, 32]]
    capsys.readouterr()
    assert main(["imatrix", *files, "--show-statistics", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["name"] == "blk.1.ffn_up_exps.weight"
    assert main(["imatrix", *files[:2], "--show-statistics"]) == 0
    assert "blk.0.ffn_up.weight" in capsys.readouterr().out
    assert main(["imatrix", "--show-statistics"]) == 2
    assert main(["imatrix", str(tmp_path / "a.gguf"), "-o", "x"]) == 2


torch_there = pytest.mark.skipif(
    not all(__import__("importlib.util").util.find_spec(m) for m in ("torch", "transformers")),
    reason="torch and transformers (extra `evaluate`) aren't installed",
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = checkpoint("Tiny-Llama-3.2-1B-Instruct", tmp_path_factory.mktemp("collecting"))
    ggufx.convert(folder, folder / "f32.gguf", "f32", pre="llama-bpe", sync=False)
    return folder / "f32.gguf"


@torch_there
@pytest.mark.filterwarnings("default")
def test_collected(model, tmp_path):
    from ggufx.evaluate import collect
    from ggufx.evaluate.runner import Runner, Vocabulary, read_text

    text = read_text(TEXT)
    out = tmp_path / "m.gguf"
    matrix = collect(model, text, dataset="g.txt", n_ctx=128, windows=5, save=out)
    with ggufx.open(model) as f:
        weights = {t.name for t in f.tensors.values() if t.name.startswith("blk.") and t.ndim == 2}
    assert set(matrix.entries) == weights
    assert (matrix.chunk_count, matrix.chunk_size, matrix.datasets) == (5, 128, ["g.txt"])
    assert all(e.counts.tolist() == [640] for e in matrix.entries.values())
    # By hand: the embeddings, normalised, go into the first block's q.
    vocabulary, runner = Vocabulary(model), Runner(model)
    ids = vocabulary.encode(text)[:640].reshape(5, 128).copy()
    ids[:, 0] = vocabulary.bos
    table = runner.model.model.embed_tokens.weight.detach().numpy()
    norm = runner.model.model.layers[0].input_layernorm
    x = table[ids.reshape(-1)].astype(np.float64)
    x *= norm.weight.detach().numpy() / np.sqrt((x * x).mean(axis=1, keepdims=True) + norm.variance_epsilon)
    for name in ("attn_q", "attn_k", "attn_v"):
        np.testing.assert_allclose(matrix.entries[f"blk.0.{name}.weight"].sums[0], (x * x).sum(axis=0), rtol=1e-4)
    # Stopped after two windows and gone on with, it is the same.
    part = tmp_path / "part.gguf"
    collect(model, text, dataset="g.txt", n_ctx=128, windows=2, save=part)
    resumed = collect(model, text, dataset="g.txt", n_ctx=128, windows=5, save=part, resume=True)
    assert (resumed.chunk_count, resumed.datasets) == (5, ["g.txt"])
    for name, entry in matrix.entries.items():
        assert resumed.entries[name].counts.tolist() == [640]
        np.testing.assert_allclose(resumed.entries[name].sums, entry.sums, rtol=1e-5)
    with pytest.raises(ggufx.GGUFError, match="it can't be gone on with"):
        collect(model, text, dataset="other.txt", n_ctx=128, save=part, resume=True)


@torch_there
@pytest.mark.filterwarnings("default")
def test_command_and_its_use(model, tmp_path, capsys):
    out = str(tmp_path / "m.dat")
    options = ["--text", str(TEXT), "-c", "128", "--windows", "3"]
    assert main(["imatrix", str(model), *options, "-o", out, "--save-every", "1"]) == 0
    assert "14 tensors, 3 windows" in capsys.readouterr().out
    assert main(["imatrix", str(model), *options, "--in-file", out, "-o", str(tmp_path / "two.gguf")]) == 0
    assert load(tmp_path / "two.gguf").chunk_count == 6
    assert main(["quantize", str(model), str(tmp_path / "q4.gguf"), "Q4_0", "--imatrix", out]) == 0
