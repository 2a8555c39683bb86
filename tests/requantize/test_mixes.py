"""The tables of ggufx.requantize.mixes against llama.cpp's own snapshots, and the branches those do not reach."""

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ggufx import GGUFError, QType
from ggufx.formats.file_types import FileType
from ggufx.model.hyperparameters import ModelFacts
from ggufx.requantize.choices import Choice, Request, TensorSpec, choose
from ggufx.requantize.mixes import RULES, Role, kept_reason, needs_imatrix, role_of

SNAPSHOTS = json.loads((Path(__file__).parents[1] / "vectors" / "llama_quantize_snapshots.json").read_text())


def numbers(runs: str) -> Iterator[int]:
    for run in runs.split(","):
        low, _, high = run.partition("-")
        yield from range(int(low), int(high or low) + 1)


def expand(row: list) -> list[str]:
    return [row[0] % n for n in numbers(row[-1])] if "%d" in row[0] else [row[0]]


def facts_of(model: dict) -> ModelFacts:
    return ModelFacts(model["arch"], model["n_layer"], model["n_head"], model["n_head_kv"], model["n_expert"])


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_agrees_with_the_snapshots_of_llama_cpp(name: str) -> None:
    model = SNAPSHOTS[name]
    tensors = [TensorSpec(tensor, tuple(row[1])) for row in model["tensors"] for tensor in expand(row)]
    wrong = []
    for mix, (default, rows) in model["mixes"].items():
        ftype = FileType[mix]
        assert ftype.default_type.name.lower() == default.lower()
        listed = {tensor: QType[row[1].upper()] for row in rows for tensor in expand(row)}
        quantized = [c for c in choose(tensors, facts_of(model), Request(ftype)) if c.kept is None]
        assert listed.keys() <= {c.name for c in quantized}
        wrong += [(mix, c) for c in quantized if c.qtype != listed.get(c.name, ftype.default_type)]
    assert not wrong


def test_there_are_a_dozen_snapshots_of_every_mix() -> None:
    assert len(SNAPSHOTS) == 12
    without = {"NVFP4", "Q1_0", "Q2_0"}
    assert all(set(model["mixes"]) | without == set(FileType.__members__) for model in SNAPSHOTS.values())


def tiny(
    arch: str = "llama", n_layer: int = 16, *, heads: int = 4, kv: int = 4, n_expert: int = 0, tied: bool = False
) -> tuple[list[TensorSpec], ModelFacts]:
    tensors = [TensorSpec("token_embd.weight", (512, 256)), TensorSpec("output_norm.weight", (256,))]
    if not tied:
        tensors.append(TensorSpec("output.weight", (512, 256)))
    experts, suffix = ((n_expert,), "_exps") if n_expert else ((), "")
    for n in range(n_layer):
        for part in ("q", "k", "v", "output"):
            tensors.append(TensorSpec(f"blk.{n}.attn_{part}.weight", (256, 256)))
        for part in ("gate", "up", "down"):
            tensors.append(TensorSpec(f"blk.{n}.ffn_{part}{suffix}.weight", (*experts, 256, 256)))
        tensors.append(TensorSpec(f"blk.{n}.attn_norm.weight", (256,)))
    return tensors, ModelFacts(arch, n_layer, heads, kv, n_expert)


def runs(choices: list[Choice], part: str) -> str:
    """The types of one role over the layers, run-length coded: '2 Q5_K 14 Q4_K'."""
    counted: list[list] = []
    for c in choices:
        if re.search(part, c.name):
            if counted and counted[-1][1] == c.qtype:
                counted[-1][0] += 1
            else:
                counted.append([1, c.qtype])
    return " ".join(f"{count} {qtype.name}" for count, qtype in counted)


def chosen(mix: str, *, model: dict | None = None, **request: object) -> list[Choice]:
    tensors, facts = tiny(**(model or {}))
    return choose(tensors, facts, Request(FileType[mix], **request))


TINY = json.loads((Path(__file__).parents[1] / "vectors" / "llama_quantize_tiny.json").read_text())["models"]


