"""Generate ggufx/sample.gguf: a mixture-of-experts model in miniature with a tensor of every type.

Run with ggufx installed: ``python tools/make_sample.py [--check]``. The bytes are written here and not by a library,
since no other writer knows all types, and the codes come from SHAKE-256, so that the file is the same everywhere.
The shapes, names and keys are those of a qwen2moe model; its weights are noise of the right size.
"""

from __future__ import annotations

import hashlib
import math
import struct
import sys
from collections.abc import Iterable
from pathlib import Path

from ggufx import QType

TARGET = Path(__file__).resolve().parent.parent / "ggufx" / "sample.gguf"
ALIGNMENT = 32
EMBED, HEADS, HEAD, FFN, EXPERTS, VOCAB, LAYERS = 256, 2, 32, 64, 4, 32, 3

# ---- metadata: (key, value type, value); an array's value is (item type, items)

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
FORMATS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q", I64: "q", F64: "d"}

# Vocabularies hold bytes that aren't UTF-8, so this one does too.
TOKENS = [b"<pad>", b"<bos>", b"<eos>", b"\xff", b"\xc3", b"\xe2\x96\x81the", b"", b"\n", b"\xf0\x9f\x90\xa6"]
TOKENS += [f"token{i}".encode() for i in range(len(TOKENS), VOCAB)]

METADATA: list[tuple[str, int, object]] = [
    ("general.architecture", STRING, "qwen2moe"),
    ("general.type", STRING, "model"),
    ("general.name", STRING, "ggufx sample"),
    ("general.description", STRING, "Noise in the shape of a mixture-of-experts model, one tensor of every type."),
    ("general.license", STRING, "mit"),
    ("general.tags", ARRAY, (STRING, ["sample", "mixture-of-experts", "naïve ünïcödé"])),
    ("general.alignment", U32, ALIGNMENT),
    ("general.quantization_version", U32, 2),
    ("general.parameter_count", U64, 0),  # filled in below
    ("qwen2moe.block_count", U32, LAYERS),
    ("qwen2moe.context_length", U32, 2048),
    ("qwen2moe.embedding_length", U32, EMBED),
    ("qwen2moe.feed_forward_length", U32, FFN),
    ("qwen2moe.expert_feed_forward_length", U32, FFN),
    ("qwen2moe.expert_shared_feed_forward_length", U32, FFN),
    ("qwen2moe.expert_count", U32, EXPERTS),
    ("qwen2moe.expert_used_count", U32, 2),
    ("qwen2moe.leading_dense_block_count", U32, 1),
    ("qwen2moe.attention.head_count", U32, HEADS),
    ("qwen2moe.attention.head_count_kv", U32, 1),
    ("qwen2moe.attention.layer_norm_rms_epsilon", F32, 1e-6),
    ("qwen2moe.rope.freq_base", F32, 1e6),
    ("qwen2moe.expert_weights_norm", BOOL, True),
    ("sample.u8", U8, 200),
    ("sample.i8", I8, -100),
    ("sample.u16", U16, 60000),
    ("sample.i16", I16, -30000),
    ("sample.i32", I32, -2_000_000_000),
    ("sample.u64", U64, 18_000_000_000_000_000_000),
    ("sample.i64", I64, -9_000_000_000_000_000_000),
    ("sample.f64", F64, 0.1),
    ("sample.empty", STRING, ""),
    ("sample.no_items", ARRAY, (I16, [])),
    ("sample.bools", ARRAY, (BOOL, [True, False, True])),
    ("sample.bytes", ARRAY, (U8, [0, 127, 128, 255])),
    ("sample.nested", ARRAY, (ARRAY, [(U16, [1, 2, 3]), (STRING, ["a", ""]), (F64, [])])),
    ("tokenizer.ggml.model", STRING, "gpt2"),
    ("tokenizer.ggml.tokens", ARRAY, (STRING, TOKENS)),
    ("tokenizer.ggml.scores", ARRAY, (F32, [-float(i) for i in range(VOCAB)])),
    ("tokenizer.ggml.token_type", ARRAY, (I32, [3, 3, 3] + [1] * (VOCAB - 3))),
    ("tokenizer.ggml.bos_token_id", U32, 1),
    ("tokenizer.ggml.eos_token_id", U32, 2),
    ("tokenizer.chat_template", STRING, "{% for m in messages %}\n{{ m.role }}: {{ m.content }}\n{% endfor %}"),
]


