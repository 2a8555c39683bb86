"""Patching one copy of the `gguf` package: its reader, its quantization classes, its tensor names."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import CodeType, ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from ..codec import decode, encode
from ..errors import GGUFError
from ..formats.tensor_types import QType
from ..gguf_names import headers
from .patching import Patches, Steps, are_as_they_were, is_known, is_original, say_once, source_block

__all__ = ["parts"]

READER_METHODS = ("_build_fields", "_build_tensor_info", "_build_tensors")
# What the replaced methods call, or do themselves: a subclass that overrides one of them gets gguf's own loops.
READER_HELPERS = ("_get", "_get_str", "_get_field_parts", "_get_tensor_info_field")
# Class variables of the name map that its constructor reads.
NAME_TABLES = ("mappings_cfg", "block_mappings_cfg")
# What the arrays' methods of the quantization classes call, beside what each class defines.
STEPS = (
    "init_grid", "quantize_blocks", "dequantize_blocks", "quantize_rows", "dequantize_rows", "_Quant__shape_to_bytes",
    "_Quant__shape_from_bytes",
)  # fmt: skip
# Of what a class defines, what gguf itself changes, or we do.
UNSTEADY = frozenset({"grid", "_abc_impl", "_Quant__dequantize_lazy", "_Quant__quantize_lazy"})
# Types in which the sign of a zero scale or minimum depends on which zero is looked at: bytes of those halves.
MINDS_ZEROS = {QType.Q4_0: 2, QType.Q4_1: 4, QType.Q5_0: 2, QType.Q5_1: 4}
# Types whose blocks of values too small for the scale make numpy warn in gguf: where that half lies.
WARNS_OF_ZEROS = {QType.Q8_0: 0, QType.TQ1_0: 52, QType.TQ2_0: 64}
# Maps of this many models are kept; each takes about a megabyte.
KEPT_NAME_MAPS = 8


def _submodule(package: ModuleType, name: str) -> ModuleType | None:
    module = sys.modules.get(f"{package.__name__}.{name}") or getattr(package, name, None)
    return module if isinstance(module, ModuleType) else None


def parts(package: ModuleType) -> dict[str, Callable[[Patches], str]]:
    """Return the parts of a copy of the package, each with the function that patches it in place.

    Parameters
    ----------
    package : module
        ``gguf`` or another copy of it.

    Returns
    -------
    dict
        Part -> function, which returns ``"patched"`` or why the part was left alone.
    """

    def patch_with(patch: Callable[[ModuleType, Patches], str], name: str, patches: Patches) -> str:
        module = patches.rely_on(lambda: _submodule(package, name))
        if module is None:
            return f"left alone: {package.__name__} has no module {name}"
        return patch(module, patches)

    return {
        "reader": partial(patch_with, _patch_reader, "gguf_reader"),
        "quants": partial(patch_with, _patch_quants, "quants"),
        "tensor names": partial(patch_with, _patch_names, "tensor_mapping"),
    }


def _patch_reader(module: ModuleType, patches: Patches) -> str:
    reader = patches.rely_on(lambda: module.GGUFReader)
    patches.rely_on(lambda: module.ReaderField)
    if not is_known(module, "class GGUFReader", "class ReaderTensor"):
        return "left alone: this version's GGUFReader isn't known"
    if not is_original(module, reader, *READER_METHODS, *READER_HELPERS):
        return "left alone: somebody else has replaced methods of GGUFReader"
    originals = {name: vars(reader)[name] for name in (*READER_METHODS, *READER_HELPERS)}
    patches.steps(reader, READER_HELPERS)

    def names() -> headers.Names:
        # Looked up each time: programs add types to the tables, and replace the enums, at run time.
        return headers.Names(
            module.ReaderField,
            module.ReaderTensor,
            module.GGUFValueType,
            module.GGMLQuantizationType,
            module.GGML_QUANT_SIZES,
            module.quant_shape_to_byte_shape,
        )

    names()  # raises if one is missing

    def takes(self: Any) -> bool:
        """Whether this reader is as gguf made it; otherwise gguf's own loops run, which call what was overridden."""
        cls = type(self)
        own = vars(self).keys() & originals
        # Another thread may be putting gguf's methods back.
        theirs = {n for n, gguf_s in originals.items() if getattr(cls, n, None) not in (replaced.get(n), gguf_s)}
        if own or theirs:
            who = "a reader" if own else "somebody else" if cls is reader else cls.__qualname__
            say_once(f"{who} overrides methods of {module.__name__}.GGUFReader, which read its headers")
            return False
        data = self.data
        return isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.ndim == 1 and data.flags.c_contiguous

    def _build_fields(self: Any, offs: int, count: int) -> int:
        if not takes(self):
            return originals["_build_fields"](self, offs, count)  # type: ignore[no-any-return]
        return headers.build_fields(self, offs, count, names())

    def _build_tensor_info(self: Any, offs: int, count: int) -> tuple[int, list[Any]]:
        if not takes(self):
            return originals["_build_tensor_info"](self, offs, count)  # type: ignore[no-any-return]
        return headers.build_tensor_info(self, offs, count, names())

    def _build_tensors(self: Any, start_offs: int, fields: list[Any]) -> None:
        if not takes(self) or not headers.are_ours(fields):
            originals["_build_tensors"](self, start_offs, fields)
        else:
            headers.build_tensors(self, start_offs, fields, names())

    replaced: dict[str, Any] = {}
    for method in (_build_fields, _build_tensor_info, _build_tensors):
        _disguise(method, originals[method.__name__])
        replaced[method.__name__] = method
        patches.set(reader, method.__name__, method)

    if "contents" in vars(module.ReaderField) and is_known(module, "class ReaderField"):
        contents_of_gguf = module.ReaderField.contents

        def contents(self: Any, index_or_slice: Any = slice(None)) -> Any:
            values = headers.contents(self, index_or_slice)
            return contents_of_gguf(self, index_or_slice) if values is NotImplemented else values

        _disguise(contents, contents_of_gguf)
        patches.set(module.ReaderField, "contents", contents)
    return "patched"


