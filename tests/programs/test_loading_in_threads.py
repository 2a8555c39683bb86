"""Models loaded in several threads of one process: each whole, and transformers as it was afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ggufx

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("gguf")


@pytest.fixture
def model(tmp_path):
    """A tiny model whose output is its embedding, and its values by transformers' names."""
    arch = "llama"
    rng = np.random.default_rng(0)
    shapes = {
        "token_embd.weight": (50, 64), "output_norm.weight": (64,),
        "blk.0.attn_norm.weight": (64,), "blk.0.ffn_norm.weight": (64,), "blk.0.attn_q.weight": (64, 64),
        "blk.0.attn_k.weight": (32, 64), "blk.0.attn_v.weight": (32, 64), "blk.0.attn_output.weight": (64, 64),
        "blk.0.ffn_gate.weight": (96, 64), "blk.0.ffn_up.weight": (96, 64), "blk.0.ffn_down.weight": (64, 96),
    }  # fmt: skip
    numbers = {"block_count": 1, "context_length": 64, "embedding_length": 64, "feed_forward_length": 96,
               "attention.head_count": 4, "attention.head_count_kv": 2, "vocab_size": 50}  # fmt: skip
    metadata = {"general.architecture": arch, "general.name": "tiny"} | {f"{arch}.{k}": v for k, v in numbers.items()}
    metadata[f"{arch}.attention.layer_norm_rms_epsilon"] = 1e-6
    tensors = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    ggufx.write(tmp_path / "tiny.gguf", metadata, tensors)
    np.save(tmp_path / "embedding.npy", tensors["token_embd.weight"])
    return tmp_path


def run(program: str, folder: Path) -> str:
    (folder / "program.py").write_text(PREAMBLE + program)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GGUFX_")} | {
        "TRANSFORMERS_VERBOSITY": "error"
    }
    done = subprocess.run(
        [sys.executable, folder / "program.py", folder], capture_output=True, text=True, env=environment, timeout=500
    )
    assert not done.returncode, done.stderr[-3000:]
    return done.stdout


PREAMBLE = """
import sys, threading, time, warnings
warnings.simplefilter("ignore")
import numpy as np, torch, transformers
from transformers import PreTrainedModel
from concurrent.futures import ThreadPoolExecutor
import ggufx.compat as compat
from ggufx.integrations.transformers import load
folder = sys.argv[1]
path = folder + "/tiny.gguf"
embedding = torch.from_numpy(np.load(folder + "/embedding.npy"))
tie = PreTrainedModel.tie_weights

def theirs(dtype=torch.float32):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file="tiny.gguf", dtype=dtype), dtype

def ours(dtype=torch.float32):
    return load(path, dtype=dtype), dtype

def check(found):
    model, dtype = found
    assert all(p.device.type == "cpu" and p.dtype == dtype for p in model.parameters())
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert torch.equal(model.lm_head.weight, embedding.to(dtype))

def together(*calls):
    barrier = threading.Barrier(len(calls))
    def one(call, dtype):
        barrier.wait()
        return call(dtype)
    with ThreadPoolExecutor(len(calls)) as pool:
        futures = [pool.submit(one, call, dtype) for call, dtype in calls]
        for future in futures:
            check(future.result())

# Making a model takes so long that others come between.
make = transformers.LlamaForCausalLM.__init__
def slowly(self, *args, **options):
    time.sleep(0.05)
    make(self, *args, **options)
    time.sleep(0.05)
transformers.LlamaForCausalLM.__init__ = slowly
f32, bf16 = torch.float32, torch.bfloat16
"""

PATCHED = """
for _ in range(3):
    with compat.patched():
        parts = compat.status().packages["transformers.modeling_utils"]
        assert parts == {"loading in threads": "patched"}, parts
        together((theirs, f32), (theirs, bf16), (ours, f32), (theirs, f32), (ours, bf16))
    assert torch.get_default_dtype() == f32
    assert PreTrainedModel.tie_weights is tie
check(theirs())
print("done")
"""


def test_several_at_once(model):
    """from_pretrained under compat, and load() beside it, in different dtypes."""
    assert run(PATCHED, model) == "done\n"


BESIDE = """
whole = theirs()[0]
del whole.config.quantization_config
plain = transformers.LlamaForCausalLM(whole.config)
plain.load_state_dict(whole.state_dict())
plain.save_pretrained(folder + "/safetensors")
def safetensors(dtype):
    return transformers.AutoModelForCausalLM.from_pretrained(folder + "/safetensors", dtype=dtype), dtype
compat.install()
for _ in range(3):
    together((ours, f32), (safetensors, bf16), (theirs, f32), (safetensors, f32))
compat.uninstall()
assert PreTrainedModel.tie_weights is tie
assert torch.get_default_dtype() == f32
check(safetensors(f32))
print("done")
"""


def test_beside_other_files(model):
    """Under compat, loading anything else in other threads is put in line as well."""
    pytest.importorskip("safetensors")
    assert run(BESIDE, model) == "done\n"


UNPATCHED = """
import ggufx.integrations.transformers as integration
# Another thread is in transformers' own loading; it ends, and load() with it.
inside, ending = threading.Event(), threading.Event()
def hold():
    with transformers.initialization.no_tie_weights():
        inside.set()
        ending.wait(60)
holder = threading.Thread(target=hold)
holder.start()
inside.wait()
with ThreadPoolExecutor(1) as pool:
    loading = pool.submit(ours)
    time.sleep(0.2)
    assert not loading.done()
    ending.set()
    check(loading.result())
holder.join()
# It comes between: an error, not a model without values.
entered = threading.Event()
mark = transformers.LlamaForCausalLM.mark_tied_weights_as_initialized
def swap_first(self, *args):
    PreTrainedModel.tie_weights = lambda self, *args, **options: None
    return mark(self, *args)
transformers.LlamaForCausalLM.mark_tied_weights_as_initialized = swap_first
try:
    ours()
except RuntimeError as error:
    print(str(error).replace(folder, ""))
PreTrainedModel.tie_weights = tie
transformers.LlamaForCausalLM.mark_tied_weights_as_initialized = mark
check(ours())
# It never ends, as after calls that put each other's replacement back.
integration.PATIENCE = 0.1
outer, inner = transformers.initialization.no_tie_weights(), transformers.initialization.no_tie_weights()
outer.__enter__()
inner.__enter__()
outer.__exit__(None, None, None)
inner.__exit__(None, None, None)
assert PreTrainedModel.tie_weights is not tie
try:
    ours()
except RuntimeError as error:
    print(error)
"""


def test_an_error_and_never_half_a_model(model):
    first, second = run(UNPATCHED, model).splitlines()
    assert first.startswith("/tiny.gguf: 1 parameters of the model were left without values, 'lm_head.weight' for one")
    assert second.startswith("PreTrainedModel.tie_weights has been replaced by a function that does nothing")
