"""Sizes of a Llama-3-8B-shaped model, caches of several architectures, and what fits."""

import numpy as np
import pytest

from ggufx import GGUFError, QType
from ggufx.formats.file_types import FileType
from ggufx.plan import plan
from ggufx.requantize.choices import TensorSpec
from ggufx.requantize.kvcache import CacheShape
from ggufx.sizes import format_size, parse_size

GIB, MIB = 2**30, 2**20
LLAMA_3_8B = {
    "general.architecture": "llama",
    "llama.block_count": 32,
    "llama.embedding_length": 4096,
    "llama.attention.head_count": 32,
    "llama.attention.head_count_kv": 8,
}


def llama_3_8b() -> list[TensorSpec]:
    tensors = [
        TensorSpec("token_embd.weight", (128256, 4096)),
        TensorSpec("output.weight", (128256, 4096)),
        TensorSpec("output_norm.weight", (4096,)),
    ]
    parts = {
        "attn_norm": (4096,),
        "ffn_norm": (4096,),
        "attn_q": (4096, 4096),
        "attn_k": (1024, 4096),
        "attn_v": (1024, 4096),
        "attn_output": (4096, 4096),
        "ffn_gate": (14336, 4096),
        "ffn_up": (14336, 4096),
        "ffn_down": (4096, 14336),
    }
    return tensors + [TensorSpec(f"blk.{n}.{p}.weight", shape) for n in range(32) for p, shape in parts.items()]


@pytest.fixture(scope="module")
def llama() -> object:
    return plan(llama_3_8b(), LLAMA_3_8B, memory=8 * GIB)


@pytest.mark.parametrize(
    ("mix", "bpw", "gib"),
    [
        ("Q3_K_S", 3.643, 3.41),
        ("Q3_K_M", 3.996, 3.74),
        ("Q3_K_L", 4.298, 4.02),
        ("Q4_K_S", 4.667, 4.36),
        ("Q4_K_M", 4.894, 4.58),
        ("Q5_K_S", 5.570, 5.21),
        ("Q5_K_M", 5.704, 5.33),
        ("Q6_K", 6.563, 6.14),
        ("Q8_0", 8.501, 7.95),
        ("IQ4_XS", None, 4.17),
    ],
)
def test_sizes_of_llama_3_8b(llama: object, mix: str, bpw: float | None, gib: float) -> None:
    assert llama.size == 8_030_261_248
    assert round(llama[mix].gib, 2) == gib
    if bpw is not None:
        assert round(llama[mix].bits_per_weight, 3) == bpw


def test_prices_of_groups() -> None:
    pure = plan(llama_3_8b(), LLAMA_3_8B, pure=True)["Q4_K_M"]
    groups = {g.name: g for g in pure.groups()}
    rounded = {
        name: (round(groups[name].nbytes / MIB, 1), round(groups[name].price(QType.Q6_K) / MIB, 1))
        for name in ("attn_v", "output", "ffn_down")
    }
    assert rounded == {"attn_v": (72.0, 33.0), "output": (281.8, 129.2), "ffn_down": (1008.0, 462.0)}


def test_groups_hold_everything(llama: object) -> None:
    mix = llama["Q4_K_M"]
    groups = mix.groups()
    assert sum(g.nbytes for g in groups) == mix.nbytes
    assert sum(g.size for g in groups) == llama.size
    assert {g.name: g.strip for g in groups}["attn_v"] == "66664464464464464464464464466666"


@pytest.mark.parametrize(
    ("memory", "context", "best"),
    [
        (6, 8192, "Q3_K_M"),
        (8, 8192, "Q5_K_M"),
        (12, 8192, "Q8_0"),
        (6, 32768, None),
        (8, 32768, None),
        (12, 32768, "Q6_K"),
    ],
)
def test_what_fits(memory: int, context: int, best: str | None) -> None:
    p = plan(llama_3_8b(), LLAMA_3_8B, memory=memory * GIB, context=context)
    assert p.cache_nbytes == context * 128 * 1024
    assert (p.best and p.best.ftype.name) == best
    assert all(p.total(m) <= memory * GIB for m in p.mixes if p.fits(m))


def test_what_can_not_be_is_refused() -> None:
    llama = (llama_3_8b(), LLAMA_3_8B)
    few = plan(*llama, memory=8 * GIB, mixes=[FileType.Q4_K_M])
    assert few.best.ftype is FileType.Q4_K_M
    with pytest.raises(ValueError, match="Q8_0 isn't planned"):
        few["Q8_0"]
    with pytest.raises(ValueError, match="context is -5"):
        plan(*llama, context=-5)
    for speeds in ({"bandwidth": 0}, {"bandwidth": 1, "gpu_memory": 1, "gpu_bandwidth": 0}):
        with pytest.raises(ValueError, match="above 0"):
            few.tokens_per_second(few.mixes[0], **speeds)


