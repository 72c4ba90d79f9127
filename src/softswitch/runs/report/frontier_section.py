"""The report's section on what the bound costs: sentences, a chart and a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from softswitch.results.along_bounds.cost_of_bounds import Frontier
from softswitch.results.along_bounds.frontier_point import BoundOutcome, FrontierPoint, finite
from softswitch.runs.frontier_files import read_frontier


class FrontierSection(NamedTuple):
    """What the page shows of a frontier.

    Attributes:
        words: sentences.
        chart: for plotly; colours are names that the page turns into those of its theme.
        cells: the table's head and rows.
        notes: how to read it.
        of: which folder it is of, where that is not said otherwise.
    """

    words: list[str]
    chart: dict[str, Any]
    cells: dict[str, list[Any]]
    notes: str
    of: str


def section_of(folder: Path) -> FrontierSection:
    """The section of the frontier in a folder."""
    found = read_frontier(folder)
    columns = found.columns
    cells: dict[str, list[Any]] = {
        "head": list(columns),
        "rows": [list(row) for row in zip(*columns.values(), strict=True)],
    }
    return FrontierSection(found.words, chart_of(found), cells, found.notes, folder.name)


def chart_of(found: Frontier) -> dict[str, Any]:
    """F above, what else was measured below, against the bound; filled marks are certified."""
    points = found.points
    bounds = [point.bound for point in points]
    measures = list(dict.fromkeys(name for point in points for name in point.measures))
    least = [point.objective if point.reached else math.nan for point in points]
    traces = [
        _line(bounds, least, "least F that keeps the bound, rows learnt from", "first", "y", mode="lines"),
        *_marks(points, [point.other_objective for point in points], "model's F, rows not trained on", "bad", "y"),
        _line(bounds, [p.constant for p in points], "best constant's F", "second", "y", mode="lines", dash="dot"),
    ]
    for name, colour in zip(measures, ("third", "fourth", "first", "bad", "second") * len(measures), strict=False):
        values = [point.measures.get(name, math.nan) for point in points]
        traces += _marks(points, values, name, colour, "y2")
    axis: dict[str, Any] = {
        "title": {"text": "bound: what the constraint may be at most"},
        "anchor": "y2" if measures else "y",
        "tickvals": bounds,
        "ticktext": [found.named(bound) for bound in bounds],
    }
    if min(bounds) > 0:
        axis["type"] = "log"
    upper = {"title": {"text": "worst client's F"}, "rangemode": "tozero"}
    layout = {"xaxis": axis, "yaxis": upper, "height": 420, "legend": {"orientation": "h", "y": -0.3}}
    if measures:
        layout |= {"height": 620, "legend": {"orientation": "h", "y": -0.2}}
        layout["yaxis"] = upper | {"domain": [0.53, 1]}
        layout["yaxis2"] = {"title": {"text": "rows not trained on"}, "domain": [0, 0.47]}
    return {"data": traces, "layout": layout}


def _marks(
    points: Sequence[FrontierPoint], values: Sequence[float], name: str, colour: str, axis: str
) -> list[dict[str, Any]]:
    """A mark at each bound, joined where models were chosen for the same end."""
    traces: list[dict[str, Any]] = []
    for to_certify in (True, False):
        own = [i for i, point in enumerate(points) if point.for_a_certificate is to_certify]
        if not own:
            continue
        bounds, seen = [points[i].bound for i in own], [values[i] for i in own]
        marks = {
            "color": colour,
            "size": 9,
            "symbol": ["circle" if points[i].outcome is BoundOutcome.CERTIFIED else "circle-open" for i in own],
        }
        text = [str(points[i].outcome) for i in own]
        line = _line(bounds, seen, name, colour, axis, mode="lines+markers", dash="dash")
        shown = {"marker": marks, "text": text, "legendgroup": name, "showlegend": not traces}
        traces.append(line | shown | {"hovertemplate": "%{y:.4g}, %{text}"})
    return traces


def _line(
    x: Sequence[float], y: Sequence[float], name: str, colour: str, axis: str, *, mode: str, dash: str = "solid"
) -> dict[str, Any]:
    line = {"color": colour, "width": 2, "dash": dash}
    told = {"type": "scatter", "mode": mode, "x": list(x), "y": [finite(value) for value in y], "name": name}
    return told | {"yaxis": axis, "line": line}
