"""Converting a Hugging Face checkpoint to a GGUF file in one streamed pass."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from ..codec.encode import NEEDS_IMATRIX
from ..codec.threads import thread_count
from ..errors import GGUFError, GGUFWarning
from ..formats.file_types import FileType
from ..formats.tensor_types import QType, nbytes
from ..formats.value_types import ValueType
from ..model.hyperparameters import ModelFacts
from ..requantize.choices import Request, TensorSpec, choose
from ..requantize.importance import Importance
from ..requantize.metadata import imatrix_keys, mix_of
from ..write.stream import Progress
from ..write.writer import Writer
from .adapter import convert_adapter, is_adapter
from .architectures import architecture_of
from .checkpoint import Checkpoint
from .encoding import write_tensors
from .fusing import fuse_gate_up, fuse_qkv
from .general import general_metadata
from .hparams import FILE_TYPE, Config, Keys, metadata_of
from .plan import guessed_type, plan_tensors
from .planned import Planned, Tensors
from .quantized import GroupedTensor, is_eight_bit, is_quantized, regrouped
from .types import MOSTLY, PLAIN, plain_type
from .vocabulary import Source

__all__ = ["Converted", "convert"]


@dataclass(frozen=True)
class Converted:
    """What a conversion did.

    Attributes
    ----------
    paths : tuple of str
        The files written.
    arch : str
    type : str
        The type or mix, the one ``auto`` stood for included.
    tensors : int
    nbytes : int
        Of all tensors.
    """

    paths: tuple[str, ...]
    arch: str
    type: str
    tensors: int
    nbytes: int


def convert(
    folder: str | os.PathLike[str],
    output: str | os.PathLike[str],
    type: str = "auto",
    *,
    pre: str | None = None,
    base: str | os.PathLike[str] | None = None,
    name: str | None = None,
    fuse_qkv: bool = False,
    fuse_gate_up: bool = False,
    fp8_as_q8: bool = False,
    imatrix: Importance | Mapping[str, npt.NDArray[Any]] | str | os.PathLike[str] | None = None,
    tensor_types: Sequence[tuple[str, QType]] = (),
    output_type: QType | None = None,
    embedding_type: QType | None = None,
    pure: bool = False,
    leave_output: bool = False,
    threads: int | None = None,
    sync: bool = True,
    progress: Progress | None = None,
) -> Converted:
    """Convert a Hugging Face checkpoint to a GGUF file, byte for byte as llama.cpp's converter does.

    Parameters
    ----------
    folder : path-like
        With config.json, weights (``model*.safetensors`` or ``pytorch_model*.bin``) and the tokenizer's files.
    output : path-like
        The file to write.
    type : str
        f32, f16, bf16, q8_0, tq1_0, tq2_0; or auto, the checkpoint's own half precision; or a mix of llama-quantize
        such as Q4_K_M.
    pre : str, optional
        The pre-tokenizer's name, where it can't be found.
    base : path-like, optional
        For an adapter (a folder with adapter_config.json): its model's folder, of which config.json is enough.
    name : str, optional
        The model's name in the metadata, whatever the folder says.
    fuse_qkv : bool
        Queries, keys and values of a layer as one tensor.
    fuse_gate_up : bool
        The gates and inputs of a layer's experts as one tensor, where llama.cpp knows it.
    fp8_as_q8 : bool
        Weights of 8-bit floats become Q8_0, which takes no more room, whatever the others become.
    imatrix, tensor_types, output_type, embedding_type, pure, leave_output
        For a mix, as :func:`ggufx.requantize` takes them.
    threads : int, optional
        At most this many.
    sync : bool
        Wait for the disk before the file appears.
    progress : callable, optional
        Called as ``progress(name, done, total)`` with the payload bytes written so far.

    Returns
    -------
    Converted

    Raises
    ------
    GGUFError
        If the model's class isn't known, weights are missing or damaged, or they contradict the configuration.
    ValueError
        If there is no such type, or an option is for mixes alone.

    Warns
    -----
    GGUFWarning
        Where auto makes float32 into F16, or values overflow to infinity.
    """
    if is_adapter(Path(folder)):
        done = convert_adapter(
            Path(folder), base, output, type, name, thread_count(threads), sync=sync, progress=progress
        )
        return Converted(tuple(done[0]), *done[1:])
    job = Job(Path(folder), keep=type.lower() == "auto")
    job.fp8_as_q8 = fp8_as_q8
    job.fuse(qkv=fuse_qkv, gate_up=fuse_gate_up)
    kind = job.resolve(type)
    job.importance = Importance.of(imatrix)
    job.request = Request(
        FileType.F32 if kind in PLAIN else FileType.parse(kind),
        imatrix=bool(job.importance.weights),
        pure=pure,
        tensor_types=tuple(tensor_types),
        output_type=output_type,
        embedding_type=embedding_type,
        leave_output=leave_output,
    )
    if kind in PLAIN and (imatrix is not None or job.request != Request(FileType.F32)):
        raise ValueError(f"imatrix and the types of single tensors are for mixes; {kind} gives all tensors one type")
    head, tail = job.surroundings(pre, name)
    return job.write(output, kind, head, tail, thread_count(threads), sync=sync, progress=progress)


class Job:
    """One conversion: the plan, the types, the metadata, and the writing."""

    def __init__(self, folder: Path, *, keep: bool = False) -> None:
        self.config = Config.read(folder)
        self.folder = folder
        self.row = architecture_of(self.config)
        self.checkpoint = Checkpoint(folder)
        self.tensors: Tensors = self.checkpoint
        self.keep = keep
        if is_quantized(self.config):
            self.tensors = regrouped(self.checkpoint, self.config)
        self.planned = plan_tensors(self.tensors, self.row, self.config, keep=keep)
        self.importance = Importance({})
        self.request = Request(FileType.F32)
        self.fp8_as_q8 = False

    def fuse(self, *, qkv: bool, gate_up: bool) -> None:
        """Make one tensor of several."""
        if (qkv and not self.row.fuses_qkv) or (gate_up and not self.row.fuses_gate_up):
            which = "gates and inputs of experts" if self.row.fuses_qkv else "queries, keys and values"
            raise GGUFError(f"{self.folder}: {self.row.name} models can't have {which} as one tensor")
        if qkv:
            self.planned = fuse_qkv(self.planned, str(self.folder))
        if gate_up:
            self.planned = fuse_gate_up(self.planned, str(self.folder))

    def resolve(self, type: str) -> str:
        """The name of a plain type or a mix."""
        name = type.upper()
        if name == "AUTO":
            kind = guessed_type(self.tensors, self.row, self.config)
            if kind is QType.F16 and not any(t.dtype == "F16" for t in self.tensors.values()):
                warnings.warn(
                    f"{self.folder}: auto makes this checkpoint, which has nothing in half precision, into F16",
                    GGUFWarning,
                    stacklevel=3,
                )
            return kind.name
        if name not in PLAIN:
            FileType.parse(type)
        return name

    def surroundings(self, pre: str | None, name: str | None = None) -> tuple[Keys, Keys]:
        """The general keys and the tokenizer's."""
        shapes = [(p.name, p.shape) for p in self.planned]
        head = general_metadata(self.folder, self.config.raw, tensors=shapes, name=name)
        tail = self.row.vocabulary(Source(self.folder, self.config.raw, self.config.values, pre))
        return head, tail

    def metadata(self, file_type: int, head: Mapping[str, Any], tail: Mapping[str, Any]) -> Keys:
        """All keys in the reference's order."""
        arch = self.row.name
        packed = Counter(p.packed for p in self.planned if p.packed is not None)
        if file_type in (0, 1, 32):
            file_type = next((number for qtype, number in MOSTLY.items() if qtype in packed), file_type)
        kept = Counter({qtype: n for qtype, n in packed.items() if qtype not in MOSTLY})
        if kept:
            file_type = int(mix_of(kept.most_common(1)[0][0]))
        self.config.values[FILE_TYPE] = file_type
        keys: Keys = {"general.architecture": (arch, ValueType.STRING)}
        if self.row.first_keys is not None:
            keys.update(self.row.first_keys(self.config, self.checkpoint))
        keys.update((k, v) for k, v in head.items() if k != "general.architecture")
        keys.update(metadata_of(self.row.keys, self.config, arch))
        keys["general.quantization_version"] = (2, ValueType.UINT32)
        keys.update(tail)
        return keys

    # --- types -------------------------------------------------------------------------------------------------------

    def typed(self, kind: str, keys: Keys) -> tuple[list[tuple[Planned, QType]], int]:
        """The tensors with their types, in the order they are written, and the file's type."""
        if kind in PLAIN:
            qtype, number = PLAIN[kind]
            eight = {t.name for t in self.tensors.values() if self.fp8_as_q8 and is_eight_bit(t)}
            return [(p, plain_type(p, QType.Q8_0 if p.source in eight else qtype)) for p in self.planned], number
        by_name = {p.name: p for p in self.planned}
        specs = [TensorSpec(p.name, p.shape, QType.F32 if p.packed is None else p.packed) for p in self.planned]
        facts = ModelFacts.from_metadata({key: value for key, (value, _) in keys.items()})
        out = []
        for choice in choose(specs, facts, self.request):
            p, qtype = by_name[choice.name], QType(choice.qtype)
            needy = choice.needs_imatrix or qtype in NEEDS_IMATRIX
            if p.packed is None and needy and self.importance.columns(p.name, p.shape) is None:
                raise GGUFError(f"tensor {p.name!r}: {qtype.name} needs an importance matrix, and there is none for it")
            out.append((p, qtype if p.packed is None else p.packed))
        return out, int(self.request.ftype)

    def _say_decoded(self, kind: str) -> None:
        """Warn where quantized weights aren't kept, which is a choice and should be no accident."""
        decoded = [t for t in self.tensors.values() if isinstance(t, GroupedTensor) and not (self.keep and t.whole)]
        decoded = [t for t in decoded if t.block_type is not QType.NVFP4]
        if decoded and kind != "F32":
            hint = "; auto keeps them as they are" if all(t.block_type for t in decoded) else ""
            some = f"{len(decoded)} quantized weights such as {decoded[0].source!r}"
            warnings.warn(f"{some} are decoded and rounded to {kind}{hint}", GGUFWarning, stacklevel=4)

    # --- writing -----------------------------------------------------------------------------------------------------

    def write(
        self,
        output: str | os.PathLike[str],
        kind: str,
        head: Mapping[str, Any],
        tail: Mapping[str, Any],
        threads: int,
        *,
        sync: bool = True,
        progress: Progress | None = None,
    ) -> Converted:
        """Write the file."""
        self._say_decoded(kind)
        keys = self.metadata(0, head, tail)
        tensors, file_type = self.typed(kind, keys)
        keys = self.metadata(file_type, head, tail)
        if kind not in PLAIN:  # llama-quantize moves the two keys it sets to the end
            for name in ("general.quantization_version", "general.file_type"):
                keys[name] = keys.pop(name)
            keys.update(imatrix_keys(self.importance))
        inputs = [str(path) for path in self.checkpoint.paths] + [f for f in (self.importance.file,) if f is not None]
        writer = Writer(output, inputs=inputs, sync=sync, progress=progress)
        for key, (value, vtype) in keys.items():
            writer.set(key, value, vtype)
        paths = write_tensors(writer, tensors, self.importance, threads)
        size = sum(nbytes(p.shape, qtype) for p, qtype in tensors)
        return Converted(tuple(paths), self.row.name, kind, len(tensors), size)
