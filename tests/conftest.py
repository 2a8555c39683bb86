"""Fixtures every test file shares: path, type and dtype from the tables, guarded memory, the oracles, the vectors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from compat_files import every_tensor, every_value
from gguf_bytes import ARRAY, STRING, U32, Array, File
from guard import GuardedMemory
from oracle import BLOCK_TYPES, FLOAT_TYPES, GGML_VERSION, Ggml

import ggufx
from ggufx import QType
from ggufx.codec import decode as decoding

VECTORS = Path(__file__).parent / "vectors"
PATHS = ("avx512", "avx2", "neon", "scalar", "numpy")
DTYPES = ("float32", "float16", "bfloat16")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What names the step that adding a type has missed comes before the many tests that it fails."""
    items.sort(key=lambda item: item.path.name != "test_types.py")


@pytest.fixture(scope="session", autouse=True)
def _away_from_the_source_tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Processes that tests start would import the uncompiled package from the current folder, were it the project's."""
    before = os.getcwd()
    os.chdir(tmp_path_factory.mktemp("elsewhere"))
    yield
    os.chdir(before)


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> str:
    """Every decode path there could be; skipped where this CPU or this build lacks it."""
    if request.param not in ggufx.paths():
        pytest.skip(f"path {request.param} is not available here (paths: {', '.join(ggufx.paths())})")
    return request.param


@pytest.fixture(params=BLOCK_TYPES, ids=lambda t: t.name)
def qtype(request: pytest.FixtureRequest) -> QType:
    """Every block type."""
    return request.param


@pytest.fixture(params=BLOCK_TYPES + FLOAT_TYPES, ids=lambda t: t.name)
def decodable(request: pytest.FixtureRequest) -> QType:
    """Every type that decodes to a float dtype: the block types and the plain floats."""
    return request.param


@pytest.fixture(params=DTYPES)
def dtype(request: pytest.FixtureRequest) -> str:
    """Every output dtype, by name."""
    return request.param


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers that are the same in every run of one test, and others in each test."""
    return np.random.default_rng(list(request.node.name.encode()))


@pytest.fixture(scope="session")
def golden() -> dict[str, np.ndarray]:
    """Blocks and ggml's values, frozen: T.raw uint8 (blocks, block bytes) and T.f32 float32 (blocks, values)."""
    with np.load(VECTORS / "dequantize.npz") as vectors:
        return dict(vectors)


@pytest.fixture
def guarded() -> Iterator[Callable[[int], GuardedMemory]]:
    """Make :class:`guard.GuardedMemory` of a size; released after the test."""
    with ExitStack() as stack:
        yield lambda nbytes: stack.enter_context(GuardedMemory(nbytes))


@pytest.fixture(scope="session")
def ggml() -> Ggml:
    """Load the live ggml library; skip where it isn't installed."""
    try:
        library = Ggml()
    except ImportError as error:
        pytest.skip(f"no live oracle: {error}")
    assert library.version == GGML_VERSION, f"the oracle drifted: {library.version}, bits are pinned to {GGML_VERSION}"
    return library


@pytest.fixture(scope="session")
def good_files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Files that gguf reads: both byte orders, both versions, alignments, no tensors, nothing at all."""
    folder = tmp_path_factory.mktemp("good")
    files = {
        "little": every_tensor(every_value(File())),
        "version2": every_tensor(every_value(File(version=2))),
        "big": every_tensor(every_value(File(big=True))),
        "aligned": File(alignment=256).add("general.alignment", U32, 256).tensor("a", (3,), 0).tensor("b", (5,), 0),
        "fields": every_value(File()),
        "nothing": File(pad=False),
        "not-utf8": File().add("bad", STRING, b"\xff").add("worse", ARRAY, Array(STRING, [b"ok", b"\xc3("] * 20)),
    }
    return [file.write(folder / f"{name}.gguf") for name, file in files.items()]


@pytest.fixture
def threads_pay_early(monkeypatch):
    """An eighth of the values that would make a thread pay, so that samples can be small."""
    monkeypatch.setattr(decoding, "VALUES_PER_THREAD", 1 << 19)