def zeros(
    arch: str, n_layer: int = 16, heads: int = 4, kv: int = 4, n_expert: int = 0, width: int = 256, **flags: bool
) -> tuple[list[TensorSpec], ModelFacts]:
    """The models of llama_quantize_tiny.json."""
    row, matrix = (width,), (32, width)
    tensors = [TensorSpec("token_embd.weight", matrix), TensorSpec("output_norm.weight", row)]
    if not flags.get("tied"):
        tensors.append(TensorSpec("output.weight", matrix))
    attention = ["attn_qkv"] if flags.get("qkv") else ["attn_q", "attn_k", "attn_v"]
    for n in range(n_layer):
        tensors += [TensorSpec(f"blk.{n}.{part}.weight", matrix) for part in (*attention, "attn_output")]
        for part in ("ffn_gate", "ffn_up", "ffn_down"):
            stacked = TensorSpec(f"blk.{n}.{part}_exps.weight", (n_expert, 8, width))
            tensors.append(stacked if n_expert else TensorSpec(f"blk.{n}.{part}.weight", matrix))
        if n_expert:
            tensors.append(TensorSpec(f"blk.{n}.ffn_gate_inp.weight", (n_expert, width)))
        tensors.append(TensorSpec(f"blk.{n}.attn_norm.weight", row))
    return tensors, ModelFacts(arch, n_layer, heads, kv, n_expert)


@pytest.mark.parametrize("name", TINY)
def test_agrees_with_llama_quantize_on_tiny_models(name: str) -> None:
    tensors, facts = zeros(**TINY[name]["model"])
    for mix, digests in TINY[name]["types"].items():
        for imatrix, digest in zip((False, True), digests, strict=True):
            try:
                choices = choose(tensors, facts, Request(FileType[mix], imatrix=imatrix))
            except GGUFError:
                assert digest is None, (mix, imatrix)
                continue
            lines = "\n".join(f"{c.name}={c.qtype.name}" for c in choices)
            assert hashlib.sha256(lines.encode()).hexdigest()[:12] == digest, (mix, imatrix)


FALCON, EIGHT = {"arch": "falcon"}, {"n_expert": 8}


