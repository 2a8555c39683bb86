"""From a GGUF file's vocabulary back to the files of a tokenizer."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

from ..errors import GGUFError
from .pretokenizer_splits import IGNORE_MERGES, SPLITS
from .vocabulary import ADDED_SCORE, BYTE, CONTROL, NORMAL, SPACE, UNKNOWN, UNUSED, USER_DEFINED, looks_special

__all__ = ["tokenizer_files"]

_ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "sep": "seperator", "pad": "padding", "mask": "mask"}


def tokenizer_files(metadata: Mapping[str, Any]) -> dict[str, bytes]:
    """The files of a vocabulary by their names.

    Parameters
    ----------
    metadata : mapping
        The file's.

    Returns
    -------
    dict of str to bytes
        tokenizer.json or tokenizer.model, and tokenizer_config.json; none where the file has no vocabulary.

    Raises
    ------
    GGUFError
        If the vocabulary is of a kind that can't be turned back yet.
    """
    model = metadata.get("tokenizer.ggml.model")
    if model is None or model == "none":
        return {}
    tokens = [str(token) for token in metadata.get("tokenizer.ggml.tokens", ())]
    types = [int(kind) for kind in metadata.get("tokenizer.ggml.token_type", [NORMAL] * len(tokens))]
    if len(types) != len(tokens) or not tokens:
        raise GGUFError(f"the vocabulary has {len(tokens)} tokens and {len(types)} types")
    files = {"tokenizer_config.json": _text(_named(metadata, tokens, types, model))}
    if model == "gpt2":
        files["tokenizer.json"] = _text(_merging(metadata, tokens, types))
    elif model == "llama":
        files["tokenizer.model"] = _sentencepiece(metadata, tokens, types)
        if odd := {text: n for n, text in enumerate(tokens) if types[n] == USER_DEFINED and looks_special(text)}:
            files["added_tokens.json"] = _text(odd)
    else:
        raise GGUFError(f"a vocabulary of kind {model!r} can't be turned back into a tokenizer's files yet")
    return files


def _text(value: Any) -> bytes:
    return (json.dumps(value, ensure_ascii=False, indent=1) + "\n").encode()


def _named(metadata: Mapping[str, Any], tokens: list[str], types: list[int], model: str) -> dict[str, Any]:
    """tokenizer_config.json: tokens by their roles, what is added to texts, the template, added tokens."""
    out: dict[str, Any] = {"tokenizer_class": "LlamaTokenizer" if model == "llama" else "PreTrainedTokenizerFast"}
    for role, key in _ROLES.items():
        token = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if token is not None and 0 <= int(token) < len(tokens):
            out[f"{role}_token"] = tokens[int(token)]
        flag = metadata.get(f"tokenizer.ggml.add_{role}_token")
        if flag is not None:
            out[f"add_{role}_token"] = bool(flag)
    if (prefix := metadata.get("tokenizer.ggml.add_space_prefix")) is not None:
        out["add_prefix_space"] = bool(prefix)
    template = metadata.get("tokenizer.chat_template")
    names = [str(name) for name in metadata.get("tokenizer.chat_templates", ())]
    if names:
        more = [{"name": n, "template": metadata[f"tokenizer.chat_template.{n}"]} for n in names]
        template = [*([] if template is None else [{"name": "default", "template": template}]), *more]
    if template is not None:
        out["chat_template"] = template
    scores = metadata.get("tokenizer.ggml.scores")
    out["added_tokens_decoder"] = {
        str(token): _added(tokens[token], kind == CONTROL)
        for token, kind in enumerate(types)
        # A SentencePiece model's own control pieces have other scores than those that were added.
        if (kind == CONTROL or (kind == USER_DEFINED and not (model == "llama" and looks_special(tokens[token]))))
        and (scores is None or float(scores[token]) == ADDED_SCORE)
    }
    return out


def _added(text: str, special: bool) -> dict[str, Any]:
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"content": text, **plain, "special": special}


def _merging(metadata: Mapping[str, Any], tokens: list[str], types: list[int]) -> dict[str, Any]:
    """tokenizer.json: merges of bytes, behind the splits that the pre-tokenizer's name stands for."""
    pre = str(metadata.get("tokenizer.ggml.pre", "default"))
    if pre not in SPLITS:
        raise GGUFError(f"how pre-tokenizer {pre!r} splits texts isn't known, so its tokenizer.json can't be made")
    vocab = {tokens[n]: n for n, kind in enumerate(types) if kind not in (CONTROL, USER_DEFINED, UNUSED)}
    merges = [str(merge).split(" ", 1) for merge in metadata.get("tokenizer.ggml.merges", ())]
    splits: list[dict[str, Any]] = [
        {"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": False} for split in SPLITS[pre]
    ]
    bytelevel = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    normalizers: list[dict[str, Any]] = []
    if metadata.get("tokenizer.ggml.normalizer.lowercase"):
        normalizers.append({"type": "Lowercase"})
    if metadata.get("tokenizer.ggml.normalizer.strip_accents"):
        normalizers.append({"type": "StripAccents"})
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": n, **_added(tokens[n], kind == CONTROL)}
            for n, kind in enumerate(types)
            if kind in (CONTROL, USER_DEFINED)
        ],
        "normalizer": {"type": "Sequence", "normalizers": normalizers} if normalizers else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, bytelevel]},
        "post_processor": _around(metadata, tokens, bytelevel),
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre in IGNORE_MERGES,
            "vocab": vocab,
            "merges": merges,
        },
    }


