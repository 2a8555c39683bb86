"""One self-contained HTML page of an evaluation's results (jinja2, extra ``evaluate``)."""

from __future__ import annotations

import base64
from importlib.resources import files
from typing import Any

from .pictures import FIGURES, draw

__all__ = ["render"]

Results = dict[str, Any]
NEEDS = "the HTML report needs jinja2 and matplotlib: pip install 'ggufx[evaluate]'"
TITLES = {
    "text": "Perplexity and KL divergence against size",
    "curve": "Error of each type against its bits per weight",
    "heat": "Relative error by block and kind of tensor; grey: no error, or no such tensor",
}


def render(results: Results, title: str = "") -> str:
    """Make a page of results: tables and drawings in one file, for light and dark, narrow and wide screens.

    Parameters
    ----------
    results : dict
        As `ggufx.evaluate.evaluate` gives them.
    title : str
        Of the page; names the base by default.

    Returns
    -------
    str
        HTML without references to anything outside it.

    Raises
    ------
    ImportError
        If jinja2 or matplotlib is missing.
    """
    try:
        import jinja2
    except ImportError as error:
        raise ImportError(f"{NEEDS} ({error})") from error
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {"mb": _megabytes, "n": _number, "pm": _pair}
    template = environment.from_string(files("ggufx.evaluate").joinpath("page.html").read_text(encoding="utf-8"))
    pictures = []
    for name in ("text", "curve", "heat"):
        light, dark = (draw(results, name, theme, "svg") for theme in ("light", "dark"))
        if light is not None and dark is not None:
            pictures.append({"title": TITLES[name], "light": _uri(light), "dark": _uri(dark)})
    assert set(TITLES) == set(FIGURES)
    return template.render(
        title=title or f"What quantizing {results['base']['name']} costs",
        r=results,
        models=results["models"],
        pictures=pictures,
        worst={m["name"]: _worst(m) for m in results["models"]},
        lack=max((m["text"]["divergence"]["kl_may_lack"] for m in results["models"] if _divergence(m)), default=0.0),
    )


def _divergence(model: Results) -> Any:
    return (model.get("text") or {}).get("divergence")


def _worst(model: Results) -> list[Results]:
    tensors = [t for t in (model.get("weights") or {}).get("tensors", ()) if t["relative_rmse"]]
    return sorted(tensors, key=lambda t: -t["relative_rmse"])[:5]


def _uri(svg: bytes) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg).decode()


def _megabytes(count: int | None) -> str:
    return "" if count is None else f"{count / 1e6:.1f}"


def _number(value: float | None, digits: int = 4) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _pair(pair: Any, digits: int = 4) -> str:
    return f"{pair[0]:.{digits}f} ± {pair[1]:.{digits}f}"
