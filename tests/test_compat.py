"""The patched `gguf` package beside the package as it is, each in a process of its own; and putting everything back."""

from __future__ import annotations

import copy
import importlib
import inspect
import json
import logging
import os
import pickle
import shutil
import subprocess
import sys
import threading
import tracemalloc
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from gguf_bytes import ARRAY, BOOL, F32, F64, I8, I16, I32, I64, STRING, U8, U16, U32, U64, Array, File, Info

import ggufx
from ggufx import QType, compat
from ggufx.compat import patching
from ggufx.compat.lazylists import LazyList

gguf = pytest.importorskip("gguf")

PROBE = Path(__file__).parent / "compat_probe.py"
SCRIPTS = "gguf.scripts.gguf_"


def run(*arguments: object, env: dict[str, str] | None = None, text: str = "", timeout: float = 120):
    """Run Python in a process of its own; returns what came out."""
    clean = {k: v for k, v in os.environ.items() if k != "GGUFX_COMPAT"}
    command = [sys.executable, *map(str, arguments)]
    # Away from the source tree, which -m and -c would import instead of what is installed, without its extension.
    return subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=timeout, env=clean | (env or {}), check=False,
        cwd="/",
    )  # fmt: skip


def test_processes_use_what_is_installed():
    done = run("-c", "import ggufx; print(ggufx.__file__, *ggufx.paths())")
    assert done.stdout.split() == [ggufx.__file__, *ggufx.paths()]


def probe(patch: str, job: str, *files: Path) -> dict[str, object]:
    done = run("-W", "ignore", PROBE, patch, job, *files)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def assert_alike(job: str, *files: Path) -> None:
    """Compare what a job of the probe finds with and without the patches."""
    plain, patched = probe("plain", job, *files), probe("patched", job, *files)
    assert plain
    assert patched.keys() == plain.keys()
    different = {key: (plain[key], patched[key]) for key in plain if patched[key] != plain[key]}
    assert not different


def every_value(file: File) -> File:
    """Give a file a field of every type, arrays of every type, short, long and empty, and odd strings."""
    numbers = {
        U8: [0, 255], I8: [-128, 127], U16: [0, 65535], I16: [-32768, 32767], U32: [0, 2**32 - 1],
        I32: [-(2**31), 2**31 - 1], F32: [0.5, -1.5], BOOL: [0, 1], U64: [0, 2**64 - 1], I64: [-(2**63), 2**63 - 1],
        F64: [0.1, -1e300],
    }  # fmt: skip
    file.add("general.architecture", STRING, b"llama").add("empty string", STRING, b"")
    for kind, values in numbers.items():
        file.add(f"one {kind}", kind, values[1]).add(f"two {kind}", ARRAY, Array(kind, values))
        file.add(f"many {kind}", ARRAY, Array(kind, values * 30)).add(f"none {kind}", ARRAY, Array(kind, []))
    words = [b"", b"word", "\N{SNOWMAN} \U0001f600".encode(), b"x" * 300, b"\0"]
    file.add("words", ARRAY, Array(STRING, words)).add("many words", ARRAY, Array(STRING, words * 40))
    file.add("no words", ARRAY, Array(STRING, []))
    file.add("nested", ARRAY, Array(ARRAY, [Array(U16, [1, 2, 3]), Array(STRING, [b"a", b"b"]), Array(U8, [])]))
    return file


def every_tensor(file: File) -> File:
    for kind in (0, 1, 2, 8, 12, 24, 25, 26, 27, 28, 30):
        file.tensor(f"tensor {kind}", (2, 3, 256), kind)
    file.tensor("row", (256,), 12).tensor("nothing", (0,), 0).tensor("wide", (1, 2, 1, 2, 32), 2)
    file.infos.append(Info(b"scalar", [], 24, len(file.data)))
    file.data += b"\7"
    return file


