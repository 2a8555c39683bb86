"""The metadata of a quantized model, as llama-quantize writes it."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ..formats.file_types import FileType
from ..formats.tensor_types import QType, type_name
from ..formats.value_types import ValueType
from ..read.metadata import Metadata
from ..read.reader import GGUFFile
from ..write.keys import SPLIT_KEYS, Declared, check_key, check_overridable, encode_for
from ..write.serialize import Layout, value_type
from ..write.writer import Writer
from .choices import Choice, visiting_order
from .importance import Importance

__all__ = ["GUESSED", "Override", "declared_or_guessed", "fill_metadata", "heaviest_mix", "imatrix_keys"]

# The version of ggml's block formats, written as general.quantization_version.
QUANTIZATION_VERSION = 2
# llama.cpp's mark in general.file_type that it is a guess.
GUESSED = 1024
# llama-quantize cuts the imatrix file's and dataset's names to this many bytes.
LONGEST_TEXT = 127


class Override(NamedTuple):
    """A metadata key that is set in the output, with the type llama-quantize gives it."""

    key: str
    value: Any
    type: str

    @classmethod
    def parse(cls, text: str) -> Override:
        """``KEY=int:N``, ``KEY=float:X``, ``KEY=bool:true`` or ``KEY=str:TEXT``.

        Raises
        ------
        ValueError
            If it is none of these.
        """
        key, equals, rest = text.partition("=")
        kind, colon, value = rest.partition(":")
        if not key or not equals or not colon:
            raise ValueError(f"{text!r}: KEY=TYPE:VALUE was expected, with TYPE int, float, bool or str")
        if kind == "int":
            return cls(key, abs(int(value)), "uint32")  # llama-quantize, too, writes unsigned integers
        if kind == "float":
            number = float(value)
            if math.isinf(number) and "inf" not in value.lower():
                raise ValueError(f"{text!r}: {value} is too large for any type")
            return cls(key, number, "float32")
        if kind == "bool" and value in ("true", "false"):
            return cls(key, value == "true", "bool")
        if kind == "str":
            return cls(key, value, "string")
        raise ValueError(f"{text!r}: TYPE is int, float, bool (true or false) or str")

    def check(self) -> None:
        """Refuse what would fail while writing, or make a file that can't be read.

        Raises
        ------
        TypeError, ValueError
            If the value isn't a scalar of the type, or the key is one that only the writer sets.
        """
        check_key(self.key)
        check_overridable(self.key)
        encode_for(Layout(), self.key, self.value, keep=Declared(value_type(self.type)))


def declared_or_guessed(files: Sequence[GGUFFile]) -> int:
    """The files' ``general.file_type``, or llama.cpp's guess: by the type that first becomes that of most tensors."""
    own = files[0].metadata.get("general.file_type")
    if isinstance(own, int) and 0 <= own < 1 << 32:
        return own
    counts: Counter[QType | int] = Counter()
    most: QType | int = QType.F32
    for t in visiting_order(t for f in files for t in f.tensors.values()):
        counts[t.qtype] += 1
        if counts[t.qtype] > counts[most]:
            most = t.qtype
    return (FileType.F32 if most is QType.MXFP4 else mix_of(most)) | GUESSED  # it doesn't know what mix MXFP4 is


def mix_of(qtype: QType | int) -> FileType:
    """The mix that llama.cpp takes a file of mostly this type for."""
    try:
        return FileType.parse(type_name(qtype))
    except ValueError:
        return FileType.F32


def heaviest_mix(choices: Iterable[Choice]) -> FileType:
    """The mix of the type that holds most of the values."""
    weight: Counter[QType | int] = Counter()
    for c in choices:
        weight[c.qtype] += math.prod(c.shape)
    return mix_of(max(weight, key=lambda qtype: weight[qtype], default=QType.F32))


def imatrix_keys(importance: Importance) -> dict[str, tuple[Any, ValueType]]:
    """What llama-quantize's output says of its importance matrix, in its order."""
    keys: dict[str, tuple[Any, ValueType]] = {}
    if not importance.weights:
        return keys
    for key, text in (("file", importance.file), ("dataset", importance.dataset)):
        if text is not None:
            keys[f"quantize.imatrix.{key}"] = (os.fsencode(text)[:LONGEST_TEXT], ValueType.STRING)
    keys["quantize.imatrix.entries_count"] = (len(importance.weights), ValueType.UINT32)
    if importance.chunks:
        keys["quantize.imatrix.chunks_count"] = (importance.chunks, ValueType.UINT32)
    return keys


def fill_metadata(
    writer: Writer,
    source: Metadata,
    *,
    file_type: int,
    overrides: Sequence[Override],
    importance: Importance,
    block_count: tuple[str, int] | None,
) -> None:
    """Give `writer` the source's metadata and llama-quantize's keys, in its order: what is set moves to the end."""
    writer.update(source)

    def put(key: str, value: Any, kind: str | ValueType) -> None:
        if key in writer:
            writer.delete(key)
        writer.set(key, value, kind)

    put("general.quantization_version", QUANTIZATION_VERSION, "uint32")
    put("general.file_type", int(file_type), "uint32")
    for key in SPLIT_KEYS:
        if key in writer:
            writer.delete(key)
    for override in overrides:
        put(*override)
    for key, (value, kind) in imatrix_keys(importance).items():
        put(key, value, kind)
    if block_count is not None:
        put(*block_count, "uint32")
