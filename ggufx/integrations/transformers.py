"""Loading GGUF files into transformers' models faster than the patched package alone makes it.

`load` decodes into the very memory that becomes the model's parameters, in the dtype asked for, all tensors together on
all threads. `install_decoders` replaces the decoders of transformers' newer loader where that changes last bits, and
adds the types it lacks. Written for transformers 5.24; where another version differs, `load` goes through
``from_pretrained`` alone, with the same result.
"""

from __future__ import annotations

import inspect
import os
import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .. import compat
from ..codec.dtypes import named_dtype
from ..compat.patching import Patches, say_once
from ..compat.transformers_loads import is_swapped
from ..formats.tensor_types import QType
from ..model import loading
from ..read.reader import open as open_gguf
from ..read.shards import SplitFile

if TYPE_CHECKING:
    import torch

    from ..read.tensor import Tensor
    from .transformers_packed import Packing

__all__ = ["install_decoders", "load", "uninstall_decoders", "weight_names"]

# Types that transformers 5.24's own decoders lack.
LACKING = (QType.Q5_0, QType.Q5_1, QType.TQ1_0, QType.TQ2_0, QType.MXFP4, QType.NVFP4)

# Seconds to wait for other threads' loading; making a model takes a few at most.
PATIENCE = 30.0

_lock = threading.Lock()
_decoders = Patches()


def load(
    path: str | os.PathLike[str], *, auto_class: Any = None, dtype: Any = None, packed: bool = False, **options: Any
) -> Any:
    """Load a GGUF file, or all shards of a split one, into a transformers model.

    Parameters
    ----------
    path : path-like
        The file, or any shard of a set.
    auto_class : class, optional
        A model class, or one of transformers' auto classes; ``AutoModelForCausalLM`` by default.
    dtype : torch.dtype or str, optional
        Of the parameters: float32 (the default), float16 or bfloat16. Halves are float32 values rounded once.
    packed : bool
        Leave the weights of linear layers and embeddings as the file's blocks, where they are its rows in whatever
        order, as :class:`ggufx.torch.Linear` and :class:`ggufx.torch.Embedding`. ``model.ggufx_packing`` then says what
        stayed packed and what was decoded for which reason.
    **options
        Passed on to ``from_pretrained``.

    Returns
    -------
    PreTrainedModel
        In evaluation mode, as ``from_pretrained(folder, gguf_file=name)`` returns it: with the same parameters, bit for
        bit.

    Raises
    ------
    GGUFError
        If the file is broken, or a shard is missing.
    ImportError
        If transformers, torch or gguf is missing.
    RuntimeError
        If parameters were left without values, because another thread was just loading without ggufx.

    Examples
    --------
    >>> from ggufx.integrations.transformers import load  # doctest: +SKIP
    >>> model = load("gemma-3-270m-Q4_K_M.gguf", dtype="bfloat16")  # doctest: +SKIP
    """
    try:
        import torch
        import transformers
        from transformers import modeling_gguf_pytorch_utils as legacy
        from transformers.quantizers.quantizer_gguf import GgufHfQuantizer as Quantizer
    except ImportError as error:
        raise ImportError(f"loading into transformers needs transformers, torch and gguf: {error}") from error
    with open_gguf(path) as f:  # a broken file fails here, with its name and the reason
        is_split = isinstance(f, SplitFile)
        first = os.path.abspath(f.shards[0].path if isinstance(f, SplitFile) else f.path)
    if dtype is not None:
        named = named_dtype(dtype)
        options["dtype"] = named if named == "auto" or not isinstance(named, str) else getattr(torch, named, named)
    thread = threading.get_ident()
    patches = Patches()
    packing = None
    if packed:
        from .transformers_packed import Packing

        packing = Packing()
    _wait_for_others(transformers)
    # One load at a time: while it runs, the loader's method is another for all threads, though it does for them what it
    # always did.
    with _lock, ExitStack() as stack:
        stack.enter_context(compat.patched())
        stack.callback(patches.undo)
        known = list(inspect.signature(Quantizer.get_state_dict).parameters) == ["self", "checkpoint_file", "model"]
        if known and hasattr(legacy, "get_gguf_hf_weights_map") and hasattr(legacy, "TENSOR_PROCESSORS"):
            theirs = Quantizer.get_state_dict

            def get_state_dict(self: Any, checkpoint_file: str, model: Any) -> Any:
                mine = threading.get_ident() == thread and os.path.abspath(checkpoint_file) == first
                if mine and packing is not None and self.supported:
                    raise ValueError(
                        f"{first}: transformers keeps this architecture packed itself; call install_kernels() and pass "
                        "quantization_config=GgufConfig(dequantize=False) to from_pretrained"
                    )
                if self.supported or not mine or self.dtype not in (torch.float32, torch.float16, torch.bfloat16):
                    return theirs(self, checkpoint_file, model)
                return _state_dict(first, model, self.dtype, legacy, packing)

            patches.set(Quantizer, "get_state_dict", get_state_dict)
        elif packed:
            raise ImportError(f"packed models need another transformers than {transformers.__version__}, 5.24 for one")
        else:
            say_once(f"transformers {transformers.__version__} isn't known: its own loading is used")
        cls = transformers.AutoModelForCausalLM if auto_class is None else auto_class
        if is_split and not _takes_splits():
            raise ImportError(f"split files need another transformers than {transformers.__version__}, 5.24 for one")
        # The whole path: a mere name is looked for in the working directory first.
        loaded = cls.from_pretrained(os.path.dirname(first), gguf_file=first, **options)
    _refuse_empty(loaded[0] if isinstance(loaded, tuple) else loaded, first)
    # What the model remembers, and saves with itself, is the name, as with a folder and a name.
    model = loaded[0] if isinstance(loaded, tuple) else loaded
    if packing is not None:
        packing.apply(model)
        model.ggufx_packing = packing
    remembered = getattr(getattr(model, "config", None), "quantization_config", None)
    if isinstance(remembered, dict) and remembered.get("gguf_file") == first:
        remembered["gguf_file"] = os.path.basename(first)
    elif getattr(remembered, "gguf_file", None) == first:
        remembered.gguf_file = os.path.basename(first)  # type: ignore[union-attr]
    return loaded


