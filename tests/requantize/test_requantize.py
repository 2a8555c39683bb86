"""Requantizing tiny models: types by the recipes, bytes by ggufx.quantize, metadata as llama-quantize writes it."""

import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import ggufx
from ggufx import GGUFError, GGUFWarning, QType
from ggufx.formats.file_types import FileType
from ggufx.imatrix import Entry, ImportanceMatrix
from ggufx.model.hyperparameters import ModelFacts
from ggufx.requantize import Options, requantize
from ggufx.requantize.choices import Request, choose
from ggufx.requantize.importance import Importance
from ggufx.requantize.metadata import Override
from ggufx.requantize.slabs import ordered
from ggufx.requantize.target_size import Measured, assign, sample_rows
from ggufx.splitting import split
from ggufx.write.writer import Writer, write

LAYERS, WIDTH = 4, 256


def make_model(path: Path, *, width: int = WIDTH, experts: int = 0, qtype: QType | None = None, seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)

    def values(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * rng.lognormal(0, 0.5, shape[-1])).astype(np.float32) / 16

    with Writer(path, sync=False) as w:
        w.set("general.architecture", "llama")
        w.set("general.file_type", 0)
        w.set("general.name", "tiny")
        w.set("llama.block_count", LAYERS)
        w.set("llama.attention.head_count", 4)
        w.set("llama.attention.head_count_kv", 2)
        if experts:
            w.set("llama.expert_count", experts)
        w.add("output.weight", values(64, width), qtype=qtype)
        w.add("token_embd.weight", values(64, width), qtype=qtype)
        w.add("output_norm.weight", values(width))
        for n in range(LAYERS):
            for part in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
                stacked = experts and part.startswith("ffn")
                shape = (experts, 16, width) if stacked else (32, width)
                w.add(f"blk.{n}.{part}{'_exps' if stacked else ''}.weight", values(*shape), qtype=qtype)
            w.add(f"blk.{n}.attn_norm.weight", values(width))
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model") / "f32.gguf")


def contents(path: Path | str) -> dict[str, tuple[str, bytes]]:
    with ggufx.open(path) as f:
        return {t.name: (t.qtype.name, t.packed().tobytes()) for t in f.tensors.values()}


def expected(source: Path, mix: str, weights: dict | None = None, **request: object) -> dict[str, tuple[str, bytes]]:
    with ggufx.open(source) as f:
        facts = ModelFacts.from_metadata(f.metadata)
        choices = choose(f.tensors.values(), facts, Request(FileType[mix], imatrix=bool(weights), **request))
        made = {}
        for c in choices:
            packed = f[c.name].packed()
            if c.qtype != c.source:
                packed = ggufx.quantize(f[c.name].dequantize(), c.qtype, imatrix=(weights or {}).get(c.name))
            made[c.name] = (c.qtype.name, packed.tobytes())
        return made


@pytest.mark.parametrize("mix", ["Q4_K_M", "Q3_K_S", "Q2_K", "Q8_0", "Q4_0", "IQ4_XS", "F16", "BF16", "MXFP4_MOE"])
def test_types_and_bytes(model: Path, tmp_path: Path, mix: str) -> None:
    report = requantize(model, tmp_path / "out.gguf", mix, sync=False)
    made = contents(tmp_path / "out.gguf")
    assert made == expected(model, mix)
    assert list(made) == [c.name for c in report.choices]
    assert report.nbytes_after == sum(len(data) for _, data in made.values())
    assert report.paths == (str(tmp_path / "out.gguf"),)


def test_metadata_as_llama_quantize_writes_it(model: Path, tmp_path: Path) -> None:
    weights = importance(model)
    requantize(
        model,
        tmp_path / "out.gguf",
        "q4_k_m",
        imatrix=Importance(weights, "some/file.dat", "text.txt", 128),
        override_kv=[Override.parse("general.name=str:other"), Override.parse("x.n=int:-5")],
        sync=False,
    )
    with ggufx.open(tmp_path / "out.gguf") as f:
        kinds = {key: (str(f.metadata.types[key]), f.metadata[key]) for key in f.metadata}
    assert list(kinds.items())[-9:] == [
        ("llama.attention.head_count_kv", ("UINT32", 2)),
        ("general.quantization_version", ("UINT32", 2)),
        ("general.file_type", ("UINT32", 15)),
        ("general.name", ("STRING", "other")),
        ("x.n", ("UINT32", 5)),
        ("quantize.imatrix.file", ("STRING", "some/file.dat")),
        ("quantize.imatrix.dataset", ("STRING", "text.txt")),
        ("quantize.imatrix.entries_count", ("UINT32", len(weights))),
        ("quantize.imatrix.chunks_count", ("UINT32", 128)),
    ]


