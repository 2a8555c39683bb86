"""`ggufx validate`: every fault planted by hand is found and named; a good file has none."""

from __future__ import annotations

import json
import shutil
import struct

import gguf_bytes as gb
import numpy as np
import pytest

import ggufx
from ggufx.cli import main, sample
from ggufx.evaluate import validate
from ggufx.evaluate.blocks import SCALES
from ggufx.formats.tensor_types import QType

TOKENS = [b"<s>", b"a", b"b", b"c"]


def model(experts=0, arch="qwen2moe", blocks=2, tokens=TOKENS, **other):
    """A small whole model; `other` adds or replaces metadata keys (``__`` for a dot)."""
    keys = {
        "general.architecture": (gb.STRING, arch.encode()),
        f"{arch}.block_count": (gb.U32, blocks),
        f"{arch}.context_length": (gb.U32, 64),
        f"{arch}.embedding_length": (gb.U32, 64),
        "tokenizer.ggml.tokens": (gb.ARRAY, gb.Array(gb.STRING, tokens)),
        "tokenizer.ggml.bos_token_id": (gb.U32, 0),
    }
    if experts:
        keys |= {f"{arch}.expert_count": (gb.U32, experts), f"{arch}.expert_used_count": (gb.U32, 2)}
    keys |= {key.replace("__", "."): value for key, value in other.items()}
    file = gb.File()
    for key, value in keys.items():
        if value is not None:
            file.add(key, *value)
    rng = np.random.default_rng(1)

    def add(name, shape, kind=8):
        x = rng.standard_normal(shape).astype(np.float32)
        raw = ggufx.quantize(x, "Q8_0").tobytes() if kind == 8 else x.tobytes()
        file.tensor(name, shape, kind, raw)

    add("token_embd.weight", (len(tokens), 64))
    add("output.weight", (len(tokens), 64))
    for k in range(2):
        add(f"blk.{k}.attn_norm.weight", (64,), 0)
        add(f"blk.{k}.ffn_down.weight", (64, 64))
        if experts:
            add(f"blk.{k}.ffn_up_exps.weight", (experts, 32, 64))
    return file


def kinds(path, **options):
    return {f.kind: f for f in validate(path, **options).findings}


def test_good_files_have_no_findings(tmp_path):
    assert validate(model().write(tmp_path / "a.gguf")).findings == []
    assert validate(model(experts=4).write(tmp_path / "b.gguf")).findings == []
    with sample.path_or_sample(None) as path:
        assert validate(path).findings == []


I32 = gb.I32
METADATA = {
    "empty key": ({"": (gb.U32, 1)}, ""),
    "no architecture": ({"general.architecture": None}, "general.architecture"),
    "missing key": ({"qwen2moe.context_length": None}, "qwen2moe.context_length"),
    "add_bos without id": (
        {"tokenizer.ggml.bos_token_id": None, "tokenizer.ggml.add_bos_token": (gb.BOOL, 1)},
        "tokenizer.ggml.add_bos_token",
    ),
    "token id": ({"tokenizer.ggml.eos_token_id": (gb.U32, 4)}, "tokenizer.ggml.eos_token_id"),
    "vocabulary": (
        {"tokenizer.ggml.scores": (gb.ARRAY, gb.Array(gb.F32, [0.0] * 3))},
        "tokenizer.ggml.scores",
    ),
    "expert count": (
        {"qwen2moe.expert_count": (gb.U32, 2), "qwen2moe.expert_used_count": (gb.U32, 4)},
        "qwen2moe.expert_used_count",
    ),
    "split": ({"split.count": (gb.U16, 0), "split.tensors.count": (I32, 9)}, "split.tensors.count"),
}


@pytest.mark.parametrize("kind", METADATA)
def test_metadata(kind, tmp_path):
    keys, name = METADATA[kind]
    found = kinds(model(**keys).write(tmp_path / "m.gguf"))
    assert found[kind].name == name
    assert found[kind].severity == "error"
    assert name in found[kind].message


