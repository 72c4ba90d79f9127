"""The leaderboard as one page with figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from softswitch.support.plotting import panels
from softswitch_experiments.leaderboard.bench_method import BenchMethod
from softswitch_experiments.leaderboard.bench_task import BenchTask
from softswitch_experiments.leaderboard.contestants import DEFAULT
from softswitch_experiments.leaderboard.scheme import MAIN
from softswitch_experiments.leaderboard.standing import Ranking

NAMED = 6
"""So many methods have a name in the figure; the others are grey."""
BY = {"passes": "equal data passes", "bytes": "equal bytes sent"}


def write_page(
    folder: Path, cells: Sequence[dict[str, Any]], methods: Sequence[BenchMethod], tasks: Sequence[BenchTask]
) -> Path:
    """``leaderboard.md`` and its figures, of whatever cells there are.

    Args:
        folder: where to.
        cells: what was found.
        methods: in the order of the table.
        tasks: likewise.
    """
    lines = ["# Leaderboard", ""]
    for scheme in dict.fromkeys(cell["scheme"] for cell in cells):
        own = [cell for cell in cells if cell["scheme"] == scheme]
        for by, words in BY.items():
            standing = Ranking.of(own, by, {task.name: task.tolerance for task in tasks})
            lines += [f"## {scheme}, {words}", ""]
            if scheme == MAIN.name:
                lines += [f"![Profiles](profiles-{by}.png)", ""]
                draw_profiles(standing, folder / f"profiles-{by}.png", words)
            lines += [*table(standing), *in_words(standing), ""]
    lines += ["## Methods and what was tuned", "", *chosen(cells, methods)]
    path = folder / "leaderboard.md"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def table(standing: Ranking) -> Iterator[str]:
    """Mean merits above the best seen, in percent of the start's objective; the best and what is as good in bold."""
    ranks = standing.ranks()
    yield "| method | mean rank | " + " | ".join(standing.tasks) + " |"
    yield "|---|---|" + "---|" * len(standing.tasks)
    for m in np.argsort(ranks, kind="stable"):
        shown = []
        for t, good in enumerate(standing.leads(standing.methods[m])):
            mean = standing.means[m, t]
            text = _percent(mean)
            if np.isfinite(mean) and standing.violations[m, t].mean() > 0.01:
                text += "†"
            shown.append(f"**{text}**" if good and np.isfinite(mean) else text)
        yield f"| {standing.methods[m]} | {ranks[m]:.1f} | " + " | ".join(shown) + " |"
    yield ""
    yield "† breaks the bound by more than 1% of it, on average."
    yield ""


def in_words(standing: Ranking) -> Iterator[str]:
    """Who leads where, and whether ranks can be told apart."""
    ranks, apart = standing.ranks(), standing.critical_difference()
    first = int(np.argmin(ranks))
    yield (
        f"Best mean rank: {standing.methods[first]}, {ranks[first]:.1f}; mean ranks that differ by less than "
        f"{apart:.1f} cannot be told apart (Nemenyi, 5%)."
    )
    if DEFAULT in standing.methods:
        leads = standing.leads(DEFAULT)
        yield (
            f"{DEFAULT} is the best, or within the interval of the best, on {sum(leads)} of {len(leads)} tasks"
            + ("." if all(leads) else "; not on " + ", ".join(_behind(standing, leads)) + ".")
        )


def _behind(standing: Ranking, leads: Sequence[bool]) -> Iterator[str]:
    for task, (leading, best) in enumerate(zip(leads, standing.best, strict=True)):
        if not leading:
            low, high = standing.behind(DEFAULT, task, int(best))
            yield f"{standing.tasks[task]} ({standing.methods[best]} is ahead by {_percent(low)} to {_percent(high)})"


def chosen(cells: Sequence[dict[str, Any]], methods: Sequence[BenchMethod]) -> Iterator[str]:
    """Where each method is from, and what tuning chose for it on each task."""
    for method in methods:
        own = [cell for cell in cells if cell["method"] == method.name and cell["scheme"] == MAIN.name]
        if not own:
            continue
        yield f"**{method.name}** — {method.source}."
        if method.tuned:
            for cell in own:
                told = ", ".join(f"{name} {_number(value)}" for name, value in cell["settings"].items())
                yield f"    - {cell['task']}: {told}"
        yield ""


def draw_profiles(standing: Ranking, path: Path, words: str) -> None:
    """For each method the share of tasks on which it is within so much of the best seen."""
    within = np.geomspace(1e-3, 1.0, 200)
    shares = standing.profile(within)
    figure, ((panel,),) = panels(1, 1, words, width=8, height=4.6)
    order = np.argsort(-shares.mean(axis=1), kind="stable")
    for place, m in enumerate(order):
        name, default = standing.methods[m], standing.methods[m] == DEFAULT
        if place < NAMED or default:
            panel.plot(within, shares[m], label=name, linewidth=2.5 if default else 1.2)
        else:
            panel.plot(within, shares[m], color="0.8", zorder=1)
    panel.set(xscale="log", ylim=(0, 1.02), xlabel="merit above the best seen", ylabel="share of tasks")
    panel.legend(fontsize=8)
    figure.savefig(path, dpi=150)


def _percent(value: float) -> str:
    if np.isnan(value):
        return "–"
    return f"{100 * value:.1f}%" if np.isfinite(value) else "astray"


def _number(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
