"""Public path of :mod:`ggufx.integrations.torch`: tensors for PyTorch."""

from .integrations.torch import load_file, safe_open, save_file, to_torch

__all__ = ["load_file", "safe_open", "save_file", "to_torch"]
