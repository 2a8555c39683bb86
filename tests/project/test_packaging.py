"""What gets built and installed: sdist, wheel, an install without a compiler, stubs that tell the truth."""

from __future__ import annotations

import ast
import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import ggufx

ROOT = Path(__file__).parents[2]
BUILD_TOOLS = ("setuptools", "Cython", "build")

missing = [name for name in BUILD_TOOLS if importlib.util.find_spec(name) is None]
needs_build_tools = pytest.mark.skipif(
    bool(missing) or not (ROOT / "setup.py").exists(),
    reason=f"building needs a source tree and {', '.join(missing or BUILD_TOOLS)}",
)
needs_compiler = pytest.mark.skipif(shutil.which(os.environ.get("CC", "cc")) is None, reason="no C compiler here")


def run(*command: object, **kwargs: object) -> str:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **kwargs)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A clean copy of the source tree: builds leave files behind."""
    tree = tmp_path_factory.mktemp("source") / "ggufx"
    ignored = shutil.ignore_patterns(
        ".*", "build", "dist", "*.egg-info", "*.so", "_native.c", "__pycache__", "results", "*.gguf.part"
    )
    shutil.copytree(ROOT, tree, ignore=ignored)
    return tree


@pytest.fixture(scope="module")
def sdist(source, tmp_path_factory):
    out = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", out, source, cwd=out)
    (path,) = out.glob("*.tar.gz")
    return path


def wheel_of(tree: Path, out: Path, **environment: str) -> Path:
    env = os.environ | environment
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", out, tree, cwd=out, env=env)
    (path,) = out.glob("*.whl")
    return path


def installed(wheel: Path, site: Path) -> dict[str, str]:
    """Unpack a wheel; the environment in which Python finds it before any other ggufx."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return {k: v for k, v in os.environ.items() if k != "GGUFX_PATH"} | {"PYTHONPATH": str(site)}


CHECK = """
import numpy as np, ggufx, os, sys
from ggufx.cli.sample import path_or_sample
assert ggufx.__file__.startswith(sys.argv[1]), ggufx.__file__
print(*ggufx.paths())
with path_or_sample(None) as path, ggufx.open(path) as f:
    for t in f.tensors.values():
        assert t.dequantize().shape == t.shape
    best = f["blk.0.attn_k.weight"].dequantize()
    assert np.array_equal(best, ggufx.dequantize(f["blk.0.attn_k.weight"].data, "Q4_K", path="numpy"))
"""


@needs_build_tools
def test_sdist_is_complete(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    for name in (
        "LICENSE", "NOTICE", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "pyproject.toml", "setup.py",
        "ggufx/_native.pyx", "ggufx/_native.pyi", "ggufx/py.typed", "ggufx/sample.gguf",
        "ggufx/codec/reference/codebooks.txt", "csrc/types.def", "csrc/tables.h", "csrc/make_tables.py",
        "tools/make_sample.py", "tests/conftest.py", "tests/vectors/dequantize.npz",
    ):  # fmt: skip
        assert name in names, name
    here = {str(p.relative_to(ROOT)) for folder in ("csrc", "ggufx") for p in (ROOT / folder).rglob("*") if p.is_file()}
    built = {name for name in here if name.endswith((".so", ".pyc", "_native.c"))}
    assert here - built <= names


@needs_build_tools
@needs_compiler
def test_wheel_from_sdist_works(sdist, tmp_path):
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "tree", **({"filter": "data"} if sys.version_info >= (3, 12) else {}))
    (tree,) = (tmp_path / "tree").iterdir()
    wheel = wheel_of(tree, tmp_path, GGUFX_REQUIRE_NATIVE="1")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        license_files = [name for name in names if name.endswith(("LICENSE", "NOTICE"))]
        (size,) = [i.file_size for i in archive.infolist() if i.filename.startswith("ggufx/_native.cpython")]
    assert size < 1_500_000, "the extension holds debug information, or a kernel twice"
    assert len(license_files) == 2
    assert not [name for name in names if name.startswith(("tests", "csrc", "tools"))]
    env = installed(wheel, tmp_path / "site")
    paths = run(sys.executable, "-c", CHECK, tmp_path / "site", env=env, cwd=tmp_path).split()
    assert "scalar" in paths


@needs_build_tools
def test_install_without_a_compiler(source, tmp_path):
    """It succeeds, everything works on the numpy path, and ``--info`` says so in one line."""
    wheel = wheel_of(source, tmp_path, CC="false", CXX="false", LDSHARED="false", GGUFX_REQUIRE_NATIVE="")
    env = installed(wheel, tmp_path / "site")
    paths = run(sys.executable, "-W", "error", "-c", CHECK, tmp_path / "site", env=env, cwd=tmp_path).split()
    assert paths == ["numpy"]
    report = run(sys.executable, "-m", "ggufx", "--info", env=env, cwd=tmp_path)
    (line,) = [line for line in report.splitlines() if line.startswith("not here:")]
    assert "the compiled extension isn't there (it wasn't built)" in line
    assert "numpy path" in line


