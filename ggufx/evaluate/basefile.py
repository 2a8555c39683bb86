"""Base files in llama-perplexity's form: a reference model's probabilities, 16 bits for each token of the vocabulary.

Little endian: ``_logits_``, int32 n_ctx, n_vocab and number of windows, the tokens as int32, then for each scored
position a row of uint16: float32 scale, float32 minimum, the codes, and one more 0 if their number is odd.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import GGUFError
from ..write.outfile import OutputFile
from .scoring import Floats, softmax_of

__all__ = ["MAGIC", "BaseFile", "BaseFileWriter", "decode_rows", "encode_rows"]

MAGIC = b"_logits_"
# What lies this many nats under a row's top is raised to that: 16 bits then resolve a quarter of a thousandth.
DEPTH = np.float32(16)
STEPS = np.float32(65535)
HEADER = 20


def row_words(n_vocab: int) -> int:
    """uint16 words of a row."""
    return 2 * ((n_vocab + 1) // 2) + 4


def scored_positions(n_ctx: int) -> int:
    """Rows of a window."""
    return n_ctx - 1 - n_ctx // 2


def encode_rows(logits: Floats) -> npt.NDArray[np.uint16]:
    """Rows of float32 logits in the file's coding; all arithmetic is in float32, in llama-perplexity's order."""
    count, n_vocab = logits.shape
    softmax = softmax_of(logits)
    top, log_sum = softmax.top, softmax.log_sum.astype(np.float32)
    floor = np.maximum(logits.min(axis=1), top - DEPTH)
    minimum = (floor - top) - log_sum
    scale = (top - floor) / STEPS
    rows = np.zeros((count, row_words(n_vocab)), np.uint16)
    rows[:, :4] = np.stack([scale, minimum], axis=1).astype("<f4").view("<u2")
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        inverse = np.where(scale > 0, np.float32(1) / scale, np.float32(0)).astype(np.float32)
        codes = np.rint(inverse[:, None] * np.maximum(logits - floor[:, None], np.float32(0)))
    rows[:, 4 : 4 + n_vocab] = codes
    return rows


def decode_rows(rows: npt.NDArray[np.uint16], n_vocab: int) -> Floats:
    """Log probabilities of coded rows, float32."""
    head = np.ascontiguousarray(rows[:, :4]).astype("<u2").view("<f4")
    scale, minimum = head[:, :1].astype(np.float32), head[:, 1:].astype(np.float32)
    values: Floats = rows[:, 4 : 4 + n_vocab].astype(np.float32)
    values *= scale
    values += minimum
    return values


class BaseFileWriter:
    """Writes a base file window by window; it appears when the last one is there.

    Parameters
    ----------
    path : path-like
    tokens : ndarray of int32
        Windows of ids, (windows, n_ctx), as the text was tokenized.
    n_vocab : int
    """

    def __init__(self, path: str | os.PathLike[str], tokens: npt.NDArray[np.int32], n_vocab: int) -> None:
        self.path, self.n_vocab = os.fspath(path), n_vocab
        count, n_ctx = tokens.shape
        self._expected = count * scored_positions(n_ctx)
        self._rows = 0
        self._size = HEADER + 4 * tokens.size + 2 * row_words(n_vocab) * self._expected
        self._file = OutputFile(self.path)
        try:
            self._file.write(MAGIC + np.array([n_ctx, n_vocab, count], "<i4").tobytes())
            self._file.write(tokens.astype("<i4").tobytes())
        except BaseException:
            self._file.discard()
            raise

    def add(self, logits: Floats) -> None:
        """Append the next scored positions."""
        if logits.shape[1] != self.n_vocab:
            raise GGUFError(f"{self.path}: {logits.shape[1]} logits where {self.n_vocab} were expected")
        self._rows += len(logits)
        self._file.write(encode_rows(logits).astype("<u2", copy=False).tobytes())

    def close(self) -> None:
        """Finish the file.

        Raises
        ------
        GGUFError
            If rows are missing.
        """
        if self._rows != self._expected:
            raise GGUFError(f"{self.path}: {self._rows} rows were given, {self._expected} belong there")
        self._file.finish(self._size)
        self._file.publish()

    def __enter__(self) -> BaseFileWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            if kind is None:
                self.close()
        finally:
            self._file.discard()


class BaseFile:
    """A base file, read where it lies.

    Attributes
    ----------
    path : str
    n_ctx, n_vocab : int
    tokens : ndarray of int32
        Of shape (windows, n_ctx), without the BOS that was put in for running.

    Raises
    ------
    GGUFError
        If it isn't one, or ends early.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        with open(self.path, "rb") as file:
            head = file.read(HEADER)
            size = os.fstat(file.fileno()).st_size
        if len(head) < HEADER or head[:8] != MAGIC:
            raise GGUFError(f"{self.path}: not a base file: it should begin with {MAGIC!r}")
        self.n_ctx, self.n_vocab, count = np.frombuffer(head[8:], "<i4").tolist()
        if self.n_ctx < 4 or self.n_vocab < 1 or count < 1:
            raise GGUFError(f"{self.path}: {count} windows of {self.n_ctx} tokens, a vocabulary of {self.n_vocab}")
        words, per = row_words(self.n_vocab), scored_positions(self.n_ctx)
        start = HEADER + 4 * self.n_ctx * count
        need = start + 2 * words * per * count
        if size < need:
            raise GGUFError(f"{self.path}: {size} bytes, {need} were expected for {count} windows of {self.n_ctx}")
        self.tokens: npt.NDArray[np.int32] = np.fromfile(
            self.path, "<i4", self.n_ctx * count, offset=HEADER
        ).reshape(count, self.n_ctx).astype(np.int32)  # fmt: skip
        self._rows: Any = np.memmap(self.path, "<u2", "r", start, (count, per, words))

    def __len__(self) -> int:
        return len(self.tokens)

    def rows(self, window: int, start: int, stop: int) -> npt.NDArray[np.uint16]:
        """Coded rows of a window's scored positions."""
        rows: npt.NDArray[np.uint16] = np.asarray(self._rows[window, start:stop])
        return rows

    def log_probabilities(self, window: int, start: int, stop: int) -> Floats:
        """Decoded rows: what lies 16 nats under the top is at the floor."""
        return decode_rows(self.rows(window, start, stop), self.n_vocab)