def _wait_for_others(transformers: Any) -> None:
    """Wait until no thread is in that part of transformers' own loading which leaves no room for another."""
    base = transformers.PreTrainedModel
    ending = time.monotonic() + PATIENCE
    while is_swapped(base):
        if time.monotonic() > ending:
            raise RuntimeError(
                "PreTrainedModel.tie_weights has been replaced by a function that does nothing, as transformers does "
                "while it loads: calls of from_pretrained in several threads have left it so, and models would lack "
                "their tied weights; restart the process, and call ggufx.compat.install() before such threads begin"
            )
        time.sleep(0.01)


def _refuse_empty(model: Any, path: str) -> None:
    """Refuse a model with parameters or buffers that have no memory, unless accelerate keeps them elsewhere."""
    places = {str(place) for place in (getattr(model, "hf_device_map", None) or {}).values()}
    if len(places) > 1 or places & {"disk", "meta"}:
        return
    named = [*getattr(model, "named_parameters", tuple)(), *getattr(model, "named_buffers", tuple)()]
    empty = [name for name, values in named if values.device.type == "meta"]
    if empty:
        raise RuntimeError(
            f"{path}: {len(empty)} parameters of the model were left without values, {empty[0]!r} for one: another "
            "thread was loading a model by transformers alone meanwhile; load again, with ggufx.compat.install() "
            "called before such threads begin"
        )


def weight_names(path: str | os.PathLike[str], model: Any) -> dict[str, str]:
    """From a model's own names for its parameters to the file's names for the tensors that they come from.

    Parameters
    ----------
    path : path-like
        The GGUF file, or any shard of a set.
    model : PreTrainedModel
        As `load` gave it.

    Returns
    -------
    dict of str to str
    """
    from transformers import modeling_gguf_pytorch_utils as legacy

    with open_gguf(path) as f:
        arch = f.metadata["general.architecture"]
    processor: Any = legacy.TENSOR_PROCESSORS.get(arch, legacy.TensorProcessor)
    known: dict[str, str] = legacy.get_gguf_hf_weights_map(model, processor(config={}))
    return {own: name for name, own in known.items()}


def _takes_splits() -> bool:
    """Whether both loaders of this transformers are patched to read all shards."""
    packages = compat.status().packages
    parts = (("modeling_gguf_pytorch_utils", "load_gguf_checkpoint"), ("integrations.gguf.reader", "split files"))
    return all(packages.get(f"transformers.{module}", {}).get(part) == "patched" for module, part in parts)


