"""Copies of the gguf package that programs bring along: llama.cpp's tree with its converter, gguf-connector.

Environment
-----------
GGUFX_TEST_LLAMA_CPP : llama.cpp's tree with its ``gguf-py``: ``vendor/llama.cpp`` in the sdist of llama-cpp-python.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from compat_probe import of_field, of_tensor
from compat_runs import PROBE, run
from tiny_checkpoints import checkpoint

from ggufx import compat
from ggufx.gguf_names.lazylists import LazyList

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def tree() -> Path:
    return Path(os.environ.get("GGUFX_TEST_LLAMA_CPP") or pytest.skip("GGUFX_TEST_LLAMA_CPP is not set"))


def run_beside(tree: Path, *arguments: object) -> str:
    """Run Python where ``import gguf`` finds the tree's."""
    path = os.pathsep.join(filter(None, (str(tree / "gguf-py"), os.environ.get("PYTHONPATH"))))
    done = run("-W", "ignore", *arguments, env={"PYTHONPATH": path, "TQDM_DISABLE": "1"}, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("job", ["files", "decoded", "encoded", "lazy", "name_maps"])
def test_llama_cpp(tree, job, good_files):
    """The same of every file that it opens, every type and every name map."""
    pytest.importorskip("gguf")
    # Its reader refuses the tensor of five dimensions in the others.
    files = good_files[3:] if job == "files" else ()
    plain, patched = (json.loads(run_beside(tree, PROBE, way, job, *files)) for way in ("plain", "patched"))
    assert plain
    new = {key for key in plain if plain[key] == "NotImplementedError" != patched[key]}  # what it can't encode
    assert {k: v for k, v in patched.items() if k not in new} == {k: v for k, v in plain.items() if k not in new}
    code = "import ggufx.compat as compat, gguf; compat.install(); print(*compat.status().packages.values())"
    assert run_beside(tree, "-c", code).count("'patched'") == 3


CONVERTING = """
import runpy, sys
tree, way, *sys.argv[1:] = sys.argv[1:]
sys.path.insert(0, tree)
if way == "patched":
    import ggufx.compat as compat
    compat.install()
runpy.run_path(tree + "/convert_hf_to_gguf.py", run_name="__main__")
if way == "patched":
    import gguf.quants
    assert hasattr(vars(vars(gguf.quants)["__Quant"])["_Quant__quantize_array"].__func__, "__wrapped__")
"""


def test_converter(tree, tmp_path):
    """llama.cpp's own converter writes the same bytes."""
    for name in ("torch", "transformers", "sentencepiece"):
        pytest.importorskip(name)
    folder, program = checkpoint("tiny-llama-bf16", tmp_path), tmp_path / "convert.py"
    program.write_text(CONVERTING, encoding="utf-8")
    for way in ("plain", "patched"):
        run_beside(tree, program, tree, way, folder, "--outfile", tmp_path / way, "--outtype", "q8_0")
    assert (tmp_path / "patched").read_bytes() == (tmp_path / "plain").read_bytes()


def test_connector(good_files):
    """gguf-connector has the reader and the quantization classes in modules of other names."""
    reader = pytest.importorskip("gguf_connector.reader")
    quant = pytest.importorskip("gguf_connector.quant")
    raw = np.random.default_rng(0).integers(0, 256, (4, 288), np.uint8)

    def seen() -> list[object]:
        found = reader.GGUFReader(good_files[0])
        fields = [of_field(field) for field in found.fields.values()]
        return [fields, [of_tensor(t) for t in found.tensors], quant.dequantize(raw, 12).tobytes()]

    plain = seen()
    with compat.patched():
        assert type(reader.GGUFReader(good_files[0]).fields["many words"].parts) is LazyList
        assert seen() == plain
        packages = compat.status().packages
    assert packages["gguf_connector.reader"] == {"reader": "patched"}
    assert packages["gguf_connector.quant"]["quants"].startswith("patched")
