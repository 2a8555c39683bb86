"""Patching transformers' use of GGUF: metadata values in bulk, one copy less per tensor, split files as one.

The older loader asks for each element of a vocabulary on its own: while it runs, the reader it opens hands it arrays as
lists of values. Neither loader knows split files: of a first shard they make a model whose other parameters are random.
Only they are told of the other shards; for everybody else a reader shows the one file it was asked for.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial, wraps
from struct import Struct
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from ..codec import decode
from ..errors import GGUFError
from ..formats.tensor_types import QType
from ..gguf_names import headers
from ..gguf_names.lazylists import StringItems, as_buffer
from ..read import walk
from ..read.reader import open as open_gguf
from ..read.shards import SHARD, SplitFile
from ..read.tensor import Tensor
from . import comparing
from .gguf_package import opening
from .patching import DIFFERS, Patches, State
from .transformers_loads import patch_making

__all__ = ["parts"]

# Names that the replaced functions' bodies find in their module.
STATE, METADATA = "_ggufx_state", "_ggufx_metadata"
_STRING, _ARRAY = 8, 9


def parts(name: str, module: ModuleType) -> dict[str, Callable[[Patches], State]]:
    """Return the parts of one of transformers' modules, as `gguf_package.parts` does."""
    every: dict[str, dict[str, Callable[[ModuleType, Patches], State]]] = {
        "transformers.modeling_gguf_pytorch_utils": {"load_gguf_checkpoint": _patch_loader},
        "transformers.integrations.gguf.reader": {
            "string arrays": _patch_string_arrays,
            "split files": _patch_split_files,
        },
        "transformers.integrations.gguf.dequant": {"float32 decoders": _patch_decoders},
        "transformers.modeling_utils": {"loading in threads": patch_making},
    }
    return {part: partial(patch, module) for part, patch in every[name].items()}


def own(weights: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """`weights` itself where it is plain memory nobody else writes to, else a copy."""
    root = weights
    while type(root) is np.ndarray and root.base is not None:
        root = root.base
    if type(root) is np.ndarray and weights.flags.writeable and weights.flags.c_contiguous:
        return weights
    return np.copy(weights)


def other_shards(path: Any, needed: bool) -> dict[str, list[Tensor]]:
    """Paths of the other shards of the set that `path` is the first of, and their tensors; none where it isn't one.

    Raises
    ------
    GGUFError
        If a shard is missing or doesn't fit, and they are `needed`.
    """
    match = SHARD.fullmatch(path) if isinstance(path := os.fspath(path), str) else None
    if match is None or int(match[2]) != 1 or int(match[3]) < 2:
        return {}
    try:
        with open_gguf(path) as f:
            shards = f.shards[1:] if isinstance(f, SplitFile) else ()
            return {shard.path: list(shard.tensors.values()) for shard in shards}
    except GGUFError:
        if needed:
            raise
        return {}  # a tokenizer's download, say: its first shard is enough


def _finish(path: Any, needed: bool, reader: Any) -> None:
    """Show the loader the tensors of the other shards too, and long arrays as lists of values in place of one part."""
    for shard in other_shards(path, needed):
        reader.tensors.extend(type(reader)(shard).tensors)
    for key, field in reader.fields.items():
        values = headers.contents(field, slice(None))
        if values is not NotImplemented:
            reader.fields[key] = field._replace(parts=[field.parts[0], values], data=[1])


def _patch_loader(module: ModuleType, patches: Patches) -> State:
    original, parse_of_theirs = module.load_gguf_checkpoint, module._gguf_parse_value

    def compare() -> bool:
        with comparing.as_path(comparing.model_file()) as path:
            found = original(path)
            return found == ours(path) and bool(found["tokenizer"])

    def ours(path: Any, return_tensors: bool = False, *arguments: Any, **options: Any) -> Any:
        opening.finish = partial(_finish, path, return_tensors)
        try:
            return original(path, return_tensors, *arguments, **options)
        finally:
            opening.finish = None

    agrees = comparing.verdict(f"{module.__name__}, load_gguf_checkpoint", compare)

    @wraps(original)
    def load_gguf_checkpoint(gguf_checkpoint_path: Any, *arguments: Any, **options: Any) -> Any:
        return (ours if agrees() else original)(gguf_checkpoint_path, *arguments, **options)

    def parse(value: Any, data_type: Any) -> Any:
        return value if type(value) is list else parse_of_theirs(value, data_type)

    numpy = ModuleType("numpy")
    vars(numpy).update(vars(np))
    vars(numpy)["copy"] = own
    patches.set(module, "load_gguf_checkpoint", load_gguf_checkpoint)
    patches.set(module, "_gguf_parse_value", parse)
    patches.set(module, "np", numpy)
    return lambda: "patched" if agrees() else DIFFERS


def _patch_string_arrays(module: ModuleType, patches: Patches) -> State:
    """Its own walk over string arrays is a loop in Python."""
    original = module._read_value
    head = Struct("<IQ")

    def strings(blob: Any, pos: int, keep_strings: bool) -> tuple[Any, int] | None:
        kind, count = head.unpack_from(as_buffer(blob), pos)
        start = pos + head.size
        if kind == _STRING and 8 * count <= len(blob) - start:
            stop, whole = walk.walk_strings(as_buffer(blob), start, len(blob), count, 8, False)
            if whole == count:
                if not keep_strings:
                    return count, stop
                return StringItems(np.asarray(blob), start, stop, count, False).values(), stop
        return None

    def compare() -> bool:
        words = [b"", b"word", "\N{SNOWMAN}".encode(), b"x" * 300] * 5
        raw = head.pack(_STRING, len(words)) + b"".join(len(w).to_bytes(8, "little") + w for w in words)
        blob = np.frombuffer(b"abc" + raw + b"abc", np.uint8)
        return all(original(blob, 3, _ARRAY, keep) == strings(blob, 3, keep) for keep in (False, True))

    agrees = comparing.verdict(f"{module.__name__}, string arrays", compare)

    def _read_value(blob: Any, pos: int, value_type: int, keep_strings: bool = False) -> tuple[Any, int]:
        if value_type == _ARRAY and isinstance(blob, np.ndarray) and pos + head.size <= len(blob) and agrees():
            found = strings(blob, pos, keep_strings)
            if found is not None:
                return found
        return original(blob, pos, value_type, keep_strings)  # type: ignore[no-any-return]

    patches.set(module, "_read_value", _read_value)
    return lambda: "patched" if agrees() else DIFFERS


def _patch_split_files(module: ModuleType, patches: Patches) -> str:
    """Headers and tensors of all shards, from those of each."""
    header_class, read_metadata = module.GgufHeader, module.read_gguf_metadata
    shapes = [
        header_class._fields,
        module.TensorInfo._fields,
        *(f.__code__.co_varnames[: f.__code__.co_argcount] for f in (module.load_gguf_state_dict, read_metadata)),
    ]
    if shapes != [
        ("path", "architecture", "tensors", "data_start"),
        ("name", "shape", "ggml_type", "offset", "nbytes"),
        ("header",),
        ("gguf_path", "string_arrays"),
    ]:
        return "left alone: this version isn't known"
    header_of_one = vars(header_class)["from_file"].__func__
    state_of_one, metadata_of_one = map(_copy, (module.load_gguf_state_dict, read_metadata))

    def headers_of_others(header: Any) -> list[Any]:
        # Their own metadata lacks the architecture, without which transformers reads no header.
        return [
            header._replace(path=path, tensors=tuple(map(info_of, tensors)), data_start=0)
            for path, tensors in other_shards(header.path, True).items()
        ]

    def info_of(tensor: Tensor) -> Any:
        size = module._byte_count(int(tensor.qtype), tensor.size, tensor.path)  # raises where transformers lacks a type
        return module.TensorInfo(tensor.name, tensor.shape, int(tensor.qtype), tensor.offset, size)

    def from_file(cls: Any, gguf_path: str) -> Any:
        header = header_of_one(cls, gguf_path)
        return header._replace(tensors=sum((other.tensors for other in headers_of_others(header)), header.tensors))

    def state(header: Any) -> Any:
        others = headers_of_others(header)
        if not others:
            return state_of_one(header)
        # In the joined header, an offset counts from the beginning of another file.
        found = state_of_one(header_of_one(header_class, header.path))
        for other in others:
            found |= state_of_one(other)
        return found

    def metadata(gguf_path: str, string_arrays: Any) -> Any:
        values, names = metadata_of_one(gguf_path, string_arrays)
        return values, names + tuple(t.name for s in other_shards(gguf_path, False).values() for t in s)

    patches.set(header_class, "from_file", classmethod(from_file))
    patches.set_item(vars(module), STATE, state)
    patches.set_item(vars(module), METADATA, metadata)
    patches.set_code(module.load_gguf_state_dict, _calling(module.load_gguf_state_dict, STATE))
    patches.set_code(read_metadata, _calling(read_metadata, METADATA))
    return "patched"


def _copy(function: FunctionType) -> FunctionType:
    same = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__)
    same.__kwdefaults__ = function.__kwdefaults__
    return same


