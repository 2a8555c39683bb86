"""diffusers' torch decoders, which its quantized layers run at every forward pass, on the CPU."""

from importlib import metadata

VARIANTS = ["diffusers (torch)"]


def version():
    """Versions of diffusers and torch."""
    import diffusers.quantizers.gguf.utils  # noqa: F401

    return f"{metadata.version('diffusers')}, torch {metadata.version('torch')}"


def decoder(variant, case, src, out):
    """One of diffusers' dequantize_functions and the conversion that its layers do after it, on one thread."""
    import torch
    from diffusers.quantizers.gguf.utils import dequantize_functions
    from gguf import GGMLQuantizationType

    torch.set_num_threads(1)
    # It computes in halves, so float32 from it wouldn't be the same work.
    known = case.dtype != "float32" and int(case.qtype) in set(GGMLQuantizationType)
    function = dequantize_functions.get(GGMLQuantizationType(int(case.qtype))) if known else None
    if function is None:
        return None
    dtype = getattr(torch, case.dtype)
    blocks = torch.from_numpy(src.reshape(-1, case.qtype.block_bytes))

    def decode():
        values = function(blocks, case.qtype.block_size, case.qtype.block_bytes).to(dtype)
        return values.view(torch.uint16).numpy() if case.dtype == "bfloat16" else values.numpy()

    return decode
