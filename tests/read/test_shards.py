"""Split models: any shard opens the set; what is missing or doesn't fit is named."""

from __future__ import annotations

import os

import gguf_bytes as gb
import numpy as np
import pytest
from gguf_bytes import File
from labelled import add

import ggufx
from ggufx import GGUFError
from ggufx.read.shards import SplitFile


def name(i, n=3, prefix="model"):
    return f"{prefix}-{i:05}-of-{n:05}.gguf"


def write(folder, n=3, *, metadata_only=False, total=None, change=None):
    """A model of n shards with two labelled tensors in each; `change` may alter or drop a shard."""
    values, names = {}, [[f"t{i}.{j}" for j in range(2)] for i in range(n)]
    if metadata_only:
        names[0] = []
    total = sum(map(len, names)) if total is None else total
    for i in range(n):
        file = File()
        if i == 0:
            file.add("general.architecture", gb.STRING, b"llama").add("general.name", gb.STRING, b"whole")
        split = {"no": i, "count": n}
        file_change = (change or {}).get(i + 1, {})
        split.update({k: v for k, v in file_change.items() if k in ("no", "count")})
        for key, value in split.items():
            if value is not None:
                file.add(f"split.{key}", gb.U16, value)
        file.add("split.tensors.count", gb.I32, total)
        for tensor in [*names[i], *file_change.get("extra", [])]:
            values[tensor] = add(file, tensor, (i + 1, 32), 8)
        if not file_change.get("missing"):
            file.write(folder / name(i + 1, n))
    return values


@pytest.mark.parametrize("metadata_only", [False, True])
@pytest.mark.parametrize("which", [1, 2, 3])
@pytest.mark.parametrize("mode", ["r", "read", "c"])
def test_any_shard_opens_the_set(tmp_path, which, metadata_only, mode):
    values = write(tmp_path, metadata_only=metadata_only)
    path = tmp_path / name(which)
    with ggufx.open(path, mode=mode) as f:
        assert isinstance(f, SplitFile)
        assert f.path == str(path)
        assert list(f) == list(f.tensors) == list(values)
        assert len(f) == len(values)
        assert f.metadata["general.name"] == "whole"
        assert [os.path.basename(shard.path) for shard in f.shards] == [name(i) for i in (1, 2, 3)]
        assert f.size == sum(os.path.getsize(tmp_path / name(i)) for i in (1, 2, 3))
        assert "3 shards" in repr(f)
        assert f.is_mapped == (mode != "read")
        for key, value in values.items():
            assert key in f
            assert (f[key].dequantize() == value).all()
        with pytest.raises(KeyError, match="nothing"):
            f["nothing"]
        kept = f["t2.1"]
    assert f.closed
    assert all(shard.closed for shard in f.shards)
    for use in (lambda: f.tensors, lambda: f["t1.0"], lambda: f.metadata, lambda: kept.data):
        with pytest.raises(GGUFError, match="closed"):
            use()
    loaded = ggufx.load(path, names=["t1.*", "t2.0"])
    assert list(loaded) == ["t1.0", "t1.1", "t2.0"]
    assert all((array == values[key]).all() for key, array in loaded.items())


def test_layers_and_experts_reach_over_shards(tmp_path):
    for i in (1, 2):
        file = File().add("split.no", gb.U16, i - 1).add("split.count", gb.U16, 2)
        file.add("general.architecture", gb.STRING, b"x").add("x.expert_count", gb.U32, 2)
        add(file, f"blk.{i}.ffn_up_exps.weight", (2, 3, 32), 8)
        file.write(tmp_path / name(i, 2))
    with ggufx.open(tmp_path / name(2, 2)) as f:
        assert list(f.moe) == [1, 2]
        assert [number for number, _ in f.layers().decoded()] == [1, 2]


def test_one_shard_alone(tmp_path):
    write(tmp_path)
    with ggufx.open(tmp_path / name(2), shards=False) as f:
        assert list(f) == ["t1.0", "t1.1"]
        assert not isinstance(f, SplitFile)
    write(tmp_path, n=1)
    with ggufx.open(tmp_path / name(1, 1)) as f:
        assert not isinstance(f, SplitFile)


