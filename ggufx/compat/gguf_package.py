"""Patching modules of the `gguf` package, or a copy of it: its reader, its quantization classes, its tensor names."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..codec import decode, encode
from ..codec.arrays import given_array
from ..errors import GGUFError
from ..formats.tensor_types import QType
from ..gguf_names import headers
from . import comparing
from .patching import DIFFERS, Patches, State, is_own, say_once, static

__all__ = ["modules_of", "opening", "parts"]

# A thread's `finish` is called with the next reader it has opened.
opening = threading.local()

READER_METHODS = ("_build_fields", "_build_tensor_info", "_build_tensors")
# What the replaced methods call, or do themselves: a subclass that overrides one of them gets gguf's own loops.
READER_HELPERS = ("_get", "_get_str", "_get_field_parts", "_get_tensor_info_field")
# ggml's limit, which newer versions hold files to.
MAX_DIMS = 4
# Types in which the sign of a zero scale or minimum depends on which zero is looked at: bytes of those halves.
MINDS_ZEROS = {QType.Q4_0: 2, QType.Q4_1: 4, QType.Q5_0: 2, QType.Q5_1: 4}
# Types whose blocks of values too small for the scale make numpy warn in gguf: where that half lies.
WARNS_OF_ZEROS = {QType.Q8_0: 0, QType.TQ1_0: 52, QType.TQ2_0: 64}
# Maps of this many models are kept; each takes about a megabyte.
KEPT_NAME_MAPS = 8


def parts(module: ModuleType) -> dict[str, Callable[[Patches], State]]:
    """Return the parts of a module of gguf, each with the function that patches it in place.

    Parameters
    ----------
    module : module
        One of ``gguf``'s, or of a copy of it under whatever name; it may have several of its classes.

    Returns
    -------
    dict
        Part -> function, which returns ``"patched"``, why the part was left alone, or a function that finds that out.
    """
    every = {
        "GGUFReader": ("reader", _patch_reader),
        "__Quant": ("quants", _patch_quants),
        "TensorNameMap": ("tensor names", _patch_names),
    }
    found = {part: partial(patch, module) for name, (part, patch) in every.items() if _defines(module, name)}
    return dict(found) or {"classes": lambda _: "left alone: it has none of gguf's classes"}


def _defines(module: ModuleType, name: str) -> bool:
    cls = vars(module).get(name)
    return isinstance(cls, type) and cls.__module__ == vars(module).get("__name__")


def modules_of(package: ModuleType) -> list[ModuleType]:
    """Modules of a package that define classes of gguf's: itself, its attributes, and those below it."""
    below = f"{vars(package).get('__name__', '')}."
    others = [module for name, module in list(sys.modules.items()) if name.startswith(below)]
    found = [m for m in (package, *vars(package).values(), *others) if isinstance(m, ModuleType)]
    return [m for m in dict.fromkeys(found) if any(_defines(m, n) for n in ("GGUFReader", "__Quant", "TensorNameMap"))]


def _patch_reader(module: ModuleType, patches: Patches) -> State:
    reader, field_class = module.GGUFReader, module.ReaderField
    if not all(is_own(reader, name) for name in (*READER_METHODS, *READER_HELPERS)):
        return "left alone: somebody else has replaced methods of GGUFReader"
    originals: dict[str, Any] = {name: vars(reader)[name] for name in (*READER_METHODS, *READER_HELPERS)}
    original_contents: Any = vars(field_class).get("contents")  # older versions have none

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

    def build_fields(self: Any, offs: int, count: int) -> int:
        return headers.build_fields(self, offs, count, names())

    def build_tensor_info(self: Any, offs: int, count: int) -> tuple[int, list[Any]]:
        found = headers.build_tensor_info(self, offs, count, names())
        if any(field.parts.items.head[3].length > MAX_DIMS for field in found[1]):  # newer versions refuse them
            return originals["_build_tensor_info"](self, offs, count)  # type: ignore[no-any-return]
        return found

    def build_tensors(self: Any, start_offs: int, fields: list[Any]) -> None:
        if not headers.are_ours(fields):
            originals["_build_tensors"](self, start_offs, fields)
        else:
            headers.build_tensors(self, start_offs, fields, names())

    def contents(self: Any, index_or_slice: Any = slice(None)) -> Any:
        values = headers.contents(self, index_or_slice)
        return original_contents(self, index_or_slice) if values is NotImplemented else values

    ours: dict[str, Any] = dict(zip(READER_METHODS, (build_fields, build_tensor_info, build_tensors), strict=True))

    def compare() -> bool:
        theirs, mine = (type("Sample", (reader,), {n: own[n] for n in READER_METHODS}) for own in (originals, ours))
        both = (None, None) if original_contents is None else (original_contents, contents)
        return comparing.readers_agree(theirs, mine, both)

    agrees = comparing.verdict(f"{module.__name__}, reader", compare)

    def takes(self: Any) -> bool:
        """Whether this reader is as gguf made it; otherwise gguf's own loops run, which call what was overridden."""
        cls = type(self)
        if any(getattr(cls, n, None) not in (replaced.get(n), gguf_s) for n, gguf_s in originals.items()):
            who = "somebody else" if cls is reader else cls.__qualname__
            say_once(f"{who} overrides methods of {module.__name__}.GGUFReader, which read its headers")
            return False
        data = self.data
        plain = isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.ndim == 1 and data.flags.c_contiguous
        return plain and agrees()

    def method(name: str) -> Any:
        original, own = originals[name], ours[name]

        def either(self: Any, *arguments: Any) -> Any:
            result = (own if takes(self) else original)(self, *arguments)
            if name == "_build_tensors" and (finish := getattr(opening, "finish", None)) is not None:
                opening.finish = None
                finish(self)
            return result

        return _disguise(either, original)

    replaced = {name: method(name) for name in READER_METHODS}
    for name, function in replaced.items():
        patches.set(reader, name, function)
    if original_contents is not None:
        patches.set(field_class, "contents", _disguise(contents, original_contents))
    return lambda: "patched" if agrees() else DIFFERS


