"""The command line: what it prints, what it writes, and what it says when something is wrong."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys

import gguf_bytes as gb
import numpy as np
import pytest
from oracle import INTEGER_TYPES, assert_same_bits

import ggufx
from ggufx import QType, splitting
from ggufx.cli import info, main, sample
from ggufx.cli.terminal import human_count, printable, shortened


@pytest.fixture
def cli(capfd):
    """Run the command in this process: (exit code, stdout, stderr)."""

    def run(*arguments: object) -> tuple[int, str, str]:
        try:
            code = main([str(a) for a in arguments])
        except SystemExit as stop:  # argparse's own complaints
            code = stop.code
        out, err = capfd.readouterr()
        return code, out, err

    return run


@pytest.fixture
def model():
    with sample.path_or_sample(None) as path:
        yield path


@pytest.fixture
def nasty(tmp_path):
    """A file whose strings try to talk to the terminal."""
    file = gb.File().add("general.name", gb.STRING, b"\x1b]0;owned\x07\x1b[31mred")
    file.add("k\x1b[2J", gb.U8, 1).add("bytes", gb.STRING, b"\xff\xe2\x80\xaeright")
    file.add("long", gb.STRING, b"x" * 100_000).add("list", gb.ARRAY, gb.Array(gb.STRING, [b"\x1b[0m"] * 50))
    file.tensor("w\x1b[5m\n", (2, 32), 2)
    return file.write(tmp_path / "nasty\x1b[1m.gguf")


# ---- info


def test_bare_file_is_info(cli, model):
    assert cli(model) == cli("info", model)
    assert cli("--json", model) == cli("info", "--json", model)


def test_no_file_means_the_sample(cli, model):
    assert cli("info")[1] == cli("info", model)[1]


def test_module_is_the_command(cli):
    run = subprocess.run([sys.executable, "-m", "ggufx", "--version"], capture_output=True, text=True, check=True)
    assert run.stdout == cli("--version")[1] == f"ggufx {ggufx.__version__}\n"


def test_info_text(cli, model):
    code, out, err = cli("info", model)
    assert (code, err) == (0, "")
    assert "GGUF version 3, little-endian, 283.88 KiB (290,688 bytes)" in out.splitlines()[0]
    for line in (
        r"general.architecture +string +qwen2moe",
        r"tokenizer.ggml.tokens +string\[32\] +\['<pad>', '<bos>', .*\.\.\.",
        r"sample.no_items +int16\[0\] +\[\]",
        r"blk.1.ffn_gate_exps.weight +IQ1_S +\(4, 64, 256\) +1.5625 +12,800",
        r"Q4_K +1 +8.19 k +4,608 +4.5 +0.5 \(11.1%\)",
        r"total: 709 k weights \(708,924\) in 278.47 KiB, 3.2179 bits each; F32 would take 2.70 MiB, F16 1.35 MiB",
    ):
        assert re.search(line, out), line


def test_info_json(cli, model):
    code, out, _ = cli("info", "--json", model)
    report = json.loads(out)
    assert code == 0
    assert report["file"]["bytes"] == model.stat().st_size
    assert [t["name"] for t in report["tensors"]] == list(ggufx.open(model).tensors)
    assert sum(t["bytes"] for t in report["tensors"]) == report["total"]["bytes"]
    assert report["total"]["f32_bytes"] == 4 * sum(t["weights"] for t in report["tensors"])
    q4k = next(row for row in report["types"] if row["type"] == "Q4_K")
    assert (q4k["bits_per_weight"], q4k["scale_bits"]) == (4.5, 0.5)
    scores = next(m for m in report["metadata"] if m["key"] == "tokenizer.ggml.scores")
    assert (scores["type"], scores["items"], scores["count"], len(scores["value"])) == ("array", "float32", 32, 8)


def test_escapes_never_reach_the_terminal(cli, nasty):
    for arguments in (["info", nasty], ["info", "--json", nasty]):
        code, out, err = cli(*arguments)
        assert code == 0
        assert all(c.isprintable() or c == "\n" for c in out + err)
        assert len(out) < (10_000 if "--json" not in arguments else 200_000)
    assert r"\x1b]0;owned\x07\x1b[31mred" in cli(nasty)[1]


def test_size_of_a_split_model_is_that_of_all_shards(cli, model, tmp_path):
    shards = splitting.split(model, tmp_path / "m", max_tensors=20)
    report = json.loads(cli("info", "--json", shards[1])[1])
    assert len(shards) == 3
    assert report["file"]["bytes"] == sum(os.stat(p).st_size for p in shards)


def test_errors_are_one_printable_line(cli, nasty):
    nasty.write_bytes(b"GGUF" + nasty.read_bytes()[4:200])
    code, out, err = cli(nasty)
    assert (code, out) == (1, "")
    assert err.startswith("ggufx: ")
    assert err.count("\n") == 1
    assert err.rstrip("\n").isprintable()


def test_faults_are_shown_and_fail(cli, tmp_path):
    whole = gb.File().tensor("first", (32,), 2).tensor("second", (4, 32), 2).bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole[:-30])
    code, out, _ = cli(path)
    assert code == 1
    assert "problem: " in out
    assert "second" in out.split("problem: ")[1]


def test_unknown_types_are_shown(cli, tmp_path):
    raw = gb.File().tensor("odd", (32,), 2).bytes()
    file = gb.File().tensor("odd", (32,), 2)
    file.infos[0].kind = 99
    path = file.write(tmp_path / "new.gguf")
    assert len(raw) == path.stat().st_size
    code, out, _ = cli(path)
    assert code == 0
    assert "unknown type 99" in out
    code, _, err = cli("decode", path, "-o", tmp_path / "out.npz")
    assert code == 1
    assert "99" in err
    assert not (tmp_path / "out.npz").exists()


def test_big_endian_and_version_1(cli, tmp_path):
    for version, big in ((1, False), (3, True)):
        path = gb.File(version, big).add("a.b", gb.F64, 0.5).tensor("w", (2, 8), 0).write(tmp_path / "x.gguf")
        code, out, _ = cli(path)
        assert code == 0
        assert f"GGUF version {version}, {'big' if big else 'little'}-endian" in out
        assert "float64  0.5" in out


# ---- --info, help, wrong arguments


def test_build_report(cli):
    code, out, _ = cli("--info")
    assert code == 0
    assert out.startswith(f"ggufx {ggufx.__version__}\npaths:")
    for name in ggufx.paths():
        assert name in out.splitlines()[1]
    assert f"{'(active)'}" in out.splitlines()[1]


def test_info_without_extension_says_so_in_one_line():
    code = "import sys; sys.modules['ggufx._native'] = None; from ggufx.cli import main; sys.exit(main(['--info']))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    (line,) = [line for line in run.stdout.splitlines() if line.startswith("not here:")]
    assert "numpy path" in line
    assert "paths:    numpy (active)" in run.stdout


def test_forced_path_that_is_not_there():
    run = subprocess.run(
        [sys.executable, "-m", "ggufx", "decode", "-o", os.devnull + ".npz"],
        env=os.environ | {"GGUFX_PATH": "pdp11"}, capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode != 0
    assert run.stderr.startswith("ggufx: ")
    assert "pdp11" in run.stderr
    assert run.stderr.count("\n") == 1


def test_help_names_every_command(cli):
    code, out, _ = cli("--help")
    assert code == 0
    assert cli() == (0, out, "")
    for name in ("info", "decode"):
        assert f"  {name} " in out
        assert cli(name, "--help")[0] == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["decode"],
        ["decode", "-o", "x.txt"],
        ["info", "a", "b"],
        ["--nonsense"],
        ["decode", "-o", "x.npz", "--dtype", "int8"],
    ],
    ids=" ".join,
)
def test_wrong_arguments_exit_2(cli, arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = cli(*arguments)
    assert (code, out) == (2, "")
    assert err
    assert not list(tmp_path.iterdir())


def test_missing_file(cli):
    assert cli("/no/such/file") == (1, "", "ggufx: /no/such/file: No such file or directory\n")


def test_broken_pipe_is_quiet(model):
    run = subprocess.run(
        f'"{sys.executable}" -m ggufx info "{model}" | head -1; echo ${{PIPESTATUS[0]}}',
        shell=True, executable="/bin/bash", capture_output=True, text=True,
    )  # fmt: skip
    first, code = run.stdout.splitlines()
    assert "GGUF version 3" in first
    assert run.stderr == ""
    assert code in ("0", "141")  # 0 if everything fitted the pipe


def test_closed_output_is_no_fault(model):
    run = subprocess.run(
        f'"{sys.executable}" -m ggufx info "{model}" >&-', shell=True, executable="/bin/bash", capture_output=True
    )
    assert (run.returncode, run.stderr) == (0, b"")


# ---- decode


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
def test_decode_everything(cli, model, tmp_path, suffix, dtype):
    out = tmp_path / f"all{suffix}"
    assert cli("decode", model, "-o", out, "--dtype", dtype) == (0, "", "")
    loaded = load(out)
    with ggufx.open(model) as f:
        assert set(loaded) == set(f.tensors)
        for name, tensor in f.tensors.items():
            want = tensor.dequantize() if tensor.qtype in INTEGER_TYPES else tensor.dequantize(dtype)
            if tensor.qtype in INTEGER_TYPES:
                assert loaded[name].dtype == want.dtype
                assert np.array_equal(loaded[name], want)
            else:
                assert_same_bits(loaded[name], want, name)


def load(path):
    if path.suffix == ".npz":
        with np.load(path) as archive:
            return dict(archive)
    ml_dtypes = pytest.importorskip("ml_dtypes")
    load_file = pytest.importorskip("safetensors.numpy", reason="the safetensors package is not installed").load_file
    arrays = load_file(path)
    return {k: v.view(np.uint16) if v.dtype == ml_dtypes.bfloat16 else v for k, v in arrays.items()}


def test_decode_joins_its_pieces(cli, model, tmp_path, monkeypatch):
    from ggufx.cli import decode

    assert cli("decode", model, "-o", tmp_path / "whole.safetensors")[0] == 0
    monkeypatch.setattr(decode, "PIECE", 1000)
    assert cli("decode", model, "-o", tmp_path / "parts.safetensors")[0] == 0
    assert (tmp_path / "whole.safetensors").read_bytes() == (tmp_path / "parts.safetensors").read_bytes()


def test_decode_patterns(cli, model, tmp_path):
    out = tmp_path / "some.npz"
    assert cli("decode", model, "-o", out, "--tensors", "blk.0.*norm*", "--tensors", "output.weight")[0] == 0
    assert set(load(out)) == {"blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output.weight"}
    code, _, err = cli("decode", model, "-o", out, "--tensors", "blk.*", "--tensors", "nothing*")
    assert code == 1
    assert "nothing*" in err


def test_decode_name_that_looks_like_a_pattern(cli, tmp_path):
    path = gb.File().tensor("x[0]", (2,), 0).tensor("x0", (2,), 0).write(tmp_path / "in.gguf")
    assert cli("decode", path, "-o", tmp_path / "out.npz", "--tensors", "x[0]") == (0, "", "")
    assert set(load(tmp_path / "out.npz")) == {"x[0]"}


def test_decode_longest_names(cli, tmp_path):
    """A zip archive's names end at 65535 bytes, `.npy` included."""
    fits, too_long = "m" * 65531, "n" * 65532
    path = gb.File().tensor(fits, (4,), 0).write(tmp_path / "in.gguf")
    assert cli("decode", path, "-o", tmp_path / "fits.npz") == (0, "", "")
    assert set(load(tmp_path / "fits.npz")) == {fits}
    path = gb.File().tensor(too_long, (4,), 0).write(tmp_path / "in.gguf")
    code, _, err = cli("decode", path, "-o", tmp_path / "out.npz")
    assert code == 1
    assert "nnn..." in err
    assert len(err) < 300
    assert not (tmp_path / "out.npz").exists()


