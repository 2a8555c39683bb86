"""Quantized checkpoints: the values their codes stand for, and blocks that hold the same values."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_checkpoints import checkpoint, vectors, weights, write_safetensors

import ggufx
from ggufx.convert.regroup import Grouped, block_type, blocks_of, e4m3, unpack

PARTS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
Tensors = dict[str, tuple[str, tuple[int, ...], bytes]]


def words(codes: np.ndarray, bits: int, axis: int) -> np.ndarray:
    """Codes in 32-bit words, one after the other in a stream of bits."""
    stream = np.moveaxis(codes, axis, 0).astype(np.uint8)
    flat = np.unpackbits(stream[..., None], axis=-1, count=bits, bitorder="little")  # (n, ..., bits)
    flat = np.moveaxis(flat, -1, 1).reshape(-1, *stream.shape[1:])
    packed = np.packbits(flat, axis=0, bitorder="little")
    packed = np.moveaxis(packed.reshape(-1, 4, *stream.shape[1:]), 1, -1)
    return np.moveaxis(np.ascontiguousarray(packed).view("<i4")[..., 0], 0, axis)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("axis", [0, 1])
def test_codes_come_out_of_words(bits: int, axis: int) -> None:
    codes = np.random.default_rng(bits).integers(0, 1 << bits, (64, 96))
    assert np.array_equal(unpack(words(codes, bits, axis), bits, axis, codes.shape[axis]), codes)


@pytest.mark.parametrize(
    ("low", "high", "group", "wanted"),
    [(-2, 1, 64, "Q2_0"), (-2, 1, 32, "Q4_0"), (-8, 7, 128, "Q4_0"), (-15, 15, 32, "Q5_0"), (-128, 127, 96, "Q8_0")],
)
def test_blocks_hold_the_same_values(low: int, high: int, group: int, wanted: str) -> None:
    rng = np.random.default_rng(1)
    codes = rng.integers(low, high + 1, (6, group * 4)).astype(np.int16)
    codes[0, :2] = low, high
    scales = (rng.random((6, 4)) * 0.1).astype(np.float16).astype(np.float32)
    grouped = Grouped(codes, scales)
    qtype, _ = block_type(low, high, group, scales)
    assert qtype is not None
    assert qtype.name == wanted
    decoded = ggufx.dequantize(blocks_of(grouped, qtype), qtype)
    assert np.array_equal(decoded, grouped.values())
    assert np.array_equal(grouped.values(), codes * np.repeat(scales, group, axis=1))


def test_what_no_block_holds() -> None:
    halves = np.full((1, 1), 0.5, np.float32)
    assert block_type(-8, 7, 32, halves * np.float32(1.0001)) == (
        None,
        "its scale 0.500050008 is no half-precision number",
    )
    assert block_type(-8, 7, 48, halves) == (None, "groups of 48 aren't whole blocks of 32")
    assert block_type(-255, 255, 32, halves) == (None, "codes from -255 to 255 fit no type's")
    assert block_type(-8, 7, 32, np.full((1, 1), 1e6, np.float32))[0] is None


def test_eight_bit_floats() -> None:
    values = e4m3(np.arange(256, dtype=np.uint8))
    assert values[:4].tolist() == [0, 2**-9, 2**-8, 3 * 2**-9]
    assert (values[0x38], values[0x7E], values[0xFE]) == (1, 448, -448)
    assert np.isnan(values[[0x7F, 0xFF]]).all()
    assert np.isnan(values).sum() == 2


def plain(folder: Path) -> dict[str, np.ndarray]:
    """The small Llama's tensors as float32."""
    entry = vectors()["checkpoints"]["tiny-llama-bf16"]
    return {n: np.frombuffer(weights(n, "F32", tuple(s)), np.float32).reshape(s) for n, _, s in entry["tensors"]}