def _disguise(function: Any, original: Any) -> None:
    """Give a replacement the name, documentation and signature of what it replaces."""
    for name in ("__module__", "__name__", "__qualname__", "__doc__", "__annotations__"):
        setattr(function, name, getattr(original, name))
    function.__wrapped__ = original


def _base_of(module: ModuleType) -> type:
    """The base of all quantization classes; its own name, `__Quant`, can't be written inside a class."""
    return vars(module)["__Quant"]  # type: ignore[no-any-return]


def _patch_quants(module: ModuleType, patches: Patches) -> str:
    base = patches.rely_on(lambda: _base_of(module))
    array_methods = ("_Quant__dequantize_array", "_Quant__quantize_array")
    if not is_known(module, "class __Quant", "def _apply_over_grouped_rows", "def quant_shape_from_byte_shape"):
        return "left alone: this version's quantization classes aren't known"
    if not is_original(module, base, *array_methods, "dequantize_rows", "quantize_rows"):
        return "left alone: somebody else has replaced methods of its classes"
    dequantize_of_gguf, quantize_of_gguf = (vars(base)[name].__func__ for name in array_methods)
    decoded, encoded, foreign = _known_classes(module, base)
    steps = {cls: _steps_of(module, base, cls, patches) for cls in decoded}

    def dequantize_array(cls: Any, array: Any) -> npt.NDArray[Any]:
        qtype = decoded.get(cls)
        # Anything but bytes, and arrays without elements, have meanings of their own in gguf.
        if (
            qtype is None
            or type(array) not in (np.ndarray, np.memmap)
            or array.dtype.itemsize != 1
            or not array.size
            or not array.ndim
            or not are_as_they_were(steps[cls])
            or array.shape[-1] % qtype.block_bytes
        ):
            return dequantize_of_gguf(cls, array)  # type: ignore[no-any-return]
        cls.init_grid()  # programs then call the class's dequantize_blocks, which needs it
        raw = np.ascontiguousarray(array).view(np.ndarray).view(np.uint8)
        values = decode.dequantize(raw, qtype)
        if not _warns_at_most() and not np.isfinite(values).all():
            return dequantize_of_gguf(cls, raw)  # type: ignore[no-any-return]
        return values

    def quantize_array(cls: Any, array: Any) -> npt.NDArray[Any]:
        qtype = encoded.get(cls)
        if qtype is not None and "quantize_blocks" not in vars(cls) and are_as_they_were(steps[cls]):
            return _quantize_anew(array, qtype)
        if (
            qtype is None
            or type(array) not in (np.ndarray, np.memmap)
            or not array.size
            or not array.ndim
            or array.dtype.kind != "f"
            or not are_as_they_were(steps[cls])
            or array.shape[-1] % qtype.block_size
            or not _warns_at_most()
        ):
            return quantize_of_gguf(cls, array)  # type: ignore[no-any-return]
        with np.errstate(all="ignore"):
            values = np.ascontiguousarray(array, np.float32).view(np.ndarray)
        try:
            packed, overflow = encode.quantize_quietly(values, qtype)
        except GGUFError:  # NaN and infinities
            overflow = "gguf has its own answer"
        if overflow:  # and numpy's own warning
            return quantize_of_gguf(cls, array)  # type: ignore[no-any-return]
        blocks, rows = packed.reshape(-1, qtype.block_bytes), values.reshape(-1, qtype.block_size)
        if qtype in MINDS_ZEROS:
            # Of zeros of both signs ggml takes another one for the scale or minimum than gguf does.
            halves = np.ascontiguousarray(blocks[:, : MINDS_ZEROS[qtype]]).view(np.uint16)
            again = np.flatnonzero((halves & 0x7FFF == 0).any(1))
        elif qtype in WARNS_OF_ZEROS:
            at = WARNS_OF_ZEROS[qtype]
            again = np.flatnonzero((blocks[:, at] == 0) & (blocks[:, at + 1] & 0x7F == 0))
            again = again[(rows[again] != 0).any(1)]
        else:
            return packed
        if len(again):
            blocks[again] = cls.quantize_blocks(rows[again])
        return packed

    _disguise(dequantize_array, dequantize_of_gguf)
    _disguise(quantize_array, quantize_of_gguf)
    patches.set(base, array_methods[0], classmethod(dequantize_array))
    patches.set(base, array_methods[1], classmethod(quantize_array))
    # The lazy forms hold what the arrays' methods were when the class was made.
    wrap = module.LazyNumpyTensor._wrap_fn
    for cls in decoded:
        to_bytes, from_bytes = cls._Quant__shape_to_bytes, cls._Quant__shape_from_bytes  # type: ignore[attr-defined]
        patches.set(
            cls, "_Quant__dequantize_lazy", wrap(getattr(cls, array_methods[0]), meta_noop=(np.float32, from_bytes))
        )
        patches.set(cls, "_Quant__quantize_lazy", wrap(getattr(cls, array_methods[1]), meta_noop=(np.uint8, to_bytes)))
    return "patched" + (f", except the unknown {', '.join(sorted(foreign))}" if foreign else "")


