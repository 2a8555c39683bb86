"""Which tensors a conversion writes, in the reference's order: names, shapes, and how each is made when its turn comes.

Nothing is read here but headers, so everything that can be refused is refused before a byte is written.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator

from ..errors import GGUFError
from ..formats.tensor_types import QType
from .hparams import Config
from .kept_blocks import mxfp4_weights, nvfp4_weights
from .naming import Architecture, Match
from .planned import Array, Planned, Shape, Source, Tensors, blocks_reader, giver_of, packed_type, stacked
from .quantized import GroupedTensor
from .transforms import STACK, Gather

__all__ = ["Planned", "guessed_type", "plan_tensors"]


# Parts of multimodal models that a text model's file leaves out.
_OTHER_STARTS = (
    *("vit.", "vpm.", "siglip2.", "conformer.", "merger.", "resampler."),
    *("sound_encoder.", "sound_projection.", "speech_embeddings."),
)
_OTHER_PARTS = re.compile(
    r"visual\.|vision[._]|audio[._]|talker\.|token2wav\.|code2wav\.|projector\.|pre_mm_projector_norm|image_newline"
    r"|view_seperator|patch_embed|patch_merge_mlp\.|patch_merger\.|model\.connector\."
)
_NOT_NEEDED = (".attention.masked_bias", ".attention.bias", ".rotary_emb.inv_freq")


_PREDICTOR = re.compile(r"(?:model\.)?mtp\.(.+)")


def _predictors_name(name: str, config: Config) -> str:
    """The name of a tensor of the layers that predict further tokens, as that of a block behind the others."""
    if match := re.fullmatch(r"layers\.(\d+)\.(.+)", name):
        return f"model.layers.{config.blocks + int(match[1])}.{match[2]}"
    others = {"fc": "eh_proj", "pre_fc_norm_embedding": "enorm", "pre_fc_norm_hidden": "hnorm"}
    stem, dot, suffix = name.rpartition(".")
    return f"model.layers.{config.blocks}.{(others | {'norm': 'shared_head.norm'}).get(stem, stem)}{dot}{suffix}"


def _count_predictors(tensors: Tensors, config: Config) -> None:
    """Note how many layers there are that predict further tokens; configurations count them whether or not."""
    found = [m for name in tensors if (m := re.match(r"(?:model\.)?mtp\.(?:layers\.(\d+)\.)?", name))]
    config.values["num_nextn_predict_layers"] = max((int(m[1] or 0) + 1 for m in found), default=0)


def _kept(tensors: Tensors, row: Architecture, config: Config) -> Iterator[tuple[str, Source]]:
    """The tensors of the text model under the names that the table knows."""
    bare = config.class_name in row.bare
    for name, tensor in tensors.items():
        if row.predictors and (match := _PREDICTOR.match(name)):
            name = _predictors_name(match[1], config)
        for pattern, replacement in row.renames:
            name = re.sub(pattern, replacement, name)
        if name.startswith(("mlp", *_OTHER_STARTS)) or _OTHER_PARTS.search(name):
            continue
        if name.endswith("e_score_correction_bias"):
            name = name.removesuffix("_bias") + ".bias"
        if name.endswith(".expert_bias"):
            name += ".bias"
        name = name.replace("language_model.", "")
        if bare:
            name = "model." + name
        if not name.endswith(_NOT_NEEDED):
            yield name, tensor


def guessed_type(tensors: Tensors, row: Architecture, config: Config) -> QType:
    """The type that ``auto`` stands for: that of the first matrix in half precision, else F16."""
    kinds = {"BF16": QType.BF16, "F16": QType.F16}
    for _, tensor in _kept(tensors, row, config):
        if len(tensor.shape) >= 2 and tensor.dtype in kinds:
            return kinds[tensor.dtype]
    return QType.F16


def plan_tensors(tensors: Tensors, row: Architecture, config: Config, *, keep: bool = False) -> list[Planned]:
    """All tensors of the file to be, in order.

    Parameters
    ----------
    tensors : mapping
        The checkpoint's.
    row : Architecture
    config : Config
    keep : bool
        Keep quantized weights in a type that holds them without loss.

    Raises
    ------
    GGUFError
        If a tensor isn't known, is missing, is there twice, or its shape contradicts the configuration.
    """
    if row.predictors:
        _count_predictors(tensors, config)
    extra = row.rope_factors(config) if row.rope_factors is not None else {}
    planned = [Planned(name, array.shape, giver_of(array), None, "rope_parameters") for name, array in extra.items()]
    kept = dict(_kept(tensors, row, config))
    planned += mxfp4_weights(kept, config)
    planned += nvfp4_weights(kept, config, row)
    stacks: dict[int, dict[str, dict[int, Source]]] = {}
    gathered: dict[str, dict[int, Source]] = {}
    limit, seen = row.blocks(config), False
    for name, tensor in kept.items():
        where = f"{tensor.path}: tensor {tensor.name!r}"
        if name in row.first_counts:
            if seen:
                continue
            seen = True
        if row.beyond and (number := re.match(r"model\.layers\.(\d+)\.", name)) and int(number[1]) >= limit:
            continue
        if row.drops_tied and re.fullmatch(r"(model\.)?lm_head\.weight", name) and config.get("tie_word_embeddings"):
            continue
        try:
            match = row.match(name)
        except KeyError:
            raise GGUFError(f"{where}: models of class {config.class_name} have no such tensor") from None
        if match is None:
            continue
        if isinstance(match.transform, Gather):
            planned += _gathered(match, tensor, gathered)
            continue
        last = config.get("num_decoder_layers") or limit if name.startswith("decoder.") else limit
        if match.block is not None and match.block >= last:
            raise GGUFError(f"{where}: its block is {match.block}, and {config.source} says {last} blocks")
        if match.transform is STACK:
            planned += _stacked(match, tensor, stacks, row, config, keep)
            continue
        planned += _made(match, tensor, config, row, keep)
    for target, found in gathered.items():
        raise GGUFError(f"{config.folder}: {len(found)} tensors are there for {target}, more were expected")
    for block, parts in stacks.items():
        count, some = sum(map(len, parts.values())), next(iter(next(iter(parts.values())).values()))
        raise GGUFError(
            f"{config.folder}: block {block} has {count} tensors of experts such as {some.name!r}, "
            f"{3 * config.experts} were expected"
        )
    _complete(planned, row, config)
    return planned


def _gathered(match: Match, tensor: Source, found: dict[str, dict[int, Source]]) -> Iterator[Planned]:
    """A stack of numbered tensors once the last has come."""
    (target,), number = match.targets, match.block
    assert isinstance(match.transform, Gather)
    if number is None or number >= match.transform.count:
        raise GGUFError(f"{tensor.path}: tensor {tensor.name!r}: {match.transform.count} of its kind were expected")
    parts = found.setdefault(target, {})
    parts[number] = tensor
    if len(parts) == match.transform.count:
        yield stacked(target, found.pop(target), match, keep=False)


def _made(match: Match, tensor: Source, config: Config, row: Architecture, keep: bool) -> Iterator[Planned]:
    """What one tensor becomes."""
    packed = packed_type(tensor, match, keep)
    read = tensor.values if packed is None else blocks_reader(tensor)
    try:
        shapes = match.transform.shapes(tensor.shape, config)
    except ValueError as error:
        raise GGUFError(f"{tensor.path}: tensor {tensor.name!r} has shape {tensor.shape}: {error}") from None
    rows = _known_tokens(config) if row.name == "gemma3" and match.targets == ("token_embd.weight",) else None
    if rows is not None and rows < shapes[0][0]:
        shapes = [(rows, *shapes[0][1:])]
    groups = match.transform.groups(tensor.shape, config)
    if rows is not None:
        groups = shapes[0][0]
    if isinstance(tensor, GroupedTensor):
        groups = math.gcd(groups, tensor.pieces)

    def maker(index: int) -> Callable[[], Array]:
        def make() -> Array:
            array = match.transform.apply(read(), config)[index]
            return array if rows is None else array[:rows]

        return make

    def partial(index: int) -> Callable[[int, int], Array]:
        size = 1 if rows is not None else tensor.shape[0] // groups

        def part(start: int, stop: int) -> Array:
            return match.transform.apply_to(read(start * size, stop * size), config, stop - start)[index]

        return part

    for index, (name, shape) in enumerate(zip(match.targets, shapes, strict=True)):
        part = partial(index) if groups > 1 else None
        yield Planned(name, shape, maker(index), packed, tensor.name, groups, part)


def _stacked(
    match: Match,
    tensor: Source,
    stacks: dict[int, dict[str, dict[int, Source]]],
    row: Architecture,
    config: Config,
    keep: bool,
) -> list[Planned]:
    """A layer's stacked experts once the last has come, else nothing."""
    block, expert, (target,) = match.block, match.expert, match.targets
    if block is None or expert is None or expert >= config.experts:
        raise GGUFError(f"{tensor.path}: tensor {tensor.name!r}: {config.source} says {config.experts} experts")
    parts = stacks.setdefault(block, {})
    parts.setdefault(target, {})[expert] = tensor
    if sum(map(len, parts.values())) < 3 * config.experts:
        return []
    del stacks[block]
    names = [f"blk.{block}.{kind}.weight" for kind in row.expert_order]
    return [stacked(name, parts[name], match, keep) for name in names]


