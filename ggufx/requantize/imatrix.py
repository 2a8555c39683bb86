"""Importance matrices: how strongly each input column of a weight is driven, as quantizing weighs its errors.

An importance matrix holds, for each tensor, sums of squared activations per input column and how many rows of
activations went into them; a stack of experts has one such row for each expert. Two file forms exist: GGUF
(``<tensor>.in_sum2`` and ``<tensor>.counts``), and llama.cpp's older binary form, ``.dat``, which stores means times a
number of calls.
"""

from __future__ import annotations

import math
import os
import struct
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ..codec.arrays import given_array
from ..errors import GGUFError, GGUFWarning
from ..read.reader import GGUFFile
from ..read.reader import open as open_gguf
from ..write.outfile import OutputFile
from ..write.writer import Writer

__all__ = ["Accumulator", "Entry", "ImportanceMatrix", "load"]

# Rows of activations in one call, where a .dat file doesn't say: llama-imatrix's default context.
CHUNK_SIZE: Final = 512

# The longest tensor name accepted from a .dat file.
_MAX_NAME: Final = 65535

# Beyond this, float32 and float64 counts don't fit the integers they become.
_MAX_COUNT: Final = 1 << 62

Floats = npt.NDArray[np.floating[Any]]


@dataclass
class Entry:
    """Statistics of one tensor.

    Attributes
    ----------
    sums : ndarray of float
        Sums of squared activations, (n, width); n is the number of experts, or 1.
    counts : ndarray of int64
        Rows of activations that were summed, (n,).
    """

    sums: Floats
    counts: npt.NDArray[np.int64]

    def means(self) -> npt.NDArray[np.float32]:
        """Mean squared activations, float32 (n, width); 1 for experts that never fired."""
        fired = self.counts > 0
        divisor = np.where(fired, self.counts, 1).astype(np.float32)
        with np.errstate(all="ignore"):
            means: npt.NDArray[np.float32] = np.divide(given_array(self.sums, "sums", np.float32), divisor[:, None])
        means[~fired] = 1
        return means