def _disguise(function: Any, original: Any) -> Any:
    """Give a replacement the name, documentation and signature of what it replaces."""
    for name in ("__module__", "__name__", "__qualname__", "__doc__", "__annotations__"):
        setattr(function, name, getattr(original, name))
    function.__wrapped__ = original
    return function


def _patch_quants(module: ModuleType, patches: Patches) -> State:
    base: Any = vars(module)["__Quant"]  # a name that can't be written inside a class
    array_methods = ("_Quant__dequantize_array", "_Quant__quantize_array")
    if not all(vars(base)[name].__func__.__globals__ is vars(module) for name in array_methods):
        return "left alone: somebody else has replaced methods of its classes"
    dequantize_of_gguf, quantize_of_gguf = (vars(base)[name].__func__ for name in array_methods)
    # A class's steps -> its type, where it decodes or encodes as we do.
    decoders: dict[tuple[object, ...], QType | None] = {}
    encoders: dict[tuple[object, ...], QType | None] = {}

    def own_type(cls: Any, *steps: str) -> QType | None:
        """Type of a class whose steps stand in the source of its modules, and weren't replaced by anyone."""
        qtype = next((t for t in QType if t == int(cls.qtype)), None)
        sizes = qtype is not None and (cls.block_size, cls.type_size) == (qtype.block_size, qtype.block_bytes)
        return qtype if sizes and all(is_own(cls, step) for step in steps) else None

    def decoder(cls: Any) -> QType | None:
        key = (cls, static(cls, "dequantize_blocks"), static(cls, "dequantize_rows"))
        if key not in decoders:
            qtype = own_type(cls, "dequantize_blocks", "dequantize_rows")
            same = qtype is not None and comparing.decodes_alike(
                qtype, partial(dequantize_of_gguf, cls), lambda raw: decode.dequantize(raw, qtype)
            )
            decoders[key] = qtype if same else None
            if qtype is not None and not same:
                say_once(f"{module.__name__}, {cls.__name__}: {DIFFERS}")
        return decoders[key]

    def encoder(cls: Any) -> QType | None:
        key = (cls, static(cls, "quantize_blocks"), static(cls, "quantize_rows"))
        if key not in encoders:
            qtype = own_type(cls, "quantize_blocks", "quantize_rows")
            if qtype is not None and can_encode(cls):
                same = comparing.encodes_alike(partial(quantize_of_gguf, cls), partial(_encode, cls, qtype))
                if not same:
                    say_once(f"{module.__name__}, {cls.__name__}, encoding: {DIFFERS}")
            else:
                # Types that need an importance matrix stay as impossible as they are in gguf.
                same = qtype in encode.QUANTIZABLE - encode.NEEDS_IMATRIX
            encoders[key] = qtype if same else None
        return encoders[key]

    def can_encode(cls: Any) -> bool:
        return static(cls, "quantize_blocks") is not static(base, "quantize_blocks")

    def dequantize_array(cls: Any, array: Any) -> npt.NDArray[Any]:
        # Anything but bytes, and arrays without elements, have meanings of their own in gguf.
        if (
            type(array) not in (np.ndarray, np.memmap)
            or array.dtype.itemsize != 1
            or not array.size
            or not array.ndim
            or (qtype := decoder(cls)) is None
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
        qtype = encoder(cls)
        if qtype is not None and not can_encode(cls):
            return _quantize_anew(array, qtype)
        if (
            qtype is None
            or type(array) not in (np.ndarray, np.memmap)
            or not array.size
            or not array.ndim
            or array.dtype.kind != "f"
            or array.shape[-1] % qtype.block_size
            or not _warns_at_most()
        ):
            return quantize_of_gguf(cls, array)  # type: ignore[no-any-return]
        with np.errstate(all="ignore"):
            values = np.ascontiguousarray(array, np.float32).view(np.ndarray)
        packed = _encode(cls, qtype, values)
        return quantize_of_gguf(cls, array) if packed is None else packed

    _disguise(dequantize_array, dequantize_of_gguf)
    _disguise(quantize_array, quantize_of_gguf)
    patches.set(base, array_methods[0], classmethod(dequantize_array))
    patches.set(base, array_methods[1], classmethod(quantize_array))
    # The lazy forms hold what the arrays' methods were when the class was made.
    wrap = module.LazyNumpyTensor._wrap_fn
    for cls in module._type_traits.values():
        to_bytes, from_bytes = cls._Quant__shape_to_bytes, cls._Quant__shape_from_bytes
        patches.set(
            cls, "_Quant__dequantize_lazy", wrap(getattr(cls, array_methods[0]), meta_noop=(np.float32, from_bytes))
        )
        patches.set(cls, "_Quant__quantize_lazy", wrap(getattr(cls, array_methods[1]), meta_noop=(np.uint8, to_bytes)))

    def state() -> str:
        classes = sorted(module._type_traits.values(), key=lambda cls: cls.__name__)
        foreign = [f"{cls.__name__}'s decoding" for cls in classes if decoder(cls) is None]
        foreign += [f"{cls.__name__}'s encoding" for cls in classes if can_encode(cls) and encoder(cls) is None]
        return f"patched, except {', '.join(foreign)}: {DIFFERS}" if foreign else "patched"

    return state


def _encode(cls: Any, qtype: QType, values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8] | None:
    """Encode as gguf's class does; None where it has an answer or a warning of its own."""
    try:
        packed, overflow = encode.quantize_quietly(values, qtype)
    except GGUFError:  # NaN and infinities
        return None
    if overflow:
        return None
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


def _warns_at_most() -> bool:
    """Whether numpy is to do no more than warn of overflows, divisions and invalid values, and not of underflows."""
    modes = np.geterr()
    return modes["under"] == "ignore" and {modes["divide"], modes["invalid"], modes["over"]} <= {"ignore", "warn"}


def _quantize_anew(array: Any, qtype: QType) -> npt.NDArray[np.uint8]:
    """Encode to a type that gguf can't encode."""
    values = given_array(array, "array")
    if values.dtype.kind not in "fiub" and values.dtype.name != "bfloat16":
        raise NotImplementedError(f"Quantization of {values.dtype} to {qtype.name} is not implemented")
    with np.errstate(all="ignore"):
        return encode.quantize(np.ascontiguousarray(values, np.float32), qtype)


class _NameMap(NamedTuple):
    tables: list[Any]
    mapping: dict[str, Any]
    again: bool | None  # whether building it again gave the same


def _patch_names(module: ModuleType, patches: Patches) -> str:
    cls = module.TensorNameMap
    if not is_own(cls, "__init__"):
        return "left alone: somebody else has replaced TensorNameMap's constructor"
    init_of_gguf = cls.__init__
    _ = module.MODEL_TENSORS, module.TENSOR_NAMES  # raises if one is missing
    kept: dict[Any, _NameMap] = {}

    def tables(cls: type, arch: Any) -> list[Any]:
        # They are open to change, and for some architectures gguf changes one itself as it builds.
        own = [dict(v) for c in cls.__mro__ for n, v in sorted(vars(c).items()) if isinstance(v, dict)]
        return [*own, list(module.MODEL_TENSORS[arch]), dict(module.TENSOR_NAMES)]

    def __init__(self: Any, arch: Any, n_blocks: int) -> None:
        cls = type(self)
        key = (cls, arch, n_blocks)
        before = tables(cls, arch)
        found = kept.get(key)
        if found is not None and found.tables == before and found.again is not False:
            if found.again:
                self.mapping = dict(found.mapping)
                return
            # The second one is built too: is it the tables alone that a map depends on?
            init_of_gguf(self, arch, n_blocks)
            same = self.mapping == found.mapping and list(self.mapping) == list(found.mapping)
            kept[key] = found._replace(again=same and vars(self).keys() == {"mapping"})
            return
        init_of_gguf(self, arch, n_blocks)
        if len(kept) >= KEPT_NAME_MAPS:
            kept.pop(next(iter(kept)), None)
        if tables(cls, arch) == before:
            kept[key] = _NameMap(before, dict(self.mapping), None)

    _disguise(__init__, init_of_gguf)
    patches.set(cls, "__init__", __init__)
    return "patched"