def _state_dict(
    first: str, model: Any, dtype: torch.dtype, legacy: Any, packing: Packing | None
) -> dict[str, torch.Tensor]:
    """Parameters by transformers' names, decoded from the file and its other shards; stand-ins of those kept packed."""
    import torch

    parsed = legacy.load_gguf_checkpoint(first, return_tensors=False)
    parsed["tensors"] = found = {}
    with open_gguf(first) as f:
        processor_class = legacy.TENSOR_PROCESSORS.get(f.metadata["general.architecture"], legacy.TensorProcessor)
        processor = processor_class(config=parsed["config"])
        names = legacy.get_gguf_hf_weights_map(model, processor)
        tensors, kept = list(f.tensors.values()), {}
        if packing is not None:
            for tensor in tensors:
                stand_in = None
                if tensor.name in names:
                    transform = partial(_processed, processor, tensor, names, parsed)
                    stand_in = packing.take(model, names[tensor.name], tensor, dtype, transform)
                elif tensor.ndim > 1:
                    packing.decoded[tensor.name] = "the model has no parameter of this name, or joins it with others"
                if stand_in is not None:
                    kept[names[tensor.name]] = stand_in
            tensors = [t for t in tensors if names.get(t.name) not in kept]
        direct = [t for t in tensors if t.name in names and _passes_through(processor, t, names, parsed)]
        wanted = "bfloat16" if dtype == torch.bfloat16 else str(dtype).removeprefix("torch.")
        for name, values in loading.decode_all(direct, wanted, None).items():
            made = torch.from_numpy(values.view(np.int16) if dtype == torch.bfloat16 else values)
            found[names[name]] = made.view(dtype)
        done = {t.name for t in direct}
        for name, weights in _decoded(t for t in tensors if t.name not in done):
            result = processor.process(weights=weights, name=name, tensor_key_mapping=names, parsed_parameters=parsed)
            if result.name in names:
                found[names[result.name]] = torch.from_numpy(np.array(result.weights, order="C"))
    return {name: tensor.to(dtype) for name, tensor in found.items()} | kept


def _decoded(tensors: Iterable[Tensor]) -> Iterable[tuple[str, npt.NDArray[Any]]]:
    for tensor in tensors:
        yield tensor.name, tensor.dequantize()


def _passes_through(processor: Any, tensor: Tensor, names: dict[str, str], parsed: dict[str, Any]) -> bool:
    """Whether the architecture's processor hands a tensor of this name on as it is."""
    if type(tensor.qtype) is not QType or tensor.qtype in (QType.I8, QType.I16, QType.I32, QType.I64):
        return False
    if "_exps" in tensor.name:  # merged with others, and large: not worth asking
        return False
    # One number stands for all values, so that asking costs nothing.
    sample = np.broadcast_to(np.float32(1), tensor.shape)
    return _processed(processor, tensor, names, parsed, sample) is sample


def _processed(processor: Any, tensor: Tensor, names: dict[str, str], parsed: dict[str, Any], sample: Any) -> Any:
    """What the processor makes of values; None if it does more than to return them."""
    if "_exps" in tensor.name:
        return None
    before = dict(parsed["tensors"])
    result = processor.process(weights=sample, name=tensor.name, tensor_key_mapping=names, parsed_parameters=parsed)
    kept = parsed["tensors"].keys() == before.keys()
    parsed["tensors"].clear()
    parsed["tensors"].update(before)
    return result.weights if kept and result.name == tensor.name else None


def install_decoders() -> None:
    """Decode float16 and bfloat16 on the CPU too in transformers' newer loader, and the types it lacks.

    Its decoders compute in the dtype asked for, and round in each step; these round once, from float32, so that results
    differ in their last bits and are nearer. float32, whose bits are the same, is part of ``ggufx.compat.install``.

    Raises
    ------
    ImportError
        If transformers has no such loader.
    """
    import torch
    from transformers.integrations.gguf import dequant

    from ..compat.torch_blocks import decoder

    halves = frozenset({torch.float16, torch.bfloat16})
    everything = halves | {torch.float32}
    with _lock:
        if dequant in _installed:
            return
        compat.install()
        for number, original in list(dequant._DEQUANT.items()):
            qtype = next((t for t in QType if t == number), None)
            if qtype is not None and dequant.GGML_BLOCK[number] == (qtype.block_size, qtype.block_bytes):
                _decoders.set_item(dequant._DEQUANT, number, decoder(qtype, original, halves))
        for qtype in LACKING:
            if int(qtype) not in dequant._DEQUANT:
                _decoders.set_item(dequant._DEQUANT, int(qtype), decoder(qtype, None, everything))
                _decoders.set_item(dequant.GGML_BLOCK, int(qtype), (qtype.block_size, qtype.block_bytes))
                _decoders.set_item(dequant.GGML_NAME, int(qtype), qtype.name)
        _installed.append(dequant)


_installed: list[Any] = []


def uninstall_decoders() -> None:
    """Put back what `install_decoders` changed."""
    with _lock:
        _decoders.undo()
        _installed.clear()
