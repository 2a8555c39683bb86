"""transformers' own torch decoders, those of its native GGUF loading, on the CPU."""

from importlib import metadata

VARIANTS = ["transformers (torch)"]


def version():
    """Versions of transformers and torch."""
    import transformers.integrations.gguf.dequant  # noqa: F401

    return f"{metadata.version('transformers')}, torch {metadata.version('torch')}"


def decoder(variant, case, src, out):
    """transformers.integrations.gguf.dequant.dequantize, on one thread, as its loader calls it."""
    import torch
    from transformers.integrations.gguf.dequant import GGML_BLOCK, dequantize

    torch.set_num_threads(1)
    if int(case.qtype) not in GGML_BLOCK:
        return None
    dtype, blocks = getattr(torch, case.dtype), torch.from_numpy(src)

    def decode():
        values = dequantize(blocks, int(case.qtype), dtype)
        return values.view(torch.uint16).numpy() if case.dtype == "bfloat16" else values.numpy()

    return decode
