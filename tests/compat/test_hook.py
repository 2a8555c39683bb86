"""Switching on from outside: the variable GGUFX_COMPAT, the import hook, the entry point."""

from __future__ import annotations

from pathlib import Path

import pytest
from compat_runs import modules_of, run

import ggufx
from ggufx import compat

gguf = pytest.importorskip("gguf")


@pytest.fixture(scope="module")
def hooked():
    """Skip where the package isn't installed as a wheel, as in an editable install."""
    if not (Path(ggufx.__file__).parent.parent / "ggufx_compat.pth").exists():
        pytest.skip("ggufx_compat.pth isn't installed beside the package")


@pytest.mark.usefixtures("hooked")
def test_import_hook():
    """The variable unset costs nothing; set, it waits for gguf and imports nothing before."""
    assert not {"_ggufx_compat", "numpy", "ggufx"} & modules_of("pass", setting=None)
    for setting in ("", " ", "0", "no", "Off", "FALSE"):
        assert not {"ggufx", "ggufx.compat"} & modules_of("import gguf", setting=setting)
        assert not {"numpy", "ggufx"} & modules_of("pass", setting=setting)
    waiting = modules_of("pass", setting="1")
    assert "_ggufx_compat" in waiting
    assert not {"numpy", "ggufx", "gguf"} & waiting
    check = "from ggufx import compat; p = compat.status().packages; assert p['gguf.quants'] == {'quants': 'patched'}"
    modules_of("import gguf.quants", check, setting="1")
    modules_of("from gguf import GGUFReader", check, setting="1")
    modules_of("import gguf", "import ggufx.compat as c", "assert not c.status().installed", setting=None)
    loader = "import gguf.quants as q; assert not vars(q.__loader__).keys() - {'name', 'path'}"
    modules_of(loader, setting="1")


@pytest.mark.usefixtures("hooked")
def test_calls_beside_the_variable():
    """The variable is a call of install(): uninstall() takes it back, and blocks leave it alone."""
    waiting = "from ggufx import compat; assert compat.status() == (True, {}, compat.WATCHED), compat.status()"
    plain = "import gguf; assert not hasattr(gguf.GGUFReader._build_fields, '__wrapped__')"
    patched = "import gguf; assert hasattr(gguf.GGUFReader._build_fields, '__wrapped__')"
    modules_of(waiting, "compat.uninstall()", plain, "assert compat.status() == (False, {}, ())", setting="1")
    modules_of(patched, "from ggufx import compat", "compat.uninstall()", plain, setting="1")
    block = "import contextlib; s = contextlib.ExitStack(); s.enter_context(compat.patched())"
    modules_of(waiting, block, patched, "s.close()", patched, "compat.uninstall()", plain, setting="1")
    modules_of("from ggufx import compat", block, patched, "s.close()", plain, setting=None)


@pytest.mark.usefixtures("hooked")
def test_import_hook_never_breaks_a_program(tmp_path):
    """Whatever fails while patching is printed, and the program goes on."""
    (tmp_path / "ggufx").mkdir()
    (tmp_path / "ggufx/__init__.py").write_text("raise RuntimeError('broken')")
    done = run("-c", "import gguf; print(gguf.GGUFReader.__name__)",
               env={"GGUFX_COMPAT": "1", "PYTHONPATH": str(tmp_path)})  # fmt: skip
    assert done.stdout == "GGUFReader\n"
    assert "broken" in done.stderr
    done = run("-c", "import gguf", env={"GGUFX_COMPAT": "1", "PYTHONPATH": str(tmp_path / "none")})
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.usefixtures("hooked")
def test_wheel_record():
    from importlib.metadata import distribution

    files = {str(f) for f in distribution("ggufx").files or ()}
    assert {"ggufx_compat.pth", "_ggufx_compat.py"} <= files
    entry = next(e for e in distribution("ggufx").entry_points if e.group == "vllm.general_plugins")
    assert entry.load() is compat.vllm_plugin


def test_vllm_plugin(monkeypatch):
    monkeypatch.delenv("GGUFX_COMPAT", raising=False)
    compat.vllm_plugin()
    monkeypatch.setenv("GGUFX_COMPAT", "off")
    compat.vllm_plugin()
    assert not compat.status().installed
    monkeypatch.setenv("GGUFX_COMPAT", "1")
    compat.vllm_plugin()
    assert compat.status().installed
    compat.uninstall()