@pytest.fixture(scope="module")
def good_files(tmp_path_factory):
    """Files that gguf reads: both byte orders, both versions, alignments, no tensors, nothing at all."""
    folder = tmp_path_factory.mktemp("good")
    files = {
        "little": every_tensor(every_value(File())),
        "version2": every_tensor(every_value(File(version=2))),
        "big": every_tensor(every_value(File(big=True))),
        "aligned": File(alignment=256).add("general.alignment", U32, 256).tensor("a", (3,), 0).tensor("b", (5,), 0),
        "fields": every_value(File()),
        "nothing": File(pad=False),
        "not-utf8": File().add("bad", STRING, b"\xff").add("worse", ARRAY, Array(STRING, [b"ok", b"\xc3("] * 20)),
    }
    return [file.write(folder / f"{name}.gguf") for name, file in files.items()]


def test_fields_and_tensors(good_files):
    """Every part, index, type and value, and every tensor's bytes."""
    assert_alike("files", *good_files)


@pytest.mark.parametrize("job", ["decoded", "lazy", "name_maps"])
def test_results(job):
    """Decoding, lazy tensors and name maps."""
    assert_alike(job)


def test_encoding():
    """The bytes of every class that gguf encodes; and types that it can't encode become possible."""
    plain, patched = probe("plain", "encoded"), probe("patched", "encoded")
    new = {key for key in plain if plain[key] == "NotImplementedError" != patched[key]}
    assert {key: patched[key] for key in plain if key not in new} == {k: v for k, v in plain.items() if k not in new}
    assert {key.split()[0] for key in new} == {
        "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ1_M", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS",
        "NVFP4",
    }  # fmt: skip
    assert all(patched[key] == "QuantError" or patched[key][0] == "ndarray" for key in new)
    values = np.linspace(-1, 1, 1024, dtype=np.float32).reshape(2, 512)
    with compat.patched():
        for qtype in (QType.Q4_K, QType.IQ4_XS, QType.Q6_K):
            got = gguf.quantize(values, gguf.GGMLQuantizationType(qtype))
            np.testing.assert_array_equal(got, ggufx.quantize(values, qtype))
        values[1, 7] = np.nan
        with pytest.raises(ggufx.GGUFError, match=r"finite|NaN|nan"):
            gguf.quantize(values, gguf.GGMLQuantizationType.Q4_K)


def string(text: bytes) -> bytes:
    return len(text).to_bytes(8, "little") + text


def number(value: int, size: int = 8) -> bytes:
    return value.to_bytes(size, "little")


# Headers that lie. Those in the second group make gguf itself run for ever, or take all memory.
CORRUPT = {
    "no magic": File(magic=b"FUGG"),
    "version 9": File(version=9),
    "only the magic": b"GGUF",
    "too many fields": File(n_fields=5).add("a", U32, 1),
    "too many tensors": File(n_tensors=3).tensor("a", (3,), 0),
    "string past the end": b"GGUF"
    + number(3, 4)
    + number(0)
    + number(1)
    + string(b"a")
    + number(8, 4)
    + number(1 << 40),
    "key past the end": b"GGUF" + number(3, 4) + number(0) + number(1) + number(1 << 40) + b"abc",
    "array of strings past the end": File().add("a", ARRAY, number(STRING, 4) + number(10) + string(b"abc")),
    "unknown value type": File().add("a", 13, b"abcd" * 8),
    "unknown item type": File().add("a", ARRAY, number(77, 4) + number(3) + bytes(64)),
    "unknown tensor type": File(infos=[Info(b"a", [32], 99, 0)], data=bytes(64)),
    "two tensors of one name": File().tensor("a", (3,), 0).tensor("a", (3,), 0),
    "two fields of one key": File().add("a", U32, 1).add("a", U32, 1),
    "tensor past the end": File(infos=[Info(b"a", [1 << 30], 0, 0)], data=bytes(64)),
    "offset past the end": File(infos=[Info(b"a", [4], 0, 1 << 62)], data=bytes(64)),
    "odd rows": File(infos=[Info(b"a", [33], 2, 0)], data=bytes(64)),
    "alignment 3": File().add("general.alignment", U32, 3),
    "alignment 0": File().add("general.alignment", U32, 0),
    "alignment of the wrong type": File().add("general.alignment", U64, 32),
    "truncated infos": File().tensor("a", (3,), 0).tensor("b", (3,), 0).header()[:-9],
    "a thousand million dimensions": File(infos=[Info(b"a", [4], 0, 0, n_dims=1 << 30)], data=bytes(64)),
    "key not UTF-8": File().add(b"\xff\xfe", U32, 1),
    "key not UTF-8, its type past the end": File().add(b"\xff\xfe", U32, 1).header()[:-8],
    "name not UTF-8, its dimensions past the end": File(infos=[Info(b"\xff\xfe", [4], 0, 0)]).header()[:-24],
}
ENDLESS = {
    "array of 2**60 bools": File().add("a", ARRAY, number(BOOL, 4) + number(1 << 60) + bytes(40)),
    "array of 2**60 bytes at the very end": File(pad=False).add("a", ARRAY, number(U8, 4) + number(1 << 60)),
    "nested array of 2**60 bytes": File().add(
        "a", ARRAY, number(ARRAY, 4) + number(1) + number(U8, 4) + number(1 << 60)
    ),
    "a million nested arrays": File().add("a", ARRAY, (number(ARRAY, 4) + number(1)) * 10000),
    "dimensions whose product overflows": File(infos=[Info(b"a", [1 << 32, 1 << 32], 0, 0)], data=bytes(64)),
}


