"""Tells everything gguf shows of files, as JSON: run once with the package as it is and once patched, and compared.

    python compat_probe.py PATCH JOB [FILE ...]

PATCH is ``plain`` or ``patched``. A job is a function below; its result is printed as JSON.
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

import numpy as np

PATCH, JOB, *ARGUMENTS = sys.argv[1:] if __name__ == "__main__" else ("plain", "", "")
if PATCH == "patched":
    import ggufx.compat

    ggufx.compat.install()

import gguf  # noqa: E402


def digest(*pieces: object) -> str:
    """Short digest of bytes and of the text of anything else."""
    state = hashlib.sha256()
    for piece in pieces:
        state.update(piece if isinstance(piece, bytes) else repr(piece).encode("utf-8", "surrogatepass"))
        state.update(b"\0")
    return state.hexdigest()[:20]


def of_array(array: np.ndarray) -> tuple[object, ...]:
    """Class, dtype, shape, flags and bytes of an array."""
    flags = (array.flags.writeable, array.flags.c_contiguous)
    return type(array).__name__, array.dtype.str, array.shape, flags, array.tobytes()


def attempt(call: Any) -> Any:
    """What a call returns, or the class of what it raises."""
    try:
        return call()
    except Exception as error:
        return type(error).__name__


def of_field(field: Any) -> dict[str, Any]:
    """All that a field shows."""
    parts, data = field.parts, field.data
    picks = (slice(None), slice(6), slice(1, 9, 3), slice(-3, None), slice(None, None, -7), 0, -1, 10**9)
    return {
        "offset": int(field.offset),
        "name": field.name,
        "class": type(field).__name__,
        "lists": isinstance(parts, list) and isinstance(data, list),
        "n_parts": len(parts),
        "parts": digest(*(of_array(p) for p in parts)),
        "by index": digest(*(of_array(parts[i]) for i in range(-min(9, len(parts)), min(9, len(parts))))),
        "data": digest(list(data)),
        "data ends": [int(i) for i in (*data[:3], *data[-3:])],
        "via data": digest(*(of_array(parts[i]) for i in data)),
        "types": [int(t) for t in field.types],
        "type classes": [type(t).__name__ for t in field.types],
        "contents": [digest(attempt(lambda p=p: field.contents(p))) for p in picks],
        "fields": list(field._fields),
        "unpacked": len(tuple(field)),
    }


def of_tensor(tensor: Any) -> dict[str, Any]:
    """All that a tensor shows."""
    return {
        "name": tensor.name,
        "type": [type(tensor.tensor_type).__name__, int(tensor.tensor_type)],
        "shape": digest(*of_array(tensor.shape)),
        "numbers": [type(tensor.n_elements).__name__, tensor.n_elements, tensor.n_bytes, int(tensor.data_offset)],
        "data": digest(*of_array(tensor.data)),
        "field": of_field(tensor.field),
        "class": type(tensor).__name__,
    }


def files(*paths: str) -> dict[str, Any]:
    """Every field and tensor of some files."""
    shown = {}
    for path in paths:
        reader = gguf.GGUFReader(path)
        shown[path] = {
            "fields": {key: of_field(field) for key, field in reader.fields.items()},
            "tensors": [of_tensor(tensor) for tensor in reader.tensors],
            "rest": [
                reader.byte_order, reader.endianess.name, int(reader.alignment), int(reader.data_offset),
                type(reader.fields).__name__, type(reader.tensors).__name__,
                reader.get_tensor(0).name if reader.tensors else "", reader.get_field("no such key") is None,
            ],
        }  # fmt: skip
    return shown


def errors(*paths: str) -> dict[str, list[str]]:
    """What opening each of some files raises: the class and those it descends from."""
    raised = {}
    for path in paths:
        try:
            gguf.GGUFReader(path)
            raised[path] = ["opened"]
        except Exception as error:
            raised[path] = [c.__name__ for c in type(error).__mro__]
    return raised


def blocks(qtype: Any, count: int) -> np.ndarray:
    """Random blocks, the last ones with every bit of a byte set or none: uint8 (count, block bytes)."""
    rng = np.random.default_rng(int(qtype))
    raw = rng.integers(0, 256, (count, gguf.GGML_QUANT_SIZES[qtype][1]), np.uint8)
    raw[-2], raw[-1] = 0, 255
    return raw


def same_nan(values: np.ndarray) -> bytes:
    """Bytes of float32 values, every NaN the same."""
    return np.where(np.isnan(values), np.float32(np.nan), values).tobytes()


def decoded() -> dict[str, Any]:
    """Every class on every layout of its input, and what can't be decoded."""
    shown: dict[str, Any] = {}
    np.seterr(all="ignore")
    for qtype in gguf.GGMLQuantizationType:
        raw = blocks(qtype, 48)
        read_only = raw.copy()
        read_only.flags.writeable = False
        padded = np.zeros((48, 2 * raw.shape[1] + 1), np.uint8)
        padded[:, 1 : 1 + raw.shape[1]] = raw
        layouts = {
            "rows": raw.reshape(8, -1),
            "one row": raw.reshape(-1),
            "three dimensions": raw.reshape(2, 4, -1),
            "read-only": read_only,
            "strided": padded[:, 1 : 1 + raw.shape[1]],
            "reversed": raw[::-1],
            "int8": raw.view(np.int8),
            "empty": raw[:0],
            "half a block": raw[:, :-1],
            "no dimension": np.uint8(3),
        }
        for name, data in layouts.items():
            for kind in (qtype, int(qtype)):
                result = attempt(lambda d=data, k=kind: gguf.dequantize(d, k))
                if isinstance(result, np.ndarray):
                    floats = result.dtype == np.float32
                    result = [
                        type(result).__name__, result.dtype.str, list(result.shape),
                        bool(result.flags.writeable or not floats or qtype == 0),
                        digest(same_nan(result) if floats else result.tobytes()),
                    ]  # fmt: skip
                shown[f"{qtype.name} {name} {type(kind).__name__}"] = result
    return shown


