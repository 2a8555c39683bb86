"""Importance matrices: both file forms, merging, collecting from activations, and what damaged files raise."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import numpy as np
import pytest

import ggufx
from ggufx import GGUFError, GGUFWarning
from ggufx.imatrix import Accumulator, Entry, ImportanceMatrix, load


def small() -> ImportanceMatrix:
    entries = {
        "blk.0.attn_q.weight": Entry(np.arange(1, 9, dtype=np.float32)[None] * 100, np.array([1024])),
        "blk.0.ffn_up_exps.weight": Entry(
            np.arange(24, dtype=np.float32).reshape(3, 8), np.array([512, 0, 100])
        ),
    }  # fmt: skip
    return ImportanceMatrix(entries, ["text.txt"], 2, 512)


def test_what_quantize_takes():
    matrix = small()
    np.testing.assert_array_equal(
        matrix["blk.0.attn_q.weight"], np.arange(1, 9, dtype=np.float32) * 100 / np.float32(1024)
    )
    with pytest.warns(GGUFWarning, match=r"ffn_up_exps.weight': 1 of 3 experts never fired"):
        experts = matrix["blk.0.ffn_up_exps.weight"]
    assert experts.shape == (3, 8)
    assert experts.dtype == np.float32
    np.testing.assert_array_equal(experts[1], 1)
    np.testing.assert_array_equal(experts[2], np.arange(16, 24, dtype=np.float32) / np.float32(100))
    assert set(matrix) == set(matrix.entries)
    with pytest.raises(KeyError):
        matrix["output.weight"]


def test_shapes_decide():
    matrix = ImportanceMatrix({"w": Entry(np.ones((1, 24), np.float32), np.array([3]))})
    assert matrix.for_shape("w", (5, 24)).shape == (24,)
    assert matrix.for_shape("w", (3, 5, 8)).shape == (3, 8)
    with pytest.raises(GGUFError, match=r"'w' has 24 values; a tensor of shape \(3, 5, 7\) takes 7 or 21"):
        matrix.for_shape("w", (3, 5, 7))


def test_gguf_form_round_trips(tmp_path):
    matrix = small()
    matrix.save(tmp_path / "m.gguf")
    again = load(tmp_path / "m.gguf")
    assert (again.datasets, again.chunk_count, again.chunk_size) == (["text.txt"], 2, 512)
    assert set(again.entries) == set(matrix.entries)
    for name, entry in matrix.entries.items():
        np.testing.assert_array_equal(again.entries[name].sums, entry.sums)
        np.testing.assert_array_equal(again.entries[name].counts, entry.counts)
    with ggufx.open(tmp_path / "m.gguf") as f:
        assert f.metadata["general.type"] == "imatrix"
        assert f.tensors["blk.0.ffn_up_exps.weight.in_sum2"].ggml_shape == (8, 3)
        assert f.tensors["blk.0.ffn_up_exps.weight.counts"].ggml_shape == (1, 3)


def test_dat_form(tmp_path):
    """Byte for byte what llama.cpp's older writer makes of this matrix, and back."""
    small().save(tmp_path / "m.dat")
    values1 = np.arange(1, 9, dtype=np.float32) * 100 / np.float32(1024) * np.float32(2)
    values2 = np.concatenate(
        [np.arange(8, dtype=np.float32) / 512, np.ones(8), np.arange(16, 24, dtype=np.float32) / 100]
    )
    want = struct.pack("<i", 2)
    for name, calls, values in (("blk.0.attn_q.weight", 2, values1), ("blk.0.ffn_up_exps.weight", 1, values2)):
        want += struct.pack(f"<i{len(name)}sii", len(name), name.encode(), calls, values.size)
        want += values.astype("<f4").tobytes()
    want += struct.pack("<ii8s", 2, 8, b"text.txt")
    assert (tmp_path / "m.dat").read_bytes() == want
    again = load(tmp_path / "m.dat")
    assert (again.datasets, again.chunk_count) == (["text.txt"], 2)
    np.testing.assert_array_equal(again["blk.0.attn_q.weight"], values1 / 2)
    np.testing.assert_array_equal(
        again.for_shape("blk.0.ffn_up_exps.weight", (3, 4, 8)), values2.reshape(3, 8).astype("f4")
    )


