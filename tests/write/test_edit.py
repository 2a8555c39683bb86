"""Editing, splitting, merging, byte order: what isn't asked for stays byte for byte."""

import errno
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path

import gguf_bytes as gb
import numpy as np
import pytest
from gguf_bytes import File, Info

import ggufx
from ggufx import GGUFError, GGUFWarning, QType
from ggufx.edit import edit, undo_unfinished
from ggufx.splitting import convert_endian, merge, split
from ggufx.write.writer import Writer, write

gguf = pytest.importorskip("gguf")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "in.gguf"
    rng = np.random.default_rng(3)
    with Writer(path) as w:
        w.set("general.architecture", "llama")
        w.set("general.name", "a name of some length")
        w.set("llama.block_count", 2)
        w.set("llama.rope.freq_base", 1e4)
        w.set("tokens", ["a", b"\xff\xfe", "c"])
        w.set("none", [], "string")
        w.set("numbers", [1, -2, 3])
        w.set("nested", [[1, 2], [3]], "uint8")
        w.set("flag", True)
        for n in range(5):
            w.add(f"t{n}", rng.standard_normal((3, 64), dtype=np.float32))
        w.add("q", rng.integers(0, 256, (2, 144), np.uint8), shape=(2, 256), qtype=QType.Q4_K)
    return path


def copy_of(path: Path, out: Path, **options: object) -> Path:
    with ggufx.open(path) as f:
        write(out, f.metadata, f.tensors, **options)
    return out


@pytest.mark.parametrize("options", [{}, {"alignment": 64}, {"byteorder": "big"}, {"version": 1}, {"version": 2}])
def test_read_and_write_unchanged_gives_the_same_bytes(model: Path, tmp_path: Path, options: dict) -> None:
    made = copy_of(model, tmp_path / "made.gguf", **options)
    with ggufx.open(model) as f, ggufx.open(made) as g:
        assert all(np.array_equal(g.metadata[key], f.metadata[key]) for key in f.metadata if key != "nested")
        assert g.metadata["nested"] == f.metadata["nested"]
    options.pop("alignment", None)
    again = copy_of(made, tmp_path / "again.gguf", **options)
    assert again.read_bytes() == made.read_bytes()
    if not options:
        return
    back = copy_of(made, tmp_path / "back.gguf")
    assert back.read_bytes() == model.read_bytes()


def test_the_shipped_sample_is_reproduced(tmp_path: Path) -> None:
    sample = Path(ggufx.__file__).with_name("sample.gguf")
    assert copy_of(sample, tmp_path / "copy.gguf").read_bytes() == sample.read_bytes()


def rest(path: Path) -> bytes:
    with ggufx.open(path) as f:
        return path.read_bytes()[f.data_offset :]


def test_a_value_of_the_same_size_is_set_in_place(model: Path) -> None:
    inode, data = model.stat().st_ino, rest(model)
    result = edit(model, set={"llama.block_count": 7, "flag": False})
    assert result.in_place
    assert model.stat().st_ino == inode
    assert result.nbytes < 300
    with ggufx.open(model) as f:
        assert (f.metadata["llama.block_count"], f.metadata["flag"]) == (7, False)
        assert str(f.metadata.types["llama.block_count"]) == "UINT32"
    assert rest(model) == data
    assert sorted(p.name for p in model.parent.iterdir()) == ["in.gguf"]


def test_a_longer_value_takes_a_copy(model: Path) -> None:
    data, size = rest(model), model.stat().st_size
    result = edit(model, set={"general.name": "n" * 1000}, rename={"flag": "other.flag"}, delete=["nested"])
    assert not result.in_place
    with ggufx.open(model) as f:
        assert list(f.metadata) == [
            "general.architecture", "general.name", "llama.block_count", "llama.rope.freq_base", "tokens", "none",
            "numbers",
            "other.flag",
        ]  # fmt: skip
        assert f.metadata["general.name"] == "n" * 1000
        assert f.metadata["tokens"].bytes[1] == b"\xff\xfe"
        assert str(f.metadata.types["none"]) == "STRING[0]"
    assert rest(model) == data
    assert model.stat().st_size > size


