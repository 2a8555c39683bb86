"""What a requantization can be asked for beside its mix."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from ..formats.file_types import FileType
from ..formats.tensor_types import QType
from ..sizes import size_of
from .choices import Request
from .importance import Importance
from .metadata import Override

__all__ = ["Options"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of :func:`ggufx.requantize`, which takes them by name too.

    Attributes
    ----------
    imatrix : Importance, mapping, or path-like, optional
        Importance of input columns by tensor name, or the file that holds it.
    include_weights, exclude_weights : sequence of str
        Use the importance of tensors only where one of these is (not) part of the name.
    override_kv : sequence of Override
        Metadata to set in the output; the choices follow it.
    prune_layers : sequence of int
        Blocks to leave out; those behind move up.
    tensor_types : sequence of (pattern, QType)
        Types for the tensors whose names a regular expression is found in; the first pattern counts.
    output_type, embedding_type : QType, optional
        Types of the output tensor and of the token embeddings.
    pure : bool
        The mix's default type for every tensor.
    leave_output : bool
        Keep ``output.weight`` as it is.
    keep_split : bool
        Write as many shards as the input has, of the same tensors in the same order. One that isn't split gets a
        shard's name, ``-00001-of-00001.gguf``, and no ``split.*`` keys.
    allow_requantize : bool
        Go on although tensors are quantized already; to F32, which is exact, they are decoded without it.
    target_size : int or str, optional
        Bytes the output may have (``"4GiB"`` is as good): the types with the least error that keep within it are
        searched for. Where the types the tensors have fit, they stay.
    """

    imatrix: Importance | Mapping[str, npt.NDArray[Any]] | str | os.PathLike[str] | None = None
    include_weights: Sequence[str] = ()
    exclude_weights: Sequence[str] = ()
    override_kv: Sequence[Override] = ()
    prune_layers: Sequence[int] = ()
    tensor_types: Sequence[tuple[str, QType]] = ()
    output_type: QType | None = None
    embedding_type: QType | None = None
    pure: bool = False
    leave_output: bool = False
    keep_split: bool = False
    allow_requantize: bool = False
    target_size: int | str | None = None

    def check(self, ftype: FileType | str | int | None) -> None:
        """Refuse what contradicts a mix or another option, so that one of them would go unheard.

        Raises
        ------
        TypeError, ValueError
            Also for an override of the wrong form.
        """
        if self.target_size is not None:
            size_of("target_size", self.target_size)
        if ftype is None and self.target_size is None:
            raise ValueError("a mix or target_size (--target-size) is needed")
        if ftype is not None and self.target_size is not None:
            raise ValueError(
                f"{ftype} and target_size (--target-size) contradict each other: a mix settles the types, a size "
                "searches for them; give one of them"
            )
        if self.target_size is not None and self.pure:
            raise ValueError("pure (--pure) gives every tensor a mix's type; target_size (--target-size) has no mix")
        types = {
            "pure": self.pure,
            "tensor_types": bool(self.tensor_types),
            "output_type": self.output_type is not None,
            "embedding_type": self.embedding_type is not None,
        }
        asked = [name for name, given in types.items() if given]
        if isinstance(ftype, str) and ftype.upper() == "COPY" and asked:
            raise ValueError(f"COPY keeps every type, which {' and '.join(asked)} would change")
        for override in self.override_kv:
            override.check()

    def request(self, ftype: FileType, importance: Importance) -> Request:
        """What is asked of the mixes' rules."""
        return Request(
            ftype,
            imatrix=bool(importance.weights),
            pure=self.pure,
            tensor_types=tuple(self.tensor_types),
            output_type=self.output_type,
            embedding_type=self.embedding_type,
            leave_output=self.leave_output,
        )