@pytest.mark.parametrize(
    ("model", "mix", "imatrix", "part", "expected"),
    [
        # Falcon: its own down and output rules, and a Q8_0 output tensor.
        (FALCON, "Q4_K_M", False, "ffn_down", "1 Q6_K 1 Q5_K 2 Q4_K 1 Q5_K 2 Q4_K 1 Q5_K 2 Q4_K 1 Q5_K 2 Q4_K 3 Q5_K"),
        (FALCON, "Q3_K_M", False, "ffn_down", "1 Q5_K 1 Q4_K 2 Q3_K 1 Q4_K 2 Q3_K 1 Q4_K 2 Q3_K 1 Q4_K 2 Q3_K 3 Q4_K"),
        (FALCON, "Q4_K_S", False, "ffn_down", "16 Q4_K"),
        (FALCON, "Q3_K_L", False, "ffn_down", "16 Q4_K"),
        (FALCON, "Q3_K_L", False, "attn_output", "16 Q4_K"),
        (FALCON, "Q3_K_M", False, "attn_output", "16 Q3_K"),
        (FALCON, "Q2_K", False, "attn_output", "16 Q2_K"),
        (FALCON, "IQ2_S", True, "attn_output", "16 IQ3_S"),
        (FALCON, "Q4_K_M", False, r"^output\.weight", "1 Q8_0"),
        # Eight experts: attention is cheap there.
        (EIGHT, "Q4_K_M", False, "attn_v", "16 Q8_0"),
        (EIGHT, "Q3_K_S", False, "attn_k", "16 Q8_0"),
        (EIGHT, "Q4_K_M", False, "attn_output", "16 Q5_K"),
        (EIGHT, "Q3_K_L", False, "attn_output", "16 Q3_K"),
        (EIGHT, "Q2_K_S", True, "attn_output", "16 Q2_K"),
        (EIGHT, "IQ3_M", True, "ffn_down", "2 Q4_K 2 IQ3_S 1 Q4_K 2 IQ3_S 1 Q4_K 2 IQ3_S 1 Q4_K 2 IQ3_S 3 Q4_K"),
        (EIGHT, "IQ2_XS", True, "attn_k", "16 Q4_K"),
        (EIGHT, "IQ2_XS", True, "attn_v", "16 Q4_K"),
        (EIGHT, "IQ2_XS", True, "attn_output", "16 Q5_K"),
        ({"n_expert": 4}, "IQ2_M", True, "attn_v", "16 Q4_K"),
        ({"n_expert": 4}, "IQ2_M", True, "attn_k", "16 IQ2_S"),
        # With and without an importance matrix.
        ({}, "Q4_0", True, "ffn_down", "2 Q4_1 14 Q4_0"),
        ({}, "Q4_0", False, "ffn_down", "16 Q4_0"),
        ({}, "Q5_0", True, "ffn_down", "2 Q5_1 14 Q5_0"),
        ({}, "IQ4_XS", True, "ffn_down", "16 IQ4_XS"),
        ({}, "IQ4_XS", False, "ffn_down", "2 Q5_K 14 IQ4_XS"),
        ({}, "IQ3_XXS", True, "ffn_down", "16 IQ3_XXS"),
        ({}, "IQ3_XXS", False, "ffn_down", "2 Q4_K 14 Q3_K"),
        ({}, "IQ3_XXS", True, "attn_v", "16 IQ3_XXS"),
        ({}, "IQ3_XXS", False, "attn_v", "16 IQ3_S"),
        # S and L mixes, IQ1, IQ2 and IQ3.
        ({}, "Q4_K_S", False, "attn_v", "4 Q5_K 12 Q4_K"),
        ({}, "Q4_K_S", False, "ffn_down", "2 Q5_K 14 Q4_K"),
        ({}, "Q2_K_S", True, "ffn_down", "2 Q4_K 14 Q2_K"),
        ({}, "Q3_K_L", False, "attn_v", "16 Q5_K"),
        ({}, "IQ2_S", True, "attn_v", "16 IQ3_S"),
        ({}, "IQ2_XXS", True, "attn_v", "16 Q2_K"),
        ({}, "IQ2_M", True, "ffn_down", "2 IQ3_S 14 IQ2_S"),
        ({}, "IQ1_M", True, "attn_output", "16 IQ2_XXS"),
        ({}, "IQ3_XS", True, "ffn_up", "2 IQ3_S 12 IQ3_XXS 2 IQ3_S"),
        ({"heads": 8, "kv": 2}, "IQ4_XS", True, "attn_v", "16 Q5_K"),
        ({"heads": 8, "kv": 2}, "IQ2_XXS", True, "attn_v", "16 Q4_K"),
        # Embeddings, tied and not.
        ({}, "IQ2_XS", True, "token_embd", "1 Q2_K"),
        ({}, "IQ2_M", True, "token_embd", "1 IQ3_S"),
        ({}, "TQ2_0", False, "token_embd", "1 Q4_K"),
        ({"tied": True}, "Q4_K_M", False, "token_embd", "1 Q6_K"),
        ({"tied": True}, "Q8_0", False, "token_embd", "1 Q8_0"),
        ({"tied": True}, "IQ3_XXS", True, "token_embd", "1 Q5_K"),
        # 70B by llama.cpp's count.
        ({"n_layer": 80, "heads": 8, "kv": 4}, "Q4_K_S", False, "attn_v", "80 Q5_K"),
        ({"n_layer": 80, "heads": 8, "kv": 8}, "Q4_K_S", False, "attn_v", "4 Q5_K 76 Q4_K"),
        ({"arch": "qwen2", "n_layer": 80, "heads": 8, "kv": 8}, "Q4_K_S", False, "attn_v", "80 Q5_K"),
        ({"n_expert": 2}, "MXFP4_MOE", False, "ffn_down", "16 MXFP4"),
        ({}, "MXFP4_MOE", False, "ffn_down", "16 Q8_0"),
    ],
)
def test_branches_beyond_the_snapshots(model: dict, mix: str, imatrix: bool, part: str, expected: str) -> None:
    assert runs(chosen(mix, model=model, imatrix=imatrix), part) == expected


