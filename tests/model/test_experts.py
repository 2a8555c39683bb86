"""Experts, whichever way a file stores them: every value carries a label that tells which expert it belongs to."""

from __future__ import annotations

import ctypes
import mmap
import os
from itertools import pairwise

import gguf_bytes as gb
import numpy as np
import pytest
from gguf_bytes import File, Info
from labelled import add, q8_0

import ggufx
from ggufx import GGUFError
from ggufx.model.experts import MoE

OUT, IN, N = 6, 64, 4


def model(architecture="llama", n=N, top=2, **counts):
    file = File().add("general.architecture", gb.STRING, architecture.encode())
    file.add(f"{architecture}.expert_count", gb.U32, n).add(f"{architecture}.expert_used_count", gb.U32, top)
    for key, value in counts.items():
        file.add(f"{architecture}.{key}", gb.U32, value)
    return file


def stacked(kind=8, architecture="mixtral", blocks=(0, 1), extra=(), fused=False):
    """Stacks of non-square experts, as converters write them since 2024."""
    file, values = model(architecture, expert_shared_count=1), {}
    for block in blocks:
        parts = {"gate_up": (N, 2 * OUT, IN)} if fused else {"gate": (N, OUT, IN), "up": (N, OUT, IN)}
        parts["down"] = (N, IN, 2 * 32)
        for part, shape in parts.items():
            values[block, part] = add(file, f"blk.{block}.ffn_{part}_exps.weight", shape, kind) + 0
        for name, shape in extra:
            values[block, name] = add(file, f"blk.{block}.{name}", shape, 0)
    return file, values


def separate(kind=8):
    """One tensor for each expert, as Mixtral files of early 2024 have them; in no useful order."""
    file, values = model("llama"), {}
    file.tensor("token_embd.weight", (4, 32), 0)
    for k in (2, 0, 3, 1):
        for part, shape in (("down", (IN, 32)), ("gate", (OUT, IN)), ("up", (OUT, IN))):
            whole = np.stack([add(File(), "x", shape, 0) + e for e in range(N)])
            values[0, part] = whole
            raw = q8_0(whole[k]) if kind == 8 else whole[k].astype("<f4").tobytes()
            file.tensor(f"blk.0.ffn_{part}.{k}.weight", shape, kind, raw)
    return file, values


LAYOUTS = {
    "stacked q8": lambda: stacked(8),
    "stacked f16": lambda: stacked(
        1, "qwen2moe", extra=[("ffn_gate_inp.weight", (N, IN)), ("ffn_up_shexp.weight", (OUT, IN))]
    ),
    "stacked q4, gpt-oss biases": lambda: stacked(
        2,
        "gpt-oss",
        extra=[("ffn_up_exps.bias", (N, OUT)), ("ffn_down_exps.bias", (N, IN)), ("exp_probs_b.bias", (N,))],
    ),
    "fused gate and up": lambda: stacked(8, "granitemoe", fused=True),
    "per-expert scales": lambda: stacked(8, "llama4", extra=[("ffn_up_exps.scale", (N,))]),
    "dense first block": lambda: stacked(8, "deepseek2", blocks=(1, 2)),
    "one tensor each q8": lambda: separate(8),
    "one tensor each f32": lambda: separate(0),
}  # fmt: skip


