"""The mixes of llama.cpp (``general.file_type``), kept apart from the types of single tensors.

A mix such as ``Q4_K_M`` is a recipe that gives each tensor a type; :mod:`ggufx.requantize.mixes` holds the recipes.
"""

from __future__ import annotations

import operator
import re
from enum import IntEnum

from .tensor_types import QType

__all__ = ["FileType"]


class FileType(IntEnum):
    """A file-level quantization mix: the value is what ``general.file_type`` holds, the name is llama.cpp's.

    Attributes
    ----------
    default_type : QType
        The tensor type the mix starts from.
    """

    default_type: QType

    def __new__(cls, value: int, default_type: QType = QType.F32) -> FileType:
        member = int.__new__(cls, value)
        member._value_ = value
        member.default_type = default_type
        return member

    # Source: enum llama_ftype; ids 4-6 and 33-35 were removed upstream.
    F32 = 0, QType.F32
    F16 = 1, QType.F16
    Q4_0 = 2, QType.Q4_0
    Q4_1 = 3, QType.Q4_1
    Q8_0 = 7, QType.Q8_0
    Q5_0 = 8, QType.Q5_0
    Q5_1 = 9, QType.Q5_1
    Q2_K = 10, QType.Q2_K
    Q3_K_S = 11, QType.Q3_K
    Q3_K_M = 12, QType.Q3_K
    Q3_K_L = 13, QType.Q3_K
    Q4_K_S = 14, QType.Q4_K
    Q4_K_M = 15, QType.Q4_K
    Q5_K_S = 16, QType.Q5_K
    Q5_K_M = 17, QType.Q5_K
    Q6_K = 18, QType.Q6_K
    IQ2_XXS = 19, QType.IQ2_XXS
    IQ2_XS = 20, QType.IQ2_XS
    Q2_K_S = 21, QType.Q2_K
    IQ3_XS = 22, QType.IQ3_S
    IQ3_XXS = 23, QType.IQ3_XXS
    IQ1_S = 24, QType.IQ1_S
    IQ4_NL = 25, QType.IQ4_NL
    IQ3_S = 26, QType.IQ3_S
    IQ3_M = 27, QType.IQ3_S
    IQ2_S = 28, QType.IQ2_XS
    IQ2_M = 29, QType.IQ2_S
    IQ4_XS = 30, QType.IQ4_XS
    IQ1_M = 31, QType.IQ1_M
    BF16 = 32, QType.BF16
    TQ1_0 = 36, QType.TQ1_0
    TQ2_0 = 37, QType.TQ2_0
    MXFP4_MOE = 38, QType.MXFP4
    NVFP4 = 39, QType.NVFP4
    Q1_0 = 40, QType.Q1_0
    Q2_0 = 41, QType.Q2_0

    @classmethod
    def parse(cls, text: str | int) -> FileType:
        """The mix that a name or a number means.

        Parameters
        ----------
        text : str or int
            A name in any case (``"q4_k_m"``), one of llama-quantize's aliases (``"Q4_K"`` is Q4_K_M), a number, or a
            name with a publisher's extras: ``UD-`` before it, ``_L`` or ``_XL`` behind it (the plain mix whose
            embeddings and output such a file raises).

        Raises
        ------
        TypeError
            If it is neither text nor an integer.
        ValueError
            If it is none of these; the message lists the names.
        """
        if not isinstance(text, str):
            if isinstance(text, bool) or not hasattr(text, "__index__"):
                raise TypeError(f"a file type is a name or an integer, not {text!r}")
            text = str(operator.index(text))
        name = text.strip().upper().replace("-", "_").removeprefix("UD_")
        name = _ALIASES.get(name, name)
        if name in cls.__members__:
            return cls[name]
        if name.isascii() and name.isdigit() and int(name) in cls._value2member_map_:
            return cls(int(name))
        raise ValueError(f"{text!r} is no file type; there are {', '.join(cls.__members__)}")

    @classmethod
    def from_filename(cls, filename: str) -> FileType | None:
        """The mix a model's file name announces, or None.

        Examples
        --------
        >>> FileType.from_filename("Qwen3-8B-UD-Q4_K_XL-00001-of-00002.gguf")
        <FileType.Q4_K_M: 15>
        """
        stem = re.split(r"[\\/]", filename)[-1]
        found = None
        for match in _IN_NAME.finditer(stem):
            try:
                name = _plain_name(match[0])
            except ValueError:
                continue
            found = name  # the last one counts: names may hold the type of a source before it
        return found


def _plain_name(text: str) -> FileType:
    """The mix of a name with a publisher's words behind it (``Q4_K_M_imat``); numbers there make another type."""
    parts = text.split("_")
    for count in range(len(parts), 0, -1):
        if count < len(parts) and parts[count].isdigit():
            break
        try:
            return FileType.parse("_".join(parts[:count]))
        except ValueError:
            continue
    raise ValueError(text)


# What llama-quantize's short names mean, and the plain mix under the names of files with raised embeddings.
_ALIASES = {
    "Q3_K": "Q3_K_M",
    "Q4_K": "Q4_K_M",
    "Q5_K": "Q5_K_M",
    "MXFP4": "MXFP4_MOE",
    "FP16": "F16",
    "FP32": "F32",
    "Q2_K_L": "Q2_K",
    "Q2_K_XL": "Q2_K",
    "Q3_K_XL": "Q3_K_L",
    "Q4_K_L": "Q4_K_M",
    "Q4_K_XL": "Q4_K_M",
    "Q5_K_L": "Q5_K_M",
    "Q5_K_XL": "Q5_K_M",
    "Q6_K_S": "Q6_K",
    "Q6_K_L": "Q6_K",
    "Q6_K_XL": "Q6_K",
    "Q8_K_XL": "Q8_0",
}
_IN_NAME = re.compile(
    r"(?<![A-Za-z0-9])(?:(?:IQ|TQ|Q)\d(?:_[0-9A-Z]+)*|MXFP4(?:_MOE)?|NVFP4|BF16|FP?16|FP?32)(?![A-Za-z0-9])",
    re.IGNORECASE,
)
