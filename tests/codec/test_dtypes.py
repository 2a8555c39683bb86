"""Dtypes, torch tensors and file tensors by whatever names and forms people have them in."""

from pathlib import Path

import numpy as np
import pytest

import ggufx
from ggufx import QType
from ggufx.cli import main

SAMPLE = Path(ggufx.__file__).parent / "sample.gguf"
BLOCKS = ggufx.quantize(np.linspace(-2, 2, 64, dtype=np.float32), "Q8_0")
NAMES = {
    "float32": ("f32", "fp32", "F32", "torch.float32", "<f4", "float32"),
    "float16": ("f16", "fp16", "FP16", "torch.float16", "f2", "half"),
    "bfloat16": ("bf16", "BF16", "torch.bfloat16", "BFloat16"),
}


def assert_same(a, b):
    assert a.dtype == b.dtype
    assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize(("name", "spelling"), [(n, s) for n, spellings in NAMES.items() for s in spellings])
def test_names(name, spelling, tmp_path):
    want = ggufx.dequantize(BLOCKS, QType.Q8_0, dtype=name)
    assert_same(ggufx.dequantize(BLOCKS, QType.Q8_0, dtype=spelling), want)
    assert_same(ggufx.dequantize(BLOCKS, QType.Q8_0, dtype=spelling, out=np.empty_like(want)), want)
    with ggufx.open(SAMPLE) as f:
        t = f["token_embd.weight"]
        assert_same(t.dequantize(spelling), t.dequantize(name))
        assert_same(t.take([1, 2], dtype=spelling), t.take([1, 2], dtype=name))
        assert_same(f.layers()[0].dequantize(spelling)["attn_q.weight"], f["blk.0.attn_q.weight"].dequantize(name))
    want = ggufx.load(SAMPLE, name)
    got = ggufx.load(SAMPLE, spelling)
    assert want.keys() == got.keys()
    for key in want:
        assert_same(got[key], want[key])


def test_command_line(tmp_path):
    for name in ("bf16", "bfloat16"):
        assert main(["decode", str(SAMPLE), "-o", str(tmp_path / f"{name}.npz"), "--dtype", name]) == 0
    assert (tmp_path / "bf16.npz").read_bytes() == (tmp_path / "bfloat16.npz").read_bytes()


@pytest.mark.parametrize("wrong", ["float64", "f64", "int8", "quarter", "torch.int8", object()])
def test_what_nothing_is_decoded_to(wrong):
    with pytest.raises(TypeError, match="float32, float16 or bfloat16"):
        ggufx.dequantize(BLOCKS, QType.Q8_0, dtype=wrong)
    with pytest.raises(TypeError, match="float32, float16 or bfloat16"):
        ggufx.load(SAMPLE, wrong)


def test_a_file_tensor_brings_its_type():
    with ggufx.open(SAMPLE) as f:
        for t in f.values():
            want = t.dequantize()
            assert_same(ggufx.dequantize(t), want)
            assert_same(ggufx.dequantize(t, t.qtype, threads=1, path="numpy"), want)
        t = f["blk.0.attn_q.weight"]
        assert_same(ggufx.dequantize(t, dtype="f16"), t.dequantize("float16"))
        with pytest.raises(ValueError, match=r"blk\.0\.attn_q\.weight' isn't TQ1_0; leave qtype out"):
            ggufx.dequantize(t, "TQ1_0")
    with pytest.raises(ggufx.GGUFError, match="closed"):
        ggufx.dequantize(t)
    with pytest.raises(TypeError, match="needs qtype"):
        ggufx.dequantize(BLOCKS)


# --- torch -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="torch isn't installed")


def test_torch_dtypes(torch):
    for name in NAMES:
        dtype = getattr(torch, name)
        assert_same(ggufx.dequantize(BLOCKS, QType.Q8_0, dtype=dtype), ggufx.dequantize(BLOCKS, QType.Q8_0, dtype=name))
    with pytest.raises(TypeError, match="float32, float16 or bfloat16"):
        ggufx.dequantize(BLOCKS, QType.Q8_0, dtype=torch.float64)
    ids = ggufx.dequantize(np.arange(4, dtype=np.uint8), QType.I8, dtype=torch.int8)
    assert ids.dtype == np.int8