@pytest.mark.parametrize(
    ("mix", "strip"),
    [
        ("Q4_K_M", "66664464464464464464464464466666"),
        ("Q5_K_M", "66665565565565565565565565566666"),
        ("Q3_K_M", "55" + "4" * 30),
        ("Q4_K_S", "5555" + "4" * 28),
    ],
)
def test_strips_over_32_layers(mix: str, strip: str) -> None:
    choices = chosen(mix, model={"n_layer": 32, "heads": 32, "kv": 8})
    for part in ("attn_v", "ffn_down"):
        assert "".join(c.qtype.name[1] for c in choices if part in c.name) == strip


def test_options_of_llama_quantize() -> None:
    assert {c.qtype for c in chosen("Q4_K_M", pure=True) if c.kept is None} == {QType.Q4_K}
    left = {c.name: c for c in chosen("Q4_K_M", leave_output=True)}
    assert left["output.weight"].kept == "left by request"
    asked = chosen(
        "Q4_K_M",
        output_type=QType.Q8_0,
        embedding_type=QType.IQ4_NL,
        tensor_types=[(r"blk\.(0|1)\.attn_q", QType.F16), ("attn_q", QType.Q3_K)],
    )
    assert runs(asked, "^output.weight") == "1 Q8_0"
    assert runs(asked, "token_embd") == "1 IQ4_NL"
    assert runs(asked, "attn_q") == "2 F16 14 Q3_K"


def test_an_override_does_not_count_as_a_layer() -> None:
    choices = chosen("Q3_K_M", tensor_types=[(r"blk\.0\.attn_v", QType.Q8_0)])
    assert runs(choices, "attn_v") == "1 Q8_0 2 Q5_K 13 Q4_K"


def test_tied_embeddings_follow_the_output_type() -> None:
    assert runs(chosen("Q4_K_M", model={"tied": True}, output_type=QType.Q5_K), "token_embd") == "1 Q5_K"


def test_per_layer_embeddings_obey_a_pattern_before_the_embedding_type() -> None:
    tensors = [TensorSpec("per_layer_token_embd.weight", (512, 256)), TensorSpec("output.weight", (512, 256))]
    request = Request(FileType.Q4_K_M, embedding_type=QType.Q8_0, tensor_types=[("per_layer", QType.Q5_K)])
    assert runs(choose(tensors, ModelFacts("gemma3n", 4), request), "per_layer") == "1 Q5_K"


@pytest.mark.parametrize("mix", ["F16", "BF16", "F32"])
def test_patterns_are_honoured_beside_a_float_mix(mix: str) -> None:
    choices = chosen(mix, tensor_types=[("attn_v", QType.Q8_0), ("ffn_down", QType.Q4_K)])
    assert runs(choices, "attn_v") == "16 Q8_0"
    assert runs(choices, "ffn_down") == "16 Q4_K"
    assert runs(choices, "attn_q") == f"16 {mix}"


def test_float_mixes_convert_matrices_only() -> None:
    choices = chosen("F16")
    assert {c.qtype for c in choices if c.kept is None} == {QType.F16}
    assert {c.qtype for c in choices if c.kept} == {QType.F32}


