"""The charts of a report, each in a wide version and one for phones."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from softswitch.results.certificate import Verdict
from softswitch.results.descriptions import read_description
from softswitch.results.folder import Run
from softswitch.results.report.clients import MAX_CLIENTS, WORST_CLIENTS, ClientResult, sort_worst_first
from softswitch.support.plotting import BLUE, GREEN, GREY, PURPLE, VERMILLION, add_legend
from softswitch.support.text import format_number

AMBER, DEEP_GREEN, FAINT, BLACK = "#96690a", "#00795a", "#a9b8c8", "#000000"
FIGURE_COLOURS = (BLUE, GREY, GREEN, PURPLE, VERMILLION, AMBER, DEEP_GREEN, FAINT, BLACK, "#b0b0b0", "#cccccc")
CSS_VARIABLES = ["first", "quiet", "third", "fourth", "bad", "unsure", "good", "faint", "text", "line", "line"]
COLOURS = {Verdict.VIOLATES: VERMILLION, Verdict.UNDECIDED: AMBER, Verdict.MEETS: DEEP_GREEN}
GENERATED_IDS = re.compile(r' id="[a-zA-Z0-9]+_\d+"')  # matplotlib's ids, which are the same in every figure
COORDINATES, LONG_DECIMALS = re.compile(r' (?:d|x|y|transform)="[^"]*"'), re.compile(r"(\d+\.\d\d)\d+")
MAX_POINTS = 500  # longer curves are thinned to about this many points
MAX_COLUMNS = 100  # rounds are grouped into at most this many columns
WIDE, NARROW = 10.8, 3.9  # widths in inches
Picture = dict[str, str]  # the SVG of a chart for a "wide" page, and of the same for a "narrow" one


def render_svg(figure: Figure, key: str, tips: Mapping[str, str] | None = None) -> str:
    """Return a figure as an SVG element with the colours of the page and tooltips by the ``gid`` of an artist.

    ``key`` is unique on the page.
    """
    parts: list[Any] = [figure, *figure.axes]
    for part in parts:
        part.patch.set_visible(False)
    stream = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": key}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # the browser draws the text
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = stream.getvalue()
    text = re.sub(r"<!--.*?-->", "", text[text.index("<svg") :], flags=re.DOTALL).strip()
    text = GENERATED_IDS.sub("", text)
    for gid, tip in (tips or {}).items():
        text = text.replace(f'<g id="{gid}">', f"<g><title>{escape(tip)}</title>")
    for colour, name in zip(FIGURE_COLOURS, CSS_VARIABLES, strict=True):
        text = re.sub(rf"{colour}(?![0-9a-f])", f"var(--{name})", text, flags=re.IGNORECASE)
    text = COORDINATES.sub(lambda match: LONG_DECIMALS.sub(r"\1", match[0]), text)
    return re.sub(r'<svg([^>]*?) width="[^"]*"( height="[^"]*")?', r"<svg\1", text, count=1)


def plot_curves(run: Run, key: str, names: Sequence[str]) -> Picture:
    """Plot F and G, which have ``names``, against rounds, and the share of feasible rounds."""
    history, evaluated = run.history, run.history.full_rounds

    def draw(figure: Figure, panels: list[Axes], wide: bool) -> None:
        objectives, constraints, switch = panels
        for axes, value, name in zip((objectives, constraints), ("objective", "constraint"), names, strict=True):
            rounds, mean = np.arange(len(history)), getattr(history.full, f"mean_{value}")
            _plot_curve(axes, rounds, getattr(history, value), FAINT, "worst client, as reported", linewidth=1)
            _plot_curve(axes, evaluated, getattr(history.full, value), BLUE, "worst client, all training rows")
            _plot_curve(axes, evaluated, mean, GREY, "mean client, all training rows", linestyle=":")
            if history.held_out is not None:
                _plot_curve(axes, evaluated, getattr(history.held_out, value), GREEN, "worst client, held-out rows")
            axes.set_title(name, loc="left", fontsize="medium")
        _format_axis(constraints.yaxis, read_description(run.about).write)
        _plot_bound(constraints, run.about["tolerance"])
        parts = np.array_split(history.feasible.astype(float), min(MAX_COLUMNS, max(1, len(history))))
        edges = np.cumsum([0, *map(len, parts)])
        switch.stairs([float(part.mean()) if len(part) else 0.0 for part in parts], edges, fill=True, color=FAINT)
        switch.set(ylim=(0, 1), ylabel="feasible", xlabel="round")
        switch.set_yticks([0, 1], ["0%", "100%"])
        _format_axis(switch.xaxis, format_number)
        add_legend(figure, panels, columns=3 if wide else 1)

    return _draw_twice(draw, key, (2.5, 2.5, 0.9))


def plot_clients(run: Run, clients: list[ClientResult], key: str) -> Picture:
    """Plot the constraint of every client, the worst first, with the certificate's interval if there is one."""
    if len(clients) > MAX_CLIENTS:
        return _plot_distribution(run, clients, key)
    kind, shown = read_description(run.about), [clients[i] for i in sort_worst_first(clients)[::-1]]  # worst on top

    def describe(client: ClientResult) -> str:
        reason, write = f" ({client.reason})" * bool(client.reason), kind.write
        held_out = f"; held-out rows {write(client.estimate)}, at most {write(client.upper)}"
        known = held_out if np.isfinite(client.estimate) else ""
        return f"{client.name}: {client.verdict}{reason}; training rows {write(client.constraint)}{known}"

    tips = {f"client-{key}-{i}": describe(client) for i, client in enumerate(shown)}

    def draw(figure: Figure, panels: list[Axes], wide: bool) -> None:
        (axes,) = panels
        for i, (gid, client) in enumerate(zip(tips, shown, strict=True)):
            colour = COLOURS[client.verdict]
            if np.isfinite(client.constraint):
                axes.barh(i, client.constraint, height=0.62, color=FAINT, zorder=1)[0].set_gid(gid)
            if np.isfinite(client.estimate):
                limits = [limit if np.isfinite(limit) else client.estimate for limit in (client.lower, client.upper)]
                axes.plot(limits, [i, i], color=colour, linewidth=2, zorder=2)
                axes.plot([client.estimate], [i], color=colour, marker="o", markersize=6, zorder=3, gid=gid)
        axes.set_yticks(range(len(shown)), [_shorten(client.name, 30 if wide else 14) for client in shown])
        for label, client in zip(axes.get_yticklabels(), shown, strict=True):
            label.set_color(COLOURS[client.verdict])
        axes.set(ylim=(-0.6, len(shown) - 0.4), xlabel=kind.constraint)
        axes.axvline(run.about["tolerance"], color=BLACK, linestyle="--", linewidth=1)
        _format_axis(axes.xaxis, kind.write)
        axes.xaxis.set_major_locator(MaxNLocator(8 if wide else 4))

    return _draw_twice(draw, key, (0.9 + 0.28 * len(shown),), tips)