def test_no_token_is_a_token(tmp_path):
    file = model(**{"tokenizer.ggml.unknown_token_id": (gb.U32, 0xFFFFFFFF)})
    assert kinds(file.write(tmp_path / "m.gguf")) == {}


def test_token_twice(tmp_path):
    found = kinds(model(tokens=[b"<s>", b"a", b"b", b"a"]).write(tmp_path / "m.gguf"))["duplicate token"]
    assert "'a' is there twice, as 1 and as 3" in found.message


@pytest.mark.parametrize(("count", "said"), [(1, "there is a tensor 'blk.1."), (3, "no tensor of block 2 ")])
def test_block_count(count, said, tmp_path):
    assert said in kinds(model(blocks=count).write(tmp_path / "m.gguf"))["block count"].message


@pytest.mark.parametrize(("further", "found"), [(0, True), (1, False), (2, False)])
def test_layers_that_predict_further_tokens_may_be_missing(further, found, tmp_path):
    file = model(blocks=3, qwen2moe__nextn_predict_layers=(gb.U32, further))
    assert ("block count" in kinds(file.write(tmp_path / "m.gguf"))) == found


def test_or_alone(tmp_path):
    file = model(qwen2moe__nextn_predict_layers=(gb.U32, 1))
    file.infos = [i for i in file.infos if not i.name.startswith(b"blk.0")]
    assert "block count" not in kinds(file.write(tmp_path / "m.gguf"))


@pytest.mark.parametrize("arch", ["qwen2moe", "llama"])
def test_missing_head(arch, tmp_path):
    file = model(arch=arch)
    file.infos = [i for i in file.infos if i.name != b"output.weight"]
    assert ("missing head" in kinds(file.write(tmp_path / "m.gguf"))) == (arch == "qwen2moe")


def test_experts_that_are_not_there(tmp_path):
    found = kinds(model(experts=4, qwen2moe__expert_count=(gb.U32, 8)).write(tmp_path / "m.gguf"))["expert count"]
    assert found.name == "blk.0.ffn_up_exps.weight"


def test_gap_overlap_and_tail(tmp_path):
    file = model()
    file.infos[-1].offset += 64
    file.data += bytes(96)
    found = kinds(file.write(tmp_path / "gap.gguf"))
    assert "a gap of 64 bytes" in found["gap"].message
    assert found["trailing bytes"].severity == "warning"
    file = model()
    file.infos[-1].offset -= 64
    assert kinds(file.write(tmp_path / "overlap.gguf"))["overlap"].severity == "error"
    file = model()
    file.data = file.data[:-100]
    assert "outside" in kinds(file.write(tmp_path / "short.gguf"))


def plant(path, name, at, raw):
    """Overwrite bytes of a tensor in the file."""
    with ggufx.open(path) as f:
        start = f[name].offset + at
    with open(path, "r+b") as file:
        file.seek(start)
        file.write(raw)


def test_planted_blocks(tmp_path):
    path = model(experts=4).write(tmp_path / "m.gguf")
    stack = "blk.1.ffn_up_exps.weight"
    block = (2 * 32 + 5) * 2 + 1  # expert 2, row 5, its second block
    nan = struct.pack("<H", 0x7E00)
    plant(path, stack, block * 34, nan)
    plant(path, stack, (block + 2) * 34, nan)
    plant(path, "blk.0.ffn_down.weight", 34, struct.pack("<H", 0x7C00))
    plant(path, "blk.1.ffn_down.weight", 3 * 34, bytes(34))
    plant(path, "blk.0.attn_norm.weight", 4 * 40, struct.pack("<f", np.nan))
    plant(path, "token_embd.weight", 0, struct.pack("<e", 60000.0))
    found = validate(path, threads=2)
    assert not found.ok
    by_name = {f.name: f for f in found.findings if f.name != "token_embd.weight"}
    assert len(found.findings) == 4
    nan_scale = by_name[stack]
    assert (nan_scale.kind, nan_scale.expert, nan_scale.row, nan_scale.block) == ("nan scale", 2, 5, 1)
    assert nan_scale.count == 2
    assert "expert 2, row 5, block 1: scale d is NaN; so in 2 of 256 blocks" in nan_scale.message
    assert by_name["blk.0.ffn_down.weight"].kind == "infinite scale"
    assert (by_name["blk.0.ffn_down.weight"].row, by_name["blk.0.ffn_down.weight"].block) == (0, 1)
    assert by_name["blk.1.ffn_down.weight"].kind == "zero blocks"
    assert by_name["blk.1.ffn_down.weight"].severity == "warning"
    assert (by_name["blk.0.attn_norm.weight"].kind, by_name["blk.0.attn_norm.weight"].block) == ("nan value", 1)
    assert validate(path, values=False).findings == []


