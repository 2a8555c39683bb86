"""Whether what takes the place of a piece of a package gives what the piece gives: both are run on a small sample.

Releases and copies of `gguf` are known by what they do, not by their text. The samples hold what tells one way to read,
decode or encode from another: all value types and kinds of arrays in both byte orders, headers that lie, blocks of any
bytes, values on either side of each rounding step. One comparison takes milliseconds, at the first use.
"""

from __future__ import annotations

import hashlib
import os
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import GGUFError
from ..formats.tensor_types import QType
from .patching import DIFFERS, say_once

__all__ = ["as_path", "decodes_alike", "encodes_alike", "model_file", "readers_agree", "same_values", "verdict"]

_STRING, _ARRAY = 8, 9
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
# What `ReaderField.contents` is asked for.
_PICKS = (slice(None), slice(1, 19, 3), slice(None, None, -1), 0, -1)


def verdict(title: str, check: Callable[[], bool]) -> Callable[[], bool]:
    """Make a function that runs a comparison at its first call, and remembers what it gave; says where it fails."""

    @cache
    def agrees() -> bool:
        try:
            same = check()
        except Exception:  # the sample couldn't be made, or the package lacks something
            same = False
        if not same:
            say_once(f"{title}: {DIFFERS}")
        return same

    return agrees


def _random_bytes(count: int, seed: str) -> npt.NDArray[np.uint8]:
    # Not numpy's generator, whose import alone takes longer than a comparison.
    return np.frombuffer(hashlib.shake_128(seed.encode()).digest(count), np.uint8)


class _File:
    """Bytes of a GGUF file."""

    def __init__(self, version: int, big: bool = False) -> None:
        self.version, self.order = version, ">" if big else "<"
        self.fields: list[bytes] = []
        self.infos: list[bytes] = []
        self.data = b""

    def pack(self, codes: str, *values: Any) -> bytes:
        return struct.pack(self.order + codes, *values)

    def text(self, text: bytes) -> bytes:
        return self.pack("Q", len(text)) + text

    def array(self, kind: int, items: list[bytes]) -> bytes:
        return self.pack("IQ", kind, len(items)) + b"".join(items)

    def add(self, key: bytes, kind: int, value: bytes) -> _File:
        self.fields.append(self.text(key) + self.pack("I", kind) + value)
        return self

    def tensor(self, name: bytes, kind: int, shape: tuple[int, ...], size: int) -> _File:
        place = self.pack(f"I{len(shape)}QIQ", len(shape), *shape, kind, len(self.data))
        self.infos.append(self.text(name) + place)
        self.data += _random_bytes(size, name.decode()).tobytes() + bytes(-size % 64)
        return self

    def bytes(self) -> bytes:
        head = b"GGUF" + self.pack("IQQ", self.version, len(self.infos), len(self.fields))
        head += b"".join(self.fields + self.infos)
        return head + bytes(-len(head) % 64) + self.data


def _good_file(big: bool) -> _File:
    file = _File(3, big)
    file.add(b"general.alignment", 4, file.pack("I", 64))
    for kind, code in _NUMBERS.items():
        numbers = [file.pack(code, n % 2 if code == "?" else n) for n in range(40, 60)]
        file.add(b"one %d" % kind, kind, numbers[1])
        file.add(b"two %d" % kind, _ARRAY, file.array(kind, numbers[:2]))
        if kind in (5, 6, 7):
            file.add(b"many %d" % kind, _ARRAY, file.array(kind, numbers))
    words = [file.text(word) for word in (b"", b"word", "\N{SNOWMAN}".encode(), b"x" * 40) * 5]
    file.add(b"text", _STRING, words[2]).add(b"empty text", _STRING, words[0])
    file.add(b"words", _ARRAY, file.array(_STRING, words[:3])).add(b"many words", _ARRAY, file.array(_STRING, words))
    file.add(b"no words", _ARRAY, file.array(_STRING, [])).add(b"no numbers", _ARRAY, file.array(5, []))
    inner = [file.array(2, [file.pack("H", n) for n in (1, 2, 3)]), file.array(_STRING, words[:2])]
    file.add(b"nested", _ARRAY, file.array(_ARRAY, inner))
    for kind, shape, size in (
        (0, (3, 2), 24), (1, (4,), 8), (2, (32, 2), 36), (8, (64, 1, 2), 136), (12, (256,), 144), (24, (5,), 5),
        (26, (2, 2), 16), (28, (3,), 24), (0, (0,), 0),
    ):  # fmt: skip
        file.tensor(b"tensor %d of %d" % (kind, size), kind, shape, size)
    return file


