"""The commands that write and plan."""

import json
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
        (("Q4_K_M", "--tensor-type", "x=Q9"), "no tensor type"),
        (("Q4_K_M", "--override-kv", "x"), "KEY=TYPE:VALUE"),
        (("Q4_K_M", "--target-size", "big"), "no size"),
        (("Q4_K_M", "--prune-layers", "7"), "blocks [7]"),
        (("Q4_K_M", "--prune-layers", "1,x"), "block numbers"),
        (("Q4_K_M", "--tensor-type", "ffn[=q8_0"), "'ffn[' is no regular expression"),
        (("--target-size", "1KiB"), "nothing fits into 1024 bytes"),
    ],
)
def test_wrong_arguments(cli, model: Path, tmp_path: Path, arguments: tuple, message: str) -> None:
    code, _, err = cli("quantize", model, tmp_path / "q.gguf", *arguments)
    assert code == 2
    assert message in err
    assert not (tmp_path / "q.gguf").exists()


def test_dry_run(cli, model: Path, tmp_path: Path) -> None:
    code, text, _ = cli("quantize", model, tmp_path / "q.gguf", "IQ2_XS", "--dry-run")
    assert code == 0
    assert "need an importance matrix" in text
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
    ],
)
def test_wrong_edits(cli, model: Path, arguments: tuple, message: str) -> None:
    before = model.read_bytes()
    code, _, err = cli("edit", model, *arguments)
    assert code == 2
    assert message in err
    assert model.read_bytes() == before


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