def _warns_at_most() -> bool:
    """Whether numpy is to do no more than warn of overflows, divisions and invalid values, and not of underflows."""
    modes = np.geterr()
    return modes["under"] == "ignore" and {modes["divide"], modes["invalid"], modes["over"]} <= {"ignore", "warn"}


def _quantize_anew(array: Any, qtype: QType) -> npt.NDArray[np.uint8]:
    """Encode to a type that gguf can't encode."""
    values = np.asarray(array)
    if values.dtype.kind not in "fiub" and values.dtype.name != "bfloat16":
        raise NotImplementedError(f"Quantization of {values.dtype} to {qtype.name} is not implemented")
    with np.errstate(all="ignore"):
        return encode.quantize(np.ascontiguousarray(values, np.float32), qtype)


def _steps_of(module: ModuleType, base: type, cls: type, patches: Patches) -> Steps:
    """What the methods of a quantization class use to quantize and dequantize: methods, tables, functions."""

    def own(cls: type) -> list[str]:
        return [name for name in vars(cls) if not name.startswith("__") and name not in UNSTEADY]

    def names_in(code: CodeType) -> Iterator[str]:
        yield from code.co_names
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from names_in(constant)

    methods = [vars(cls)[name] for name in own(cls)]
    methods += [vars(base)[name] for name in (*STEPS, "_Quant__dequantize_array", "_Quant__quantize_array")]
    functions = [getattr(method, "__func__", method) for method in methods]
    names = {name for function in functions if hasattr(function, "__code__") for name in names_in(function.__code__)}
    names &= vars(module).keys()
    known = set(module._type_traits.values())
    others = (vars(module)[name] for name in names if isinstance(vars(module)[name], type))
    return (
        *patches.steps(cls, dict.fromkeys([*own(cls), *STEPS])),
        *patches.steps(base, STEPS),
        *patches.steps(module, sorted(names)),
        *(step for other in others if other in known - {cls} for step in patches.steps(other, own(other))),
    )


