"""Installing and uninstalling: what is patched, what is left alone, and that everything comes back."""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import logging
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from unittest import mock

import numpy as np
import pytest
from compat_runs import run

from ggufx import compat
from ggufx.compat import comparing, patching
from ggufx.gguf_names.lazylists import LazyList

gguf = pytest.importorskip("gguf")


def everything(*modules: ModuleType) -> dict[str, object]:
    """Each attribute of each class of some modules, by identity, and the code of each function."""
    found: dict[str, object] = {"meta_path": list(map(id, sys.meta_path))}
    for module in modules:
        for name, value in vars(module).items():
            found[f"{module.__name__}.{name}"] = (id(value), id(getattr(value, "__code__", None)))
            if isinstance(value, type):
                # The grids are gguf's own cache of what it has used.
                found |= {f"{module.__name__}.{name}.{k}": id(v) for k, v in vars(value).items() if k != "grid"}
    return found


MODULES = [
    importlib.import_module(f"gguf{name}") for name in ("", ".gguf_reader", ".quants", ".tensor_mapping", ".lazy")
]


def test_nothing_is_left_behind():
    """After uninstall, every attribute is the very object it was."""
    before = everything(*MODULES)
    state = compat.install()
    assert {name: parts for name, parts in state.packages.items() if name.startswith("gguf.")} == {
        "gguf.gguf_reader": {"reader": "patched"},
        "gguf.quants": {"quants": "patched"},
        "gguf.tensor_mapping": {"tensor names": "patched"},
    }
    assert compat.status().packages == state.packages
    assert everything(*MODULES) != before
    again = everything(*MODULES)
    compat.install()
    assert everything(*MODULES) == again
    compat.uninstall()
    assert everything(*MODULES) == before
    assert compat.status() == (False, {}, ())
    compat.uninstall()


def test_patched_restores_what_was():
    before = everything(*MODULES)
    with compat.patched():
        inside = everything(*MODULES)
        with compat.patched():
            assert everything(*MODULES) == inside
        assert everything(*MODULES) == inside
    assert everything(*MODULES) == before
    with pytest.raises(RuntimeError, match="mine"), compat.patched():
        raise RuntimeError("mine")
    assert everything(*MODULES) == before


def test_calls_inside_a_block():
    """They hold beyond it."""
    before = everything(*MODULES)
    with compat.patched():
        compat.install()
    assert compat.status().installed
    assert everything(*MODULES) != before
    with compat.patched():
        compat.uninstall()
        assert everything(*MODULES) != before
    assert everything(*MODULES) == before
    with pytest.raises(TypeError, match="must be a module"), compat.patched("gguf"):
        pass
    assert compat.status() == (False, {}, ())


@contextmanager
def calls_of(method):
    """Note the calls of a class method without replacing it."""
    calls: list[object] = []
    code = method.__func__.__code__
    sys.setprofile(lambda frame, event, _: calls.append(event) if frame.f_code is code else None)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def test_names_imported_before_are_covered(good_files):
    """Classes and functions that a program has long had are the patched ones."""
    from gguf import GGUFReader, dequantize
    from gguf.quants import Q4_K

    raw = np.arange(288, dtype=np.uint8).reshape(2, 144)
    bound = Q4_K.dequantize
    want = dequantize(raw, 12)
    with compat.patched():
        field = GGUFReader(good_files[0]).fields["many words"]
        assert type(field.parts) is LazyList
        assert type(field.data) is LazyList
        dequantize(raw, 12)  # the first time both run, and are compared
        with calls_of(Q4_K.dequantize_blocks) as calls:
            assert (dequantize(raw, 12) == want).all()
            assert (bound(raw) == want).all()
        assert not calls
    with calls_of(Q4_K.dequantize_blocks) as calls:
        assert (bound(raw) == want).all()
    assert calls
    assert type(GGUFReader(good_files[0]).fields["many words"].parts) is list
    assert field.contents()[1] == "word"


