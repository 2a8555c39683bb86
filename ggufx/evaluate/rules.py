"""What llama.cpp refuses, asserts or misreads when it loads a model, found in metadata and tensor infos alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ..formats.tensor_types import QType
from .findings import ERROR, WARNING, Finding

if TYPE_CHECKING:
    from ..read.reader import GGUFFile

__all__ = ["RULES", "layout_findings"]

# ggml's GGML_MAX_NAME, the closing zero included.
LONGEST_NAME = 64
# Architectures whose loader in llama.cpp (the one with ggml 0.25.3) insists on output.weight; for the others a missing
# one means tied embeddings, or there is no head at all.
UNTIED = frozenset({
    "apertus", "arwkv7", "baichuan", "bailingmoe", "bailingmoe2", "codeshell", "dbrx", "deepseek4", "dots1",
    "exaone-moe", "glm5-next", "gpt-oss", "gptneox", "hy_v4", "internlm2", "jais", "kimi-k3", "kimi-linear",
    "llada-moe", "maple", "mellum", "mimo2", "minimax-m2", "minimax-m3", "muse-glimmer", "nemotron", "olmo2", "olmoe",
    "orion", "phi2", "phimoe", "plamo", "qwen", "qwen2moe", "rwkv6", "rwkv6qwen2", "rwkv7", "stablelm", "talkie",
    "wavtokenizer-dec", "xverse",
})  # fmt: skip
# Architectures in which blocks may hold nothing.
SPARSE = frozenset({"deci"})
# Keys that every language model's loader needs, after the architecture's name.
NEEDED = ("block_count", "context_length", "embedding_length")
BLOCK = re.compile(r"blk\.(\d+)\.")
TOKENS = "tokenizer.ggml.tokens"


def _error(kind: str, name: str, text: str, count: int = 1) -> Finding:
    return Finding(ERROR, kind, name, text, count)


def _integer(value: Any) -> int | None:
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return int(value) if whole else None


def _numbers(value: Any) -> list[int]:
    """An integer, or an array of them, as a list; nothing if it is something else."""
    if (one := _integer(value)) is not None:
        return [one]
    if isinstance(value, np.ndarray) and value.dtype.kind in "iu":
        return [int(v) for v in value.tolist()]
    return []


def _length(value: Any) -> int | None:
    """How many items an array has; None if it is none."""
    return len(value) if hasattr(value, "__len__") else None


def _is_language_model(f: GGUFFile) -> bool:
    return "token_embd.weight" in f.tensors and f.metadata.get("general.type", "model") == "model"


def _keys(f: GGUFFile) -> Iterator[Finding]:
    if "" in f.metadata:
        yield _error("empty key", "", "metadata has a key without a name, which llama.cpp refuses")
    arch = f.metadata.get("general.architecture")
    if not isinstance(arch, str) or not arch:
        yield _error("no architecture", "general.architecture", "metadata has no general.architecture, a name")
    elif _is_language_model(f):
        for key in NEEDED:
            if not _numbers(f.metadata.get(f"{arch}.{key}")):
                yield _error("missing key", f"{arch}.{key}", f"metadata has no {arch}.{key}, which llama.cpp needs")
    if f.version == 1:
        yield _error("version", "", "the file is of GGUF version 1, which llama.cpp no longer reads")


def _vocabulary(f: GGUFFile) -> Iterator[Finding]:
    tokens = f.metadata.get(TOKENS)
    if tokens is None or not hasattr(tokens, "bytes"):
        if tokens is not None:
            yield _error("vocabulary", TOKENS, f"metadata key {TOKENS} is no array of strings")
        return
    count = len(tokens)
    seen: dict[bytes, int] = {}
    repeats = []
    for number, token in enumerate(tokens.bytes):
        first = seen.setdefault(token, number)
        if first != number:
            repeats.append((token, first, number))
    if repeats:
        token, first, number = repeats[0]
        shown = token.decode("utf-8", "backslashreplace")
        more = f"; {len(repeats)} such tokens in all" if len(repeats) > 1 else ""
        text = f"metadata key {TOKENS}: token {shown!r} is there twice, as {first} and as {number}{more}"
        yield _error("duplicate token", TOKENS, text, len(repeats))
    for key in ("scores", "token_type"):
        values = f.metadata.get(f"tokenizer.ggml.{key}")
        found = _length(values)
        if values is not None and found != count:
            text = f"metadata key tokenizer.ggml.{key} has {found} values for {count} tokens"
            yield _error("vocabulary", f"tokenizer.ggml.{key}", text)
    if "token_embd.weight" in f.tensors and f.tensors["token_embd.weight"].ndim == 2:
        rows = f.tensors["token_embd.weight"].shape[0]
        if rows != count:
            text = f"tensor 'token_embd.weight' has {rows} rows for the vocabulary's {count} tokens"
            yield _error("vocabulary", "token_embd.weight", text)


def _special_tokens(f: GGUFFile) -> Iterator[Finding]:
    tokens = f.metadata.get(TOKENS)
    count = _length(tokens)
    for key in f.metadata:
        if not re.fullmatch(r"tokenizer\.ggml\.\w+_token_ids?", key) or count is None:
            continue
        for number in _numbers(f.metadata[key]):
            # -1, also as a u32, is llama.cpp's way to say none.
            if number not in (-1, 0xFFFFFFFF) and not 0 <= number < count:
                text = f"metadata key {key} is {number}, but the vocabulary has {count} tokens"
                yield _error("token id", key, text)
                break
    for what in ("bos", "eos"):
        key = f"tokenizer.ggml.add_{what}_token"
        if f.metadata.get(key) is True and f"tokenizer.ggml.{what}_token_id" not in f.metadata:
            text = f"metadata key {key} is true, but there is no tokenizer.ggml.{what}_token_id: a guess will be added"
            yield _error(f"add_{what} without id", key, text)


def _blocks(f: GGUFFile) -> Iterator[Finding]:
    arch = f.metadata.get("general.architecture")
    key = f"{arch}.block_count"
    count = _integer(f.metadata.get(key))
    if count is None:
        return
    there: dict[int, str] = {}
    for name in f.tensors:
        if match := BLOCK.match(name):
            there.setdefault(int(match[1]), name)
    if not there:
        return
    beyond = sorted(n for n in there if n >= count)
    if beyond:
        text = f"metadata key {key} is {count}, but there is a tensor {there[beyond[0]]!r}"
        yield _error("block count", key, text, len(beyond))
    # Layers that predict further tokens come last; a file may be without them, or hold them alone.
    further = max(_numbers(f.metadata.get(f"{arch}.nextn_predict_layers")), default=0)
    first = count - further if further and 0 not in there else 0
    last = count if first else count - further
    lacking = [n for n in range(max(0, first), min(last, 1 << 16)) if n not in there]
    if lacking and arch not in SPARSE:
        text = f"metadata key {key} is {count}, but no tensor of block {lacking[0]} is there"
        if len(lacking) > 1:
            text += f" ({len(lacking)} blocks have none)"
        yield _error("block count", key, text, len(lacking))


def _experts(f: GGUFFile) -> Iterator[Finding]:
    arch = f.metadata.get("general.architecture")
    total = _integer(f.metadata.get(f"{arch}.expert_count")) or 0
    used = max(_numbers(f.metadata.get(f"{arch}.expert_used_count")), default=0)
    if used > total:
        text = f"metadata key {arch}.expert_used_count is {used}, {arch}.expert_count only {total}"
        yield _error("expert count", f"{arch}.expert_used_count", text)
    elif total and not used:
        text = f"metadata key {arch}.expert_count is {total}, but {arch}.expert_used_count is 0 or missing"
        yield _error("expert count", f"{arch}.expert_used_count", text)
    for name, tensor in f.tensors.items():
        if re.search(r"_exps\.weight$", name) and tensor.ndim == 3 and tensor.shape[0] != total:
            text = f"tensor {name!r} stacks {tensor.shape[0]} experts, metadata key {arch}.expert_count is {total}"
            yield _error("expert count", name, text)
            break


def _head(f: GGUFFile) -> Iterator[Finding]:
    arch = f.metadata.get("general.architecture")
    if _is_language_model(f) and arch in UNTIED and "output.weight" not in f.tensors:
        text = f"tensor 'output.weight' is missing, and llama.cpp doesn't tie the embeddings of architecture {arch!r}"
        yield _error("missing head", "output.weight", text)


def _split(f: GGUFFile) -> Iterator[Finding]:
    """A file that stands alone must not speak of shards; opening a set checks the others' numbers."""
    if hasattr(f, "shards"):
        return
    count = _integer(f.metadata.get("split.count"))
    declared = _integer(f.metadata.get("split.tensors.count"))
    if count is not None and count > 1:
        text = f"metadata key split.count is {count}, but the file stands alone"
        yield _error("split", "split.count", text)
    elif declared is not None and declared != len(f.tensors):
        text = f"metadata key split.tensors.count is {declared}, but the file holds {len(f.tensors)} tensors"
        yield _error("split", "split.tensors.count", text)


