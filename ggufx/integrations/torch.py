"""GGUF tensors as PyTorch tensors, under the names that safetensors' users know. Needs the extra ``torch``.

Values are decoded straight into the memory that the torch tensors own; there is no second copy on the CPU.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

try:
    import torch
except ImportError:
    raise ImportError("ggufx.torch needs PyTorch; install ggufx[torch]") from None

from ..codec.dtypes import named_dtype
from ..formats.tensor_types import NUMERIC_DTYPES, QType
from ..model.loading import INTEGERS, decode_all, select
from ..read.reader import open as open_file

if TYPE_CHECKING:
    from types import TracebackType

    from ..read.tensor import Tensor

__all__ = ["load_file", "safe_open", "save_file", "to_torch"]

_FLOATS = ("float32", "float16", "bfloat16")
# The letters that safetensors has for dtypes.
_LETTERS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int8": "I8", "int16": "I16", "int32": "I32",
            "int64": "I64"}  # fmt: skip


def _dtype(dtype: object) -> str:
    """Name of the dtype that floats are decoded to."""
    if dtype is None:
        return "float32"
    named = named_dtype(dtype)
    with suppress(TypeError):
        named = named if named in _FLOATS else np.dtype(named).name  # type: ignore[call-overload]
    if named not in _FLOATS:
        raise TypeError(f"dtype should be torch.float32, torch.float16 or torch.bfloat16, not {dtype}")
    return str(named)


def _wrapped(array: np.ndarray[Any, Any], is_bfloat16: bool) -> torch.Tensor:
    """Make a torch tensor over the array's memory; bfloat16 has no numpy dtype and comes as uint16."""
    if is_bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def to_torch(
    tensor: Tensor,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | str | None = None,
    *,
    out: torch.Tensor | None = None,
    threads: int | None = None,
) -> torch.Tensor:
    """Decode one tensor into a torch tensor.

    Parameters
    ----------
    tensor : Tensor
        Of an open file; slices and experts too.
    device : str or torch.device
        Where the result goes. Other devices than the CPU get it by one transfer after decoding.
    dtype : torch.dtype or str, optional
        ``torch.float32`` (the default), ``float16`` or ``bfloat16``, or the name of one; integer tensors keep theirs.
    out : torch.Tensor, optional
        A contiguous CPU tensor of the same shape and dtype to decode into; returned (moved to `device` if that isn't
        the CPU).
    threads : int, optional
        As for :func:`ggufx.dequantize`.

    Returns
    -------
    torch.Tensor
        Of the tensor's logical shape.
    """
    integers = tensor.qtype in INTEGERS
    if integers and dtype is not None:
        raise TypeError(f"{tensor.label} holds integers, which keep their dtype; {dtype} was asked for")
    if out is not None:
        if out.device.type != "cpu" or not out.is_contiguous():
            raise ValueError("out should be a contiguous tensor on the CPU")
        if dtype is not None and out.dtype != getattr(torch, _dtype(dtype)):
            raise TypeError(f"out has dtype {out.dtype}, but dtype={dtype} was asked for")
        is_bfloat16 = out.dtype == torch.bfloat16
        target = out.detach().view(torch.int16).numpy().view(np.uint16) if is_bfloat16 else out.detach().numpy()
        tensor.dequantize("bfloat16" if is_bfloat16 else None, target, threads=threads)
        return out.to(device)
    wanted = None if integers else _dtype(dtype)
    return _wrapped(tensor.dequantize(wanted, threads=threads), wanted == "bfloat16").to(device)


def load_file(
    filename: str | os.PathLike[str],
    device: str | torch.device = "cpu",
    dtype: torch.dtype | str | None = None,
    names: Iterable[str] | str | None = None,
    *,
    threads: int | None = None,
) -> dict[str, torch.Tensor]:
    """Decode a file's tensors into torch tensors; the arguments of ``safetensors.torch.load_file`` and a few more.

    Parameters
    ----------
    filename : path-like or URL
        What :func:`ggufx.open` opens; a shard opens its set.
    device : str or torch.device
        Where the tensors go.
    dtype : torch.dtype or str, optional
        ``torch.float32`` (the default), ``float16`` or ``bfloat16``, or the name of one; integer tensors keep theirs.
    names : str or iterable of str, optional
        Only these tensors: names or :mod:`fnmatch` patterns.
    threads : int, optional
        As for :func:`ggufx.load`.

    Returns
    -------
    dict of str to torch.Tensor
        In file order.
    """
    wanted = _dtype(dtype)
    with open_file(filename) as f:
        chosen = select(f.tensors, names, f.path)
        if torch.device(device).type != "cpu":  # one tensor at a time, so that host memory stays small
            return {
                t.name: to_torch(t, device, None if t.qtype in INTEGERS else dtype, threads=threads) for t in chosen
            }
        kinds = {t.name: QType(t.qtype) for t in chosen if isinstance(t.qtype, QType)}
        arrays = decode_all(chosen, wanted, threads)
    return {
        name: _wrapped(array, wanted == "bfloat16" and kinds[name] not in INTEGERS) for name, array in arrays.items()
    }