def test_decode_big_endian(cli, tmp_path):
    values = np.linspace(-1, 1, 16, dtype=">f4").reshape(2, 8)
    file = gb.File(3, True).tensor("w", (2, 8), 0, values.tobytes()).tensor("i", (3,), 25, bytes(range(6)))
    path = file.write(tmp_path / "big.gguf")
    assert cli("decode", path, "-o", tmp_path / "out.npz")[0] == 0
    loaded = load(tmp_path / "out.npz")
    assert loaded["w"].tolist() == values.tolist()
    assert loaded["i"].tolist() == [0x0001, 0x0203, 0x0405]


def test_decode_empty_and_odd_tensors(cli, tmp_path):
    path = gb.File().tensor("none", (0,), 0).tensor("one", (), 0, b"\0\0\x80?").write(tmp_path / "odd.gguf")
    for suffix in (".npz", ".safetensors"):
        out = tmp_path / f"out{suffix}"
        assert cli("decode", path, "-o", out) == (0, "", "")
        loaded = load(out)
        assert loaded["none"].shape == (0,)
        assert loaded["one"].tolist() == 1.0


@pytest.mark.parametrize("link", ["same", "hard", "symbolic"])
def test_decode_never_writes_over_the_input(cli, model, tmp_path, link):
    source = tmp_path / "model.npz"
    source.write_bytes(model.read_bytes())
    target = source if link == "same" else tmp_path / "other.npz"
    if link == "hard":
        os.link(source, target)
    elif link == "symbolic":
        target.symlink_to(source)
    code, _, err = cli("decode", source, "-o", target)
    assert code in (1, 2)
    assert "input" in err
    assert source.read_bytes() == model.read_bytes()


