"""Which tensors a conversion writes, in the reference's order: names, shapes, and how each is made when its turn comes.

Nothing is read here but headers, so everything that can be refused is refused before a byte is written.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import GGUFError
from ..formats.tensor_types import QType
from .architectures import T5_EMBEDDINGS, Architecture, Match
from .checkpoint import Checkpoint, StoredTensor
from .hparams import Config
from .transforms import STACK

__all__ = ["Planned", "guessed_type", "plan_tensors"]

Array = npt.NDArray[Any]
Shape = tuple[int, ...]

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
_BLOCKS = (".mlp.experts.down_proj_blocks", ".mlp.experts.gate_up_proj_blocks")


class Planned(NamedTuple):
    """A tensor of the file to be.

    Attributes
    ----------
    name : str
    shape : tuple of int
        Logical, in numpy's order.
    make : callable
        Gives its values as float32 or float16, or its packed bytes where `packed` says so.
    packed : QType or None
        The type in which it already lies in the checkpoint, kept whatever is asked for.
    source : str
        The checkpoint's name for it, for messages.
    """

    name: str
    shape: Shape
    make: Callable[[], Array]
    packed: QType | None
    source: str


def _kept(checkpoint: Checkpoint, row: Architecture, config: Config) -> Iterator[tuple[str, StoredTensor]]:
    """The tensors of the text model under the names that the table knows."""
    bare = config.class_name in row.bare
    for name, tensor in checkpoint.items():
        if name.startswith(("mlp", *_OTHER_STARTS)) or _OTHER_PARTS.search(name):
            continue
        if name.endswith("e_score_correction_bias"):
            name = name.removesuffix("_bias") + ".bias"
        name = name.replace("language_model.", "")
        if row.name == "bert":
            name = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name.removeprefix("bert.")))
        if bare:
            name = "model." + name
        if not name.endswith(_NOT_NEEDED):
            yield name, tensor


def guessed_type(checkpoint: Checkpoint, row: Architecture, config: Config) -> QType:
    """The type that ``auto`` stands for: that of the first matrix in half precision, else F16."""
    kinds = {"BF16": QType.BF16, "F16": QType.F16}
    for _, tensor in _kept(checkpoint, row, config):
        if len(tensor.shape) >= 2 and tensor.dtype in kinds:
            return kinds[tensor.dtype]
    return QType.F16


def plan_tensors(checkpoint: Checkpoint, row: Architecture, config: Config) -> list[Planned]:
    """All tensors of the file to be, in order.

    Raises
    ------
    GGUFError
        If a tensor isn't known, is missing, is there twice, or its shape contradicts the configuration.
    """
    planned = [*_extra(config, row)]
    kept = dict(_kept(checkpoint, row, config))
    planned += _mxfp4(kept, config)
    stacks: dict[int, dict[str, dict[int, StoredTensor]]] = {}
    embeddings = False
    for name, tensor in kept.items():
        where = f"{tensor.path}: tensor {tensor.name!r}"
        if row.name in ("t5", "t5encoder") and name in T5_EMBEDDINGS:
            if embeddings:
                continue
            embeddings = True
        number = re.match(r"model\.layers\.(\d+)\.", name)
        if row.name == "deepseek2":
            if number and int(number[1]) >= config.blocks:
                continue  # layers that predict further tokens
            if name in ("lm_head.weight", "model.lm_head.weight") and config.get("tie_word_embeddings"):
                continue
        try:
            match = row.match(name)
        except KeyError:
            raise GGUFError(f"{where}: models of class {config.class_name} have no such tensor") from None
        if match is None:
            continue
        limit = config.get("num_decoder_layers") or config.blocks if name.startswith("decoder.") else config.blocks
        if match.block is not None and match.block >= limit:
            raise GGUFError(f"{where}: its block is {match.block}, and {config.source} says {limit} blocks")
        if match.transform is STACK:
            planned += _stacked(match, tensor, stacks, row, config)
            continue
        planned += _made(match, tensor, config, row)
    for block, parts in stacks.items():
        count, some = sum(map(len, parts.values())), next(iter(next(iter(parts.values())).values()))
        raise GGUFError(
            f"{checkpoint.folder}: block {block} has {count} tensors of experts such as {some.name!r}, "
            f"{3 * config.experts} were expected"
        )
    _complete(planned, row, config)
    return planned


def _made(match: Match, tensor: StoredTensor, config: Config, row: Architecture) -> Iterator[Planned]:
    """What one tensor becomes."""
    try:
        shapes = match.transform.shapes(tensor.shape, config)
    except ValueError as error:
        raise GGUFError(f"{tensor.path}: tensor {tensor.name!r} has shape {tensor.shape}: {error}") from None
    rows = _known_tokens(config) if row.name == "gemma3" and match.targets == ("token_embd.weight",) else None
    if rows is not None and rows < shapes[0][0]:
        shapes = [(rows, *shapes[0][1:])]

    def maker(index: int) -> Callable[[], Array]:
        def make() -> Array:
            array = match.transform.apply(tensor.values(), config)[index]
            return array if rows is None else array[:rows]

        return make

    for index, (name, shape) in enumerate(zip(match.targets, shapes, strict=True)):
        yield Planned(name, shape, maker(index), None, tensor.name)


def _stacked(
    match: Match,
    tensor: StoredTensor,
    stacks: dict[int, dict[str, dict[int, StoredTensor]]],
    row: Architecture,
    config: Config,
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
    return [_stack(f"blk.{block}.{kind}.weight", parts[f"blk.{block}.{kind}.weight"]) for kind in row.expert_order]


def _stack(name: str, experts: dict[int, StoredTensor]) -> Planned:
    first = experts[0]
    for tensor in experts.values():
        if (tensor.shape, tensor.dtype) != (first.shape, first.dtype):
            raise GGUFError(
                f"{tensor.path}: tensor {tensor.name!r} is {tensor.shape} of {tensor.dtype}, the first expert's is "
                f"{first.shape} of {first.dtype}"
            )

    def make() -> Array:
        values = first.values()
        stacked = np.empty((len(experts), *first.shape), values.dtype)
        for number in range(len(experts)):
            stacked[number] = experts[number].values()
        return stacked

    return Planned(name, (len(experts), *first.shape), make, None, first.name)


def _mxfp4(kept: dict[str, StoredTensor], config: Config) -> Iterator[Planned]:
    """Experts that lie in MXFP4 blocks already; they are taken out of `kept`."""
    for name in [n for n in kept if n.endswith(_BLOCKS)]:
        blocks, scales = kept.pop(name), kept.pop(name.removesuffix("blocks") + "scales", None)
        block = re.match(r"model\.layers\.(\d+)\.", name)
        if scales is None or block is None:
            raise GGUFError(f"{blocks.path}: tensor {blocks.name!r} has no scales beside it")
        if len(blocks.shape) != 4 or blocks.shape[-1] != 16 or scales.shape != blocks.shape[:3]:
            raise GGUFError(
                f"{blocks.path}: tensor {blocks.name!r} is {blocks.shape} with scales of {scales.shape}; "
                "[experts, rows, groups, 16] and [experts, rows, groups] were expected"
            )
        if int(block[1]) >= config.blocks:
            raise GGUFError(f"{blocks.path}: tensor {blocks.name!r}: {config.source} says {config.blocks} blocks")
        experts, rows, groups = scales.shape
        kinds = ("ffn_gate_exps", "ffn_up_exps") if "gate_up" in name else ("ffn_down_exps",)
        for start, kind in enumerate(kinds):
            shape = (experts, rows // len(kinds), groups * 32)
            make = _packer(blocks, scales, start, len(kinds))
            yield Planned(f"blk.{block[1]}.{kind}.weight", shape, make, QType.MXFP4, blocks.name)


def _packer(blocks: StoredTensor, scales: StoredTensor, start: int, step: int) -> Callable[[], Array]:
    def make() -> Array:
        codes = blocks.bits()[:, start::step]
        # A byte holds two neighbours in the checkpoint, and here an element with the one sixteen behind it.
        low, high = codes & 15, codes >> 4
        values = np.stack([low, high], axis=-1).reshape(*codes.shape[:-1], 32)
        packed = values[..., :16] | (values[..., 16:] << 4)
        whole = np.concatenate([scales.bits()[:, start::step, :, None], packed], axis=-1)
        return np.ascontiguousarray(whole.reshape(*whole.shape[:2], -1))

    return make


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


def _extra(config: Config, row: Architecture) -> Iterator[Planned]:
    """Factors of rotations, which no checkpoint holds as tensors."""
    rope = config.full_rope
    if row.name in ("llama", "arcee", "smollm3", "granite", "granitemoe") and rope.get("rope_type") == "llama3":
        factors = _llama3_factors(config)
        yield Planned("rope_freqs.weight", factors.shape, lambda: factors, None, "rope_parameters")
    if row.name == "phi3" and config.rope.get("long_factor"):
        size = int(config.rope.get("partial_rotary_factor", 1.0) * config.need("hidden_size")) // config.heads // 2
        for kind in ("long", "short"):
            given = config.rope.get(f"{kind}_factor")
            if not isinstance(given, list) or len(given) != size:
                raise GGUFError(f"{config.source}: {kind}_factor isn't a list of {size} numbers")
            values = np.array(given, np.float32)
            yield Planned(f"rope_factors_{kind}.weight", values.shape, lambda v=values: v, None, f"{kind}_factor")  # type: ignore[misc]


def _llama3_factors(config: Config) -> npt.NDArray[np.float32]:
    """How much slower each pair turns, as Llama 3 stretches its context; float32 throughout, as the reference."""
    rope, one = config.full_rope, np.float32(1)
    low, high = rope.get("low_freq_factor", 1.0), rope.get("high_freq_factor", 4.0)
    factor, context = rope.get("factor", 8.0), rope.get("original_max_position_embeddings", 8192)
    size = config.head_dim
    turns = np.float64(rope.get("rope_theta", 10000.0)) ** (np.arange(0, size, 2, dtype=np.float64) / size)
    out = []
    for frequency in one / turns.astype(np.float32):
        wave = (one / frequency) * np.float32(2 * math.pi)
        if wave < context / high:
            out.append(one)
        elif wave > context / low:
            out.append(np.float32(factor))
        else:
            smooth = ((one / wave) * np.float32(context) - np.float32(low)) / np.float32(high - low)
            out.append(one / ((one - smooth) / np.float32(factor) + smooth))
    return np.array(out, np.float32)


def _complete(planned: list[Planned], row: Architecture, config: Config) -> None:
    """Refuse what is there twice, what is missing, and shapes that contradict the configuration."""
    shapes: dict[str, Shape] = {}
    for p in planned:
        if p.name in shapes:
            raise GGUFError(f"{config.source}: {p.name} would be written twice, the second time from {p.source!r}")
        shapes[p.name] = p.shape
    if "token_embd.weight" not in shapes:
        raise GGUFError(f"{config.source}: the checkpoint has no token embeddings")
    if not row.usual:
        return
    hidden, heads, size = config.need("hidden_size"), config.heads, config.head_dim
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
    blocks = {int(m[1]) for name in shapes if (m := re.match(r"blk\.(\d+)\.", name))}
    if missing := sorted(set(range(config.blocks)) - blocks):
        raise GGUFError(f"{config.source}: {config.blocks} blocks, but block {missing[0]} has no tensor")
    if row.name in ("lfm2", "olmo2", "bert"):  # blocks without an attention, or without a norm before it
        return
    for block in sorted(blocks):
        for kind in ("attn_output.weight", "attn_norm.weight"):
            if f"blk.{block}.{kind}" not in shapes:
                raise GGUFError(f"{config.source}: block {block} has no {kind}; the checkpoint isn't complete")
