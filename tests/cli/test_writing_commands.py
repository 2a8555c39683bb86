"""The commands that write and plan."""

import hashlib
import json
import re
import struct
from pathlib import Path

import gguf_bytes as gb
import numpy as np
import pytest
from range_server import RangeServer

import ggufx
from ggufx import Writer
from ggufx.cli import main


@pytest.fixture
def cli(capfd):
    """Run the command in this process: (exit code, stdout, stderr)."""

    def run(*arguments: object) -> tuple[int, str, str]:
        try:
            code = main([str(a) for a in arguments])
        except SystemExit as stop:
            code = stop.code
        out, err = capfd.readouterr()
        return code, out, err

    return run


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    rng = np.random.default_rng(0)
    with Writer(path, sync=False) as w:
        w.set("general.architecture", "llama")
        w.set("general.name", "tiny")
        w.set("general.tags", ["a", "b"])
        for key, value in {
            "block_count": 2,
            "embedding_length": 256,
            "attention.head_count": 4,
            "attention.head_count_kv": 2,
        }.items():
            w.set(f"llama.{key}", value)
        w.add("token_embd.weight", rng.standard_normal((64, 256), dtype=np.float32))
        for n in range(2):
            w.add(f"blk.{n}.attn_norm.weight", np.ones(256, np.float32))
            for part in ("attn_q", "attn_v", "ffn_down"):
                w.add(f"blk.{n}.{part}.weight", rng.standard_normal((32, 256), dtype=np.float32))
    return path


def types(path: Path) -> dict[str, str]:
    with ggufx.open(path) as f:
        return {t.name: t.qtype.name for t in f.tensors.values()}


def test_quantize(cli, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "q.gguf"
    code, text, err = cli("quantize", model, out, "q4_k_m", "--tensor-type", "attn_q=q8_0", "--list", "--threads", 2)
    assert (code, err) == (0, "")
    assert types(out)["blk.0.attn_q.weight"] == "Q8_0"
    assert "blk.0.attn_q.weight  32x256  F32 -> Q8_0" in text
    assert "blk.0.attn_norm.weight  256  F32 -> F32  (one dimension)" in text
    assert "Q4_K_M" in text


def test_quantize_again_is_refused_then_warned_of(cli, model: Path, tmp_path: Path) -> None:
    cli("quantize", model, tmp_path / "q2.gguf", "Q2_K")
    code, _, err = cli("quantize", tmp_path / "q2.gguf", tmp_path / "q4.gguf", "Q4_K_M")
    assert code == 1
    assert "--allow-requantize" in err
    code, text, err = cli("quantize", tmp_path / "q2.gguf", tmp_path / "q4.gguf", "Q4_K_M", "--allow-requantize")
    assert code == 0
    assert "larger, not better" in err
    assert "larger, not better" in text


def test_quantize_under_a_size(cli, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "q.gguf"
    code, text, _ = cli("quantize", model, out, "--target-size", "50KiB")
    assert code == 0
    assert out.stat().st_size <= 50 * 1024
    assert "relative errors" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "TYPE or --target-size"),
        (("Q9_K",), "no file type"),
        (("Q4_K_M", "--tensor-type", "x"), "PATTERN=TYPE"),
        (("Q4_K_M", "--tensor-type", "x=Q9"), "unknown tensor type"),
        (("Q4_K_M", "--override-kv", "x"), "KEY=TYPE:VALUE"),
        (("Q4_K_M", "--override-kv", "general.alignment=str:x"), "'general.alignment' says how the file is laid out"),
        (("COPY", "--override-kv", "general.alignment=float:64"), "'general.alignment' says how the file is laid out"),
        (("COPY", "--override-kv", "general.alignment=bool:true"), "'general.alignment' says how the file is laid out"),
        (("COPY", "--dry-run", "--override-kv", "split.count=int:2"), "'split.count' says how the file is laid out"),
        (("Q4_K_M", "--target-size", "big"), "no size"),
        (("Q4_K_M", "--prune-layers", "7"), "blocks [7]"),
        (("Q4_K_M", "--prune-layers", "1,x"), "block numbers"),
        (("Q4_K_M", "--tensor-type", "ffn[=q8_0"), "'ffn[' is no regular expression"),
        (("--target-size", "1KiB"), "nothing fits into 1024 bytes"),
        (("Q4_K_M", "--target-size", "50KiB"), "contradict each other"),
        (("COPY", "--target-size", "50KiB"), "contradict each other"),
        (("--pure", "--target-size", "50KiB"), "has no mix"),
    ],
)
def test_wrong_arguments(cli, model: Path, tmp_path: Path, arguments: tuple, message: str) -> None:
    code, _, err = cli("quantize", model, tmp_path / "q.gguf", *arguments)
    assert code == 2
    assert message in err
    assert not (tmp_path / "q.gguf").exists()