def _known_tokens(config: Config) -> int | None:
    """How many tokens the vocabulary has, beyond which embeddings are filling."""
    folder = config.folder
    if folder is None or (folder / "tokenizer.model").is_file():
        return int(config.need("vocab_size"))
    path = folder / "tokenizer.json"
    if not path.is_file():
        return None
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    return len(tokenizer["model"]["vocab"]) + len(tokenizer["added_tokens"])


# Tensors of a block of which all that the model has anywhere have to be there where one is.
_TOGETHER = (
    r"attn_(q|k|v|output|sinks|q_a|q_b|kv_a_mqa|k_b|v_b)\.weight",
    r"attn_[qkv]\.bias",
    r"cross_attn_[qkvo]\.weight",
    r"ffn_(gate|up|down)\.weight",
    r"ffn_(gate|up|down)_exps\.weight|ffn_gate_inp\.weight",
    r"ffn_(gate|up|down)_shexp\.weight",
    r"ssm_.*|shortconv\..*",
)
_BLOCK = re.compile(r"((?:enc\.|dec\.)?blk)\.(\d+)\.(.+)")


def _complete(planned: list[Planned], row: Architecture, config: Config) -> None:
    """Refuse what is there twice, what is missing, and shapes that contradict the configuration."""
    shapes: dict[str, Shape] = {}
    blocks: dict[tuple[str, int], set[str]] = {}
    for p in planned:
        if p.name in shapes:
            raise GGUFError(f"{config.source}: {p.name} would be written twice, the second time from {p.source!r}")
        shapes[p.name] = p.shape
        if found := _BLOCK.match(p.name):
            blocks.setdefault((found[1], int(found[2])), set()).add(found[3])
    if "token_embd.weight" not in shapes:
        raise GGUFError(f"{config.source}: the checkpoint has no token embeddings")
    if row.usual:
        _check_shapes(planned, config)
    numbers = {number for _, number in blocks}
    if missing := sorted(set(range(config.blocks)) - numbers):
        raise GGUFError(f"{config.source}: {config.blocks} blocks, but block {missing[0]} has no tensor")
    for pattern in _TOGETHER:
        for part in {part for part, _ in blocks}:
            having = {key: {n for n in names if re.fullmatch(pattern, n)} for key, names in blocks.items()}
            having = {key: names for key, names in having.items() if key[0] == part and names}
            whole = set().union(*having.values())
            for (_, number), names in sorted(having.items()):
                if lacking := sorted(whole - names):
                    raise GGUFError(
                        f"{config.source}: {part}.{number} has no {lacking[0]}; the checkpoint isn't complete"
                    )


def _check_shapes(planned: list[Planned], config: Config) -> None:
    hidden, heads, size = config.first("hidden_size", "n_embd"), config.heads, config.head_dim
    wanted: dict[str, Shape] = {
        "attn_q.weight": (heads * size, hidden),
        "attn_k.weight": (config.kv_heads * size, hidden),
        "attn_v.weight": (config.kv_heads * size, hidden),
        "attn_output.weight": (hidden, heads * size),
        "attn_norm.weight": (hidden,),
        "ffn_norm.weight": (hidden,),
    }
    for p in planned:
        kind = re.sub(r"^blk\.\d+\.", "", p.name)
        if p.shape != wanted.get(kind, p.shape):
            raise GGUFError(
                f"tensor {p.source!r} has shape {p.shape} where {config.source} (hidden_size {hidden}, {heads} heads "
                f"and {config.kv_heads} of keys, of {size}) expects {wanted[kind]}"
            )
        if p.name in ("token_embd.weight", "output.weight") and p.shape[1] != hidden:
            raise GGUFError(f"tensor {p.source!r} has rows of {p.shape[1]}, hidden_size is {hidden}")
