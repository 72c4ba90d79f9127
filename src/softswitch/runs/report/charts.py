"""The report's charts, as plotly's data and layout; colours are names that the page turns into those of its theme."""

from __future__ import annotations

from typing import Any

import numpy as np

from softswitch.runs.folder import Run

Chart = dict[str, Any]
MOST_POINTS = 1500
"""A curve of more rounds is thinned to about so many points."""
MOST_COLUMNS = 120
"""The heat map's rounds are put together into at most so many columns."""


def curves(run: Run) -> Chart:
    """F and G against rounds, with the tolerance, and when the switch was on."""
    history, tolerance = run.history, run.about["tolerance"]
    rounds = np.arange(len(history))
    thin = slice(None, None, max(1, len(rounds) // MOST_POINTS))
    traces: list[Chart] = []
    for axis, seen, sampled in (("y", "objective", history.objective), ("y2", "constraint", history.constraint)):
        lines = [_line(rounds[thin], sampled[thin], "worst client, sampled", "faint", axis, width=1)]
        looked, full = history.full_rounds, history.full
        lines.append(_line(looked, getattr(full, seen), "worst client, all training rows", "first", axis))
        lines.append(
            _line(looked, getattr(full, f"mean_{seen}"), "mean client, all training rows", "second", axis, dash="dot")
        )
        if history.held_out is not None:
            lines.append(_line(looked, getattr(history.held_out, seen), "worst client, held-out rows", "third", axis))
        traces += [line | {"legendgroup": line["name"], "showlegend": axis == "y"} for line in lines]
    traces.append(
        {
            "type": "heatmap",
            "x": _numbers(rounds[thin]),
            "z": [_numbers(history.feasible[thin].astype(float))],
            "yaxis": "y3",
            "showscale": False,
            "zmin": 0,
            "zmax": 1,
            "colorscale": "switch",
            "hovertemplate": "round %{x}: %{z}<extra>1: improves F, 0: improves G</extra>",
        }
    )
    return {
        "data": traces,
        "layout": {
            "height": 620,
            "hovermode": "x unified",
            "xaxis": {"title": {"text": "round"}, "anchor": "y3"},
            "yaxis": {"title": {"text": "F, worst objective"}, "domain": [0.57, 1]},
            "yaxis2": {"title": {"text": "G, worst constraint"}, "domain": [0.11, 0.53]},
            "yaxis3": {"domain": [0, 0.05], "showticklabels": False, "title": {"text": "switch"}},
            "shapes": [_level(tolerance, "y2")],
            "legend": {"orientation": "h", "y": -0.12},
        },
    }


def clients(run: Run) -> Chart:
    """Every client's constraint, the worst first, with the certificate's interval where there is one."""
    names, worst = client_constraints(run)
    order = np.argsort(-worst, kind="stable")
    bar: Chart = {
        "type": "bar",
        "x": [names[i] for i in order],
        "y": _numbers(worst[order]),
        "name": "training rows",
        "marker": {"color": ["bad" if worst[i] > run.about["tolerance"] else "first" for i in order]},
    }
    traces = [bar]
    certified = intervals(run)
    found = [(names[i], certified[names[i]]) for i in order if names[i] in certified]
    if found:
        estimates = np.array([interval[0] for _, interval in found])
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": [name for name, _ in found],
                "y": _numbers(estimates),
                "name": "held-out rows, with the certificate's interval",
                "marker": {"color": "third", "size": 8},
                "error_y": {
                    "type": "data",
                    "symmetric": False,
                    "array": _numbers(np.array([i[2] - i[0] for _, i in found])),
                    "arrayminus": _numbers(np.array([i[0] - i[1] for _, i in found])),
                    "color": "third",
                },
            }
        )
    return {
        "data": traces,
        "layout": {
            "height": 420,
            "yaxis": {"title": {"text": "constraint g"}},
            "xaxis": {"type": "category"},
            "shapes": [_level(run.about["tolerance"], "y")],
            "legend": {"orientation": "h", "y": -0.3},
        },
    }