@pytest.mark.parametrize(
    ("width", "mix", "expected", "wanted"),
    [
        (288, "Q4_K_M", QType.Q5_0, QType.Q4_K),
        (288, "Q5_K_S", QType.Q5_1, QType.Q5_K),
        (288, "Q6_K", QType.Q8_0, QType.Q6_K),
        (288, "Q3_K_S", QType.Q4_0, QType.Q3_K),
        (288, "IQ4_XS", QType.IQ4_NL, QType.IQ4_XS),
        (288, "TQ1_0", QType.Q4_0, QType.TQ1_0),
        (288, "Q4_0", QType.Q4_0, None),
        (40, "Q4_K_M", QType.F16, QType.Q4_K),
        (40, "Q4_0", QType.F16, QType.Q4_0),
    ],
)
def test_rows_that_are_not_whole_blocks(width: int, mix: str, expected: QType, wanted: QType | None) -> None:
    tensors = [TensorSpec("blk.0.attn_q.weight", (64, width)), TensorSpec("output.weight", (64, 256))]
    choice = choose(tensors, ModelFacts("llama", 1, 1, 1), Request(FileType[mix]))[-1]
    assert (choice.qtype, choice.wanted) == (expected, wanted)


def test_a_type_without_a_fallback_is_refused_by_name() -> None:
    tensors = [TensorSpec("blk.0.attn_q.weight", (64, 32)), TensorSpec("output.weight", (64, 256))]
    with pytest.raises(GGUFError, match=r"blk\.0\.attn_q\.weight.*Q1_0"):
        choose(tensors, ModelFacts("llama", 1, 1, 1), Request(FileType.Q1_0))


def test_a_ragged_output_tensor_gets_eight_bits() -> None:
    assert choose([TensorSpec("output.weight", (64, 2880))], ModelFacts("x", 1), Request(FileType.Q4_K_M))[0].qtype == 8


@pytest.mark.parametrize("name", ["ffn_down_exps.weight", "blk.9.ffn_down_exps.weight"])
def test_expert_tensors_must_name_a_block_of_the_model(name: str) -> None:
    with pytest.raises(GGUFError, match=re.escape(name)):
        choose([TensorSpec(name, (4, 256, 256))], ModelFacts("llama", 4, n_expert=4), Request(FileType.Q4_K_M))


@pytest.mark.parametrize(
    "name",
    [
        "blk.0.attn_norm.weight",
        "blk.0.ffn_gate_inp.weight",
        "blk.0.ffn_gate_tid2eid.weight",
        "blk.0.ssm_conv1d.weight",
        "blk.0.shortconv.conv.weight",
        "blk.0.time_mix_w1.weight",
        "blk.0.time_mix_lerp_fused.weight",
        "enc.blk.0.attn_rel_b.weight",
        "position_embd.weight",
        "token_types.weight",
        "v.position_embd.weight",
        "v.patch_embd.weight",
        "altup_proj.weight",
        "blk.0.laurel_l.weight",
        "per_layer_model_proj.weight",
        "blk.0.indexer.k_proj.weight",
        "blk.0.attn_q.bias",
        "rope_freqs",
    ],
)
def test_never_quantized(name: str) -> None:
    assert kept_reason(name, (256, 256), "llama")


def test_quantized_after_all() -> None:
    assert kept_reason("blk.0.ffn_gate_inp_shexp.weight", (8, 256), "llama") is None
    assert kept_reason("blk.0.attn_k_b.weight", (8, 8, 256), "deepseek2") is None
    assert kept_reason("blk.0.attn_k_b.weight", (8, 8, 256), "glm5-next")
    assert kept_reason("blk.0.attn_q.weight", (1, 256), "llama") == "one dimension"
    assert kept_reason("blk.0.attn_q.weight", (256, 1), "llama") is None


def test_glm5_keeps_its_query_projections_at_eight_bits() -> None:
    tensors = [TensorSpec("blk.0.attn_q_a.weight", (256, 256)), TensorSpec("output.weight", (256, 256))]
    assert choose(tensors, ModelFacts("glm5-next", 1, 1, 1), Request(FileType.Q2_K))[-1].qtype == QType.Q8_0


def test_which_need_an_importance_matrix() -> None:
    assert needs_imatrix("blk.0.attn_q.weight", QType.IQ2_XS, FileType.IQ2_XS)
    assert not needs_imatrix("token_embd.weight", QType.IQ2_XS, FileType.IQ2_XS)
    assert not needs_imatrix("output.weight", QType.Q2_K, FileType.Q2_K_S)
    assert needs_imatrix("blk.0.attn_q.weight", QType.Q2_K, FileType.Q2_K_S)
    assert not needs_imatrix("blk.0.attn_q.weight", QType.Q2_K, FileType.Q2_K)
    assert not needs_imatrix("blk.0.attn_q.weight", QType.IQ3_S, FileType.IQ3_S)


