"""Quantized checkpoints: GPTQ, AWQ, compressed-tensors, FP8, BitNet. Their parts appear as one tensor for each weight.

What a part is called and how it is packed differs from format to format; all of them give codes and scales in groups
(:mod:`.regroup`), or values where they are floats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import GGUFError
from ..formats.tensor_types import QType
from .checkpoint import StoredTensor
from .hparams import Config
from .regroup import E2M1, Grouped, block_type, blocks_of, e4m3, unpack

__all__ = ["GroupedTensor", "is_eight_bit", "is_quantized", "regrouped"]

Array = npt.NDArray[Any]
Stored = Mapping[str, StoredTensor]

# Parts that a decoded weight has used up, or that only a runtime of the format reads.
_PARTS = (
    *(".qweight", ".qzeros", ".scales", ".g_idx", ".weight_packed", ".weight_shape", ".weight_zero_point"),
    *(".weight_scale", ".weight_scale_inv", ".weight_scale_2", ".weight_global_scale", ".input_scale"),
    *(".input_global_scale", ".activation_scale", ".k_scale", ".v_scale", ".weight_g_idx"),
)


class GroupedTensor:
    """A weight made of a quantized checkpoint's parts, in the place of a stored tensor.

    Attributes
    ----------
    name, path : str
        The name the weight would have, and the file of its first part.
    dtype : str
        What its values are as: F32.
    shape : tuple of int
    block_type : QType or None
        The type that holds it without loss.
    reason : str
        Why none does.
    whole : bool
        It is made of whole numbers, which some type may hold, and not of small floats.
    eight_bit : bool
        It is made of 8-bit floats.
    factors : (float, float)
        What all of it, and all that is multiplied with it, is multiplied by beside.
    """

    dtype = "F32"
    # Parts are whole matrices packed along either axis, so a piece costs reading all of them.
    pieces = 16

    def __init__(
        self,
        part: StoredTensor,
        name: str,
        shape: tuple[int, ...],
        read: Callable[[int, int], Grouped | Array],
        fits: tuple[QType | None, str],
        whole: bool = True,
        packed: Callable[[int, int], Array] | None = None,
        factors: tuple[float, float] = (1.0, 1.0),
    ) -> None:
        self.name, self.path, self.shape = name, part.path, shape
        self.source = part.name
        self._read = read
        self.block_type, self.reason = fits
        self.whole = whole
        self.factors = factors
        self.eight_bit = part.dtype.startswith("F8_")
        self._packed = packed

    def _rows(self, start: int, stop: int | None) -> Grouped | Array:
        try:
            return self._read(start, self.shape[0] if stop is None else stop)
        except (ValueError, IndexError) as error:
            raise GGUFError(f"{self.path}: tensor {self.source!r}: {error}") from None

    def values(self, start: int = 0, stop: int | None = None) -> Array:
        """Rows as float32."""
        rows = self._rows(start, stop)
        return rows.values() if isinstance(rows, Grouped) else rows

    def blocks(self, start: int = 0, stop: int | None = None) -> Array:
        """Rows as blocks of :attr:`block_type`."""
        if self._packed is not None:
            return self._packed(start, self.shape[0] if stop is None else stop)
        rows = self._rows(start, stop)
        assert isinstance(rows, Grouped)
        assert self.block_type is not None
        return blocks_of(rows, self.block_type)


def is_quantized(config: Config) -> bool:
    """Whether a configuration is one of a quantized checkpoint, other than in MXFP4, which is read as it is."""
    said = config.get("quantization_config")
    return bool(said) and not (isinstance(said, dict) and said.get("quant_method") == "mxfp4")


def is_eight_bit(tensor: object) -> bool:
    """Whether a weight is one of 8-bit floats."""
    return isinstance(tensor, GroupedTensor) and tensor.eight_bit


def regrouped(tensors: Stored, config: Config) -> dict[str, StoredTensor | GroupedTensor]:
    """A checkpoint's tensors with one for each quantized weight, in the reference's order.

    Raises
    ------
    GGUFError
        If the format isn't known, or parts are missing or don't fit each other; the message names a tensor.
    """
    said = config.get("quantization_config")
    method = said.get("quant_method") if isinstance(said, dict) else None
    makers: dict[Any, Callable[[Stored, Config, dict[str, Any]], Iterator[GroupedTensor]]] = {
        "gptq": _gptq,
        "awq": _awq,
        "fp8": _scaled_floats,
        "bitnet": _bitnet,
        "compressed-tensors": _compressed,
        "modelopt": _modelopt,
    }
    if method not in makers:
        name = next((n for n in tensors if n.endswith(_PARTS)), next(iter(tensors)))
        raise GGUFError(f"{config.source}: tensor {name!r} and others are quantized by {method!r}, which isn't known")
    made = {t.name: t for t in makers[method](tensors, config, said)}
    if not made:
        raise GGUFError(f"{config.source} says that weights are quantized by {method!r}, but none is")
    out: dict[str, StoredTensor | GroupedTensor] = {}
    for name, tensor in tensors.items():
        if name in made:
            out[name] = made.pop(name)
        elif not name.endswith(_PARTS):
            out[name] = tensor
    return out | made


def _need(tensors: Stored, name: str, *ends: str) -> list[StoredTensor]:
    """The parts of a weight with these endings."""
    found = [tensors.get(name + end) for end in ends]
    for end, tensor in zip(ends, found, strict=True):
        if tensor is None:
            raise GGUFError(f"tensor {name + end!r} isn't there, though others of {name!r} are")
    return [tensor for tensor in found if tensor is not None]


def _check(tensor: StoredTensor, *expected: int) -> None:
    if tensor.shape != expected:
        raise GGUFError(f"{tensor.path}: tensor {tensor.name!r} has shape {tensor.shape}, {expected} was expected")


def _number(said: dict[str, Any], key: str, config: Config) -> int:
    value = said.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise GGUFError(f"{config.source}: quantization_config's {key} is {value!r}, a number was expected")
    return value


def _zero_range(zeros: Array, bits: int) -> tuple[int, int]:
    return -int(zeros.max()), (1 << bits) - 1 - int(zeros.min())


def _gptq(tensors: Stored, config: Config, said: dict[str, Any]) -> Iterator[GroupedTensor]:
    """Codes packed along the inputs, zero points along the outputs; one less is stored than meant, but in version 2."""
    bits, size = _number(said, "bits", config), _number(said, "group_size", config)
    offset = 0 if said.get("checkpoint_format", "gptq") == "gptq_v2" else 1
    if bits not in (2, 3, 4, 8):
        raise GGUFError(f"{config.source}: GPTQ of {bits} bits isn't known")
    for name in [n.removesuffix(".qweight") for n in tensors if n.endswith(".qweight")]:
        qweight, qzeros, scales = _need(tensors, name, ".qweight", ".qzeros", ".scales")
        columns, rows = qweight.shape[0] * 32 // bits, qweight.shape[1]
        group = columns if size == -1 else size
        groups = math.ceil(columns / group)
        _check(scales, groups, rows)
        _check(qzeros, groups, rows * bits // 32)
        order = tensors.get(f"{name}.g_idx")
        index = np.arange(columns) // group if order is None else order.bits().astype(np.int64)
        if index.shape != (columns,) or index.min() < 0 or index.max() >= groups:
            raise GGUFError(f"{qweight.path}: tensor {name + '.g_idx'!r} isn't {columns} numbers of {groups} groups")
        sorted_groups = columns % group == 0 and np.array_equal(index, np.arange(columns) // group)

        def read(
            start: int,
            stop: int,
            parts: tuple[StoredTensor, ...] = (qweight, qzeros, scales),
            index: Array = index,
            in_order: bool = bool(sorted_groups),
        ) -> Grouped:
            qweight, qzeros, scales = parts
            codes = unpack(qweight.bits()[:, start:stop], bits, 0, len(index)).T.astype(np.int16)
            zeros = unpack(qzeros.bits(), bits, 1, scales.shape[1])[:, start:stop].T.astype(np.int16) + offset
            each = scales.values()[:, start:stop].T.astype(np.float32)
            if not in_order:  # each column has a scale of its own
                return Grouped(codes - zeros[:, index], each[:, index])
            return Grouped(codes - np.repeat(zeros, len(index) // zeros.shape[1], axis=1), each)

        fits: tuple[QType | None, str] = (None, "its inputs are in the order of their activation (g_idx)")
        if sorted_groups:
            zeros = unpack(qzeros.bits(), bits, 1, rows).astype(np.int16) + offset
            fits = block_type(*_zero_range(zeros, bits), group, scales.values().astype(np.float32))
        yield GroupedTensor(qweight, f"{name}.weight", (rows, columns), read, fits)


# The column that each nibble of AWQ's words holds, of their eight.
_AWQ = np.argsort([0, 2, 4, 6, 1, 3, 5, 7])


def _awq(tensors: Stored, config: Config, said: dict[str, Any]) -> Iterator[GroupedTensor]:
    """Four bits; "gemm" packs along the outputs with nibbles out of order, "gemv" along the inputs in order."""
    size, version = _number(said, "group_size", config), str(said.get("version", "gemm")).lower()
    if said.get("bits", said.get("w_bit", 4)) != 4 or version not in ("gemm", "gemv"):
        raise GGUFError(f"{config.source}: AWQ of other than 4 bits, or of version {version!r}, isn't known")
    gemm = version == "gemm"
    for name in [n.removesuffix(".qweight") for n in tensors if n.endswith(".qweight")]:
        qweight, qzeros, scales = _need(tensors, name, ".qweight", ".qzeros", ".scales")
        rows, columns = (qweight.shape[1] * 8, qweight.shape[0]) if gemm else (qweight.shape[0], qweight.shape[1] * 8)
        groups = columns // size if size > 0 else 1
        group = columns // groups
        if gemm:
            _check(scales, groups, rows)
            _check(qzeros, groups, rows // 8)
        elif scales.shape[0] != rows or scales.shape[1] < groups or qzeros.shape[0] != rows:
            raise GGUFError(f"{scales.path}: tensor {scales.name!r} has shape {scales.shape} for {rows} rows")

        def nibbles(words: Array) -> Array:
            return unpack(words, 4, 1, words.shape[1] * 8).reshape(words.shape[0], -1, 8)

        def zeros_of(qzeros: StoredTensor, groups: int = groups) -> Array:
            if gemm:
                return nibbles(qzeros.bits())[..., _AWQ].reshape(groups, -1).T.astype(np.int16)
            return nibbles(qzeros.bits()).reshape(qzeros.shape[0], -1)[:, :groups].astype(np.int16)

        def scales_of(scales: StoredTensor, groups: int = groups) -> Array:
            each = scales.values().astype(np.float32)
            return each.T if gemm else each[:, :groups]

        def read(
            start: int,
            stop: int,
            parts: tuple[StoredTensor, ...] = (qweight, qzeros, scales),
            group: int = group,
            zeros_of: Callable[[StoredTensor], Array] = zeros_of,
            scales_of: Callable[[StoredTensor], Array] = scales_of,
        ) -> Grouped:
            qweight, qzeros, scales = parts
            if gemm:
                codes = nibbles(qweight.bits())[..., _AWQ].reshape(qweight.shape[0], -1)[:, start:stop].T
            else:
                codes = nibbles(qweight.bits(start, stop)).reshape(stop - start, -1)
            zeros = np.repeat(zeros_of(qzeros)[start:stop], group, axis=1)
            return Grouped(codes.astype(np.int16) - zeros, scales_of(scales)[start:stop])

        fits = block_type(*_zero_range(zeros_of(qzeros), 4), group, scales_of(scales))
        yield GroupedTensor(qweight, f"{name}.weight", (rows, columns), read, fits)


def _scaled_floats(tensors: Stored, config: Config, said: dict[str, Any]) -> Iterator[GroupedTensor]:
    """8-bit floats with a scale for each block of a matrix."""
    block = said.get("weight_block_size")
    for name in [n.removesuffix("_scale_inv") for n in tensors if n.endswith(".weight_scale_inv")]:
        weight, scale = _need(tensors, name, "", "_scale_inv")
        yield _scaled(weight, scale, block)


def _scaled(weight: StoredTensor, scale: StoredTensor, block: Any) -> GroupedTensor:
    """Values times a scale for each block, row, or the whole."""
    if weight.dtype not in ("F8_E4M3", "I8") or len(weight.shape) != 2:
        raise GGUFError(f"{weight.path}: tensor {weight.name!r} is {weight.dtype} of {weight.shape}; E4M3 was expected")
    rows, columns = weight.shape
    if block is None:
        if math.prod(scale.shape) not in (1, rows):
            raise GGUFError(f"{scale.path}: tensor {scale.name!r} has shape {scale.shape} for {rows} rows")
        tall, wide = rows if math.prod(scale.shape) == 1 else 1, columns
    else:
        tall, wide = (int(n) for n in block)
        _check(scale, math.ceil(rows / tall), math.ceil(columns / wide))

    def read(start: int, stop: int) -> Grouped | Array:
        scales = scale.values().astype(np.float32).reshape(-1, math.ceil(columns / wide))
        own = np.repeat(scales[start // tall : (stop - 1) // tall + 1], tall, axis=0)
        own = own[start % tall : start % tall + stop - start]
        codes = weight.bits(start, stop)
        if weight.dtype == "I8" and columns % wide == 0:
            return Grouped(codes.astype(np.int16), own)
        values = e4m3(codes) if weight.dtype == "F8_E4M3" else codes.astype(np.float32)
        return values * np.repeat(own, wide, axis=1)[:, :columns]

    fits: tuple[QType | None, str] = (None, "no block type holds 8-bit floats")
    if weight.dtype == "I8" and columns % wide == 0:
        fits = block_type(-128, 127, wide, scale.values().astype(np.float32))
    return GroupedTensor(weight, weight.name, weight.shape, read, fits, weight.dtype == "I8")


def _bitnet(tensors: Stored, config: Config, said: dict[str, Any]) -> Iterator[GroupedTensor]:
    """Two bits of four rows that lie far apart in a byte; what is stored of the scale is its inverse."""
    for name in [n.removesuffix("_scale") for n in tensors if n.endswith(".weight_scale")]:
        weight, scale = _need(tensors, name, "", "_scale")
        if weight.dtype != "U8" or len(weight.shape) != 2 or math.prod(scale.shape) != 1:
            raise GGUFError(
                f"{weight.path}: tensor {weight.name!r} is {weight.dtype} of {weight.shape}, U8 was expected"
            )
        shape = (weight.shape[0] * 4, weight.shape[1])

        def read(start: int, stop: int, weight: StoredTensor = weight, scale: StoredTensor = scale) -> Array:
            packed = weight.bits()
            codes = np.concatenate([packed >> shift & 3 for shift in (0, 2, 4, 6)])[start:stop]
            return (codes.astype(np.float32) - np.float32(1)) / scale.values().astype(np.float32).reshape(())

        yield GroupedTensor(weight, name, shape, read, (None, "its scale's inverse is no half-precision number"), False)


def _compressed(tensors: Stored, config: Config, said: dict[str, Any]) -> Iterator[GroupedTensor]:
    """compressed-tensors: whole numbers packed or in bytes, 8-bit floats, NVFP4."""
    kind, sets = said.get("format"), said.get("config_groups")
    first = next(iter(sets.values())) if isinstance(sets, dict) and sets else None
    weights = first.get("weights") if isinstance(first, dict) else None
    if not isinstance(sets, dict) or len(sets) != 1 or not isinstance(weights, dict):
        raise GGUFError(f"{config.source}: compressed-tensors with other than one group of settings isn't known")
    if kind in ("float-quantized", "int-quantized", "naive-quantized"):
        for name in [n.removesuffix("_scale") for n in tensors if n.endswith(".weight_scale")]:
            weight, scale = _need(tensors, name, "", "_scale")
            yield _scaled(weight, scale, weights.get("block_structure"))
    elif kind == "pack-quantized":
        bits = _number(weights, "num_bits", config)
        size = weights.get("group_size") or -1
        for name in [n.removesuffix("_packed") for n in tensors if n.endswith(".weight_packed")]:
            yield _packed(tensors, name, bits, int(size))
    elif kind == "nvfp4-pack-quantized":
        for name in [n.removesuffix("_packed") for n in tensors if n.endswith(".weight_packed")]:
            weight, scale, _ = _need(tensors, name, "_packed", "_scale", "_global_scale")
            whole = _factor(tensors, f"{name}_global_scale", inverse=True)
            inputs = _factor(tensors, name.removesuffix("weight") + "input_global_scale", inverse=True)
            yield _nvfp4(weight, scale, name, whole, inputs)
    else:
        raise GGUFError(f"{config.source}: compressed-tensors in format {kind!r} isn't known")


def _packed(tensors: Stored, name: str, bits: int, size: int) -> GroupedTensor:
    """Whole numbers packed along the inputs, around the middle of their range or a zero point."""
    packed, scale, shape = _need(tensors, name, "_packed", "_scale", "_shape")
    rows, columns = (int(n) for n in shape.bits().reshape(-1)[:2])
    group = columns if size < 1 else size
    if packed.shape[0] != rows or columns % group or scale.shape != (rows, columns // group):
        raise GGUFError(f"{scale.path}: tensor {scale.name!r} has shape {scale.shape} for {rows} rows of {columns}")
    point = tensors.get(f"{name}_zero_point")
    middle = 1 << (bits - 1)

    def zeros_of() -> Array:
        if point is None:
            return np.full(scale.shape, middle, np.int16)
        if point.dtype != "I32":
            return point.bits().astype(np.int16) + middle
        return unpack(point.bits(), bits, 0, rows).astype(np.int16)

    def read(start: int, stop: int) -> Grouped:
        codes = unpack(packed.bits(start, stop), bits, 1, columns).astype(np.int16)
        zeros = np.repeat(zeros_of()[start:stop], group, axis=1)
        return Grouped(codes - zeros, scale.values(start, stop).astype(np.float32))

    fits = block_type(*_zero_range(zeros_of(), bits), group, scale.values().astype(np.float32))
    return GroupedTensor(packed, name, (rows, columns), read, fits)


def _modelopt(tensors: Stored, config: Config, said: dict[str, Any]) -> Iterator[GroupedTensor]:
    """ModelOpt: NVFP4 where a weight is bytes, 8-bit floats where it is these."""
    for name in [n.removesuffix("_scale") for n in tensors if n.endswith(".weight_scale")]:
        if name not in tensors:
            continue
        weight, scale = _need(tensors, name, "", "_scale")
        if weight.dtype == "U8":
            inputs = _factor(tensors, name.removesuffix("weight") + "input_scale")
            yield _nvfp4(weight, scale, name, _factor(tensors, f"{name}_scale_2"), inputs)
        else:
            yield _scaled(weight, scale, None)


def _nvfp4(weight: StoredTensor, scale: StoredTensor, name: str, whole: Any, inputs: Any) -> GroupedTensor:
    """Four-bit floats in groups of 16 with an 8-bit scale, and a factor for the whole matrix."""
    if weight.dtype != "U8" or len(weight.shape) != 2 or scale.dtype != "F8_E4M3":
        raise GGUFError(f"{weight.path}: tensor {weight.name!r} is {weight.dtype} of {weight.shape}; U8 was expected")
    rows, columns = weight.shape[0], weight.shape[1] * 2
    _check(scale, rows, columns // 16)

    def codes(start: int, stop: int) -> Array:
        pairs = weight.bits(start, stop)
        return np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(stop - start, -1, 16)

    def read(start: int, stop: int) -> Array:
        scaled: Array = E2M1[codes(start, stop)] * (e4m3(scale.bits(start, stop)) * whole)[..., None]
        return scaled.reshape(stop - start, columns)

    def packed(start: int, stop: int) -> Array:
        values = codes(start, stop)
        low = (values[..., :8] | values[..., 8:] << 4).reshape(stop - start, columns // 64, 32)
        scales = (scale.bits(start, stop) & 127).reshape(stop - start, columns // 64, 4)
        return np.concatenate([scales, low], axis=-1).reshape(stop - start, -1)

    fits = (QType.NVFP4, "") if columns % 64 == 0 else (None, f"rows of {columns} aren't whole blocks of 64")
    factors = (float(np.float32(whole)), float(np.float32(inputs)))
    return GroupedTensor(weight, name, (rows, columns), read, fits, False, packed, factors)


def _factor(tensors: Stored, name: str, *, inverse: bool = False) -> Any:
    """A factor of a whole matrix, one where there is none."""
    tensor = tensors.get(name)
    value = np.float32(1) if tensor is None else tensor.values().astype(np.float32).reshape(-1)[0]
    return np.float32(1) / value if inverse else value