@cache
def _files() -> tuple[bytes, ...]:
    """Good files and broken ones."""
    good = [_good_file(big).bytes() for big in (False, True)]

    def small(version: int = 3) -> _File:
        file = _File(version)
        return file.add(b"text", _STRING, file.text(b"abc")).tensor(b"a", 0, (4,), 16)

    whole = small().bytes()
    broken = [
        whole[:30],
        whole[:-60],
        small().add(b"odd", 13, bytes(64)).bytes(),
        small().add(b"\xff\xfe", 4, bytes(4)).bytes(),
        small().add(b"long", _STRING, small().pack("Q", 1 << 40)).bytes(),
        small().tensor(b"a", 0, (4,), 16).bytes(),
        small().tensor(b"b", 99, (4,), 16).bytes(),
        small().tensor(b"b", 2, (33,), 18).bytes(),
        small().tensor(b"b", 0, (2, 1, 1, 1, 2), 16).bytes(),
    ]
    return (*good, small(2).bytes(), *broken)


def model_file() -> bytes:
    """Header of a model that transformers' older loader takes, with a vocabulary."""
    file = _File(3)
    file.add(b"general.architecture", _STRING, file.text(b"llama")).add(b"llama.block_count", 4, file.pack("I", 2))
    file.add(b"llama.rope.freq_base", 6, file.pack("f", 1e4)).add(b"llama.context_length", 4, file.pack("I", 64))
    for key, kind, items in (
        (b"model", _STRING, None),
        (b"tokens", _STRING, [file.text(b"word %d" % n) for n in range(20)]),
        (b"scores", 6, [file.pack("f", n / 8) for n in range(20)]),
        (b"token_type", 5, [file.pack("i", n) for n in range(20)]),
        (b"merges", _STRING, [file.text(b"a b")]),
    ):
        value = file.text(b"gpt2") if items is None else file.array(kind, items)
        file.add(b"tokenizer.ggml." + key, kind if items is None else _ARRAY, value)
    return file.tensor(b"output.weight", 0, (4,), 16).bytes()


@contextmanager
def as_path(raw: bytes) -> Iterator[str]:
    """Path of a file of these bytes, in memory where the system has such files."""
    if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
        number = os.memfd_create("ggufx")
        try:
            os.write(number, raw)
            yield f"/proc/self/fd/{number}"
        finally:
            os.close(number)
    else:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            path = os.path.join(folder, "sample.gguf")
            with open(path, "wb") as file:
                file.write(raw)
            yield path


def _of_array(array: Any) -> tuple[object, ...]:
    return type(array), array.dtype, array.shape, array.tobytes()


def _of_field(field: Any, contents: Callable[[Any, Any], Any] | None) -> tuple[object, ...]:
    found = [] if contents is None else [_attempt(contents, field, pick) for pick in _PICKS]
    named = [(type(field), field.offset, field.name, list(field.data), field.types), found]
    return (*named, [_of_array(part) for part in field.parts])


def _attempt(call: Callable[..., Any], *arguments: Any) -> object:
    try:
        return call(*arguments)
    except Exception as error:
        return error if isinstance(error, GGUFError) else type(error)


