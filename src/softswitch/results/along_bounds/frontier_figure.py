"""The frontier as a figure: F above, what else was measured below, against the bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from softswitch.results.along_bounds.frontier_point import BoundOutcome, FrontierPoint, SmallestConstraint

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 5.6, 2.9


def drawn(points: Sequence[FrontierPoint], smallest: SmallestConstraint, *, shares: bool) -> Figure:
    """One panel above the other: narrow enough for a phone. Filled marks are certified."""
    from matplotlib.lines import Line2D

    from softswitch.support.plotting import BLUE, GREEN, GREY, PURPLE, VERMILLION, legend, panels

    measures = list(dict.fromkeys(name for point in points for name in point.measures))
    figure, axes = panels(1 + bool(measures), 1, "What the bound costs", width=WIDTH, height=HEIGHT)
    upper, lower = axes[0, 0], axes[-1, 0]
    bounds = [point.bound for point in points]
    least = [point.objective if point.reached else math.nan for point in points]
    upper.plot(bounds, least, color=BLUE, linewidth=1.8, label="least F that keeps it, rows learnt from")
    _marks(upper, points, [point.other_objective for point in points], VERMILLION, "model's F, rows not trained on")
    constants = [point.constant for point in points]
    if any(map(math.isfinite, constants)):
        upper.plot(bounds, constants, color=GREY, linestyle=":", label="best constant's F")
    upper.set(ylabel="worst client's objective F", ylim=(0, None))
    for name, colour in zip(measures, (GREEN, PURPLE, BLUE, VERMILLION, GREY) * len(measures), strict=False):
        _marks(lower, points, [point.measures.get(name, math.nan) for point in points], colour, name)
    if measures:
        lower.set(ylabel="model, rows not trained on")
    for panel in axes[:, 0]:
        _bounds_below(panel, points, smallest, shares=shares)
    lower.set_xlabel("bound: what the constraint may be at most")
    legend(figure, list(axes[:, 0]), columns=1)
    kinds = [Line2D([], [], color=GREY, marker="o", linestyle="", markerfacecolor=face) for face in (GREY, "white")]
    lower.legend(kinds, ["certified", "not"], frameon=False, fontsize="small", loc="best")
    return figure


def _marks(axes: Axes, points: Sequence[FrontierPoint], values: Sequence[float], colour: str, label: str) -> None:
    """A mark at each bound, filled where the model is certified; joined where models were chosen for the same end."""
    for i, (point, value) in enumerate(zip(points, values, strict=True)):
        face = colour if point.outcome is BoundOutcome.CERTIFIED else "white"
        axes.plot([point.bound], [value], "o", markersize=6, color=colour, markerfacecolor=face, zorder=3)
        if i and points[i - 1].for_a_certificate is point.for_a_certificate:
            axes.plot([points[i - 1].bound, point.bound], values[i - 1 : i + 1], "--", color=colour, linewidth=1.2)
    axes.plot([], [], "o--", color=colour, label=label)


def _bounds_below(axes: Axes, points: Sequence[FrontierPoint], smallest: SmallestConstraint, *, shares: bool) -> None:
    """The bounds as ticks, as a reader has them, and where the smallest constraint is that was reached."""
    from matplotlib.ticker import FixedLocator, NullLocator

    from softswitch.support.plotting import GREY

    bounds = sorted(point.bound for point in points)
    if bounds[0] > 0:
        axes.set_xscale("log")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_locator(FixedLocator(bounds))
    named: Any = [f"{100 * bound:.3g}%" if shares else f"{bound:.3g}" for bound in bounds]
    axes.set_xticks(bounds, named, rotation=45 if len(bounds) > 4 else 0)
    if smallest.constraint > bounds[0]:
        axes.axvspan(bounds[0], min(smallest.constraint, bounds[-1]), color=GREY, alpha=0.12, label="not reached")
