"""Decode a GGUF file's tensors to floats, into a .safetensors or .npz file."""

from __future__ import annotations

import argparse
import json
import struct
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from ..cli import sample
from ..codec.dtypes import named_dtype
from ..errors import GGUFError
from ..formats.tensor_types import NUMERIC_DTYPES, QType
from ..model.loading import select
from ..write.outfile import OutputFile

if TYPE_CHECKING:
    from ..read.tensor import Tensor

__all__ = ["add_arguments", "run"]

# Values decoded at a time: more wouldn't be faster, and memory stays small whatever the tensors' sizes.
PIECE = 1 << 21
# Bytes of a name in a zip archive at most.
LONGEST_ENTRY = 65535
INTEGERS = {q: np.dtype(NUMERIC_DTYPES[q]) for q in (QType.I8, QType.I16, QType.I32, QType.I64)}
SAFETENSORS_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int8": "I8", "int16": "I16",
                      "int32": "I32", "int64": "I64"}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("file", nargs="?", metavar="FILE", help="a GGUF file (default: the sample model)")
    parser.add_argument("-o", "--output", required=True, metavar="OUT", help="OUT.safetensors or OUT.npz")
    parser.add_argument(
        "--dtype",
        type=lambda name: str(named_dtype(name)),  # f16, bf16 ... too
        choices=("float32", "float16", "bfloat16"),
        default="float32",
        help="of all float tensors; integer tensors keep theirs; .npz stores bfloat16 as uint16 (default: float32)",
    )
    parser.add_argument(
        "--tensors", action="append", metavar="PATTERN", help="only names that match, as in 'blk.0.*'; repeatable"
    )
    parser.add_argument(
        "--progress",
        action=argparse.BooleanOptionalAction,
        help="show a progress bar (default: on a terminal, if the tqdm package is there)",
    )


def _dtype_name(tensor: Tensor, dtype: str) -> str:
    own = INTEGERS.get(QType(tensor.qtype))
    return dtype if own is None else own.name


def _numpy_dtype(name: str) -> np.dtype[Any]:
    return np.dtype(np.uint16 if name == "bfloat16" else name)


def _pieces(tensor: Tensor, dtype: str) -> Iterator[npt.NDArray[np.uint8]]:
    """Little-endian bytes of the values, piece after piece in the same few megabytes of memory."""
    import ggufx

    name = _dtype_name(tensor, dtype)
    target, qtype, packed = _numpy_dtype(name), QType(tensor.qtype), tensor.packed()
    step = max(1, PIECE // qtype.block_size)
    buffer = np.empty(min(step * qtype.block_size, tensor.size), target)
    for start in range(0, packed.size, step * qtype.block_bytes):
        blocks = packed[start : start + step * qtype.block_bytes]
        out = buffer[: blocks.size // qtype.block_bytes * qtype.block_size]
        wanted = "bfloat16" if name == "bfloat16" else target
        ggufx.dequantize(blocks, qtype, dtype=wanted, out=out, byteorder=tensor.byteorder)
        yield out.astype(target.newbyteorder("<"), copy=False).view(np.uint8)


def _write_safetensors(file: OutputFile, tensors: list[Tensor], dtype: str, done: Callable[[int], None]) -> int:
    """Write the header, whose offsets follow from the shapes alone, then one tensor after the other."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for t in tensors:
        name = _dtype_name(t, dtype)
        try:
            t.name.encode()
        except UnicodeEncodeError:
            raise GGUFError(f"tensor {t.name!r}: the name isn't UTF-8, so .safetensors can't hold it") from None
        if t.name == "__metadata__":
            raise GGUFError(f"tensor {t.name!r}: .safetensors reserves that name")
        size = t.size * _numpy_dtype(name).itemsize
        header[t.name] = {
            "dtype": SAFETENSORS_DTYPES[name],
            "shape": list(t.shape),
            "data_offsets": [position, position + size],
        }
        position += size
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors start at a multiple of 8 bytes
    file.write(struct.pack("<Q", len(text)) + text)
    for t in tensors:
        for piece in _pieces(t, dtype):
            file.write(piece)
        done(t.size)
    return 8 + len(text) + position


class _Stream:
    """What zipfile needs to write an archive front to back."""

    def __init__(self, file: OutputFile) -> None:
        self._file = file

    def write(self, data: Any) -> int:
        self._file.write(data)
        return len(memoryview(data))

    def flush(self) -> None:
        pass


def _write_npz(file: OutputFile, tensors: list[Tensor], dtype: str, done: Callable[[int], None]) -> int:
    with zipfile.ZipFile(cast(IO[bytes], _Stream(file)), "w", zipfile.ZIP_STORED) as archive:
        for t in tensors:
            # Unpacking the archive with another tool must not write outside its folder.
            unsafe = t.name.startswith("/") or "\\" in t.name or ".." in t.name.split("/") or not t.name.isprintable()
            if unsafe or len(f"{t.name}.npy".encode()) > LONGEST_ENTRY:
                shown = t.name if len(t.name) <= 100 else t.name[:97] + "..."
                raise GGUFError(f"tensor {shown!r}: the name can't be a file's in an .npz; write .safetensors")
            entry = zipfile.ZipInfo(f"{t.name}.npy")  # its date is fixed, so the same input gives the same bytes
            entry.external_attr = 0o644 << 16
            with archive.open(entry, "w", force_zip64=True) as member:
                descr = _numpy_dtype(_dtype_name(t, dtype)).newbyteorder("<").str
                head = {"descr": descr, "fortran_order": False, "shape": t.shape}
                np.lib.format.write_array_header_1_0(member, head)
                for piece in _pieces(t, dtype):
                    member.write(piece.data)
            done(t.size)
    return file.size


# How to write each kind of file: a function that returns the size the file must have.
WRITERS = {".safetensors": _write_safetensors, ".npz": _write_npz}


def _progress(wanted: bool | None, weights: int) -> Any:
    """Make a tqdm bar, or None."""
    if wanted is False or (wanted is None and not sys.stderr.isatty()):
        return None
    try:
        from tqdm import tqdm
    except ImportError:
        if wanted:
            raise ImportError("--progress needs the tqdm package: pip install 'ggufx[progress]'") from None
        return None
    return tqdm(total=weights, unit="w", unit_scale=True, desc="decode")


def run(arguments: argparse.Namespace) -> int:
    """Decode into a temporary file beside the output, then rename it."""
    import ggufx

    output = Path(arguments.output)
    writer = WRITERS.get(output.suffix)
    if writer is None:
        raise ValueError(f"{output}: the output must end in {' or '.join(WRITERS)}")
    with sample.path_or_sample(arguments.file) as path, ggufx.open(path) as f:
        tensors = select(f.tensors, arguments.tensors, f.path)
        for t in tensors:
            t.check_readable()
        inputs = [path, *(shard.path for shard in getattr(f, "shards", ()))]
        bar = _progress(arguments.progress, sum(t.size for t in tensors))
        file = OutputFile(output, inputs=inputs)
        try:
            file.finish(writer(file, tensors, arguments.dtype, bar.update if bar else lambda count: None))
            file.publish()
        finally:
            file.discard()  # nothing is left to discard once it is published
            if bar:
                bar.close()
    return 0
