"""What a packed module shows as its `weight`: shape, dtype and device at once, values when they are computed with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

__all__ = ["PackedWeight"]

# What can be said of a weight without its values.
_PROPERTIES = frozenset({
    "device", "dtype", "grad", "grad_fn", "is_cpu", "is_cuda", "is_leaf", "is_meta", "is_mps", "is_nested",
    "is_quantized", "is_sparse", "is_xpu", "itemsize", "layout", "names", "nbytes", "ndim", "requires_grad", "shape",
})  # fmt: skip
_METHODS = frozenset({
    "__len__", "dim", "element_size", "get_device", "is_complex", "is_floating_point", "is_inference", "is_signed",
    "ndimension", "nelement", "numel", "requires_grad_", "size",
})  # fmt: skip


class PackedWeight(torch.Tensor):
    """The weight of a packed module, without memory of its own.

    Its shape, dtype and device cost nothing to ask for. Whatever takes its values gets them decoded, from the blocks as
    they are; changing it in place is refused, as the blocks can't take such values.
    """

    _module: Any

    @classmethod
    def of(cls, module: Any) -> torch.Tensor:
        """The weight of a module that has blocks, a dtype and a method `dequantize`."""
        if torch.compiler.is_compiling():
            decoded: torch.Tensor = module.dequantize(module.dtype)
            return decoded  # what the graph doesn't use it doesn't compute
        shape = (len(module.blocks), module.width)
        empty = torch.zeros((), dtype=module.dtype, device=module.blocks.device).expand(shape)
        weight = empty.as_subclass(cls)
        weight._module = module
        return weight

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Answer from the shape alone, or with the values decoded."""
        kwargs = kwargs or {}
        name = func.__name__
        if name == "__get__":
            name = getattr(func.__self__, "__name__", "")  # type: ignore[attr-defined]
            if name == "data":
                return args[0]
            plain = name in _PROPERTIES
        else:
            plain = name in _METHODS
            changes = name in ("__set__", "__setitem__") or (name.endswith("_") and not name.endswith("__"))
            if not plain and (
                changes or (name.startswith("__i") and name not in ("__index__", "__int__", "__invert__"))
            ):
                raise RuntimeError(
                    f"a packed weight can't be changed ({name}): its blocks stay as they are in the file"
                )
        if plain:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)

        def decoded(value: Any) -> Any:
            return value._module.dequantize(value.dtype) if isinstance(value, cls) else value

        args, kwargs = tree_map(decoded, args), tree_map(decoded, kwargs)
        return func(*args, **kwargs)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"PackedWeight({self._module.qtype.name}, shape={tuple(self.shape)}, dtype={self.dtype})"
