"""Figures of the experiments: panels for narrow pages, means with standard deviations, the tolerance line."""

from __future__ import annotations

import math
import textwrap
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from softswitch.support.plotting import BLUE as BLUE
from softswitch.support.plotting import GREEN as GREEN
from softswitch.support.plotting import GREY as GREY
from softswitch.support.plotting import NARROW_WIDTH as NARROW_WIDTH
from softswitch.support.plotting import PURPLE as PURPLE
from softswitch.support.plotting import VERMILLION as VERMILLION
from softswitch.support.plotting import add_legend as add_legend
from softswitch.support.plotting import make_panels as make_panels

METHODS = {"Softmax SGM": BLUE, "Average SGM": VERMILLION, "Penalty": GREEN, "Primal-dual": PURPLE}
"""Colours of the methods, the same in all figures."""
NARROW_TITLE, NARROW_HEADING = 42, 74
"""Maximum number of characters in a line of a panel's title, and of the figure's title."""


class NarrowPanel(Axes):
    """A panel with a small title that is wrapped to the panel's width."""

    def set_title(self, label: str, *args: Any, **style: Any) -> Any:
        """Set the title."""
        place = self.get_subplotspec()
        letters = NARROW_TITLE * (len(place.colspan) if place is not None else 1)
        return super().set_title(textwrap.fill(label, letters), *args, **{"fontsize": "medium"} | style)


def make_narrow_panels(rows: int, columns: int, title: str = "", *, height: float = 2.5) -> tuple[Figure, Any]:
    """Return a figure for pages as narrow as a phone, and its panels as an array of shape rows × columns.

    Each row is wrapped to two panels per line. If ``columns`` is odd, the last panel is twice as wide.
    """
    lines = math.ceil(columns / 2)
    heading = "\n".join(textwrap.fill(line, NARROW_HEADING) for line in title.splitlines())
    total_height = height * rows * lines + 0.25 * len(heading.splitlines()) + 0.4
    figure = Figure(figsize=(NARROW_WIDTH, total_height), layout="constrained")
    grid = figure.add_gridspec(rows * lines, 2)
    axes = np.empty((rows, columns), dtype=object)
    for row, column in np.ndindex(rows, columns):
        is_wide = column == columns - 1 and columns % 2 == 1
        place = grid[row * lines + column // 2, slice(None) if is_wide else column % 2]
        panel = figure.add_subplot(place, axes_class=NarrowPanel)
        panel.spines[["top", "right"]].set_visible(False)
        axes[row, column] = panel
    if heading:
        figure.suptitle(heading)
    return figure, axes


def sequential_colours(count: int) -> list[Any]:
    """Return perceptually uniform colours for an ordered parameter, dark to light."""
    return [colormaps["viridis"](x) for x in np.linspace(0, 0.85, count)]


def plot_band(axes: Axes, x: Any, curves: Any, colour: Any, label: str | None = None, **style: Any) -> None:
    """Plot the mean of curves (seeds × points) with a band of one standard deviation, not below the smallest curve."""
    curves = np.asarray(curves, dtype=float)
    middle = curves.mean(axis=0)
    axes.plot(x, middle, color=colour, label=label, **{"linewidth": 1.4} | style)
    if len(curves) > 1:
        spread = curves.std(axis=0, ddof=1)
        low = np.maximum(middle - spread, curves.min(axis=0))
        axes.fill_between(x, low, middle + spread, color=colour, alpha=0.15, linewidth=0)


def plot_error_bars(axes: Axes, x: Any, values: Any, colour: Any, label: str | None = None, line: Any = "-") -> None:
    """Plot mean and standard deviation over seeds (points × seeds), connected by a line."""
    values = np.asarray(values, dtype=float)
    spread = values.std(axis=1, ddof=1) if values.shape[1] > 1 else np.zeros(len(values))
    middle = values.mean(axis=1)
    axes.errorbar(x, middle, spread, color=colour, label=label, linestyle=line, marker="o", markersize=4, capsize=3)


def set_log_scale(axes: Axes) -> None:
    """Use a logarithmic y-axis with plain numbers at 1, 2 and 5."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def plot_tolerance(axes: Axes, level: float) -> None:
    """Plot the tolerance as a horizontal line."""
    axes.axhline(level, color="black", linestyle="--", linewidth=1, label="tolerance")