def _look(reader_class: Any, path: str, contents: Callable[[Any, Any], Any] | None) -> object:
    """All that a reader of a file shows."""
    reader = reader_class(path)
    fields = {key: _of_field(field, contents) for key, field in reader.fields.items()}
    tensors = [
        (type(t), _of_array(t.shape), _of_array(t.data), _of_field(t.field, contents), *map(repr, (*t[:2], *t[3:6])))
        for t in reader.tensors
    ]
    others = {name: repr(value) for name, value in vars(reader).items() if isinstance(value, (int, str, np.generic))}
    return fields, tensors, set(vars(reader)), others


def readers_agree(theirs: Any, ours: Any, contents: tuple[Callable[[Any, Any], Any] | None, ...]) -> bool:
    """Whether two classes of readers show the same of every file, and refuse the same ones.

    Parameters
    ----------
    theirs, ours : type
        Called with a path.
    contents : tuple of two functions
        Called with a field of theirs, of ours, and what to pick of it.
    """
    for raw in _files():
        with as_path(raw) as path:
            found, mine = (_attempt(_look, c, path, v) for c, v in zip((theirs, ours), contents, strict=True))
        # Where theirs has an error of numpy's, ours says what is wrong.
        if found != mine and not (isinstance(found, type) and isinstance(mine, GGUFError)):
            return False
    return True


def same_values(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> bool:
    """Whether float32 arrays have the same bits, and NaN in the same places."""
    if a.dtype != np.float32 or a.shape != b.shape:
        return False
    same = np.ascontiguousarray(a).view(np.uint32) == b.view(np.uint32)
    return bool((same | (np.isnan(a) & np.isnan(b))).all())


def decodes_alike(
    qtype: QType,
    theirs: Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.float32]],
    ours: Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.float32]],
) -> bool:
    """Whether two decoders of a type give the same values of blocks of any bytes.

    Parameters
    ----------
    qtype : QType
        The tensor type.
    theirs, ours : function
        Bytes of shape (rows, bytes per row) -> float32 values of shape (rows, values per row).
    """
    raw = _random_bytes(48 * qtype.block_bytes, qtype.name).copy().reshape(24, -1)
    raw[-2], raw[-1] = 0, 255
    with np.errstate(all="ignore"):
        found, mine = _attempt(theirs, raw), _attempt(ours, raw)
    return isinstance(found, np.ndarray) and isinstance(mine, np.ndarray) and same_values(found, mine)


@cache
def _values() -> npt.NDArray[np.float32]:
    """Rows of 256 values of several sizes, and rows whose values lie beside the rounding steps of their scale."""
    integers = _random_bytes(4 * 16 * 256, "values").view(np.int32).reshape(16, 256)
    scales = np.array([1e-6, 0.01, 1, 100], np.float32).repeat(4)[:, None]
    rows = [integers.astype(np.float32) * np.float32(2.0**-31) * scales]
    ulps = np.arange(-3, 4, dtype=np.int32)[:, None]
    # A half step times a scale that is no power of two shows whether products and sums are rounded one by one.
    for scale in (1, 0.7310586, 1.1234568):
        for largest in (1, 6, -8, 15, -16, 31, 127):
            steps = np.linspace(0, abs(largest), 30, endpoint=False, dtype=np.float32) - (largest < 0) * largest // -2
            halves = ((np.floor(steps) + np.float32(0.5)) * np.float32(scale)).view(np.int32)
            block = np.full((8, 32), [largest * scale, 0, *[0] * 30], np.float32)
            block[1:, 2:] = (halves + ulps).view(np.float32)
            rows.append(block.reshape(1, 256))
    return np.concatenate(rows)


def encodes_alike(
    theirs: Callable[[npt.NDArray[np.float32]], npt.NDArray[np.uint8] | None],
    ours: Callable[[npt.NDArray[np.float32]], npt.NDArray[np.uint8] | None],
) -> bool:
    """Whether two encoders give the same bytes: functions of float32 values of shape (rows, 256)."""
    with np.errstate(all="ignore"):
        found, mine = _attempt(theirs, _values()), _attempt(ours, _values())
    return isinstance(found, np.ndarray) and isinstance(mine, np.ndarray) and np.array_equal(found, mine)