def test_decode_never_writes_over_a_shard(cli, model, tmp_path):
    """A symbolic link would lead to a shard that nobody named."""
    shards = splitting.split(model, tmp_path / "m", max_tensors=20, first_empty=True)
    before = [os.stat(p).st_size for p in shards]
    for shard in shards:
        link = tmp_path / "link.npz"
        link.symlink_to(shard)
        for opened in shards:
            code, _, err = cli("decode", opened, "-o", link)
            assert (code, "input" in err) == (2, True)
        link.unlink()
    assert [os.stat(p).st_size for p in shards] == before


def test_decode_replaces_and_leaves_nothing_behind(cli, model, tmp_path):
    out = tmp_path / "out.npz"
    out.write_bytes(b"old")
    os.chmod(out, 0o640)
    assert cli("decode", model, "-o", out)[0] == 0
    assert stat.S_IMODE(out.stat().st_mode) == 0o640
    assert [p.name for p in tmp_path.iterdir()] == ["out.npz"]


def test_failed_decode_keeps_the_old_output(cli, tmp_path):
    path = gb.File().tensor("fine", (32,), 2).tensor("../../escape", (32,), 2).write(tmp_path / "in.gguf")
    out = tmp_path / "out.npz"
    out.write_bytes(b"old")
    code, _, err = cli("decode", path, "-o", out)
    assert code == 1
    assert "../../escape" in err
    assert out.read_bytes() == b"old"
    assert {p.name for p in tmp_path.iterdir()} == {"in.gguf", "out.npz"}