def test_an_output_leaves_the_file_alone(model: Path, tmp_path: Path) -> None:
    before = model.read_bytes()
    edit(model, set={"llama.block_count": 9}, output=tmp_path / "out.gguf")
    assert model.read_bytes() == before
    with ggufx.open(tmp_path / "out.gguf") as f:
        assert f.metadata["llama.block_count"] == 9
    with pytest.raises(ValueError, match="output is the input"):
        edit(model, set={"flag": False}, output=model)


def test_types_stay_or_are_given(model: Path) -> None:
    with pytest.raises(ValueError, match="doesn't fit uint32"):
        edit(model, set={"llama.block_count": -1})
    with pytest.raises(TypeError, match="uint32 was declared"):
        edit(model, set={"llama.block_count": "many"})
    edit(model, set={"llama.block_count": -1, "tokens": ["x"], "new": 3}, types={"llama.block_count": "int64"})
    with ggufx.open(model) as f:
        kinds = {key: str(kind) for key, kind in f.metadata.types.items()}
    assert (kinds["llama.block_count"], kinds["tokens"], kinds["new"]) == ("INT64", "STRING[1]", "UINT32")


@pytest.mark.parametrize(
    ("key", "value", "named", "made"),
    [
        ("llama.block_count", [1, 2], None, None),
        ("llama.block_count", np.array([3], np.uint32), None, None),
        ("general.name", ["a"], None, None),
        ("numbers", 3, None, None),
        ("tokens", "one", None, None),
        ("numbers", [[1], [2]], None, None),
        ("nested", [1, 2], None, None),
        ("nested", [[300]], None, None),  # beyond uint8, which its innermost elements are
        ("nested", [[4], [5, 6]], None, "ARRAY[2]"),
        ("numbers", [7], None, "INT32[1]"),
        ("none", [], None, "STRING[0]"),
        ("llama.block_count", [1, 2], "uint32", "UINT32[2]"),
        ("numbers", 3, "uint8", "UINT8"),
    ],
)
def test_scalars_and_arrays_stay_so_unless_a_type_is_named(
    model: Path, key: str, value: object, named: str | None, made: str | None
) -> None:
    before = model.read_bytes()
    types = {} if named is None else {key: named}
    if made is None:
        with pytest.raises((TypeError, ValueError), match=f"'{key}'"):
            edit(model, set={key: value}, types=types)
        assert model.read_bytes() == before
        return
    edit(model, set={key: value}, types=types)
    with ggufx.open(model) as f:
        assert str(f.metadata.types[key]) == made
        if key == "nested":
            assert str(f.metadata[key].field_type(1)) == "UINT8[2]"


def test_a_renamed_key_keeps_its_type(model: Path) -> None:
    edit(model, rename={"numbers": "other"}, set={"other": [1], "numbers": "free again"})
    with ggufx.open(model) as f:
        assert str(f.metadata.types["other"]) == "INT32[1]"
        assert f.metadata["numbers"] == "free again"
    with pytest.raises(TypeError, match="'other': an array of int32 was declared, but the value is int 3"):
        edit(model, set={"other": 3})


def test_keys_of_shards_have_their_types(model: Path) -> None:
    for value in ([1], np.array([1], np.uint16), "1", True, 1.0):
        with pytest.raises(TypeError, match=r"'split\.count'"):
            edit(model, set={"split.count": value})
    with pytest.raises(TypeError, match="GGUF has it as uint16, not uint32"):
        edit(model, set={"split.count": 1}, types={"split.count": "uint32"})


def test_more_experts_in_use_than_there_are_is_warned_of(model: Path) -> None:
    edit(model, set={"llama.expert_count": 4, "llama.expert_used_count": 4, "x.expert_used_count": 9})
    for change in ({"llama.expert_used_count": 5}, {"llama.expert_count": 3}):
        with pytest.warns(GGUFWarning, match=r"llama\.expert_used_count is 5, but llama\.expert_count only [34]"):
            edit(model, set=change)
    edit(model, set={"general.name": "another change says nothing of it"})


