"""A GGUF writer made of struct.pack calls, independent of the package and able to write every kind of wrong file."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
CODES = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q", F64: "d"}
# Type id -> values and bytes per block, of the few types these tests write.
BLOCKS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 8: (32, 34), 12: (256, 144), 24: (1, 1), 25: (1, 2), 26: (1, 4),
          27: (1, 8), 28: (1, 8), 30: (1, 2)}  # fmt: skip


class Array(tuple):
    """An array value: Array(item type, items)."""

    def __new__(cls, kind, items):
        return super().__new__(cls, (kind, list(items)))


@dataclass
class Info:
    """A tensor info as written, every field free to lie."""

    name: bytes
    dims: list[int]
    kind: int
    offset: int
    n_dims: int | None = None
    name_length: int | None = None


@dataclass
class File:
    """A file under construction; every count can be overridden."""

    version: int = 3
    big: bool = False
    fields: list[tuple[bytes, int, object]] = field(default_factory=list)
    infos: list[Info] = field(default_factory=list)
    data: bytes = b""
    alignment: int = 32
    n_fields: int | None = None
    n_tensors: int | None = None
    magic: bytes = b"GGUF"
    pad: bool = True

    def pack(self, code, *values):
        return struct.pack((">" if self.big else "<") + code, *values)

    def size(self, n):
        return self.pack("I" if self.version == 1 else "Q", n)

    def string(self, raw):
        return self.size(len(raw)) + raw

    def value(self, kind, value):
        if kind == STRING:
            return self.string(value)
        if kind == ARRAY:
            item, items = value
            return self.pack("I", item) + self.size(len(items)) + b"".join(self.value(item, v) for v in items)
        return self.pack(CODES[kind], value)

    def add(self, key, kind, value):
        self.fields.append((key.encode() if isinstance(key, str) else key, kind, value))
        return self

    def tensor(self, name, shape, kind, raw=None):
        """Append a tensor of numpy shape `shape`, its data at the next aligned offset."""
        dims = list(shape)[::-1]
        values, size = BLOCKS[kind]
        total = size
        for d in dims:
            total *= d
        total //= values
        raw = bytes(i % 251 for i in range(total)) if raw is None else raw
        assert len(raw) == total
        self.data += b"\0" * (-len(self.data) % self.alignment)
        self.infos.append(Info(name.encode() if isinstance(name, str) else name, dims, kind, len(self.data)))
        self.data += raw
        return self

    def header(self):
        out = self.magic + self.pack("I", self.version)
        out += self.size(len(self.infos) if self.n_tensors is None else self.n_tensors)
        out += self.size(len(self.fields) if self.n_fields is None else self.n_fields)
        for key, kind, value in self.fields:
            out += self.string(key) + self.pack("I", kind)
            out += value if isinstance(value, bytes) and kind != STRING else self.value(kind, value)
        for info in self.infos:
            out += self.size(len(info.name) if info.name_length is None else info.name_length) + info.name
            out += self.pack("I", len(info.dims) if info.n_dims is None else info.n_dims)
            out += b"".join(map(self.size, info.dims)) + self.pack("IQ", info.kind, info.offset)
        return out

    def bytes(self):
        head = self.header()
        return head + b"\0" * (-len(head) % self.alignment if self.pad else 0) + self.data

    def write(self, path):
        path.write_bytes(self.bytes())
        return path
