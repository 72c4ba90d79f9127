"""The report's charts, each drawn twice: for a wide page and for a phone's."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from softswitch.results.folder import Run
from softswitch.results.report.client_states import ClientStanding, ClientVerdict, worst_first
from softswitch.support.plotting import BLUE, GREEN, GREY, PURPLE, VERMILLION
from softswitch.support.text import number

AMBER, DEEP_GREEN, FAINT, BLACK = "#96690a", "#00795a", "#a9b8c8", "#000000"
VARIABLES = {
    BLUE: "first",
    GREY: "quiet",
    GREEN: "third",
    PURPLE: "fourth",
    VERMILLION: "bad",
    AMBER: "unsure",
    DEEP_GREEN: "good",
    FAINT: "faint",
    BLACK: "text",
    "#b0b0b0": "line",
    "#cccccc": "line",
}
"""The page's variable for each colour that figures have."""
OWN_IDS = re.compile(r' id="[a-zA-Z0-9]+_\d+"')
"""Names that matplotlib gives to groups, the same in every figure."""
PLACES, DIGITS = re.compile(r' (?:d|x|y|transform)="[^"]*"'), re.compile(r"(\d+\.\d\d)\d+")
"""Where things are; a hundredth of a point is enough."""


def themed_svg(figure: Figure, key: str, tips: Mapping[str, str] | None = None) -> str:
    """The figure as an SVG element.

    Args:
        figure: it; its grounds are left out.
        key: tells it from the page's other figures: names in it are made of this.
        tips: what is told where the mouse rests on an artist, by its ``gid``.
    """
    figure.patch.set_visible(False)
    for axes in figure.axes:
        axes.patch.set_visible(False)
    stream = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": key}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # text is drawn by the browser, with its own letters
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = stream.getvalue()
    text = re.sub(r"<!--.*?-->", "", text[text.index("<svg") :], flags=re.DOTALL).strip()
    text = OWN_IDS.sub("", text)
    for gid, tip in (tips or {}).items():
        text = text.replace(f'<g id="{gid}">', f"<g><title>{escape(tip)}</title>")
    for colour, name in VARIABLES.items():
        text = re.sub(rf"{colour}(?![0-9a-f])", f"var(--{name})", text, flags=re.IGNORECASE)
    text = PLACES.sub(lambda places: DIGITS.sub(r"\1", places[0]), text)
    return re.sub(r'<svg([^>]*?) width="[^"]*"( height="[^"]*")?', r"<svg\1", text, count=1)


MOST_POINTS = 500
"""A curve of more points is thinned to about so many."""
MOST_COLUMNS = 100
"""The heat map's rounds are put together into at most so many columns."""
MOST_CLIENTS, WORST = 50, 20
"""More clients than this are summarised; so many of the worst are still shown each by itself."""
WIDE, PHONE = 10.8, 3.9
"""The widths in inches."""
COLOURS = {ClientVerdict.VIOLATES: VERMILLION, ClientVerdict.UNDECIDED: AMBER, ClientVerdict.MEETS: DEEP_GREEN}
Write = Callable[[float | None], str]


class Panels(NamedTuple):
    """A figure under way.

    Attributes:
        figure: it.
        axes: its panels.
        wide: whether it is for a wide page.
    """

    figure: Figure
    axes: list[Axes]
    wide: bool


class Picture(NamedTuple):
    """A chart for a wide page, and the same for a phone."""

    wide: str
    narrow: str


def curves(run: Run, key: str, names: Sequence[str], write: Write) -> Picture:
    """F and G against rounds, with the tolerance, and how often the switch let the objective be improved.

    Args:
        run: it.
        key: tells it from the page's other charts.
        names: what the objective and the constraint are called.
        write: a value of the constraint as people write it.
    """
    history, looked = run.history, run.history.full_rounds

    def draw(drawn: Panels) -> None:
        rounds = np.arange(len(history))
        for axes, seen, name in zip(drawn.axes, ("objective", "constraint"), names, strict=False):
            _curve(axes, rounds, getattr(history, seen), FAINT, "worst client, as reported", linewidth=1)
            _curve(axes, looked, getattr(history.full, seen), BLUE, "worst client, all training rows")
            mean = getattr(history.full, f"mean_{seen}")
            _curve(axes, looked, mean, GREY, "mean client, all training rows", linestyle=":")
            if history.held_out is not None:
                _curve(axes, looked, getattr(history.held_out, seen), GREEN, "worst client, other rows")
            axes.set_title(name, loc="left", fontsize="medium")
        drawn.axes[1].yaxis.set_major_formatter(FuncFormatter(lambda value, _: write(value)))
        _bound(drawn.axes[1], run.about["tolerance"])
        _switch(drawn.axes[2], history.feasible)
        _legend(drawn)

    return _twice(draw, key, 3, heights=(2.5, 2.5, 0.9))


