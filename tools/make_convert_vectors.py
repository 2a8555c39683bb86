"""Write tests/vectors/checkpoints.json: tiny checkpoints, and the sha256 of what llama.cpp's converter makes of them.

    python tools/make_convert_vectors.py LLAMA_CPP CHECKPOINTS...

LLAMA_CPP is an unpacked tree of llama.cpp with its `conversion` and `gguf-py` folders, which needs torch and
transformers. Each of CHECKPOINTS is a folder of folders with config.json, tokenizer files and model.safetensors, of
which only names, types and shapes are taken; beside `config.json` may lie a `pre` file with the pre-tokenizer's name.
Weights come from their names (tests/support/tiny_checkpoints.py), so that the tests make the same checkpoints again.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import hashlib
import io
import json
import logging
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))
import tiny_checkpoints  # noqa: E402

TYPES = {"f32": "ALL_F32", "f16": "MOSTLY_F16", "bf16": "MOSTLY_BF16", "q8_0": "MOSTLY_Q8_0"}
TYPES |= {"tq1_0": "MOSTLY_TQ1_0", "tq2_0": "MOSTLY_TQ2_0", "auto": "GUESSED"}
Entry = dict[str, Any]
Change = Callable[[Entry], None]


def config(**changes: Any) -> Change:
    """A change of the configuration; None takes a key away."""

    def change(entry: Entry) -> None:
        entry["config"] = {k: v for k, v in {**entry["config"], **changes}.items() if v is not None}

    return change


def names(pattern: str, replacement: str) -> Change:
    """Other names of tensors."""

    def change(entry: Entry) -> None:
        entry["tensors"] = sorted([re.sub(pattern, replacement, n), d, s] for n, d, s in entry["tensors"])

    return change


def more(*tensors: tuple[str, list[int]], like: str = "", to: str = "") -> Change:
    """Further tensors, and those that match `like` once more under another name."""

    def change(entry: Entry) -> None:
        dtype = entry["tensors"][0][1]
        extra = [[name, dtype, shape] for name, shape in tensors]
        if like:
            extra += [[re.sub(like, to, n), d, s] for n, d, s in entry["tensors"] if re.search(like, n)]
        entry["tensors"] = sorted(entry["tensors"] + extra)

    return change


def inner(kind: str) -> Change:
    """A configuration inside that of a model for images."""

    def change(entry: Entry) -> None:
        text = dict(entry["config"])
        text.pop("architectures")
        entry["config"] = {"architectures": [kind], "model_type": entry.pop("outer"), "text_config": text}

    return change


def outer(model_type: str) -> Change:
    return lambda entry: entry.update(outer=model_type)


NEXT = [
    ("model.layers.2.eh_proj.weight", [64, 128]),
    ("model.layers.2.enorm.weight", [64]),
    ("model.layers.2.hnorm.weight", [64]),
    ("model.layers.2.shared_head.norm.weight", [64]),
    ("model.layers.2.shared_head.head.weight", [126, 64]),
    ("model.layers.2.embed_tokens.weight", [126, 64]),
]
MTP = [
    ("mtp.fc.weight", [64, 128]),
    ("mtp.norm.weight", [64]),
    ("mtp.pre_fc_norm_embedding.weight", [64]),
    ("mtp.pre_fc_norm_hidden.weight", [64]),
]
ROPE = {"rope_theta": 10000.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "beta_fast": 32.0}
VARIANTS: dict[str, tuple[str, list[Change]]] = {
    "glm4-moe-next": ("tiny-glm4-moe", [more(*NEXT, like=r"layers\.1\.", to="layers.2.")]),
    "qwen3-next-mtp": ("tiny-qwen3-next", [more(*MTP, like=r"^model\.layers\.1\.", to="mtp.layers.0.")]),
    "qwen35-mtp": (
        "tiny-qwen35",
        [more(*MTP, like=r"^model\.layers\.1\.", to="mtp.layers.0."), config(mtp_num_hidden_layers=1)],
    ),
    "hunyuan-dynamic": (
        "tiny-hunyuan",
        [
            config(
                max_position_embeddings=32768,
                rope_parameters={**ROPE, "rope_type": "dynamic", "alpha": 1000.0, "factor": 1.0},
            )
        ],
    ),
    "falcon-h1-multipliers": (
        "tiny-falcon-h1",
        [
            config(
                **{f"{n}_multiplier": 0.7 + i / 8 for i, n in enumerate(["attention_in", "attention_out", "key"])},
                embedding_multiplier=5.65,
                lm_head_multiplier=0.019,
                mlp_multipliers=[0.88, 0.58],
                ssm_in_multiplier=1.25,
                ssm_out_multiplier=0.235,
                ssm_multipliers=[0.35, 0.25, 0.177, 0.5, 0.3535],
            )
        ],
    ),
    "llama-yarn": ("tiny-llama-bf16", [config(rope_parameters={**ROPE, **YARN, "attention_factor": 0.9})]),
    "qwen2-yarn": ("tiny-qwen2", [config(rope_parameters={**ROPE, **YARN})]),
    "qwen2-mrope": (
        "tiny-qwen2",
        [config(rope_parameters={**ROPE, "rope_type": "default", "mrope_section": [4, 2, 2]})],
    ),
    "qwen2-bare": ("tiny-qwen2", [config(architectures=["Qwen2Model"]), names(r"^model\.", "")]),
    "qwen3-bare": ("tiny-qwen3", [config(architectures=["Qwen3Model"]), names(r"^model\.", "")]),
    "llama-bare": ("tiny-llama-bf16", [config(architectures=["LlamaModel"]), names(r"^model\.", "")]),
    "gemma3-images": (
        "tiny-gemma3",
        [outer("gemma3"), inner("Gemma3ForConditionalGeneration"), names(r"^", "language_model.")],
    ),
    "gemma3n-images": (
        "tiny-gemma3n",
        [outer("gemma3n"), inner("Gemma3nForConditionalGeneration"), names(r"^model\.", "model.language_model.")],
    ),
    "qwen35-images": (
        "tiny-qwen35",
        [outer("qwen3_5"), inner("Qwen3_5ForConditionalGeneration"), names(r"^model\.", "model.language_model.")],
    ),
    "bert-masked": (
        "tiny-bert",
        [
            config(architectures=["BertForMaskedLM"]),
            names(r"^(?=embeddings|encoder)", "bert."),
            more(("cls.predictions.bias", [84])),
        ],
    ),
    "modern-bert-masked": (
        "tiny-modernbert",
        [config(architectures=["ModernBertForMaskedLM"]), names(r"^", "model.")],
    ),
    "mt5": ("tiny-t5", [config(architectures=["MT5ForConditionalGeneration"])]),
    "falcon-7b": (
        "tiny-falcon",
        [
            config(new_decoder_architecture=False, num_kv_heads=1),
            names(r"\.ln_mlp\.", ".input_layernorm."),
            lambda e: e.update(tensors=[t for t in e["tensors"] if ".ln_attn." not in t[0]]),
            lambda e: [t[2].__setitem__(0, 96) for t in e["tensors"] if "query_key_value" in t[0]],
        ],
    ),
    "gpt2-bare": ("tiny-gpt2", [names(r"^transformer\.", "")]),
    "olmo3": (
        "tiny-olmo2",
        [
            config(
                architectures=["Olmo3ForCausalLM"],
                model_type="olmo3",
                sliding_window=64,
                layer_types=["sliding_attention", "full_attention"],
                rope_parameters=None,
                rope_theta=500000,
                rope_scaling={**YARN, "attention_factor": 1.1},
            )
        ],
    ),
    "granite-moe-shared": (
        "tiny-granite-moe",
        [
            config(
                architectures=["GraniteMoeSharedForCausalLM"],
                model_type="granitemoeshared",
                shared_intermediate_size=32,
            ),
            more(
                *[(f"model.layers.{n}.shared_mlp.input_linear.weight", [64, 64]) for n in range(2)],
                *[(f"model.layers.{n}.shared_mlp.output_linear.weight", [64, 32]) for n in range(2)],
            ),
        ],
    ),
    "granite-hybrid-dense": (
        "tiny-granite-hybrid",
        [
            config(num_local_experts=0, num_experts_per_tok=0),
            lambda e: e.update(tensors=[t for t in e["tensors"] if "block_sparse_moe" not in t[0]]),
        ],
    ),
    "granite-hybrid-attention": (
        "tiny-granite-hybrid",
        [
            config(num_local_experts=0, num_experts_per_tok=0, layer_types=["attention", "attention"]),
            lambda e: e.update(
                tensors=sorted(
                    [t for t in e["tensors"] if "block_sparse_moe" not in t[0] and ".mamba." not in t[0]]
                    + [[t[0].replace("layers.1", "layers.0"), *t[1:]] for t in e["tensors"] if "self_attn" in t[0]]
                )
            ),
        ],
    ),
    "falcon-mamba": (
        "tiny-mamba",
        [config(architectures=["FalconMambaForCausalLM"], model_type="falcon_mamba")],
    ),
}


def taken(folder: Path, files: dict[str, Any]) -> Entry:
    """What is stored of a checkpoint; its other files go into `files`."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_dir() or name in ("config.json", "model.safetensors", "pre", "generation_config.json"):
            continue
        data = path.read_bytes()
        binary = path.suffix == ".model"
        found[name] = {"base64": base64.b64encode(data).decode()} if binary else data.decode("utf-8")
    key = hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:8]
    files[key] = found
    with open(folder / "model.safetensors", "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    tensors = [[n, t["dtype"], t["shape"]] for n, t in sorted(header.items()) if n != "__metadata__"]
    entry: Entry = {"files": key, "config": json.loads((folder / "config.json").read_text()), "tensors": tensors}
    if (folder / "pre").is_file():
        entry["pre"] = (folder / "pre").read_text()
    return entry


class Reference:
    """llama.cpp's converter, told the pre-tokenizer's name."""

    def __init__(self, tree: Path) -> None:
        sys.path[:0] = [str(tree), str(tree / "gguf-py")]
        import conversion
        import gguf
        from conversion import base

        self.conversion, self.base, self.gguf = conversion, base, gguf
        self.pre: str | None = None
        base.TextModel.get_vocab_base_pre = lambda model, tokenizer: self.pre

    def convert(self, folder: Path, kind: str, out: Path, pre: str | None, no_mtp: bool) -> None:
        import torch

        self.pre = pre
        torch.set_num_threads(1)
        with torch.inference_mode(), contextlib.redirect_stderr(io.StringIO()):
            hparams = self.base.ModelBase.load_hparams(folder, False)
            name = self.conversion.get_model_architecture(hparams, self.conversion.ModelType.TEXT)
            cls = self.conversion.get_model_class(name)
            cls.no_mtp = no_mtp
            cls(folder, getattr(self.gguf.LlamaFileType, TYPES[kind]), out).write()


def main() -> int:
    logging.disable(logging.CRITICAL)
    reference = Reference(Path(sys.argv[1]).resolve())
    files: dict[str, Any] = {}
    entries: dict[str, Entry] = {}
    for root in map(Path, sys.argv[2:]):
        for folder in sorted(root.iterdir()):
            if (folder / "model.safetensors").is_file():
                entries[folder.name] = taken(folder, files)
    for name, (base, changes) in VARIANTS.items():
        entries[name] = copy.deepcopy(entries[base])
        for change in changes:
            change(entries[name])
    for name, entry in entries.items():
        if "itnet" in name:
            entry["signs"] = True
    tiny_checkpoints.vectors = lambda: {"files": files, "checkpoints": entries}
    with tempfile.TemporaryDirectory() as temporary:
        for name, entry in entries.items():
            folder = tiny_checkpoints.checkpoint(name, Path(temporary))
            entry["sha256"] = {}
            kinds = ["f32", "auto", "q8_0"] + (["tq1_0", "tq2_0"] if entry.get("signs") else [])
            for kind in kinds:
                out = Path(temporary) / "out.gguf"
                try:
                    reference.convert(folder, kind, out, entry.get("pre"), "qwen3" in name and "mtp" not in name)
                except Exception as error:
                    entry["refused"] = f"{type(error).__name__}: {error}"[:200]
                    print(f"{name} {kind}: {entry['refused']}")
                    break
                entry["sha256"][kind] = hashlib.sha256(out.read_bytes()).hexdigest()
            print(name, len(entry["sha256"]), flush=True)
    text = json.dumps({"files": files, "checkpoints": entries}, ensure_ascii=False, separators=(",", ":"))
    (ROOT / "tests" / "vectors" / "checkpoints.json").write_text(text.replace('},"', '},\n"') + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