def save_file(
    tensors: Mapping[str, torch.Tensor],
    filename: str | os.PathLike[str],
    metadata: Mapping[str, Any] | None = None,
    *,
    qtype: QType | int | str | None = None,
) -> None:
    """Write torch tensors to a new GGUF file; the arguments of ``safetensors.torch.save_file`` and one more.

    Parameters
    ----------
    tensors : mapping of str to torch.Tensor
        Tensors and parameters on the CPU, of float32, float16, bfloat16, float64 or a signed integer dtype.
    filename : path-like
        The file; it appears when it is complete.
    metadata : mapping, optional
        As for :func:`ggufx.write`.
    qtype : QType, int or str, optional
        What to quantize the tensors of two and more dimensions to; by default each is stored as it is.

    Raises
    ------
    TypeError, ValueError
        As :func:`ggufx.write` raises, naming the tensor.
    """
    from ..write.writer import Writer

    with Writer(filename) as writer:
        writer.update(metadata or {})
        for name, tensor in tensors.items():
            writer.add(name, tensor, qtype=qtype if getattr(tensor, "ndim", 0) > 1 else None)


class safe_open:
    """A file's tensors one by one, with the interface of ``safetensors.safe_open``.

    Parameters
    ----------
    filename : path-like or URL
        What :func:`ggufx.open` opens.
    framework : {"pt", "np"}
        Torch tensors or ndarrays.
    device : str or torch.device
        For torch tensors.
    dtype : torch.dtype or str, optional
        ``torch.float32`` (the default), ``float16`` or ``bfloat16``, or the name of one.
    """

    def __init__(
        self,
        filename: str | os.PathLike[str],
        framework: Literal["pt", "np"] = "pt",
        device: str | torch.device = "cpu",
        dtype: torch.dtype | str | None = None,
    ) -> None:
        if framework not in ("pt", "np"):
            raise ValueError(f"framework should be 'pt' or 'np', not {framework!r}")
        self._dtype = dtype
        _dtype(dtype)
        self._framework = framework
        self._device = device
        self._file = open_file(filename)

    def keys(self) -> list[str]:
        """Names of the tensors, in file order."""
        return list(self._file.tensors)

    def metadata(self) -> dict[str, str]:
        """The scalar metadata as strings, as safetensors' are."""
        return {key: str(v) for key, v in self._file.metadata.items() if isinstance(v, (str, int, float, bool))}

    def get_tensor(self, name: str) -> Any:
        """Decode one tensor."""
        return self._made(self._file[name])

    def get_slice(self, name: str) -> _Slice:
        """Return a tensor to be sliced; only the bytes of the slice are decoded."""
        return _Slice(self, self._file[name])

    def _made(self, tensor: Tensor) -> Any:
        dtype = None if tensor.qtype in INTEGERS else self._dtype
        if self._framework == "np":
            return tensor.dequantize(None if dtype is None else _dtype(dtype))
        return to_torch(tensor, self._device, dtype)

    def __enter__(self) -> safe_open:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


class _Slice:
    def __init__(self, file: safe_open, tensor: Tensor) -> None:
        self._file = file
        self._tensor = tensor

    def get_shape(self) -> list[int]:
        """Shape of the whole tensor."""
        return list(self._tensor.shape)

    def get_dtype(self) -> str:
        """What slices are decoded to, in safetensors' letters (``"F32"``, ``"BF16"`` ...)."""
        kind = QType(self._tensor.qtype)
        name = np.dtype(NUMERIC_DTYPES[kind]).name if kind in INTEGERS else _dtype(self._file._dtype)
        return _LETTERS[name]

    def __getitem__(self, key: Any) -> Any:
        return self._file._made(self._tensor[key])
