"""Final F and G of each method over its grid, and the tuned baselines of the comparison."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from softswitch.methods.base import Method
from softswitch_experiments.paper.experiment import Claim, Outcome, Row, Scale
from softswitch_experiments.paper.study import Point, Scheme, Study, answer_rows, last_iterates, mean, values_of
from softswitch_experiments.plotting import (
    GREY,
    METHODS,
    add_legend,
    make_narrow_panels,
    plot_error_bars,
    plot_tolerance,
    sequential_colours,
    set_log_scale,
)

NEAR = 1.25
"""A setting is good if it meets the tolerance with an F of at most this multiple of the best of all methods."""
Setting = tuple[float, float, float]
Trials = dict[Setting, list[Point]]


@lru_cache
def run_grid(study: Study, method: str, scheme: Scheme, scale: Scale) -> Trials:
    """Return the last iterates, one per seed, for every setting (value, second value, step size) of a grid."""
    grid = study.grids[method]
    values, second_values = grid.values, grid.second_values
    if scale.quick:
        values, second_values = tuple(sorted({grid.paper, grid.values[-2]})), grid.second_values[:2]
    few = replace(scale, seeds=min(scale.seeds, study.tuning_seeds))
    settings = [(value, second, step) for value in values for second in second_values for step in study.steps]
    # With one evaluation, the compiled program of the comparison is reused.
    runs = study.run({repr(s): grid.make(*s) for s in settings}, scheme, few, evaluations=1)
    return {s: last_iterates(runs[repr(s)], study.tasks(few.seeds)) for s in settings}


def find_best(study: Study, method: str, scheme: Scheme, scale: Scale) -> Method | None:
    """Return the method with the smallest F among the settings whose G meets the tolerance, if any."""
    trials = run_grid(study, method, scheme, scale)
    feasible = [s for s in trials if mean(trials[s], "worst_constraint") <= study.tolerance]
    if not feasible:
        return None
    return study.grids[method].make(*min(feasible, key=lambda s: mean(trials[s], "worst_objective")))


def run(study: Study, scale: Scale) -> Outcome:
    """Run every setting of every grid."""
    title = f"{study.title}: how much tuning each method needs (last iterates over its grid)"
    height = len(study.grids)
    figure, axes = make_narrow_panels(height * len(study.schemes(scale)), 2, title, height=2.2)
    rows: list[Row] = []
    claims: list[Claim] = []
    for i, scheme in enumerate(study.schemes(scale)):
        panels = axes[i * height : (i + 1) * height]
        panels[0, 0].set_title(f"F  ({scheme.name})")
        panels[0, 1].set_title(f"G  ({scheme.name})")
        trials = {method: run_grid(study, method, scheme, scale) for method in study.grids}
        for pair, (method, settings) in zip(panels, trials.items(), strict=True):
            _draw(study, pair, method, settings)
            grid = study.grids[method]
            for setting, points in settings.items():
                named = zip((grid.symbol, grid.second, "η"), setting, strict=True)
                text = ", ".join(f"{key} = {value:g}" for key, value in named if key)
                rows += answer_rows(points, scheme=scheme.name, method=method, setting=text)
        claims.append(_claim(trials, scheme, study.tolerance))
    for panel in axes[:, 1]:
        plot_tolerance(panel, study.tolerance)
    add_legend(figure, axes[:, 1], columns=5)
    return Outcome(figure, {"answers": rows}, tuple(claims))


def _draw(study: Study, pair: Any, method: str, trials: Trials) -> None:
    grid = study.grids[method]
    second_values = sorted({second for _, second, _ in trials})
    colours = sequential_colours(len(second_values)) if len(second_values) > 1 else [METHODS[method]]
    for colour, second in zip(colours, second_values, strict=True):
        for step, line in zip(study.steps, ("-", ":"), strict=False):
            settings = sorted(s for s in trials if s[1:] == (second, step))
            label = f"{method}, η = {step:g}" + (f", {grid.second} = {second:g}" if grid.second else "")
            for panel, name in zip(pair, ("worst_objective", "worst_constraint"), strict=True):
                values = [values_of(trials[s], name) for s in settings]
                plot_error_bars(panel, [s[0] for s in settings], values, colour, label, line)
    for panel in pair:
        panel.axvline(grid.paper, color=GREY, linewidth=0.8, label="the paper's value")
        panel.set(xscale="log", xlabel=f"{grid.symbol}  ({method})")
        set_log_scale(panel)


def _claim(trials: dict[str, Trials], scheme: Scheme, limit: float) -> Claim:
    """Test the paper's "no delicate tuning" by the widest range of its own parameter over which a method is good."""
    level = {
        method: {
            s: mean(points, "worst_objective") if mean(points, "worst_constraint") <= limit else np.inf
            for s, points in settings.items()
        }
        for method, settings in trials.items()
    }
    smallest = min(value for values in level.values() for value in values.values())
    width = {method: good_range(values, NEAR * smallest) for method, values in level.items()}
    measured = "; ".join(
        f"{method} {width[method]:.2f} decades, {np.isfinite(list(values.values())).mean():.0%} of its grid meets G"
        for method, values in level.items()
    )
    return Claim(
        f"{scheme.name}: Softmax SGM is good (G met, F within {NEAR - 1:.0%} of the best of all) over the widest "
        "stretch of its own parameter, at its best other settings",
        bool(np.isfinite(smallest)) and width["Softmax SGM"] > max(width["Penalty"], width["Primal-dual"]),
        measured,
    )


def good_range(level: dict[Setting, float], limit: float) -> float:
    """Return the longest range of the first setting, in powers of ten, with a level of at most ``limit``.

    The second setting and the step size are those with the longest range.
    """
    longest = 0.0
    for line in {s[1:] for s in level}:
        start = None
        for value in sorted(s[0] for s in level if s[1:] == line):
            if not (level[(value, *line)] <= limit and np.isfinite(level[(value, *line)])):
                start = None
                continue
            start = value if start is None else start
            longest = max(longest, float(np.log10(value / start)))
    return longest
