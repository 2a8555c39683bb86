"""GGUF files for the tests of the patched `gguf` package: of everything that there can be, and broken ones."""

from __future__ import annotations

from pathlib import Path

from gguf_bytes import ARRAY, BOOL, F32, F64, I8, I16, I32, I64, STRING, U8, U16, U32, U64, Array, File, Info


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