def test_dat_without_its_end(tmp_path):
    whole = struct.pack("<ii1siif", 1, 1, b"w", 0, 1, 3.5)
    (tmp_path / "m").write_bytes(whole)
    assert load(tmp_path / "m")["w"] == [3.5]  # no calls: the value itself


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "the file ends at 0, inside the number of tensors"),
        (struct.pack("<i", 0), "number of tensors is 0"),
        (struct.pack("<i", -1), "number of tensors is -1"),
        (struct.pack("<i", 2**31 - 1) + bytes(64), "number of tensors is 2147483647"),
        (struct.pack("<ii", 1, 2**30) + bytes(64), "length of name 0 is 1073741824"),
        (struct.pack("<ii1sii", 1, 1, b"w", 1, 2**30) + bytes(64), "number of values of 'w' is 1073741824"),
        (struct.pack("<ii1sii", 1, 1, b"w", -1, 1) + bytes(4), "number of calls of 'w' is -1"),
        (struct.pack("<ii1siif", 1, 1, b"w", 1, 1, np.nan), "'w' has a sum of nan at 0"),
        (struct.pack("<ii1siif", 1, 1, b"w", 1, 1, -1), "'w' has a sum of -512.0 at 0"),
        (struct.pack("<i", 2) + 2 * struct.pack("<i1siif", 1, b"w", 1, 1, 1), "'w' is there twice"),
        (struct.pack("<ii1siifi", 1, 1, b"w", 1, 1, 1, -5), "number of chunks is -5"),
        (struct.pack("<ii1siifii", 1, 1, b"w", 1, 1, 1, 5, 99), "length of the dataset's name is 99"),
    ],
)
def test_damaged_dat(tmp_path, data, match):
    (tmp_path / "bad.dat").write_bytes(data)
    with pytest.raises(GGUFError, match=match) as caught:
        load(tmp_path / "bad.dat")
    assert "bad.dat" in str(caught.value)


F32 = np.float32
KIND = {"general.type": "imatrix"}


@pytest.mark.parametrize(
    ("metadata", "tensors", "match"),
    [
        ({}, {"w": np.ones(1, F32)}, "general.type is None"),
        (KIND, {"w": np.ones(1, F32)}, "'w' is neither"),
        (KIND, {"w.counts": np.ones(1, F32)}, "has no 'w.in_sum2'"),
        (KIND, {"w.in_sum2": np.ones(1, F32)}, "has no 'w.counts'"),
        (
            {"general.type": "imatrix"},
            {"w.in_sum2": np.ones(4, F32), "w.counts": np.ones(3, F32)},
            "4 sums and 3 counts",
        ),
        (
            {"general.type": "imatrix"},
            {"w.in_sum2": -np.ones(4, F32), "w.counts": np.ones(1, F32)},
            "a sum of -1.0 at 0",
        ),
        (KIND, {"w.in_sum2": np.ones(4, F32), "w.counts": -np.ones(1, F32)}, "a count of -1.0"),
    ],
)
def test_damaged_gguf(tmp_path, metadata, tensors, match):
    from ggufx.write.writer import write

    write(tmp_path / "bad.gguf", metadata, tensors)
    with pytest.raises(GGUFError, match=match):
        load(tmp_path / "bad.gguf")


def test_merging(tmp_path):
    small().save(tmp_path / "a.gguf")
    small().save(tmp_path / "b.gguf")
    other = small()
    other.entries = {"output.weight": Entry(np.ones((1, 4)), np.array([7]))}
    other.save(tmp_path / "c.gguf")
    merged = load(tmp_path / "a.gguf", tmp_path / "b.gguf", tmp_path / "c.gguf")
    assert len(merged) == 3
    assert merged.chunk_count == 6
    assert merged.datasets == ["text.txt"] * 3
    entry = merged.entries["blk.0.ffn_up_exps.weight"]
    np.testing.assert_array_equal(entry.counts, [1024, 0, 200])
    np.testing.assert_array_equal(entry.sums, 2 * np.arange(24).reshape(3, 8))
    small().save(tmp_path / "a.dat")
    both = load(tmp_path / "a.gguf", tmp_path / "a.dat")
    np.testing.assert_allclose(both["blk.0.attn_q.weight"], small()["blk.0.attn_q.weight"], rtol=1e-6)
    assert both.entries["blk.0.ffn_up_exps.weight"].counts.tolist() == [1024, 512, 612]
    other.entries = {"blk.0.attn_q.weight": Entry(np.ones((1, 4)), np.array([7]))}
    with pytest.raises(GGUFError, match=r"'blk\.0\.attn_q\.weight' has 8 values in one matrix, 4 in another"):
        small().merge(other)


def test_accumulating(rng):
    x = rng.standard_normal((3, 50, 16)).astype(np.float32)
    seen = Accumulator(chunk_size=100)
    for part in x:
        seen.add("w", part)
    matrix = seen.result(["a"])
    assert matrix.entries["w"].counts.tolist() == [150]
    assert matrix.chunk_count == 2
    np.testing.assert_allclose(matrix["w"], (x.astype(float) ** 2).mean((0, 1)), rtol=1e-6)
    with pytest.raises(GGUFError, match="activations of 'w': column 2 isn't finite"):
        seen.add("w", [[0.0, 1, np.inf, 1]])
    with pytest.raises(ValueError, match=r"'w': activations for \(1, 4\)"):
        seen.add("w", np.ones((2, 4)))
    assert seen.result().entries["w"].counts.tolist() == [150]