def clients(run: Run, found: list[ClientStanding], key: str, name: str, write: Write) -> Picture:
    """Every client's constraint, the worst first, with the certificate's interval where there is one."""
    if len(found) > MOST_CLIENTS:
        return _sorted_clients(run, found, key, name, write)
    order = worst_first(found)[::-1]  # the first on top
    shown = [found[i] for i in order]
    tips = {f"client-{key}-{i}": _tip(one, write) for i, one in enumerate(shown)}

    def draw(drawn: Panels) -> None:
        axes = drawn.axes[0]
        for i, one in enumerate(shown):
            gid = f"client-{key}-{i}"
            if np.isfinite(one.constraint):
                axes.barh(i, one.constraint, height=0.62, color=FAINT, zorder=1)[0].set_gid(gid)
            if np.isfinite(one.estimate):
                colour = COLOURS[one.standing]
                low, high = (side if np.isfinite(side) else one.estimate for side in (one.lower, one.upper))
                axes.plot([low, high], [i, i], color=colour, linewidth=2, zorder=2)
                axes.plot([one.estimate], [i], color=colour, marker="o", markersize=6, zorder=3, gid=gid)
        axes.set_yticks(range(len(shown)), [_cut(one.name, 30 if drawn.wide else 14) for one in shown])
        for label, one in zip(axes.get_yticklabels(), shown, strict=True):
            label.set_color(COLOURS[one.standing])
        axes.set_ylim(-0.6, len(shown) - 0.4)
        axes.axvline(run.about["tolerance"], color=BLACK, linestyle="--", linewidth=1)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: write(value)))
        axes.xaxis.set_major_locator(MaxNLocator(8 if drawn.wide else 4))
        axes.set_xlabel(name)

    return _twice(draw, key, 1, heights=(0.9 + 0.28 * len(shown),), tips=tips)


def _sorted_clients(run: Run, found: list[ClientStanding], key: str, name: str, write: Write) -> Picture:
    """Very many clients as curves: what share of them is at most as high."""
    lines = {
        "training rows": (BLUE, [one.constraint for one in found]),
        "held-out rows": (GREEN, [one.estimate for one in found]),
        "the certificate's limit": (VERMILLION, [one.upper for one in found]),
    }

    def draw(drawn: Panels) -> None:
        axes = drawn.axes[0]
        for label, (colour, values) in lines.items():
            known = np.sort([value for value in values if np.isfinite(value)])
            if len(known):
                at = np.unique(np.linspace(0, len(known) - 1, MOST_POINTS).round().astype(int))
                axes.plot((at + 1) / len(known), known[at], color=colour, label=label)
        _bound(axes, run.about["tolerance"])
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: write(value)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
        axes.set_xlabel(f"share of the {len(found):,} clients, from the best on")
        axes.set_title(name, loc="left", fontsize="medium")
        _legend(drawn)

    return _twice(draw, key, 1, heights=(3.4,))


