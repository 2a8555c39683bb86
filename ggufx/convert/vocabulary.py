"""The vocabulary's keys, ``tokenizer.*``: tokens, scores and types from the files of a checkpoint.

Which files count, and what else is written, is a row of :data:`VOCABULARIES` for each architecture that differs from
the usual: SentencePiece where there is a tokenizer.model, else the tokenizer.json.
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
from .sentencepiece import BPE, UNIGRAM, SentencePieceModel, read_sentencepiece
from .special import SpecialTokens, tokenizer_files

__all__ = ["VOCABULARIES", "vocabulary_metadata"]

U8, U32, I32, F32 = ValueType.UINT8, ValueType.UINT32, ValueType.INT32, ValueType.FLOAT32
BOOL, TEXT = ValueType.BOOL, ValueType.STRING

# llama.cpp's types of tokens, the same numbers as SentencePiece's.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
ADDED_SCORE, FILLER_SCORE = -1000.0, -10000.0
_SPACE = "\u2581"


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


def vocabulary_metadata(
    folder: Path, values: Mapping[str, Any], raw: Mapping[str, Any], arch: str, pre: str | None
) -> Keys:
    """The vocabulary's keys in the reference's order.

    Parameters
    ----------
    folder : path
    values : mapping
        config.json with what transformers would fill in.
    raw : mapping
        config.json as it is.
    arch : str
    pre : str or None
        The pre-tokenizer's name, where the caller says it.

    Raises
    ------
    GGUFError
        If there is no vocabulary, it doesn't fit, or its pre-tokenizer isn't known.
    """
    return VOCABULARIES.get(arch, _usual)(Source(folder, raw, values, pre))


# --- tokens -----------------------------------------------------------------------------------------------------------


def _looks_special(text: str) -> bool:
    """Tokens that ought to be control tokens, though some models don't mark them."""
    marks = (("<|", "|>"), ("<\uff5c", "\uff5c>"), ("<unused", ">"))
    names = ("<pad>", "<mask>", "<2mass>", "[@BOS@]")
    return text in names or any(text.startswith(begin) and text.endswith(end) for begin, end in marks)


class _Tokens:
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


def _pieces(source: Source, model: SentencePieceModel) -> _Tokens:
    """The model's own pieces and those of added_tokens.json, as many as config.json says."""
    size = source.values.get("vocab_size_per_layer_input") or source.values.get("vocab_size") or len(model.pieces)
    if not isinstance(size, int) or size < 1:
        raise GGUFError(f"{source.folder / 'config.json'}: vocab_size is {size!r}")
    tokens = _Tokens(size)
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


def _sentencepiece(source: Source) -> Keys:
    tokens = _pieces(source, read_sentencepiece(source.folder / "tokenizer.model"))
    _, named = tokenizer_files(source.folder)
    behind = 0
    for number, entry in ((named or {}).get("added_tokens_decoder") or {}).items():
        token, text = int(number), entry["content"]
        if token >= len(tokens):
            behind += 1
        elif entry.get("special") or _looks_special(text):
            tokens.put(token, text, ADDED_SCORE, CONTROL)
        else:
            tokens.put(token, text.replace(_SPACE, " "), ADDED_SCORE, USER_DEFINED)
    if behind:
        _dropped(source, len(tokens), behind, "tokens of tokenizer_config.json")
    return tokens.keys("llama", "default") | source.special(size=len(tokens)).keys()


def _byte_fallback(source: Source) -> Keys | None:
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
    tokens = _Tokens(len(vocab) + len(behind))
    for token, text in by_id.items():
        is_byte = re.fullmatch(r"<0x[0-9A-Fa-f]{2}>", text)
        tokens.put(token, text, ADDED_SCORE, BYTE if is_byte else CONTROL if text in special else NORMAL)
    for token in behind:
        tokens.put(token, added[token], ADDED_SCORE, CONTROL if added[token] in special else USER_DEFINED)
    return tokens.keys("llama", "default") | source.special(size=len(tokens)).keys()


def _text(entry: Any) -> Any:
    return entry.get("content") if isinstance(entry, dict) else entry


def _json_tokens(source: Source) -> _Tokens:
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
    tokens = _Tokens(size)
    for token, text in by_id.items():
        if token not in added:
            tokens.put(token, text, 0.0, NORMAL)
        elif added[token].get("special") or _looks_special(text):
            tokens.put(token, text, 0.0, CONTROL)
        else:
            tokens.put(token, text.replace(_SPACE, " "), 0.0, USER_DEFINED)
    return tokens


def _gpt2(source: Source, more: Callable[[SpecialTokens, _Tokens], None] | None = None) -> Keys:
    tokens = _json_tokens(source)
    special = source.special(merges=True)
    if more is not None:
        more(special, tokens)
    return tokens.keys("gpt2", pre_tokenizer(source.folder, source.pre), scores=False) | special.keys()


def _usual(source: Source) -> Keys:
    return _sentencepiece(source) if source.has("tokenizer.model") else _gpt2(source)


# --- what differs -----------------------------------------------------------------------------------------------------