def write_corrupt(folder: Path, cases: dict[str, File | bytes]) -> list[Path]:
    paths = []
    for i, case in enumerate(cases.values()):
        paths.append(folder / f"{i}.gguf")
        paths[-1].write_bytes(case if isinstance(case, bytes) else case.bytes())
    return paths


def test_corrupt_files(tmp_path):
    """The classes of error that gguf raises, or better; and never a wait."""
    paths = write_corrupt(tmp_path, CORRUPT)
    plain, patched = probe("plain", "errors", *paths), probe("patched", "errors", *paths)
    for name, path in zip(CORRUPT, map(str, paths), strict=True):
        assert patched[path] != ["opened"] or plain[path] == ["opened"], name
        assert plain[path] == ["opened"] or plain[path][0] in patched[path] or "GGUFError" in patched[path], name


def test_messages(tmp_path):
    """What is wrong, and where, in words."""
    wrong = ("tensor past the end", "offset past the end", "string past the end")
    paths = write_corrupt(tmp_path, {name: CORRUPT[name] for name in wrong})
    for path, words in zip(paths, ("tensor 'a'", "tensor 'a'", "field 'a'"), strict=True):
        with compat.patched(), pytest.raises(ggufx.GGUFError) as caught:
            gguf.GGUFReader(path)
        assert all(word in str(caught.value) for word in (path.name, words, "the file ends at byte"))


def test_endless_files(tmp_path):
    """Counts that keep gguf busy until memory runs out are refused at once."""
    for errors in probe("patched", "errors", *write_corrupt(tmp_path, ENDLESS)).values():
        assert "GGUFError" in errors


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("dump", ["little.gguf"]),
        ("dump", ["--json", "--json-array", "big.gguf"]),
        ("dump", ["--markdown", "fields.gguf"]),
        ("hash", ["little.gguf"]),
        ("new_metadata", ["aligned.gguf", "new.gguf", "--general-name", "New", "--force"]),
        ("set_metadata", ["--force", "little.gguf", "one 4", "7"]),
        ("convert_endian", ["aligned.gguf", "big"]),
        ("convert_endian", ["words.gguf", "big"]),
    ],
)
def test_scripts(good_files, tmp_path, script, arguments):
    """The command lines of gguf print and write the same."""
    seen = []
    words = File().add("general.architecture", STRING, b"llama").add("w", ARRAY, Array(STRING, [b"one", b"two"] * 20))
    for setting in ("0", "1"):
        folder = tmp_path / "same"
        shutil.copytree(good_files[0].parent, folder)
        words.write(folder / "words.gguf")
        code = (
            f"import os, runpy; os.chdir({str(folder)!r}); runpy.run_module({SCRIPTS + script!r}, run_name='__main__')"
        )
        done = run("-W", "ignore", "-c", f"import sys; sys.argv[1:] = {arguments!r}; {code}",
                   env={"GGUFX_COMPAT": setting, "TQDM_DISABLE": "1"}, text="YES\n")  # fmt: skip
        seen.append((done.returncode, done.stdout, done.stderr, {p.name: p.read_bytes() for p in folder.iterdir()}))
        shutil.rmtree(folder)
    assert seen[0][0] == 0, seen[0][2]
    assert seen[1] == seen[0]


