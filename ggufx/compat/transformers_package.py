"""Patching transformers' use of GGUF: metadata values in bulk, one copy less per tensor, split files as one.

The legacy loader asks for each element of a vocabulary on its own. Its functions keep everything but three expressions,
which are replaced in their syntax trees; where an expression isn't found exactly as expected, or what it calls isn't
known, the function stays as it was.

Neither loader knows split files: of a first shard they make a model whose other parameters are random. Only they are
told of the other shards; for everybody else a reader shows the one file it was asked for.
"""

from __future__ import annotations

import ast
import inspect
import os
from collections.abc import Callable
from functools import partial
from struct import Struct
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import GGUFError
from ..formats.tensor_types import QType
from ..gguf_names import headers
from ..gguf_names.lazylists import StringItems, as_buffer
from ..read import walk
from ..read.reader import open as open_gguf
from ..read.shards import SHARD, SplitFile
from ..read.tensor import Tensor
from .patching import Patches, State, is_known

__all__ = ["decoder_parts", "loader_parts", "reader_parts"]

# Names that the replaced expressions find in their module.
VALUES, OWN, READER, STATE, METADATA = (f"_ggufx_{name}" for name in ("values", "own", "reader", "state", "metadata"))
_STRING, _ARRAY = 8, 9


def own(weights: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """`weights` itself where it is plain memory nobody else writes to, else a copy."""
    root = weights
    while type(root) is np.ndarray and root.base is not None:
        root = root.base
    if type(root) is np.ndarray and weights.flags.writeable and weights.flags.c_contiguous:
        return weights
    return np.copy(weights)


def _values_of(module: ModuleType) -> Callable[[Any], list[Any]]:
    def values(field: Any) -> list[Any]:
        """Return what parsing each element of the field gives, in one go where the field is one of ours."""
        found = headers.contents(field, slice(None))
        if found is not NotImplemented:
            return found  # type: ignore[no-any-return]
        parse = module._gguf_parse_value
        return [parse(field.parts[i], field.types) for i in field.data]

    return values


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


def _open_reader(reader_class: Any, path: Any, needed: bool) -> Any:
    """Return a reader of a file that shows the tensors of its other shards too."""
    reader = reader_class(path)
    for shard in other_shards(path, needed):
        reader.tensors.extend(reader_class(shard).tensors)
    return reader


class _Rewriter(ast.NodeTransformer):
    """Replaces the list of parsed values, the copy of a decoded tensor, and the opening of the file."""

    def __init__(self) -> None:
        self.lists = 0
        self.copies = 0
        self.openings = 0

    def visit_ListComp(self, node: ast.ListComp) -> ast.AST:
        loop = node.generators[0]
        field = loop.iter.value if isinstance(loop.iter, ast.Attribute) and loop.iter.attr == "data" else None
        if isinstance(field, ast.Name) and isinstance(loop.target, ast.Name) and len(node.generators) == 1:
            expected = f"[_gguf_parse_value({field.id}.parts[{loop.target.id}], {field.id}.types) "
            if ast.unparse(node) == f"{expected}for {loop.target.id} in {field.id}.data]":
                self.lists += 1
                call = ast.Call(ast.Name(VALUES, ast.Load()), [ast.Name(field.id, ast.Load())], [])
                return ast.fix_missing_locations(ast.copy_location(call, node))
        return self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        if ast.unparse(node) == "tensor = torch.from_numpy(np.copy(weights))":
            self.copies += 1
            node.value.args[0].func = ast.Name(OWN, ast.Load())  # type: ignore[attr-defined]
            return ast.fix_missing_locations(node)
        if ast.unparse(node) == "reader = GGUFReader(gguf_checkpoint_path)":
            self.openings += 1
            new = ast.parse(f"{READER}(GGUFReader, gguf_checkpoint_path, return_tensors)", mode="eval").body
            node.value = ast.copy_location(new, node.value)
            return ast.fix_missing_locations(node)
        return self.generic_visit(node)


def _rewritten(module: ModuleType, name: str, copies: int, openings: int) -> CodeType | None:
    """Code of function `name` with its expressions replaced, or None where they aren't as expected."""
    try:
        tree = ast.parse(inspect.getsource(module))
    except (OSError, TypeError, SyntaxError):
        return None
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == name and not node.decorator_list:
            rewriter = _Rewriter()
            rewriter.visit(node)
            if (rewriter.lists, rewriter.copies, rewriter.openings) != (1, copies, openings):
                return None
            tree.body = [node]
            code = compile(tree, str(module.__file__), "exec", dont_inherit=True)
            return next((c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == name), None)
    return None


def loader_parts(module: ModuleType) -> dict[str, Callable[[Patches], State]]:
    """Return the parts of ``transformers.modeling_gguf_pytorch_utils``, as `gguf_package.parts` does."""
    return {
        "load_gguf_checkpoint": partial(_patch_loader, module, "load_gguf_checkpoint", 1, 1),
        "read_field": partial(_patch_loader, module, "read_field", 0, 0),
    }


def _patch_loader(module: ModuleType, name: str, copies: int, openings: int, patches: Patches) -> str:
    function = patches.rely_on(lambda: getattr(module, name, None))
    parse = getattr(module, "_gguf_parse_value", None)
    parser = inspect.getmodule(parse)
    known = isinstance(parse, FunctionType) and parser is not None and is_known(parser, "def _gguf_parse_value")
    code = _rewritten(module, name, copies, openings) if known else None
    if code is None or not isinstance(function, FunctionType) or function.__code__.co_freevars != code.co_freevars:
        return "left alone: this version isn't known"
    patches.set_item(function.__globals__, VALUES, _values_of(module))
    patches.set_item(function.__globals__, OWN, own)
    patches.set_item(function.__globals__, READER, _open_reader)
    patches.set_code(function, code)
    return "patched"


def reader_parts(module: ModuleType) -> dict[str, Callable[[Patches], State]]:
    """Return the parts of ``transformers.integrations.gguf.reader``, as `gguf_package.parts` does."""
    return {
        "string arrays": partial(_patch_string_arrays, module),
        "split files": partial(_patch_split_files, module),
    }


def _patch_string_arrays(module: ModuleType, patches: Patches) -> str:
    """Its own walk over string arrays is a loop in Python."""
    # Reloading makes every function anew; this one is replaced as an attribute, so another tells.
    patches.rely_on(lambda: module._read_string)
    if not is_known(module, "def _read_value", "def _read_string"):
        return "left alone: this version isn't known"
    original = module._read_value
    head = Struct("<IQ")

    def _read_value(blob: Any, pos: int, value_type: int, keep_strings: bool = False) -> tuple[Any, int]:
        if value_type == _ARRAY and isinstance(blob, np.ndarray) and pos + head.size <= len(blob):
            kind, count = head.unpack_from(as_buffer(blob), pos)
            start = pos + head.size
            if kind == _STRING and 8 * count <= len(blob) - start:
                stop, whole = walk.walk_strings(as_buffer(blob), start, len(blob), count, 8, False)
                if whole == count:
                    if not keep_strings:
                        return count, stop
                    return StringItems(np.asarray(blob), start, stop, count, False).values(), stop
        return original(blob, pos, value_type, keep_strings)  # type: ignore[no-any-return]

    patches.set(module, "_read_value", _read_value)
    return "patched"


def _patch_split_files(module: ModuleType, patches: Patches) -> str:
    """Headers and tensors of all shards, from those of each."""
    header_class = patches.rely_on(lambda: module.GgufHeader)
    read_metadata = patches.rely_on(lambda: module.read_gguf_metadata)
    if not is_known(module, "class GgufHeader", "def load_gguf_state_dict", "def read_gguf_metadata"):
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


def decoder_parts(module: ModuleType) -> dict[str, Callable[[Patches], State]]:
    """Return the parts of ``transformers.integrations.gguf.dequant``, as `gguf_package.parts` does."""
    return {"float32 decoders": partial(_patch_decoders, module)}


def _patch_decoders(module: ModuleType, patches: Patches) -> str:
    """float32 on the CPU has the same bits."""
    import torch

    from .torch_blocks import decoder

    functions = patches.rely_on(lambda: module._DEQUANT)
    foreign = []
    for number, original in list(functions.items()):
        qtype = next((t for t in QType if t == number), None)
        known = isinstance(original, FunctionType) and is_known(module, f"def {original.__name__}", "def dequantize")
        if qtype is None or not known or module.GGML_BLOCK[number] != (qtype.block_size, qtype.block_bytes):
            foreign.append(str(number))
            continue
        patches.set_item(functions, number, decoder(qtype, original, frozenset({torch.float32})))
    return f"patched, except the unknown types {', '.join(foreign)}" if foreign else "patched"