@pytest.mark.parametrize("offset", [0, 96, 1 << 40, (1 << 64) - 32])
def test_an_empty_tensor_keeps_its_offset_wherever_it_is(tmp_path: Path, offset: int) -> None:
    infos = [Info(b"t", [8], 0, 0), Info(b"none", [0], 0, offset)]
    path = File(infos=infos, data=bytes(32)).add("k", gb.U8, 1).write(tmp_path / "m.gguf")
    before = path.read_bytes()
    for value in (2, "a text that takes more room than the padding has"):
        edit(path, set={"k": value}, types={"k": "uint8" if value == 2 else "string"})
        assert path.read_bytes().count(struct.pack("<IQIQ", 1, 0, 0, offset)) == 1
    edit(path, set={"k": 1}, types={"k": "uint8"})
    assert path.read_bytes() == before


def test_wrong_edits_change_nothing(model: Path) -> None:
    before = model.read_bytes()
    for options, error in (
        ({"delete": ["missing"]}, KeyError),
        ({"rename": {"missing": "x"}}, KeyError),
        ({"types": {"general.name": "string"}}, ValueError),
        ({"rename": {"flag": "none"}}, ValueError),
        ({"rename": {"flag": ""}}, TypeError),
        ({"rename": {"flag": 5}}, TypeError),
        ({"rename": {"flag": "k" * 65536}}, ValueError),
        ({"rename": {"flag": "\ud800"}}, ValueError),
        ({"rename": {"flag": "\udcc3\udca9"}}, ValueError),
        ({"set": {"\udcc3\udca9": 1}}, ValueError),
        ({"set": {"": 1}}, TypeError),
        ({"set": {5: 1}}, TypeError),
        ({"set": {None: 1}}, TypeError),
        ({"set": {"k" * 65536: 1}}, ValueError),
        ({"set": {"é" * 32768: 1}}, ValueError),
        ({"set": {"general.alignment": 64}}, GGUFError),
        ({"set": {"general.alignment": 64}, "types": {"general.alignment": "float32"}}, GGUFError),
        ({"set": {"general.alignment": "x"}}, GGUFError),
        ({"rename": {"llama.block_count": "general.alignment"}}, GGUFError),
        ({"set": {"zeros": np.zeros((1 << 24) + 1, np.uint8)}}, GGUFError),  # more than the reader takes by default
    ):
        with pytest.raises(error):
            edit(model, **options)
    assert model.read_bytes() == before


def test_nothing_to_change(model: Path) -> None:
    before = model.read_bytes()
    assert edit(model, set={"flag": True}) == (str(model), True, 0)
    assert model.read_bytes() == before


def test_a_vocabulary_without_tensors_ends_where_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "vocab.gguf"
    w = gguf.GGUFWriter(path, "llama")
    w.add_token_list([b"a", b"bcd"])
    w.add_name("some name")
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.close()
    assert path.stat().st_size % 32
    assert copy_of(path, tmp_path / "copy.gguf").read_bytes() == path.read_bytes()
    size = path.stat().st_size
    assert edit(path, set={"general.name": "SOME NAME"}).in_place
    assert path.stat().st_size == size
    assert not edit(path, set={"general.name": "a longer name"}).in_place
    assert path.stat().st_size == size + 4
    with ggufx.open(path) as f:
        assert (f.metadata["general.name"], list(f.metadata["tokenizer.ggml.tokens"])) == (
            "a longer name",
            ["a", "bcd"],
        )


def test_odd_layouts_survive_a_copy(tmp_path: Path) -> None:
    """Tensors out of order, gaps and trailing bytes are carried over as they are."""
    path = tmp_path / "odd.gguf"
    text = lambda s: struct.pack("<Q", len(s)) + s  # noqa: E731
    header = b"GGUF" + struct.pack("<IQQ", 3, 2, 1) + text(b"k") + struct.pack("<I", 8) + text(b"v")
    for name, offset in ((b"late", 96), (b"early", 32)):
        header += text(name) + struct.pack("<IQIQ", 1, 4, 0, offset)
    header += bytes(-len(header) % 32)
    path.write_bytes(header + bytes(range(200)) + b"trailing")
    edit(path, set={"k": "a much longer value than before"})
    assert rest(path) == bytes(range(200)) + b"trailing"
    with ggufx.open(path) as f:
        assert bytes(f["early"].packed()) == bytes(range(32, 48))