def _llama(source: Source) -> Keys:
    if source.has("tekken.json") and not source.has("tokenizer.json"):
        raise GGUFError(f"{source.folder / 'tekken.json'}: Mistral's own vocabularies can't be converted yet")
    _, named = tokenizer_files(source.folder)
    keys: Keys = {}
    if isinstance((named or {}).get("add_prefix_space"), bool):
        keys["tokenizer.ggml.add_space_prefix"] = ((named or {})["add_prefix_space"], BOOL)
    if source.has("tokenizer.model"):
        keys.update(_sentencepiece(source))
    else:
        keys.update(_byte_fallback(source) or _gpt2(source))
    size = source.values.get("vocab_size", 32000)
    if size == 32016:  # CodeLlama, whose tokens for infilling have no other mark
        special = source.special(names=("prefix", "suffix", "middle", "eot"))
        special.set("eot", 32010)
        keys.update(special.keys())
    if size == 49152:  # Granite's small models
        keys["tokenizer.ggml.add_bos_token"] = (False, BOOL)
    return keys


def _gemma(source: Source) -> Keys:
    keys = _sentencepiece(source)
    special = source.special(names=("prefix", "suffix", "middle", "fsep", "eot"))
    special.set("eot", 107)
    special.template = None
    return keys | special.keys() | {"tokenizer.ggml.add_space_prefix": (False, BOOL)}


def _gemma_later(source: Source) -> Keys:
    if not source.has("tokenizer.model"):
        return _gpt2(source)
    return _sentencepiece(source) | {"tokenizer.ggml.add_space_prefix": (False, BOOL)}


def _phi3(source: Source) -> Keys:
    tokenizer, named = tokenizer_files(source.folder)
    if (named or {}).get("tokenizer_class") == "GPT2Tokenizer":
        return _gpt2(source)
    path = source.folder / "tokenizer.model"
    if not path.is_file():
        raise GGUFError(f"{path} isn't there; this model's vocabulary comes from it")
    tokens = _pieces(source, read_sentencepiece(path))
    more = [(int(number), entry) for number, entry in ((named or {}).get("added_tokens_decoder") or {}).items()]
    more += [(int(entry["id"]), entry) for entry in (tokenizer or {}).get("added_tokens") or ()]
    for token, entry in more:
        if not 0 <= token < len(tokens):
            raise GGUFError(f"{source.folder}: added token {entry['content']!r} has id {token} of {len(tokens)}")
        tokens.put(token, entry["content"], ADDED_SCORE, CONTROL if entry.get("special") else USER_DEFINED)
    return tokens.keys("llama", "default") | source.special(size=len(tokens)).keys()


def _bert(source: Source) -> Keys:
    tokens = _json_tokens(source)
    for token, text in enumerate(tokens.texts):  # a word's begin is marked, not its continuation
        if tokens.types[token] != CONTROL:
            tokens.texts[token] = text[2:] if text.startswith("##") else _SPACE + text
    keys: Keys = {"tokenizer.ggml.token_type_count": (source.values.get("type_vocab_size", 1), U32)}
    keys.update(tokens.keys("bert", pre_tokenizer(source.folder, source.pre), scores=False))
    return keys | source.special(size=len(tokens)).keys()


def _t5(source: Source) -> Keys:
    path = source.folder / "tokenizer.model"
    path = path if path.is_file() else source.folder / "spiece.model"
    if not path.is_file():
        raise GGUFError(f"{source.folder}: no vocabulary; tokenizer.model or spiece.model was expected")
    model = read_sentencepiece(path)
    if model.model_type == BPE and path.name == "tokenizer.model":
        return _sentencepiece(source)
    if model.model_type != UNIGRAM:
        raise GGUFError(f"{path}: a unigram model was expected, this is of type {model.model_type}")
    tokens = _pieces(source, model)
    keys = tokens.keys("t5", "default")
    keys["tokenizer.ggml.add_space_prefix"] = (model.add_dummy_prefix, BOOL)
    keys["tokenizer.ggml.remove_extra_whitespaces"] = (model.remove_extra_whitespaces, BOOL)
    if model.charsmap:
        keys["tokenizer.ggml.precompiled_charsmap"] = (list(model.charsmap), U8)
    return keys | source.special(size=len(tokens)).keys()


def _glm(**names: str) -> Vocabulary:
    """GPT-2's kind, with tokens that this family marks nowhere, found by their texts."""

    def vocabulary(source: Source) -> Keys:
        def more(special: SpecialTokens, tokens: _Tokens) -> None:
            for name, text in names.items():
                if text not in tokens.texts:
                    path = source.folder / "tokenizer.json"
                    raise GGUFError(f"{path}: token {text!r}, which models of this kind need, isn't there")
                special.set(name, tokens.texts.index(text))

        return _gpt2(source, more)

    return vocabulary


VOCABULARIES: dict[str, Vocabulary] = {
    **dict.fromkeys(("llama", "arcee", "smollm3", "granite", "granitemoe"), _llama),
    **dict.fromkeys(
        ("gpt-oss", "qwen2moe", "qwen3moe", "olmoe", "dots1", "lfm2", "olmo2", "minimax-m2", "seed_oss"), _gpt2
    ),
    "gemma": _gemma,
    "gemma2": _gemma_later,
    "gemma3": _gemma_later,
    "phi3": _phi3,
    "bert": _bert,
    "t5": _t5,
    "t5encoder": _t5,
    "glm4": _glm(eos="<|endoftext|>", eot="<|user|>", unk="<|endoftext|>", bos="<|endoftext|>"),
    "glm4moe": _glm(bos="[gMASK]", eot="<|user|>", unk="<|endoftext|>", eom="<|observation|>"),
}