def everything(*modules: ModuleType) -> dict[str, object]:
    """Each attribute of each class of some modules, by identity, and the code of each function."""
    found: dict[str, object] = {"meta_path": list(map(id, sys.meta_path))}
    for module in modules:
        for name, value in vars(module).items():
            found[f"{module.__name__}.{name}"] = (id(value), id(getattr(value, "__code__", None)))
            if isinstance(value, type):
                found |= {f"{module.__name__}.{name}.{k}": id(v) for k, v in vars(value).items()}
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
        with calls_of(Q4_K.dequantize_blocks) as calls:
            assert (dequantize(raw, 12) == want).all()
            assert (bound(raw) == want).all()
        assert not calls
    with calls_of(Q4_K.dequantize_blocks) as calls:
        assert (bound(raw) == want).all()
    assert calls
    assert type(GGUFReader(good_files[0]).fields["many words"].parts) is list
    assert field.contents()[1] == "word"


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


def test_signatures_and_sources():
    """Programs that read the source of the reader find gguf's."""
    plain = {name: inspect.signature(getattr(gguf.GGUFReader, name)) for name in ("__init__", "_build_fields")}
    source = inspect.getsource(gguf.GGUFReader._build_tensors)
    with compat.patched():
        assert {name: inspect.signature(getattr(gguf.GGUFReader, name)) for name in plain} == plain
        assert "np.memmap" in inspect.getsource(gguf.GGUFReader.__init__)
        assert inspect.getsource(gguf.GGUFReader._build_tensors) == source
        assert gguf.GGUFReader._build_fields.__qualname__ == "GGUFReader._build_fields"


def test_reader_subclasses(good_files, caplog):
    """A subclass that overrides a step gets gguf's own loops; one that overrides nothing of them is fast."""
    calls = []

    class Traced(gguf.GGUFReader):
        def _get_str(self, offset):
            calls.append(offset)
            return super()._get_str(offset)

    class Plain(gguf.GGUFReader):
        def get_tensor(self, idx):
            return "mine"

    class Pushing(gguf.GGUFReader):
        def _push_field(self, field, skip_sum=False):
            calls.append(field.name)
            return super()._push_field(field, skip_sum)

    class Building(gguf.GGUFReader):
        def _build_tensors(self, start_offs, fields):
            super()._build_tensors(start_offs, fields[:1])

    patching._said.clear()
    with compat.patched(), caplog.at_level(logging.WARNING, "ggufx.compat"):
        fields = Traced(good_files[0]).fields
        assert type(fields["many words"].parts) is list
        assert len(calls) > 200
        Traced(good_files[0])
        assert len([r for r in caplog.records if "Traced" in r.message]) == 1
        assert type(Plain(good_files[0]).fields["many words"].parts) is LazyList
        calls.clear()
        Pushing(good_files[0])
        assert "many words" in calls
        assert len(Building(good_files[0]).tensors) == 1


def test_new_types_at_run_time(tmp_path):
    """Classes that a program adds or changes keep their own methods."""
    raw = np.ones((2, 144), np.uint8)

    class Mine(gguf.quants.Q4_K, qtype=gguf.GGMLQuantizationType.Q8_K):
        @classmethod
        def dequantize_blocks(cls, blocks):
            return np.full((len(blocks), cls.block_size), 5, np.float32)

    try:
        with compat.patched():
            assert (gguf.dequantize(np.ones((1, 292), np.uint8), gguf.GGMLQuantizationType.Q8_K) == 5).all()
    finally:
        del gguf.quants._type_traits[gguf.GGMLQuantizationType.Q8_K]
    original = vars(gguf.quants.Q4_K)["dequantize_blocks"]
    with compat.patched():
        try:
            gguf.quants.Q4_K.dequantize_blocks = classmethod(lambda cls, b: np.full((len(b), 256), 7, np.float32))
            assert (gguf.dequantize(raw, gguf.GGMLQuantizationType.Q4_K) == 7).all()
        finally:
            gguf.quants.Q4_K.dequantize_blocks = original


