"""SentencePiece models (tokenizer.model, spiece.model): the few fields of the protobuf that a vocabulary needs.

The format: a message is a row of fields, each a number and a wire type in one varint, then the value. Unknown fields
are skipped by their wire type, so newer models stay readable.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..errors import GGUFError

__all__ = ["BPE", "UNIGRAM", "Piece", "SentencePieceModel", "read_sentencepiece"]

# The model types of the trainer's specification, and the wire types of protobuf.
UNIGRAM, BPE = 1, 2
VARINT, EIGHT_BYTES, DELIMITED, FOUR_BYTES = 0, 1, 2, 5


class Piece(NamedTuple):
    """A piece, its score, and its type: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte."""

    text: str
    score: float
    type: int


class SentencePieceModel(NamedTuple):
    """What a vocabulary needs of a model.

    Attributes
    ----------
    pieces : list of Piece
    model_type : int
        :data:`UNIGRAM` or :data:`BPE`.
    add_dummy_prefix, remove_extra_whitespaces : bool
    charsmap : bytes
        The compiled normalization, empty where there is none.
    """

    pieces: list[Piece]
    model_type: int
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool
    charsmap: bytes


def read_sentencepiece(path: Path) -> SentencePieceModel:
    """Read a model.

    Raises
    ------
    GGUFError
        If the file isn't a SentencePiece model.
    """
    pieces: list[Piece] = []
    trainer, normalizer = b"", b""
    try:
        for number, value in _fields(path.read_bytes()):
            if number == 1:
                pieces.append(_piece(_bytes(value)))
            elif number == 2:
                trainer += _bytes(value)
            elif number == 3:
                normalizer += _bytes(value)
        kinds = dict(_fields(trainer))
        rules = dict(_fields(normalizer))
        charsmap = _bytes(rules.get(2, b""))
    except (ValueError, struct.error, IndexError) as error:
        raise GGUFError(f"{path} is no SentencePiece model: {error}") from None
    if not pieces:
        raise GGUFError(f"{path} is no SentencePiece model: it has no pieces")
    flags = (bool(rules.get(3, 1)), bool(rules.get(4, 1)))
    model_type = kinds.get(3, UNIGRAM)
    return SentencePieceModel(pieces, model_type if isinstance(model_type, int) else 0, *flags, charsmap)


def _piece(message: bytes) -> Piece:
    text, score, kind = b"", 0.0, 1
    for number, value in _fields(message):
        if number == 1:
            text = _bytes(value)
        elif number == 2:
            (score,) = struct.unpack("<f", _bytes(value))
        elif number == 3 and isinstance(value, int):
            kind = value
    return Piece(text.decode("utf-8"), score, kind)


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number where bytes were expected")
    return value


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message: varints as numbers, all others as their bytes."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        wire = tag & 7
        if wire == VARINT:
            value, at = _varint(message, at)
            yield tag >> 3, value
            continue
        if wire == DELIMITED:
            size, at = _varint(message, at)
        elif wire in (EIGHT_BYTES, FOUR_BYTES):
            size = 8 if wire == EIGHT_BYTES else 4
        else:
            raise ValueError(f"wire type {wire} at byte {at}")
        if at + size > len(message):
            raise ValueError(f"a field of {size} bytes at byte {at} of {len(message)}")
        yield tag >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
        if shift > 63:
            raise ValueError(f"a number of more than ten bytes at byte {at}")
