"""LoRA adapters of peft: two small matrices for each weight, whose product is added to it."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from ..errors import GGUFError
from ..formats.tensor_types import nbytes
from ..formats.value_types import ValueType
from ..requantize.importance import Importance
from ..write.stream import Progress
from ..write.writer import Writer
from .architectures import architecture_of
from .checkpoint import StoredTensor, read_json, read_tensors
from .encoding import write_tensors
from .general import general_metadata
from .hparams import Config, Keys
from .naming import Architecture, Match
from .planned import Array, Planned
from .transforms import GATE_UP_HALVES, KEEP, PERMUTE_K, PERMUTE_Q, PLUS_ONE
from .types import PLAIN, plain_type

__all__ = ["convert_adapter", "is_adapter"]

_PARTS = {".lora_A.weight": "a", ".lora_B.weight": "b", ".lora_embedding_A": "a", ".lora_embedding_B": "b"}
_FILES = ("adapter_model.safetensors", "adapter_model.bin")


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter instead of a model."""
    return (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file()


def convert_adapter(
    folder: Path,
    base: str | os.PathLike[str] | None,
    output: str | os.PathLike[str],
    type: str,
    name: str | None,
    threads: int,
    *,
    sync: bool,
    progress: Progress | None,
) -> tuple[list[str], str, str, int, int]:
    """Write an adapter's GGUF file, byte for byte as llama.cpp's converter does.

    Parameters
    ----------
    folder : path
        With adapter_config.json and adapter_model.safetensors or .bin.
    base : path-like
        The model's folder; its config.json is enough.

    Returns
    -------
    paths, architecture, type, number of tensors, their bytes

    Raises
    ------
    GGUFError
        If there is no base, a tensor isn't one of an adapter, or can't be one of this model's.
    """
    if base is None:
        raise GGUFError(f"{folder} is an adapter, which needs its model's folder with config.json: base (--base)")
    said = read_json(folder / "adapter_config.json")
    alpha = said.get("lora_alpha")
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float)):
        raise GGUFError(f"{folder / 'adapter_config.json'}: lora_alpha is {alpha!r}, a number was expected")
    if said.get("invocation_string") and not said.get("alora_invocation_tokens"):
        raise GGUFError(
            f"{folder / 'adapter_config.json'}: invocation_string without its tokens can't be converted yet"
        )
    path = next((folder / file for file in _FILES if (folder / file).is_file()), None)
    if path is None:
        raise GGUFError(f"{folder}: no {' or '.join(_FILES)} there")
    config = Config.read(Path(base))
    row = architecture_of(config)
    stored = read_tensors(path)
    planned = list(_plan(stored, row, config))
    kind = type.upper()
    if kind == "AUTO":
        halves = (t.dtype for t in stored if len(t.shape) > 1 and t.dtype in ("BF16", "F16"))
        kind = next(halves, "F16")
    if kind not in PLAIN:
        raise ValueError(f"{type!r} is no type for an adapter; there are {', '.join(PLAIN)} and auto")
    keys: Keys = {"general.architecture": (row.name, ValueType.STRING)}
    keys.update(general_metadata(folder, {}, tensors=(), name=name, adapter=_changed(planned)))
    keys["adapter.lora.alpha"] = (float(alpha), ValueType.FLOAT32)
    if tokens := said.get("alora_invocation_tokens"):
        keys["adapter.alora.invocation_tokens"] = (list(tokens), ValueType.UINT32)
    keys["general.quantization_version"] = (2, ValueType.UINT32)
    writer = Writer(output, inputs=[str(path)], sync=sync, progress=progress)
    for key, (value, vtype) in keys.items():
        writer.set(key, value, vtype)
    tensors = [(p, plain_type(p, PLAIN[kind][0])) for p in planned]
    paths = write_tensors(writer, tensors, Importance({}), threads)
    return paths, row.name, kind, len(tensors), sum(nbytes(p.shape, qtype) for p, qtype in tensors)


