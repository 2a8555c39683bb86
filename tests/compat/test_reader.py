"""The patched GGUFReader: the same fields, tensors and lists, in less memory; its subclasses; writing through it."""

from __future__ import annotations

import copy
import dataclasses
import json
import logging
import operator
import pickle
import shutil
import tracemalloc
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from compat_runs import assert_alike
from gguf_bytes import ARRAY, F32, STRING, Array, File, Info

import ggufx
from ggufx import compat
from ggufx.compat import patching
from ggufx.gguf_names.lazylists import LazyList

gguf = pytest.importorskip("gguf")


def test_fields_and_tensors(good_files):
    """Every part, index, type and value, and every tensor's bytes."""
    assert_alike("files", *good_files)


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
    with pytest.raises(TypeError, match="list indices must be integers or slices, not str"):
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


COMPARISONS = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)


@pytest.mark.parametrize("sides", [(True, False), (False, True), (True, True)])
def test_lists_on_either_side(good_files, sides):
    """Operations on two lists see all items, whichever of them is lazy."""
    plain = gguf.GGUFReader(good_files[0]).fields["many words"].data
    assert len(plain) == 200

    def pair():
        return [gguf.GGUFReader(good_files[0]).fields["many words"].data if lazy else [*plain] for lazy in sides]

    with compat.patched():
        a, b = pair()
        assert {type(a), type(b)} <= {list, LazyList}
        for compare in COMPARISONS:
            assert compare(a, b) is compare(plain, [*plain]), compare
            assert compare(a, b[1:]) is compare(plain, plain[1:]), compare
            assert compare(a, a) is compare(plain, plain), compare
        assert a + b == b + a == [*a, *b] == plain * 2
        assert plain + b == a + plain == plain * 2
        assert a in [b]
        assert [a].index(b) == 0
        assert [a].count(b) == 1
        assert (a,) == (b,)
        assert {1: a} == {1: b}
        assert sorted(a) == sorted(b) == [*a] == list(b) == a.copy() == copy.copy(b) == plain
        assert a * 2 == 2 * b
        assign = lambda x, y: x.__setitem__(slice(len(x), None), y) or x  # noqa: E731
        for change in (operator.iadd, assign, lambda x, y: x.extend(y) or x):
            a, b = pair()
            assert change(a, b) is a
            assert a == plain * 2
            assert change(a, a) == plain * 4
            assert len(a) == 800
            assert b == plain
        a, b = pair()
        np.testing.assert_array_equal(a + np.array(b), np.array(plain) * 2)
        np.testing.assert_array_equal(a * np.array(b), np.array(plain) ** 2)
        for wrong in ((1,), 1, "a"):
            with pytest.raises(TypeError):
                a + wrong
            with pytest.raises(TypeError):
                wrong + a
        assert type(type(a)(i for i in b)) is list
        seen = []
        for i in a:  # changed on the way, as a list can be
            seen.append(i)
            if i == plain[3]:
                a[4:] = [0, 1]
        assert seen == [*plain[:4], 0, 1]


def test_parts_keep_their_identity(good_files):
    """Lists of arrays compare by identity first; a part that is held is the same object each time."""

    @dataclasses.dataclass
    class Holder:
        parts: list[object]

    with compat.patched():
        parts = gguf.GGUFReader(good_files[0]).fields["many words"].parts
        assert type(parts) is LazyList
        held = list(parts)
        assert parts[7] is held[7]
        assert (parts == parts, parts != parts, parts == held, held == parts, parts == parts.copy()) == (
            True, False, True, True, True,
        )  # fmt: skip
        assert parts.index(held[0]) == 0
        assert len(dataclasses.asdict(Holder(parts))["parts"]) == len(parts)
        del held
        assert len(parts.items.held) == 0


def test_helpers_replaced_after_install(good_files):
    """Steps of the reader's class that somebody replaces are called."""
    reader = gguf.GGUFReader
    with compat.patched():
        for name in ("_get", "_get_str", "_get_field_parts", "_get_tensor_info_field"):
            with mock.patch.object(reader, name, autospec=True, side_effect=getattr(reader, name)) as replaced:
                assert type(reader(good_files[0]).fields["many words"].parts) is list
                assert replaced.call_count > 10, name
            assert type(reader(good_files[0]).fields["many words"].parts) is LazyList


def test_lengths_changed_under_us(good_files, tmp_path):
    """A file whose strings somebody changed while it is open is told, not read from places that were never there."""
    path = Path(shutil.copy(good_files[4], tmp_path / "changed.gguf"))
    with compat.patched():
        field = gguf.GGUFReader(path).fields["many words"]
    with ggufx.open(path) as ours:
        at = field.offset + 8 + len("many words") + 4 + 4 + 8
        told = r"changed.gguf: the 200 strings .* changed while it was open"
        for length in (1 << 62, 1):
            with open(path, "r+b") as file:
                file.seek(at)
                file.write(length.to_bytes(8, "little"))
            for ask in (field.contents, lambda: field.contents(3), lambda: field.parts[8], lambda: list(field.parts)):
                with pytest.raises(ggufx.GGUFError, match=told):
                    ask()
            if length > 1:
                with pytest.raises(ggufx.GGUFError, match=r"changed.gguf: string 0 of 200 .* was changed since"):
                    ours.metadata["many words"]


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
