"""What is refused or warned of before any work: types that can't be made, and importance that isn't the model's."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence

from ..codec.encode import NEEDS_IMATRIX
from ..errors import GGUFError, GGUFWarning
from ..formats.tensor_types import QType, type_name
from .choices import Choice, block_number
from .importance import Importance
from .inputs import Input
from .mixes import EMBEDDINGS, FLOATS
from .report import grouped

__all__ = ["check_importance", "check_types", "lacks_importance", "made_blocks", "warn_of_missing"]


def made_blocks(choices: Iterable[Choice]) -> list[Choice]:
    """The tensors that packed blocks are made of, which an importance matrix can serve."""
    return [c for c in choices if c.qtype != c.source and isinstance(c.qtype, QType) and c.qtype.is_quantized]


def lacks_importance(model: Input, choices: Iterable[Choice], importance: Importance) -> list[Choice]:
    """Those of the choices that the importance matrix has no entry for."""
    return [c for c in choices if not importance.has(model.sources[c.name].tensor.name, c.shape)]


def check_types(choices: Sequence[Choice], *, allow_requantize: bool) -> None:
    """Refuse what would fail, or do harm, in the middle of writing.

    Raises
    ------
    GGUFError
        The message names the tensor.
    """
    for c in choices:
        if c.qtype == c.source:
            continue
        if not isinstance(c.source, QType) or not (c.source.is_quantized or c.source in FLOATS):
            raise GGUFError(f"tensor {c.name!r}: {type_name(c.source)} values can't become {type_name(c.qtype)}")
        if c.source.is_quantized and c.qtype is not QType.F32 and not allow_requantize:
            raise GGUFError(
                f"tensor {c.name!r} is quantized already ({c.source.name}): making it {type_name(c.qtype)} adds error "
                "to error; allow_requantize (--allow-requantize) does it all the same"
            )
        if c.shape[-1] % QType(c.qtype).block_size:
            raise GGUFError(f"tensor {c.name!r}: rows of {c.shape[-1]} values can't be {type_name(c.qtype)}")


def check_importance(model: Input, choices: Sequence[Choice], importance: Importance) -> None:
    """Refuse an importance matrix of another model, and types that can't do without where it has no entry.

    Raises
    ------
    GGUFError
        The message names the tensors.
    """
    quantized = made_blocks(choices)
    missing = lacks_importance(model, quantized, importance)
    if importance.given and quantized and len(missing) == len(quantized):
        missing.sort(key=lambda c: block_number(c.name) < 0)
        own = ", ".join(map(repr, list(importance.weights)[:3])) or "none at all"
        raise GGUFError(
            f"{importance.file or 'the importance matrix'} has entries for 0 of {len(quantized)} tensors that are "
            f"quantized: {', '.join(repr(c.name) for c in missing[:3])} ... were expected, it has {own}"
            + (" ..." if len(importance.weights) > 3 else "")
        )
    # llama-quantize lets the embeddings and the output pass here, and ggml then aborts on some types.
    lacking = [c for c in missing if c.needs_imatrix or c.qtype in NEEDS_IMATRIX]
    if len(lacking) == 1:
        (c,) = lacking
        raise GGUFError(f"tensor {c.name!r}: {type_name(c.qtype)} needs an importance matrix, and there is none for it")
    if lacking:
        types = sorted({type_name(c.qtype) for c in lacking})
        raise GGUFError(
            f"{' and '.join(types)} {'needs' if len(types) == 1 else 'need'} an importance matrix, and there is none "
            f"for {len(lacking)} tensors: {grouped(c.name for c in lacking)}"
        )


def warn_of_missing(model: Input, choices: Sequence[Choice], importance: Importance) -> None:
    """Warn where an importance matrix lacks tensors; the embeddings and the output are rarely in one.

    Warns
    -----
    GGUFWarning
        With counts, and the first names.
    """
    if not importance.given:
        return
    quantized = [c for c in made_blocks(choices) if c.name != "output.weight" and c.name not in EMBEDDINGS]
    missing = lacks_importance(model, quantized, importance)
    if missing:
        warnings.warn(
            f"the importance matrix has entries for {len(quantized) - len(missing)} of {len(quantized)} tensors; none "
            f"for {', '.join(repr(c.name) for c in missing[:3])}{' ...' if len(missing) > 3 else ''}",
            GGUFWarning,
            stacklevel=3,
        )