def _string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def _value(kind: int, value: object) -> bytes:
    if kind == STRING:
        assert isinstance(value, str | bytes)
        return _string(value)
    if kind == ARRAY:
        assert isinstance(value, tuple)
        item_kind, items = value
        return struct.pack("<IQ", item_kind, len(items)) + b"".join(_value(item_kind, item) for item in items)
    return struct.pack("<" + FORMATS[kind], value)


# ---- tensors: name, type, shape in numpy's order


def tensors() -> Iterable[tuple[str, QType, tuple[int, ...]]]:
    """Yield the index. Layer 0 is dense, the others have experts and a shared expert; large tensors get few bits."""
    q = QType
    yield "token_embd.weight", q.Q6_K, (VOCAB, EMBED)
    yield "output.weight", q.Q8_K, (VOCAB, EMBED)
    yield "output_norm.weight", q.F32, (EMBED,)
    yield "rope_freqs.weight", q.F64, (HEAD // 2,)
    yield "token_types", q.I8, (VOCAB,)
    yield "token_lengths", q.I16, (VOCAB,)
    yield "expert_order", q.I32, (LAYERS, EXPERTS)
    yield "position_ids", q.I64, (2, 16)
    attention = [(q.IQ2_S, q.Q4_K, q.Q5_K, q.Q4_0), (q.Q2_K, q.IQ3_XXS, q.IQ4_XS, q.Q4_1),
                 (q.Q3_K, q.IQ3_S, q.Q8_0, q.Q5_0)]  # fmt: skip
    for layer, (query, key, value, output) in enumerate(attention):
        at = f"blk.{layer}."
        yield at + "attn_norm.weight", q.F32, (EMBED,)
        yield at + "attn_q.weight", query, (HEADS * HEAD, EMBED)
        yield at + "attn_q.bias", (q.F32, q.F16, q.BF16)[layer], (HEADS * HEAD,)
        yield at + "attn_k.weight", key, (HEAD, EMBED)
        yield at + "attn_v.weight", value, (HEAD, EMBED)
        yield at + "attn_output.weight", output, (EMBED, HEADS * HEAD)
        yield at + "ffn_norm.weight", q.F32, (EMBED,)
    dense = ("ffn_gate", q.Q1_0), ("ffn_up", q.IQ2_XS), ("ffn_down", q.Q5_1)
    shared = [(("ffn_gate_shexp", q.Q1_0), ("ffn_up_shexp", q.TQ2_0), ("ffn_down_shexp", q.Q8_1)),
              (("ffn_gate_shexp", q.TQ2_0), ("ffn_up_shexp", q.Q2_K), ("ffn_down_shexp", q.NVFP4))]  # fmt: skip
    experts = [(("ffn_gate_exps", q.IQ1_S), ("ffn_up_exps", q.IQ1_M), ("ffn_down_exps", q.Q2_0)),
               (("ffn_gate_exps", q.TQ1_0), ("ffn_up_exps", q.IQ2_XXS), ("ffn_down_exps", q.MXFP4))]  # fmt: skip
    for layer, parts in enumerate([dense, *shared]):
        for name, qtype in parts:
            yield f"blk.{layer}.{name}.weight", qtype, (EMBED, FFN) if "down" in name else (FFN, EMBED)
    for layer, parts in enumerate(experts, 1):
        yield f"blk.{layer}.ffn_gate_inp.weight", q.F32, (EXPERTS, EMBED)
        for name, qtype in parts:
            shape = (EXPERTS, EMBED, FFN) if "down" in name else (EXPERTS, FFN, EMBED)
            yield f"blk.{layer}.{name}.weight", qtype, shape
    yield "blk.2.attn_output.bias", q.IQ4_NL, (EMBED,)


# ---- blocks: noise for the codes, and scales that make weights of about 0.02

# Offset and value of each f16 scale or minimum, by what a typical code (and inner scale) multiplies it with.
HALVES: dict[QType, list[tuple[int, float]]] = {
    QType.Q4_0: [(0, 0.004)], QType.Q4_1: [(0, 0.004), (2, -0.03)], QType.Q5_0: [(0, 0.002)],
    QType.Q5_1: [(0, 0.002), (2, -0.03)], QType.Q8_0: [(0, 0.0003)], QType.Q8_1: [(0, 0.0003)],
    QType.Q2_K: [(80, 0.002), (82, 0.002)], QType.Q3_K: [(108, 0.0006)], QType.Q4_K: [(0, 0.0001), (2, 0.0008)],
    QType.Q5_K: [(0, 0.00006), (2, 0.0008)], QType.Q6_K: [(208, 0.00002)], QType.IQ2_XXS: [(0, 0.0005)],
    QType.IQ2_XS: [(0, 0.0005)], QType.IQ2_S: [(0, 0.0005)], QType.IQ3_XXS: [(0, 0.0002)], QType.IQ3_S: [(0, 0.0002)],
    QType.IQ1_S: [(0, 0.003)], QType.IQ4_NL: [(0, 0.0003)], QType.IQ4_XS: [(0, 0.00002)], QType.TQ1_0: [(52, 0.02)],
    QType.TQ2_0: [(64, 0.02)], QType.Q1_0: [(0, 0.02)], QType.Q2_0: [(0, 0.02)],
}  # fmt: skip


def _half(value: float) -> bytes:
    return struct.pack("<e", value)


def _block(qtype: QType, noise: bytes) -> bytes:
    b = bytearray(noise)
    for at, value in HALVES.get(qtype, []):
        b[at : at + 2] = _half(value)
    if qtype == QType.Q8_1:
        codes = struct.unpack_from("<32b", b, 4)
        b[2:4] = _half(struct.unpack("<e", b[:2])[0] * sum(codes))
    elif qtype == QType.Q8_K:
        codes = struct.unpack_from("<256b", b, 4)
        b[:4] = struct.pack("<f", 0.0003)
        b[260:] = struct.pack("<16h", *(sum(codes[i : i + 16]) for i in range(0, 256, 16)))
    elif qtype == QType.IQ1_M:  # the four digits of the half are the top digits of four words
        (half,) = struct.unpack("<H", _half(0.003))
        for i in range(4):
            b[49 + 2 * i] = b[49 + 2 * i] & 15 | (half >> 4 * i & 15) << 4
    elif qtype == QType.MXFP4:
        b[0] = 120
    elif qtype == QType.NVFP4:
        b[:4] = bytes(4 | x & 3 for x in b[:4])
    return bytes(b)


def _plain(name: str, qtype: QType, count: int) -> bytes:
    if qtype in (QType.I8, QType.I16, QType.I32, QType.I64):
        return struct.pack("<" + f"{count}" + {QType.I8: "b", QType.I16: "h", QType.I32: "i", QType.I64: "q"}[qtype],
                           *(i - count // 2 for i in range(count)))  # fmt: skip
    noise = hashlib.shake_256(name.encode()).digest(count)
    centre = 1.0 if "norm" in name else 0.0
    values = [centre + (x - 127.5) / 4096 for x in noise]
    if qtype == QType.F64:
        values = [1e6 ** (-2 * i / HEAD) for i in range(count)]
    if qtype == QType.BF16:
        return b"".join(struct.pack("<f", v)[2:] for v in values)
    return struct.pack("<" + f"{count}" + {QType.F32: "f", QType.F16: "e", QType.F64: "d"}[qtype], *values)


def _payload(name: str, qtype: QType, shape: tuple[int, ...]) -> bytes:
    count = math.prod(shape)
    if not qtype.is_quantized:
        return _plain(name, qtype, count)
    noise = hashlib.shake_256(name.encode()).digest(count // qtype.block_size * qtype.block_bytes)
    step = qtype.block_bytes
    return b"".join(_block(qtype, noise[i : i + step]) for i in range(0, len(noise), step))


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % ALIGNMENT)


def build() -> bytes:
    """Return the whole file."""
    index = list(tensors())
    parameters = sum(math.prod(shape) for _, _, shape in index)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(index), len(METADATA))
    for key, kind, value in METADATA:
        if key == "general.parameter_count":
            value = parameters
        head += _string(key) + struct.pack("<I", kind) + _value(kind, value)
    data = b""
    for name, qtype, shape in index:
        head += _string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], qtype, len(data))
        data += _padded(_payload(name, qtype, shape))
    return _padded(head) + data


def main() -> int:
    """Write the file, or with ``--check`` compare it."""
    if "--check" not in sys.argv[1:]:
        TARGET.write_bytes(build())
    elif not TARGET.exists() or TARGET.read_bytes() != build():
        print(f"{TARGET.name} differs from what make_sample.py generates: run it", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