CHILD = """
import os, signal, sys
from ggufx import edit
from ggufx.write import undo
stage = sys.argv[2]
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
if stage == "unlink":
    os.unlink = die
elif stage == "write":
    real = open
    def half(name, mode="r"):
        f = real(name, mode)
        if mode == "r+b":
            write = f.write
            class Half:
                def __enter__(self): return self
                def __exit__(self, *a): pass
                def seek(self, at): f.seek(at)
                def fileno(self): return f.fileno()
                def write(self, data): write(data[: len(data) // 2]); f.flush(); die()
            return Half()
        return f
    undo.open = half
else:
    setattr(undo.OutputFile, stage, die)
edit.edit(sys.argv[1], set={"general.name": "a new name as long .."})
"""


@pytest.mark.parametrize("stage", ["write", "finish", "publish", "unlink"])
def test_killed_while_editing_in_place(model: Path, stage: str) -> None:
    before = model.read_bytes()
    child = subprocess.run([sys.executable, "-c", CHILD, str(model), stage], cwd="/", timeout=60)
    assert child.returncode == -signal.SIGKILL
    assert undo_unfinished(model) == (stage == "write")
    assert (model.read_bytes() == before) == (stage != "unlink")  # where everything was written, it stays
    assert edit(model, set={"general.name": "a new name as long .."}).in_place
    with ggufx.open(model) as f:
        assert f.metadata["general.name"] == "a new name as long .."
    assert [p.name for p in model.parent.iterdir() if not p.name.endswith(".partial")] == ["in.gguf"]


def test_a_damaged_undo_file_is_not_applied(model: Path) -> None:
    before = model.read_bytes()
    model.with_name(".in.gguf.undo").write_bytes(b"ggufxund" + struct.pack("<QQ", 0, 100) + b"short")
    with pytest.raises(GGUFError, match="damaged"):
        edit(model, set={"flag": False})
    assert model.read_bytes() == before


def test_the_longest_key_can_be_opened(model: Path) -> None:
    edit(model, set={"k" * 65535: 1}, rename={"flag": "f" * 65535})
    with ggufx.open(model) as f:
        assert (f.metadata["k" * 65535], f.metadata["f" * 65535]) == (1, True)


def interrupted(model: Path, stage: str = "write") -> Path:
    """Leave what a killed edit leaves; returns the saved bytes' path."""
    child = subprocess.run([sys.executable, "-c", CHILD, str(model), stage], cwd="/", timeout=60)
    assert child.returncode == -signal.SIGKILL
    undo = model.with_name(f".{model.name}.undo")
    assert undo.exists()
    return undo


def other_model(path: Path, name: str) -> bytes:
    with Writer(path) as w:
        w.set("general.name", name)
        w.set("padding", "x" * 500)
        w.add("t", np.arange(64, dtype=np.float32))
    return path.read_bytes()


@pytest.mark.parametrize("stage", ["write", "unlink"])
@pytest.mark.parametrize("how", ["moved over", "written anew", "copied into"])
def test_saved_bytes_never_go_into_another_file(model: Path, tmp_path: Path, stage: str, how: str) -> None:
    undo = interrupted(model, stage)
    other = other_model(tmp_path / "other.gguf", "another")
    if how == "moved over":
        os.replace(tmp_path / "other.gguf", model)
        with pytest.warns(GGUFWarning, match="this one has replaced"):
            assert not undo_unfinished(model)
    elif how == "written anew":
        other_model(model, "another")
        assert not undo.exists()
        assert not undo_unfinished(model)
    else:
        model.write_bytes(other)
        with pytest.raises(GGUFError, match="was changed since; remove"):
            edit(model, set={"general.name": "x"})
        undo.unlink()
    assert model.read_bytes() == other
    assert not undo.exists()
    edit(model, set={"general.name": "ANOTHER"})
    with ggufx.open(model) as f:
        assert (f.metadata["general.name"], f["t"].dequantize()[63]) == ("ANOTHER", 63)


def test_a_warning_that_is_an_error_comes_once(model: Path, tmp_path: Path) -> None:
    undo = interrupted(model)
    other_model(tmp_path / "other.gguf", "another")
    os.replace(tmp_path / "other.gguf", model)
    with pytest.raises(GGUFWarning):
        undo_unfinished(model)
    assert not undo.exists()


