"""The name by which llama.cpp knows how a vocabulary splits texts before its merges: ``tokenizer.ggml.pre``.

llama.cpp's converter tokenizes a probe and looks up the hash of the ids, so that the whole vocabulary decides. Here
too; :data:`HASHES` is its table.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from ..errors import GGUFError
from .pretokenizer_names import HASHES, NAMES

__all__ = ["pre_tokenizer", "probe_hash"]

PROBE = (
    "\n \n\n \n\n\n \t \t\t \t\n  \n   \n    \n     \n🚀 (normal) 😶\u200d🌫️ (multiple "
    "emojis concatenated) ✅ 🦙🦙 3 33 333 3333 33333 333333 3333333 33333333 3.3 3..3 "
    "3...3 កាន់តែពិសេសអាច😁 ?我想在apple工作1314151天～ ------======= нещо на Български "  # noqa: RUF001
    "''''''```````\"\"\"\"......!!!!!!?????? I've been 'told he's there, 'RE you "
    "sure? 'M not sure I'll make it, 'D you like some tea? We'Ve a'lL"
)


def probe_hash(ids: Sequence[int]) -> str:
    """The hash of the ids of :data:`PROBE` in a vocabulary."""
    return hashlib.sha256(str(list(ids)).encode()).hexdigest()


def pre_tokenizer(folder: Path, given: str | None) -> str:
    """The name for the vocabulary of a folder's tokenizer.json.

    Parameters
    ----------
    folder : path
    given : str or None
        The name the caller says, which counts where it is one that llama.cpp knows.

    Raises
    ------
    GGUFError
        If the vocabulary's isn't known, or the given name isn't.
    ImportError
        If the tokenizers package is needed and missing.
    """
    if given is not None:
        if given not in NAMES:
            raise GGUFError(f"pre-tokenizer {given!r} isn't known; llama.cpp knows {', '.join(sorted(NAMES))}")
        return given
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise GGUFError(f"{folder}: there is no tokenizer.json to find the pre-tokenizer by; give its name with --pre")
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ImportError(
            f"{path}: finding the pre-tokenizer needs tokenizers; install it with: pip install ggufx[convert], "
            "or give the name with --pre"
        ) from error
    try:
        ids = Tokenizer.from_file(str(path)).encode(PROBE).ids
    except Exception as error:  # tokenizers raises plain exceptions
        raise GGUFError(f"{path}: tokenizers can't read it: {error}") from error
    found = HASHES.get(probe_hash(ids))
    if found is None:
        raise GGUFError(
            f"{path}: its pre-tokenizer isn't known (hash {probe_hash(ids)}); say what llama.cpp calls it with --pre"
        )
    return found