def encoded() -> dict[str, Any]:
    """What every class that gguf can encode makes of values of several sizes and layouts."""
    shown: dict[str, Any] = {}
    rng = np.random.default_rng(1)
    np.seterr(all="ignore")
    values = (rng.standard_normal((32, 512)) * rng.choice([1e-6, 0.01, 1, 100], (32, 1))).astype(np.float32)
    values[3], values[4, 5:200] = 0, 0
    values[5] = np.round(values[5])
    values[8] = np.maximum(values[6], 0) * rng.choice(np.array([1, -0.0], np.float32), 512)
    values[6] = rng.choice(np.array([0.0, -0.0], np.float32), 512)
    inputs = {
        "rows": values,
        "one row": values[7],
        "half": values.astype(np.float16),
        "double": values.astype(np.float64),
        "strided": np.concatenate([values, values], 1)[:, 200:712],
        "transposed": values[:, :32].T,
        "short row": values[:, :31],
        "empty": values[:0],
    }
    for qtype in gguf.GGMLQuantizationType:
        for name, data in inputs.items():
            result = attempt(lambda d=data, k=qtype: gguf.quantize(d, k))
            if isinstance(result, np.ndarray):
                result = [type(result).__name__, result.dtype.str, list(result.shape), digest(result.tobytes())]
            shown[f"{qtype.name} {name}"] = result
    return shown


def lazy() -> dict[str, Any]:
    """Lazy tensors, decoded and encoded."""
    shown = {}
    for qtype in (gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_K, gguf.GGMLQuantizationType.BF16):
        tensor = gguf.LazyNumpyTensor.from_eager(blocks(qtype, 64).reshape(8, -1))
        values = gguf.dequantize(tensor, qtype)
        eager = gguf.LazyNumpyTensor.to_eager(values)
        shown[qtype.name] = [type(values).__name__, list(values.shape), eager.dtype.str, digest(same_nan(eager))]
        if qtype != gguf.GGMLQuantizationType.Q4_K:
            back = gguf.LazyNumpyTensor.to_eager(gguf.quantize(gguf.LazyNumpyTensor.from_eager(eager), qtype))
            shown[qtype.name].append(digest(back.tobytes()))
    return shown


def name_maps() -> dict[str, Any]:
    """Tensor names of several architectures, with tables that change between."""
    shown = {}
    arches = gguf.MODEL_ARCH.LLAMA, gguf.MODEL_ARCH.ARCTIC, gguf.MODEL_ARCH.GEMMA3, gguf.MODEL_ARCH.LLAMA
    for turn, arch in enumerate(arches):
        for again, blocks_count in enumerate((0, 3, 3, 3, 27)):
            names = gguf.get_tensor_name_map(arch, blocks_count)
            shown[f"{turn} {again}"] = digest(list(names.mapping.items()))
            names.mapping["mine"] = (None, "mine")
    before = gguf.TensorNameMap.block_mappings_cfg[gguf.MODEL_TENSOR.ATTN_Q]
    gguf.TensorNameMap.block_mappings_cfg[gguf.MODEL_TENSOR.ATTN_Q] = ("my.{bid}.q",)
    shown["changed"] = digest(list(gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 3).mapping))
    gguf.TensorNameMap.block_mappings_cfg[gguf.MODEL_TENSOR.ATTN_Q] = before
    return shown


if __name__ == "__main__":
    json.dump(globals()[JOB](*ARGUMENTS), sys.stdout, sort_keys=True)