def _changed(planned: Sequence[Planned]) -> int:
    """How many parameters of the model the adapter changes, at least one."""
    shapes = {p.name: p.shape for p in planned}
    pairs = ((shape, shapes.get(f"{n[:-1]}a")) for n, shape in shapes.items() if n.endswith(".lora_b"))
    return max(1, sum(math.prod(b[:-1]) * a[-1] for b, a in pairs if a is not None))


def _plan(stored: Sequence[StoredTensor], row: Architecture, config: Config) -> Iterator[Planned]:
    """Pairs in the order in which they are complete; norms, which mergekit adds, as they are."""
    pairs: dict[str, dict[str, StoredTensor]] = {}
    norms: list[tuple[str, StoredTensor]] = []
    for tensor in stored:
        base = tensor.name.replace("base_model.model.", "")
        part = next((end for end in _PARTS if base.endswith(end)), None)
        if part is not None:
            pairs.setdefault(base.removesuffix(part) + ".weight", {})[_PARTS[part]] = tensor
        elif "_layernorm" in base or ".norm" in base:
            norms.append((base, tensor))
        elif ".base_layer.weight" not in base:
            raise GGUFError(f"{tensor.path}: {tensor.name!r} is neither lora_A nor lora_B of a weight")
    for base, tensor in norms:
        match = _match(base, tensor, row, config)
        if match.transform not in (KEEP, PLUS_ONE):
            raise GGUFError(f"{tensor.path}: {tensor.name!r} can't be converted yet")
        yield Planned(match.targets[0], tensor.shape, _applied(tensor, match, config), None, tensor.name)
    for base, parts in pairs.items():
        some = next(iter(parts.values()))
        if len(parts) < 2:
            raise GGUFError(f"{some.path}: {some.name!r} has no other half of its pair")
        yield from _pair(parts["a"], parts["b"], _match(base, some, row, config), config)


def _match(base: str, tensor: StoredTensor, row: Architecture, config: Config) -> Match:
    for pattern, replacement in row.renames:
        base = re.sub(pattern, replacement, base)
    try:
        match = row.match(base.replace("language_model.", ""))
    except KeyError:
        match = None
    if match is None:
        raise GGUFError(f"{tensor.path}: {tensor.name!r}: models of class {config.class_name} have no such weight")
    if match.block is not None and match.block >= row.blocks(config):
        raise GGUFError(f"{tensor.path}: {tensor.name!r}: {config.source} says {row.blocks(config)} blocks")
    return match


def _applied(tensor: StoredTensor, match: Match, config: Config) -> Callable[[], Array]:
    return lambda: match.transform.apply(tensor.values(), config)[0]


def _pair(a: StoredTensor, b: StoredTensor, match: Match, config: Config) -> Iterator[Planned]:
    """The two matrices of a weight. What changes rows of the weight changes rows of the second."""
    if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[0] != b.shape[1]:
        raise GGUFError(f"{a.path}: {a.name!r} is {a.shape} and its other half {b.shape}; that is no product")
    if match.transform not in (KEEP, PERMUTE_Q, PERMUTE_K, GATE_UP_HALVES):
        raise GGUFError(f"{a.path}: {a.name!r}: a weight that is changed in this way can't have an adapter yet")
    try:
        shapes = match.transform.shapes(b.shape, config)
    except ValueError as error:
        raise GGUFError(f"{b.path}: {b.name!r} has shape {b.shape}: {error}") from None
    for index, (target, shape) in enumerate(zip(match.targets, shapes, strict=True)):
        turned = target == "token_embd.weight"  # whose rows are looked up, not multiplied

        def first(turned: bool = turned) -> Array:
            values = a.values()
            return np.ascontiguousarray(values.T) if turned else values

        def second(index: int = index) -> Array:
            return match.transform.apply(b.values(), config)[index]

        yield Planned(f"{target}.lora_a", a.shape[::-1] if turned else a.shape, first, None, a.name)
        yield Planned(f"{target}.lora_b", shape, second, None, b.name)