FAULTS = {
    "missing": ({2: {"missing": True}}, r"model-00002-of-00003\.gguf: shard 2 of 3 is missing"),
    "number": ({3: {"no": 1}}, r"model-00003-of-00003\.gguf: its split\.no is 1, 2 was expected"),
    "no number": ({3: {"no": None}}, r"model-00003-of-00003\.gguf: its split\.no is None"),
    "count": ({2: {"count": 4}}, r"model-00002-of-00003\.gguf: its split\.count is 4, 3 was expected"),
    "a count of one": ({1: {"count": 1}}, r"model-00001-of-00003\.gguf: its name says 3 shards, its split\.count 1"),
    "no count": ({2: {"count": None}}, r"model-00002-of-00003\.gguf: its split\.count is None"),
    "twice": ({3: {"extra": ["t0.0"]}}, r"model-00003-of-00003\.gguf: tensor 't0\.0' is in .*00001-of-00003"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_named(tmp_path, fault):
    change, match = FAULTS[fault]
    write(tmp_path, change=change)
    before = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
    for mode in ("r", "read"):
        with pytest.raises(GGUFError, match=match):
            ggufx.open(tmp_path / name(1), mode=mode)
    if before:
        assert len(os.listdir("/proc/self/fd")) == before
    if fault == "a count of one":  # nothing tells which of the two is right
        return
    with ggufx.open(tmp_path / name(1), strict=False) as f:
        assert f.problems
        assert f["t0.1"].dequantize().shape == (1, 32)


def test_number_of_tensors(tmp_path):
    write(tmp_path, total=7)
    with pytest.raises(GGUFError, match=r"split\.tensors\.count is 7, but the shards hold 6"):
        ggufx.open(tmp_path / name(2))


def test_first_shard_missing(tmp_path):
    write(tmp_path)
    os.unlink(tmp_path / name(1))
    for strict in (True, False):
        with pytest.raises(GGUFError, match=r"00001-of-00003.*first shard.*missing"):
            ggufx.open(tmp_path / name(3), strict=strict)


def test_names_that_do_not_fit(tmp_path):
    write(tmp_path)
    os.rename(tmp_path / name(2), tmp_path / "other.gguf")
    with pytest.raises(GGUFError, match=r"other\.gguf: this is shard 1 of 3.*shards=False"):
        ggufx.open(tmp_path / "other.gguf")
    os.rename(tmp_path / "other.gguf", tmp_path / name(2, 4))
    with pytest.raises(GGUFError, match=r"says 4 shards, its split\.count 3"):
        ggufx.open(tmp_path / name(2, 4))
    os.rename(tmp_path / name(2, 4), tmp_path / name(0))
    with pytest.raises(GGUFError, match="no shard 0 of 3"):
        ggufx.open(tmp_path / name(0))


def test_a_damaged_shard_is_named(tmp_path):
    write(tmp_path)
    os.truncate(tmp_path / name(3), os.path.getsize(tmp_path / name(3)) - 1)
    with pytest.raises(GGUFError, match=r"00003-of-00003\.gguf: tensor 't2\.1'.*truncated"):
        ggufx.open(tmp_path / name(1))
    with ggufx.open(tmp_path / name(1), strict=False) as f:
        assert [p.kind for p in f.problems] == ["outside"]
        assert np.asarray(f["t1.1"]).shape == (2, 32)


@pytest.mark.parametrize("mode", ["r", "read"])
def test_a_tensor_in_two_shards_is_in_neither(tmp_path, mode):
    """Its shards give it different values, and nothing says which are meant."""
    values = write(tmp_path, change={2: {"extra": ["t0.0"]}, 3: {"extra": ["t0.0"]}})
    with ggufx.open(tmp_path / name(1), strict=False, mode=mode) as f:
        found = [p for p in f.problems if p.kind == "duplicate"]
        assert [p.name for p in found] == ["t0.0"] * 3
        assert all(any(name(i) in p.message.partition(": ")[0] for p in found) for i in (1, 2, 3))
        for shard in f.shards:
            tensor = shard["t0.0"]
            assert f"{shard.path}: tensor 't0.0' is in " in tensor.problem
            for read in (
                tensor.dequantize,
                lambda t=tensor: t.data,
                lambda t=tensor: t.take([0]),
                lambda t=tensor: t[:1],
            ):
                with pytest.raises(GGUFError, match=r"tensor 't0\.0' is in .* too; it can't be read"):
                    read()
        assert f["t0.0"].problem
        with pytest.raises(GGUFError, match=r"tensor 't0\.0' is in .* too; it can't be read"):
            f["t0.0"].dequantize()
        for other in values.keys() - {"t0.0"}:
            assert f[other].problem is None
            assert np.array_equal(f[other].dequantize(), values[other])