def _calling(function: FunctionType, name: str) -> CodeType:
    """Code that hands the arguments of `function`, all of them positional, on to the global `name`."""
    old = function.__code__
    arguments = ", ".join(old.co_varnames[: old.co_argcount])
    made = compile(f"def {old.co_name}({arguments}): return {name}({arguments})", old.co_filename, "exec")
    code = next(c for c in made.co_consts if isinstance(c, CodeType))
    return code.replace(co_firstlineno=old.co_firstlineno)


def _patch_decoders(module: ModuleType, patches: Patches) -> State:
    """float32 on the CPU has the same bits."""
    import torch

    from .torch_blocks import decoder, decodes_here

    agree: dict[str, Callable[[], bool]] = {}

    def either(qtype: QType, original: Any) -> Any:
        ours = decoder(qtype, original, frozenset({torch.float32}))

        def theirs(raw: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
            values = original(torch.from_numpy(raw.reshape(-1, qtype.block_bytes)), torch.float32)
            return values.numpy().reshape(len(raw), -1)  # type: ignore[no-any-return]

        agrees = comparing.verdict(
            f"{module.__name__}, {qtype.name}",
            lambda: comparing.decodes_alike(qtype, theirs, lambda raw: decode.dequantize(raw, qtype)),
        )

        def decode_either(blocks: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
            here = dtype is torch.float32 and decodes_here(blocks, dtype) and agrees()
            return (ours if here else original)(blocks, dtype)

        agree[qtype.name] = agrees
        return decode_either

    for number, original in list(module._DEQUANT.items()):
        qtype = next((t for t in QType if t == number), None)
        if qtype is not None and module.GGML_BLOCK[number] == (qtype.block_size, qtype.block_bytes):
            patches.set_item(module._DEQUANT, number, either(qtype, original))

    def state() -> str:
        foreign = [name for name, agrees in agree.items() if not agrees()]
        return f"patched, except {', '.join(foreign)}: {DIFFERS}" if foreign else "patched"

    return state