def test_new_ids_at_run_time(tmp_path):
    """Ids that a program adds to the enum and the table of sizes are read as they would be without us."""
    path = File(infos=[Info(b"a", [64, 2], 42, 0)], data=bytes(64)).write(tmp_path / "q2.gguf")
    kinds, sizes = gguf.GGMLQuantizationType, gguf.constants.GGML_QUANT_SIZES
    with compat.patched():
        with pytest.raises(ValueError, match="42"):
            gguf.GGUFReader(path)
        new = int.__new__(kinds, 42)
        new._name_, new._value_ = "Q2_0", 42
        kinds._value2member_map_[42] = new
        sizes[new] = (64, 18)
        try:
            [tensor] = gguf.GGUFReader(path).tensors
            assert (tensor.tensor_type, tensor.data.shape, tensor.n_bytes) == (new, (2, 18), 36)
            with pytest.raises(NotImplementedError):
                gguf.dequantize(tensor.data, new)
        finally:
            del kinds._value2member_map_[42], sizes[new]


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


@pytest.mark.parametrize(
    ("module", "old", "new", "part", "message"),
    [
        ("gguf_reader.py", "offs += int(alen.nbytes)", "offs += int(alen.nbytes) + 0", "reader", "isn't known"),
        ("quants.py", "blocks = rows.reshape((n_blocks, cls.type_size))", "blocks = rows.reshape((-1, cls.type_size))",
         "quants", "aren't known"),
        ("quants.py", "(qs & np.uint8(0x0F)).reshape((n_blocks, -1)).astype(np.int8) - np.int8(8)",
         "(qs & np.uint8(0x0F)).reshape((n_blocks, -1)).astype(np.int8) - np.int8(9)",
         "quants", "except the unknown Q4_0"),
        ("tensor_mapping.py", "self.mapping = {}", "self.mapping = dict()", "tensor names", "isn't known"),
    ],
)  # fmt: skip
def test_unknown_versions(vendored, module, old, new, part, message):
    """Each piece whose source was never seen before is left alone, and nothing else."""
    copied = vendored(f"vendored_{abs(hash(old))}", module, old, new)
    raw = np.full((1, 18), 3, np.uint8)
    want = copied.quants.dequantize(raw, 2)
    parts = compat.install(copied).packages[copied.__name__]
    assert message in parts[part]
    assert {p for p, what in parts.items() if what != "patched"} == {part}
    assert (copied.quants.dequantize(raw, 2) == want).all()


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


def test_strides_that_gguf_refuses():
    """Fortran order, which gguf can't decode, decodes."""
    raw = np.random.default_rng(0).integers(0, 256, (6, 288), np.uint8)
    with compat.patched():
        got = gguf.dequantize(np.asfortranarray(raw), gguf.GGMLQuantizationType.Q4_K)
        np.testing.assert_array_equal(got, gguf.dequantize(raw, gguf.GGMLQuantizationType.Q4_K))


def test_memory(tmp_path):
    """A vocabulary costs gguf an array for each piece of each token, and us a few numbers."""
    words = [b"token %d" % i for i in range(20000)]
    path = (
        File().add("words", ARRAY, Array(STRING, words)).add("n", ARRAY, Array(F32, range(20000))).write(tmp_path / "f")
    )

    def peak() -> int:
        tracemalloc.start()
        reader = gguf.GGUFReader(path)
        assert len(reader.fields) == 5
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    plain = peak()
    with compat.patched():
        assert peak() < plain / 50


def test_writing_through(good_files, tmp_path):
    """Arrays from a writable reader are the file's bytes."""
    path = shutil.copy(good_files[0], tmp_path / "w.gguf")
    with compat.patched():
        reader = gguf.GGUFReader(path, "r+")
        field = reader.fields["one 4"]
        field.parts[field.data[0]][0] = 77
        words = reader.fields["many words"]
        words.parts[words.data[1]][:] = list(b"WORD")
        words.parts[words.data[0] - 1][0] = 1 << 50  # a length that would lead astray whoever read it again
        assert words.contents(1) == "WORD"
        assert words.contents()[2] == "\N{SNOWMAN} \U0001f600"
        reader.tensors[0].data[:] = 0
        reader.data.flush()
        with pytest.raises(ValueError, match="read-only"):
            gguf.GGUFReader(good_files[0]).fields["one 4"].parts[3][0] = 1
        copied = gguf.GGUFReader(good_files[0], "c")
        words = copied.fields["many words"]
        copied.data[words.offset + 40 :][:64] = 255  # over lengths, before anybody asked where the strings are
        assert words.contents(slice(100, None)) == gguf.GGUFReader(good_files[0]).fields["many words"].contents()[100:]
        copied.fields["one 4"].parts[3][0] = 78
    assert gguf.GGUFReader(good_files[0]).fields["one 4"].contents() == 2**32 - 1
    assert gguf.GGUFReader(good_files[4]).fields["many words"].contents(1) == "word"
    assert b"WORD" in Path(path).read_bytes()


