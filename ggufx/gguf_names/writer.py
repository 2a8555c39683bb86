"""The gguf package's writer calls over ours: the same names, the same bytes, whole files or none.

``from ggufx import GGUFWriter`` replaces ``from gguf import GGUFWriter``. What differs: wrong values are refused at the
call, arrays are released as they are written, and a file appears when it is complete.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np

from ..codec.arrays import refuse_masked
from ..errors import GGUFError
from ..formats.tensor_types import QType, nbytes
from ..formats.value_types import ValueType
from ..read.shards import shard_name
from ..write.keys import check_key, check_tensor_name, doubts
from ..write.outfile import OutputFile, check_free_space
from ..write.serialize import Info, value_type
from ..write.stream import padded
from .fields import GGUFFields, GGUFValue

__all__ = ["GGUFValue", "GGUFWriter", "TensorInfo", "WriterState"]

logger = logging.getLogger(__name__)

_FROM_DTYPE = {
    "float16": QType.F16,
    "float32": QType.F32,
    "float64": QType.F64,
    "int8": QType.I8,
    "int16": QType.I16,
    "int32": QType.I32,
    "int64": QType.I64,
}
# Tensors in the temporary file are read back in pieces of this many bytes.
PIECE = 1 << 24


class WriterState(Enum):
    """How far a file has been written; each ``write_*`` call asks for the one before it."""

    NO_FILE = auto()
    EMPTY = auto()
    HEADER = auto()
    KV_DATA = auto()
    TI_DATA = auto()
    WEIGHTS = auto()


@dataclass
class TensorInfo:
    """A planned tensor: logical shape, type, bytes, and the array until it is written (lazy ones as they are given)."""

    shape: Sequence[int]
    dtype: QType
    nbytes: int
    tensor: Any = None


class GGUFWriter(GGUFFields):
    """Write GGUF with the calls of the gguf package's class of this name.

    Parameters
    ----------
    path : path-like or None
        May be given to :meth:`write_header_to_file` instead.
    arch : str
        Written as ``general.architecture`` and put into the keys of the ``add_*`` calls.
    use_temp_file : bool
        Keep tensors in a temporary file beside the output instead of memory until they are written.
    endianess : int
        0 (little) or 1 (big); ``gguf.GGUFEndian`` fits. Block data is written as it is given.
    split_max_tensors, split_max_size : int
        Begin a new shard before one holds more tensors or bytes; 0 for no limit.
    dry_run : bool
        Print the names of the files that would be written, and exit.
    small_first_shard : bool
        Keep tensors out of the first shard.

    Attributes
    ----------
    kv_data, tensors : list of dict
        Metadata and planned tensors of each shard; what is put into them or taken out counts.
    state : WriterState
    data_alignment : int
    fout : list of file, or None
        The files while they are written, under their hidden names. What a program writes into them itself has to
        be what was planned: :meth:`close` lets a file appear only when it has the planned size.

    Notes
    -----
    ``add_block_count``, ``add_token_list`` and the rest of gguf's calls exist under their names; the table of their
    keys is :data:`ggufx.gguf_names.keys.KEYS`. Shards after the first repeat ``general.alignment`` where it was set,
    because each is read by itself; gguf leaves it out.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        arch: str,
        use_temp_file: bool = False,
        endianess: int = 0,
        split_max_tensors: int = 0,
        split_max_size: int = 0,
        dry_run: bool = False,
        small_first_shard: bool = False,
    ) -> None:
        super().__init__(arch, endianess)
        self.path = Path(path) if path else None
        self.data_alignment = 32
        self.use_temp_file = use_temp_file
        self.temp_file: IO[bytes] | None = None
        self.split_max_tensors = split_max_tensors
        self.split_max_size = split_max_size
        self.dry_run = dry_run
        self.small_first_shard = small_first_shard
        self.state = WriterState.NO_FILE
        self.tensors: list[dict[str, TensorInfo]] = [{}, {}] if small_first_shard else [{}]
        self.fout: list[IO[bytes]] | None = None
        self._outputs: list[OutputFile] = []
        # Where each tensor of each shard ends; known when the tensor infos are written.
        self._ends: list[list[int]] = []
        self.add_architecture()

    def add_custom_alignment(self, alignment: int) -> None:
        """Set the alignment of tensor data, a power of two."""
        if alignment <= 0 or alignment & (alignment - 1):
            raise ValueError(f"alignment is {alignment}, a power of two was expected")
        self.data_alignment = alignment
        self.add_key_value("general.alignment", alignment, ValueType.UINT32)

    def add_shard_kv_data(self) -> None:
        """Give each shard its ``split.*`` keys, where there are several; :meth:`write_header_to_file` does it."""
        count = len(self.tensors)
        if count == 1:
            return
        alignment = {k: v for k, v in self.kv_data[0].items() if k == "general.alignment"}
        self.kv_data.extend(dict(alignment) for _ in range(len(self.kv_data), count))
        total = sum(len(tensors) for tensors in self.tensors)
        for number, fields in enumerate(self.kv_data):
            fields["split.no"] = GGUFValue(number, ValueType.UINT16)
            fields["split.count"] = GGUFValue(count, ValueType.UINT16)
            fields["split.tensors.count"] = GGUFValue(total, ValueType.INT32)

    # --- tensors -----------------------------------------------------------------------------------------------------

    @staticmethod
    def ggml_pad(x: int, n: int) -> int:
        """The next multiple of `n`."""
        return padded(x, n)

    def add_tensor_info(
        self,
        name: str,
        tensor_shape: Sequence[int],
        tensor_dtype: Any,
        tensor_nbytes: int,
        raw_dtype: int | None = None,
    ) -> None:
        """Plan a tensor whose data :meth:`write_tensor_data` brings later.

        Parameters
        ----------
        name : str
        tensor_shape : sequence of int
            In values; in bytes where `tensor_dtype` is uint8 and `raw_dtype` is given.
        tensor_dtype : dtype
        tensor_nbytes : int
        raw_dtype : int, optional
            The tensor type, if the dtype doesn't say it.

        Raises
        ------
        ValueError
            If the name is taken, the file is begun, or type, shape and bytes don't agree.
        """
        if self.state is not WriterState.NO_FILE:
            raise ValueError(f"tensor {name!r} comes too late: the file is already {self.state.name}")
        check_tensor_name(name)
        if any(name in tensors for tensors in self.tensors):
            raise ValueError(f"tensor {name!r} is there already")
        dtype = np.dtype(tensor_dtype)
        shape = tuple(int(d) for d in tensor_shape)
        if raw_dtype is None:
            if dtype.name not in _FROM_DTYPE:
                raise ValueError(f"tensor {name!r}: {dtype} needs raw_dtype; by themselves {', '.join(_FROM_DTYPE)} do")
            qtype = _FROM_DTYPE[dtype.name]
        else:
            qtype = QType(int(raw_dtype))
            if dtype == np.uint8:
                blocks, rest = divmod(shape[-1], qtype.block_bytes) if shape else (0, 1)
                if rest:
                    raise ValueError(
                        f"tensor {name!r}: byte shape {shape} isn't whole blocks of {qtype.name} "
                        f"({qtype.block_bytes} bytes)"
                    )
                shape = (*shape[:-1], blocks * qtype.block_size)
        if (size := nbytes(shape, qtype)) != tensor_nbytes:
            raise ValueError(
                f"tensor {name!r}: shape {shape} of {qtype.name} is {size} bytes, but {tensor_nbytes} are announced"
            )
        last = self.tensors[-1]
        if last and (
            (self.split_max_tensors and len(last) >= self.split_max_tensors)
            or (self.split_max_size and sum(t.nbytes for t in last.values()) + tensor_nbytes > self.split_max_size)
        ):
            self.tensors.append({})
        self.tensors[-1][name] = TensorInfo(shape, qtype, tensor_nbytes)

    def add_tensor(
        self,
        name: str,
        tensor: Any,
        raw_shape: Sequence[int] | None = None,
        raw_dtype: int | None = None,
        tensor_endianess: int | None = None,
    ) -> None:
        """Plan a tensor with its data: an array, or a lazy one that is evaluated when it is written.

        Parameters
        ----------
        name : str
        tensor : ndarray or gguf's LazyNumpyTensor
        raw_shape : sequence of int, optional
            Used instead of the array's shape.
        raw_dtype : int, optional
            The tensor type. With a uint8 array, shapes count bytes.
        tensor_endianess : int, optional
            Byte order of the array, the machine's by default.
        """
        if self._differs(tensor_endianess):
            tensor = tensor.byteswap(inplace=False)
        shape = tensor.shape if raw_shape is None else raw_shape
        self.add_tensor_info(name, shape, tensor.dtype, tensor.nbytes, raw_dtype)
        if not self.use_temp_file:
            self.tensors[-1][name].tensor = tensor
            return
        if self.temp_file is None:
            self.temp_file = tempfile.TemporaryFile(dir=self.path.parent if self.path else None)  # noqa: SIM115
        self.temp_file.write(_raw(tensor))

    def _differs(self, tensor_endianess: int | None) -> bool:
        native = 1 if sys.byteorder == "big" else 0
        return (native if tensor_endianess is None else tensor_endianess) != self.endianess

    def get_total_parameter_count(self) -> tuple[int, int, int, int]:
        """Parameters in all, shared, of one expert, and the number of experts; LoRA pairs make the total negative."""
        total = shared = of_expert = expert_sum = expert_tensors = 0
        lora_a: tuple[str, Sequence[int]] | None = None
        for name, info in ((n, t) for tensors in self.tensors for n, t in tensors.items()):
            shape = tuple(info.shape)
            if name.endswith(".lora_a"):
                lora_a = name, shape
                continue
            if name.endswith(".lora_b"):
                if lora_a is None or lora_a[0] != name[:-1] + "a":
                    logger.warning("the size of a LoRA whose pairs aren't in order can't be told")
                    return 0, 0, 0, 0
                shape = (*shape[:-1], lora_a[1][-1])
            size = prod(shape)
            total += size
            if "_exps." in name and len(shape) >= 3:
                experts = shape[-2 if ".bias" in name else -3]
                of_expert += size // experts
                expert_sum += experts
                expert_tensors += 1
            else:
                shared += size
        return (
            -total if lora_a is not None else total,
            shared,
            of_expert,
            expert_sum // expert_tensors if expert_tensors else 0,
        )

    # --- writing -----------------------------------------------------------------------------------------------------

    def format_shard_names(self, path: Path) -> list[Path]:
        """The files that will be written for `path`."""
        if len(self.tensors) == 1:
            return [path]
        count = len(self.tensors)
        return [path.with_name(shard_name(path.stem, number + 1, count)) for number in range(count)]

    def print_plan(self) -> list[Path]:
        """Log the files that will be written and return them; a dry run prints them and exits."""
        if self.path is None:
            raise ValueError("the writer has no path yet")
        names = self.format_shard_names(self.path)
        for name, tensors in zip(names, self.tensors, strict=True):
            size = self.format_n_bytes_to_str(sum(t.nbytes for t in tensors.values()))
            logger.info("%s: n_tensors = %d, total_size = %s", name, len(tensors), size)
        if self.dry_run:
            for name in names:
                print(name)
            sys.exit()
        return names

    def open_output_file(self, path: Path | None = None) -> None:
        """Open the files under their hidden names; may be called again with the same path."""
        if self.state is WriterState.EMPTY and (path is None or path == self.path):
            return
        self._expect(WriterState.NO_FILE)
        if path is not None:
            self.path = Path(path)
        if self.path is None:
            return
        names = self.print_plan()
        planned = [info.nbytes for tensors in self.tensors for info in tensors.values()]
        check_free_space(os.path.realpath(names[0]), sum(padded(n, self.data_alignment) for n in planned))
        self.fout = []
        self._let_go = weakref.finalize(self, _let_go, self._outputs, self.fout)
        for name in names:
            self._outputs.append(OutputFile(name))
            self.fout.append(self._outputs[-1].stream())
        self.state = WriterState.EMPTY

    def write_header_to_file(self, path: Path | None = None) -> None:
        """Begin the files; no tensor can be added after it."""
        if len(self.tensors) == 1 and (self.split_max_tensors or self.split_max_size):
            logger.warning("the model stays within one shard")
        for key in (key for fields in self.kv_data for key in fields):
            check_key(key)
        self._check_alignment()
        sizes = {name: info.nbytes for tensors in self.tensors for name, info in tensors.items()}
        for doubt in doubts(sizes, self.split_max_size or None):
            logger.warning("%s", doubt)
        self.open_output_file(path)
        fout = self._expect(WriterState.EMPTY)
        self.add_shard_kv_data()
        layout = self._layout
        for file, tensors, fields in zip(fout, self.tensors, self.kv_data, strict=True):
            file.write(layout.counts(len(tensors), len(fields)))
        self.state = WriterState.HEADER

    def write_kv_data_to_file(self) -> None:
        """Write the metadata."""
        layout = self._layout
        for file, fields in zip(self._expect(WriterState.HEADER), self.kv_data, strict=True):
            for key, field in fields.items():
                file.write(layout.field(key, self._encoded(key, field)))
        self.state = WriterState.KV_DATA

    def write_ti_data_to_file(self) -> None:
        """Write the tensor infos."""
        layout = self._layout
        for file, tensors in zip(self._expect(WriterState.KV_DATA), self.tensors, strict=True):
            offset, ends = 0, []
            for name, info in tensors.items():
                file.write(layout.info(Info(name, tuple(info.shape), info.dtype, offset)))
                ends.append(offset + info.nbytes)
                offset = padded(offset + info.nbytes, self.data_alignment)
            start = padded(file.tell(), self.data_alignment)
            self._ends.append([start + end for end in ends])
        self.state = WriterState.TI_DATA

    def write_padding(self, fp: IO[bytes], n: int, align: int | None = None) -> None:
        """Write the zeros that bring `n` bytes to a multiple of `align`, by default of the data's alignment."""
        fp.write(bytes(-n % (self.data_alignment if align is None else align)))

    def write_tensor_data(self, tensor: Any, tensor_endianess: int | None = None) -> None:
        """Write the data of the next tensor of those planned by :meth:`add_tensor_info`.

        Raises
        ------
        ValueError
            If all are written, the bytes aren't as many as planned, or the dimensions are in another order.
        """
        if self.state not in (WriterState.TI_DATA, WriterState.WEIGHTS):
            raise ValueError(f"the file is {self.state.name}, write_ti_data_to_file comes first")
        number = next((n for n, tensors in enumerate(self.tensors) if tensors), None)
        if number is None:
            raise ValueError("all planned tensors are written already")
        name, info = next(iter(self.tensors[number].items()))
        if info.nbytes != tensor.nbytes:
            raise ValueError(f"tensor {name!r}: {tensor.nbytes} bytes are given, {info.nbytes} were planned")
        rows = info.shape[-1:] if tensor.dtype != np.uint8 else [nbytes(info.shape[-1:], info.dtype)]
        planned, given = (*info.shape[:-1], *rows), tuple(tensor.shape)
        if planned != given and sorted(planned) == sorted(given):
            raise ValueError(f"tensor {name!r}: an array of shape {given} is given, shape {planned} was planned")
        if self._differs(tensor_endianess):
            tensor = tensor.byteswap(inplace=False)
        del self.tensors[number][name]
        self._put(number, name, info.nbytes, [_raw(tensor)])
        self.state = WriterState.WEIGHTS

    def write_tensors_to_file(self, *, progress: bool = False) -> None:
        """Write the data of all tensors, evaluating lazy ones and releasing each when it is written."""
        self.write_ti_data_to_file()
        bar = None
        if progress:
            from tqdm import tqdm

            total = sum(info.nbytes for tensors in self.tensors for info in tensors.values())
            bar = tqdm(desc="Writing", total=total, unit="byte", unit_scale=True)
        if self.temp_file is not None:
            self.temp_file.seek(0)
        for number, (file, tensors) in enumerate(zip(self.fout or (), self.tensors, strict=True)):
            self.write_padding(file, file.tell())
            for name, info in tensors.items():
                self._put(number, name, info.nbytes, self._data(name, info))
                info.tensor = None
                if bar is not None:
                    bar.update(info.nbytes)
        if bar is not None:
            bar.close()
        self.state = WriterState.WEIGHTS
        self._publish()

    def flush(self) -> None:
        """Hand what is buffered to the system; the files keep their hidden names until they are complete."""
        for file in self.fout or ():
            file.flush()

    def close(self) -> None:
        """Let the files appear, if they haven't.

        Raises
        ------
        GGUFError
            If planned tensors weren't written; no file appears then.
        """
        try:
            if self._outputs and self.state is not WriterState.EMPTY:
                self._publish()
        finally:
            if self.fout is not None:
                self._let_go()
            if self.temp_file is not None:
                self.temp_file.close()
            self.fout = self.temp_file = None

    @staticmethod
    def format_n_bytes_to_str(num: int) -> str:
        """A byte count as gguf prints it, in decimal units."""
        if not num:
            return "negligible - metadata only"
        size = float(num)
        for unit in ("", "K", "M", "G"):
            if abs(size) < 1000:
                return f"{size:3.1f}{unit}"
            size /= 1000
        return f"{size:.1f}T - over 1TB, split recommended"

    def _expect(self, state: WriterState) -> list[IO[bytes]]:
        if self.state is not state:
            raise ValueError(f"the output file should be {state.name}, but is {self.state.name}")
        return self.fout or []

    def _check_alignment(self) -> None:
        """A file whose tensors don't lie by its ``general.alignment`` can't be read."""
        field = self.kv_data[0].get("general.alignment")
        if field is None or not any(self.tensors):
            return
        if field.type != ValueType.UINT32 or field.value != self.data_alignment:
            raise ValueError(
                f"metadata key 'general.alignment' is {field.value} ({value_type(int(field.type)).name}), but tensors "
                f"are aligned to {self.data_alignment}; add_custom_alignment sets both"
            )

    def _data(self, name: str, info: TensorInfo) -> Iterator[Any]:
        """A tensor's bytes; those in the temporary file follow each other as they are written."""
        if self.temp_file is not None:
            for at in range(0, info.nbytes, PIECE):
                yield self.temp_file.read(min(PIECE, info.nbytes - at))
        elif info.tensor is None:
            raise ValueError(f"tensor {name!r} was planned without data: write_tensor_data brings it")
        else:
            yield _raw(info.tensor)

    def _put(self, number: int, name: str, size: int, pieces: Iterable[Any]) -> None:
        assert self.fout is not None
        file = self.fout[number]
        self.write_padding(file, file.tell())
        if (written := sum(file.write(piece) for piece in pieces)) != size:
            raise GGUFError(f"tensor {name!r}: its source gave {written} bytes where {size} were planned")
        self.write_padding(file, size)

    def _publish(self) -> None:
        """Check that the files hold what was planned, and put them under their names."""
        self.flush()
        ends = self._ends or [[sys.maxsize] * len(tensors) for tensors in self.tensors]
        for out, planned in zip(self._outputs, ends, strict=True):
            out.measure()  # the bytes went past it, through fout
            if missing := sum(end > out.size for end in planned):
                raise GGUFError(f"{out.target}: {missing} planned tensors weren't written, so no file is made")
            if planned and out.size > padded(planned[-1], self.data_alignment):
                raise GGUFError(f"{out.target}: {out.size} bytes were written, {planned[-1]} were planned")
        for out in self._outputs:
            out.finish(out.size)
        while self._outputs:
            self._outputs.pop(0).publish()


def _raw(tensor: Any) -> memoryview:
    """The bytes of an array, evaluated if it is lazy."""
    if not isinstance(tensor, np.ndarray):
        to_eager = getattr(type(tensor), "to_eager", None)
        tensor = to_eager(tensor) if to_eager is not None else np.asarray(tensor)
    refuse_masked(tensor, "tensor")
    return np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data


def _let_go(outputs: list[OutputFile], fout: list[IO[bytes]]) -> None:
    """Close the files and remove those that aren't complete; also when a writer is dropped, or the program ends."""
    for file in fout:
        with suppress(OSError):  # a full disk, which the caller has heard of
            file.close()
    while outputs:
        outputs.pop().discard()
