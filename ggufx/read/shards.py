"""Models split over several files: opening any shard opens the set as one model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..errors import GGUFError, UnknownNameError
from .index import Problem
from .reader import GGUFFile
from .tensor import Tensor

__all__ = ["SplitFile", "open_set", "shard_name"]

# llama.cpp's naming: <prefix>-00001-of-00005.gguf, counted from one.
SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)
# What may follow in a URL: a token, a version, "download=true". It goes to every shard.
QUERY = re.compile(r"[?#].*", re.DOTALL)


def shard_name(prefix: str, number: int, count: int) -> str:
    """Name of shard `number` (from 1) of `count`."""
    return f"{prefix}-{number:05}-of-{count:05}.gguf"


class MergedTensors(Mapping[str, Tensor]):
    """The tensors of all shards, in shard order."""

    def __init__(self, shards: tuple[GGUFFile, ...]) -> None:
        self._shards = shards
        self._where = {name: shard for shard in reversed(shards) for name in shard.tensors}
        self._names = [name for shard in shards for name in shard.tensors if self._where[name] is shard]

    def __getitem__(self, name: str) -> Tensor:
        try:
            shard = self._where[name]
        except KeyError:
            label = f"{self._shards[0].path} and its other shards"
            raise UnknownNameError(f"{label} have no tensor {name!r}", name, self) from None
        return shard.tensors[name]

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._where

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)

    def __repr__(self) -> str:
        return f"<{len(self)} tensors in {len(self._shards)} shards>"


class SplitFile(GGUFFile):
    """A model split over several files, seen as one.

    What describes a single file (:attr:`version`, :attr:`data_offset` ...) is the first shard's, which holds the
    metadata; :attr:`size` is the sum.

    Attributes
    ----------
    shards : tuple of GGUFFile
        The files, in order.
    """

    def __init__(self, path: str, shards: tuple[GGUFFile, ...], problems: tuple[Problem, ...]) -> None:
        self._copy_header(path, shards[0])
        self.shards = shards
        self.problems = problems
        self._merged = MergedTensors(shards)

    @property
    def tensors(self) -> Mapping[str, Tensor]:  # type: ignore[override]
        """The tensors of all shards by name."""
        self._source.check_open()
        return self._merged

    @property
    def size(self) -> int:
        """Bytes in all shards together."""
        return sum(shard.size for shard in self.shards)

    @property
    def is_mapped(self) -> bool:
        """Whether any shard is still mapped."""
        return any(shard.is_mapped for shard in self.shards)

    def close(self) -> None:
        """Close every shard."""
        for shard in self.shards:
            shard.close()

    def _contents(self) -> str:
        return f"{len(self.shards)} shards, {super()._contents()}"


def declared(file: GGUFFile, key: str) -> int | None:
    """Return a ``split.*`` number of a file, None where it has none."""
    value: Any = file.metadata.get(f"split.{key}")
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def open_set(first: GGUFFile, path: str, open_one: Callable[[str], GGUFFile], strict: bool) -> GGUFFile:
    """Open the rest of a file's shards, if it is one of several.

    Parameters
    ----------
    first : GGUFFile
        An open file, whichever shard it is; closed if this fails.
    path : str
        How it was named; the others are looked for beside it.
    open_one : callable
        Opens a path.

    Returns
    -------
    GGUFFile
        `first` itself if it isn't split, else a :class:`SplitFile`.

    Raises
    ------
    GGUFError
        If a shard is missing, is there twice, or doesn't fit the others. With ``strict=False`` that becomes an entry
        of ``problems`` (only the first shard is indispensable).
    """
    count = declared(first, "count")
    query = QUERY.search(path)[0] if "://" in path and QUERY.search(path) else ""  # type: ignore[index]
    match, shown = SHARD.fullmatch(path.removesuffix(query)), SHARD.fullmatch(first.path)
    if count is None or (count < 2 and (shown is None or int(shown[3]) < 2)):
        return first
    opened: list[GGUFFile] = [first]
    problems: list[Problem] = []

    def note(problem: Problem) -> None:
        if strict:
            raise GGUFError(problem.message)
        problems.append(problem)

    def fault(kind: str, name: str, text: str) -> None:
        note(Problem(kind, name, f"{name}: {text}"))

    def ambiguous(shard: GGUFFile, name: str, other: GGUFFile) -> None:
        tensor = shard.tensors[name]  # the file keeps those it has made
        if tensor.problem is None:
            tensor.problem = f"{shard.path}: tensor {name!r} is in {other.path} too"
            note(Problem("duplicate", name, tensor.problem))

    try:
        if match is None or shown is None:
            raise GGUFError(
                f"{first.path}: this is shard {declared(first, 'no')} of {count} (counted from 0), but its name "
                "doesn't end in -0000N-of-0000M.gguf, so the others can't be found; shards=False opens it alone"
            )
        prefix, number, total = match[1], int(match[2]), int(match[3])
        if total != count:
            raise GGUFError(f"{first.path}: its name says {total} shards, its split.count {count}")
        if not 1 <= number <= count:
            raise GGUFError(f"{first.path}: there is no shard {number} of {count}")
        shards = []
        for i in range(1, count + 1):
            name = shard_name(shown[1], i, count)  # for messages: a URL's secrets are in `path` only
            if i == number:
                shard = first
            else:
                try:
                    shard = open_one(shard_name(prefix, i, count) + query)
                except FileNotFoundError:
                    if i == 1:
                        raise GGUFError(f"{name}: the first shard, which holds the metadata, is missing") from None
                    fault("missing shard", name, f"shard {i} of {count} is missing")
                    continue
                opened.append(shard)
            if (found := declared(shard, "count")) != count:
                fault("mismatch", name, f"its split.count is {found}, {count} was expected")
            if (found := declared(shard, "no")) != i - 1:
                fault("mismatch", name, f"its split.no is {found}, {i - 1} was expected (it is counted from 0)")
            shards.append(shard)
        seen: dict[str, GGUFFile] = {}
        for shard in shards:
            for tensor in shard.tensors:
                other = seen.setdefault(tensor, shard)
                if other is not shard:
                    # Nothing says which of the two is meant, so neither can be read.
                    for one, two in ((shard, other), (other, shard)):
                        ambiguous(one, tensor, two)
        expected = declared(shards[0], "tensors.count")
        held = sum(len(shard.tensors) for shard in shards)
        if expected is not None and expected != held:
            fault("mismatch", first.path, f"split.tensors.count is {expected}, but the shards hold {held} tensors")
        own = [problem for shard in shards for problem in shard.problems]
        return SplitFile(first.path, tuple(shards), tuple(own + problems))
    except BaseException:
        for shard in opened:
            shard.close()
        raise
