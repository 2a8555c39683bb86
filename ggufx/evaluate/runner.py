"""Running a GGUF file's model through transformers and torch: its vocabulary, its logits, what goes into its layers."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import GGUFError
from ..read.reader import open as open_gguf
from .scoring import Floats
from .windows import Tokens

__all__ = ["Runner", "Vocabulary", "read_text"]

NEEDS = "running a model needs transformers, torch and gguf: pip install 'ggufx[evaluate]'"


def read_text(path: str | os.PathLike[str]) -> str:
    """A text file as llama.cpp's tools take it: UTF-8, without the one newline that ends it."""
    with open(path, "rb") as file:
        data = file.read()
    try:
        return data[: -1 if data.endswith(b"\n") else None].decode()
    except UnicodeDecodeError as error:
        raise GGUFError(f"{os.fspath(path)}: not UTF-8 at byte {error.start}") from None


@contextmanager
def _silent() -> Iterator[None]:
    """Keep transformers' own progress bars away meanwhile."""
    from transformers.utils import logging

    wanted = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if wanted:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


class Vocabulary:
    """A GGUF file's vocabulary, through transformers.

    Attributes
    ----------
    bos : int or None
        The token that windows begin with, if the vocabulary adds one.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        with open_gguf(path) as f:
            meta = f.metadata
            first = os.path.abspath(f.shards[0].path if hasattr(f, "shards") else f.path)
            model = meta.get("tokenizer.ggml.model")
            if model is None:
                raise GGUFError(f"{self.path}: the file has no vocabulary")
            # What a file doesn't say, llama.cpp takes from the kind of vocabulary.
            adds = meta.get("tokenizer.ggml.add_bos_token", model == "llama")
            if meta.get("tokenizer.ggml.add_eos_token", False):
                raise GGUFError(f"{self.path}: the vocabulary ends each text with EOS, which windows can't have")
            number = meta.get("tokenizer.ggml.bos_token_id", 1 if model == "llama" else None)
            self.bos = int(number) if adds and number is not None else None
        try:
            import transformers

            from .. import compat  # a lazy door: this room runs models through the rooms above it
        except ImportError as error:
            raise ImportError(f"{NEEDS} ({error})") from error
        with compat.patched():
            self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(
                os.path.dirname(first), gguf_file=os.path.basename(first)
            )

    def encode(self, text: str) -> Tokens:
        """Ids of a text, its BOS in front; what looks like a special token stays plain text."""
        found = self._tokenizer(text, add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"]
        start = [] if self.bos is None else [self.bos]
        return np.array([*start, *found], np.int32)


def _stretch(model: Any, path: str | os.PathLike[str]) -> None:
    """Slow the rotations by the file's own factors (Llama 3 and its kin), which transformers doesn't read."""
    import torch

    with open_gguf(path) as f:
        if "rope_freqs.weight" not in f.tensors:
            return
        factors = torch.from_numpy(f["rope_freqs.weight"].dequantize().reshape(-1).copy())
    for module in model.modules():
        frequencies = getattr(module, "inv_freq", None)
        if frequencies is None or getattr(module, "rope_type", "default") != "default":
            continue
        if frequencies.shape != factors.shape:
            raise GGUFError(f"{os.fspath(path)}: {len(factors)} rope_freqs, {len(frequencies)} were expected")
        module.inv_freq = frequencies / factors.to(frequencies)


class Runner:
    """A GGUF file's model in torch, its weights decoded straight into the modules.

    Parameters
    ----------
    path : path-like
        The file, or any shard of a set.
    dtype : str
        Of weights and computation: float32, bfloat16 or float16.
    threads : int, optional
        Torch's threads while it runs.

    Raises
    ------
    GGUFError
        If transformers can't give all its parameters a weight of the file.
    ImportError
        If transformers, torch or gguf is missing.
    """

    def __init__(self, path: str | os.PathLike[str], *, dtype: str = "float32", threads: int | None = None) -> None:
        self.label = os.fspath(path)
        try:
            import torch

            from ..integrations.transformers import load  # a lazy door, as above
        except ImportError as error:
            raise ImportError(f"{NEEDS} ({error})") from error
        self._torch: Any = torch
        self._threads = threads
        start = time.perf_counter()
        with _silent():
            model, info = load(path, dtype=getattr(torch, dtype), output_loading_info=True)
        if missing := sorted(info.get("missing_keys", ())):
            raise GGUFError(
                f"{self.label}: transformers finds no weights for {missing[0]!r} ({len(missing)} parameters in all) in "
                "this file, and would make them up"
            )
        self.model: Any = model
        _stretch(model, path)
        self.load_seconds = time.perf_counter() - start

    def weight_names(self) -> dict[str, str]:
        """From torch's names of weights to the file's."""
        from ..integrations.transformers import weight_names

        return weight_names(self.label, self.model)

    def run(self, ids: Tokens, *, head: bool = False) -> None:
        """Run a window for what its layers see; the output head is left out unless it is wanted."""
        with self._running() as torch:
            batch = torch.from_numpy(ids.astype(np.int64))[None]
            (self.model if head else self.model.base_model)(input_ids=batch, use_cache=False)

    @contextmanager
    def _running(self) -> Iterator[Any]:
        torch = self._torch
        before = torch.get_num_threads()
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        try:
            with torch.inference_mode():
                yield torch
        finally:
            torch.set_num_threads(before)

    def logits_from(self, ids: Tokens, first: int) -> Floats:
        """Logits at position `first` and after it, (positions, vocabulary), float32."""
        with self._running() as torch:
            batch = torch.from_numpy(ids.astype(np.int64))[None]
            out = self.model(input_ids=batch, use_cache=False, logits_to_keep=len(ids) - first)
            logits: npt.NDArray[np.float32] = out.logits[0].float().cpu().numpy()
        return logits
