"""Parsing and checking a GGUF header: from bytes to an index of metadata fields and tensors. Decodes no value.

Everything in the file is a claim by a stranger. Counts, lengths and offsets are compared with the bytes that are really
there before anything is allocated for them, in arithmetic that cannot wrap.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from ..errors import GGUFError
from ..formats.tensor_types import QType
from ..formats.value_types import ValueType
from . import walk
from .index import Field, Header, Limits, NeedMore, Problem, TensorTable

if TYPE_CHECKING:
    import numpy.typing as npt

    from .sources import HeaderBuffer

__all__ = ["read_header"]

# GGUF's specification limits keys to 2**16 - 1 bytes; tensor names over ggml's 63 exist, so they get the same limit.
LONGEST_NAME = 65535
# Tensor infos are walked this many at a time, so that a table grows only as far as the file really bears it out.
CHUNK = 1 << 12
# Sizes from here on can't lie in any file and are computed again in Python's unbounded integers, for the message.
HUGE = 2.0**62

# First bytes of things that are taken for GGUF files.
OTHER_MAGICS = (
    (b"lmgg", "a GGML file from before GGUF; convert it with llama.cpp's converters"),
    (b"tjgg", "a GGJT file from before GGUF; convert it with llama.cpp's converters"),
    (b"fmgg", "a GGMF file from before GGUF; convert it with llama.cpp's converters"),
    (b"FUGG", "a GGUF magic written in the wrong byte order"),
    (b"PK\x03\x04", "a zip archive, perhaps a PyTorch checkpoint"),
    (b"version https://git-lfs", "a Git LFS pointer, not the model itself; run `git lfs pull`"),
    (b"<!DOCTYPE", "an HTML page, perhaps a failed download"),
    (b"<html", "an HTML page, perhaps a failed download"),
)


def read_header(buf: HeaderBuffer, size: int, *, label: str, limits: Limits, strict: bool) -> Header:
    """Parse and check the header of a file of `size` bytes that begins with `buf`.

    Raises
    ------
    GGUFError
        If the header is wrong, or (`strict`) a tensor is.
    NeedMore
        If `buf` is shorter than the file and ends before the header does.
    """
    return _Parser(buf, size, label, limits, strict).parse()


class _Parser:
    def __init__(self, buf: HeaderBuffer, size: int, label: str, limits: Limits, strict: bool) -> None:
        self.buf = buf
        self.size = size
        self.label = label
        self.limits = limits
        self.strict = strict
        self.stop = min(len(buf), size, limits.max_header_bytes)
        self.pos = 0
        self.problems: list[Problem] = []

    def fail(self, message: str) -> NoReturn:
        raise GGUFError(f"{self.label}: {message}")

    def short(self, where: str, wanted: int, likely: int = 0) -> NoReturn:
        """Deal with a header that goes on beyond what may be read: fetch more, or say which end was reached.

        `wanted` is the least that parsing needs to go on, `likely` a guess at all that is coming, to save requests.
        """
        if wanted <= self.size:
            if wanted > self.limits.max_header_bytes:
                limit = self.limits.max_header_bytes
                self.fail(f"the header is over the limit max_header_bytes={limit} ({where} needs byte {wanted - 1})")
            if wanted > len(self.buf):
                raise NeedMore(min(max(wanted, likely), self.limits.max_header_bytes))
        self.fail(f"the file ends at byte {self.size} inside its header, in {where}; is it a truncated download?")

    def need(self, count: int, where: str) -> int:
        """Step over `count` bytes; returns where they begin."""
        pos = self.pos
        if count > self.stop - pos:
            self.short(where, pos + count)
        self.pos = pos + count
        return pos

    def integer(self, form: Struct, where: str) -> int:
        value: int = form.unpack_from(self.buf, self.need(form.size, where))[0]
        return value

    def parse(self) -> Header:
        self.magic()
        n_tensors = self.integer(self.length, "the number of tensors")
        n_fields = self.integer(self.length, "the number of metadata fields")
        # The least a field (length, type, one byte) and a tensor info (length, n_dims, type, offset) can take.
        rest = self.size - self.pos
        least = n_fields * (self.width + 5) + n_tensors * (self.width + 16)
        if least > rest:
            self.fail(
                f"the header announces {n_fields} metadata fields and {n_tensors} tensors, which take {least} bytes or "
                f"more, but the file ends {rest} bytes later, at byte {self.size}; is it a truncated download?"
            )
        if n_tensors > self.limits.max_tensors:
            self.fail(f"{n_tensors} tensors are over the limit max_tensors={self.limits.max_tensors}")
        fields = self.fields(n_fields)
        alignment = self.alignment(fields)
        names, index, rows, repeats = self.infos(n_tensors)
        data_offset = -(-self.pos // alignment) * alignment
        tensors = self.check_tensors(names, index, rows, repeats, data_offset, alignment)
        return Header(self.version, self.big, alignment, data_offset, fields, tensors, tuple(self.problems))

    def magic(self) -> None:
        magic = bytes(self.buf[:32])
        if not magic.startswith(b"GGUF"):
            if b"GGUF".startswith(magic):
                self.short("the magic", 24)
            for other, what in OTHER_MAGICS:
                if magic.startswith(other):
                    self.fail(f"this is {what}")
            if bytes(self.buf[8:10]) == b'{"':
                self.fail(
                    "this looks like a safetensors file; `ggufx convert` makes a GGUF file from it, "
                    "the safetensors package reads it as it is"
                )
            self.fail(f"not a GGUF file: it begins with {magic[:4]!r}, not b'GGUF'")
        self.pos = 4
        at = self.need(4, "the version")
        little, big = (Struct(order + "I").unpack_from(self.buf, at)[0] for order in "<>")
        # Nothing but the version tells the byte order: one of the two readings is a small number.
        self.big = big < little
        self.version: int = min(big, little)
        if self.version not in (1, 2, 3):
            self.fail(f"GGUF version {self.version} isn't known (versions 1, 2 and 3 are)")
        self.width = 4 if self.version == 1 else 8
        order = ">" if self.big else "<"
        self.length = Struct(order + ("I" if self.version == 1 else "Q"))
        self.u32 = Struct(order + "I")

    def fields(self, count: int) -> dict[str, Field]:
        fields: dict[str, Field] = {}
        before = "the first metadata field"
        for _ in range(count):
            length = self.integer(self.length, before)
            if length > LONGEST_NAME:
                self.fail(f"{before} has a key of {length} bytes (the format allows {LONGEST_NAME})")
            at = self.need(length, before)
            key = bytes(self.buf[at : self.pos]).decode("utf-8", "surrogateescape")
            where = f"metadata field {key!r}"
            field = self.field(self.integer(self.u32, where), where)
            if not key and key not in fields:
                self.key_problem("empty key", key, "a metadata field has a key of no bytes; llama.cpp aborts on it")
            if key in fields:
                self.key_problem("duplicate key", key, f"{where} is there twice")
            else:
                fields[key] = field
            before = f"the metadata field after {key!r}"
        return fields

    def key_problem(self, kind: str, key: str, text: str) -> None:
        problem = Problem(kind, key, f"{self.label}: {text}")
        if self.strict:
            raise GGUFError(problem.message)
        self.problems.append(problem)

    def field(self, kind: int, where: str) -> Field:
        begin = self.pos
        if width := walk.SCALAR_BYTES.get(kind):
            self.need(width, where)
            return Field(ValueType(kind), begin, begin, self.pos)
        if kind == ValueType.STRING:
            length = self.integer(self.length, where)
            start = self.need(length, f"{where} (a string of {length} bytes)")
            return Field(ValueType.STRING, begin, start, self.pos)
        if kind != ValueType.ARRAY:
            self.fail(f"{where} has value type {kind} (types 0 to 12 are known)")
        item = self.integer(self.u32, where)
        count = self.integer(self.length, where)
        if item not in walk.SCALAR_BYTES and item not in (ValueType.STRING, ValueType.ARRAY):
            self.fail(f"{where} is an array of value type {item} (types 0 to 12 are known)")
        most = self.limits.max_array_elements
        if count > most:
            self.fail(f"{where} is an array of {count} elements, over the limit max_array_elements={most}")
        where = f"{where} (an array of {count} {ValueType(item).name})"
        start = self.pos
        if width := walk.SCALAR_BYTES.get(item):
            self.need(count * width, where)
        elif item == ValueType.STRING:
            self.room(count * self.width, where)
            self.pos, done = walk.walk_strings(self.buf, start, self.stop, count, self.width, self.big)
            if done < count:
                likely = start + (self.pos - start) * count // max(done, 1)
                self.short(f"{where}, element {done}", self.string_end(), likely)
        else:
            self.room(count * (4 + self.width), where)
            levels = self.limits.max_nesting - 1
            status = walk.TOO_DEEP
            if levels > 0:
                self.pos, status = walk.walk_arrays(
                    self.buf, start, self.stop, count, self.width, self.big, levels, most
                )
            if status == walk.SHORT:
                self.short(where, max(self.stop, self.pos) + 1)
            elif status == walk.TOO_DEEP:
                self.fail(f"{where} is nested deeper than the limit max_nesting={self.limits.max_nesting}")
            elif status == walk.BAD_TYPE:
                self.fail(f"{where} holds an array of an unknown value type before byte {self.pos}")
            elif status == walk.TOO_MANY:
                self.fail(f"{where} holds an array over the limit max_array_elements={most} before byte {self.pos}")
        return Field(ValueType.ARRAY, begin, start, self.pos, ValueType(item), count)

    def room(self, least: int, where: str) -> None:
        """Refuse at once a count whose elements can't lie in the file."""
        if least > self.size - self.pos:
            self.short(where, self.pos + least)

    def string_end(self) -> int:
        """Where the string at the current position would end, or the least that can be said of it."""
        if self.stop - self.pos < self.width:
            return self.stop + 1
        return self.pos + self.width + int(self.length.unpack_from(self.buf, self.pos)[0])

    def alignment(self, fields: dict[str, Field]) -> int:
        field = fields.get("general.alignment")
        if field is None:
            return 32
        code = {4: "I", 5: "i", 10: "Q", 11: "q", 0: "B", 1: "b", 2: "H", 3: "h"}.get(int(field.type))
        if code is None:
            self.fail(f"metadata field 'general.alignment' has type {field.type.name}, UINT32 was expected")
        order = ">" if self.big else "<"
        value: int = Struct(order + code).unpack_from(self.buf, field.start)[0]
        if value <= 0 or value & (value - 1) or value >> 32:
            self.fail(f"metadata field 'general.alignment' is {value}, a power of two below 2**32 was expected")
        return value

    def infos(self, count: int) -> tuple[list[str], dict[str, int], npt.NDArray[np.uint64], list[tuple[int, int]]]:
        """Walk the tensor infos: names, the row of each name, the raw rows, and (row, first row) of repeated names."""
        names: list[str] = []
        index: dict[str, int] = {}
        chunks = [np.empty((0, walk.TENSOR_COLUMNS), np.uint64)]
        repeats: list[tuple[int, int]] = []
        first_info = self.pos
        while len(names) < count:
            rows = np.empty((min(CHUNK, count - len(names)), walk.TENSOR_COLUMNS), np.uint64)
            base = self.pos
            self.pos, done, status = walk.walk_tensors(
                self.buf, base, self.stop, len(rows), self.width, self.big, LONGEST_NAME, rows
            )
            text = bytes(self.buf[base : self.pos])
            for start, length in (rows[:done, :2] - np.array([base, 0], np.uint64)).tolist():
                name = text[start : start + length].decode("utf-8", "surrogateescape")
                first = index.setdefault(name, len(names))
                if first != len(names):
                    if self.strict:
                        self.fail(f"tensor {name!r} is there twice, as number {first} and number {len(names)}")
                    repeats.append((len(names), first))
                names.append(name)
            chunks.append(rows[:done])
            if status:
                self.bad_info(status, count, names, first_info)
        return names, index, np.concatenate(chunks), repeats

    def bad_info(self, status: int, count: int, names: list[str], first_info: int) -> NoReturn:
        number = len(names)
        where = f"the information on tensor {number} of {count}"
        where += f" (after {names[-1]!r})" if names else ""
        if status == walk.SHORT:
            likely = first_info + (self.pos - first_info) * count // max(number, 1)
            self.short(where, max(self.stop + 1, self.string_end() + 4), likely)
        length = int(self.length.unpack_from(self.buf, self.pos)[0])
        if status == walk.TOO_MANY:
            self.fail(f"{where} has a name of {length} bytes (at most {LONGEST_NAME} are read)")
        at = self.pos + self.width
        name = bytes(self.buf[at : at + length]).decode("utf-8", "surrogateescape")
        n_dims = self.u32.unpack_from(self.buf, at + length)[0]
        self.fail(f"tensor {name!r} has {n_dims} dimensions, at most 4 were expected")

    def check_tensors(
        self,
        names: list[str],
        index: dict[str, int],
        rows: npt.NDArray[np.uint64],
        repeats: list[tuple[int, int]],
        data_offset: int,
        alignment: int,
    ) -> TensorTable:
        """Compute every tensor's place and size, all at once, and note what can't be."""
        n_dims, dims, types, offsets = rows[:, 2], rows[:, 3:7], rows[:, 7], rows[:, 8]
        faults: dict[int, Problem] = {}

        def fault(row: int, kind: str, text: str) -> None:
            name = names[row]
            problem = Problem(kind, name, f"{self.label}: tensor {name!r} {text}")
            if self.strict and problem.is_fatal:
                raise GGUFError(problem.message)
            self.problems.append(problem)
            if problem.is_fatal:
                faults.setdefault(row, problem)

        block_sizes, block_bytes = _block_tables()
        known = types < len(block_sizes)
        kinds = np.where(known, types, 0).astype(np.intp)
        known &= block_sizes[kinds] > 0
        block_size = np.where(known, block_sizes[kinds], 1)
        block_nbytes = np.where(known, block_bytes[kinds], 1)
        # Sizes in floating point first: what is far too large for int64 shows, and is left out of the exact arithmetic.
        rough = np.maximum(dims, 1).astype(np.float64).prod(axis=1) * 8
        huge = rough >= HUGE
        small = np.where(huge[:, None], 0, dims).astype(np.int64)
        elements = small.prod(axis=1)
        ragged = known & ~huge & (small[:, 0] % block_size != 0)
        nbytes = np.where(known & ~ragged, elements // block_size * block_nbytes, 0)
        for row in np.flatnonzero(huge).tolist():
            fault(row, "shape", f"({self.shapes(rows[row])}) is larger than any file")
        for row in np.flatnonzero(ragged).tolist():
            kind = QType(int(types[row]))
            width = int(dims[row, 0])
            text = f"({self.shapes(rows[row])}) has rows of {width} values, not a whole number of blocks"
            fault(row, "shape", f"{text} of {kind.block_size}")

        # Offsets are compared before they are added to anything, so no sum here can pass 2**63.
        inside = offsets <= max(self.size - data_offset, 0)
        starts = np.where(inside, offsets, 0).astype(np.int64) + data_offset
        placed = inside & ~huge & ~ragged
        # An unknown type has no size: its bytes go on to the next tensor, or to the end of the file.
        unknown = ~known & placed & (elements > 0)
        if unknown.any():
            edges = np.append(np.sort(starts[placed & (elements > 0)]), self.size)
            following = edges[np.searchsorted(edges[:-1], starts[unknown], "right")]
            nbytes[unknown] = np.maximum(following - starts[unknown], 0)
        filled = (nbytes > 0) | (~known & ~huge & (elements > 0))
        outside = np.flatnonzero(filled & (~inside | (starts + np.maximum(nbytes, 1) > self.size)))
        if len(outside):
            if self.strict:
                self.fail_outside(names, rows, nbytes, outside, data_offset)
            for row in outside.tolist():
                fault(row, "outside", self.outside_text(rows[row], int(nbytes[row]), data_offset))

        live = np.flatnonzero(placed & (nbytes > 0) & (starts + nbytes <= self.size))
        order = live[np.lexsort((starts[live] + nbytes[live], starts[live]))]
        if len(order) > 1:
            ends = starts[order] + nbytes[order]
            furthest = np.maximum.accumulate(ends)
            holder = np.maximum.accumulate(np.where(ends == furthest, np.arange(len(ends)), 0))
            for later in (np.flatnonzero(starts[order][1:] < furthest[:-1]) + 1).tolist():
                first, second = int(order[holder[later - 1]]), int(order[later])
                for one, other in ((second, first), (first, second)):
                    if one in faults:
                        continue
                    a, b = (f"{int(starts[r])} to {int(starts[r] + nbytes[r])}" for r in (one, other))
                    fault(one, "overlap", f"lies at bytes {a} and overlaps tensor {names[other]!r} at bytes {b}")
        for row, first in repeats:
            for one, other in ((row, first), (first, row)):
                fault(one, "duplicate", f"(number {one}) has the same name as number {other}")
        crooked = (offsets % np.uint64(alignment) != 0) & (nbytes > 0)
        for row in np.flatnonzero(crooked).tolist():
            fault(row, "misaligned", f"has offset {int(offsets[row])}, no multiple of the alignment {alignment}")
        starts[~placed] = 0
        return TensorTable(names, index, n_dims, dims, types, offsets, starts, nbytes, faults)

    def shapes(self, row: npt.NDArray[np.uint64]) -> str:
        """Type, logical shape and byte shape of a tensor, for messages; exact for any dimensions."""
        shape = tuple(reversed(row[3 : 3 + int(row[2])].tolist()))
        try:
            kind = QType(int(row[7]))
        except ValueError:
            return f"type id {int(row[7])}, shape {shape}"
        text = f"{kind.name}, shape {shape}"
        if shape and shape[-1] % kind.block_size == 0:
            text += f", byte shape {(*shape[:-1], shape[-1] // kind.block_size * kind.block_bytes)}"
        return text

    def outside_text(self, row: npt.NDArray[np.uint64], nbytes: int, data_offset: int) -> str:
        start = data_offset + int(row[8])
        need = f"bytes {start} to {start + nbytes}" if nbytes else f"bytes from {start} on"
        return f"({self.shapes(row)}) needs {need} of the file, which ends at {self.size}"

    def fail_outside(
        self,
        names: list[str],
        rows: npt.NDArray[np.uint64],
        nbytes: npt.NDArray[np.int64],
        outside: npt.NDArray[np.intp],
        data_offset: int,
    ) -> NoReturn:
        """Name the first tensor that isn't wholly in the file, and say how much is missing in all."""
        row = int(outside[np.argmin(rows[outside, 8])])
        text = f"tensor {names[row]!r} {self.outside_text(rows[row], int(nbytes[row]), data_offset)}"
        if len(outside) > 1:
            text += f"; {len(outside) - 1} more of its {len(names)} tensors lie beyond it"
        end = max(data_offset + int(rows[r, 8]) + int(nbytes[r]) for r in outside.tolist())
        self.fail(f"{text}; is it a truncated download? A complete file has {end} bytes or more")


def _block_tables() -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Values and bytes per block by type id, 0 where there is no such type."""
    tables = np.zeros((2, max(QType) + 1), np.int64)
    for kind in QType:
        tables[:, kind] = kind.block_size, kind.block_bytes
    return tables[0], tables[1]