def test_dry_run(cli, model: Path, tmp_path: Path) -> None:
    code, text, _ = cli("quantize", model, tmp_path / "q.gguf", "Q4_K_M", "--dry-run")
    assert code == 0
    code, text, err = cli("quantize", model, tmp_path / "q.gguf", "IQ2_XS", "--dry-run")
    assert code == 1
    assert "need an importance matrix" in text
    assert "the real run would be refused" in err
    assert not (tmp_path / "q.gguf").exists()


def test_plan(cli, model: Path) -> None:
    code, text, _ = cli(
        "plan", model, "--memory", "2GiB", "--context", 4096, "--gpu-memory", "1.5GiB", "--bandwidth", "50GB"
    )
    assert code == 0
    assert "best for 2.00 GiB: BF16" in text
    assert "3 of 3" in text
    assert "tokens/s" in text
    code, text, _ = cli("plan", model, "--json", "--memory", "1GiB", "--mix", "Q4_K_M", "--cache-type-k", "q8_0")
    report = json.loads(text)
    assert report["best"] is None
    assert report["cache_bytes"] == 8192 * 2 * (128 // 32 * 34 + 128 * 2)
    assert report["groups"]["mix"] == "Q4_K_M"
    assert {row["name"] for row in report["groups"]["rows"]} == {"token_embd", "attn_q", "attn_v", "ffn_down"}
    assert cli("plan", model, "--cache-type-v", "q99")[0] == 2


def test_plan_shows_no_escapes(cli, tmp_path: Path) -> None:
    file = gb.File().add("general.architecture", gb.STRING, b"x\x1b[31m").add("x\x1b[31m.block_count", gb.U32, 1)
    path = file.tensor("blk.0.\x1b[2Jw", (4, 256), 0).tensor("\x1b[5m", (4, 256), 0).write(tmp_path / "m.gguf")
    for extra in ((), ("--mix", "Q4_K_M")):
        code, text, err = cli("plan", path, *extra)
        assert code == 0
        assert extra or "cache for 8192 tokens of unknown size" in text
        assert "\x1b" not in text + err


def test_plan_of_the_sample(cli) -> None:
    code, text, _ = cli("plan")
    assert code == 0
    assert "Q4_K_M" in text


def test_plan_of_a_url_reads_the_header_alone(cli, model: Path) -> None:
    pytest.importorskip("aiohttp", reason="the extra `remote` is not installed")
    server = RangeServer()
    try:
        server.files["m.gguf"] = model.read_bytes() + bytes(1 << 24)
        code, text, _ = cli("plan", server.url("m.gguf"))
        assert code == 0
        assert text == cli("plan", model)[1]
        assert server.sent < 1 << 22
    finally:
        server.close()


def test_edit(cli, model: Path, tmp_path: Path) -> None:
    code, text, _ = cli("edit", model, "--set", "llama.block_count=3", "--set", "general.name=tin2")
    assert code == 0
    assert "bytes of the header changed" in text
    code, text, _ = cli(
        "edit", model, "-o", tmp_path / "out.gguf", "--set", 'general.tags=["x"]', "--set", "new.flag=true",
        "--set", "new.text=plain words", "--set", "new.size=7", "--type", "new.size=uint64",
        "--delete", "llama.embedding_length", "--rename", "general.name=general.basename",
    )  # fmt: skip
    assert code == 0
    assert "written" in text
    with ggufx.open(tmp_path / "out.gguf") as f:
        values = dict(f.metadata)
        assert str(f.metadata.types["new.size"]) == "UINT64"
    assert values["llama.block_count"] == 3
    assert list(values["general.tags"]) == ["x"]
    assert values["new.flag"] is True
    assert values["new.text"] == "plain words"
    assert values["general.basename"] == "tin2"
    assert "llama.embedding_length" not in values


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--set", "novalue"), "KEY=VALUE"),
        (("--set", "llama.block_count=many"), "no uint32"),
        (("--set", "general.tags=3"), "general.tags"),
        (("--delete", "missing"), "no metadata key 'missing'"),
        (("--type", "x=int128"), "no GGUF value type"),
        (("--set", "q=" + "[" * 3000), "q: the value is nested too deeply"),
        (("--set", "q=" + "[" * 100 + "]" * 100), "'q': arrays are nested deeper than"),
        (("--set", "q=" + '{"a":' * 500 + "1" + "}" * 500), "'q': GGUF has no value type for dict"),
        (("--set", "q=" + "[" * 3000, "--type", "q=string"), "q: the value is nested too deeply"),
        (("--set", "g=1e400"), "g: 1e400 is too large"),
        (("--set", "g=[1, -1e400]", "--type", "g=float64"), "g: -1e400 is too large"),
        (("--set", "g=" + "1" * 5000), "g: "),
        (("--set", "g=1" + "0" * 400, "--type", "g=float32"), "'g': an int of that size doesn't fit float32"),
        (("--set", "k" * 65536 + "=1"), "longer than 65535"),
        (("--rename", "general.name=" + "k" * 65536), "longer than 65535"),
        (("--rename", "general.name="), "non-empty"),
        (("--set", 'e=["a", 1]', "--type", "e=string"), "element 1 is int 1"),
        (("--set", "llama.block_count=[1, 2]"), "'llama.block_count': uint32 was declared, but the value is list"),
        (("--set", 'general.tags="x"'), "'general.tags': an array of string was declared, but the value is str 'x'"),
        (("--set", "split.count=[1]"), "'split.count': an integer was expected"),
    ],
)
def test_wrong_edits(cli, model: Path, arguments: tuple, message: str) -> None:
    before = model.read_bytes()
    code, _, err = cli("edit", model, *arguments)
    assert code == 2
    assert message in err
    assert model.read_bytes() == before


