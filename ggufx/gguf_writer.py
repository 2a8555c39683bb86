"""The gguf package's writer calls over ours: the same names, the same bytes, whole files or none.

``from ggufx import GGUFWriter`` replaces ``from gguf import GGUFWriter``. What differs: wrong values are refused at the
call, arrays are released as they are written, and a file appears when it is complete.
"""

from __future__ import annotations

import logging
import os
import string
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import GGUFError
from .fieldbytes import Encoded, Layout, value_type
from .formats import QType, nbytes
from .gguf_keys import KEYS
from .outfile import OutputFile
from .splits import shard_name
from .stream import Entry, PlannedFile, Stream, header_bytes, padded
from .valuetypes import ValueType

__all__ = ["GGUFWriter", "TensorInfo", "WriterState"]

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
# Spooled tensors are read back in pieces of this many bytes.
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
    """A planned tensor: logical shape, type, bytes, and the array until it is written."""

    shape: Sequence[int]
    dtype: QType
    nbytes: int
    tensor: Any = None


class GGUFWriter:
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

    Notes
    -----
    ``add_block_count``, ``add_token_list`` and the rest of gguf's 240 calls exist under their names; the table of their
    keys is :data:`ggufx.gguf_keys.KEYS`. Shards after the first repeat ``general.alignment`` where it was set, because
    each is read by itself; gguf leaves it out.
    """

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Callable[..., None]: ...

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
        self.path = Path(path) if path else None
        self.arch = arch
        self.endianess = endianess
        self.data_alignment = 32
        self.use_temp_file = use_temp_file
        self.split_max_tensors = split_max_tensors
        self.split_max_size = split_max_size
        self.dry_run = dry_run
        self.small_first_shard = small_first_shard
        self.state = WriterState.NO_FILE
        self.tensors: list[dict[str, TensorInfo]] = [{}, {}] if small_first_shard else [{}]
        self._layout = Layout("big" if endianess else "little")
        self._fields: dict[str, Encoded] = {}
        self._spool: Any = None
        self._stream: Stream | None = None
        self.add_architecture()

    # --- metadata ----------------------------------------------------------------------------------------------------

    def add_key_value(self, key: str, val: Any, vtype: int, sub_type: int | None = None) -> None:
        """Set a key to a value of the given type; `sub_type` is the elements' type of an array.

        Raises
        ------
        TypeError, ValueError
            If the value isn't of the type; the message names the key.
        """
        kind = value_type(int(vtype))
        if key in self._fields:
            logger.warning("%r is there already and gets a new value", key)
        if kind is ValueType.ARRAY:
            if sub_type is not None:
                self._fields[key] = self._layout.encode(key, val, value_type(int(sub_type)))
            elif isinstance(val, bytes):
                self._fields[key] = self._layout.encode(key, list(val), ValueType.UINT8)
            else:
                self._fields[key] = self._layout.encode(key, val)
            if self._fields[key].type is not ValueType.ARRAY:
                raise TypeError(f"metadata key {key!r}: a sequence was expected, not {val!r}")
            return
        if kind is ValueType.BOOL:
            val = bool(val)
        elif kind not in (ValueType.STRING, ValueType.FLOAT32, ValueType.FLOAT64) and isinstance(val, bool):
            val = int(val)
        self._fields[key] = self._layout.encode(key, val, kind)

    def add_string(self, key: str, val: str | bytes) -> None:
        """Set a string; empty ones are left out, as gguf does."""
        if val:
            self.add_key_value(key, val, ValueType.STRING)

    def add_array(self, key: str, val: Sequence[Any]) -> None:
        """Set an array; empty ones are left out, as gguf does."""
        if len(val):
            self.add_key_value(key, val, ValueType.ARRAY)

    def add_architecture(self) -> None:
        """Set ``general.architecture``."""
        self.add_string("general.architecture", self.arch)

    def add_custom_alignment(self, alignment: int) -> None:
        """Set the alignment of tensor data, a power of two."""
        if alignment <= 0 or alignment & (alignment - 1):
            raise ValueError(f"alignment is {alignment}, a power of two was expected")
        self.data_alignment = alignment
        self.add_key_value("general.alignment", alignment, ValueType.UINT32)

    def add_dense_features_dims(self, dense: str, in_f: int, out_f: int) -> None:
        """Set the sizes of a dense module behind an embedding model."""
        self.add_key_value(f"{self.arch}.{dense}_feat_in", in_f, ValueType.UINT32)
        self.add_key_value(f"{self.arch}.{dense}_feat_out", out_f, ValueType.UINT32)

    def add_chat_template(self, value: str | Sequence[Mapping[str, str]]) -> None:
        """Set the chat template, or several by name with the one called ``default`` as the template."""
        if not isinstance(value, str):
            letters = string.ascii_letters + string.digits
            named = {
                "".join(c if c in letters else "_" for c in choice.get("name", "")): choice.get("template")
                for choice in value
            }
            templates = {name: text for name, text in named.items() if name and text is not None}
            default = templates.pop("default", None)
            for name, text in templates.items():
                self.add_string(f"tokenizer.chat_template.{name}", text)
            if templates:
                self.add_array("tokenizer.chat_templates", list(templates))
            if default is None:
                return
            value = default
        self.add_string("tokenizer.chat_template", value)

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
        shape = tensor.shape if raw_shape is None else raw_shape
        self.add_tensor_info(name, shape, tensor.dtype, tensor.nbytes, raw_dtype)
        info = self.tensors[-1][name]
        swap = self._differs(tensor_endianess)
        if self.use_temp_file:
            info.tensor = self._spooled(_eager(tensor, swap))
        else:
            info.tensor = lambda: _eager(tensor, swap)

    def _differs(self, tensor_endianess: int | None) -> bool:
        native = 1 if sys.byteorder == "big" else 0
        return (native if tensor_endianess is None else tensor_endianess) != self.endianess

    def _spooled(self, array: np.ndarray[Any, Any]) -> Callable[[], Iterator[bytes]]:
        """Put an array's bytes into the temporary file; returns what reads them back."""
        if self._spool is None:
            self._spool = tempfile.TemporaryFile(dir=self.path.parent if self.path else None)  # noqa: SIM115
        spool = self._spool
        start = spool.seek(0, os.SEEK_END)
        spool.write(array.reshape(-1).view(np.uint8).data)
        size = array.nbytes

        def read() -> Iterator[bytes]:
            for at in range(0, size, PIECE):
                spool.seek(start + at)
                yield spool.read(min(PIECE, size - at))

        return read

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
            logger.info("%s: %d tensors, %d bytes", name, len(tensors), sum(t.nbytes for t in tensors.values()))
        if self.dry_run:
            for name in names:
                print(name)
            sys.exit()
        return names

    def open_output_file(self, path: Path | None = None) -> None:
        """Settle the path; may be called again with the same one."""
        if self.state is WriterState.EMPTY and (path is None or path == self.path):
            return
        self._expect(WriterState.NO_FILE)
        if path is not None:
            self.path = Path(path)
        if self.path is not None:
            self.print_plan()
            self.state = WriterState.EMPTY

    def write_header_to_file(self, path: Path | None = None) -> None:
        """Begin the file; no tensor can be added after it."""
        if len(self.tensors) == 1 and (self.split_max_tensors or self.split_max_size):
            logger.warning("the model stays within one shard")
        self.open_output_file(path)
        self._advance(WriterState.EMPTY, WriterState.HEADER)

    def write_kv_data_to_file(self) -> None:
        """Settle the metadata."""
        self._advance(WriterState.HEADER, WriterState.KV_DATA)

    def write_ti_data_to_file(self) -> None:
        """Settle the tensor infos."""
        self._advance(WriterState.KV_DATA, WriterState.TI_DATA)

    def write_tensor_data(self, tensor: Any, tensor_endianess: int | None = None) -> None:
        """Write the data of the next tensor of those planned by :meth:`add_tensor_info`.

        Raises
        ------
        ValueError
            If all are written, or the bytes aren't as many as planned.
        """
        if self.state not in (WriterState.TI_DATA, WriterState.WEIGHTS):
            raise ValueError(f"the file is {self.state.name}, write_ti_data_to_file comes first")
        stream = self._begin()
        if stream.next is None:
            raise ValueError("all planned tensors are written already")
        if stream.next.nbytes != tensor.nbytes:
            raise ValueError(
                f"tensor {stream.next.name!r}: {tensor.nbytes} bytes are given, {stream.next.nbytes} were planned"
            )
        stream.put(_eager(tensor, self._differs(tensor_endianess)))

    def write_tensors_to_file(self, *, progress: bool = False) -> None:
        """Write the data of all tensors, evaluating lazy ones and releasing each when it is written."""
        self.write_ti_data_to_file()
        stream = self._begin()
        bar = None
        if progress:
            from tqdm import tqdm

            bar = tqdm(desc="Writing", total=stream.total, unit="byte", unit_scale=True)
        infos = [info for tensors in self.tensors for info in tensors.values()]
        for info in infos:
            stream.put()
            info.tensor = None
            if bar is not None:
                bar.update(info.nbytes)
        if bar is not None:
            bar.close()
        self._finish()

    def flush(self) -> None:
        """Nothing to do: a file appears when it is complete."""

    def close(self) -> None:
        """Let the files appear, if they haven't.

        Raises
        ------
        GGUFError
            If planned tensors weren't written; no file appears then.
        """
        pending = sum(len(t) for t in self.tensors) if self._stream is None else len(self._stream)
        if self.state in (WriterState.NO_FILE, WriterState.EMPTY):
            return
        if self._stream is None and self.state is not WriterState.WEIGHTS and not pending:
            self._finish_early()
        elif self._stream is not None:
            if pending:
                self._stream.discard()
                self._stream = None
                raise GGUFError(f"{self.path}: {pending} planned tensors weren't written, so no file is made")
            self._finish()
        elif pending and self.state is not WriterState.WEIGHTS:
            raise GGUFError(f"{self.path}: {pending} planned tensors weren't written, so no file is made")

    def _expect(self, state: WriterState) -> None:
        if self.state is not state:
            raise ValueError(f"the output file should be {state.name}, but is {self.state.name}")

    def _advance(self, before: WriterState, after: WriterState) -> None:
        self._expect(before)
        self.state = after

    def _files(self, *, pad: bool) -> list[PlannedFile]:
        assert self.path is not None
        names = self.format_shard_names(self.path)
        total = sum(len(t) for t in self.tensors)
        files = []
        for number, (name, tensors) in enumerate(zip(names, self.tensors, strict=True)):
            fields = dict(self._fields) if number == 0 else {}
            if number and "general.alignment" in self._fields:
                fields["general.alignment"] = self._fields["general.alignment"]
            if len(names) > 1:
                for key, value, kind in (
                    ("split.no", number, ValueType.UINT16),
                    ("split.count", len(names), ValueType.UINT16),
                    ("split.tensors.count", total, ValueType.INT32),
                ):
                    fields[key] = self._layout.encode(key, value, kind)
            entries = [Entry(n, tuple(t.shape), t.dtype, t.nbytes, _source(t), None) for n, t in tensors.items()]
            header = header_bytes(self._layout, fields, entries, self.data_alignment, pad=pad)
            files.append(PlannedFile(str(name), header, entries))
        return files

    def _begin(self) -> Stream:
        if self._stream is None:
            self._stream = Stream(self._files(pad=True), self.data_alignment)
            self.state = WriterState.WEIGHTS
        return self._stream

    def _finish(self) -> None:
        assert self._stream is not None
        try:
            self._stream.finish()
        finally:
            self._stream.discard()
            self._stream = None
            if self._spool is not None:
                self._spool.close()
                self._spool = None

    def _finish_early(self) -> None:
        """A file of metadata alone, ended where the calls ended: without padding, as gguf leaves it."""
        (file, *_) = self._files(pad=False)
        header = file.header[:24] if self.state is WriterState.HEADER else file.header
        out = OutputFile(file.path)
        try:
            out.write(header)
            out.finish(len(header))
            out.publish()
        finally:
            out.discard()
        self.state = WriterState.WEIGHTS