@dataclass
class ImportanceMatrix(Mapping[str, "npt.NDArray[np.float32]"]):
    """Importance of the input columns of many tensors; a mapping of tensor name to what `ggufx.quantize` takes.

    Attributes
    ----------
    entries : dict of str to Entry
        The statistics.
    datasets : list of str
        Names of the texts they were computed on.
    chunk_count, chunk_size : int
        Chunks of text, and rows of activations in each.

    Examples
    --------
    >>> importance = ggufx.imatrix.load("model.imatrix.gguf")                          # doctest: +SKIP
    >>> ggufx.quantize(w, "IQ2_XS", imatrix=importance["blk.0.ffn_up.weight"])         # doctest: +SKIP
    """

    entries: dict[str, Entry] = field(default_factory=dict)
    datasets: list[str] = field(default_factory=list)
    chunk_count: int = 0
    chunk_size: int = CHUNK_SIZE

    def __getitem__(self, name: str) -> npt.NDArray[np.float32]:
        """Importance of a tensor: (width,), or (n_expert, width) where each expert has its own."""
        means = self._means(name)
        return means[0] if len(means) == 1 else means

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def _means(self, name: str) -> npt.NDArray[np.float32]:
        entry = self.entries[name]
        idle = int(np.count_nonzero(entry.counts <= 0))
        if idle:
            what = f"{idle} of {len(entry.counts)} experts" if len(entry.counts) > 1 else "the tensor"
            warnings.warn(
                f"importance of {name!r}: {what} never fired and get neutral weights", GGUFWarning, stacklevel=3
            )
        return entry.means()

    def for_shape(self, name: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
        """Importance of a tensor, shaped for it.

        Parameters
        ----------
        name : str
            Tensor name.
        shape : tuple of int
            The tensor's shape in numpy's order: (rows, width) or (n_expert, rows, width).

        Returns
        -------
        ndarray of float32
            (width,), or (n_expert, width). The .dat form doesn't say how many experts there are; the shape does.

        Raises
        ------
        KeyError
            If the tensor has no importance.
        GGUFError
            If the importance doesn't match the shape.
        """
        means = self._means(name)
        width = shape[-1]
        experts = math.prod(shape[:-2])
        if means.size == width:
            return means.reshape(width)
        if means.size == experts * width:
            return means.reshape(*shape[:-2], width)
        raise GGUFError(
            f"importance of {name!r} has {means.size} values; a tensor of shape {shape} takes {width}"
            + (f" or {experts * width}" if experts > 1 else "")
        )

    def merge(self, *others: ImportanceMatrix) -> ImportanceMatrix:
        """Sum of several importance matrices, as if computed in one run.

        Raises
        ------
        GGUFError
            If a tensor's statistics differ in size.
        """
        merged = ImportanceMatrix(chunk_size=self.chunk_size)
        for matrix in (self, *others):
            for name, entry in matrix.entries.items():
                have = merged.entries.get(name)
                if have is None:
                    merged.entries[name] = Entry(entry.sums.astype(np.float64), entry.counts.copy())
                    continue
                if have.sums.size != entry.sums.size:
                    sizes = f"{have.sums.size} values in one matrix, {entry.sums.size} in another"
                    raise GGUFError(f"importance of {name!r} has {sizes}")
                # One count for all experts (the .dat form) stands for each of them.
                n = max(len(have.counts), len(entry.counts))
                with np.errstate(all="ignore"):
                    sums = have.sums.reshape(n, -1) + entry.sums.reshape(n, -1)
                merged.entries[name] = Entry(sums, have.counts + entry.counts)
            merged.datasets += matrix.datasets
            merged.chunk_count += matrix.chunk_count
        return merged

    def save(self, path: str | os.PathLike[str], form: str | None = None) -> None:
        """Write to a file.

        Parameters
        ----------
        path : path-like
            The file; it appears whole or not at all.
        form : {"gguf", "dat"}, optional
            By default ``"dat"`` for names that end so, else ``"gguf"``. The .dat form keeps one count for each tensor
            and leaves out tensors without data.
        """
        name = os.fspath(path)
        form = form or ("dat" if name.endswith(".dat") else "gguf")
        if form not in ("gguf", "dat"):
            raise ValueError(f"form must be 'gguf' or 'dat', not {form!r}")
        if form == "dat":
            self._save_dat(name)
        else:
            self._save_gguf(name)

    def _save_gguf(self, path: str) -> None:
        with Writer(path) as out:
            out.set("general.type", "imatrix")
            out.set("imatrix.datasets", self.datasets, "string")
            out.set("imatrix.chunk_count", self.chunk_count, "uint32")
            out.set("imatrix.chunk_size", self.chunk_size, "uint32")
            for name in sorted(self.entries):
                entry = self.entries[name]
                sums = given_array(entry.sums, f"importance of {name!r}", np.float32)
                if not np.isfinite(sums).all():
                    raise GGUFError(f"importance of {name!r}: a sum is too large for the file's float32")
                counts = entry.counts.astype(np.float32)[:, None]
                if len(counts) == 1:  # llama-imatrix gives a second dimension to stacks of experts alone
                    sums, counts = sums.reshape(-1), counts.reshape(-1)
                out.add(f"{name}.in_sum2", np.ascontiguousarray(sums))
                out.add(f"{name}.counts", counts)

    def _save_dat(self, path: str) -> None:
        live = {name: e for name, e in sorted(self.entries.items()) if (e.counts > 0).any()}
        pieces = [struct.pack("<i", len(live))]
        for name, entry in live.items():
            calls = int(-(-entry.counts.max() // self.chunk_size))
            with np.errstate(all="ignore"):
                values = entry.means() * np.float32(calls)
            if not np.isfinite(values).all():
                raise GGUFError(f"importance of {name!r}: a sum is too large for the file's float32")
            encoded = name.encode("utf-8", "surrogateescape")
            pieces.append(struct.pack(f"<i{len(encoded)}sii", len(encoded), encoded, calls, values.size))
            pieces.append(values.astype("<f4").tobytes())
        dataset = (self.datasets[-1] if self.datasets else "").encode("utf-8", "surrogateescape")
        pieces.append(struct.pack(f"<ii{len(dataset)}s", self.chunk_count, len(dataset), dataset))
        out = OutputFile(path)
        try:
            for piece in pieces:
                out.write(piece)
            out.finish(sum(map(len, pieces)))
            out.publish()
        finally:
            out.discard()  # of nothing, once it is published


def load(path: str | os.PathLike[str], *more: str | os.PathLike[str], chunk_size: int = CHUNK_SIZE) -> ImportanceMatrix:
    """Read an importance matrix of either form; several files are merged.

    Parameters
    ----------
    path, *more : path-like
        Files of either form.
    chunk_size : int
        Rows of activations behind one call of a .dat file, which doesn't tell. It matters only in merging.

    Returns
    -------
    ImportanceMatrix

    Raises
    ------
    GGUFError
        If a file is damaged, or holds negative or non-finite sums; the message names file and tensor.
    """
    matrices = [_load_one(os.fspath(p), chunk_size) for p in (path, *more)]
    return matrices[0].merge(*matrices[1:]) if more else matrices[0]


def _load_one(path: str, chunk_size: int) -> ImportanceMatrix:
    with open(path, "rb") as f:
        magic = f.read(4)
    with np.errstate(all="ignore"):  # whatever the file holds is checked, and told by its name
        if magic == b"GGUF":
            with open_gguf(path) as gguf:
                return _from_gguf(gguf, path)
        with open(path, "rb") as f:
            return _from_dat(f.read(), path, chunk_size)


def _checked(path: str, name: str, sums: Floats, counts: npt.NDArray[Any]) -> Entry:
    for what, values in (("sum", sums), ("count", counts)):
        bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
        if bad.size:
            raise GGUFError(
                f"{path}: importance of {name!r} has a {what} of {values.reshape(-1)[bad[0]]} at {int(bad[0])}; finite "
                f"{what}s of at least 0 were expected"
            )
    if counts.max(initial=0) > _MAX_COUNT:
        raise GGUFError(f"{path}: importance of {name!r} has a count of {counts.max()}, which is no number of rows")
    return Entry(sums, counts.astype(np.int64))


def _from_gguf(gguf: GGUFFile, path: str) -> ImportanceMatrix:
    kind = gguf.metadata.get("general.type")
    if kind != "imatrix":
        raise GGUFError(f"{path}: general.type is {kind!r}, 'imatrix' was expected")
    matrix = ImportanceMatrix(
        datasets=[str(d) for d in gguf.metadata.get("imatrix.datasets", ())],
        chunk_count=int(gguf.metadata.get("imatrix.chunk_count", 0)),
        chunk_size=max(1, int(gguf.metadata.get("imatrix.chunk_size", CHUNK_SIZE))),
    )
    for tensor in gguf.tensors:
        name, dot, part = tensor.rpartition(".")
        if part not in ("in_sum2", "counts") or not dot:
            raise GGUFError(f"{path}: tensor {tensor!r} is neither a sum ('.in_sum2') nor a count ('.counts')")
        if part == "counts":
            if f"{name}.in_sum2" not in gguf.tensors:
                raise GGUFError(f"{path}: {tensor!r} has no {name + '.in_sum2'!r} beside it")
            continue
        if f"{name}.counts" not in gguf.tensors:
            raise GGUFError(f"{path}: {tensor!r} has no {name + '.counts'!r} beside it")
        counts = gguf.tensors[f"{name}.counts"].dequantize().reshape(-1)
        sums = gguf.tensors[tensor].dequantize()
        if not counts.size or sums.size % counts.size or not sums.size:
            raise GGUFError(f"{path}: importance of {name!r} has {sums.size} sums and {counts.size} counts")
        matrix.entries[name] = _checked(path, name, sums.reshape(counts.size, -1), counts)
    return matrix


def _from_dat(data: bytes, path: str, chunk_size: int) -> ImportanceMatrix:
    at = 0

    def integer(what: str, low: int, high: int) -> int:
        nonlocal at
        if at + 4 > len(data):
            raise GGUFError(f"{path}: the file ends at {len(data)}, inside {what}")
        value = int.from_bytes(data[at : at + 4], "little", signed=True)
        if not low <= value <= high:
            raise GGUFError(f"{path}: {what} is {value} at byte {at}, {low} to {high} was expected")
        at += 4
        return value

    def text(what: str, longest: int) -> str:
        nonlocal at
        length = integer(f"the length of {what}", 0, min(longest, max(0, len(data) - at - 4)))
        at += length
        return data[at - length : at].decode("utf-8", "surrogateescape")

    matrix = ImportanceMatrix(chunk_size=chunk_size)
    # An entry has at least its three integers and one value.
    for i in range(integer("the number of tensors", 1, len(data) // 16)):
        name = text(f"name {i}", _MAX_NAME)
        calls = integer(f"the number of calls of {name!r}", 0, 2**31 - 1)
        n = integer(f"the number of values of {name!r}", 1, max(0, len(data) - at - 4) // 4)
        if name in matrix.entries:
            raise GGUFError(f"{path}: importance of {name!r} is there twice")
        values = np.frombuffer(data, "<f4", n, at).astype(np.float64)
        at += 4 * n
        # The means times the calls; back to sums over rows, so that matrices of both forms can be merged. Without a
        # number of calls the values are the means themselves.
        rows = np.array([max(calls, 1) * chunk_size])
        matrix.entries[name] = _checked(path, name, (values * chunk_size).reshape(1, n), rows)
    if at < len(data):
        matrix.chunk_count = integer("the number of chunks", 0, 2**31 - 1)
        if at < len(data) and (dataset := text("the dataset's name", 2**31 - 1)):
            matrix.datasets.append(dataset)
    return matrix


class Accumulator:
    """Collects activations of a running model into an importance matrix.

    Parameters
    ----------
    chunk_size : int
        Rows of activations that count as one chunk of text.

    Examples
    --------
    >>> seen = Accumulator()
    >>> seen.add("blk.0.attn_q.weight", np.ones((10, 64), np.float32))
    >>> seen.result()["blk.0.attn_q.weight"].shape
    (64,)

    With torch, every linear layer of a model, under the names its weights have::

        with seen.watch(model):
            model(tokens)
        seen.result().save("model.imatrix.gguf")
    """

    def __init__(self, chunk_size: int = CHUNK_SIZE) -> None:
        self.chunk_size = chunk_size
        self._sums: dict[str, npt.NDArray[np.float64]] = {}
        self._counts: dict[str, npt.NDArray[np.int64]] = {}

    def add(self, name: str, x: Any, *, experts: npt.ArrayLike | None = None, n_experts: int | None = None) -> None:
        """Add activations that go into a weight.

        Parameters
        ----------
        name : str
            The tensor's name.
        x : ndarray or torch.Tensor
            Activations (..., width), one row for each product with the weight.
        experts : int array, optional
            For a stack of experts: the expert, or the several experts (rows, k), that each row of `x` goes to.
        n_experts : int, optional
            How many experts the stack has; needed with `experts` in the first call.

        Raises
        ------
        GGUFError
            If an activation isn't finite, or its square overflows.
        ValueError
            If width or experts don't agree with earlier calls, or the experts not with the rows.
        """
        if not np.ndim(x):
            raise ValueError(f"{name!r}: activations have no dimension, (..., width) was expected")
        if experts is None:
            squares, rows = _squares(x, name)
            self._include(name, squares[None], np.array([rows]))
            return
        ids = given_array(_on_cpu(experts), f"experts of {name!r}")
        values = given_array(_on_cpu(x), f"activations of {name!r}", np.float64)
        given = values.shape
        values = values.reshape(math.prod(given[:-1]), given[-1])
        if ids.shape not in (given[:-1], (len(values),)) and math.prod(ids.shape[:-1]) != len(values):
            raise ValueError(f"{name!r}: experts of shape {ids.shape} for activations of shape {given}")
        if ids.size and ids.dtype.kind not in "iu":
            raise TypeError(f"{name!r}: experts should be integers, not {ids.dtype}")
        ids = ids.astype(np.intp).reshape(len(values), ids.size // max(len(values), 1))
        if n_experts is None:
            if name not in self._counts:
                raise ValueError(f"{name!r}: n_experts is needed in the first call with experts")
            n_experts = len(self._counts[name])
        if ids.size and not 0 <= ids.min() <= ids.max() < n_experts:
            raise ValueError(f"{name!r}: expert {ids.min()} to {ids.max()}, 0 to {n_experts - 1} was expected")
        sums = np.zeros((n_experts, values.shape[1]))
        with np.errstate(all="ignore"):  # what overflows is refused below
            np.add.at(sums, ids.reshape(-1), np.repeat(values * values, ids.shape[1], 0))
        self._include(name, sums, np.bincount(ids.reshape(-1), minlength=n_experts))

    def _include(self, name: str, sums: npt.NDArray[np.float64], counts: npt.NDArray[np.int64]) -> None:
        if not np.isfinite(sums).all():
            column = int(np.flatnonzero(~np.isfinite(sums).all(0))[0])
            raise GGUFError(f"activations of {name!r}: column {column} isn't finite, or its square overflows")
        have = self._sums.get(name)
        if have is None:
            self._sums[name], self._counts[name] = sums, counts
            return
        if have.shape != sums.shape:
            raise ValueError(f"{name!r}: activations for {sums.shape} (experts, width), earlier {have.shape}")
        with np.errstate(all="ignore"):
            have += sums
        self._counts[name] = self._counts[name] + counts

    def hook(self, name: str) -> Callable[..., None]:
        """Make a forward pre-hook of a torch module: it adds the module's first argument under `name`."""

        def add_input(module: Any, args: tuple[Any, ...]) -> None:
            self.add(name, args[0])

        return add_input

    @contextmanager
    def watch(self, model: Any, names: Mapping[str, str] | Callable[[str], str | None] | None = None) -> Iterator[None]:
        """Collect from every linear layer of a torch model while the context lasts.

        Parameters
        ----------
        model : torch.nn.Module
        names : mapping or callable, optional
            From a weight's name in the model (``layers.0.q.weight``) to the tensor's in the file; layers without one
            (absent, or None) are passed over. By default the names are kept.
        """
        handles = []
        try:
            for layer, module in model.named_modules():
                if not type(module).__name__.endswith("Linear") or not hasattr(module, "weight"):
                    continue
                own = f"{layer}.weight" if layer else "weight"
                name = own if names is None else names(own) if callable(names) else names.get(own)
                if name is not None:
                    handles.append(module.register_forward_pre_hook(self.hook(name)))
            yield
        finally:
            for handle in handles:
                handle.remove()

    def result(self, datasets: Iterable[str] = ()) -> ImportanceMatrix:
        """What was collected so far.

        Parameters
        ----------
        datasets : iterable of str
            Names of the texts, for the file.
        """
        entries = {name: Entry(sums.copy(), self._counts[name].copy()) for name, sums in self._sums.items()}
        rows = max((int(e.counts.max()) for e in entries.values()), default=0)
        return ImportanceMatrix(entries, list(datasets), -(-rows // self.chunk_size), self.chunk_size)


def _on_cpu(x: Any) -> Any:
    if hasattr(x, "detach"):  # a torch tensor, recognised without importing torch
        x = x.detach().cpu()
        return (x.float() if x.is_floating_point() else x).numpy()
    return x


def _squares(x: Any, name: str) -> tuple[npt.NDArray[np.float64], int]:
    """Sum of squares of each column, and the number of rows; on torch's device where x is there."""
    if hasattr(x, "detach"):
        rows = x.detach().reshape(-1, x.shape[-1])
        return rows.float().square().sum(0).cpu().numpy().astype(np.float64), len(rows)
    values = given_array(x, f"activations of {name!r}", np.float64)
    values = values.reshape(math.prod(values.shape[:-1]), values.shape[-1])
    with np.errstate(all="ignore"):  # what overflows is refused by the caller
        return np.einsum("ij,ij->j", values, values), len(values)
