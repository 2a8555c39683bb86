"""Public path of :mod:`ggufx.integrations.torch`: tensors and modules for PyTorch."""

from .integrations.torch import load_file, safe_open, save_file, to_torch
from .integrations.torch_modules import Embedding, Experts, Linear

__all__ = ["Embedding", "Experts", "Linear", "load_file", "safe_open", "save_file", "to_torch"]