def test_without_memory_everything_fits() -> None:
    p = plan(llama_3_8b(), LLAMA_3_8B)
    assert p.best is None
    assert all(p.fits(m) for m in p.mixes)
    assert [m.nbytes for m in p.mixes] == sorted(m.nbytes for m in p.mixes)


def test_quantized_caches_are_smaller() -> None:
    sizes = [
        plan(llama_3_8b(), LLAMA_3_8B, k_type=t, v_type=t, mixes=[FileType.Q4_K_M]).cache_nbytes
        for t in (QType.F16, QType.Q8_0, QType.Q4_0)
    ]
    assert sizes == [GIB, GIB * 34 // 64, GIB * 18 // 64]


def test_layers_on_a_gpu(llama: object) -> None:
    mix = llama["Q4_K_M"]
    everything = llama.offload(mix, 24 * GIB)
    assert (everything.layers, everything.total) == (33, 33)
    nothing = llama.offload(mix, GIB)
    assert (nothing.layers, nothing.gpu_nbytes) == (0, 0)
    half = llama.offload(mix, 4 * GIB)
    assert 0 < half.layers < 33
    assert half.gpu_nbytes <= 3 * GIB
    for split in (everything, nothing, half):
        assert split.gpu_nbytes + split.cpu_nbytes == mix.nbytes + llama.cache_nbytes


def test_tokens_per_second(llama: object) -> None:
    mix = llama["Q4_K_M"]
    used = llama.bytes_per_token(mix)
    embedding = 128256 * 4096 // 256 * 144
    assert used == mix.nbytes + llama.cache_nbytes - embedding + embedding // 128256
    assert llama.tokens_per_second(mix, 100e9) == 100e9 / used
    slow, mixed, fast = (
        llama.tokens_per_second(mix, 50e9, gpu_memory=m, gpu_bandwidth=1e12) for m in (GIB, 4 * GIB, 24 * GIB)
    )
    assert slow < mixed < fast
    assert slow == pytest.approx(50e9 / used)


def test_only_the_chosen_experts_are_read() -> None:
    metadata = {
        "general.architecture": "mixtral-like",
        "mixtral-like.block_count": 1,
        "mixtral-like.embedding_length": 256,
        "mixtral-like.attention.head_count": 4,
        "mixtral-like.expert_count": 8,
        "mixtral-like.expert_used_count": 2,
    }
    tensors = [TensorSpec("blk.0.ffn_up_exps.weight", (8, 256, 256)), TensorSpec("output.weight", (256, 256))]
    p = plan(tensors, metadata)
    mix = p["Q8_0"]
    assert p.bytes_per_token(mix) == mix.nbytes - 6 * 256 * 256 // 32 * 34 + p.cache_nbytes


def cache(arch: str, context: int = 8192, **keys: object) -> int:
    metadata = {f"{arch}.{key.replace('__', '.')}": value for key, value in keys.items()}
    return CacheShape.from_metadata({"general.architecture": arch, **metadata}).nbytes(context)


def test_windows_by_architecture() -> None:
    gemma = {
        "block_count": 26,
        "embedding_length": 1152,
        "attention__head_count": 4,
        "attention__head_count_kv": 1,
        "attention__key_length": 256,
        "attention__value_length": 256,
        "attention__sliding_window": 512,
    }
    row = 2 * 256 * 2
    assert cache("gemma3", **gemma) == row * (4 * 8192 + 22 * 1024)
    assert cache("gemma3", 256, **gemma) == row * 26 * 256
    assert cache("gemma3", **gemma, attention__sliding_window_pattern=2) == row * (13 * 8192 + 13 * 1024)
    one_full = [True] * 25 + [False]
    assert cache("gemma3", **gemma, attention__sliding_window_pattern=one_full) == row * (8192 + 25 * 1024)
    assert cache("mistral", **gemma) == row * 26 * 8192


def test_mla_keeps_one_compressed_row() -> None:
    assert (
        cache(
            "deepseek2",
            1024,
            block_count=61,
            embedding_length=7168,
            attention__head_count=128,
            attention__head_count_kv=1,
            attention__key_length=576,
            attention__value_length=512,
            attention__key_length_mla=192,
            attention__value_length_mla=128,
            attention__kv_lora_rank=512,
            rope__dimension_count=64,
        )
        == 61 * 576 * 2 * 1024
    )


def test_hybrids_keep_states_and_few_caches() -> None:
    keys = {"embedding_length": 64, "attention__head_count": 2, "ssm__inner_size": 32, "ssm__state_size": 8}
    state = 4 * 32 * 8
    mamba = cache("jamba", 100, block_count=4, attention__head_count_kv=np.array([0, 2, 0, 0]), **keys)
    assert mamba == 3 * state + 100 * 2 * 64 * 2
    interval = cache("qwen3next", 100, block_count=4, attention__head_count_kv=2, full_attention_interval=4, **keys)
    assert interval == 3 * state + 100 * 2 * 64 * 2


def test_a_cache_of_unknown_size_fits_nowhere() -> None:
    bare = {k: v for k, v in LLAMA_3_8B.items() if "head_count" not in k}
    free = plan(llama_3_8b()[:30], bare, mixes=[FileType.Q4_K_M])
    assert free.fits(free["Q4_K_M"])
    tight = plan(llama_3_8b()[:30], bare, memory=1 << 40, mixes=[FileType.Q4_K_M])
    for question in (lambda: tight.fits(tight["Q4_K_M"]), lambda: tight.best, lambda: free.offload(free["Q4_K_M"], 1)):
        with pytest.raises(GGUFError, match=r"llama\.attention\.head_count: the cache's size can't be known"):
            question()
    state = {"general.architecture": "rwkv6", "rwkv6.block_count": 2, "rwkv6.embedding_length": 64}
    assert CacheShape.from_metadata({**state, "rwkv6.wkv.head_size": 8}).known
    assert not CacheShape.from_metadata({**state, "rwkv6.attention.sliding_window": 64}).known
    heads = {"attention.head_count_kv": 2, "attention.key_length": 8, "attention.value_length": 8}
    assert CacheShape.from_metadata({**state, **{f"rwkv6.{key}": n for key, n in heads.items()}}).known


def test_missing_keys_are_named() -> None:
    with pytest.raises(GGUFError, match=r"llama\.embedding_length"):
        cache("llama", block_count=2, attention__head_count=2)
    with pytest.raises(GGUFError, match="1 values for 2 layers"):
        cache("llama", block_count=2, embedding_length=64, attention__head_count=[2])
    with pytest.raises(GGUFError, match=r"general\.architecture"):
        CacheShape.from_metadata({})


@pytest.mark.parametrize("value", [2**63, -1, "many", float("nan"), float("inf"), [], [[1]], ["x"], 0.5, True, [2**50]])
@pytest.mark.parametrize(
    "key",
    [
        "block_count",
        "embedding_length",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.sliding_window",
        "attention.sliding_window_pattern",
        "attention.shared_kv_layers",
        "full_attention_interval",
        "ssm.inner_size",
        "shortconv.l_cache",
        "wkv.head_size",
        "expert_count",
        "expert_used_count",
    ],
)
def test_numbers_that_make_no_sense(key: str, value: object) -> None:
    """A result or an error that names the key, at once, whatever a file says."""
    metadata = {**LLAMA_3_8B, f"llama.{key}": value}
    message = ""
    try:
        plan(llama_3_8b()[:30], metadata, mixes=[FileType.Q4_K_M])
    except GGUFError as error:
        message = str(error)
    assert not message or f"llama.{key}" in message


@pytest.mark.parametrize("side", ["k_type", "v_type"])
@pytest.mark.parametrize("qtype", [QType.Q4_K, QType.Q6_K, QType.I8])
def test_caches_have_few_types(side: str, qtype: QType) -> None:
    with pytest.raises(
        ValueError, match=rf"{side} is {qtype.name}; .*F32, F16, BF16, Q8_0, Q4_0, Q4_1, IQ4_NL, Q5_0, Q5_1"
    ):
        plan(llama_3_8b()[:30], LLAMA_3_8B, **{side: qtype})


def test_lengths_are_whole_numbers() -> None:
    with pytest.raises(GGUFError, match=r"llama\.attention\.key_length is 1\.5, a whole number"):
        plan(llama_3_8b()[:30], {**LLAMA_3_8B, "llama.attention.key_length": 1.5})


def test_fallbacks_and_what_they_cost() -> None:
    metadata = {**LLAMA_3_8B, "llama.block_count": 1}
    tensors = [TensorSpec("blk.0.attn_q.weight", (64, 288)), TensorSpec("output.weight", (64, 256))]
    mix = plan(tensors, metadata)["Q4_K_S"]
    (fallback,) = mix.fallbacks
    assert (fallback.wanted, fallback.qtype) == (QType.Q4_K, QType.Q5_0)
    assert mix.fallback_nbytes == 64 * (288 // 32 * 22 - 288 * 144 // 256)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("7.5GiB", 7.5 * GIB), ("8G", 8 * GIB), ("8GB", 8e9), ("512 MiB", 512 * MIB), ("1048576", MIB), (5, 5)],
)
def test_sizes_as_people_write_them(text: str | int, expected: float) -> None:
    assert parse_size(text) == expected


def test_sizes_that_are_none() -> None:
    for text in ("", "8 apples", "-1GiB", "1e9", "GiB"):
        with pytest.raises(ValueError, match="no size"):
            parse_size(text)


def test_sizes_printed() -> None:
    assert [format_size(n) for n in (0, 1023, 1024, 4_920_739_232, -5 * MIB)] == [
        "0 bytes",
        "1023 bytes",
        "1.00 KiB",
        "4.58 GiB",
        "-5.00 MiB",
    ]
