"""The vocabulary's keys, ``tokenizer.*``: tokens, scores and types from the files of a checkpoint.

Here are the two kinds that nearly all are of; what single families do otherwise is in :mod:`.vocabularies`.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import GGUFError, GGUFWarning
from ..formats.value_types import ValueType
from .checkpoint import read_json
from .hparams import Keys
from .pretokenizer import pre_tokenizer
from .sentencepiece import SentencePieceModel, read_sentencepiece
from .special import SpecialTokens, tokenizer_files

__all__ = ["Source", "Tokens", "Vocabulary", "gpt2", "sentencepiece", "usual"]

I32, F32, TEXT = ValueType.INT32, ValueType.FLOAT32, ValueType.STRING

# llama.cpp's types of tokens, the same numbers as SentencePiece's.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
ADDED_SCORE, FILLER_SCORE = -1000.0, -10000.0
SPACE = "\u2581"


class Source(NamedTuple):
    """Where a vocabulary comes from.

    Attributes
    ----------
    folder : path
    raw : mapping
        config.json as it is.
    values : mapping
        config.json with its text part lifted out.
    pre : str or None
        The pre-tokenizer's name, where the caller says it.
    """

    folder: Path
    raw: Mapping[str, Any]
    values: Mapping[str, Any]
    pre: str | None

    def has(self, name: str) -> bool:
        """Whether the folder has this file."""
        return (self.folder / name).is_file()

    def special(self, **more: Any) -> SpecialTokens:
        """The special tokens."""
        return SpecialTokens(self.folder, self.raw, **more)


Vocabulary = Callable[[Source], Keys]


# --- tokens -----------------------------------------------------------------------------------------------------------


def looks_special(text: str) -> bool:
    """Tokens that ought to be control tokens, though some models don't mark them."""
    marks = (("<|", "|>"), ("<\uff5c", "\uff5c>"), ("<unused", ">"))
    names = ("<pad>", "<mask>", "<2mass>", "[@BOS@]")
    return text in names or any(text.startswith(begin) and text.endswith(end) for begin, end in marks)


class Tokens:
    """Tokens by id, filled with unused ones."""

    def __init__(self, size: int) -> None:
        self.texts = [f"[PAD{i}]" for i in range(size)]
        self.scores = [FILLER_SCORE] * size
        self.types = [UNUSED] * size

    def __len__(self) -> int:
        return len(self.texts)

    def put(self, token: int, text: str, score: float, kind: int) -> None:
        """Set a token."""
        self.texts[token], self.scores[token], self.types[token] = text, score, kind

    def keys(self, model: str, pre: str, scores: bool = True) -> Keys:
        """The metadata of the tokens."""
        out: Keys = {
            "tokenizer.ggml.model": (model, TEXT),
            "tokenizer.ggml.pre": (pre, TEXT),
            "tokenizer.ggml.tokens": (self.texts, TEXT),
        }
        if scores:
            out["tokenizer.ggml.scores"] = (self.scores, F32)
        out["tokenizer.ggml.token_type"] = (self.types, I32)
        return out


def pieces_of(source: Source, model: SentencePieceModel) -> Tokens:
    """The model's own pieces and those of added_tokens.json, as many as config.json says."""
    size = source.values.get("vocab_size_per_layer_input") or source.values.get("vocab_size") or len(model.pieces)
    if not isinstance(size, int) or size < 1:
        raise GGUFError(f"{source.folder / 'config.json'}: vocab_size is {size!r}")
    tokens = Tokens(size)
    if len(model.pieces) > size:
        _dropped(source, size, len(model.pieces) - size, "pieces of its SentencePiece model")
    for token, piece in enumerate(model.pieces[:size]):
        kind = NORMAL if piece.type == USER_DEFINED else piece.type
        tokens.put(token, piece.text, piece.score, kind)
    if source.has("added_tokens.json"):
        added = read_json(source.folder / "added_tokens.json")
        if behind := sum(token >= size for token in added.values()):
            _dropped(source, size, behind, "tokens of added_tokens.json")
        for text, token in added.items():
            if token < size:
                tokens.put(token, text, ADDED_SCORE, USER_DEFINED)
    return tokens


def _dropped(source: Source, size: int, count: int, what: str) -> None:
    warnings.warn(
        f"{source.folder}: {count} {what} are beyond the {size} tokens of config.json and are left out",
        GGUFWarning,
        stacklevel=2,
    )


