"""One thing that a check found, in words and in fields."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["ERROR", "WARNING", "Finding"]

ERROR, WARNING = "error", "warning"


@dataclass(frozen=True)
class Finding:
    """A fault, or something to look at.

    Attributes
    ----------
    severity : str
        ``"error"``: the file is broken, or llama.cpp refuses or misreads it; ``"warning"``: suspicious, but legal.
    kind : str
        A short name of what was found, the same in every file: ``"nan scale"``, ``"gap"``, ``"duplicate token"`` ...
    name : str
        The tensor or metadata key.
    message : str
        What was found, where, and what was expected.
    count : int
        How many blocks, tokens ... the finding stands for.
    expert, row, block : int or None
        Of the first block it stands for: its expert (of stacked experts), its row in it, its place in the row.
    """

    severity: str
    kind: str
    name: str
    message: str
    count: int = 1
    expert: int | None = None
    row: int | None = None
    block: int | None = None

    def __str__(self) -> str:
        return f"{self.severity}: {self.message}"

    def as_dict(self) -> dict[str, Any]:
        """The fields that say something, for JSON."""
        return {key: value for key, value in asdict(self).items() if value is not None}
