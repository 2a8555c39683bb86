"""Names that aren't there, and the file as the mapping and the table that notebooks expect."""

import pickle
from pathlib import Path

import pytest

import ggufx
from ggufx.cli import main

SAMPLE = Path(ggufx.__file__).parent / "sample.gguf"


@pytest.fixture
def f():
    with ggufx.open(SAMPLE) as file:
        yield file


@pytest.mark.parametrize("shards", [False, True])
def test_near_names_of_tensors(f, shards, tmp_path):
    if shards:
        ggufx.split(SAMPLE, tmp_path / "s", max_tensors=4)
        f = ggufx.open(next(tmp_path.glob("s-00001*")))
    for tensors in (f, f.tensors):
        with pytest.raises(KeyError, match=r"no tensor 'blk\.0\.atn_q\.weight'; did you mean 'blk\.0\.attn_q") as e:
            tensors["blk.0.atn_q.weight"]
        assert str(pickle.loads(pickle.dumps(e.value))) == str(e.value)
        with pytest.raises(KeyError, match=r"no tensor 3$"):
            tensors[3]


def test_near_names_of_keys(f):
    for look in (f.metadata.__getitem__, f.metadata.types.__getitem__, f.metadata.raw):
        with pytest.raises(KeyError, match=r"no key 'general\.architectur'; did you mean 'general\.architecture'"):
            look("general.architectur")


def test_blocks_without_experts_and_parts(f):
    with pytest.raises(KeyError, match="block 0 has no experts; blocks 1 to 2 have some"):
        f.moe[0]
    with pytest.raises(KeyError, match="block 1 has no experts' 'gates'; there are gate"):
        f.moe[1]["gates"]
    with pytest.raises(KeyError, match=r"block 0 has no tensor 'attn_q\.weigh'; did you mean 'attn_q\.weight'"):
        f.layers()[0]["attn_q.weigh"]


def test_a_file_is_a_mapping(f):
    names = list(f)
    assert list(dict(f)) == names
    assert list(f.keys()) == names
    assert [t.name for t in f.values()] == names
    assert [(n, t.name) for n, t in f.items()] == [(n, n) for n in names]
    assert f.get(names[0]) is f[names[0]]
    assert f.get("nothing") is None
    assert f.get("nothing", 3) == 3
    assert f._ipython_key_completions_() == names
    assert f.metadata._ipython_key_completions_() == list(f.metadata)


def test_html_of_a_file(f, tmp_path):
    html = f._repr_html_()
    names = list(f)
    shown = [name for name in names if f"<td>{name}</td>" in html]
    assert shown == names[:20] + names[-5:]
    assert f"… {len(names) - 25} more …" in html
    assert all(f"<td>{key}</td>" in html for key in list(f.metadata)[:20])
    path = tmp_path / "odd.gguf"
    ggufx.write(path, {f"k{i}": "<b>" for i in range(40)} | {"\udcff": "\udcff"}, {})
    with ggufx.open(path) as odd:
        html = odd._repr_html_()
        keys = len(odd.metadata)
    html.encode()
    assert "<b>" not in html
    assert "&lt;b&gt;" in html
    assert f"… {keys - 25} more …" in html
    assert "closed" in odd._repr_html_()


@pytest.mark.parametrize(
    ("mode", "hint"),
    [("rb", "isn't Python's"), ("w", "ggufx.write makes one"), ("z", "'r', 'c', 'read' or 'auto', not 'z'$")],
)
def test_modes_of_python_are_explained(mode, hint):
    with pytest.raises(ValueError, match=hint):
        ggufx.open(SAMPLE, mode)


def test_a_safetensors_file_is_recognised(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"\x10\0\0\0\0\0\0\0" + b'{"__metadata__":{}}' + bytes(64))
    with pytest.raises(ggufx.GGUFError, match="looks like a safetensors file"):
        ggufx.open(path)


def test_a_mistyped_command(capsys, tmp_path, monkeypatch):
    assert main(["quantise", "x"]) == 2
    assert "no command 'quantise'; did you mean 'quantize'?" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    assert main(["nothing.gguf"]) == 1
    assert "nothing.gguf: No such file" in capsys.readouterr().err