def _rounds_in_double(module: ModuleType, cls: type) -> bool:
    return "np.float64(blocks)" in (source_block(module, f"class {cls.__name__}") or "")


def _known_classes(module: ModuleType, base: type) -> tuple[dict[type, QType], dict[type, QType], list[str]]:
    """Classes whose decoding and whose encoding are known, with their types, and the names of the others."""
    decoded: dict[type, QType] = {}
    encoded: dict[type, QType] = {}
    foreign: list[str] = []
    for kind, cls in module._type_traits.items():
        qtype = next((t for t in QType if t == int(kind)), None)
        known = is_known(module, f"class {cls.__name__}") and is_original(module, cls, "dequantize_blocks")
        if qtype is None or not known or (cls.block_size, cls.type_size) != (qtype.block_size, qtype.block_bytes):
            foreign.append(cls.__name__)
        else:
            decoded[cls] = qtype
            # Older versions round in double precision, which isn't ggml's result. Types that need an importance matrix
            # stay as impossible as they are in gguf.
            if "quantize_blocks" in vars(cls):
                is_ours = is_original(module, cls, "quantize_blocks") and not _rounds_in_double(module, cls)
            else:
                is_ours = qtype in encode.QUANTIZABLE - encode.NEEDS_IMATRIX
            if is_ours:
                encoded[cls] = qtype
    return decoded, encoded, foreign


def _patch_names(module: ModuleType, patches: Patches) -> str:
    cls = patches.rely_on(lambda: module.TensorNameMap)
    if not is_known(module, "    def __init__(self, arch: MODEL_ARCH, n_blocks: int)"):
        return "left alone: this version's TensorNameMap isn't known"
    if not is_original(module, cls, "__init__"):
        return "left alone: somebody else has replaced TensorNameMap's constructor"
    init_of_gguf = cls.__init__
    kept: dict[Any, tuple[Any, dict[str, Any]]] = {}

    def __init__(self: Any, arch: Any, n_blocks: int) -> None:
        kind = type(self)
        try:
            # The tables are open to change: compare them, don't trust.
            tables = [dict(getattr(kind, name)) for name in NAME_TABLES] + [
                list(module.MODEL_TENSORS[arch]),
                dict(module.TENSOR_NAMES),
            ]
            key = (kind, arch, int(n_blocks))
            found = kept.get(key)
            plain = arch not in kind.arch_block_mappings_cfg  # for these, gguf changes its own table as it builds
        except (TypeError, KeyError, AttributeError):
            plain = False
        if not plain:
            return init_of_gguf(self, arch, n_blocks)  # type: ignore[no-any-return]
        if found is not None and found[0] == tables:
            self.mapping = dict(found[1])
            return None
        init_of_gguf(self, arch, n_blocks)
        if len(kept) >= KEPT_NAME_MAPS:
            kept.pop(next(iter(kept)), None)
        kept[key] = (tables, dict(self.mapping))
        return None

    _disguise(__init__, init_of_gguf)
    patches.set(cls, "__init__", __init__)
    return "patched"