def _eager(tensor: Any, swap: bool) -> np.ndarray[Any, Any]:
    """The array, evaluated if it is lazy, its elements turned round if asked."""
    if not isinstance(tensor, np.ndarray):
        to_eager = getattr(type(tensor), "to_eager", None)
        tensor = to_eager(tensor) if to_eager is not None else np.asarray(tensor)
    array = np.ascontiguousarray(tensor)
    return array.byteswap() if swap else array


def _source(info: TensorInfo) -> Callable[[], Any]:
    def give() -> Any:
        if info.tensor is None:
            raise ValueError("this tensor was planned without data: write_tensor_data brings it")
        return info.tensor()

    return give


def _adder(kind: str, key: str) -> Callable[..., None]:
    """An ``add_*`` method that sets one key."""
    names = kind.split("|")

    def add(self: GGUFWriter, *args: Any, **kwargs: Any) -> None:
        *ids, value = (*args, *kwargs.values())
        value = getattr(value, "value", value)  # gguf's enums stand for their values
        full = key.format(arch=self.arch, id=ids[0] if ids else None)
        if "array" in names and (len(names) == 1 or not isinstance(value, int)):
            self.add_array(full, value)
        elif names[0] == "string":
            self.add_string(full, value)
        else:
            self.add_key_value(full, value, value_type(names[0]))

    add.__doc__ = f"Set ``{key}`` ({kind.replace('|', ' or ')})."
    return add


def _plain_adder(kind: ValueType) -> Callable[[GGUFWriter, str, Any], None]:
    """``add_uint32`` and its like, which take the key."""

    def add(self: GGUFWriter, key: str, val: Any) -> None:
        self.add_key_value(key, val, kind)

    add.__doc__ = f"Set a key to a {kind.name.lower()} value."
    return add


for _kind in ValueType:
    if _kind not in (ValueType.STRING, ValueType.ARRAY):
        setattr(GGUFWriter, f"add_{_kind.name.lower()}", _plain_adder(_kind))
for _spec, _calls in KEYS.items():
    for _name, _key in _calls.items():
        setattr(GGUFWriter, f"add_{_name}", _adder(_spec, _key))