def test_huge_block(tmp_path):
    path = model().write(tmp_path / "m.gguf")
    plant(path, "blk.0.ffn_down.weight", 34 * 9, struct.pack("<e", 60000.0))
    found = kinds(path)["huge blocks"]
    assert (found.name, found.row, found.block) == ("blk.0.ffn_down.weight", 4, 1)


@pytest.mark.parametrize("qtype", SCALES, ids=lambda q: q.name)
def test_scales_of_every_type(qtype, tmp_path):
    with sample.path_or_sample(None) as path, ggufx.open(path) as f:
        names = [t.name for t in f.tensors.values() if t.qtype == qtype]
        shutil.copyfile(path, tmp_path / "m.gguf")
    if not names:
        pytest.skip(f"the sample has no {qtype.name}")
    for scale, offset, code in SCALES[qtype]:
        shutil.copyfile(path, tmp_path / "m.gguf")
        plant(tmp_path / "m.gguf", names[0], offset, np.array([np.nan], f"<{code}").tobytes())
        (found,) = (f for f in validate(tmp_path / "m.gguf").findings if f.severity == "error")
        assert (found.name, found.kind) == (names[0], "nan scale")
        assert f"scale {scale} is NaN" in found.message


def test_types_without_a_plain_scale():
    """What has no entry in the table is found by its values; a new type has to be thought of."""
    lacking = {q for q in QType if q.is_quantized} - set(SCALES)
    assert lacking == {QType.IQ1_M, QType.MXFP4, QType.NVFP4}


def test_manifest(tmp_path, capsys):
    path = model().write(tmp_path / "m.gguf")
    manifest = tmp_path / "m.json"
    assert main(["validate", str(path), "--manifest", str(manifest)]) == 0
    assert main(["validate", str(path), "--check", str(manifest)]) == 0
    other = model(general__name=(gb.STRING, b"another")).write(tmp_path / "other.gguf")
    plant(other, "blk.1.ffn_down.weight", 5, b"\x01")
    capsys.readouterr()
    assert main(["validate", str(other), "--check", str(manifest), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert [f["name"] for f in report["findings"]] == ["general.name", "blk.1.ffn_down.weight"]
    assert {f["kind"] for f in report["findings"]} == {"manifest"}
    assert report["ok"] is False
    with pytest.raises(ggufx.GGUFError, match="not a manifest"):
        validate(path, check=path)


def test_exit_codes_and_text(tmp_path, capsys):
    path = model().write(tmp_path / "m.gguf")
    plant(path, "blk.1.ffn_down.weight", 3 * 34, bytes(34))
    assert main(["validate", str(path)]) == 0
    assert main(["validate", str(path), "--strict"]) == 1
    out = capsys.readouterr().out
    assert "warning: tensor 'blk.1.ffn_down.weight': row 1, block 1: all values are zero" in out
    assert "6 tensors, 0 errors, 1 warnings" in out
    (tmp_path / "junk.gguf").write_bytes(b"junk")
    assert main(["validate", str(tmp_path / "junk.gguf")]) == 1
    assert "not a GGUF file" in capsys.readouterr().out
    assert main(["validate", str(tmp_path / "none.gguf")]) == 1
