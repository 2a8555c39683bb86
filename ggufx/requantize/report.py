"""What a requantization did, or would do, and what the user should be told of it."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ..formats.file_types import FileType
from ..formats.tensor_types import QType, nbytes, type_name
from ..sizes import counted, format_size
from .choices import Choice

__all__ = ["Report", "fallback_note", "grouped", "requantize_note"]

# Blocks, experts, layers of a projector or of a diffusion model.
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_BLOCK = re.compile(r"blk\.(\d+)\.")


@dataclass(frozen=True)
class Report:
    """What a requantization did, or would do.

    Attributes
    ----------
    ftype : FileType
        Written as ``general.file_type``.
    choices : tuple of Choice
        Each tensor's old and new type, in file order.
    nbytes_before, nbytes_after : int
        Bytes of all tensors.
    paths : tuple of str
        Files written; empty after a dry run.
    error : float or None
        After a search under a size: the sum over the tensors of their relative weighted errors, on the sample.
    refused : str or None
        After a dry run: why the real run would be refused.
    weighed : (int, int) or None
        With an importance matrix: for how many of the tensors that are quantized it has an entry, and how many these
        are.
    described : bool
        Whether the file's metadata counts the model's blocks, by which the mixes go.
    """

    ftype: FileType
    choices: tuple[Choice, ...] = field(repr=False)
    nbytes_before: int
    nbytes_after: int
    paths: tuple[str, ...] = ()
    error: float | None = None
    refused: str | None = None
    weighed: tuple[int, int] | None = None
    described: bool = True

    @property
    def size(self) -> int:
        """Values in all tensors."""
        return sum(math.prod(c.shape) for c in self.choices)

    @property
    def bits_per_weight(self) -> float:
        """Average of the output."""
        return 8 * self.nbytes_after / self.size if self.size else 0.0

    @property
    def fallbacks(self) -> tuple[Choice, ...]:
        """Tensors whose rows aren't whole blocks of the type they should have had."""
        return tuple(c for c in self.choices if c.wanted is not None)

    @property
    def requantized(self) -> tuple[Choice, ...]:
        """Tensors that were quantized before and get another type; not those that become F32, which is exact."""
        return tuple(c for c in self._were_quantized() if c.qtype is not QType.F32)

    @property
    def decoded(self) -> tuple[Choice, ...]:
        """Tensors that were quantized before and become F32."""
        return tuple(c for c in self._were_quantized() if c.qtype is QType.F32)

    def _were_quantized(self) -> Iterator[Choice]:
        for c in self.choices:
            if c.qtype != c.source and isinstance(c.source, QType) and c.source.is_quantized:
                yield c

    def notes(self) -> list[str]:
        """Lines for the user: sizes, the share left as it was, fallbacks and what they cost, what is lost."""
        lines = [
            f"{format_size(self.nbytes_before)} -> {format_size(self.nbytes_after)}, {self.bits_per_weight:.3f} bits "
            f"per weight: "
            + ", ".join(f"{n} {t}" for t, n in Counter(type_name(c.qtype) for c in self.choices).items())
        ]
        kept = Counter(c.kept for c in self.choices if c.kept is not None)
        if kept:
            values = sum(math.prod(c.shape) for c in self.choices if c.kept is not None)
            reasons = ", ".join(f"{n} {reason}" for reason, n in kept.items())
            lines.append(f"{100 * values / max(self.size, 1):.2f}% of the weights stay as they are ({reasons})")
        if not self.described:
            lines.append("the file doesn't count a model's blocks: where no name tells a role, the mix's default type")
        if self.weighed is not None:
            lines.append(f"importance for {self.weighed[0]} of {self.weighed[1]} tensors that are quantized")
        if self.fallbacks:
            lines += [fallback_note(self.fallbacks), *_fallback_lines(self.fallbacks)]
        if self.requantized:
            lines.append(requantize_note(self.requantized))
        if self.decoded:
            lines.append(f"{counted(len(self.decoded), 'quantized tensor')} decoded to F32, which is exact")
        return lines


def _fallback_lines(fallbacks: Sequence[Choice]) -> list[str]:
    """One line for each kind of tensor that falls back: which, how wide, to what, how many."""
    kinds: dict[tuple[str, int, str], list[Choice]] = {}
    for c in fallbacks:
        part = _NUMBER.sub("*", c.name)
        kinds.setdefault((part, c.shape[-1], f"{type_name(c.wanted or 0)} -> {type_name(c.qtype)}"), []).append(c)
    lines = []
    for (part, width, pair), group in kinds.items():
        qtype, wanted = QType(group[0].qtype), QType(group[0].wanted or 0)
        extra = qtype.bits_per_weight - wanted.bits_per_weight
        lines.append(
            f"  {part}: rows of {width}, {pair} ({extra:+.2f} bits per weight), {counted(len(group), 'tensor')}"
        )
    return lines


def fallback_note(fallbacks: Sequence[Choice]) -> str:
    values = max(sum(math.prod(c.shape) for c in fallbacks), 1)
    bits = sum(8 * nbytes(c.shape, c.qtype) for c in fallbacks) / values
    wanted = sum(c.wanted.bits_per_weight * math.prod(c.shape) for c in fallbacks if c.wanted is not None) / values
    pairs = Counter(f"{type_name(c.wanted or 0)} -> {type_name(c.qtype)}" for c in fallbacks)
    kinds = ", ".join(f"{n} {pair}" for pair, n in pairs.items())
    fall = "falls" if len(fallbacks) == 1 else "fall"
    return (
        f"{counted(len(fallbacks), 'tensor')} with rows that aren't whole blocks {fall} back to other types: "
        f"{bits:.2f} bits per weight there, {wanted:.2f} were asked for ({kinds})"
    )


def requantize_note(requantized: Sequence[Choice]) -> str:
    pairs = Counter(f"{type_name(c.source)} -> {type_name(c.qtype)}" for c in requantized)
    kinds = ", ".join(f"{n} {pair}" for pair, n in pairs.items())
    were = "was" if len(requantized) == 1 else "were"
    return (
        f"{counted(len(requantized), 'tensor')} {were} quantized already ({kinds}): "
        "the new rounding adds its error to the old one's; more bits make them larger, not better"
    )


def grouped(names: Iterable[str]) -> str:
    """Names in few words, blocks together: ``blk.{0-3,7}.attn_v.weight, output.weight``."""
    blocks: dict[str, list[int]] = {}
    for name in names:
        match = _BLOCK.match(name)
        blocks.setdefault(_BLOCK.sub("blk.{}.", name, 1) if match else name, []).append(int(match[1]) if match else -1)
    return ", ".join(p if n[0] < 0 else p.replace("{}", _ranges(n), 1) for p, n in blocks.items())


def _ranges(numbers: Iterable[int]) -> str:
    runs: list[list[int]] = []
    for n in sorted(numbers):
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    text = ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    return text if text.isdigit() else f"{{{text}}}"
