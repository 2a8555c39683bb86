"""Special tokens of a vocabulary: their ids, which are added to a text, the chat templates, and how texts are changed.

Three files say it, and not always the same: tokenizer.json (added tokens and a post-processor), tokenizer_config.json
(names, flags, the template), and config.json (ids). The order in which they count is llama.cpp's converter's.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from string import ascii_letters, digits
from typing import Any

from ..errors import GGUFError
from ..formats.value_types import ValueType
from .checkpoint import read_json
from .hparams import Keys

__all__ = ["SpecialTokens", "tokenizer_files"]

U32, BOOL, TEXT = ValueType.UINT32, ValueType.BOOL, ValueType.STRING
NAMES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_KEYS = {
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "eot": "eot_token_id",
    "eom": "eom_token_id",
    "unk": "unknown_token_id",
    "sep": "seperator_token_id",
    "pad": "padding_token_id",
    "mask": "mask_token_id",
}


def tokenizer_files(folder: Path) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """tokenizer.json and tokenizer_config.json, None where they aren't there."""
    found: list[dict[str, Any] | None] = []
    for name in ("tokenizer.json", "tokenizer_config.json"):
        path = folder / name
        found.append(read_json(path) if path.is_file() else None)
    return found[0], found[1]


class SpecialTokens:
    """What a folder says of special tokens.

    Parameters
    ----------
    folder : path
    config : mapping
        config.json as it is.
    merges : bool
        Read the merges too.
    size : int, optional
        How many tokens there are; ids beyond are dropped.
    names : tuple of str
        Which tokens are looked for.

    Attributes
    ----------
    ids : dict of str to int
    add : dict of str to bool
        Whether the token is put before, behind or between texts.
    template : str, list or None
    merges : list of str
    """

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, Any],
        *,
        merges: bool = False,
        size: int | None = None,
        names: tuple[str, ...] = NAMES,
    ) -> None:
        self.folder = folder
        self.size = size
        self.names = list(names)
        self.ids: dict[str, int] = {}
        self.add: dict[str, bool] = {}
        self.template: Any = None
        self.merges: list[str] = []
        self.lowercase: Any = None
        self.strip_accents: Any = None
        tokenizer, named = tokenizer_files(folder)
        added: list[Any] = []
        if tokenizer:
            if merges:
                self.merges = _merges(folder, tokenizer)
            self._normalizer(tokenizer.get("normalizer"))
            added = tokenizer.get("added_tokens") or []
            self._stand_ins(named)
            self._post_processor(tokenizer.get("post_processor"), named)
        if named:
            self._templates(named)
            self._named(named, added)
        inner = config.get("text_config")
        for name in self.names:
            token = config.get(f"{name}_token_id")
            if token is None and isinstance(inner, dict):
                token = inner.get(f"{name}_token_id")
            self.set(name, token)
        if merges and not self.merges:
            self._merges_txt()

    def set(self, name: str, token: Any) -> None:
        """A token's id where none is known yet; what is no id of this vocabulary is passed over.

        Raises
        ------
        GGUFError
            If the id is negative.
        """
        if not isinstance(token, int):
            return
        if token < 0:
            raise GGUFError(f"{self.folder}: the {name} token's id is {token}")
        if self.size is None or token < self.size:
            self.ids.setdefault(name, int(token))

    def keys(self) -> Keys:
        """The metadata, in the reference's order."""
        out: Keys = {}
        if self.merges:
            out["tokenizer.ggml.merges"] = (self.merges, TEXT)
        for name, token in self.ids.items():
            if name in _KEYS:
                out[f"tokenizer.ggml.{_KEYS[name]}"] = (token, U32)
        for name, value in self.add.items():
            if name in ("bos", "eos", "sep"):
                out[f"tokenizer.ggml.add_{name}_token"] = (value, BOOL)
        out.update(_template_keys(self.template, self.folder))
        if self.lowercase is not None:
            out["tokenizer.ggml.normalizer.lowercase"] = (bool(self.lowercase), BOOL)
        if self.strip_accents is not None:
            out["tokenizer.ggml.normalizer.strip_accents"] = (bool(self.strip_accents), BOOL)
        return out

    # --- tokenizer.json ----------------------------------------------------------------------------------------------

    def _normalizer(self, normalizer: Any) -> None:
        if not isinstance(normalizer, dict):
            return
        kind = normalizer.get("type")
        if kind == "Lowercase":
            self.lowercase = True
        elif kind == "StripAccents":
            self.strip_accents = True
        elif kind == "BertNormalizer":
            self.lowercase = normalizer.get("lowercase", self.lowercase)
            self.strip_accents = normalizer.get("strip_accents", self.strip_accents)
        elif kind == "Sequence":
            for part in normalizer.get("normalizers", []):
                self._normalizer(part)

    def _stand_ins(self, named: dict[str, Any] | None) -> None:
        """BERT's tokens for a text's begin and end."""
        for wanted, other in (("bos_token", "cls_token"), ("eos_token", "sep_token")):
            if named and not named.get(wanted) and named.get(other):
                named[wanted] = named[other]

    def _post_processor(self, processor: Any, named: dict[str, Any] | None) -> None:
        if not isinstance(processor, dict):
            return
        # What tokenizer_config.json names; where it isn't there, what the processor uses.
        tokens: dict[str, Any] = {n: (named or {}).get(f"{n}_token") for n in ("bos", "cls", "eos", "sep")}

        def name(kind: str, token: Any) -> None:
            tokens[kind] = token
            if named:
                named[f"{kind}_token"] = token

        for part in processor.get("processors", [processor]):
            kind = part.get("type")
            if kind == "ByteLevel":
                self.add.setdefault("bos", False)
                self.add.setdefault("eos", False)
            elif kind == "RobertaProcessing":
                self.add.update(bos=True, eos=True, sep=True)
                for wanted, other in (("cls", "bos"), ("sep", "eos")):
                    if not tokens[wanted] and named:
                        name(wanted, part.get(wanted, [tokens[other]])[0])
            elif kind == "TemplateProcessing":
                self._template_processing(part, named, tokens, name)

    def _template_processing(self, part: dict[str, Any], named: Any, tokens: dict[str, Any], name: Any) -> None:
        """What the template of one text, and of a pair, puts around them; only simple ones are understood."""
        single, pair = part.get("single", []), part.get("pair", [])
        first = _special(single[0]) if len(single) > 1 else None
        last = _special(single[-1]) if len(single) > 1 else None
        if first:
            if not named:
                tokens["bos"] = first
            elif first not in (tokens["bos"], tokens["cls"]):
                for kind in ("bos", "cls"):
                    if not tokens[kind]:
                        name(kind, first)
            self.add["bos"] = first in (tokens["bos"], tokens["cls"])
        if last:
            if not named:
                tokens["eos"] = last
            elif last != tokens["eos"]:
                for kind in ("eot", "eom"):  # the named one ends a turn then
                    if kind not in self.names:
                        self.names.append(kind)
                        named[f"{kind}_token"] = tokens["eos"]
                        break
                name("eos", last)
            self.add["eos"] = last == tokens["eos"]
        if pair:
            start = 1 if first and _special(pair[0]) == first else 0
            stop = -1 if last and _special(pair[-1]) == last else None
            pair = pair[start:stop]
        if len(pair) > 2 and (_sequence(pair[0]), _sequence(pair[-1])) == ("A", "B"):
            between = [_special(entry) for entry in pair[1:-1]]
            known = (tokens["sep"], tokens["eos"])
            sep = bool(between[0] and between[0] in known and not last)
            sep = sep or bool(len(between) == 2 and between[1] and between[1] in known)
            self.add["sep"] = sep
            if sep and not tokens["sep"] and named:
                named["sep_token"] = tokens["eos"]

    # --- the other files ---------------------------------------------------------------------------------------------

    def _templates(self, named: dict[str, Any]) -> None:
        other: Any = None
        if (path := self.folder / "chat_template.jinja").is_file():
            other = path.read_text(encoding="utf-8")
            more = sorted((self.folder / "additional_chat_templates").glob("*.jinja"))
            if more:
                other = [{"name": "default", "template": other}]
                other += [{"name": p.stem, "template": p.read_text(encoding="utf-8")} for p in more]
        elif (path := self.folder / "chat_template.json").is_file():
            other = read_json(path).get("chat_template")
        template = named.get("chat_template", other)
        if isinstance(template, (str, list)):
            self.template = template

    def _named(self, named: dict[str, Any], added: list[Any]) -> None:
        by_text: dict[str, Any] = {}
        for token in added:
            by_text.setdefault(token.get("content"), token.get("id"))
        for name in self.names:
            flag = named.get(f"add_{name}_token")
            if isinstance(flag, bool):
                self.add.setdefault(name, flag)
            entry = named.get(f"{name}_token")
            text = entry.get("content") if isinstance(entry, dict) else entry
            if isinstance(text, str):
                self.set(name, by_text.get(text))

    def _merges_txt(self) -> None:
        path = self.folder / "merges.txt"
        if not path.is_file():
            return
        lines = path.read_text(encoding="utf-8").split("\n")
        if lines and lines[0].strip().startswith("#"):
            del lines[0]
        parts = [line.split() for line in lines]
        self.merges = [" ".join(pair) for pair in parts if len(pair) == 2]


