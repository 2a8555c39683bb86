"""Public path of :mod:`ggufx.gguf_names.quants`: the names of gguf.quants."""

from .gguf_names.quants import QuantError, dequantize, quant_shape_from_byte_shape, quant_shape_to_byte_shape, quantize

__all__ = ["QuantError", "dequantize", "quant_shape_from_byte_shape", "quant_shape_to_byte_shape", "quantize"]