@needs_build_tools
@needs_compiler
def test_a_clone_runs_with_the_kernels_it_was_installed_with(source, tmp_path):
    """`python -m` in the clone's folder finds the clone's package, not the installed one."""
    clone = tmp_path / "clone"
    shutil.copytree(source, clone, ignore=shutil.ignore_patterns("build", "*.egg-info", "*.so"))
    (clone / ".git").mkdir()
    env = {k: v for k, v in os.environ.items() if k not in ("GGUFX_PATH", "PYTHONPATH")}
    report = run(sys.executable, "-m", "ggufx", "--info", cwd=clone, env=env)
    assert f"it wasn't built in the source tree {str(clone)!r}" in report
    wheel_of(clone, tmp_path, GGUFX_REQUIRE_NATIVE="1")
    assert "scalar" in run(sys.executable, "-m", "ggufx", "--info", cwd=clone, env=env).splitlines()[1]


@needs_build_tools
def test_a_failed_compile_can_be_an_error(source, tmp_path):
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(tmp_path), str(source)]
    env = os.environ | {"CC": "false", "CXX": "false", "LDSHARED": "false", "GGUFX_REQUIRE_NATIVE": "1"}
    assert subprocess.run(command, env=env, cwd=tmp_path, capture_output=True).returncode != 0


def test_import_needs_numpy_alone():
    code = (
        "import sys, numpy; before = set(sys.modules); import ggufx\n"
        "new = {m.split('.')[0] for m in set(sys.modules) - before} - sys.stdlib_module_names\n"
        "new = {m for m in new if not m.lower().startswith(('_cython', 'cython'))}\n"
        "assert new <= {'ggufx', 'numpy'}, new\n"
        "print(*sorted(m for m in sys.modules if m.startswith('ggufx.')))"
    )
    modules = run(sys.executable, "-c", code).split()
    for heavy in ("ggufx.cli", "ggufx.bench", "ggufx.codec.reference.codebooks", "ggufx.write.writer", "ggufx.plan"):
        assert heavy not in modules, f"import ggufx loads {heavy}"


def test_public_names_are_documented():
    for name in ggufx.__all__:
        thing = getattr(ggufx, name)
        if callable(thing):
            assert thing.__doc__, name
    assert sorted(set(ggufx.__all__)) == sorted(ggufx.__all__)
    assert set(ggufx.__all__) <= set(dir(ggufx))


# ---- types


USER_CODE = """
import numpy as np
import ggufx
from ggufx import GGUFError, QType

def first_rows(path: str) -> dict[str, float]:
    rows: dict[str, float] = {}
    with ggufx.open(path) as f:
        name: str = f.metadata["general.name"]
        for key, tensor in f.tensors.items():
            values = tensor.dequantize(dtype=np.float16, threads=1)
            rows[key + name] = float(values.reshape(-1)[0])
        packed = f["output.weight"].data
        again = ggufx.dequantize(packed, QType.Q4_K, shape=(4, 256), dtype="bfloat16", path="scalar")
        rows["sum"] = float(again.sum())
    arrays = ggufx.load(path, dtype=np.float32, names=["blk.0.*"])
    rows["bits"] = QType(12).bits_per_weight + QType["Q4_K"].block_size + ggufx.nbytes((2, 256), 12)
    best: str = ggufx.paths()[0]
    rows[best] = float(len(arrays))
    return rows

try:
    first_rows("x")
except GGUFError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def mypy_run(tmp_path_factory):
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed")
    folder = tmp_path_factory.mktemp("mypy")

    def check(code: str) -> subprocess.CompletedProcess[str]:
        (folder / "user.py").write_text(code)
        command = [sys.executable, "-m", "mypy", "--strict", "--config-file", os.devnull, "user.py"]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True)

    return check


def test_typed_user_code_passes(mypy_run):
    done = mypy_run(USER_CODE)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "wrong",
    [
        "ggufx.open()",
        "ggufx.nbytes('q', 12)",
        "ggufx.dequantize(b'', QType.Q4_0, threads='two')",
        "x: int = ggufx.paths()",
    ],
)
def test_wrong_user_code_fails(mypy_run, wrong):
    done = mypy_run(f"import ggufx\nfrom ggufx import QType\n{wrong}\n")
    assert done.returncode == 1, done.stdout
    assert "user.py:3" in done.stdout


def test_stub_matches_the_extension():
    native = pytest.importorskip("ggufx._native", reason="built without the C extension")
    stub = Path(ggufx.__file__).with_name("_native.pyi").read_text()
    declared = {node.name for node in ast.parse(stub).body if isinstance(node, ast.FunctionDef)}
    public = {name for name in vars(native) if not name.startswith("_")}
    assert declared == public