@pytest.mark.parametrize("name", [b"\xff", b"__metadata__"])
def test_names_safetensors_cannot_hold(cli, tmp_path, name):
    path = gb.File().tensor(name, (32,), 2).write(tmp_path / "in.gguf")
    code, _, err = cli("decode", path, "-o", tmp_path / "out.safetensors")
    assert code == 1
    assert "tensor" in err


def test_missing_folder(cli, model, tmp_path):
    code, _, err = cli("decode", model, "-o", tmp_path / "none" / "out.npz")
    assert code == 1
    assert err.count("\n") == 1


def test_progress_names_its_extra(model, tmp_path):
    code = "import sys; sys.modules['tqdm'] = None; from ggufx.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "decode", str(model), "-o", str(tmp_path / "out.npz")]
    run = subprocess.run([*command, "--progress"], capture_output=True, text=True)
    assert run.returncode == 1
    assert "ggufx[progress]" in run.stderr
    assert subprocess.run(command, capture_output=True, text=True).returncode == 0


def test_progress_bar(cli, model, tmp_path):
    pytest.importorskip("tqdm", reason="the tqdm package is not installed")
    code, out, err = cli("decode", model, "-o", tmp_path / "out.npz", "--progress")
    assert (code, out) == (0, "")
    assert "100%" in err


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="no such signals here")
def test_interrupt_leaves_nothing(tmp_path, name):
    """Ctrl-C, kill or a lost terminal while it writes: nothing remains, no traceback."""
    rows = np.zeros((4000, 1 << 10), np.uint8).reshape(-1)[: 4000 * 1024 // 34 * 34]
    path = gb.File().tensor("w", (rows.size // 34, 32), 8, rows.tobytes()).write(tmp_path / "in.gguf")
    folder = tmp_path / "out"
    folder.mkdir()
    code = (
        "import sys, signal, threading, os, ggufx.cli.decode as d\n"
        "from ggufx.cli import main\n"
        "pieces = d._pieces\n"
        "def slow(*a):\n"
        "    yield from pieces(*a)\n"
        f"    os.kill(os.getpid(), signal.{name})\n"
        "d._pieces = slow\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "decode", str(path), "-o", str(folder / "out.npz")]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 128 + getattr(signal, name)
    assert run.stderr == ""
    assert not list(folder.iterdir())


def test_signal_handlers_are_the_callers_again(cli, model):
    def own(number, frame):
        pass

    before = signal.signal(signal.SIGTERM, own)
    try:
        assert cli(model)[0] == 0
        assert signal.getsignal(signal.SIGTERM) is own
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        assert cli(model)[0] == 0
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_memory_is_bounded(tmp_path):
    """Decoding keeps to a few megabytes beside the file's own pages, whatever a tensor's size."""
    path = gb.File().tensor("w", (1 << 14, 1 << 12), 2, bytes((1 << 26) // 32 * 18)).write(tmp_path / "in.gguf")
    code = (
        "import resource, sys, ggufx.cli.decode, ggufx\nfrom ggufx.cli import main\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "assert main(sys.argv[1:]) == 0\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)"
    )
    command = [sys.executable, "-c", code, "decode", str(path), "-o", str(tmp_path / "out.safetensors")]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(run.stdout) < path.stat().st_size + (48 << 20)


# ---- text


def test_printable():
    assert printable("naïve 語 ok") == "naïve 語 ok"
    assert printable("a\x1b[0m\n\x9b\u202e\udcff\u2028") == r"a\x1b[0m\n\x9b\u202e\xff\u2028"
    assert shortened("\x1b" * 50, 10) == r"\x1b\x1..."
    assert shortened("x" * 10, 10) == "x" * 10


def test_human_count():
    assert [human_count(n) for n in (12, 9_999, 268_098_176)] == ["12", "10.0 k", "268 M"]


def test_report_is_plain_data(model):
    with ggufx.open(model) as f:
        report = info.describe(f)
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert {QType[t["type"]] for t in report["tensors"]} == set(QType)
