"""Everything that is known of some quantizations of one model, gathered step by step so that it can be gone on with."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import GGUFError
from ..formats.tensor_types import type_name
from ..read.reader import open as open_gguf
from ..write.outfile import OutputFile
from .comparison import compare
from .curves import curve, tensor_kind
from .sides import open_side

__all__ = ["FORM", "evaluate", "read_results", "write_results"]

FORM = "ggufx evaluation 1"
Progress = Callable[[str, int, int], None]
Results = dict[str, Any]


def read_results(path: str | os.PathLike[str]) -> Results:
    """Read what an evaluation wrote.

    Raises
    ------
    GGUFError
        If it isn't that.
    """
    with open(path, "rb") as file:
        data = file.read()
    try:
        results = json.loads(data)
    except ValueError as error:
        raise GGUFError(f"{os.fspath(path)}: no results of an evaluation: {error}") from None
    if not isinstance(results, dict) or results.get("form") != FORM or not isinstance(results.get("models"), list):
        raise GGUFError(f"{os.fspath(path)}: no results of an evaluation: {FORM!r} was expected as its form")
    return results


def write_results(results: Results, path: str | os.PathLike[str]) -> None:
    """Write results as JSON, whole or not at all."""
    data = (json.dumps(results, indent=1) + "\n").encode()
    write_whole(path, data)


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a small file, whole or not at all."""
    file = OutputFile(os.fspath(path))
    try:
        file.write(data)
        file.finish(len(data))
        file.publish()
    finally:
        file.discard()


def _describe(path: str) -> Results:
    """What a model is without a look at its values: size, bits per weight, the types it really holds."""
    described: Results = {"name": _short(path), "path": path}
    if "://" not in path and (os.path.isdir(path) or path.endswith(".safetensors")):
        with open_side(path) as side:
            described |= {"nbytes": None, "bits": None, "types": {}, "tensors": len(side.weights)}
        return described
    with open_gguf(path) as f:
        tensors = list(f.tensors.values())
    types: dict[str, int] = {}
    for t in tensors:
        types[type_name(t.qtype)] = types.get(type_name(t.qtype), 0) + 1
    nbytes, values = sum(t.nbytes for t in tensors), sum(t.size for t in tensors)
    return described | {"nbytes": nbytes, "bits": 8 * nbytes / max(1, values), "types": types, "tensors": len(tensors)}


def _short(path: str) -> str:
    name = os.path.basename(path.rstrip("/"))
    return name.removesuffix(".gguf")


def _weights(base: str, path: str, threads: int | None, progress: Progress | None) -> Results:
    found = compare(base, path, threads=threads, progress=progress).as_dict()
    tensors = [
        {k: t[k] for k in ("name", "type_b", "bits", "rms", "rmse", "relative_rmse", "max_error", "verdict")}
        | {"kind": tensor_kind(t["name"])}
        for t in found["tensors"]
    ]
    findings = [f for f in found["structure"] if f["kind"] not in ("type", "metadata")]
    findings += [f for t in found["tensors"] for f in t["findings"]]
    return {"types": found["types"], "tensors": tensors, "findings": findings}


def evaluate(
    models: list[str],
    base: str,
    *,
    text: str | None = None,
    text_name: str = "",
    n_ctx: int = 512,
    windows: int | None = None,
    imatrix: Mapping[str, Any] | None = None,
    with_curve: bool = True,
    keep: int | None = None,
    earlier: Results | None = None,
    save: Callable[[Results], None] | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Results:
    """Compare quantized models with what they were made from: weights, and predictions of a text.

    Parameters
    ----------
    models : list of str
        GGUF files.
    base : str
        The model they are judged by.
    text : str, optional
        Predict this, through transformers and torch.
    text_name : str
        Its name, for the report.
    n_ctx, windows
        As in `ggufx.evaluate.perplexity`.
    imatrix : mapping, optional
        For the curve: types with and without importance.
    with_curve : bool
        Try every type on samples of the base.
    keep : int, optional
        How many tokens of the base's predictions are kept.
    earlier : dict, optional
        Results to go on with: what they hold of the same files isn't done again.
    save : callable, optional
        Called with the results after each step.
    threads, progress
        As everywhere.

    Returns
    -------
    dict
        Plain data for JSON; `ggufx.evaluate.render` makes a page of it.
    """
    terms = {"text": text_name if text is not None else None, "n_ctx": n_ctx, "windows": windows}
    known: dict[tuple[Any, ...], Results] = {}
    if earlier is not None and earlier.get("terms") == terms and earlier["base"]["path"] == base:
        known = {(m["path"], m["nbytes"], str(m["types"])): m for m in earlier["models"]}
    results: Results = {"form": FORM, "terms": terms, "base": _describe(base), "models": [], "curve": None}

    def step() -> None:
        if save is not None:
            save(results)

    todo = []
    for path in models:
        entry = _describe(path)
        entry = known.get((path, entry["nbytes"], str(entry["types"])), entry)
        results["models"].append(entry)
        todo.append(entry)
    for entry in todo:
        if "weights" not in entry:
            entry["weights"] = _weights(base, entry["path"], threads, progress)
            step()
    if with_curve:
        old = (earlier or {}).get("curve")
        results["curve"] = (
            old
            if known and old is not None
            else curve(base, imatrix=imatrix, threads=threads, progress=progress).as_dict()
        )
        step()
    if text is not None:
        _predict(results, base, text, n_ctx, windows, keep, earlier if known else None, step, threads, progress)
    plain: Results = json.loads(json.dumps(results))  # keys as they come from a file
    return plain


def _predict(
    results: Results,
    base: str,
    text: str,
    n_ctx: int,
    windows: int | None,
    keep: int | None,
    earlier: Results | None,
    step: Callable[[], None],
    threads: int | None,
    progress: Progress | None,
) -> None:
    from .texts import KEPT, perplexity

    todo = [entry for entry in results["models"] if "text" not in entry]
    if not todo and earlier is not None and "text" in earlier["base"]:
        results["base"]["text"] = earlier["base"]["text"]
        return
    options: dict[str, Any] = {"n_ctx": n_ctx, "windows": windows, "threads": threads, "progress": progress}
    found = perplexity(base, text, keep=keep or KEPT, **options)
    results["base"]["text"] = found.as_dict()
    step()
    for entry in todo:
        entry["text"] = perplexity(entry["path"], text, base=found.top, **options).as_dict()
        step()