def importance(source: Path) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    with ggufx.open(source) as f:
        shapes = {t.name: (*t.shape[:-2], t.shape[-1]) for t in f.tensors.values() if t.ndim > 1}
    return {name: (rng.random(shape) ** 2 * 10 + 0.01).astype(np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize("experts", [0, 3])
@pytest.mark.parametrize("mix", ["Q4_K_M", "Q4_0", "IQ4_NL"])
def test_with_importance(tmp_path: Path, mix: str, experts: int) -> None:
    source = make_model(tmp_path / "in.gguf", experts=experts)
    weights = importance(source)
    requantize(source, tmp_path / "out.gguf", mix, imatrix=weights, sync=False)
    made = contents(tmp_path / "out.gguf")
    assert made == expected(source, mix, weights)
    assert made != expected(source, mix)
    some = {name: w for name, w in weights.items() if "attn_v" in name}
    requantize(source, tmp_path / "out.gguf", mix, imatrix=weights, include_weights=["attn_v"], sync=False)
    assert contents(tmp_path / "out.gguf") == expected(source, mix, some)
    others = {name: w for name, w in weights.items() if "attn_v" not in name}
    requantize(source, tmp_path / "out.gguf", mix, imatrix=weights, exclude_weights=["attn_v"], sync=False)
    assert contents(tmp_path / "out.gguf") == expected(source, mix, others)


@pytest.mark.parametrize("form", ["dat", "gguf"])
@pytest.mark.parametrize("experts", [0, 3])
def test_importance_from_a_file(tmp_path: Path, form: str, experts: int) -> None:
    source = make_model(tmp_path / "in.gguf", experts=experts)
    weights = importance(source)
    entries = {}
    for name, w in weights.items():
        sums = w.reshape(1 if w.ndim == 1 or form == "dat" else len(w), -1) * np.float32(2048)
        entries[name] = Entry(sums, np.full(len(sums), 2048, np.int64))
    matrix = ImportanceMatrix(entries, ["text.txt"], chunk_count=4)
    path = tmp_path / f"{'x' * 200}.{form}"
    matrix.save(path)
    requantize(source, tmp_path / "out.gguf", "Q4_K_M", imatrix=path, sync=False)
    assert contents(tmp_path / "out.gguf") == expected(source, "Q4_K_M", weights)
    with ggufx.open(tmp_path / "out.gguf") as f:
        keys = {key: value for key, value in f.metadata.items() if key.startswith("quantize.")}
    assert keys == {
        "quantize.imatrix.file": str(path)[:127],
        "quantize.imatrix.dataset": "text.txt",
        "quantize.imatrix.entries_count": len(weights),
        "quantize.imatrix.chunks_count": 4,
    }
    requantize(source, tmp_path / "again.gguf", "Q4_K_M", imatrix=matrix, sync=False)
    assert contents(tmp_path / "again.gguf") == contents(tmp_path / "out.gguf")


def test_importance_is_checked(model: Path, tmp_path: Path) -> None:
    with pytest.raises(
        GGUFError, match=r"IQ2_XS needs an importance matrix.*24 tensors: blk\.\{0-3\}\.attn_k\.weight, "
    ):
        requantize(model, tmp_path / "out.gguf", "IQ2_XS")
    weights = importance(model)
    weights["blk.1.ffn_up.weight"] = np.ones(7, np.float32)
    with pytest.raises(GGUFError, match=r"blk\.1\.ffn_up\.weight.*7 values, 1 x 256"):
        requantize(model, tmp_path / "out.gguf", "Q4_K_M", imatrix=weights)
    with pytest.raises(ValueError, match="exclude each other"):
        requantize(model, tmp_path / "out.gguf", "Q4_K_M", include_weights=["a"], exclude_weights=["b"])
    assert list(tmp_path.iterdir()) == []


def test_options_reach_the_recipe(model: Path, tmp_path: Path) -> None:
    request = {
        "tensor_types": [("attn_q", QType.Q8_0)],
        "output_type": QType.Q5_K,
        "embedding_type": QType.Q3_K,
    }
    requantize(model, tmp_path / "out.gguf", "Q4_K_M", sync=False, **request)
    assert contents(tmp_path / "out.gguf") == expected(model, "Q4_K_M", **request)
    for option in ("pure", "leave_output"):
        requantize(model, tmp_path / "out.gguf", "Q4_K_M", sync=False, **{option: True})
        assert contents(tmp_path / "out.gguf") == expected(model, "Q4_K_M", **{option: True})


def test_options_by_name_go_over_those_given_together(model: Path, tmp_path: Path) -> None:
    options = Options(tensor_types=[("attn_q", QType.Q8_0)], pure=True)
    requantize(model, tmp_path / "a.gguf", "Q4_0", options=options, sync=False)
    requantize(model, tmp_path / "b.gguf", "Q4_0", tensor_types=[("attn_q", QType.Q8_0)], pure=True, sync=False)
    assert contents(tmp_path / "a.gguf") == contents(tmp_path / "b.gguf")
    requantize(model, tmp_path / "c.gguf", "Q4_0", options=options, tensor_types=(), sync=False)
    assert contents(tmp_path / "c.gguf")["blk.0.attn_q.weight"][0] == "Q4_0"
    assert options.tensor_types  # the caller's options stay as they are
    with pytest.raises(TypeError, match="imatrx"):
        requantize(model, tmp_path / "c.gguf", "Q4_0", imatrx={})


def test_quantized_tensors_need_leave_and_are_told(tmp_path: Path) -> None:
    source = make_model(tmp_path / "q2.gguf", qtype=QType.Q2_K)
    with pytest.raises(GGUFError, match=r"quantized already \(Q2_K\).*allow_requantize"):
        requantize(source, tmp_path / "out.gguf", "Q4_K_M")
    with pytest.warns(GGUFWarning, match="larger, not better"):
        report = requantize(source, tmp_path / "out.gguf", "Q4_K_M", allow_requantize=True, sync=False)
    assert len(report.requantized) == 7 * LAYERS + 2
    assert contents(tmp_path / "out.gguf") == expected(source, "Q4_K_M")


def test_decoding_to_f32_needs_no_leave_and_says_once_that_it_is_exact(tmp_path: Path) -> None:
    source = make_model(tmp_path / "q2.gguf", qtype=QType.Q2_K)
    report = requantize(source, tmp_path / "out.gguf", "F32", sync=False)  # a warning would be an error here
    assert (len(report.decoded), report.requantized) == (7 * LAYERS + 2, ())
    assert sum("exact" in note for note in report.notes()) == 1
    assert f"{7 * LAYERS + 2} quantized tensors decoded to F32, which is exact" in report.notes()
    with ggufx.open(source) as f, ggufx.open(tmp_path / "out.gguf") as g:
        for name in f:
            np.testing.assert_array_equal(g[name].dequantize(), f[name].dequantize())
    with pytest.raises(GGUFError, match="allow_requantize"):  # rounding to halves isn't exact
        requantize(source, tmp_path / "out.gguf", "F16")


@pytest.mark.parametrize("option", ["embedding_type", "output_type"])
def test_types_that_rows_cannot_have_are_refused_by_name(tmp_path: Path, option: str) -> None:
    source = make_model(tmp_path / "in.gguf", width=96)
    name = "token_embd.weight" if option == "embedding_type" else "output.weight"
    with pytest.raises(
        GGUFError, match=rf"'{name}': Q6_K was asked for, but rows of 96 values aren't whole blocks of 256"
    ):
        requantize(source, tmp_path / "out.gguf", "Q8_0", **{option: QType.Q6_K})
    assert not (tmp_path / "out.gguf").exists()


def other_files(rng: np.random.Generator) -> dict[str, tuple[dict, dict]]:
    """Metadata and tensors of files that don't count a model's blocks."""

    def values(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    return {
        "projector": (
            {"general.architecture": "clip", "clip.vision.block_count": 1},
            {
                "v.blk.0.attn_q.weight": values(64, 256),
                "v.blk.0.attn_q.bias": values(64),
                "v.blk.0.ffn_down.weight": values(64, 96),
                "v.position_embd.weight": values(16, 256),
                "v.patch_embd.weight": values(8, 3, 4, 4),
                "mm.0.weight": values(64, 256),
            },
        ),
        "diffusion": (
            {"general.architecture": "flux"},
            {
                "double_blocks.0.img_attn.qkv.weight": values(96, 256),
                "double_blocks.1.img_attn.qkv.weight": values(96, 100),
                "conv_in.weight": values(8, 4, 3, 3),
                "pos_embed.proj.weight": values(8, 256),
                "steps.weight": np.ones((2, 256), np.int32),
                "norm.scale": values(256),
            },
        ),
        "adapter": (
            {"general.architecture": "llama", "general.type": "adapter"},
            {"blk.0.attn_q.weight.lora_a": values(4, 256), "blk.0.attn_q.weight.lora_b": values(256, 4)},
        ),
        "control vector": ({"general.architecture": "controlvector"}, {"direction.1": values(256)}),
        "nameless": ({}, {"a.weight": values(4, 256), "b": values(4, 256)}),
    }


OTHERS = {
    "projector": {"v.blk.0.attn_q.weight": "Q4_K", "v.blk.0.ffn_down.weight": "Q8_0", "mm.0.weight": "Q4_K"},
    "diffusion": {
        "double_blocks.0.img_attn.qkv.weight": "Q4_K",
        "double_blocks.1.img_attn.qkv.weight": "F16",
        "conv_in.weight": "F16",
        "steps.weight": "I32",
    },
    "adapter": {},
    "control vector": {},
    "nameless": {"a.weight": "Q4_K"},
}


@pytest.mark.parametrize("kind", OTHERS)
def test_files_that_count_no_blocks_quantize(tmp_path: Path, kind: str) -> None:
    metadata, tensors = other_files(np.random.default_rng(1))[kind]
    source, out = tmp_path / "in.gguf", tmp_path / "out.gguf"
    write(source, metadata, tensors, sync=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GGUFWarning)
        report = requantize(source, out, "Q4_K_M", sync=False)
    with ggufx.open(out) as f:
        assert {name: f[name].qtype.name for name in tensors} == dict.fromkeys(tensors, "F32") | OTHERS[kind]
        assert f.metadata["general.file_type"] == FileType.Q4_K_M
    notes = "\n".join(report.notes())
    assert "doesn't count a model's blocks" in notes
    for c in report.choices:
        assert (c.kept is None) == (c.qtype != c.source)
    if kind == "diffusion":
        assert "  double_blocks.*.img_attn.qkv.weight: rows of 100, Q4_K -> F16" in notes
        assert "  conv_in.weight: rows of 3, Q4_K -> F16" in notes
        assert "1 position" in notes
    copied = requantize(source, out, "COPY", sync=False)
    assert contents(out) == contents(source)
    assert all(c.kept == "copied" for c in copied.choices)
    with pytest.raises(ValueError, match="blocks can't be pruned: the file doesn't count"):
        requantize(source, out, "COPY", prune_layers=[0])


def test_pure_where_no_blocks_are_counted(tmp_path: Path) -> None:
    metadata, tensors = other_files(np.random.default_rng(1))["projector"]
    write(tmp_path / "in.gguf", metadata, tensors, sync=False)
    requantize(tmp_path / "in.gguf", tmp_path / "out.gguf", "Q8_0", pure=True, sync=False)
    assert {n for n, (q, _) in contents(tmp_path / "out.gguf").items() if q == "Q8_0"} == {
        "v.blk.0.attn_q.weight", "v.blk.0.ffn_down.weight", "mm.0.weight"
    }  # fmt: skip


def test_the_same_types_are_copied(tmp_path: Path) -> None:
    source = make_model(tmp_path / "q8.gguf", qtype=QType.Q8_0)
    report = requantize(source, tmp_path / "out.gguf", "Q8_0", sync=False)
    assert not report.requantized
    assert contents(tmp_path / "out.gguf") == {k: contents(source)[k] for k in contents(tmp_path / "out.gguf")}


def test_copy_keeps_every_type(tmp_path: Path) -> None:
    source = make_model(tmp_path / "q2.gguf", qtype=QType.Q2_K)
    requantize(source, tmp_path / "out.gguf", "COPY", override_kv=[Override.parse("a.b=bool:true")], sync=False)
    assert contents(tmp_path / "out.gguf").items() == contents(source).items()
    with ggufx.open(tmp_path / "out.gguf") as f:
        assert f.metadata["a.b"] is True


def test_pruned_layers_move_up(model: Path, tmp_path: Path) -> None:
    weights = importance(model)
    requantize(model, tmp_path / "out.gguf", "Q8_0", prune_layers=[1, 2], imatrix=weights, sync=False)
    made, whole = contents(tmp_path / "out.gguf"), expected(model, "Q8_0")
    assert {n for n in made if n.startswith("blk.")} == {n for n in whole if n.startswith(("blk.0", "blk.1"))}
    assert made["blk.1.attn_q.weight"] == whole["blk.3.attn_q.weight"]
    with ggufx.open(tmp_path / "out.gguf") as f:
        assert f.metadata["llama.block_count"] == 2
    with pytest.raises(ValueError, match=r"blocks \[9\]"):
        requantize(model, tmp_path / "out.gguf", "Q8_0", prune_layers=[9])


def test_overrides_guide_the_choice(model: Path, tmp_path: Path) -> None:
    override = [Override("llama.attention.head_count_kv", 1, "uint32")]
    report = requantize(model, tmp_path / "o.gguf", "Q2_K_S", override_kv=override, dry_run=True)
    assert next(c for c in report.choices if "attn_v" in c.name).qtype == QType.Q4_K


@pytest.mark.parametrize("text", ["", "a", "a=1", "a=int:x", "a=bool:yes", "a=list:1", "=int:1"])
def test_overrides_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Override.parse(text)


def test_shards_in_and_out(model: Path, tmp_path: Path) -> None:
    shards = split(model, tmp_path / "part", max_tensors=9)
    whole = requantize(shards[2], tmp_path / "one.gguf", "Q4_K_M", sync=False)
    assert contents(tmp_path / "one.gguf") == expected(model, "Q4_K_M")
    assert len(whole.paths) == 1
    kept = requantize(shards[0], tmp_path / "kept.gguf", "Q4_K_M", keep_split=True, sync=False)
    assert [Path(p).name for p in kept.paths] == [
        f"kept-{n + 1:05d}-of-{len(shards):05d}.gguf" for n in range(len(shards))
    ]
    for before, after in zip(shards, kept.paths, strict=True):
        assert list(contents(before)) == list(contents(after))


def test_a_dry_run_writes_nothing(model: Path, tmp_path: Path) -> None:
    report = requantize(model, tmp_path / "out.gguf", "Q4_K_M", dry_run=True)
    assert report.paths == ()
    assert list(tmp_path.iterdir()) == []
    real = requantize(model, tmp_path / "out.gguf", "Q4_K_M", sync=False)
    assert (real.nbytes_after, real.choices) == (report.nbytes_after, report.choices)
    assert "one dimension" in "\n".join(report.notes())


def test_fallbacks_are_told_with_their_bits(tmp_path: Path) -> None:
    source = make_model(tmp_path / "in.gguf", width=288)
    with pytest.warns(GGUFWarning, match=r"blocks fall back.*\d\.\d\d bits per weight there"):
        report = requantize(source, tmp_path / "out.gguf", "Q4_K_M", sync=False)
    assert len(report.fallbacks) == 7 * LAYERS + 1
    assert "  blk.*.attn_q.weight: rows of 288, Q4_K -> Q5_0 (+1.00 bits per weight), 4 tensors" in report.notes()
    assert contents(tmp_path / "out.gguf") == expected(source, "Q4_K_M")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("slab", [1 << 20, 2000])
def test_a_value_that_is_no_number_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: float, slab: int
) -> None:
    monkeypatch.setattr("ggufx.requantize.slabs.SLAB", slab)
    values = np.ones((3, 40, 256), np.float32)
    values[2, 7, 5] = bad
    with Writer(tmp_path / "in.gguf", sync=False) as w:
        w.set("general.architecture", "llama")
        w.set("llama.block_count", 1)
        w.add("blk.0.ffn_up_exps.weight", values)
    with pytest.raises(GGUFError, match=r"ffn_up_exps\.weight.*\[2, 7, 5\]"):
        requantize(tmp_path / "in.gguf", tmp_path / "out.gguf", "Q4_K_M")
    assert [p.name for p in tmp_path.iterdir()] == ["in.gguf"]


def test_overflow_is_counted_once(tmp_path: Path) -> None:
    with Writer(tmp_path / "in.gguf", sync=False) as w:
        w.set("general.architecture", "llama")
        w.set("llama.block_count", 1)
        w.add("blk.0.ffn_up.weight", np.full((3, 256), 1e8, np.float32))
    with pytest.warns(GGUFWarning, match=r"24 scales or values.*ffn_up") as caught:
        requantize(tmp_path / "in.gguf", tmp_path / "out.gguf", "Q8_0", sync=False)
    assert len(caught) == 1


def test_all_tensors_that_lack_importance_are_listed(model: Path, tmp_path: Path) -> None:
    weights = importance(model)
    for name in ("blk.0.attn_q.weight", "blk.2.attn_q.weight", "blk.3.attn_q.weight", "blk.1.ffn_up.weight"):
        del weights[name]
    message = r"4 tensors: blk\.\{0,2-3\}\.attn_q\.weight, blk\.1\.ffn_up\.weight$"
    with pytest.raises(GGUFError, match=message):
        requantize(model, tmp_path / "out.gguf", "IQ2_XS", imatrix=weights)
    report = requantize(model, tmp_path / "out.gguf", "IQ2_XS", imatrix=weights, dry_run=True)
    assert "4 tensors" in str(report.refused)
    del weights["token_embd.weight"], weights["output.weight"]
    with pytest.warns(GGUFWarning, match=r"24 of 28 tensors; none for 'blk\.0\.attn_q\.weight', .* \.\.\."):
        report = requantize(model, tmp_path / "out.gguf", "Q4_K_M", imatrix=weights, sync=False)
    assert report.weighed == (24, 30)
    assert "importance for 24 of 30 tensors that are quantized" in report.notes()


@pytest.mark.parametrize("how", ["mapping", "empty file"])
def test_an_importance_matrix_of_another_model_is_refused(model: Path, tmp_path: Path, how: str) -> None:
    weights = {f"model.{name}": w for name, w in importance(model).items()}
    message = r"0 of 30 tensors that are quantized: 'blk\.0\.attn_k\.weight', .* were expected, it has 'model\.output"
    if how == "empty file":
        ImportanceMatrix().save(tmp_path / "i.gguf")
        weights, message = tmp_path / "i.gguf", r"i\.gguf has entries for 0 of 30 tensors .* it has none at all"
    for options in ({"ftype": "Q4_K_M"}, {"ftype": None, "target_size": "1MiB"}):
        with pytest.raises(GGUFError, match=message):
            requantize(model, tmp_path / "out.gguf", imatrix=weights, **options)
    report = requantize(model, tmp_path / "out.gguf", "Q4_K_M", imatrix=weights, dry_run=True)
    assert "0 of 30" in str(report.refused)
    requantize(model, tmp_path / "out.gguf", "F16", imatrix=weights, sync=False)  # nothing is weighed


def test_filters_that_leave_no_importance(model: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"include_weights \['attnv'\] leave none of the importance matrix's 30 entries"
    ):
        requantize(model, tmp_path / "out.gguf", "Q8_0", imatrix=importance(model), include_weights=["attnv"])


def test_entries_of_experts_and_of_their_stack_serve_each_other(tmp_path: Path) -> None:
    source = make_model(tmp_path / "in.gguf", experts=3)
    weights = importance(source)
    apart = {}
    for name, w in weights.items():
        if "_exps" in name:
            apart |= {name.replace("_exps", f".{k}"): row for k, row in enumerate(w)}
        else:
            apart[name] = w
    requantize(source, tmp_path / "out.gguf", "Q4_K_M", imatrix=apart, sync=False)
    assert contents(tmp_path / "out.gguf") == expected(source, "Q4_K_M", weights)
    # The other way round: a file with a tensor for each expert.
    with ggufx.open(source) as f:
        tensors = {}
        for t in f.tensors.values():
            if "_exps" in t.name:
                tensors |= {t.name.replace("_exps", f".{k}"): t[k].dequantize() for k in range(3)}
            else:
                tensors[t.name] = t
        write(tmp_path / "apart.gguf", f.metadata, tensors, sync=False)
    flat = {name: w.reshape(-1) for name, w in weights.items()}  # as a .dat file has it
    requantize(tmp_path / "apart.gguf", tmp_path / "out.gguf", "Q4_K_M", imatrix=flat, sync=False)
    assert contents(tmp_path / "out.gguf") == expected(tmp_path / "apart.gguf", "Q4_K_M", apart)
    flat["blk.0.ffn_up_exps.weight"] = np.ones(2 * WIDTH, np.float32)
    with pytest.raises(GGUFError, match=r"'blk\.0\.ffn_up\.2\.weight'.*512 values for all experts"):
        requantize(tmp_path / "apart.gguf", tmp_path / "out.gguf", "Q4_K_M", imatrix=flat)


def test_an_expert_without_an_entry_is_neutral(tmp_path: Path) -> None:
    source = make_model(tmp_path / "in.gguf", experts=3)
    weights = importance(source)
    stack = weights.pop("blk.0.ffn_up_exps.weight")
    weights |= {f"blk.0.ffn_up.{k}.weight": stack[k] for k in (0, 2)}
    with pytest.warns(GGUFWarning, match=r"'blk\.0\.ffn_up_exps\.weight': 1 of 3 experts have no entry"):
        requantize(source, tmp_path / "out.gguf", "Q4_K_M", imatrix=weights, sync=False)
    stack[1] = 1
    weights["blk.0.ffn_up_exps.weight"] = stack
    assert contents(tmp_path / "out.gguf") == expected(source, "Q4_K_M", weights)


def test_never_over_the_importance_matrix(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "imatrix.gguf"
    ImportanceMatrix({"blk.0.attn_q.weight": Entry(np.ones((1, WIDTH), np.float32), np.array([1]))}).save(path)
    before = path.read_bytes()
    (tmp_path / "link.gguf").hardlink_to(path)
    for output in (path, tmp_path / "link.gguf"):
        with pytest.raises(ValueError, match="output is the input"):
            requantize(model, output, "Q8_0", imatrix=path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("mix", ["IQ2_XXS", "IQ2_XS", "IQ1_S"])
def test_embeddings_without_importance_are_named(model: Path, tmp_path: Path, mix: str) -> None:
    with ggufx.open(model) as f:
        weights = {t.name: np.ones(WIDTH, np.float32) for t in f.tensors.values() if t.name.startswith("blk.")}
    with pytest.raises(GGUFError, match=rf"'token_embd.weight': {mix} needs an importance matrix"):
        requantize(model, tmp_path / "out.gguf", mix, imatrix=weights, pure=True, leave_output=True)
    assert not list(tmp_path.iterdir())


def test_never_over_the_input(model: Path) -> None:
    before = model.read_bytes()
    with pytest.raises(ValueError, match="output is the input"):
        requantize(model, model, "Q8_0")
    assert model.read_bytes() == before


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_do_not_change_bytes(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    monkeypatch.setattr("ggufx.requantize.slabs.SLAB", 1000)
    requantize(model, tmp_path / "out.gguf", "Q4_K_M", threads=threads, sync=False)
    assert contents(tmp_path / "out.gguf") == expected(model, "Q4_K_M")


def test_big_endian_models_become_the_same(model: Path, tmp_path: Path) -> None:
    from ggufx.splitting import convert_endian

    convert_endian(model, tmp_path / "big.gguf", "big")
    requantize(tmp_path / "big.gguf", tmp_path / "out.gguf", "Q4_K_M", sync=False)
    convert_endian(tmp_path / "out.gguf", tmp_path / "little.gguf", "little")
    assert contents(tmp_path / "little.gguf") == expected(model, "Q4_K_M")


def test_an_error_in_the_middle_leaves_nothing(model: Path, tmp_path: Path) -> None:
    def progress(name: str, done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        requantize(model, tmp_path / "out.gguf", "Q4_K_M", progress=progress)
    assert list(tmp_path.iterdir()) == []


def test_ordered_keeps_order_and_bounds() -> None:
    started = []
    results = ordered(lambda n: started.append(n) or n * n, range(100), 4)
    assert next(results) == 0
    assert len(started) <= 13
    assert list(results) == [n * n for n in range(1, 100)]
    failing = ordered(lambda n: 1 // (3 - n), range(100), 2)
    with pytest.raises(ZeroDivisionError):
        list(failing)


def test_overlapping_calls_leave_warnings_alone(tmp_path: Path) -> None:
    """Filters and the function that shows warnings belong to the process; the counts of each call are its own."""
    model = tmp_path / "in.gguf"
    # One value in 1000 overflows the half scale of a block of Q8_0.
    values = np.ones((64, 256), np.float32)
    values[::8, 0] = 1e8
    metadata = {"general.architecture": "llama", "llama.block_count": 1}
    ggufx.write(model, metadata, {f"blk.0.{n}.weight": values for n in ("attn_q", "attn_k", "ffn_up", "ffn_down")})
    before = warnings.showwarning, list(warnings.filters)
    barrier = threading.Barrier(3)
    changed = []

    def work(i: int) -> None:
        barrier.wait()
        requantize(model, tmp_path / f"out{i}.gguf", "Q8_0", threads=2, progress=watch)

    def watch(*_: object) -> None:
        if (warnings.showwarning, list(warnings.filters)) != during:
            changed.append(True)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        during = warnings.showwarning, list(warnings.filters)
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(work, range(3)))
    assert not changed
    assert (warnings.showwarning, list(warnings.filters)) == before
    told = [str(w.message) for w in caught if "half precision" in str(w.message)]
    assert len(told) == 3
    assert set(told) == {told[0]}
    assert told[0].startswith("32 scales or values overflow half precision and become infinite (8 in ")


# --- under a size ----------------------------------------------------------------------------------------------------


def total_error(source: Path, made: dict[str, tuple[str, bytes]]) -> float:
    """The measure that the search minimizes, over all rows."""
    error = 0.0
    with ggufx.open(source) as f:
        for name, (qtype, packed) in made.items():
            x = f[name].dequantize().astype(np.float64)
            y = ggufx.dequantize(np.frombuffer(packed, np.uint8), QType[qtype], shape=x.shape)
            error += float(((x - y) ** 2).sum() / (x**2).sum())
    return error


@pytest.mark.parametrize("mix", ["Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K"])
def test_a_search_beats_the_mix_of_equal_size(model: Path, tmp_path: Path, mix: str) -> None:
    requantize(model, tmp_path / "mix.gguf", mix, sync=False)
    size = (tmp_path / "mix.gguf").stat().st_size
    report = requantize(model, tmp_path / "best.gguf", None, target_size=size, sync=False)
    assert 0.9 * size < (tmp_path / "best.gguf").stat().st_size <= size
    best, fixed = (total_error(model, contents(tmp_path / n)) for n in ("best.gguf", "mix.gguf"))
    assert best < fixed or (mix == "Q6_K" and best == fixed)  # there is nothing to gain where all are alike
    assert report.error == pytest.approx(best, rel=0.2)


def test_a_search_with_importance_reaches_lower(model: Path, tmp_path: Path) -> None:
    weights = importance(model)
    size = 100_000
    report = requantize(model, tmp_path / "best.gguf", None, target_size=size, imatrix=weights, dry_run=True)
    assert report.nbytes_after < size
    assert {c.qtype for c in report.choices if c.kept is None} & {
        QType.IQ2_XXS,
        QType.IQ2_XS,
        QType.IQ2_S,
        QType.IQ3_XXS,
    }


def test_what_was_asked_for_stays(model: Path, tmp_path: Path) -> None:
    report = requantize(
        model,
        tmp_path / "best.gguf",
        None,
        target_size=160_000,
        tensor_types=[("attn_v", QType.Q8_0)],
        output_type=QType.F16,
        embedding_type=QType.Q5_1,
        dry_run=True,
    )
    types = {c.name: c.qtype for c in report.choices}
    assert {t for n, t in types.items() if "attn_v" in n} == {QType.Q8_0}
    assert types["output.weight"] == QType.F16
    assert types["token_embd.weight"] == QType.Q5_1
    tied = tmp_path / "tied.gguf"
    with ggufx.open(model) as f:
        write(tied, f.metadata, {n: t for n, t in f.tensors.items() if n != "output.weight"}, sync=False)
    report = requantize(tied, tmp_path / "b.gguf", None, target_size=160_000, output_type=QType.Q5_1, dry_run=True)
    assert next(c for c in report.choices if c.name == "token_embd.weight").qtype == QType.Q5_1


def test_too_small_a_size_is_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing fits into"):
        requantize(model, tmp_path / "best.gguf", None, target_size=10_000)


@pytest.mark.parametrize("mix", ["Q4_K_M", "COPY", 15])
def test_a_size_stands_instead_of_a_mix(model: Path, tmp_path: Path, mix: str | int) -> None:
    with pytest.raises(ValueError, match="contradict each other"):
        requantize(model, tmp_path / "o.gguf", mix, target_size=100_000)
    assert list(tmp_path.iterdir()) == []


def test_arguments_that_would_go_unheard(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"pure.*has no mix"):
        requantize(model, tmp_path / "o.gguf", None, target_size=100_000, pure=True)
    with pytest.raises(ValueError, match="a mix or target_size"):
        requantize(model, tmp_path / "o.gguf", None)
    with pytest.raises(ValueError, match="COPY keeps every type, which output_type would change"):
        requantize(model, tmp_path / "o.gguf", "COPY", output_type=QType.Q8_0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("qtype", [None, QType.BF16, QType.F16, QType.Q4_K])
def test_what_fits_stays_as_it_is(tmp_path: Path, qtype: QType | None) -> None:
    source = make_model(tmp_path / "in.gguf", qtype=qtype)
    report = requantize(source, tmp_path / "o.gguf", None, target_size="10MiB", sync=False)
    assert report.error == 0
    assert contents(tmp_path / "o.gguf") == contents(source)


def test_the_size_holds_for_shards_too(model: Path, tmp_path: Path) -> None:
    shards = split(model, tmp_path / "in", max_bytes=200_000, sync=False)
    assert len(shards) > 2
    for size in (110_000, 150_000):
        report = requantize(shards[0], tmp_path / f"o{size}", None, target_size=size, keep_split=True, sync=False)
        assert len(report.paths) == len(shards)
        assert 0.9 * size < sum(Path(p).stat().st_size for p in report.paths) <= size


def test_types_that_overflow_are_not_chosen(tmp_path: Path) -> None:
    with Writer(tmp_path / "in.gguf", sync=False) as w:
        w.set("general.architecture", "llama")
        w.set("llama.block_count", 1)
        w.add("blk.0.ffn_up.weight", np.full((64, 256), 1e30, np.float32))
    report = requantize(tmp_path / "in.gguf", tmp_path / "o.gguf", None, target_size=40_000, sync=False)
    assert [c.qtype for c in report.choices] == [QType.BF16]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_search_names_a_value_that_is_no_number(tmp_path: Path, bad: float) -> None:
    values = np.ones((3, 40, 256), np.float32)
    values[2, 7, 5] = bad
    with Writer(tmp_path / "in.gguf", sync=False) as w:
        w.set("general.architecture", "llama")
        w.set("llama.block_count", 1)
        w.add("blk.0.ffn_up_exps.weight", values)
    with pytest.raises(GGUFError, match=r"in\.gguf.*ffn_up_exps\.weight.*\[2, 7, 5\]"):
        requantize(tmp_path / "in.gguf", tmp_path / "o.gguf", None, target_size=50_000)


def test_a_dry_run_says_what_would_be_refused(tmp_path: Path) -> None:
    source = make_model(tmp_path / "in.gguf", qtype=QType.Q2_K)
    report = requantize(source, tmp_path / "o.gguf", "Q4_K_M", dry_run=True)
    assert report.refused is not None
    with pytest.raises(GGUFError) as refused:
        requantize(source, tmp_path / "o.gguf", "Q4_K_M")
    assert str(refused.value) == report.refused
    assert requantize(source, tmp_path / "o.gguf", "Q4_K_M", dry_run=True, allow_requantize=True).refused is None
    with pytest.raises(ValueError, match="output is the input"):
        requantize(source, source, "Q4_K_M", dry_run=True, allow_requantize=True)


def test_assignment_is_optimal_on_small_cases() -> None:
    """Against trying every combination."""
    import itertools

    rng = np.random.default_rng(1)
    kinds = (QType.Q2_K, QType.Q4_K, QType.Q6_K, QType.Q8_0)
    for _ in range(30):
        sizes = [{k: ggufx.nbytes((int(rows), 256), k) for k in kinds} for rows in rng.integers(1, 9, 4)]
        tensors = [
            Measured(f"t{i}", size, dict(zip(kinds, sorted(rng.random(4))[::-1], strict=True)))
            for i, size in enumerate(sizes)
        ]
        budget = int(rng.integers(sum(s[QType.Q2_K] for s in sizes), sum(s[QType.Q8_0] for s in sizes) + 1))
        combos = [
            sum(t.errors[k] for t, k in zip(tensors, combo, strict=True))
            for combo in itertools.product(kinds, repeat=4)
            if sum(s[k] for s, k in zip(sizes, combo, strict=True)) <= budget
        ]
        chosen = assign(tensors, budget)
        assert sum(s[chosen[t.name]] for s, t in zip(sizes, tensors, strict=True)) <= budget
        # The last step is rounded to whole tensors; it costs at most one of them.
        worst_step = max(max(t.errors.values()) - min(t.errors.values()) for t in tensors)
        assert sum(t.errors[chosen[t.name]] for t in tensors) <= min(combos) + worst_step


def test_sampled_rows() -> None:
    assert sample_rows(1000, 256, 2560).tolist() == [0, 111, 222, 333, 444, 555, 666, 777, 888, 999]
    assert sample_rows(3, 256, 1 << 20).tolist() == [0, 1, 2]
    assert len(sample_rows(10**6, 10**6, 1)) == 8


def test_a_tensor_of_unknown_type_is_carried_over(tmp_path: Path) -> None:
    import struct

    text = lambda s: struct.pack("<Q", len(s)) + s  # noqa: E731
    header = b"GGUF" + struct.pack("<IQQ", 3, 1, 2)
    header += text(b"general.architecture") + struct.pack("<I", 8) + text(b"x")
    header += text(b"x.block_count") + struct.pack("<II", 4, 1)
    header += text(b"blk.0.new_norm.weight") + struct.pack("<IQIQ", 1, 4, 99, 0)
    header += bytes(-len(header) % 32)
    (tmp_path / "in.gguf").write_bytes(header + bytes(range(32)))
    requantize(tmp_path / "in.gguf", tmp_path / "out.gguf", "Q4_K_M", sync=False)
    with ggufx.open(tmp_path / "out.gguf") as f:
        assert bytes(f["blk.0.new_norm.weight"].packed()) == bytes(range(32))


def test_memory_stays_at_some_slabs(tmp_path: Path) -> None:
    with Writer(tmp_path / "in.gguf", sync=False) as w:
        w.set("general.architecture", "llama")
        w.set("llama.block_count", 1)
        for n in range(12):
            ones = lambda: np.ones(4_000_000, np.float16)  # noqa: E731
            w.add(f"blk.0.{n}.weight", ones, shape=(4000, 1000), qtype="f16")
    code = """
import resource, sys
from ggufx.requantize import Options, requantize
import ggufx.codec.encode, ggufx.codec.decode
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
requantize(sys.argv[1], sys.argv[2], "F32", threads=2, sync=False)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    args = [sys.executable, "-c", code, str(tmp_path / "in.gguf"), str(tmp_path / "out.gguf")]
    child = subprocess.run(args, capture_output=True, cwd="/")
    assert child.returncode == 0, child.stderr
    assert int(child.stdout) < 60_000  # the input has 96 MB, the output 192
    assert (tmp_path / "out.gguf").stat().st_size > 12 * 16_000_000


@pytest.mark.parametrize(
    "override",
    [("a", [1], "uint32"), ("a", "x", "bool"), ("a", 1, "string"), ("split.no", 1, "uint16"), ("", 1, "bool")],
)
def test_overrides_of_another_form_are_refused_at_once(model: Path, tmp_path: Path, override: tuple) -> None:
    for dry_run in (True, False):
        with pytest.raises((TypeError, ValueError), match=f"metadata key '?{override[0]}"):
            requantize(model, tmp_path / "o.gguf", "COPY", override_kv=[Override(*override)], dry_run=dry_run)
    assert not list(tmp_path.iterdir())


def test_an_override_that_is_too_large() -> None:
    assert Override.parse("k=float:inf").value == float("inf")
    with pytest.raises(ValueError, match="1e400 is too large"):
        Override.parse("k=float:1e400")