def _tensors(f: GGUFFile) -> Iterator[Finding]:
    for name, tensor in f.tensors.items():
        if len(name.encode("utf-8", "surrogateescape")) >= LONGEST_NAME:
            yield _error("long name", name, f"tensor {name!r}: the name is over {LONGEST_NAME - 1} bytes")
        if not isinstance(tensor.qtype, QType):
            yield _error("unknown type", name, f"tensor {name!r} has type {tensor.qtype}, which isn't known")


def layout_findings(f: GGUFFile) -> Iterator[Finding]:
    """Gaps between the tensors of one file, tensors out of order, and bytes that belong to none.

    ggml expects each tensor where the one before it in the index ends, rounded up to the alignment; overlaps and
    tensors outside the file are found on opening.
    """
    expected = f.data_offset
    before = ""
    for name, tensor in f.tensors.items():
        if tensor.problem is not None:
            return
        if tensor.nbytes and tensor.offset != expected:
            after = f"tensor {before!r} and its padding end" if before else "the data section begins"
            text = f"tensor {name!r} begins at byte {tensor.offset}, but {after} at byte {expected}"
            if tensor.offset > expected:
                text += f": a gap of {tensor.offset - expected} bytes"
            yield _error("gap" if tensor.offset > expected else "order", name, text)
        expected = -(-(tensor.offset + tensor.nbytes) // f.alignment) * f.alignment
        before = name
    if f.size > expected and f.tensors:
        text = f"{f.size - expected} bytes follow the last tensor's end at byte {expected}"
        yield Finding(WARNING, "trailing bytes", before, text)


# All rules on a file's metadata and tensor infos, in the order of the report.
RULES: tuple[Callable[[GGUFFile], Iterator[Finding]], ...] = (
    _keys,
    _vocabulary,
    _special_tokens,
    _blocks,
    _experts,
    _head,
    _split,
    _tensors,
)
