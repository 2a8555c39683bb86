"""Installing and uninstalling: what is patched, what is left alone, and that everything comes back."""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from compat_runs import run

from ggufx import compat
from ggufx.compat import patching
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
    assert state.packages["gguf"] == {"reader": "patched", "quants": "patched", "tensor names": "patched"}
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
            assert "somebody else" in state.packages["gguf"]["reader"]
            assert state.packages["gguf"]["quants"] == "patched"
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
    assert set(state.packages["vendored_gguf"].values()) == {"patched"}
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
    """Another copy stays patched as long as anybody asked for it."""
    copied = vendored("vendored_held")

    def is_patched() -> bool:
        return hasattr(copied.GGUFReader._build_fields, "__wrapped__")

    with compat.patched(copied):
        with compat.patched(copied), compat.patched():
            assert is_patched()
        assert is_patched()
        compat.install()
        compat.uninstall()
        assert is_patched()
        compat.install()
    assert not is_patched()
    assert compat.status().installed
    with compat.patched(copied):
        compat.install(copied)
    assert is_patched()
    compat.uninstall()
    assert not is_patched()


ODD_PACKAGES = {
    "its own name": "__name__ = 'another'",
    "another object": "import sys; sys.modules['gguf'] = sys.modules['gguf'].GGUFReader",
    "no name": "del __name__",
}