def test_strings_and_lists_of_them(cli, model: Path, tmp_path: Path) -> None:
    given = {
        "a": '["a","b"]', "b": "[a]", "c": "[]", "d": '"quoted"', "llama.block_count": '["x"]',
        "general.name": '["stays one"]', "general.tags": '["t", "u", "v"]', "e": "1e400",
    }  # fmt: skip
    arguments = [a for key, text in given.items() for a in ("--set", f"{key}={text}", "--type", f"{key}=string")]
    assert cli("edit", model, *arguments)[0] == 0
    with ggufx.open(model) as f:
        kinds = {key: str(f.metadata.types[key]) for key in given}
        assert list(f.metadata["a"]) == ["a", "b"]
        assert f.metadata["b"] == "[a]"
        assert f.metadata["d"] == '"quoted"'
        assert f.metadata["general.name"] == '["stays one"]'
    assert kinds == {
        "a": "STRING[2]", "b": "STRING", "c": "STRING[0]", "d": "STRING", "llama.block_count": "STRING[1]",
        "general.name": "STRING", "general.tags": "STRING[3]", "e": "STRING",
    }  # fmt: skip
    assert cli("edit", model, "--set", "inf=Infinity")[0] == 0
    with ggufx.open(model) as f:
        assert f.metadata["inf"] == float("inf")


def test_saved_bytes_of_another_file(cli, model: Path) -> None:
    other = model.with_name("other.gguf")
    other.write_bytes(model.read_bytes())
    with ggufx.open(other) as f:
        size = f.data_offset
    record = struct.Struct("<8sQQQQQ32s").pack(b"ggufxun2", 1, 5, size, 0, 0, bytes(32))
    record += hashlib.sha256(record).digest()
    # 1 < 5: the file of 5 bytes can't hold such a header
    model.with_name(f".{model.name}.undo").write_bytes(record)
    code, _, err = cli("edit", model, "--set", "llama.block_count=3")
    assert (code, "damaged" in err) == (1, True)
    record = struct.Struct("<8sQQQQQ32s").pack(b"ggufxun2", 1, size, size, 0, 0, bytes(32))
    record += hashlib.sha256(record).digest()
    model.with_name(f".{model.name}.undo").write_bytes(record)
    code, _, err = cli("edit", model, "--set", "llama.block_count=3")
    assert code == 0
    assert err.startswith("ggufx: warning: ")
    assert "this one has replaced" in err


