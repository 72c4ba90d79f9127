"""The charts of a report, as inline SVG that takes its colours from the page."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from softswitch.results.certificate import Verdict
from softswitch.results.descriptions import read_description
from softswitch.results.folder import Run
from softswitch.results.report.clients import ClientResult
from softswitch.support.plotting import BLUE, GREEN, GREY, PURPLE, VERMILLION, add_legend, make_panels
from softswitch.support.text import format_number

AMBER, DEEP_GREEN, FAINT, BLACK = "#96690a", "#00795a", "#a9b8c8", "#000000"
# CSS variable of the page -> pattern of the matplotlib colours that it replaces in the SVG
CSS_VARIABLES = {"first": BLUE, "quiet": GREY, "third": GREEN, "fourth": PURPLE, "faint": FAINT, "text": BLACK}
CSS_VARIABLES |= {"bad": VERMILLION, "unsure": AMBER, "good": DEEP_GREEN, "line": "(?:#b0b0b0|#cccccc)"}
VERDICT_COLOURS = {Verdict.VIOLATES: VERMILLION, Verdict.UNDECIDED: AMBER, Verdict.MEETS: DEEP_GREEN}
VERDICT_COLOURS |= {Verdict.TOO_FEW: GREY}
REMOVED = re.compile(r'(?s)<!--.*?-->| id="[a-zA-Z0-9]+_\d+"')  # comments, and ids that are the same in every figure
MAX_POINTS = 500  # longer curves are thinned to about this many points
MAX_NAME = 24  # longer client names are cut to this many characters
WIDTH = 5.6  # of every chart, in inches


def render_svg(figure: Figure, key: str) -> str:
    """Render a figure as an ``<svg>`` element in the page's colours.

    ``key`` seeds matplotlib's element ids, and must differ between the figures of a page.
    """
    parts: list[Any] = [figure, *figure.axes]
    for part in parts:
        part.patch.set_visible(False)
    stream = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": key}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # the browser draws the text
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = stream.getvalue()
    text = REMOVED.sub("", text[text.index("<svg") :]).strip()
    for name, colour in CSS_VARIABLES.items():
        text = re.sub(rf"{colour}(?![0-9a-f])", f"var(--{name})", text, flags=re.IGNORECASE)
    return re.sub(r'<svg([^>]*?) width="[^"]*"( height="[^"]*")?', r"<svg\1", text, count=1)


def plot_curves(run: Run, key: str, names: Sequence[str]) -> str:
    """Return an SVG chart of F, G and the share of feasible rounds by round; ``names`` are the titles of F and G."""
    history, evaluated, rounds = run.history, run.history.full_rounds, np.arange(len(run.history))
    figure, (objectives, constraints, switch) = _make_panels(3)
    for axes, value, name in zip((objectives, constraints), ("objective", "constraint"), names, strict=True):
        mean = getattr(history.full, f"mean_{value}")
        _plot_curve(axes, rounds, getattr(history, value), FAINT, "worst client, as reported")
        _plot_curve(axes, evaluated, getattr(history.full, value), BLUE, "worst client, all training rows")
        _plot_curve(axes, evaluated, mean, GREY, "mean client, all training rows", linestyle=":")
        if history.held_out is not None:
            _plot_curve(axes, evaluated, getattr(history.held_out, value), GREEN, "worst client, held-out rows")
        axes.set_title(name, loc="left", fontsize="medium")
    _format_axis(constraints.yaxis, read_description(run.about).write)
    constraints.axhline(run.about["tolerance"], color=BLACK, linestyle="--", linewidth=1, label="bound")
    _plot_curve(switch, rounds, np.cumsum(history.feasible) / (rounds + 1), BLUE, "share")
    switch.set_ylim(0, 1)
    switch.set_title("share of feasible rounds so far", loc="left", fontsize="medium")
    _format_axis(switch.yaxis, "{:.0%}".format)
    add_legend(figure, [objectives, constraints])
    return render_svg(figure, key)


def plot_clients(run: Run, clients: Sequence[ClientResult], key: str) -> str:
    """Return an SVG chart of each client's constraint and, if certified, its interval; the first client on top."""
    kind = read_description(run.about)
    figure, (axes,) = _make_panels(1, height=0.9 + 0.28 * len(clients))
    for i, client in enumerate(clients):
        colour = VERDICT_COLOURS[client.verdict]
        if np.isfinite(client.constraint):
            axes.barh(i, client.constraint, height=0.62, color=FAINT, zorder=1)
        if np.isfinite(client.estimate):
            limits = [limit if np.isfinite(limit) else client.estimate for limit in (client.lower, client.upper)]
            axes.plot(limits, [i, i], color=colour, linewidth=2, zorder=2)
            axes.plot([client.estimate], [i], color=colour, marker="o", markersize=6, zorder=3)
    names = [c.name if len(c.name) <= MAX_NAME else f"{c.name[: MAX_NAME - 1]}…" for c in clients]
    axes.set_yticks(range(len(clients)), [name.replace("$", r"\$") for name in names])  # $ begins a formula
    for label, client in zip(axes.get_yticklabels(), clients, strict=True):
        label.set_color(VERDICT_COLOURS[client.verdict])
    axes.set(ylim=(len(clients) - 0.4, -0.6), xlabel=kind.constraint)
    axes.axvline(run.about["tolerance"], color=BLACK, linestyle="--", linewidth=1)
    _format_axis(axes.xaxis, kind.write)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    return render_svg(figure, key)


def plot_reliability(curves: Mapping[str, Any], key: str) -> str:
    """Return an SVG chart of observed shares by predicted probabilities: all clients with 95% limits, and each client.

    ``curves`` has the entries "all" and "clients" of run.json.
    """
    figure, (axes,) = _make_panels(1, height=4.2)
    axes.plot([0, 1], [0, 1], color=BLACK, linestyle="--", linewidth=1, label="ideal")
    for i, curve in enumerate(curves["clients"].values()):
        x, y = ([one[name] for one in curve] for name in ("predicted", "observed"))
        axes.plot(x, y, color=FAINT, linewidth=1, marker=".", label=None if i else "each client")
    x, y, lower, upper = ([one[name] for one in curves["all"]] for name in ("predicted", "observed", "lower", "upper"))
    axes.vlines(x, lower, upper, color=BLUE, linewidth=1.5)
    axes.plot(x, y, color=BLUE, marker="o", markersize=5, label="all clients, with 95% limits")
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="predicted probability", ylabel="observed share")
    for axis in (axes.xaxis, axes.yaxis):
        _format_axis(axis, "{:.0%}".format)
    axes.set_aspect("equal")
    add_legend(figure, [axes])
    return render_svg(figure, key)


def _make_panels(count: int, height: float = 2.2) -> tuple[Figure, list[Axes]]:
    figure, axes = make_panels(count, 1, width=WIDTH, height=height)
    for panel in axes[:, 0]:
        panel.grid(linewidth=0.6)
        panel.set_axisbelow(True)
    return figure, list(axes[:, 0])


def _format_axis(axis: Any, write: Callable[[float], str]) -> None:
    axis.set_major_formatter(FuncFormatter(lambda value, _: write(value)))


def _plot_curve(axes: Axes, x: Any, y: Any, colour: str, label: str, **style: Any) -> None:
    thin = slice(None, None, max(1, len(x) // MAX_POINTS))
    values = np.asarray(y, dtype=float)[thin]
    axes.plot(np.asarray(x)[thin], np.where(np.isfinite(values), values, np.nan), color=colour, label=label, **style)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    _format_axis(axes.xaxis, format_number)
    axes.set_xlabel("round")
