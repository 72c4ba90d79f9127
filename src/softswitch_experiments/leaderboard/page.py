"""The page of the leaderboard, with its figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from softswitch.support.files import open_atomically, write_atomically
from softswitch_experiments.leaderboard.methods import DEFAULT, BenchMethod
from softswitch_experiments.leaderboard.ranking import Ranking
from softswitch_experiments.leaderboard.tasks import MAIN, BenchTask
from softswitch_experiments.plotting import make_panels

NAMED_METHODS = 6
"""Number of methods with a name in the figure. All remaining methods are grey."""
BUDGETS = {"passes": "equal data passes", "bytes": "equal bytes sent"}


def write_page(
    folder: Path, cells: Sequence[dict[str, Any]], methods: Sequence[BenchMethod], tasks: Sequence[BenchTask]
) -> Path:
    """Write ``leaderboard.md`` and its figures for the given cells.

    Args:
        folder: Output folder.
        cells: The finished cells.
        methods: Methods in the order of the page.
        tasks: Tasks in the order of the page.
    """
    lines = ["# Leaderboard", ""]
    for scheme in dict.fromkeys(cell["scheme"] for cell in cells):
        scheme_cells = [cell for cell in cells if cell["scheme"] == scheme]
        for kind, title in BUDGETS.items():
            ranking = Ranking.from_cells(scheme_cells, kind, {task.name: task.tolerance for task in tasks})
            lines += [f"## {scheme}, {title}", ""]
            if scheme == MAIN.name:
                lines += [f"![Profiles](profiles-{kind}.png)", ""]
                draw_profiles(ranking, folder / f"profiles-{kind}.png", title)
            lines += [*render_table(ranking), *render_summary(ranking), ""]
    lines += ["## Methods and what was tuned", "", *render_settings(cells, methods)]
    path = folder / "leaderboard.md"
    write_atomically(path, ("\n".join(lines) + "\n").encode(), durable=False)
    return path


def render_table(ranking: Ranking) -> Iterator[str]:
    """Yield a table of mean merits above the best, in percent; the best and equally good ones are bold."""
    ranks = ranking.ranks()
    yield "| method | mean rank | " + " | ".join(ranking.tasks) + " |"
    yield "|---|---|" + "---|" * len(ranking.tasks)
    for m in np.argsort(ranks, kind="stable"):
        entries = []
        for t, leads in enumerate(ranking.leads(ranking.methods[m])):
            mean = ranking.means[m, t]
            text = _format_percent(mean)
            if np.isfinite(mean) and ranking.violations[m, t].mean() > 0.01:
                text += "†"
            entries.append(f"**{text}**" if leads and np.isfinite(mean) else text)
        yield f"| {ranking.methods[m]} | {ranks[m]:.1f} | " + " | ".join(entries) + " |"
    yield ""
    yield "† violates the bound by more than 1% of it, on average."
    yield ""


def render_summary(ranking: Ranking) -> Iterator[str]:
    """Yield the best mean rank, and the tasks on which the default leads."""
    ranks = ranking.ranks()
    first = int(np.argmin(ranks))
    yield (
        f"Best mean rank: {ranking.methods[first]}, {ranks[first]:.1f}. Mean ranks that differ by less than "
        f"{ranking.critical_difference():.1f} are not significantly different (Nemenyi, 5%)."
    )
    if DEFAULT in ranking.methods:
        leads = ranking.leads(DEFAULT)
        behind = [
            f"{task} ({ranking.methods[best]} is ahead by {_format_percent(low)} to {_format_percent(high)})"
            for t, (task, leading, best) in enumerate(zip(ranking.tasks, leads, ranking.best, strict=True))
            if not leading
            for low, high in [ranking.difference(DEFAULT, t, int(best))]
        ]
        yield (
            f"{DEFAULT} is the best, or within the interval of the best, on {sum(leads)} of {len(leads)} tasks"
            + (f"; not on {', '.join(behind)}." if behind else ".")
        )


def render_settings(cells: Sequence[dict[str, Any]], methods: Sequence[BenchMethod]) -> Iterator[str]:
    """Yield the source of each method and its tuned settings on each task."""
    for method in methods:
        method_cells = [cell for cell in cells if cell["method"] == method.name and cell["scheme"] == MAIN.name]
        if not method_cells:
            continue
        yield f"**{method.name}** — {method.source}."
        for cell in method_cells if method.tuned else ():
            settings = ", ".join(f"{name} {_format_number(value)}" for name, value in cell["settings"].items())
            yield f"    - {cell['task']}: {settings}"
        yield ""


def draw_profiles(ranking: Ranking, path: Path, title: str) -> None:
    """Draw for each method the share of tasks on which it is within a distance of the best."""
    levels = np.geomspace(1e-3, 1.0, 200)
    shares = ranking.profile(levels)
    figure, ((panel,),) = make_panels(1, 1, title, width=8, height=4.6)
    for position, m in enumerate(np.argsort(-shares.mean(axis=1), kind="stable")):
        name, is_default = ranking.methods[m], ranking.methods[m] == DEFAULT
        if position < NAMED_METHODS or is_default:
            panel.plot(levels, shares[m], label=name, linewidth=2.5 if is_default else 1.2)
        else:
            panel.plot(levels, shares[m], color="0.8", zorder=1)
    panel.set(xscale="log", ylim=(0, 1.02), xlabel="merit above the best seen", ylabel="share of tasks")
    panel.legend(fontsize=8)
    with open_atomically(path, durable=False) as stream:
        figure.savefig(stream, format="png", dpi=150)


def _format_percent(value: float) -> str:
    if np.isnan(value):
        return "–"
    return f"{100 * value:.1f}%" if np.isfinite(value) else "diverged"


def _format_number(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
