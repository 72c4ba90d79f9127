"""Style of Matplotlib figures: colours for colour-blind readers, panels, and a legend below the figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

BLUE, VERMILLION, GREEN, PURPLE, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#555555"
NARROW_WIDTH = 7.2  # width in inches of a figure that is legible on a screen of 390 pixels
NARROW_LEGEND = 92  # characters that fit in a line of a narrow figure's legend


def make_panels(
    rows: int, columns: int, title: str = "", *, width: float = 4.0, height: float = 3.2
) -> tuple[Figure, Any]:
    """Return a figure and its axes, an array of shape (rows, columns); each panel is ``width`` × ``height`` inches."""
    figure = Figure(figsize=(width * columns, height * rows + 0.6), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for panel in axes.flat:
        panel.spines[["top", "right"]].set_visible(False)
    if title:
        figure.suptitle(title)
    return figure, axes


def add_legend(figure: Figure, sources: Sequence[Axes], columns: int = 6) -> None:
    """Add one legend below the figure: each label of ``sources`` once, in at most ``columns`` columns."""
    handles: dict[str, Any] = {}
    for axes in sources:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if figure.get_figwidth() <= NARROW_WIDTH:  # the line of an entry is about eight characters wide
        columns = min(columns, max(1, NARROW_LEGEND // (8 + max(map(len, handles)))))
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns, frameon=False)