def coded(rows: int, columns: int, bits: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes, zero points and scales of groups of 32."""
    rng = np.random.default_rng(seed)
    scales = (rng.random((rows, columns // 32)) * 0.01).astype(np.float16)
    return rng.integers(0, 1 << bits, (rows, columns)), rng.integers(1, 1 << bits, (rows, columns // 32)), scales


def gptq(folder: Path, bits: int, *, symmetric: bool, order: bool = False) -> dict[str, np.ndarray]:
    """Turn the small Llama into a GPTQ checkpoint; returns the values its weights stand for."""
    tensors: Tensors = {}
    values = {}
    for seed, (name, array) in enumerate(plain(folder).items()):
        stem = name.removesuffix(".weight")
        if not stem.endswith(PARTS):
            tensors[name], values[name] = ("F32", array.shape, array.tobytes()), array
            continue
        codes, zeros, scales = coded(*array.shape, bits, seed)
        if symmetric:
            zeros[:] = 1 << (bits - 1)
        groups = np.arange(array.shape[1]) // 32
        if order:
            groups = np.random.default_rng(seed).permutation(groups)
        values[name] = ((codes - zeros[:, groups]) * scales[:, groups].astype(np.float32)).astype(np.float32)
        for end, dtype, part in (
            ("qweight", "I32", words(codes.T, bits, 0)),
            ("qzeros", "I32", words(zeros.T - 1, bits, 1)),
            ("scales", "F16", scales.T),
            ("g_idx", "I32", groups.astype("<i4")),
        ):
            tensors[f"{stem}.{end}"] = (dtype, part.shape, np.ascontiguousarray(part).tobytes())
    write_safetensors(folder / "model.safetensors", tensors)
    said = {"quant_method": "gptq", "bits": bits, "group_size": 32, "sym": symmetric, "desc_act": order}
    configure(folder, said)
    return values


def configure(folder: Path, said: dict[str, Any]) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": said}))


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return checkpoint("tiny-llama-bf16", tmp_path)


def permuted(values: np.ndarray, heads: int) -> np.ndarray:
    return values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)


@pytest.mark.parametrize(
    ("bits", "symmetric", "wanted"), [(4, True, "Q4_0"), (4, False, "Q5_0"), (3, False, "Q4_0"), (8, True, "Q8_0")]
)
def test_auto_keeps_the_values(llama: Path, bits: int, symmetric: bool, wanted: str, tmp_path: Path) -> None:
    values = gptq(llama, bits, symmetric=symmetric)
    with pytest.warns(ggufx.GGUFWarning, match="into F16"):  # what isn't quantized is float32 here
        ggufx.convert(llama, tmp_path / "out.gguf", sync=False)
    with ggufx.open(tmp_path / "out.gguf") as f:
        down, query = f["blk.1.ffn_down.weight"], f["blk.0.attn_q.weight"]
        assert {down.qtype.name, query.qtype.name} == {wanted}
        assert np.array_equal(down.dequantize(), values["model.layers.1.mlp.down_proj.weight"])
        assert np.array_equal(query.dequantize(), permuted(values["model.layers.0.self_attn.q_proj.weight"], 4))
        assert f.metadata["general.file_type"] == ggufx.FileType.parse(wanted)


def test_a_named_type_decodes_and_says_so(llama: Path, tmp_path: Path) -> None:
    values = gptq(llama, 4, symmetric=False, order=True)
    with pytest.warns(ggufx.GGUFWarning, match="decoded and rounded to F16"):
        ggufx.convert(llama, tmp_path / "half.gguf", "f16", sync=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # float32 holds them all
        ggufx.convert(llama, tmp_path / "out.gguf", "f32", sync=False)
    with ggufx.open(tmp_path / "out.gguf") as f:
        assert np.array_equal(f["blk.1.ffn_down.weight"].data, values["model.layers.1.mlp.down_proj.weight"])


def test_the_order_of_activations_is_refused_by_name(llama: Path, tmp_path: Path) -> None:
    gptq(llama, 4, symmetric=True, order=True)
    with pytest.raises(ggufx.GGUFError, match=r"down_proj\.qweight' can't be kept without loss: .*g_idx"):
        ggufx.convert(llama, tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()


def test_floats_of_eight_bits_in_blocks(llama: Path, tmp_path: Path) -> None:
    tensors: Tensors = {}
    values = {}
    rng = np.random.default_rng(1)
    for name, array in plain(llama).items():
        if not name.removesuffix(".weight").endswith(PARTS):
            tensors[name] = ("F32", array.shape, array.tobytes())
            continue
        codes = rng.integers(0, 256, array.shape, dtype=np.uint8)
        codes[codes & 127 == 127] = 0
        scales = rng.random(tuple(-(-n // 48) for n in array.shape), np.float32)
        wide = np.repeat(np.repeat(scales, 48, 0), 48, 1)[: array.shape[0], : array.shape[1]]
        values[name] = e4m3(codes) * wide
        tensors[name] = ("F8_E4M3", array.shape, codes.tobytes())
        tensors[f"{name}_scale_inv"] = ("F32", scales.shape, scales.tobytes())
    write_safetensors(llama / "model.safetensors", tensors)
    configure(llama, {"quant_method": "fp8", "weight_block_size": [48, 48]})
    ggufx.convert(llama, tmp_path / "out.gguf", "f32", sync=False)
    with ggufx.open(tmp_path / "out.gguf") as f:
        for part in ("gate_proj", "down_proj"):
            name = f"blk.0.ffn_{part.removesuffix('_proj')}.weight"
            assert np.array_equal(f[name].data, values[f"model.layers.0.mlp.{part}.weight"])


def test_eight_bit_floats_as_q8_0(llama: Path, tmp_path: Path) -> None:
    tensors: Tensors = {}
    for name, array in plain(llama).items():
        if not name.removesuffix(".weight").endswith(PARTS):
            tensors[name] = ("F32", array.shape, array.tobytes())
            continue
        tensors[name] = ("F8_E4M3", array.shape, np.full(array.shape, 0x38, np.uint8).tobytes())
        tensors[f"{name}_scale_inv"] = ("F32", (1, 1), np.float32(0.5).tobytes())
    write_safetensors(llama / "model.safetensors", tensors)
    configure(llama, {"quant_method": "fp8", "weight_block_size": [128, 128]})
    with pytest.warns(ggufx.GGUFWarning, match="decoded and rounded"):
        ggufx.convert(llama, tmp_path / "out.gguf", "f16", fp8_as_q8=True, sync=False)
    with ggufx.open(tmp_path / "out.gguf") as f:
        assert {n: t.qtype.name for n, t in f.tensors.items() if "ffn_up" in n} == {
            "blk.0.ffn_up.weight": "Q8_0",
            "blk.1.ffn_up.weight": "Q8_0",
        }
        assert f["token_embd.weight"].qtype.name == "F16"
        assert np.allclose(f["blk.1.attn_q.weight"].dequantize(), 0.5, rtol=1e-3)


@pytest.mark.parametrize("maker", ["modelopt", "compressed-tensors"])
def test_nvfp4_stays_as_it_is(maker: str, llama: Path, tmp_path: Path) -> None:
    tensors: Tensors = {}
    values, factors = {}, {}
    rng = np.random.default_rng(1)
    one_half = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
    theirs = maker == "modelopt"
    for name, array in plain(llama).items():
        stem = name.removesuffix(".weight")
        if not stem.endswith(("q_proj", "up_proj")):
            tensors[name] = ("F32", array.shape, array.tobytes())
            continue
        rows, columns = array.shape
        codes = rng.integers(0, 16, array.shape, dtype=np.uint8)
        scales = rng.integers(0x20, 0x60, (rows, columns // 16), dtype=np.uint8)
        factor = np.float32(rng.random() + 0.25)
        factors[name] = factor
        values[name] = one_half[codes] * np.repeat(e4m3(scales), 16, axis=1)
        packed = codes[:, ::2] | codes[:, 1::2] << 4
        tensors[name if theirs else f"{name}_packed"] = ("U8", packed.shape, packed.tobytes())
        tensors[f"{name}_scale"] = ("F8_E4M3", scales.shape, scales.tobytes())
        stored = factor if theirs else np.float32(1) / factor
        tensors[f"{name}_scale_2" if theirs else f"{name}_global_scale"] = ("F32", (1,), stored.tobytes())
        tensors[f"{stem}.input_scale" if theirs else f"{stem}.input_global_scale"] = (
            "F32",
            (1,),
            np.float32(1).tobytes(),
        )
    write_safetensors(llama / "model.safetensors", tensors)
    settings = {"format": "nvfp4-pack-quantized", "config_groups": {"g": {"weights": {"num_bits": 4}}}}
    configure(llama, {"quant_method": maker, "quant_algo": "NVFP4"} if theirs else {"quant_method": maker, **settings})
    ggufx.convert(llama, tmp_path / "out.gguf", "f16", sync=False)
    with ggufx.open(tmp_path / "out.gguf") as f:
        assert f.metadata["general.file_type"] == 39
        assert "blk.0.attn_q.input_scale" not in f.tensors  # which is one
        for name, target in (("self_attn.q_proj", "attn_q"), ("mlp.up_proj", "ffn_up")):
            wanted = values[f"model.layers.1.{name}.weight"]
            wanted = permuted(wanted, 4) if "q_proj" in name else wanted
            assert f[f"blk.1.{target}.weight"].qtype.name == "NVFP4"
            assert np.array_equal(f[f"blk.1.{target}.weight"].dequantize(), wanted)
            scale = f[f"blk.1.{target}.scale"].data
            assert np.allclose(scale, factors[f"model.layers.1.{name}.weight"], rtol=1e-6)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"quant_method": "aqlm"}, "'aqlm', which isn't known"),
        ({"quant_method": "gptq", "bits": 5, "group_size": 32}, "5 bits isn't known"),
        ({"quant_method": "gptq", "bits": 4, "group_size": "32"}, "group_size is '32'"),
        ({"quant_method": "gptq", "bits": 8, "group_size": 32}, "has shape"),
        ({"quant_method": "fp8"}, "but none is"),
        (
            {"quant_method": "compressed-tensors", "format": "sparse", "config_groups": {"g": {"weights": {}}}},
            "'sparse'",
        ),
    ],
)
def test_formats_that_are_not_known(llama: Path, said: dict[str, Any], message: str, tmp_path: Path) -> None:
    gptq(llama, 4, symmetric=True)
    configure(llama, said)
    with pytest.raises(ggufx.GGUFError, match=message):
        ggufx.convert(llama, tmp_path / "out.gguf", "f32")