def test_signatures_and_sources():
    """Programs that read the source of the reader find gguf's."""
    plain = {name: inspect.signature(getattr(gguf.GGUFReader, name)) for name in ("__init__", "_build_fields")}
    source = inspect.getsource(gguf.GGUFReader._build_tensors)
    with compat.patched():
        assert {name: inspect.signature(getattr(gguf.GGUFReader, name)) for name in plain} == plain
        assert "np.memmap" in inspect.getsource(gguf.GGUFReader.__init__)
        assert inspect.getsource(gguf.GGUFReader._build_tensors) == source
        assert gguf.GGUFReader._build_fields.__qualname__ == "GGUFReader._build_fields"


def test_imported_twice(good_files, monkeypatch):
    """A second copy of the package in the same process is patched too, and the first put back as well."""
    before = everything(*MODULES)
    with compat.patched():
        for name in [n for n in sys.modules if n.partition(".")[0] == "gguf"]:
            monkeypatch.delitem(sys.modules, name)
        again = importlib.import_module("gguf")
        assert again is not gguf
        for package in (gguf, again):
            assert type(package.GGUFReader(good_files[0]).fields["many words"].parts) is LazyList
    for package in (gguf, again):
        assert type(package.GGUFReader(good_files[0]).fields["many words"].parts) is list
    assert everything(*MODULES) == before


def test_somebody_else_patched_first(caplog):
    patching._said.clear()
    original = gguf.GGUFReader._build_fields
    gguf.GGUFReader._build_fields = lambda self, offs, count: original(self, offs, count)
    try:
        with caplog.at_level(logging.WARNING, "ggufx.compat"), compat.patched() as state:
            assert "somebody else" in state.packages["gguf.gguf_reader"]["reader"]
            assert state.packages["gguf.quants"] == {"quants": "patched"}
        assert len(caplog.records) == 1
    finally:
        gguf.GGUFReader._build_fields = original


