"""How files show themselves in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from ..formats.tensor_types import type_name
from ..sizes import format_size

if TYPE_CHECKING:
    from .reader import GGUFFile

__all__ = ["file_table"]

# Rows shown of a long table: its beginning and its end.
HEAD, TAIL = 20, 5


def file_table(file: GGUFFile) -> str:
    """HTML of a file's metadata and tensors: a line that sums up, and two tables to unfold."""
    tensors = file.tensors
    rows = [
        (name, type_name(t.qtype), " x ".join(map(str, t.shape)) or "one value", format_size(t.nbytes))
        for name, t in ((name, tensors[name]) for name in _ends(list(tensors)))
    ]
    metadata = [(key, str(file.metadata.types[key]), _short(file, key)) for key in _ends(list(file.metadata))]
    html = (
        f"<p>{escape(repr(file))}</p>"
        + _table("metadata", ("key", "type", "value"), metadata, len(file.metadata))
        + _table("tensors", ("name", "type", "shape", "size"), rows, len(tensors))
    )
    # Names that aren't UTF-8 hold lone surrogates, which a notebook can't store.
    return html.encode("utf-8", "replace").decode()


def _ends(names: list[str]) -> list[str]:
    return names if len(names) <= HEAD + TAIL else names[:HEAD] + names[-TAIL:]


def _short(file: GGUFFile, key: str) -> str:
    if file.metadata.types[key].item is not None:
        return ""
    text = str(file.metadata[key])
    return text if len(text) <= 80 else text[:77] + "..."


def _table(what: str, heads: tuple[str, ...], rows: Sequence[tuple[str, ...]], total: int) -> str:
    lines = ["<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows]
    if len(rows) < total:
        lines.insert(HEAD, f"<tr><td colspan={len(heads)}>… {total - len(rows):,} more …</td></tr>")
    head = "".join(f"<th>{h}</th>" for h in heads)
    return (
        f"<details><summary>{total:,} {what}</summary><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table></details>"
    )
