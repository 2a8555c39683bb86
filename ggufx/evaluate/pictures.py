"""Drawings of an evaluation's results, by matplotlib (extra ``evaluate``): for light and for dark pages."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

__all__ = ["FIGURES", "draw"]

Results = dict[str, Any]
# Colours of a page: ground, ink, grid, and those of the lines (Okabe and Ito's, told apart by all eyes).
THEMES = {
    "light": ("#ffffff", "#1a1a1a", "#d8d8d8", ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9")),
    "dark": ("#14171c", "#e6e6e6", "#3a3f47", ("#56b4e9", "#e69f00", "#2fd0a0", "#e59ac4", "#f0e442", "#ff7f50")),
}
NEEDS = "pictures need matplotlib: pip install 'ggufx[evaluate]'"


def _figure(width: float, height: float, theme: str) -> tuple[Any, Any]:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(f"{NEEDS} ({error})") from error
    figure = Figure(figsize=(width, height), layout="constrained", facecolor=THEMES[theme][0])
    return figure, THEMES[theme]


def _dress(axes: Any, theme: tuple[Any, ...], grid: bool = True) -> None:
    ground, ink, line, _ = theme
    axes.set_facecolor(ground)
    axes.tick_params(colors=ink, which="both", labelsize=9)
    for spine in axes.spines.values():
        spine.set_color(line)
    for text in (axes.xaxis.label, axes.yaxis.label, axes.title):
        text.set_color(ink)
    if grid:
        axes.grid(color=line, linewidth=0.6, which="major")
        axes.set_axisbelow(True)


def _legend(axes: Any, theme: tuple[Any, ...]) -> None:
    legend = axes.legend(fontsize=9, facecolor=theme[0], edgecolor=theme[2])
    for text in legend.get_texts():
        text.set_color(theme[1])


def curve_figure(results: Results, theme_name: str) -> Any:
    """Error against bits per weight; None without a curve."""
    found = results.get("curve")
    if not found or not found["points"]:
        return None
    figure, theme = _figure(8.4, 6.0, theme_name)
    axes = figure.subplots()
    colours = theme[3]
    points = found["points"]
    most = max(p["tensors"] for p in points)
    plain = sorted((p["bits"], p["relative_rmse"]) for p in points if p["type"].startswith("absmax"))
    if plain:
        axes.plot(
            *zip(*plain, strict=True), color=colours[2], marker=".", linewidth=1.2, label="plain absmax, 2 to 8 bits"
        )
    shown: dict[str, Results] = {}  # each type is named once
    for with_importance, colour, mark, label in (
        (False, colours[0], "o", "types of ggml"),
        (True, colours[1], "^", "with an importance matrix"),
    ):
        some = [p for p in points if p["imatrix"] == with_importance and not p["type"].startswith("absmax")]
        some = [p for p in some if p["relative_rmse"] > 0]
        if not some:
            continue
        x, y = [p["bits"] for p in some], [p["relative_rmse"] for p in some]
        axes.scatter(x, y, s=22, color=colour, marker=mark, label=label, zorder=3)
        shown |= {p["type"]: p for p in some if p["type"] not in shown}
    axes.set_yscale("log")
    axes.set_xlabel("bits per weight")
    axes.set_ylabel("relative RMSE")
    axes.set_title("Error against bits per weight", fontsize=11)
    _dress(axes, theme)
    _legend(axes, theme)
    _name_points(figure, axes, shown.values(), most, theme)
    return figure


def _name_points(figure: Any, axes: Any, points: Iterable[Results], most: int, theme: tuple[Any, ...]) -> None:
    """Write the types beside their points, each where no other is written."""
    figure.canvas.draw()  # settles the axes' limits and places
    points = list(points)
    taken: list[tuple[float, float, float]] = []
    for p in sorted(points, key=lambda p: (p["bits"], p["relative_rmse"])):
        note = p["type"] + ("" if p["tensors"] == most else "*")
        x, y = axes.transData.transform((p["bits"], p["relative_rmse"]))
        width = 4.6 * len(note) * figure.dpi / 72
        high = 8 * figure.dpi / 72
        for steps in (0, -1, 1, -2, 2, -3, 3, -4, 4, -5, 5):
            at = y + steps * high
            if all(abs(at - b) >= high or x > a + w or a > x + width for a, b, w in taken):
                break
        taken.append((x, at, width))
        place = 4, (at - y) * 72 / figure.dpi - 2
        axes.annotate(
            note, (p["bits"], p["relative_rmse"]), place, textcoords="offset points", fontsize=7, color=theme[1]
        )


def heat_figure(results: Results, theme_name: str) -> Any:
    """Relative error by block and kind of tensor, a panel for each model; None if there is nothing to show."""
    models = [m for m in results["models"] if m.get("weights")]
    blocks, kinds = 0, []
    for m in models:
        for t in m["weights"]["tensors"]:
            match = re.match(r"blk\.(\d+)\.", t["name"])
            if match and t["relative_rmse"]:
                blocks = max(blocks, int(match[1]) + 1)
                if t["kind"] not in kinds:
                    kinds.append(t["kind"])
    if not kinds:
        return None
    kinds.sort()
    columns = min(3, len(models))
    rows = -(-len(models) // columns)
    height = min(14.0, rows * (1.3 + 0.11 * blocks + 0.5))
    figure, theme = _figure(2.9 * columns + 1.2, height, theme_name)
    panels = figure.subplots(rows, columns, squeeze=False)
    from matplotlib import colormaps
    from matplotlib.colors import LogNorm

    tables = []
    for m in models:
        table = np.full((blocks, len(kinds)), np.nan)
        for t in m["weights"]["tensors"]:
            match = re.match(r"blk\.(\d+)\.", t["name"])
            if match and t["kind"] in kinds and t["relative_rmse"]:
                table[int(match[1]), kinds.index(t["kind"])] = t["relative_rmse"]
        tables.append(table)
    every = np.concatenate([t[np.isfinite(t)] for t in tables])
    norm = LogNorm(float(every.min()), float(every.max()) * 1.0001)
    colours = colormaps["viridis"].with_extremes(bad=theme[2])
    image = None
    for k, panel in enumerate(panels.reshape(-1)):
        if k >= len(models):
            panel.set_visible(False)
            continue
        image = panel.imshow(np.ma.masked_invalid(tables[k]), aspect="auto", norm=norm, cmap=colours)
        panel.set_title(models[k]["name"], fontsize=10)
        panel.set_xticks(range(len(kinds)), kinds, rotation=60, ha="right", fontsize=8)
        panel.set_ylabel("block" if k % columns == 0 else "")
        _dress(panel, theme, grid=False)
        panel.tick_params(labelsize=8)
    bar = figure.colorbar(image, ax=list(panels.reshape(-1)), shrink=0.8)
    bar.set_label("relative RMSE", color=theme[1])
    bar.ax.tick_params(colors=theme[1], which="both", labelsize=8)
    return figure


def text_figure(results: Results, theme_name: str) -> Any:
    """Perplexity and KL divergence against size; None without a text."""
    models = [m for m in results["models"] if m.get("text") and m["nbytes"]]
    if not models:
        return None
    figure, theme = _figure(9.0, 4.2, theme_name)
    left, right = figure.subplots(1, 2)
    colours = theme[3]
    size = [m["nbytes"] / 1e6 for m in models]
    left.errorbar(size, [m["text"]["perplexity"] for m in models], [m["text"]["error"] for m in models], fmt="o",
                  color=colours[0], capsize=3, markersize=5)  # fmt: skip
    base = results["base"].get("text")
    if base:
        left.axhline(base["perplexity"], color=colours[2], linewidth=1.2, label=f"{results['base']['name']}")
        _legend(left, theme)
    left.set_ylabel("perplexity")
    left.set_title("Perplexity, with standard errors", fontsize=11)
    shown = [(s, m) for s, m in zip(size, models, strict=True) if m["text"].get("divergence")]
    positive = [(s, m) for s, m in shown if m["text"]["divergence"]["kl"][0] > 0]
    if positive:
        kl = [m["text"]["divergence"]["kl"] for _, m in positive]
        right.errorbar([s for s, _ in positive], [v for v, _ in kl], [e for _, e in kl], fmt="o", color=colours[1],
                       capsize=3, markersize=5)  # fmt: skip
        right.set_yscale("log")
    right.set_ylabel("mean KL divergence, nats")
    right.set_title("Divergence from the base", fontsize=11)
    for axes, heights in (
        (left, [(s, m, m["text"]["perplexity"]) for s, m in zip(size, models, strict=True)]),
        (right, [(s, m, m["text"]["divergence"]["kl"][0]) for s, m in positive]),
    ):
        for s, m, y in heights:
            if math.isfinite(y):
                axes.annotate(m["name"], (s, y), (5, 4), textcoords="offset points", fontsize=8, color=theme[1])
        axes.set_xlabel("size, MB")
        axes.margins(x=0.15)
        _dress(axes, theme)
    return figure


FIGURES = {"curve": curve_figure, "heat": heat_figure, "text": text_figure}


def draw(results: Results, name: str, theme: str, form: str) -> bytes | None:
    """One drawing as ``svg`` or ``png``; None where the results hold nothing of it.

    Raises
    ------
    ImportError
        If matplotlib is missing.
    """
    figure = FIGURES[name](results, theme)
    if figure is None:
        return None
    import matplotlib

    buffer = io.BytesIO()
    # Text as text keeps the page small and can be searched; a fixed salt and no date make it the same every time.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "ggufx"}):
        metadata = {"Date": None} if form == "svg" else {"Software": None}
        figure.savefig(buffer, format=form, dpi=150, metadata=metadata)
    return buffer.getvalue()
