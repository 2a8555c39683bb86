"""The keys that say what a model is called, who made it of what, and how to sample: ``general.*``.

They come from the model card, from config.json's ``_name_or_path``, and from the folder's name, in this order; the
first that says something counts.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import GGUFError
from ..formats.value_types import ValueType
from .hparams import Keys
from .modelcard import read_card
from .modelid import ModelId, parse_model_id, size_label, title

__all__ = ["general_metadata"]

U32, I32, F32, TEXT, ARRAY = (
    ValueType.UINT32,
    ValueType.INT32,
    ValueType.FLOAT32,
    ValueType.STRING,
    ValueType.ARRAY,
)
# Keys of generation_config.json and their names in a file, in the file's order.
_SAMPLING = (
    ("sequence", ("sequence",), TEXT),
    ("top_k", ("top_k",), I32),
    ("top_p", ("top_p",), F32),
    ("min_p", ("min_p",), F32),
    ("xtc_probability", ("xtc_probability",), F32),
    ("xtc_threshold", ("xtc_threshold",), F32),
    ("temp", ("temperature",), F32),
    ("penalty_last_n", ("penalty_last_n",), I32),
    ("penalty_repeat", ("penalty_repeat", "repetition_penalty"), F32),
    ("mirostat", ("mirostat",), I32),
    ("mirostat_tau", ("mirostat_tau",), F32),
    ("mirostat_eta", ("mirostat_eta",), F32),
)
# What a card may say, under which names.
_CARD = {
    "name": ("name", "model_name"),
    "author": ("author", "model_author", "model_creator"),
    "version": ("version", "model_version"),
    "organization": ("organization", "model_organization"),
    "finetune": ("finetune", "model_finetune"),
    "basename": ("basename", "model_basename", "model_type"),
    "description": ("description", "model_description"),
    "size_label": ("size_label", "model_size_label"),
    "license": ("license",),
    "license.name": ("license_name",),
    "license.link": ("license_link",),
    "source.url": ("url", "model_url"),
    "source.doi": ("doi", "model_doi"),
    "source.uuid": ("uuid", "model_uuid"),
    "source.repo_url": ("repo_url", "model_repo_url"),
}
_PARTS = ("name", "organization", "basename", "finetune", "version", "size_label")
_ANCESTOR = ("name", "author", "version", "organization", "description", "url", "doi", "uuid", "repo_url")


def general_metadata(
    folder: Path,
    raw: Mapping[str, Any],
    *,
    tensors: Sequence[tuple[str, tuple[int, ...]]],
    name: str | None = None,
    adapter: int = 0,
) -> Keys:
    """The general keys of a checkpoint, in the reference's order, without the architecture.

    Parameters
    ----------
    folder : path
    raw : mapping
        config.json.
    tensors : sequence of (str, tuple of int)
        Names and logical shapes, from which the size follows.
    name : str, optional
        The model's name, whatever the folder says.
    adapter : int, optional
        How many parameters an adapter changes, where the folder is one's.

    Raises
    ------
    GGUFError
        If the card can't be read or holds values of a wrong type.
    """
    label, parameters = size_label(tensors)
    if adapter:
        label, parameters = None, -adapter  # not the whole model's
    card = read_card(folder)
    said = {key: _first(card, names) for key, names in _CARD.items()}
    where = raw.get("_name_or_path")
    if isinstance(where, str) and where.count("/") <= 1:
        _fill(said, parse_model_id(where, parameters))
    _fill(said, parse_model_id(Path(os.path.abspath(folder)).name, parameters))
    said["name"] = name or said["name"] or folder.name
    said["size_label"] = said["size_label"] or label
    if isinstance(said["license"], list):
        said["license"] = ",".join(str(part) for part in said["license"])
    keys: Keys = {"general.type": ("model", TEXT)}
    if adapter:
        keys = {"general.type": ("adapter", TEXT), "adapter.type": ("lora", TEXT)}
    keys.update(_sampling(folder))
    for key in ("name", "author", "version", "organization", "finetune", "basename", "description", "size_label"):
        _text(keys, folder, key, said[key])
    for key in list(_CARD)[8:]:
        _text(keys, folder, key, said[key])
    _ancestors(keys, folder, "base_model", card, ("base_model", "base_models", "base_model_sources"), parameters)
    _ancestors(keys, folder, "dataset", card, ("datasets", "dataset", "dataset_sources"), parameters)
    for key, places in (("tags", ("tags", "pipeline_tag")), ("languages", ("languages", "language"))):
        values = [value for n in places for value in _listed(card.get(n))]
        if wrong := [value for value in values if not isinstance(value, str)]:
            raise GGUFError(f"{folder / 'README.md'}: {wrong[0]!r} among its {key} is no text; put it into quotes")
        if values:
            keys[f"general.{key}"] = (values, TEXT)
    return keys


def _first(card: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((card[name] for name in names if card.get(name) is not None), None)


def _fill(said: dict[str, Any], parts: ModelId) -> None:
    """What an id says of that which isn't known yet."""
    for key, value in zip(_PARTS, parts, strict=True):
        if said[key] is None and value is not None:
            said[key] = title(value) if key in ("name", "organization") else value