@pytest.mark.parametrize("odd", ODD_PACKAGES)
def test_odd_packages(tmp_path, odd):
    """Importing them goes as it went without us."""
    shutil.copytree(Path(gguf.__file__).parent, tmp_path / "gguf", ignore=shutil.ignore_patterns("__pycache__"))
    with open(tmp_path / "gguf/__init__.py", "a", encoding="utf-8") as f:
        f.write(f"\n{ODD_PACKAGES[odd]}\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import ggufx.compat as compat; compat.install()\n"
    code += (
        "import gguf; s = compat.install(); print(type(gguf).__name__, set(s.packages['gguf'].values()) == {'patched'})"
    )
    code += "\nif odd == 'its own name': assert list(compat.install(gguf).packages) == ['gguf']\ncompat.uninstall()"
    code += "\nassert not hasattr(sys.modules['gguf.gguf_reader'].GGUFReader._build_fields, '__wrapped__')"
    done = run("-c", f"odd = {odd!r}\n{code}")
    assert done.returncode == 0, done.stderr
    assert done.stdout == {"its own name": "module True\n", "another object": "type False\n"}.get(odd, done.stdout)


def test_patching_that_fails_breaks_no_import(monkeypatch, caplog):
    """It is said, and the program goes on."""
    patching._said.clear()

    def fail(module: ModuleType):
        raise RuntimeError("failing")

    monkeypatch.setitem(compat._WATCHED, "gguf", fail)
    for name in [n for n in sys.modules if n.partition(".")[0] == "gguf"]:
        monkeypatch.delitem(sys.modules, name)
    try:
        compat.install()
        with caplog.at_level(logging.WARNING, "ggufx.compat"):
            importlib.import_module("gguf")
        assert ["failing" in r.message for r in caplog.records] == [True]
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
    assert set(compat.install(copied).packages[copied.__name__].values()) == {"patched"}
    assert seen() == want
    parts = compat.status().packages[copied.__name__]
    assert message in parts[part]
    assert {p for p, what in parts.items() if what != "patched"} == ({part} if message else set())


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


def test_stubs(monkeypatch, caplog):
    """A module that only looks like gguf is left alone."""
    stub = ModuleType("gguf")
    monkeypatch.setitem(sys.modules, "gguf", stub)
    for name in [n for n in sys.modules if n.startswith("gguf.")]:
        monkeypatch.delitem(sys.modules, name)
    before = dict(vars(stub))
    with caplog.at_level(logging.WARNING, "ggufx.compat"), compat.patched() as state:
        assert all("left alone" in what for what in state.packages["gguf"].values())
        assert dict(vars(stub)) == before
    stub.GGUFReader = stub.quants = stub.gguf_reader = object()
    with compat.patched() as state:
        assert all("left alone" in what for what in state.packages["gguf"].values())
    with pytest.raises(TypeError, match="must be a module"):
        compat.install("gguf")  # type: ignore[arg-type]
    assert not compat.status().installed


@pytest.mark.parametrize(
    ("inner", "part", "name"),
    [
        ("gguf_reader", "reader", "GGUFReader"),
        ("quants", "quants", "Q4_K"),
        ("tensor_mapping", "tensor names", "TensorNameMap"),
    ],
)
def test_reloaded_copy(vendored, inner, part, name):
    """Reloading makes classes that aren't patched: status says so, installing patches them, uninstalling all."""
    copied = vendored(f"vendored_{inner}")
    module = getattr(copied, inner)
    old, before = getattr(module, name), everything(copied, module)
    compat.install(copied)
    assert everything(copied, module) != before
    importlib.reload(module)
    new, plain = getattr(module, name), everything(module)
    assert new is not old
    parts = compat.status().packages[copied.__name__]
    assert "reloaded" in parts.pop(part)
    assert set(parts.values()) == {"patched"}
    assert set(compat.install(copied).packages[copied.__name__].values()) == {"patched"}
    again = everything(module)
    assert again != plain
    compat.install(copied)
    assert everything(module) == again
    compat.uninstall()
    assert everything(module) == plain | {"meta_path": everything()["meta_path"]}
    setattr(module, name, old)
    after = everything(copied, module)
    assert {k: v for k, v in before.items() if f".{name}" in k} == {k: v for k, v in after.items() if f".{name}" in k}


RELOADING = """
import importlib, logging, sys, gguf, gguf.gguf_reader, ggufx.compat as compat
logging.basicConfig(level="WARNING")
old = gguf.GGUFReader
methods = dict(vars(old))
compat.install()
for inner in (gguf.gguf_reader, gguf.quants, gguf.tensor_mapping, gguf):
    importlib.reload(inner)
    assert set(compat.status().packages["gguf"].values()) == {"patched"}, compat.status()
new = gguf.GGUFReader
assert new is not old
assert all(type(r(sys.argv[1]).fields["many words"].parts).__name__ == "LazyList" for r in (old, new))
compat.uninstall()
assert all(type(r(sys.argv[1]).fields["many words"].parts) is list for r in (old, new))
assert dict(vars(old)) == methods
for inner in (gguf.gguf_reader, gguf.quants):  # nobody is watching any more
    importlib.reload(inner)
assert compat.status() == (False, {}, ())
assert all(type(r(sys.argv[1]).fields["many words"].parts) is list for r in (old, new, gguf.gguf_reader.GGUFReader))
print("done")
"""


def test_reloaded_package(good_files):
    """Of the package itself, reloaded modules are patched at once."""
    done = run("-c", RELOADING, good_files[0])
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_somebody_else_patches_later(caplog):
    """What others put over our methods is told, stays where it is, and calls what gguf had once ours are gone."""
    patching._said.clear()
    original = gguf.GGUFReader._build_fields
    try:
        with caplog.at_level(logging.WARNING, "ggufx.compat"), compat.patched():
            ours = gguf.GGUFReader._build_fields

            @functools.wraps(ours)
            def theirs(self, offs, count):
                return ours(self, offs, count)

            gguf.GGUFReader._build_fields = theirs
            assert "somebody else has replaced GGUFReader._build_fields" in compat.status().packages["gguf"]["reader"]
        assert gguf.GGUFReader._build_fields is theirs
        assert ["_build_fields" in r.message for r in caplog.records] == [True]
        with compat.patched() as state:  # a wrapper that bears the method's name is somebody else's all the same
            assert "somebody else" in state.packages["gguf"]["reader"]
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


def test_a_reload_overwrites_what_was_set(caplog):
    """Of a function that a reload has put back nothing is to be undone, and nobody else is blamed."""
    patching._said.clear()
    target, patches = ModuleType("target"), patching.Patches()
    target.cls, target.function = object(), "plain"

    def patch(patches):
        patches.rely_on(lambda: target.cls)
        patches.set(target, "function", "patched")
        return "patched"

    assert patches.apply("part", patch) == "patched"
    assert not patches.moved()
    target.cls, target.function = object(), "plain again"
    assert patches.moved() == {"part"}
    patches.apply("part", patch)
    assert (target.function, patches.moved(), patches.overridden("part")) == ("patched", set(), [])
    with caplog.at_level(logging.WARNING, "ggufx.compat"):
        patches.undo()
    assert target.function == "plain again"
    assert not caplog.records
    assert not patching._standing