def test_every_rule_is_reached_by_some_model() -> None:
    """A row that another one hides would be dead weight."""
    reached = set()
    for arch in ("llama", "falcon"):
        for heads, kv in ((4, 4), (8, 2)):
            for n_expert in (0, 8):
                tensors, facts = tiny(arch, 32, heads=heads, kv=kv, n_expert=n_expert)
                for ftype in FileType:
                    for imatrix in (False, True):
                        choices = choose(tensors, facts, Request(ftype, imatrix=imatrix))
                        reached |= {(ftype.name, role_of(c.name), c.qtype) for c in choices if c.kept is None}
    for rule in RULES:
        assert any((mix, rule.role, rule.qtype) in reached for mix in rule.mixes), rule


def test_facts_from_metadata() -> None:
    facts = ModelFacts.from_metadata(
        {
            "general.architecture": "llama",
            "llama.block_count": 80,
            "llama.attention.head_count": [64, 64],
            "llama.attention.head_count_kv": [8, 8],
        }
    )
    assert (facts.gqa, facts.is_70b, facts.n_expert) == (8, True, 0)
    with pytest.raises(GGUFError, match=r"general\.architecture"):
        ModelFacts.from_metadata({})
    with pytest.raises(GGUFError, match=r"llama\.block_count"):
        ModelFacts.from_metadata({"general.architecture": "llama"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("q4_k_m", FileType.Q4_K_M),
        ("Q4_K", FileType.Q4_K_M),
        ("mxfp4_moe", FileType.MXFP4_MOE),
        ("UD-IQ2_M", FileType.IQ2_M),
        ("Q6_K_L", FileType.Q6_K),
        ("15", FileType.Q4_K_M),
        (15, FileType.Q4_K_M),
        (np.int64(15), FileType.Q4_K_M),
    ],
)
def test_parse(text: str | int, expected: FileType) -> None:
    assert FileType.parse(text) is expected


@pytest.mark.parametrize("text", ["", "Q9_K", "4", "ALL"])
def test_parse_refuses(text: str) -> None:
    with pytest.raises(ValueError, match="no file type"):
        FileType.parse(text)


@pytest.mark.parametrize(
    ("filename", "expected"),
    [
        ("models/Llama-3-8B-Instruct.Q4_K_M.gguf", FileType.Q4_K_M),
        ("Qwen3-8B-UD-Q4_K_XL-00001-of-00002.gguf", FileType.Q4_K_M),
        ("gpt-oss-20b-MXFP4_MOE.gguf", FileType.MXFP4_MOE),
        ("x-UD-IQ2_M.gguf", FileType.IQ2_M),
        ("x-iq3_xxs.gguf", FileType.IQ3_XXS),
        ("gemma-f16.gguf", FileType.F16),
        ("gemma-bf16-q8_0.gguf", FileType.Q8_0),
        ("Llama-3-8B-Q4_K_M_imat.gguf", FileType.Q4_K_M),
        ("Llama-3-8B-Q4_K_M_L.gguf", FileType.Q4_K_M),
        ("Llama-3-8B-Q4_0_4_4.gguf", None),
        ("Mixtral-8x7B.gguf", None),
        ("Q4_K_M/model.gguf", None),
        ("Qwen2-0.5B.gguf", None),
    ],
)
def test_from_filename(filename: str, expected: FileType | None) -> None:
    assert FileType.from_filename(filename) is expected


def test_roles() -> None:
    assert role_of("blk.0.attn_qkv.weight") is Role.ATTN_V
    assert role_of("blk.0.attn_kv_b.weight") is Role.ATTN_V
    assert role_of("blk.0.ffn_down_shexp.weight") is Role.FFN_DOWN
    assert role_of("blk.0.attn_gate.weight") is Role.OTHER
