"""Broken files in the patched GGUFReader, beside what `gguf` says of them.

Environment
-----------
GGUFX_FUZZ_EXAMPLES : a fiftieth of it is how many mutated files to try, and at least 200.
"""

from __future__ import annotations

import os
import random
import signal

import pytest
from compat_files import CORRUPT, ENDLESS, write_corrupt
from compat_runs import probe
from gguf_bytes import ARRAY, BOOL, STRING, U8, U16, U32, Array, File

import ggufx
from ggufx import compat

gguf = pytest.importorskip("gguf")


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


def mutated(rng: random.Random, raw: bytes) -> bytes:
    """Change a file in up to three places."""
    changed = bytearray(raw)
    for _ in range(rng.randint(1, 3)):
        at, size = rng.randrange(len(changed) + 1), rng.randint(1, 9)
        number = rng.choice([0, 1, 4, 8, 9, 33, 255, 1 << 24, (1 << 32) - 1, 1 << 61, (1 << 64) - 1])
        changed[at : at + rng.choice([0, size, len(changed)])] = rng.choice(
            [b"", bytes([rng.randrange(256)]), number.to_bytes(8, rng.choice(["little", "big"])), raw[at : at + 40]]
        )
    return bytes(changed)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="gguf runs for ever on some files, and no alarm stops it")
def test_mutated_files(tmp_path):
    """What gguf opens shows the same; what it refuses is refused with its class of error, or GGUFError."""
    import compat_probe

    class Late(BaseException):
        pass

    def stop(number: int, frame: object) -> None:
        raise Late

    def look() -> tuple[list[str], object]:
        try:
            reader = gguf.GGUFReader(path)
        except Exception as error:
            return [c.__name__ for c in type(error).__mro__], None
        shown = (
            [compat_probe.of_field(f) for f in reader.fields.values()],
            [compat_probe.of_tensor(t) for t in reader.tensors],
        )
        return ["opened"], (shown, reader.byte_order, int(reader.alignment), int(reader.data_offset))

    rng, path = random.Random(0), tmp_path / "mutated.gguf"
    bases = []
    for version, big in ((2, False), (3, False), (3, True)):
        file = File(version, big).add("general.alignment", U32, 32).add("b", BOOL, 1).add("s", STRING, b"text")
        file.add("words", ARRAY, Array(STRING, [b"a", b"bc", b""] * 7)).add("n", ARRAY, Array(U16, range(20)))
        file.add("nest", ARRAY, Array(ARRAY, [Array(U8, [1]), Array(STRING, [b"z"])]))
        bases.append(file.tensor("a", (2, 32), 2).tensor("b", (3,), 0).tensor("c", (2, 256), 12).bytes())
    outcomes = set()
    before = signal.signal(signal.SIGALRM, stop)
    try:
        for _ in range(max(200, int(os.environ.get("GGUFX_FUZZ_EXAMPLES", "0")) // 50)):
            path.write_bytes(mutated(rng, rng.choice(bases)))
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.5)
                plain, shown = look()
            except Late:
                plain, shown = ["ran for ever"], None
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            with compat.patched():
                patched, patched_shown = look()
            outcomes.add(plain[0])
            if plain == ["opened"]:
                assert patched_shown == shown
            else:
                assert plain[0] in patched or "GGUFError" in patched, path.read_bytes()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert {"opened", "ValueError", "IndexError"} <= outcomes