def test_lists(good_files):
    """Lazy lists do all that lists do, and become ordinary when they are changed."""
    with compat.patched():
        field = gguf.GGUFReader(good_files[0]).fields["many words"]
    data = field.data
    plain = list(data)
    assert isinstance(data, list)
    assert len(data) == len(plain) == 200
    assert data == plain
    assert plain == data
    assert (data != plain) is False
    assert data < [*plain, 1]
    assert repr(data) == repr(plain)
    assert data[:3] + data[-2:] == plain[:3] + plain[-2:]
    one = [1]
    assert data + one == [*plain, 1]
    assert one + data == [1, *plain]
    assert (data * 2, 2 * data) == (plain * 2, plain * 2)
    assert list(reversed(data)) == plain[::-1]
    assert plain[5] in data
    assert 7 not in data
    assert (data.index(plain[9]), data.count(plain[9])) == (9, 1)
    assert np.array(data).tolist() == plain
    assert data[np.int64(-1)] == plain[-1]
    assert [*data] == plain
    assert json.loads(json.dumps(data)) == plain
    for clone in (copy.copy(data), copy.deepcopy(data), data.copy(), pickle.loads(pickle.dumps(data))):
        assert type(clone) is list
        assert clone == plain
    for index in (200, -201):
        with pytest.raises(IndexError, match="list index out of range"):
            data[index]
    with pytest.raises(TypeError):
        data["x"]
    with pytest.raises(TypeError):
        hash(data)
    data.append(1)
    del data[0]
    data[0] = 3
    data += [4]
    assert data == [3, *plain[2:], 1, 4]
    assert len(data) == 201
    data.sort(reverse=True)
    data.clear()
    assert data == []
    assert not data


def test_pickling(good_files):
    with compat.patched():
        reader = gguf.GGUFReader(good_files[0])
        for thing in (reader.fields["many words"], reader.fields["one 4"], reader.tensors[0]):
            clone = pickle.loads(pickle.dumps(thing))
            assert type(clone) is type(thing)
            assert clone.name == thing.name
        clone = pickle.loads(pickle.dumps(reader.fields["many words"]))
        assert clone.contents() == reader.fields["many words"].contents()
        assert copy.deepcopy(reader.fields["many words"]).contents(slice(3)) == clone.contents(slice(3))