def test_split_merge_endian(cli, model: Path, tmp_path: Path) -> None:
    code, text, _ = cli("split", model, tmp_path / "part", "--max-tensors", 4)
    shards = text.split()
    assert code == 0
    assert len(shards) == 3
    assert cli("merge", shards[1], tmp_path / "whole.gguf")[0] == 0
    assert (tmp_path / "whole.gguf").read_bytes() == model.read_bytes()
    assert cli("endian", model, tmp_path / "big.gguf", "big")[0] == 0
    assert cli("endian", tmp_path / "big.gguf", tmp_path / "little.gguf", "little")[0] == 0
    assert (tmp_path / "little.gguf").read_bytes() == model.read_bytes()
    assert cli("split", model, tmp_path / "part")[0] == 2
    assert cli("merge", model, tmp_path / "x.gguf")[0] == 1
    assert "Q4_K_M" in cli("plan", shards[0])[1]


def test_a_shard_over_its_limit_is_told(cli, model: Path, tmp_path: Path) -> None:
    code, text, err = cli("split", model, tmp_path / "part", "--max-size", "1KiB")
    assert code == 0
    assert re.match(
        r"ggufx: warning: tensor '.*' alone has \d+ bytes, so its shard is larger than the limit of 1024", err
    )
    assert len(text.splitlines()) > 1


def test_types_from_a_file_take_their_place_among_the_others(cli, model: Path, tmp_path: Path) -> None:
    listed = tmp_path / "types.txt"
    listed.write_text("# attention\n\nattn_q=q5_0\n  ATTN_V=q4_1  \nffn=q8_0\n")
    code, text, _ = cli(
        "quantize", model, tmp_path / "q.gguf", "BF16", "--dry-run", "--list",
        "--tensor-type", "attn_v=q4_0", "--tensor-type-file", listed, "--tensor-type", "ffn=q5_1",
    )  # fmt: skip
    assert code == 0
    for name, wanted in (("attn_q", "Q5_0"), ("attn_v", "Q4_0"), ("ffn_down", "Q8_0"), ("token_embd", "BF16")):
        assert set(re.findall(rf"^(?:blk\.\d\.)?{name}\.weight .* -> (\w+)", text, re.M)) == {wanted}, name


@pytest.mark.parametrize(
    ("line", "message"),
    [("attn_q", "PATTERN=TYPE was expected"), ("a=q9", "tensor type"), ("ffn[=q8_0", "no regular expression")],
)
def test_a_wrong_line_of_types_is_named(cli, model: Path, tmp_path: Path, line: str, message: str) -> None:
    listed = tmp_path / "types.txt"
    listed.write_text(f"attn_v=q8_0\n\n{line}\n")
    code, _, err = cli("quantize", model, tmp_path / "q.gguf", "Q4_0", "--tensor-type-file", listed)
    assert code == 2
    assert "types.txt, line 3: " in err
    assert message in err
    assert cli("quantize", model, tmp_path / "q.gguf", "Q4_0", "--tensor-type-file", tmp_path / "none")[0] == 1


@pytest.mark.parametrize(
    ("command", "option"),
    [("plan", "--memory"), ("plan", "--gpu-memory"), ("plan", "--overhead"), ("plan", "--bandwidth"),
     ("quantize", "--target-size"), ("split", "--max-size")],
)  # fmt: skip
def test_a_small_size_without_a_unit_is_asked_about(
    cli, model: Path, tmp_path: Path, command: str, option: str
) -> None:
    arguments = [
        command,
        model,
        *(["out"] if command != "plan" else []),
        *(["--memory", "8GiB"] if "-g" in option else []),
    ]
    code, text, err = cli(*arguments, option, "8")
    assert (code, text, err) == (2, "", f"ggufx: {option} 8: 8 bytes? Write the unit: 8GiB, or 8B if that is meant\n")
    assert option in cli(*arguments, option, "eight")[2]


def test_one_fallback_is_one(cli, tmp_path: Path) -> None:
    with Writer(tmp_path / "m.gguf", sync=False) as w:
        w.set("general.architecture", "llama")
        w.set("llama.block_count", 1)
        w.set("llama.attention.head_count", 2)
        w.set("llama.embedding_length", 96)
        w.add("blk.0.attn_q.weight", np.ones((8, 96), np.float32))
    text = cli("plan", tmp_path / "m.gguf")[1]
    assert "1 fallback, " in text
    assert "1 fallbacks" not in text
    code, text, err = cli("quantize", tmp_path / "m.gguf", tmp_path / "q.gguf", "Q4_K_M")
    assert code == 0
    assert "1 tensor with rows that aren't whole blocks falls back" in text
    assert "1 tensors" not in text + err
