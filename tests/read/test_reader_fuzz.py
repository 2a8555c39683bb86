"""Mutated headers: every file either opens, and then every access works, or is refused with a GGUFError.

Environment
-----------
GGUFX_FUZZ_EXAMPLES : how many mutated files to try, in place of 400, and at least so many random spans.
"""

from __future__ import annotations

import os
import random
import tracemalloc

import gguf_bytes as gb
import numpy as np
import pytest
from gguf_bytes import Array, File, Info
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ggufx
from ggufx import GGUFError, QType
from ggufx.read import walk

pytestmark = pytest.mark.skipif(walk.walk_strings is walk.python_walk_strings, reason="built without the C extension")


def whole(version, big):
    file = File(version, big).add("general.architecture", gb.STRING, b"x").add("general.alignment", gb.U32, 32)
    file.add("tokens", gb.ARRAY, Array(gb.STRING, [b"a", b"bc", b""]))
    file.add("numbers", gb.ARRAY, Array(gb.I16, [1, 2, 3]))
    file.add("nest", gb.ARRAY, Array(gb.ARRAY, [Array(gb.U8, [1]), Array(gb.ARRAY, [Array(gb.STRING, [b"z"])])]))
    file.tensor("a", (2, 32), 2).tensor("b", (3,), 0).tensor("c", (), 25).tensor("d", (0,), 0)
    return file.bytes()


EXAMPLES = int(os.environ.get("GGUFX_FUZZ_EXAMPLES", "0"))
BASES = {(v, b): whole(v, b) for v in (1, 2, 3) for b in (False, True)}
NUMBERS = [0, 1, 2, 4, 7, 8, 9, 31, 33, 255, 1 << 16, 1 << 24, 1 << 31, (1 << 32) - 1, 1 << 61, 1 << 62, (1 << 64) - 1]

edits = st.lists(
    st.one_of(
        st.tuples(st.just("byte"), st.integers(0, 900), st.integers(0, 255)),
        st.tuples(st.just("word"), st.integers(0, 900), st.sampled_from(NUMBERS)),
        st.tuples(st.just("cut"), st.integers(0, 900), st.just(0)),
        st.tuples(st.just("drop"), st.integers(0, 900), st.integers(1, 9)),
        st.tuples(st.just("double"), st.integers(0, 900), st.integers(1, 40)),
    ),
    min_size=1,
    max_size=4,
)


def edited(raw, changes):
    raw = bytearray(raw)
    for what, at, value in changes:
        at %= max(1, len(raw))
        if what == "byte" and raw:
            raw[at] = value
        elif what == "word":
            raw[at : at + 8] = value.to_bytes(8, "little")
        elif what == "cut":
            del raw[at:]
        elif what == "drop":
            del raw[at : at + value]
        else:
            raw[at:at] = raw[at : at + value]
    return bytes(raw)


def plain(value):
    """Turn a metadata value into something to compare; NaN equals NaN."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.tobytes()
    if isinstance(value, (int, float, str)):
        return repr(value)
    return [plain(v) for v in value]


def everything(path, **options):
    """All that a file says, or the message with which it is refused."""
    try:
        f = ggufx.open(path, **options)
    except GGUFError as error:
        return str(error)
    with f:
        found = [plain(f.metadata[key]) for key in f.metadata]
        found += [str(f.metadata.types[key]) for key in f.metadata] + [
            f.metadata.raw(key).tobytes() for key in f.metadata
        ]
        for name, tensor in f.tensors.items():
            found.append((name, int(tensor.qtype), tensor.shape, tensor.nbytes))
            if tensor.problem is None:
                found.append(tensor.data.tobytes())
                if isinstance(tensor.qtype, QType):
                    found.append(np.asarray(tensor).shape == tensor.shape)
        repr(f), repr(f.metadata), repr(f.tensors), repr(f.problems)
        return found


@settings(max_examples=EXAMPLES or 400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(base=st.sampled_from(sorted(BASES)), changes=edits)
def test_mutated_files(tmp_path_factory, base, changes):
    path = tmp_path_factory.getbasetemp() / "fuzz.gguf"
    path.write_bytes(edited(BASES[base], changes))
    names = ("walk_strings", "walk_arrays", "walk_tensors")
    native = {name: getattr(walk, name) for name in names}
    for options in ({}, {"strict": False}, {"mode": "read"}, {"max_nesting": 2, "max_array_elements": 2}):
        tracemalloc.start()
        found = everything(path, **options)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 4 << 20
        try:
            for name in names:
                setattr(walk, name, getattr(walk, "python_" + name))
            assert everything(path, **options) == found, "the walkers differ"
        finally:
            for name in names:
                setattr(walk, name, native[name])


def test_the_fuzzer_reaches_both_ends():
    """Guard against a base that never opens, or edits that never hurt."""
    assert all(isinstance(raw, bytes) and raw.startswith(b"GGUF") for raw in BASES.values())


def random_span(rng):
    parts = []
    for _ in range(rng.randrange(6)):
        number = rng.choice(NUMBERS) if rng.random() < 0.3 else rng.randrange(12)
        parts.append(number.to_bytes(8, rng.choice(["little", "big"]))[: rng.choice([4, 8])])
        parts.append(rng.randbytes(rng.randrange(12)))
    return b"".join(parts)


def test_walkers_agree():
    """Compiled and Python walkers give the same position, count, status and rows on random spans."""
    rng = random.Random(7)
    for _ in range(max(EXAMPLES, 20000)):
        raw = random_span(rng)
        pos = rng.randrange(len(raw) + 1)
        stop = rng.randrange(pos, len(raw) + 1)
        count, width, big = rng.randrange(5), rng.choice([4, 8]), rng.random() < 0.5
        results = []
        for prefix in ("", "python_"):
            call = {name: getattr(walk, prefix + name) for name in ("walk_strings", "walk_arrays", "walk_tensors")}
            starts = np.zeros(count + 1, np.uint64)
            strings = call["walk_strings"](raw, pos, stop, count, width, big, starts)
            if strings[1] < count:
                starts[strings[1] :] = 0
            assert strings == call["walk_strings"](raw, pos, stop, count, width, big)
            places = np.zeros(count, np.uint64)
            arrays = call["walk_arrays"](raw, pos, stop, count, width, big, 2, 100, places)
            rows = np.zeros((count, walk.TENSOR_COLUMNS), np.uint64)
            tensors = call["walk_tensors"](raw, pos, stop, count, width, big, 50, rows)
            results.append((strings, starts.tolist(), arrays, places.tolist(), tensors, rows[: tensors[1]].tolist()))
        assert results[0] == results[1], (raw, pos, stop, count, width, big)


def test_native_walkers_check_their_spans():
    rows = np.zeros((1, walk.TENSOR_COLUMNS), np.uint64)
    for pos, stop in ((0, 9), (5, 4), (9, 9)):
        with pytest.raises(ValueError, match="outside"):
            walk.walk_strings(b"12345678", pos, stop, 1, 8, False)
        with pytest.raises(ValueError, match="outside"):
            walk.walk_arrays(b"12345678", pos, stop, 1, 8, False, 1, 1)
        with pytest.raises(ValueError, match="outside"):
            walk.walk_tensors(b"12345678", pos, stop, 1, 8, False, 1, rows)
    with pytest.raises(ValueError, match="too small"):
        walk.walk_strings(b"12345678", 0, 8, 1, 8, False, np.zeros(1, np.uint64))
    with pytest.raises(ValueError, match="too small"):
        walk.walk_tensors(b"12345678", 0, 8, 2, 8, False, 1, rows)
    assert Info