def test_threads(good_files):
    """Readers and decoders in many threads at once, while others install and uninstall."""
    raw = np.random.default_rng(1).integers(0, 60, (64, 144 * 8), np.uint8)
    want = gguf.dequantize(raw, gguf.GGMLQuantizationType.Q4_K)
    failures: list[object] = []

    def work() -> None:
        try:
            for _ in range(10):
                assert gguf.GGUFReader(good_files[0]).fields["many words"].contents()[1] == "word"
                assert (gguf.dequantize(raw, gguf.GGMLQuantizationType.Q4_K) == want).all()
        except BaseException as error:
            failures.append(error)

    def flip() -> None:
        for _ in range(10):
            compat.install()
            compat.uninstall()

    threads = [threading.Thread(target=work) for _ in range(4)] + [threading.Thread(target=flip)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    compat.uninstall()
    assert not failures


FORKING = """
import os, sys, numpy as np, ggufx.compat, gguf, multiprocessing
ggufx.compat.install()
raw = np.random.default_rng(0).integers(0, 256, (4096, 1152), np.uint8)
def work(_=None):
    reader = gguf.GGUFReader(sys.argv[1])
    return float(np.nansum(gguf.dequantize(raw, 12)[:, ::97])), reader.fields["many words"].contents()[1]
def main():
    want = work()
    child = os.fork()
    if not child:
        os._exit(0 if work() == want else 1)
    assert os.waitpid(child, 0)[1] == 0
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert pool.map(work, range(4)) == [want] * 4, method
    print("done")
if __name__ == "__main__":
    main()
"""


def test_fork_and_spawn(good_files, tmp_path):
    """Children of a process that has decoded on threads decode too, however they are started."""
    program = tmp_path / "forking.py"
    program.write_text(FORKING)
    done = run("-W", "ignore", program, good_files[0], timeout=100)
    assert done.stdout == "done\n", done.stderr


def modules_of(*arguments: str, setting: str | None) -> set[str]:
    code = "import sys; print(*sys.modules)"
    done = run("-c", f"{';'.join(arguments)}\n{code}", env={} if setting is None else {"GGUFX_COMPAT": setting})
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return set(done.stdout.split())


@pytest.fixture(scope="module")
def hooked():
    """Skip where the package isn't installed as a wheel, as in an editable install."""
    if not (Path(ggufx.__file__).parent.parent / "ggufx_compat.pth").exists():
        pytest.skip("ggufx_compat.pth isn't installed beside the package")


@pytest.mark.usefixtures("hooked")
def test_import_hook():
    """The variable unset costs nothing; set, it waits for gguf and imports nothing before."""
    assert not {"_ggufx_compat", "numpy", "ggufx"} & modules_of("pass", setting=None)
    assert not {"_ggufx_compat", "numpy", "ggufx"} & modules_of("pass", setting="0")
    waiting = modules_of("pass", setting="1")
    assert "_ggufx_compat" in waiting
    assert not {"numpy", "ggufx", "gguf"} & waiting
    check = "from ggufx import compat; assert set(compat.status().packages['gguf'].values()) == {'patched'}"
    modules_of("import gguf.quants", check, setting="1")
    modules_of("from gguf import GGUFReader", check, setting="1")
    modules_of("import gguf", "import ggufx.compat as c", "assert not c.status().installed", setting=None)
    kinds = "{type(gguf.__loader__).__name__, type(gguf.__spec__.loader).__name__}"
    modules_of("import gguf", f"assert {kinds} == {{'SourceFileLoader'}}", setting="1")


@pytest.mark.usefixtures("hooked")
def test_import_hook_never_breaks_a_program(tmp_path):
    """Whatever fails while patching is printed, and the program goes on."""
    (tmp_path / "ggufx").mkdir()
    (tmp_path / "ggufx/__init__.py").write_text("raise RuntimeError('broken')")
    done = run("-c", "import gguf; print(gguf.GGUFReader.__name__)",
               env={"GGUFX_COMPAT": "1", "PYTHONPATH": str(tmp_path)})  # fmt: skip
    assert done.stdout == "GGUFReader\n"
    assert "broken" in done.stderr
    done = run("-c", "import gguf", env={"GGUFX_COMPAT": "1", "PYTHONPATH": str(tmp_path / "none")})
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.usefixtures("hooked")
def test_wheel_record():
    from importlib.metadata import distribution

    files = {str(f) for f in distribution("ggufx").files or ()}
    assert {"ggufx_compat.pth", "_ggufx_compat.py"} <= files
    entry = next(e for e in distribution("ggufx").entry_points if e.group == "vllm.general_plugins")
    assert entry.load() is compat.vllm_plugin


def test_vllm_plugin(monkeypatch):
    monkeypatch.delenv("GGUFX_COMPAT", raising=False)
    compat.vllm_plugin()
    assert not compat.status().installed
    monkeypatch.setenv("GGUFX_COMPAT", "1")
    compat.vllm_plugin()
    assert compat.status().installed
    compat.uninstall()


@pytest.mark.parametrize("setting", ["0", "1"])
def test_command(setting):
    done = run("-m", "ggufx", "compat", env={"GGUFX_COMPAT": setting})
    assert done.returncode == 0, done.stderr
    assert "gguf          0.19.0" in done.stdout
    assert "patched and unpatched alike" in done.stdout
    hooked = (Path(ggufx.__file__).parent.parent / "ggufx_compat.pth").exists()
    assert ("gguf, reader: patched" if setting == "1" and hooked else "gguf, reader: would be patched") in done.stdout


def test_own_reader_and_quants(good_files):
    """The GGUFReader and quants of ggufx show what those of gguf do."""
    for path in good_files:
        own, theirs = ggufx.GGUFReader(path), gguf.GGUFReader(path)
        assert list(own.fields) == list(theirs.fields)
        assert (own.byte_order, own.endianess, own.alignment, own.data_offset) == (
            theirs.byte_order, theirs.endianess, theirs.alignment, theirs.data_offset,
        )  # fmt: skip
        for a, b in zip(own.fields.values(), theirs.fields.values(), strict=True):
            assert (a.offset, a.name, list(a.data), a.types) == (b.offset, b.name, b.data, b.types)
            assert [(p.dtype, p.tobytes()) for p in a.parts] == [(p.dtype, p.tobytes()) for p in b.parts]
            if "not-utf8" not in str(path) and not a.name.startswith("nested"):
                assert a.contents() == b.contents()
                if a.data and a.types[0] == ARRAY:
                    assert a.contents(-1) == b.contents(-1)
        for a, b in zip(own.tensors, theirs.tensors, strict=True):
            assert (a.name, a.tensor_type, a.n_elements, a.n_bytes, a.data_offset, a.shape.tolist()) == (
                b.name, b.tensor_type, b.n_elements, b.n_bytes, b.data_offset, b.shape.tolist(),
            )  # fmt: skip
            assert (a.data.dtype, a.data.shape, a.data.tobytes()) == (b.data.dtype, b.data.shape, b.data.tobytes())
    assert own.get_field("nothing") is None
    raw = np.random.default_rng(3).integers(0, 60, (4, 288), np.uint8)
    want = gguf.dequantize(raw, gguf.GGMLQuantizationType.Q4_K)
    for kind in (12, QType.Q4_K, gguf.GGMLQuantizationType.Q4_K):
        np.testing.assert_array_equal(ggufx.quants.dequantize(raw, kind), want)
    np.testing.assert_array_equal(ggufx.quants.dequantize(raw[:, ::-1][:, ::-1].T.copy().T, 12), want)
    floats = want[0, :64]
    assert ggufx.quants.dequantize(floats, 0).base is not None
    assert ggufx.quants.dequantize(floats.astype(np.float16), 1).dtype == np.float32
    assert ggufx.quants.quantize(floats, 0) is floats
    assert ggufx.quants.quantize(floats, 1).dtype == np.float16
    for call in (ggufx.quants.dequantize, ggufx.quants.quantize):
        for kind in (QType.I8, QType.F64, 99):
            with pytest.raises(NotImplementedError):
                call(floats, kind)
    for kind in (QType.Q8_0, QType.Q5_1, QType.BF16):
        theirs = gguf.quantize(want, gguf.GGMLQuantizationType(kind))
        np.testing.assert_array_equal(ggufx.quants.quantize(want, kind), theirs)
    with pytest.raises(NotImplementedError, match="importance matrix"):
        ggufx.quants.quantize(want, QType.IQ1_S)
    with pytest.raises(ggufx.quants.QuantError):
        ggufx.quants.quantize(floats[:7], QType.Q8_0)
    for ours, gguf_s in (
        (ggufx.quants.quant_shape_to_byte_shape, gguf.quants.quant_shape_to_byte_shape),
        (ggufx.quants.quant_shape_from_byte_shape, gguf.quants.quant_shape_from_byte_shape),
    ):
        size = 512 if "to" in ours.__name__ else 288
        assert ours((3, size), QType.Q4_K) == gguf_s((3, size), gguf.GGMLQuantizationType.Q4_K)
        with pytest.raises(ValueError, match="is not a multiple of Q4_K"):
            ours((3, 7), QType.Q4_K)


@pytest.mark.parametrize("case", [*CORRUPT, *ENDLESS])
def test_own_reader_on_corrupt_files(tmp_path, case):
    [path] = write_corrupt(tmp_path, {case: (CORRUPT | ENDLESS)[case]})
    with pytest.raises((ValueError, KeyError)):
        ggufx.GGUFReader(path)