def test_a_torn_file_that_was_moved_is_not_decided_about(model: Path) -> None:
    undo = interrupted(model)
    torn = model.read_bytes()
    model.with_name("copy").write_bytes(torn)
    os.replace(model.with_name("copy"), model)
    with pytest.raises(GGUFError, match="copy of a file whose edit was interrupted"):
        undo_unfinished(model)
    assert model.read_bytes() == torn
    assert undo.exists()


@pytest.mark.parametrize("kind", ["symbolic", "hard", "pipe"])
def test_a_link_in_place_of_the_saved_bytes(model: Path, tmp_path: Path, kind: str) -> None:
    victim, undo, before = tmp_path / "victim", tmp_path / ".in.gguf.undo", model.read_bytes()
    victim.write_bytes(b"precious")
    if kind == "symbolic":
        undo.symlink_to(victim)
    elif kind == "hard":
        os.link(victim, undo)
    else:
        os.mkfifo(undo)
    with pytest.raises(OSError, match="remove it to go on"):
        edit(model, set={"flag": False})
    write(tmp_path / "new.gguf", {"a": 1}, {})
    os.replace(tmp_path / "new.gguf", tmp_path / "in.gguf")
    write(model, {"a": 1}, {})  # leaves what isn't its own alone
    assert victim.read_bytes() == b"precious"
    assert undo.is_symlink() or undo.exists()
    assert before != model.read_bytes()


@pytest.mark.parametrize("damage", ["empty", "head", "byte", "longer"])
def test_damaged_saved_bytes(model: Path, damage: str) -> None:
    undo = interrupted(model)
    saved, torn = bytearray(undo.read_bytes()), model.read_bytes()
    saved[100] ^= 1
    undo.write_bytes({"empty": b"", "head": saved[:40], "byte": saved, "longer": saved + b"x"}[damage])
    with pytest.raises(GGUFError, match="damaged"):
        edit(model, set={"flag": False})
    assert model.read_bytes() == torn


HELD = """
import os, sys
from ggufx import edit
from ggufx.write import undo
def hold(*_):
    print("held", flush=True)
    sys.stdin.readline()
real, at = getattr(undo, sys.argv[2]), sys.argv[2]
def slow(*args, **options):
    if sys.argv[3] == "before":
        hold()
    real(*args, **options)
    if sys.argv[3] == "after":
        hold()
setattr(undo, at, slow)
edit.edit(sys.argv[1], set={"general.name": "a new name as long .."})
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_edit_keeps_others_out(model: Path, tmp_path: Path, when: str) -> None:
    command = [sys.executable, "-c", HELD, str(model), "_write", when]
    with subprocess.Popen(command, cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"held\n"
        for change in (
            lambda: edit(model, set={"llama.block_count": 7}),
            lambda: edit(model, set={"general.name": "n" * 1000}),
            lambda: edit(model, set={"llama.block_count": 7}, output=tmp_path / "out.gguf"),
            lambda: undo_unfinished(model),
        ):
            with pytest.raises(OSError, match="another process is writing") as caught:
                change()
            assert caught.value.errno == errno.EBUSY
        child.communicate(b"\n", timeout=60)
        assert child.returncode == 0
    edit(model, set={"llama.block_count": 7})
    with ggufx.open(model) as f:
        assert (f.metadata["general.name"], f.metadata["llama.block_count"]) == ("a new name as long ..", 7)


def test_a_file_replaced_during_an_edit(model: Path, tmp_path: Path) -> None:
    """The edit is lost, and says so; the new file has none of it."""
    other = other_model(tmp_path / "other.gguf", "another")
    command = [sys.executable, "-c", HELD, str(model), "_write", "before"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd="/", **pipes) as child:
        assert child.stdout.readline() == b"held\n"
        other_model(model, "another")
        _, err = child.communicate(b"\n", timeout=60)
        assert b"replaced this file while it was edited" in err
    assert model.read_bytes() == other
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.gguf", "other.gguf"]


EDITS = """
import sys
from ggufx.edit import edit
path, mine = sys.argv[1], int(sys.argv[2])
done = 0
for n in range(1, 40):
    try:
        edit(path, set={f"n.{mine}": n, f"k.{mine}": "y" * (n * 37 % 90)}, sync=False)
        done = n
    except OSError as error:
        if error.errno != 16:
            raise
