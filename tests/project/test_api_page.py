"""docs/api.md lists what `__all__` holds, no more and no less."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "api.md"

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="docs aren't beside the tests")


def listed():
    modules = re.findall(r"^## (\S+)$", PAGE.read_text("utf-8"), re.M)
    names = re.findall(r"^### (\S+)$", PAGE.read_text("utf-8"), re.M)
    return modules, names


@pytest.mark.parametrize("path", listed()[0] if PAGE.exists() else [])
def test_every_public_name(path):
    try:
        module = importlib.import_module(path)
    except ImportError as error:
        pytest.skip(f"{path}: {error}")
    want = {f"{path}.{name}" for name in module.__all__ if name != "__version__"}
    assert {name for name in listed()[1] if name.rpartition(".")[0] == path} == want
    for name in module.__all__:
        assert getattr(module, name) is not None


def test_dir_shows_the_public_names_and_no_others():
    import ggufx

    assert dir(ggufx) == sorted(ggufx.__all__)