@pytest.fixture
def vendored(tmp_path, monkeypatch):
    """Make copies of the gguf package under other names, with their source changed."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(name: str, module: str = "quants.py", old: str = "", new: str = "") -> ModuleType:
        folder = tmp_path / name
        shutil.copytree(Path(gguf.__file__).parent, folder, ignore=shutil.ignore_patterns("__pycache__"))
        source = (folder / module).read_text()
        assert old in source
        (folder / module).write_text(source.replace(old, new))
        importlib.invalidate_caches()
        return importlib.import_module(name)

    yield make
    compat.uninstall()
    for name in [n for n in sys.modules if n.startswith("vendored_")]:
        del sys.modules[name]


def test_vendored_copy(vendored, good_files):
    """A copy under another name is patched by an explicit call, and only then."""
    copied = vendored("vendored_gguf")
    before = everything(copied.quants, copied.gguf_reader)
    compat.install()
    assert (
        everything(copied.quants, copied.gguf_reader)["vendored_gguf.quants.Q4_K"]
        == before["vendored_gguf.quants.Q4_K"]
    )
    assert type(copied.GGUFReader(good_files[0]).fields["many words"].parts) is list
    state = compat.install(copied)
    assert [state.packages[f"vendored_gguf.{m}"] for m in ("gguf_reader", "quants", "tensor_mapping")] == [
        {"reader": "patched"},
        {"quants": "patched"},
        {"tensor names": "patched"},
    ]
    field = copied.GGUFReader(good_files[0]).fields["many words"]
    assert type(field.parts) is LazyList
    assert type(field) is copied.gguf_reader.ReaderField
    compat.uninstall()
    assert (
        everything(copied.quants, copied.gguf_reader)["vendored_gguf.quants.Q4_K"]
        == before["vendored_gguf.quants.Q4_K"]
    )
    assert type(copied.GGUFReader(good_files[0]).fields["many words"].parts) is list


def test_copies_and_blocks(vendored):
    """Another copy stays patched as long as anything does."""
    copied = vendored("vendored_held")
    with compat.patched(copied):
        compat.install()
    assert hasattr(copied.GGUFReader._build_fields, "__wrapped__")
    compat.uninstall()
    assert not hasattr(copied.GGUFReader._build_fields, "__wrapped__")
    with pytest.raises(ValueError, match="none of gguf's classes"):
        compat.install(json)
    compat.uninstall()


def test_patching_that_fails_breaks_no_import(monkeypatch, caplog):
    """It is said, and the program goes on."""
    patching._said.clear()

    def fail(name: str, module: ModuleType):
        raise RuntimeError("failing")

    compat.install()
    monkeypatch.setattr(compat, "_parts", fail)
    for name in [n for n in sys.modules if n.partition(".")[0] == "gguf"]:
        monkeypatch.delitem(sys.modules, name)
    try:
        with caplog.at_level(logging.WARNING, "ggufx.compat"):
            importlib.import_module("gguf")
        assert ["failing" in r.message for r in caplog.records] == [True] * 3
    finally:
        compat.uninstall()


@pytest.mark.parametrize(
    ("module", "old", "new", "part", "message"),
    [
        ("gguf_reader.py", "offs += int(alen.nbytes)", "offs += int(alen.nbytes) + 0", "reader", ""),
        ("gguf_reader.py", "n_dims = self._get(offs, np.uint32)",
         "n_dims = self._get(offs, np.uint32)\n        if n_dims[0] > 4:\n            raise ValueError", "reader", ""),
        ("gguf_reader.py", "types += curr_types", "types += 2 * curr_types", "reader", "left alone"),
        ("gguf_reader.py", "return [to_string(self", "return ['' + to_string(self", "reader", ""),
        ("gguf_reader.py", "return [to_string(self", "return ['a' + to_string(self", "reader", "left alone"),
        ("quants.py", "blocks = rows.reshape((n_blocks, cls.type_size))", "blocks = rows.reshape((-1, cls.type_size))",
         "quants", ""),
        ("quants.py", "(qs & np.uint8(0x0F)).reshape((n_blocks, -1)).astype(np.int8) - np.int8(8)",
         "(qs & np.uint8(0x0F)).reshape((n_blocks, -1)).astype(np.int8) - np.int8(9)",
         "quants", "except Q4_0's decoding: left alone"),
        ("quants.py", "(blocks * id) + np.float32(8.5)",  # as gguf before 0.18
         "(np.float64(blocks) * np.float64(id)) + np.float64(8.5)", "quants", "except Q4_0's encoding: left alone"),
        ("quants.py", "np_roundf(blocks * id)", "np.rint(blocks * id)", "quants", "except Q8_0's encoding"),
        ("tensor_mapping.py", "self.mapping = {}", "self.mapping = dict()", "tensor names", ""),
    ],
)  # fmt: skip
def test_other_versions(vendored, good_files, module, old, new, part, message):
    """What another version does decides, not its text; what isn't alike is left alone, and nothing else."""
    copied = vendored(f"vendored_{abs(hash(old + new))}", module, old, new)
    values, raw = np.linspace(-1, 3, 64, dtype=np.float32), np.full((1, 18), 3, np.uint8)

    def seen() -> list[object]:
        field = copied.GGUFReader(good_files[4]).fields["many words"]
        return [
            copied.quants.dequantize(raw, 2).tolist(),
            copied.quants.quantize(values, 2).tolist(),
            field.types,
            field.contents(slice(3)),
        ]

    want = seen()
    compat.install(copied)
    assert seen() == want
    packages = compat.status().packages
    parts = {p: s for name, of in packages.items() if name.startswith(copied.__name__) for p, s in of.items()}
    assert message in parts[part]
    assert {p for p, what in parts.items() if what != "patched"} == ({part} if message else set())
    assert len(parts) == 3


def test_name_maps_of_another_version(vendored):
    """Where more than the tables decides on a map, it is built each time."""
    count = "type(self).count = getattr(type(self), 'count', 0) + 1; self.mapping[str(type(self).count)] = None"
    copied = vendored("vendored_counting", "tensor_mapping.py", "self.mapping = {}", f"self.mapping = {{}}; {count}")
    compat.install(copied)
    maps = [copied.get_tensor_name_map(copied.MODEL_ARCH.LLAMA, 2).mapping for _ in range(5)]
    assert [next(iter(m)) for m in maps] == list("12345")