def _merges(folder: Path, tokenizer: Mapping[str, Any]) -> list[str]:
    """Merges as pairs of pieces with a space between; spaces inside of pieces become what bytes' letters call them."""
    merges = tokenizer.get("model", {}).get("merges")
    if not isinstance(merges, list) or not merges:
        return []
    if all(isinstance(merge, str) for merge in merges):
        return list(merges)
    if all(isinstance(merge, list) and len(merge) == 2 and all(isinstance(p, str) for p in merge) for merge in merges):
        return [" ".join(part.replace(" ", "\u0120") for part in merge) for merge in merges]
    raise GGUFError(f"{folder / 'tokenizer.json'}: merges are neither texts nor pairs of texts")


def _special(entry: Any) -> str | None:
    return entry.get("SpecialToken", {}).get("id") if isinstance(entry, dict) else None


def _sequence(entry: Any) -> str | None:
    return entry.get("Sequence", {}).get("id") if isinstance(entry, dict) else None


def _template_keys(template: Any, folder: Path) -> Keys:
    """One template, or several by their names."""
    if template is None or isinstance(template, str):
        return {} if template is None else {"tokenizer.chat_template": (template, TEXT)}
    out: Keys = {}
    names: list[str] = []
    default = None
    for choice in template:
        if not isinstance(choice, dict):
            raise GGUFError(f"{folder / 'tokenizer_config.json'}: chat_template has an entry that is {choice!r}")
        name = "".join(c if c in ascii_letters + digits else "_" for c in str(choice.get("name", "")))
        text = choice.get("template")
        if not name or not isinstance(text, str):
            continue
        if name == "default":
            default = text
        else:
            names.append(name)
            out[f"tokenizer.chat_template.{name}"] = (text, TEXT)
    if names:
        # The reference's order is a set's, which differs from run to run; here it is the order they come in.
        out["tokenizer.chat_templates"] = (list(dict.fromkeys(names)), TEXT)
    if default is not None:
        out["tokenizer.chat_template"] = (default, TEXT)
    return out