def _around(metadata: Mapping[str, Any], tokens: list[str], bytelevel: dict[str, Any]) -> dict[str, Any]:
    """What is put around texts."""
    plain = {**bytelevel, "trim_offsets": False}
    entries: dict[str, str] = {}
    for role in ("bos", "eos"):
        token = metadata.get(f"tokenizer.ggml.{role}_token_id")
        if metadata.get(f"tokenizer.ggml.add_{role}_token") and token is not None:
            entries[role] = tokens[int(token)]
    if not entries:
        return plain

    def single(number: int, letter: str) -> list[dict[str, Any]]:
        parts: list[dict[str, Any]] = [{"Sequence": {"id": letter, "type_id": number}}]
        if "bos" in entries:
            parts.insert(0, {"SpecialToken": {"id": entries["bos"], "type_id": number}})
        if "eos" in entries:
            parts.append({"SpecialToken": {"id": entries["eos"], "type_id": number}})
        return parts

    known = {text: {"id": text, "ids": [tokens.index(text)], "tokens": [text]} for text in entries.values()}
    template = {
        "type": "TemplateProcessing",
        "single": single(0, "A"),
        "pair": [*single(0, "A"), *single(1, "B")],
        "special_tokens": known,
    }
    return {"type": "Sequence", "processors": [plain, template]}


def _sentencepiece(metadata: Mapping[str, Any], tokens: list[str], types: list[int]) -> bytes:
    """A SentencePiece model of merges: pieces with their scores and types, and how texts begin."""
    scores = [float(score) for score in metadata.get("tokenizer.ggml.scores", [0.0] * len(tokens))]
    out = bytearray()
    for text, score, kind in zip(tokens, scores, types, strict=True):
        piece = text.replace(" ", SPACE) if kind == USER_DEFINED else text
        message = _field(1, piece.encode()) + b"\x15" + struct.pack("<f", score)
        out += _field(1, message + b"\x18" + bytes([kind]) if kind != NORMAL else message)
    trainer = b"\x18\x02" + (b"\x98\x02\x01" if BYTE in types else b"")  # merges; byte_fallback is field 35
    for number, key in ((40, "unknown"), (41, "bos"), (42, "eos"), (43, "padding")):
        token = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if key == "unknown" and UNKNOWN in types:
            token = types.index(UNKNOWN)
        trainer += _varint(number << 3) + _varint(-1 & (1 << 64) - 1 if token is None else int(token))
    prefix = metadata.get("tokenizer.ggml.add_space_prefix", True)
    normalizer = _field(1, b"identity") + b"\x18" + bytes([bool(prefix)]) + b"\x20\x00\x28\x01"
    return bytes(out + _field(2, trainer) + _field(3, normalizer))


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