def test_one_file(vendored, good_files):
    """A copy of the reader alone, in one module of whatever name."""
    copied = vendored("vendored_parts")
    alone = importlib.import_module("vendored_parts.gguf_reader")
    assert compat.install(alone).packages[alone.__name__] == {"reader": "patched"}
    assert type(copied.GGUFReader(good_files[0]).fields["many words"].parts) is LazyList
    assert compat.status().packages[alone.__name__] == {"reader": "patched"}
    assert not hasattr(copied.TensorNameMap.__init__, "__wrapped__")


def test_comparison_that_fails(monkeypatch, caplog, good_files):
    """What can't be compared is left alone, and said."""
    patching._said.clear()
    monkeypatch.setattr(comparing, "as_path", mock.Mock(side_effect=OSError))
    with caplog.at_level(logging.WARNING, "ggufx.compat"), compat.patched():
        for _ in range(2):
            assert type(gguf.GGUFReader(good_files[0]).fields["many words"].parts) is list
        assert compat.status().packages["gguf.gguf_reader"]["reader"] == patching.DIFFERS
    assert ["reader: left alone" in r.message for r in caplog.records] == [True]


def test_stubs(monkeypatch, caplog):
    """A module that only looks like gguf's is left alone."""
    stub = ModuleType("gguf.quants")
    monkeypatch.setitem(sys.modules, "gguf.quants", stub)
    with compat.patched() as state:
        assert "left alone" in state.packages["gguf.quants"]["classes"]
    exec("class __Quant: pass", vars(stub))
    vars(stub)["__name__"], vars(stub)["__Quant"].__module__ = "gguf.quants", "gguf.quants"
    before = dict(vars(stub))
    with caplog.at_level(logging.WARNING, "ggufx.compat"), compat.patched() as state:
        assert "left alone: it isn't what it should be" in state.packages["gguf.quants"]["quants"]
        assert dict(vars(stub)) == before
    with pytest.raises(TypeError, match="must be a module"):
        compat.install("gguf")  # type: ignore[arg-type]
    assert not compat.status().installed


RELOADING = """
import importlib, logging, sys, gguf, gguf.gguf_reader, ggufx.compat as compat
logging.basicConfig(level="WARNING")
old = gguf.GGUFReader
methods = dict(vars(old))
compat.install()
for inner in (gguf.gguf_reader, gguf.quants, gguf.tensor_mapping, gguf):
    importlib.reload(inner)
new = gguf.GGUFReader
assert new is not old
assert all(type(r(sys.argv[1]).fields["many words"].parts).__name__ == "LazyList" for r in (old, new))
compat.uninstall()
assert all(type(r(sys.argv[1]).fields["many words"].parts) is list for r in (old, new))
assert dict(vars(old)) == methods
print("done")
"""


def test_reloaded_package(good_files):
    """The classes of modules that are imported again are patched as well."""
    done = run("-c", RELOADING, good_files[0])
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_somebody_else_patches_later():
    """What others put over our methods stays where it is, and calls what gguf had once ours are gone."""
    original = gguf.GGUFReader._build_fields
    try:
        with compat.patched():
            ours = gguf.GGUFReader._build_fields

            @functools.wraps(ours)
            def theirs(self, offs, count):
                return ours(self, offs, count)

            gguf.GGUFReader._build_fields = theirs
        assert gguf.GGUFReader._build_fields is theirs
        with compat.patched() as state:  # a wrapper that bears the method's name is somebody else's all the same
            assert "somebody else" in state.packages["gguf.gguf_reader"]["reader"]
    finally:
        gguf.GGUFReader._build_fields = original


def test_one_change_on_top_of_another():
    """Undone in any order, nothing is left."""
    for first, second in ((0, 1), (1, 0)):
        target, functions = ModuleType("target"), {1: "one"}
        target.name = "plain"
        both = patching.Patches(), patching.Patches()
        for i, patches in enumerate(both):
            patches.set(target, "name", f"patched {i}")
            patches.set_item(functions, 1, f"patched {i}")
            patches.set_item(functions, 2, f"patched {i}")
        both[first].undo()
        assert (target.name, functions[2]) == (f"patched {second}", f"patched {second}")
        both[second].undo()
        assert (target.name, functions) == ("plain", {1: "one"})
    assert not patching._standing