def sentencepiece(source: Source) -> Keys:
    """The vocabulary of a tokenizer.model."""
    tokens = pieces_of(source, read_sentencepiece(source.folder / "tokenizer.model"))
    _, named = tokenizer_files(source.folder)
    behind = 0
    for number, entry in ((named or {}).get("added_tokens_decoder") or {}).items():
        token, text = int(number), entry["content"]
        if token >= len(tokens):
            behind += 1
        elif entry.get("special") or looks_special(text):
            tokens.put(token, text, ADDED_SCORE, CONTROL)
        else:
            tokens.put(token, text.replace(SPACE, " "), ADDED_SCORE, USER_DEFINED)
    if behind:
        _dropped(source, len(tokens), behind, "tokens of tokenizer_config.json")
    return tokens.keys("llama", "default") | source.special(size=len(tokens)).keys()


def byte_fallback(source: Source) -> Keys | None:
    """A tokenizer.json of SentencePiece's kind, which has no scores; None where it is of another kind."""
    tokenizer, named = tokenizer_files(source.folder)
    model = (tokenizer or {}).get("model") or {}
    kind = ((tokenizer or {}).get("decoder") or {}).get("type")
    if model.get("type") != "BPE" or not model.get("byte_fallback") or kind != "Sequence":
        return None
    vocab: dict[str, int] = model["vocab"]
    special = {_text(entry) for key, entry in (named or {}).items() if key.endswith("_token")}
    special |= {_text(entry) for entry in (named or {}).get("additional_special_tokens") or ()}
    added = {entry["id"]: entry["content"] for entry in (tokenizer or {}).get("added_tokens") or ()}
    by_id = {token: text for text, token in vocab.items()}
    behind = sorted(token for token in added if token >= len(vocab))
    if sorted(by_id) != list(range(len(vocab))) or behind != list(range(len(vocab), len(vocab) + len(behind))):
        raise GGUFError(f"{source.folder / 'tokenizer.json'}: the tokens' ids have gaps")
    tokens = Tokens(len(vocab) + len(behind))
    for token, text in by_id.items():
        is_byte = re.fullmatch(r"<0x[0-9A-Fa-f]{2}>", text)
        tokens.put(token, text, ADDED_SCORE, BYTE if is_byte else CONTROL if text in special else NORMAL)
    for token in behind:
        tokens.put(token, added[token], ADDED_SCORE, CONTROL if added[token] in special else USER_DEFINED)
    return tokens.keys("llama", "default") | source.special(size=len(tokens)).keys()


def _text(entry: Any) -> Any:
    return entry.get("content") if isinstance(entry, dict) else entry


def json_tokens(source: Source) -> Tokens:
    """The tokens of tokenizer.json by their ids."""
    path = source.folder / "tokenizer.json"
    tokenizer, _ = tokenizer_files(source.folder)
    if tokenizer is None:
        raise GGUFError(f"{source.folder}: no vocabulary; tokenizer.json or tokenizer.model was expected")
    vocab = (tokenizer.get("model") or {}).get("vocab")
    if not isinstance(vocab, dict):
        raise GGUFError(f"{path}: its model has no map from tokens to ids")
    by_id = {token: text for text, token in vocab.items()}
    added = {entry["id"]: entry for entry in tokenizer.get("added_tokens") or ()}
    by_id.update((token, entry["content"]) for token, entry in added.items())
    size = source.values.get("vocab_size")
    size = max(by_id) + 1 if size is None else size
    if max(by_id) >= size:
        raise GGUFError(f"{path}: token {by_id[max(by_id)]!r} has id {max(by_id)}, config.json says {size} tokens")
    tokens = Tokens(size)
    for token, text in by_id.items():
        if token not in added:
            tokens.put(token, text, 0.0, NORMAL)
        elif added[token].get("special") or looks_special(text):
            tokens.put(token, text, 0.0, CONTROL)
        else:
            tokens.put(token, text.replace(SPACE, " "), 0.0, USER_DEFINED)
    return tokens


def gpt2(source: Source, more: Callable[[SpecialTokens, Tokens], None] | None = None) -> Keys:
    """The vocabulary of a tokenizer.json with merges of bytes."""
    tokens = json_tokens(source)
    special = source.special(merges=True)
    if more is not None:
        more(special, tokens)
    return tokens.keys("gpt2", pre_tokenizer(source.folder, source.pre), scores=False) | special.keys()


def usual(source: Source) -> Keys:
    """The tokenizer.model where there is one, else the tokenizer.json."""
    return sentencepiece(source) if source.has("tokenizer.model") else gpt2(source)
