"""Model ids such as ``Org/Llama-3.2-1B-Instruct`` taken apart, and sizes as people write them.

Ids follow no rule that is written down; what counts as a size, a version or a finetune is what llama.cpp's converter
takes for one, since files and their names are found by it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["ModelId", "parse_model_id", "size_label", "title"]

_VERSION = re.compile(r"(v|iter)?\d+(\.\d+)*", re.IGNORECASE)
_ENCODING = re.compile(r"i?q\d(_\w)*|b?fp?(16|32)", re.IGNORECASE)
_SIZE = re.compile(r"(([A]|\d+[x])?\d+([._]\d+)?[KMBT][\d]?|small|mini|medium|large|x?xl)", re.IGNORECASE)
_FINETUNE = re.compile(r"chat|instruct|vision|lora", re.IGNORECASE)
_NOT_TITLED = re.compile(r"^(v\d+(?:\.\d+)*|\d.*)$")
_EXPONENTS = " KMBT"


class ModelId(NamedTuple):
    """The parts of an id; None for what isn't there."""

    name: str | None = None
    organization: str | None = None
    basename: str | None = None
    finetune: str | None = None
    version: str | None = None
    size_label: str | None = None


def title(name: str) -> str:
    """An id as a title: words in capitals, except acronyms and versions."""
    words = name.strip().replace("-", " ").split()
    return " ".join(w.title() if w.islower() and not _NOT_TITLED.match(w) else w for w in words)


def parse_model_id(model_id: str, parameters: int = 0) -> ModelId:
    """Take an id apart.

    Parameters
    ----------
    model_id : str
    parameters : int
        How many the model has, negative for an adapter's, where it isn't the whole model's; 0 where unknown. A size
        in the id that is far from it is no size.

    Returns
    -------
    ModelId
    """
    if " " in model_id:  # a sentence, no id
        return ModelId(model_id)
    organization, slash, name = model_id.partition("/")
    if not slash:
        organization, name = "", model_id
    parts = [part for part in name.split("-") if part]
    kinds: list[set[str]] = [set() for _ in parts]
    for i, part in enumerate(parts):
        if _VERSION.fullmatch(part):
            kinds[i].add("version")
        elif _ENCODING.fullmatch(part):
            kinds[i].add("encoding")
            parts[i] = part.upper()
        elif i > 0 and _SIZE.fullmatch(part):
            parts[i], kind = _size(part, parameters)
            kinds[i].add(kind)
        elif i > 0 and _FINETUNE.fullmatch(part):
            # That an adapter is one needn't be said.
            kinds[i].add("encoding" if parameters < 0 and part.lower() == "lora" else "finetune")
    _mark_names(parts, kinds)

    def joined(kind: str, but: str = "") -> str | None:
        found = [part for part, have in zip(parts, kinds, strict=True) if kind in have and but not in have]
        if kind == "size_label":
            found = list(dict.fromkeys(found))
        return "-".join(found) or None

    size, finetune, version = joined("size_label"), joined("finetune"), joined("version", but="basename")
    basename = joined("basename") if size or finetune or version else None
    # No organization, but what "./" and "../" leave.
    owner = None if not slash or organization.startswith(".") else organization
    return ModelId(name, owner, basename, finetune, version, size)


def _size(part: str, parameters: int) -> tuple[str, str]:
    """A size in its usual form, and whether it is one: 128k may be a context's length."""
    part = part.replace("_", ".")
    if part[-1].isdecimal():  # 7b1 is 7.1b
        part = f"{part[:-2]}.{part[-1]}{part[-2]}"
    if len(part) > 1 and part[-2].isdecimal() and part[-1] in "kmbt":
        part = part[:-1] + part[-1].upper()
    if parameters:
        try:
            said = float(part[:-1]) * pow(1000, _EXPONENTS.find(part[-1]))
        except ValueError:
            return part, "size_label"
        too_small = parameters < 0 and said < abs(parameters) // 8
        if too_small or (parameters > 0 and abs(said - parameters) > 7 * parameters // 8):
            return part[:-1] + part[-1].lower(), "finetune"
    return part, "size_label"


def _mark_names(parts: Sequence[str], kinds: Sequence[set[str]]) -> None:
    """Find the basename, at the start, among parts whose other meanings are marked; what follows is a finetune."""
    pairs = list(zip(parts, kinds, strict=True))
    if any("size_label" in kind and any(c.isdecimal() for c in part) for part, kind in pairs):
        for part, kind in pairs:  # words such as "large" aren't sizes beside numbers
            if "size_label" in kind and all(c.isalpha() for c in part):
                kind.remove("size_label")
    at_start = True
    for part, kind in pairs:
        if at_start and ((not kind and part[0].isalpha()) or "version" in kind):
            kind.add("basename")
        else:
            at_start = False
            if not kind:
                kind.add("finetune")
    for _, kind in reversed(pairs):  # a version at the end isn't the name's
        if "basename" not in kind or len(kind) == 1:
            break
        kind.remove("basename")


def size_label(shapes: Sequence[tuple[str, tuple[int, ...]]]) -> tuple[str | None, int]:
    """A model's size as its label, and its number of parameters.

    Parameters
    ----------
    shapes : sequence of (str, tuple of int)
        The tensors' names and logical shapes.
    """
    shared = experts = total = expert_sum = stacks = 0
    for name, shape in shapes:
        size = 1
        for n in shape:
            size *= n
        total += size
        if "_exps." in name and len(shape) >= 3:
            count = shape[-2 if ".bias" in name else -3]
            experts += size // count
            expert_sum += count
            stacks += 1
        else:
            shared += size
    if not total:
        return None, 0
    count = expert_sum // stacks if stacks else 0
    return (f"{count}x{_rounded(shared + experts)}" if count else _rounded(total)), total


def _rounded(count: int) -> str:
    """A number of parameters with at least two digits, such as 1.2B or 63K."""
    sizes = ((1e12, 1e-12, "T"), (1e9, 1e-9, "B"), (1e6, 1e-6, "M"))
    scale, suffix = next(((scale, suffix) for limit, scale, suffix in sizes if count > limit), (1e-3, "K"))
    scaled = count * scale
    digits = max(2 - len(str(round(scaled)).lstrip("0")), 0)
    return f"{scaled:.{digits}f}{suffix}"