@pytest.mark.parametrize("mode", ["r", "read"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout(tmp_path, layout, mode):
    file, values = LAYOUTS[layout]()
    with ggufx.open(file.write(tmp_path / "m.gguf"), mode=mode) as f:
        moe = f.moe
        assert moe
        assert (moe.n_expert, moe.top_k) == (N, 2)
        assert moe.architecture == f.metadata["general.architecture"]
        assert list(moe) == sorted({block for block, _ in values})
        weights = {"gate", "up", "down", "gate_up"}
        for (block, part), value in values.items():
            name = part if part in weights else part.removeprefix("ffn_").replace("_exps", "").removesuffix(".weight")
            layer = moe[block]
            assert layer.n_expert == N
            if name not in layer:
                where = layer.shared if "shexp" in part else layer.router
                assert (where[part].dequantize() == value).all()
                continue
            stack = layer[name]
            assert stack.shape == value.shape
            assert len(stack) == N
            for k in range(N):
                assert stack[k].shape == value.shape[1:]
                assert (stack[k].dequantize() == value[k]).all()
                assert (layer.expert(k)[name].dequantize() == value[k]).all()
            assert (stack[-1].dequantize() == value[-1]).all()
            assert len(stack[1:3]) == 2
            for chosen in ([2, 0], [1], [3, 3, 0, 1], np.array([0, 3])):
                assert (stack.decode(chosen) == value[chosen]).all()
                half = stack.decode(chosen, dtype="float16", threads=1)
                assert half.dtype == np.float16
                assert (half == value[chosen]).all()
            for bad in (N, -N - 1):
                with pytest.raises(IndexError, match=str(N)):
                    stack[bad]
                with pytest.raises(IndexError):
                    stack.decode([bad])
            with pytest.raises(IndexError):
                stack.decode([-1])
            with pytest.raises(ValueError, match="shape"):
                stack.decode([0, 1], out=np.empty((3, *value.shape[1:]), np.float32))
        layer = moe[next(iter(moe))]
        assert f.moe is moe
        decoded = layer.decode([3, 1])
        ends = sorted((array.ctypes.data, array.ctypes.data + array.nbytes) for array in decoded.values())
        assert all(0 <= b[0] - a[1] < 64 for a, b in pairwise(ends)), "one buffer, nothing overlaps"
        again = layer.decode([0, 2], out=decoded)
        assert again is decoded
        for part, array in decoded.items():
            assert (array == layer[part].decode([0, 2])).all()
        with pytest.raises(ValueError, match="parts"):
            layer.decode([0], out={"x": np.empty(3)})


def test_expert_and_experts_of_a_tensor(tmp_path):
    file, values = stacked(8, extra=[("ffn_up_exps.bias", (N, OUT)), ("ffn_gate.weight", (N, IN))])
    with ggufx.open(file.write(tmp_path / "m.gguf")) as f:
        up = f["blk.0.ffn_up_exps.weight"]
        assert up.expert(2).shape == (OUT, IN)
        assert (up.expert(2).dequantize() == values[0, "up"][2]).all()
        assert (up.expert(2).rows(1, 3).dequantize() == values[0, "up"][2, 1:3]).all()
        out = np.empty((2, OUT, IN), np.float32)
        assert up.experts([3, 0], out=out) is out
        assert (out == values[0, "up"][[3, 0]]).all()
        bias = f["blk.0.ffn_up_exps.bias"]
        assert (bias.expert(1).dequantize() == values[0, "ffn_up_exps.bias"][1]).all()
        for bad in (4, -1):
            with pytest.raises(IndexError, match="experts 0 to 3"):
                up.expert(bad)
        with pytest.raises(IndexError, match="experts 0 to 3"):
            up.experts([0, -1])
        plain = f["blk.0.ffn_gate.weight"]
        for use in (lambda: plain.expert(0), lambda: plain.experts([0])):
            with pytest.raises(GGUFError, match=r"'blk\.0\.ffn_gate\.weight'.*isn't a stack of experts"):
                use()


@pytest.mark.parametrize("layout", ["stacked q8", "one tensor each q8"])
def test_out_of_another_kind(tmp_path, layout):
    """Each expert's part of a wrong array can be right."""
    file, _ = LAYOUTS[layout]()
    with ggufx.open(file.write(tmp_path / "m.gguf")) as f:
        stack = f.moe[0]["up"]
        shape = (2, *stack.shape[1:])
        double = np.full((4, *stack.shape[1:]), 7, np.float32)
        for out, error, match in (
            (double[::2], ValueError, "C-contiguous"),
            (double[1::-1], ValueError, "C-contiguous"),
            (np.empty(shape), TypeError, "float64"),
            (np.empty((3, *stack.shape[1:]), np.float32), ValueError, "shape"),
            ([1, 2], TypeError, "numpy array"),
        ):
            with pytest.raises(error, match=match):
                stack.decode([0, 1], out=out)
        with pytest.raises(IndexError):
            stack.decode([0, 9], out=double[:2])
        assert (double == 7).all()
        with pytest.raises(TypeError, match="float64"):
            stack.decode([], out=np.empty((0, *stack.shape[1:])))
        assert stack.decode([], dtype=np.float16).shape == (0, *stack.shape[1:])


def test_one_row_experts_and_256_of_them(tmp_path):
    file = model(n=256)
    values = add(file, "blk.0.ffn_up_exps.weight", (256, 1, 32), 8)
    with ggufx.open(file.write(tmp_path / "m.gguf")) as f:
        stack = f.moe[0]["up"]
        assert len(stack) == 256
        for k in (0, 1, 127, 128, 255):
            assert (stack[k].dequantize() == values[k]).all()
        chosen = np.arange(255, -1, -5, dtype=np.uint8)
        assert (stack.decode(chosen) == values[chosen]).all()


def test_expert_that_is_no_whole_number_of_blocks(tmp_path):
    """A quantized row of per-expert scales can't be cut; the message says why."""
    file = model(n=32).tensor("blk.0.ffn_up_exps.scale", (32,), 8)
    with ggufx.open(file.write(tmp_path / "m.gguf")) as f:
        scale = f["blk.0.ffn_up_exps.scale"]
        with pytest.raises(GGUFError, match=r"'blk\.0\.ffn_up_exps\.scale'.*blocks of 32"):
            scale.expert(3)
        with pytest.raises(GGUFError, match="one row of blocks of 32"):
            scale.experts([3])
    file = model()
    file.infos.append(Info(b"blk.0.ffn_up_exps.weight", [48, 2, 4], 8, 0))
    with pytest.raises(GGUFError, match="rows of 48 values, not a whole number of blocks of 32"):
        ggufx.open(file.write(tmp_path / "m.gguf"))


def test_models_that_contradict_themselves(tmp_path):
    file, _ = separate()
    del file.infos[4:7]
    with (
        ggufx.open(file.write(tmp_path / "m.gguf")) as f,
        pytest.raises(GGUFError, match=r"block 0 lacks the (down|gate|up) tensor of expert 0"),
    ):
        f.moe  # noqa: B018
    file = model(n=8)
    add(file, "blk.0.ffn_up_exps.weight", (4, 2, 32), 0)
    with (
        ggufx.open(file.write(tmp_path / "m.gguf")) as f,
        pytest.raises(GGUFError, match=r"holds 4 experts.*expert_count = 8"),
    ):
        f.moe  # noqa: B018
    file = model(n=4)
    add(file, "blk.0.ffn_up_exps.weight", (4, 2, 32), 0)
    add(file, "blk.0.ffn_down_exps.weight", (3, 2, 32), 0)
    with ggufx.open(file.write(tmp_path / "m.gguf")) as f, pytest.raises(GGUFError, match="different numbers"):
        f.moe  # noqa: B018
    file = model(n=1 << 31)
    file.tensor("blk.0.ffn_up.999999.weight", (2, 32), 0)
    with ggufx.open(file.write(tmp_path / "m.gguf")) as f, pytest.raises(GGUFError, match="expert 0"):
        f.moe  # noqa: B018


def test_second_stacks_have_their_own_count(tmp_path):
    file = model("grovemoe", n=4)
    add(file, "blk.0.ffn_up_exps.weight", (4, 2, 32), 0)
    values = add(file, "blk.0.ffn_up_chexps.weight", (2, 2, 32), 0)
    with ggufx.open(file.write(tmp_path / "m.gguf")) as f:
        assert (f.moe[0].chunked["up"][1].dequantize() == values[1]).all()


def test_dense_model(tmp_path):
    file = File().add("general.architecture", gb.STRING, b"llama").tensor("blk.0.ffn_up.weight", (4, 32), 0)
    with ggufx.open(file.write(tmp_path / "m.gguf")) as f:
        assert isinstance(f.moe, MoE)
        assert not f.moe
        assert len(f.moe) == f.moe.n_expert == 0
        assert f.moe.top_k is None


def resident(array):
    """Which pages of an array's memory the system holds, by mincore(2)."""
    start = array.ctypes.data & -mmap.PAGESIZE
    pages = (array.ctypes.data + array.nbytes - start + mmap.PAGESIZE - 1) // mmap.PAGESIZE
    found = (ctypes.c_ubyte * pages)()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mincore(ctypes.c_void_p(start), ctypes.c_size_t(pages * mmap.PAGESIZE), found):
        raise OSError(ctypes.get_errno(), "mincore")
    return np.frombuffer(found, np.uint8) & 1


@pytest.mark.skipif(not hasattr(mmap, "MADV_RANDOM"), reason="needs madvise and mincore")
def test_only_the_chosen_experts_are_read(tmp_path):
    """2 of 8 experts of a sparse file of 8 GiB: a quarter of the pages of an eighth-by-eighth reading, and no more."""
    file = model(n=8)
    out, width = 1 << 12, 1 << 10
    file.infos.append(Info(b"blk.0.ffn_up_exps.weight", [width, out, 8], 8, 0))
    file.infos.append(Info(b"filler", [1 << 31], 0, 8 * out * width // 32 * 34))
    path = file.write(tmp_path / "m.gguf")
    size = file.infos[1].offset + (1 << 33)
    os.truncate(path, len(file.bytes()) + size)
    with ggufx.open(path) as f:
        up = f["blk.0.ffn_up_exps.weight"]
        whole = up.packed()
        up.advise("random")
        assert resident(whole).sum() <= 16
        buffer = np.empty((2, out, width), np.float32)
        up.experts([6, 1], out=buffer, threads=1)
        pages = resident(whole)
        each = whole.nbytes // 8 / mmap.PAGESIZE
        assert abs(pages.sum() - 2 * each) <= 16
        for k in range(8):
            part = pages[int(k * each) + 2 : int((k + 1) * each) - 2]
            assert part.all() if k in (1, 6) else not part[8:-8].any()
        up.experts(range(8), out=np.empty((8, out, width), np.float32), threads=1)
        assert resident(whole).all()
