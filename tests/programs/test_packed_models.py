"""Models of transformers whose weights stay packed: the results of decoded ones, from the file's own blocks."""

from __future__ import annotations

import pytest
from tiny_checkpoints import checkpoint, vectors

import ggufx

torch = pytest.importorskip("torch", reason="torch (extra `torch`) is not installed")
pytest.importorskip("transformers", reason="transformers (extra `programs`) is not installed")
pytest.importorskip("gguf", reason="gguf (extra `test`) is not installed")
from ggufx.integrations.transformers import load  # noqa: E402
from ggufx.torch import Embedding, Linear  # noqa: E402

# Rows in their own order and with interleaved heads; tied and separate heads; norms that change; scaled embeddings.
MODELS = ("tiny-mistral", "tiny-qwen2", "tiny-gemma2", "tiny-gemma3", "tiny-stablelm")


@pytest.fixture(params=MODELS)
def path(request, tmp_path):
    made = tmp_path / f"{request.param}.gguf"
    pre = vectors()["checkpoints"][request.param].get("pre")
    ggufx.convert(checkpoint(request.param, tmp_path), made, "q8_0", pre=pre)
    return made


@pytest.fixture
def ids():
    return torch.tensor([[1, 5, 9, 17, 3, 40, 8, 2]])


def outputs(model, ids):
    with torch.no_grad():
        return model.eval()(ids).logits


@pytest.mark.filterwarnings("ignore")
def test_results(path, ids):
    decoded, packed = load(path), load(path, packed=True)
    report = packed.ggufx_packing
    assert report.packed
    assert not report.decoded, report.decoded
    modules = [m for m in packed.modules() if isinstance(m, (Linear, Embedding))]
    assert len(modules) == len(report.packed)
    want, got = outputs(decoded, ids), outputs(packed, ids)
    # Sums in another order: float32's rounding, layer after layer.
    assert (got - want).abs().max() <= 2e-5 * want.abs().max()
    greedy = {"max_new_tokens": 12, "do_sample": False}
    with torch.no_grad():
        assert torch.equal(packed.generate(ids, **greedy), decoded.generate(ids, **greedy))
    stored = sum(m.blocks.numel() for m in {m.blocks.data_ptr(): m for m in modules}.values())
    with ggufx.open(path) as f:
        assert stored == sum(t.nbytes for t in f.values() if t.ndim > 1)


@pytest.mark.filterwarnings("ignore")
def test_halves_and_tied_heads(tmp_path, ids):
    ggufx.convert(checkpoint("tiny-gemma3", tmp_path), tmp_path / "g.gguf", "q8_0", pre=None)
    packed = load(tmp_path / "g.gguf", packed=True, dtype="bf16")
    assert outputs(packed, ids).dtype == torch.bfloat16
    head, embedding = packed.get_output_embeddings(), packed.get_input_embeddings()
    assert head.blocks.data_ptr() == embedding.blocks.data_ptr()


@pytest.mark.filterwarnings("ignore")
def test_the_file_may_go(tmp_path, ids):
    """The map lives as long as the model."""
    ggufx.convert(checkpoint("tiny-mistral", tmp_path), tmp_path / "m.gguf", "q8_0")
    packed = load(tmp_path / "m.gguf", packed=True)
    want = outputs(packed, ids)
    (tmp_path / "m.gguf").unlink()
    assert torch.equal(outputs(packed, ids), want)
