"""Patching transformers' use of GGUF: reading metadata values in bulk, and one copy less per tensor.

The legacy loader asks for each element of a vocabulary on its own. Its functions keep everything but two expressions,
which are replaced in their syntax trees; where an expression isn't found exactly as expected, or what it calls isn't
known, the function stays as it was.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from struct import Struct
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import walk
from ..formats import QType
from . import headers
from .lazylists import StringItems, as_buffer
from .patching import Patches, is_known, say_once

__all__ = ["patch_decoders", "patch_legacy_loader", "patch_reader"]

VALUES, OWN = "_ggufx_values", "_ggufx_own"
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


class _Rewriter(ast.NodeTransformer):
    """Replaces the list of parsed values, and the copy of a decoded tensor."""

    def __init__(self) -> None:
        self.lists = 0
        self.copies = 0

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
        return self.generic_visit(node)


def _rewritten(module: ModuleType, name: str, copies: int) -> CodeType | None:
    """Code of function `name` with its expressions replaced, or None where they aren't as expected."""
    try:
        tree = ast.parse(inspect.getsource(module))
    except (OSError, TypeError, SyntaxError):
        return None
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == name and not node.decorator_list:
            rewriter = _Rewriter()
            rewriter.visit(node)
            if (rewriter.lists, rewriter.copies) != (1, copies):
                return None
            tree.body = [node]
            code = compile(tree, str(module.__file__), "exec", dont_inherit=True)
            return next((c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == name), None)
    return None


def patch_legacy_loader(module: ModuleType, patches: Patches) -> dict[str, str]:
    """Patch ``transformers.modeling_gguf_pytorch_utils``."""
    done = {}
    parse = getattr(module, "_gguf_parse_value", None)
    parser = inspect.getmodule(parse)
    known = isinstance(parse, FunctionType) and parser is not None and is_known(parser, "def _gguf_parse_value")
    for name, copies in (("load_gguf_checkpoint", 1), ("read_field", 0)):
        function = getattr(module, name, None)
        code = _rewritten(module, name, copies) if known else None
        if code is None or not isinstance(function, FunctionType) or function.__code__.co_freevars != code.co_freevars:
            done[name] = "left alone: this version isn't known"
            say_once(f"{module.__name__}.{name} {done[name]}")
            continue
        patches.set_item(function.__globals__, VALUES, _values_of(module))
        patches.set_item(function.__globals__, OWN, own)
        patches.set_code(function, code)
        done[name] = "patched"
    return done


def patch_reader(module: ModuleType, patches: Patches) -> dict[str, str]:
    """Patch ``transformers.integrations.gguf.reader``, which walks string arrays in Python."""
    if not is_known(module, "def _read_value", "def _read_string"):
        say_once(f"{module.__name__} left alone: this version isn't known")
        return {"string arrays": "left alone: this version isn't known"}
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
    return {"string arrays": "patched"}


def patch_decoders(module: ModuleType, patches: Patches) -> dict[str, str]:
    """Patch ``transformers.integrations.gguf.dequant``: float32 on the CPU, which has the same bits."""
    import torch

    from .torch_blocks import decoder

    foreign = []
    for number, original in list(module._DEQUANT.items()):
        qtype = next((t for t in QType if t == number), None)
        known = isinstance(original, FunctionType) and is_known(module, f"def {original.__name__}", "def dequantize")
        if qtype is None or not known or module.GGML_BLOCK[number] != (qtype.block_size, qtype.block_bytes):
            foreign.append(str(number))
            continue
        patches.set_item(module._DEQUANT, number, decoder(qtype, original, frozenset({torch.float32})))
    if foreign:
        say_once(f"{module.__name__}: left alone the unknown decoders of types {', '.join(foreign)}")
        return {"float32 decoders": f"patched, except the unknown types {', '.join(foreign)}"}
    return {"float32 decoders": "patched"}