print(done)
"""


def test_edits_at_once_never_mix(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    with Writer(path, alignment=4096) as w:
        for n in range(3):
            w.set(f"n.{n}", 0)
            w.set(f"k.{n}", "x")
        w.add("t", np.arange(8, dtype=np.float32))
    children = [
        subprocess.Popen([sys.executable, "-c", EDITS, str(path), str(n)], cwd="/", stdout=subprocess.PIPE)
        for n in range(3)
    ]
    done = [int(child.communicate(timeout=120)[0]) for child in children]
    assert any(done)
    with ggufx.open(path) as f:
        assert [f.metadata[f"n.{n}"] for n in range(3)] == done
        assert f["t"].dequantize().tolist() == list(range(8))
    assert os.listdir(tmp_path) == ["m.gguf"]


@pytest.mark.parametrize("options", [{"max_tensors": 2}, {"max_bytes": 1600}, {"max_tensors": 2, "first_empty": True}])
def test_split_and_merge_give_the_same_bytes(model: Path, tmp_path: Path, options: dict) -> None:
    shards = split(model, tmp_path / "part", **options)
    assert len(shards) == (4 if "first_empty" in options else 3)
    assert [Path(s).name for s in shards] == [f"part-{n + 1:05d}-of-{len(shards):05d}.gguf" for n in range(len(shards))]
    merge(shards[1], tmp_path / "whole.gguf")
    assert (tmp_path / "whole.gguf").read_bytes() == model.read_bytes()


def test_shards_are_checked(model: Path, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="max_bytes or max_tensors"):
        split(model, tmp_path / "part")
    with pytest.raises(GGUFError, match="no shard of a set"):
        merge(model, tmp_path / "w.gguf")
    a, b, c = split(model, tmp_path / "part", max_tensors=2)
    with pytest.raises(GGUFError, match="one of 3 shards"):
        split(a, tmp_path / "again", max_tensors=1)
    saved = Path(c).read_bytes()
    os.unlink(c)
    with pytest.raises(GGUFError, match=r"part-00003-of-00003\.gguf.*missing"):
        merge(a, tmp_path / "w.gguf")
    Path(c).write_bytes(Path(b).read_bytes())
    with pytest.raises(GGUFError, match=r"split\.no is 1, 2 was expected"):
        merge(a, tmp_path / "w.gguf")
    Path(c).write_bytes(saved)
    edit(a, set={"split.tensors.count": 9})
    with pytest.raises(GGUFError, match=r"split\.tensors\.count is 9"):
        merge(a, tmp_path / "w.gguf")
    edit(a, set={"split.tensors.count": 6})
    with pytest.raises(ValueError, match="output is the input"):
        merge(a, b)
    assert not (tmp_path / "w.gguf").exists()


def test_endian_there_and_back(model: Path, tmp_path: Path) -> None:
    sample = Path(ggufx.__file__).with_name("sample.gguf")
    for source in (model, sample):
        big, back = tmp_path / "big.gguf", tmp_path / "back.gguf"
        convert_endian(source, big, "big")
        with ggufx.open(source) as f, ggufx.open(big) as g:
            assert g.byteorder == "big"
            for name, t in f.tensors.items():
                if t.qtype in (QType.I8, QType.I16, QType.I32, QType.I64):
                    np.testing.assert_array_equal(t.data, g[name].data)
                else:
                    np.testing.assert_array_equal(t.dequantize(), g[name].dequantize())
        convert_endian(big, back, "little")
        assert back.read_bytes() == source.read_bytes()


def test_an_unknown_type_cannot_be_swapped(tmp_path: Path) -> None:
    path = tmp_path / "new.gguf"
    name = b"t"
    header = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q", 1) + name + struct.pack("<IQIQ", 1, 4, 99, 0)
    path.write_bytes(header + bytes(-len(header) % 32) + bytes(32))
    with pytest.raises(GGUFError, match="type id 99"):
        convert_endian(path, tmp_path / "big.gguf", "big")
    assert copy_of(path, tmp_path / "same.gguf").read_bytes() == path.read_bytes()