def heat_map(run: Run) -> Chart | None:
    """Each client's reported constraint over the rounds; None where reports were not recorded."""
    told = run.history.per_client
    if told is None:
        return None
    names, worst = client_constraints(run)
    order = np.argsort(worst, kind="stable")  # the worst on top
    reported = told.constraint.max(axis=2)
    length = max(1, -(-len(reported) // MOST_COLUMNS))
    columns = -(-len(reported) // length)
    total, count = np.zeros((len(names), columns)), np.zeros((len(names), columns))
    place = np.broadcast_to(np.arange(len(reported))[:, None] // length, reported.shape)
    finite = np.isfinite(reported)
    np.add.at(total, (told.clients[finite], place[finite]), reported[finite])
    np.add.at(count, (told.clients[finite], place[finite]), 1)
    means = np.where(count > 0, total / np.maximum(count, 1), np.nan)[order]
    tolerance = run.about["tolerance"]
    reach = float(np.nanmax(np.abs(means - tolerance))) if np.isfinite(means).any() else 1.0
    return {
        "data": [
            {
                "type": "heatmap",
                "x": _numbers(np.arange(columns) * length),
                "y": [names[i] for i in order],
                "z": [_numbers(row) for row in means],
                "colorscale": "violation",
                "zmid": tolerance,
                "zmin": tolerance - reach,
                "zmax": tolerance + reach,
                "colorbar": {"title": {"text": "g"}},
                "hovertemplate": "%{y}, from round %{x}: g = %{z:.4g}<extra></extra>",
            }
        ],
        "layout": {
            "height": min(900, 160 + 22 * len(names)),
            "xaxis": {"title": {"text": "round"}},
            "yaxis": {"type": "category", "automargin": True},
        },
    }


def comparison(runs: list[Run]) -> Chart:
    """F and G of several runs on all training rows, one colour a run."""
    colours = ("first", "bad", "third", "second", "fourth", "faint")
    traces = []
    for i, run in enumerate(runs):
        history, colour = run.history, colours[i % len(colours)]
        for axis, values in (("y", history.full.objective), ("y2", history.full.constraint)):
            line = _line(history.full_rounds, np.asarray(values), run.name, colour, axis, legendgroup=run.name)
            traces.append(line | {"showlegend": axis == "y"})
    levels = sorted({run.about["tolerance"] for run in runs})
    return {
        "data": traces,
        "layout": {
            "height": 560,
            "xaxis": {"title": {"text": "round"}, "anchor": "y2"},
            "yaxis": {"title": {"text": "F, worst objective"}, "domain": [0.53, 1]},
            "yaxis2": {"title": {"text": "G, worst constraint"}, "domain": [0, 0.47]},
            "shapes": [_level(level, "y2") for level in levels],
            "legend": {"orientation": "h", "y": -0.12},
        },
    }


def client_constraints(run: Run) -> tuple[list[str], np.ndarray]:
    """The clients' names, and the largest constraint of each on its training rows."""
    table = run.clients
    columns = [values for name, values in table.items() if name.startswith("constraint")]
    return table["client"], np.max(np.array(columns, dtype=float), axis=0)


def intervals(run: Run) -> dict[str, tuple[float, float, float, str]]:
    """By client what the certificate says: estimate, lower and upper bound of its worst constraint, and the verdict."""
    found = {}
    for one in (run.certificate or {}).get("clients", []):
        bounds = [
            tuple(np.nan if interval[name] is None else interval[name] for name in ("estimate", "lower", "upper"))
            for interval in one["constraints"]
        ]
        worst = max(bounds, key=lambda bound: np.nan_to_num(bound[2], nan=np.inf))
        found[str(one["client"])] = (*worst, one["verdict"])
    return found


def _line(
    x: Any, y: Any, name: str, colour: str, axis: str, *, width: float = 2, dash: str = "solid", **more: Any
) -> Chart:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": _numbers(np.asarray(x)),
        "y": _numbers(np.asarray(y, dtype=float)),
        "name": name,
        "yaxis": axis,
        "line": {"color": colour, "width": width, "dash": dash},
        **more,
    }


def _level(at: float, axis: str) -> Chart:
    """The tolerance, across the whole width."""
    line = {"color": "text", "width": 1.5, "dash": "dash"}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "yref": axis, "y0": at, "y1": at, "line": line}


def _numbers(values: np.ndarray) -> list[float | int | None]:
    """For JSON, which knows no NaN and no infinity."""
    return [None if not np.isfinite(value) else value for value in values.tolist()]
