"""One style for every figure: colours that colour-blind readers tell apart, mean and spread, the tolerance line."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

BLUE, VERMILLION, GREEN, PURPLE, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#555555"
METHODS = {"Softmax SGM": BLUE, "Average SGM": VERMILLION, "Penalty": GREEN, "Primal-dual": PURPLE}
"""Each method's colour, the same in all figures."""

NARROW_WIDTH = 7.2
"""Inches: a figure of this width can still be read where it is shown 390 pixels wide."""
NARROW_TITLE, NARROW_HEADING, NARROW_LEGEND = 42, 74, 92
"""How many letters fit: above a panel, above the figure, and in a line of its legend."""


def make_panels(
    rows: int, columns: int, title: str = "", *, width: float = 4.0, height: float = 3.2
) -> tuple[Figure, Any]:
    """A figure with rows × columns panels, and an array of them."""
    figure = Figure(figsize=(width * columns, height * rows + 0.6), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for panel in axes.flat:
        panel.spines[["top", "right"]].set_visible(False)
    if title:
        figure.suptitle(title)
    return figure, axes


class NarrowPanel(Axes):
    """A panel whose title is in small letters and broken where it would not fit."""

    def set_title(self, label: str, *given: Any, **style: Any) -> Any:
        """The title."""
        place = self.get_subplotspec()
        letters = NARROW_TITLE * (len(place.colspan) if place is not None else 1)
        return super().set_title(textwrap.fill(label, letters), *given, **{"fontsize": "medium"} | style)


def make_narrow_panels(rows: int, columns: int, title: str = "", *, height: float = 2.5) -> tuple[Figure, Any]:
    """The same for a page as narrow as a phone: two panels side by side at most, the others of a row below them.

    Where their number is odd the last one is as wide as two. The array has the shape rows × columns all the same.
    """
    lines = math.ceil(columns / 2)
    shown = "\n".join(textwrap.fill(line, NARROW_HEADING) for line in title.splitlines())
    high = height * rows * lines + 0.25 * len(shown.splitlines()) + 0.4
    figure = Figure(figsize=(NARROW_WIDTH, high), layout="constrained")
    grid = figure.add_gridspec(rows * lines, 2)
    axes = np.empty((rows, columns), dtype=object)
    for row, column in np.ndindex(rows, columns):
        alone = column == columns - 1 and columns % 2 == 1
        place = grid[row * lines + column // 2, slice(None) if alone else column % 2]
        panel = figure.add_subplot(place, axes_class=NarrowPanel)
        panel.spines[["top", "right"]].set_visible(False)
        axes[row, column] = panel
    if shown:
        figure.suptitle(shown)
    return figure, axes


def sequential_colours(count: int) -> list[Any]:
    """Colours for an ordered parameter, dark to light, equally far apart for all eyes."""
    return [colormaps["viridis"](x) for x in np.linspace(0, 0.85, count)]


def plot_band(axes: Axes, x: Any, curves: Any, colour: Any, label: str | None = None, **style: Any) -> None:
    """The mean of the curves (seeds × points), and a band of one standard deviation around it, within their range."""
    curves = np.asarray(curves, dtype=float)
    middle = curves.mean(axis=0)
    axes.plot(x, middle, color=colour, label=label, **{"linewidth": 1.4} | style)
    if len(curves) > 1:
        spread = curves.std(axis=0, ddof=1)
        low = np.maximum(middle - spread, curves.min(axis=0))
        axes.fill_between(x, low, middle + spread, color=colour, alpha=0.15, linewidth=0)


def plot_error_bars(axes: Axes, x: Any, values: Any, colour: Any, label: str | None = None, line: Any = "-") -> None:
    """Mean and standard deviation over seeds (points × seeds): dots with error bars, joined by a line."""
    values = np.asarray(values, dtype=float)
    spread = values.std(axis=1, ddof=1) if values.shape[1] > 1 else np.zeros(len(values))
    middle = values.mean(axis=1)
    axes.errorbar(x, middle, spread, color=colour, label=label, linestyle=line, marker="o", markersize=4, capsize=3)


def set_log_scale(axes: Axes) -> None:
    """A logarithmic y-axis with plain numbers at 1, 2 and 5."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def plot_tolerance(axes: Axes, level: float) -> None:
    """The tolerance line."""
    axes.axhline(level, color="black", linestyle="--", linewidth=1, label="tolerance")


def add_legend(figure: Figure, sources: Sequence[Axes], columns: int = 6) -> None:
    """One legend for the whole figure, below it, where it hides nothing; each label once."""
    found: dict[str, Any] = {}
    for axes in sources:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    if figure.get_figwidth() <= NARROW_WIDTH:
        # An entry's line takes about eight letters beside its words.
        columns = min(columns, max(1, NARROW_LEGEND // (8 + max(map(len, found)))))
    figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=columns, frameon=False)