def test_experts_must_fit_the_rows(rng):
    x = rng.standard_normal((6, 4, 8))
    seen = Accumulator()
    for shape in ((6, 4), (24,), (6, 4, 3), (24, 3)):
        seen.add("w", x, experts=np.ones(shape, np.int64), n_experts=3)
    seen.add("w", x[:0], experts=np.ones((0, 4, 2)), n_experts=3)
    seen.add("w", x[0, :0], experts=[], n_experts=3)
    assert seen.result().entries["w"].counts.tolist() == [0, 24 * (1 + 1 + 3 + 3), 0]
    for shape in ((12, 2), (2, 12), (5, 2), (4, 6), ()):
        with pytest.raises(ValueError, match=r"'w': experts of shape .* for activations of shape \(6, 4, 8\)"):
            seen.add("w", x, experts=np.ones(shape, np.int64))
    with pytest.raises(TypeError, match="'w': experts should be integers, not float64"):
        seen.add("w", x, experts=np.ones((6, 4)))
    for experts in (None, 1):
        with pytest.raises(ValueError, match="'v': activations have no dimension"):
            seen.add("v", np.float32(1), experts=experts, n_experts=3)


def test_accumulating_experts(rng):
    x = rng.standard_normal((40, 8))
    experts = rng.integers(0, 3, (40, 2))
    seen = Accumulator()
    with pytest.raises(ValueError, match="n_experts is needed"):
        seen.add("w", x, experts=experts)
    seen.add("w", x[:20], experts=experts[:20], n_experts=4)
    seen.add("w", x[20:], experts=experts[20:])
    entry = seen.result().entries["w"]
    want = np.zeros((4, 8))
    for row, chosen in zip(x, experts, strict=True):
        for k in chosen:
            want[k] += row**2
    np.testing.assert_allclose(entry.sums, want)
    assert entry.counts.tolist() == np.bincount(experts.ravel(), minlength=4).tolist()
    with pytest.raises(ValueError, match="expert 0 to 9, 0 to 3"):
        seen.add("w", x[:2], experts=[[0, 9], [1, 1]])


def test_importance_lowers_output_error(rng):
    """A toy layer with a few strong input columns: weighting by them brings its output nearer."""
    strength = np.where(rng.random(256) < 0.1, 10, 0.3)
    x = rng.standard_normal((500, 256)) * strength
    w = rng.standard_normal((64, 256)).astype(np.float32)
    seen = Accumulator()
    seen.add("w", x)
    importance = seen.result()["w"]
    for qtype in ("Q4_0", "Q4_K", "Q2_K", "IQ3_S", "IQ2_S"):
        errors = []
        for imatrix in (importance, None):
            decoded = ggufx.dequantize(ggufx.quantize(w, qtype, imatrix=imatrix), qtype)
            errors.append(np.square(x @ (decoded - w).T).mean())
        assert errors[0] < 0.9 * errors[1], qtype


def test_torch_hooks(rng):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    x = torch.from_numpy(rng.standard_normal((5, 7, 8)).astype(np.float32))
    seen = Accumulator()
    with seen.watch(model, {"0.weight": "blk.0.weight", "2.weight": "blk.1.weight"}):
        model(x)
    model(x)  # no longer watched
    matrix = seen.result()
    np.testing.assert_allclose(matrix["blk.0.weight"], np.square(x.numpy()).mean((0, 1)), rtol=1e-5)
    hidden = model[1](model[0](x)).detach().numpy()
    np.testing.assert_allclose(matrix["blk.1.weight"], np.square(hidden).mean((0, 1)), rtol=1e-5)
    assert matrix.entries["blk.0.weight"].counts.tolist() == [35]


class Linear:
    """As much of a torch module as the accumulator needs."""

    def __init__(self) -> None:
        self.weight = np.ones((4, 8))
        self.hooks: list = []

    def named_modules(self):
        return [("", object()), ("layer", self)]

    def register_forward_pre_hook(self, hook):
        self.hooks.append(hook)
        return self

    def remove(self) -> None:
        self.hooks.clear()

    def __call__(self, x):
        for hook in self.hooks:
            hook(self, (x,))


def test_documented_examples(tmp_path, monkeypatch):
    page = Path(__file__).parents[2] / "docs" / "quantizing.md"
    if not page.exists():
        pytest.skip("docs/ is not here: not a source tree")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for code in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S):
        exec(compile(code, page.name, "exec"), names)
    assert names["both"].entries["blk.0.ffn_up.weight"].counts.tolist() == [1000]


def test_watching():
    layer = Linear()
    seen = Accumulator()
    with seen.watch(layer):
        layer(np.full((3, 8), 2.0))
    layer(np.full((3, 8), 9.0))
    assert seen.result()["layer.weight"].tolist() == [4.0] * 8
    with seen.watch(layer, lambda name: None):
        layer(np.full((3, 8), 9.0))
    assert list(seen.result()) == ["layer.weight"]