def _text(keys: Keys, folder: Path, key: str, value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, str):
        raise GGUFError(f"{folder / 'README.md'}: {key} is {value!r}, no text; put it into quotes")
    keys[f"general.{key}"] = (value, TEXT)


def _listed(value: Any) -> list[Any]:
    """A value that may be a list."""
    if value is None or isinstance(value, (str, list)):
        return [value] if isinstance(value, str) else list(value or [])
    return []


def _sampling(folder: Path) -> Keys:
    path = folder / "generation_config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # many a model's isn't valid, and nothing depends on it
        return {}
    keys: Keys = {}
    for key, names, kind in _SAMPLING if isinstance(config, dict) else ():
        value = next((config[n] for n in names if n in config), None)
        if value is None:
            continue
        fits = isinstance(value, str) if kind is TEXT else isinstance(value, int if kind is I32 else (int, float))
        if not fits or isinstance(value, bool):
            raise GGUFError(f"{path}: {names[0]} is {value!r}, {kind.name.lower()} was expected")
        keys[f"general.sampling.{key}"] = (float(value) if kind is F32 else value, kind)
    return keys


def _ancestors(
    keys: Keys, folder: Path, kind: str, card: Mapping[str, Any], names: Sequence[str], parameters: int
) -> None:
    """What a model is based on, or was trained with."""
    if not any(name in card for name in names):
        return
    entries = _listed(next((card[name] for name in names if name in card), None))
    keys[f"general.{kind}.count"] = (len(entries), U32)
    for number, entry in enumerate(entries):
        if isinstance(entry, str):
            facts = _ancestor(entry, parameters)
        elif isinstance(entry, dict):
            facts = entry
        else:
            raise GGUFError(f"{folder / 'README.md'}: {entry!r} is no {kind}; an id or a link was expected")
        for key in _ANCESTOR:
            if key in facts:
                _text(keys, folder, f"{kind}.{number}.{key}", facts[key])


def _ancestor(entry: str, parameters: int) -> dict[str, Any]:
    link = entry.startswith(("http://", "https://", "ssh://"))
    facts: dict[str, Any] = {"repo_url": entry} if link else {}
    if link:
        match = re.match(r"https?://huggingface.co/([^/]+/[^/]+)$", entry)
        if match is None:
            return facts
    parts = parse_model_id(match[1] if link and match else entry, parameters)
    if parts.name is not None:
        facts["name"] = title(parts.name)
    if parts.organization is not None:
        facts["organization"] = title(parts.organization)
    if parts.version is not None:
        facts["version"] = parts.version
    if not link and parts.organization is not None:
        facts["repo_url"] = f"https://huggingface.co/{parts.organization}/{parts.name}"
    return facts