def test_names_in_the_torch_module(torch):
    from ggufx.torch import load_file, safe_open, to_torch

    with ggufx.open(SAMPLE) as f:
        want = to_torch(f["blk.0.attn_q.weight"], dtype=torch.bfloat16)
        assert torch.equal(to_torch(f["blk.0.attn_q.weight"], dtype="bf16"), want)
        out = torch.empty_like(want)
        assert to_torch(f["blk.0.attn_q.weight"], dtype="bfloat16", out=out) is out
    assert torch.equal(load_file(SAMPLE, dtype="bf16")["blk.0.attn_q.weight"], want)
    with safe_open(SAMPLE, dtype="bf16") as f:
        part = f.get_slice("blk.0.attn_q.weight")
        assert part.get_dtype() == "BF16"
        assert torch.equal(part[:1], want[:1])
    with safe_open(SAMPLE, "np") as f:
        kinds = {f.get_slice(name).get_dtype() for name in f.keys()}  # noqa: SIM118 - safetensors' interface
        assert "F32" in kinds
    with pytest.raises(TypeError, match=r"torch\.float32, torch\.float16 or torch\.bfloat16, not int8"):
        load_file(SAMPLE, dtype="int8")


def test_torch_tensors_are_arrays(torch, tmp_path):
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(1))
    half, brain = x.half(), x.bfloat16()
    for given, values in (
        (x, x),
        (torch.nn.Parameter(x), x),
        (half, half),
        (brain, brain),
        (x.t().contiguous().t(), x),
    ):
        assert_same(ggufx.quantize(given, "Q4_0"), ggufx.quantize(values.float().numpy(), "Q4_0"))
    blocks = torch.from_numpy(ggufx.quantize(x, "Q4_0"))
    assert_same(ggufx.dequantize(blocks, "Q4_0"), ggufx.dequantize(blocks.numpy(), "Q4_0"))
    path = tmp_path / "t.gguf"
    tensors = {"f": x, "h": half, "b": torch.nn.Parameter(brain), "i": torch.arange(3, dtype=torch.int32), "s": x.t()}
    ggufx.write(path, {}, tensors)
    with ggufx.open(path) as f:
        assert [t.qtype.name for t in f.values()] == ["F32", "F16", "BF16", "I32", "F32"]
        for name, want in tensors.items():
            got = f[name].to_torch(dtype=want.dtype if want.is_floating_point() else None)
            assert torch.equal(got, want)


def test_torch_tensors_that_are_none(torch):
    x = torch.zeros(32)
    for wrong, match in (
        (x.to("meta"), "on meta; move it to the CPU"),
        (x.reshape(1, 32).to_sparse(), "make it dense"),
        (x.to(torch.float8_e4m3fn), "has no numpy form"),
    ):
        for call in (lambda w: ggufx.quantize(w, "Q4_0"), lambda w: ggufx.dequantize(w, "Q4_0")):
            with pytest.raises((TypeError, ValueError), match=match):
                call(wrong)


def test_save_file(torch, tmp_path):
    from ggufx.torch import load_file, save_file

    x = torch.randn(4, 64)
    save_file({"w": x, "b": x[0]}, tmp_path / "a.gguf", {"general.name": "n"})
    back = load_file(tmp_path / "a.gguf")
    assert torch.equal(back["w"], x)
    save_file({"w": x, "b": x[0]}, tmp_path / "q.gguf", qtype="q8_0")
    with ggufx.open(tmp_path / "q.gguf") as f:
        assert [t.qtype.name for t in f.values()] == ["Q8_0", "F32"]
    with ggufx.open(tmp_path / "a.gguf") as f:
        assert f.metadata["general.name"] == "n"