def _plot_distribution(run: Run, clients: list[ClientResult], key: str) -> Picture:
    """Plot the quantiles of the constraint over very many clients."""
    kind = read_description(run.about)
    lines = {
        "training rows": (BLUE, [client.constraint for client in clients]),
        "held-out rows": (GREEN, [client.estimate for client in clients]),
        "certified limit": (VERMILLION, [client.upper for client in clients]),
    }

    def draw(figure: Figure, panels: list[Axes], wide: bool) -> None:
        (axes,) = panels
        for label, (colour, values) in lines.items():
            known = np.sort([value for value in values if np.isfinite(value)])
            if len(known):
                at = np.unique(np.linspace(0, len(known) - 1, MAX_POINTS).round().astype(int))
                axes.plot((at + 1) / len(known), known[at], color=colour, label=label)
        _plot_bound(axes, run.about["tolerance"])
        _format_axis(axes.yaxis, kind.write)
        _format_axis(axes.xaxis, "{:.0%}".format)
        axes.set_xlabel(f"share of the {len(clients):,} clients, the best first")
        axes.set_title(kind.constraint, loc="left", fontsize="medium")
        add_legend(figure, panels, columns=3 if wide else 1)

    return _draw_twice(draw, key, (3.4,))


def plot_heat_map(run: Run, clients: list[ClientResult], key: str) -> Picture | None:
    """Plot the reported constraints over the rounds, of the worst clients if there are many; None if not recorded."""
    recorded = run.history.per_client
    if recorded is None:
        return None
    order = sort_worst_first(clients)[: WORST_CLIENTS if len(clients) > MAX_CLIENTS else None]
    reported = recorded.constraint.max(axis=2)
    length = max(1, -(-len(reported) // MAX_COLUMNS))
    columns = -(-len(reported) // length)
    place = np.full(len(clients), -1)
    place[order] = np.arange(len(order))
    column = np.broadcast_to(np.arange(len(reported))[:, None] // length, reported.shape)
    counted = np.isfinite(reported) & (place[recorded.clients] >= 0)
    cells = place[recorded.clients[counted]] * columns + column[counted]
    total, count = (np.bincount(cells, w, len(order) * columns) for w in (reported[counted], None))
    mean = np.where(count > 0, total / np.maximum(count, 1), np.nan).reshape(len(order), columns)
    excess = mean - run.about["tolerance"]
    # The colours cover most values: a few of the first rounds may be outliers.
    limit = (float(np.nanquantile(np.abs(excess), 0.95)) if np.isfinite(excess).any() else 1.0) or 1
    # Blue below the bound, orange above it and transparent at it, for light and dark pages.
    below, above = to_rgba(BLUE)[:3], to_rgba(VERMILLION)[:3]
    ends = list(zip((0, 0.5, 0.5, 1), [(*below, 0.7), (*below, 0.0), (*above, 0.0), (*above, 0.95)], strict=True))
    colours = LinearSegmentedColormap.from_list("diverging", ends)

    def draw(figure: Figure, panels: list[Axes], wide: bool) -> None:
        (axes,) = panels
        extent = (0, columns * length, len(order) - 0.5, -0.5)
        style: dict[str, Any] = {"aspect": "auto", "interpolation": "none", "cmap": colours}
        axes.imshow(excess, vmin=-limit, vmax=limit, extent=extent, **style)
        axes.set_yticks(range(len(order)), [_shorten(clients[i].name, 30 if wide else 14) for i in order])
        _format_axis(axes.xaxis, format_number)
        axes.set_xlabel("round")
        axes.grid(visible=False)

    return _draw_twice(draw, key, (0.8 + 0.24 * len(order),))


def plot_comparison(runs: list[Run], key: str = "comparison") -> Picture:
    """Plot F and G of several runs on all training rows, one colour per run."""
    colours = (BLUE, VERMILLION, GREEN, PURPLE, GREY, AMBER)

    def draw(figure: Figure, panels: list[Axes], wide: bool) -> None:
        for axes, value in zip(panels, ("objective", "constraint"), strict=True):
            for i, run in enumerate(runs):
                style = ("-", "--", ":")[i // len(colours) % 3]
                values = getattr(run.history.full, value)
                label, colour = _shorten(run.name, 40), colours[i % len(colours)]
                _plot_curve(axes, run.history.full_rounds, values, colour, label, linestyle=style)
            axes.set_title(f"worst client's {value}", loc="left", fontsize="medium")
        for level in sorted({run.about["tolerance"] for run in runs}):
            _plot_bound(panels[1], level)
        add_legend(figure, panels, columns=3 if wide else 1)

    return _draw_twice(draw, key, (2.6, 2.6))


def _draw_twice(
    draw: Callable[[Figure, list[Axes], bool], None],
    key: str,
    heights: Sequence[float],
    tips: Mapping[str, str] | None = None,
) -> Picture:
    """Draw a chart with the first two panels side by side for a wide page, and one below the other for a phone."""
    pictures = {}
    for wide in (True, False):
        with matplotlib.rc_context({"font.size": 10 if wide else 9, "axes.grid": True, "grid.linewidth": 0.6}):
            paired = wide and len(heights) > 1
            rows = heights[paired:]
            figure = Figure(figsize=(WIDE if wide else NARROW, sum(rows) + 0.5), layout="constrained")
            grid = figure.add_gridspec(len(rows), 1 + paired, height_ratios=rows)
            places: list[Any] = [grid[0, 0], grid[0, 1]] if paired else []
            places += [grid[i, :] for i in range(paired, len(rows))]
            axes = [figure.add_subplot(place) for place in places]
            for panel in axes:
                panel.spines[["top", "right"]].set_visible(False)
                panel.set_axisbelow(True)
            draw(figure, axes, wide)
            name = "wide" if wide else "narrow"
            pictures[name] = render_svg(figure, f"{key}-{name}", tips)
    return pictures


def _format_axis(axis: Any, write: Callable[[float], str]) -> None:
    axis.set_major_formatter(FuncFormatter(lambda value, _: write(value)))


def _plot_curve(axes: Axes, x: Any, y: Any, colour: str, label: str, **style: Any) -> None:
    thin = slice(None, None, max(1, len(x) // MAX_POINTS))
    values = np.asarray(y, dtype=float)[thin]
    axes.plot(np.asarray(x)[thin], np.where(np.isfinite(values), values, np.nan), color=colour, label=label, **style)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    _format_axis(axes.xaxis, format_number)
    axes.set_xlabel("round")


def _plot_bound(axes: Axes, level: float) -> None:
    axes.axhline(level, color=BLACK, linestyle="--", linewidth=1, label="bound")


def _shorten(name: str, length: int) -> str:
    """Shorten a name, and escape dollar signs, which matplotlib interprets as mathematics."""
    return (name if len(name) <= length else f"{name[: length - 1]}…").replace("$", r"\$")