def heat_map(run: Run, found: list[ClientStanding], key: str) -> Picture | None:
    """The reported constraint over the rounds, of the worst clients where there are many; None: not recorded."""
    told = run.history.per_client
    if told is None:
        return None
    order = worst_first(found)[: WORST if len(found) > MOST_CLIENTS else None]
    reported = told.constraint.max(axis=2)
    length = max(1, -(-len(reported) // MOST_COLUMNS))
    columns = -(-len(reported) // length)
    place = np.full(len(found), -1)
    place[order] = np.arange(len(order))
    total, count = np.zeros((len(order), columns)), np.zeros((len(order), columns))
    column = np.broadcast_to(np.arange(len(reported))[:, None] // length, reported.shape)
    counted = np.isfinite(reported) & (place[told.clients] >= 0)
    np.add.at(total, (place[told.clients[counted]], column[counted]), reported[counted])
    np.add.at(count, (place[told.clients[counted]], column[counted]), 1)
    means = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    above = means - run.about["tolerance"]
    # The colours reach as far as most values: a few of the first rounds may be far off.
    reach = float(np.nanquantile(np.abs(above), 0.95)) if np.isfinite(above).any() else 1.0

    def draw(drawn: Panels) -> None:
        axes = drawn.axes[0]
        span = (0, columns * length, len(order) - 0.5, -0.5)
        axes.imshow(
            above,
            cmap=_diverging(),
            vmin=-reach or -1,
            vmax=reach or 1,
            aspect="auto",
            extent=span,
            interpolation="none",
        )
        axes.set_yticks(range(len(order)), [_cut(found[i].name, 30 if drawn.wide else 14) for i in order])
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
        axes.set_xlabel("round")
        axes.grid(visible=False)

    return _twice(draw, key, 1, heights=(0.8 + 0.24 * len(order),))


def comparison(runs: list[Run], key: str = "comparison") -> Picture:
    """F and G of several runs on all training rows, one colour a run."""
    colours = (BLUE, VERMILLION, GREEN, PURPLE, GREY, AMBER)
    levels = sorted({run.about["tolerance"] for run in runs})

    def draw(drawn: Panels) -> None:
        for axes, seen in zip(drawn.axes, ("objective", "constraint"), strict=True):
            for i, run in enumerate(runs):
                looked, values = run.history.full_rounds, getattr(run.history.full, seen)
                style = ("-", "--", ":")[i // len(colours) % 3]
                label = _cut(run.name, 40)
                _curve(axes, looked, values, colours[i % len(colours)], label, linestyle=style)
            axes.set_title(f"worst client's {seen}", loc="left", fontsize="medium")
        for level in levels:
            _bound(drawn.axes[1], level)
        _legend(drawn)

    return _twice(draw, key, 2, heights=(2.6, 2.6))


def _twice(
    draw: Callable[[Panels], None], key: str, many: int, *, heights: Sequence[float], tips: dict[str, str] | None = None
) -> Picture:
    """The chart for a wide page, where the first two panels are side by side, and for a phone, one below the other."""
    pictures = []
    for wide in (True, False):
        with rc_context({"font.size": 10 if wide else 9, "axes.grid": True, "grid.linewidth": 0.6}):
            beside = wide and many > 1
            high = sum(heights) - (heights[0] if beside else 0)
            figure = Figure(figsize=(WIDE if wide else PHONE, high + 0.5), layout="constrained")
            rows = list(heights[1:]) if beside else list(heights)
            grid = figure.add_gridspec(len(rows), 2 if beside else 1, height_ratios=rows)
            places: list[Any] = [grid[0, 0], grid[0, 1]] if beside else []
            places += [grid[i, :] for i in range(1 if beside else 0, len(rows))]
            panels = [figure.add_subplot(place) for place in places]
            for axes in panels:
                axes.spines[["top", "right"]].set_visible(False)
                axes.set_axisbelow(True)
            draw(Panels(figure, panels, wide))
            pictures.append(themed_svg(figure, f"{key}-{'wide' if wide else 'narrow'}", tips))
    return Picture(*pictures)


def _curve(axes: Axes, x: Any, y: Any, colour: str, label: str, **style: Any) -> None:
    thin = slice(None, None, max(1, len(x) // MOST_POINTS))
    known = np.asarray(y, dtype=float)[thin]
    axes.plot(np.asarray(x)[thin], np.where(np.isfinite(known), known, np.nan), color=colour, label=label, **style)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    axes.set_xlabel("round")


def _bound(axes: Axes, level: float) -> None:
    axes.axhline(level, color=BLACK, linestyle="--", linewidth=1, label="bound")


def _switch(axes: Axes, feasible: np.ndarray) -> None:
    """In each part of the rounds the share that improved the objective."""
    parts = np.array_split(feasible.astype(float), min(MOST_COLUMNS, max(1, len(feasible))))
    edges = np.cumsum([0, *(len(part) for part in parts)])
    shares = [float(part.mean()) if len(part) else 0.0 for part in parts]
    axes.stairs(shares, edges, fill=True, color=FAINT)
    axes.set_ylim(0, 1)
    axes.set_yticks([0, 1], ["0%", "100%"])
    axes.set_ylabel("feasible")
    axes.set_xlabel("round")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))


def _legend(drawn: Panels) -> None:
    """One legend below, each label once."""
    found: dict[str, Any] = {}
    for axes in drawn.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    columns = 3 if drawn.wide else 1
    drawn.figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=columns, frameon=False)


def _diverging() -> LinearSegmentedColormap:
    """Blue below the bound and orange above; nothing at it, so that the page shows through, whatever its theme."""
    below, above = to_rgba(BLUE), to_rgba(VERMILLION)
    ends = [(*below[:3], 0.7), (*below[:3], 0.0), (*above[:3], 0.0), (*above[:3], 0.95)]
    return LinearSegmentedColormap.from_list("diverging", list(zip((0, 0.5, 0.5, 1), ends, strict=True)))


def _tip(one: ClientStanding, write: Write) -> str:
    """What is told of a client where the mouse rests."""
    why = f" ({one.words})" if one.words else ""
    said = [f"{one.name}: {one.standing}{why}", f"training rows {write(one.constraint)}"]
    if np.isfinite(one.estimate):
        said.append(f"held-out rows {write(one.estimate)}, at most {write(one.upper)}")
    return "; ".join(said)


def _cut(name: str, most: int) -> str:
    """A name that leaves room for the chart; matplotlib would take dollar signs for mathematics."""
    return (name if len(name) <= most else f"{name[: most - 1]}…").replace("$", r"\$")
