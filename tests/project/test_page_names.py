"""What the pages name is there as soon as ggufx is imported."""

import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_modules_that_the_pages_name_are_there_at_once() -> None:
    """`import ggufx` is enough for what is called by its full name."""
    names = sorted(
        {
            name
            for page in DOCS.glob("*.md")
            if page.name != "api.md"  # which lists modules that have to be imported too
            for name in re.findall(r"`(ggufx\.[a-z_]+(?:\.\w+)?)", page.read_text("utf-8"))
        }
    )
    assert "ggufx.edit.edit" in names
    code = "import sys, ggufx\nfor name in sys.argv[1:]:\n    eval(name)"
    names = [n for n in names if not n.startswith(("ggufx.torch", "ggufx.integrations", "ggufx.compat", "ggufx.bench"))]
    subprocess.run([sys.executable, "-c", code, *names], cwd="/", check=True, timeout=60)
    for module in ("edit", "splitting"):
        code = f"import ggufx, types; assert isinstance(ggufx.{module}, types.ModuleType), ggufx.{module}"
        subprocess.run([sys.executable, "-c", code], cwd="/", check=True, timeout=60)
