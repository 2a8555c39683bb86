"""Write docs/api.md: every public name with its signature and the first sentence of its docstring.

Read from the source, so that no optional package has to be installed. ``--check`` only says whether the page is
current.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "api.md"

# Public modules in the order of the page; the names of each are its ``__all__``.
MODULES = (
    "ggufx",
    "ggufx.torch",
    "ggufx.integrations.transformers",
    "ggufx.integrations.diffusers",
    "ggufx.integrations.comfyui",
    "ggufx.edit",
    "ggufx.splitting",
    "ggufx.requantize",
    "ggufx.plan",
    "ggufx.imatrix",
    "ggufx.convert",
    "ggufx.evaluate",
    "ggufx.compat",
    "ggufx.quants",
    "ggufx.bench",
)
# Text in the place of a default that only the source explains.
LONGEST_DEFAULT = 24


def _plain(text: str) -> str:
    """One line of Markdown from the first paragraph of a docstring."""
    line = " ".join(text.strip().split("\n\n", 1)[0].split()).replace("|", "\\|")
    return re.sub(r":\w+:`~?([^`]+)`", r"`\1`", line).replace("``", "`")


def _summary(item: Any) -> str:
    return _plain(item.docstring.value) if item.docstring else ""


def _attributes(cls: Any) -> list[tuple[str, str]]:
    """Attributes that the class's docstring describes."""
    if not cls.docstring:
        return []
    sections = cls.docstring.parse("numpy", warnings=False)
    return [(a.name, _plain(a.description)) for s in sections if s.kind.value == "attributes" for a in s.value]


def _signature(function: Any, drop_self: bool) -> str:
    parts: list[str] = []
    keyword_only = False
    parameters = list(function.parameters)[1 if drop_self else 0 :]
    for p in parameters:
        kind = p.kind.value if p.kind else ""
        if kind == "keyword-only" and not keyword_only:
            keyword_only = True
            parts.append("*")
        keyword_only = keyword_only or kind == "variadic positional"
        stars = {"variadic positional": "*", "variadic keyword": "**"}.get(kind, "")
        default = str(p.default) if p.default is not None and not stars else ""
        if len(default) > LONGEST_DEFAULT:
            default = "..."
        parts.append(f"{stars}{p.name}" + (f"={default}" if default else ""))
    return f"({', '.join(parts)})"


def _members(cls: Any) -> list[Any]:
    """Public members of a class with those that its public bases give it, in the order of the source."""
    found: dict[str, Any] = {}
    for base in reversed([cls, *cls.mro()]):
        if base.path.startswith("ggufx."):
            found.update({n: m for n, m in base.members.items() if not n.startswith("_")})
    return [m.final_target if m.is_alias else m for m in found.values()]


def _class_lines(cls: Any) -> list[str]:
    rows = _attributes(cls)
    known = {name for name, _ in rows}
    for member in _members(cls):
        if member.is_function:
            rows.append((f"{member.name}{_signature(member, 'staticmethod' not in member.labels)}", _summary(member)))
        elif member.docstring and member.name not in known:
            rows.append((member.name, _summary(member)))
    if not rows:
        return []
    return ["", "| attribute or method | |", "|---|---|", *(f"| `{name}` | {text} |" for name, text in rows)]


def _module_lines(package: Any, path: str, missing: list[str]) -> list[str]:
    module = package if path == "ggufx" else package[path.removeprefix("ggufx.")]
    # A module that passes calls on to a function of its name is documented as both.
    lines = [f"## {path}", "", _summary(module)]
    for name in [str(n).strip("'\"") for n in module.exports or []]:
        if name == "__version__":
            continue
        item = module.members.get(name)
        if item is None:
            raise SystemExit(f"{path}.__all__ names {name}, which the source doesn't define or import")
        item = item.final_target if item.is_alias else item
        if item.is_module and name in item.members:
            inner = item.members[name]
            item = inner.final_target if inner.is_alias else inner
        head = f"### {path}.{name}"
        if item.is_function:
            lines += ["", head, "", f"`{name}{_signature(item, False)}`", "", _summary(item)]
        elif item.is_class:
            lines += ["", head, "", _summary(item), *_class_lines(item)]
        elif item.is_module:
            lines += ["", head, "", f"{_summary(item)} See below."]
        else:
            lines += ["", head, "", _summary(item)]
        if not _summary(item) and not item.path.startswith("_ggufx_compat"):
            missing.append(f"{path}.{name}")
    return [*lines, ""]


def page() -> str:
    """Text of the page."""
    loader = griffe.GriffeLoader(search_paths=[ROOT], allow_inspection=False)
    loader.load("_ggufx_compat", try_relative_path=False)  # ggufx.compat takes names from it
    package = loader.load("ggufx", try_relative_path=False)
    loader.resolve_aliases()
    lines = [
        "# Every public name",
        "",
        "Made from the source by `tools/make_api.py`. `help(ggufx.open)` and its like tell the rest: parameters with",
        "their shapes and units, errors, examples.",
        "",
    ]
    missing: list[str] = []
    for path in MODULES:
        lines += _module_lines(package, path, missing)
    if missing:
        raise SystemExit(f"no docstring: {', '.join(missing)}")
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    """Write the page, or compare it."""
    text = page()
    if "--check" not in sys.argv:
        PAGE.write_text(text, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
        print("docs/api.md is out of date: run python tools/make_api.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
