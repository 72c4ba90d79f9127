"""How wide each method's good region is: final F and G over its grid. Also the tuned baselines of the comparison."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from softswitch.methods.base import Method
from softswitch.support.plotting import GREY, METHODS, dots, ladder, legend, log_values, narrow_panels, tolerance
from softswitch_experiments.paper.experiment import Claim, Outcome, Row, Scale
from softswitch_experiments.paper.study import Point, Study, Way, answer_rows, lasts, mean

NEAR = 1.25
"""A setting is good if it meets the tolerance with an F of at most so many times the best that any method reaches."""
Setting = tuple[float, float, float]
Tried = dict[Setting, list[Point]]


@lru_cache
def tried(study: Study, method: str, way: Way, scale: Scale) -> Tried:
    """Every setting of a method's grid (value, second value, step size): its last iterates, one a seed."""
    grid = study.grids[method]
    values, others = grid.values, grid.others
    if scale.quick:
        values, others = tuple(sorted({grid.paper, grid.values[-2]})), grid.others[:2]
    few = replace(scale, seeds=min(scale.seeds, study.tuning_seeds))
    settings = [(value, other, step) for value in values for other in others for step in study.steps]
    # One look at all data costs nothing, and makes it the program that the comparison runs anyway.
    found = study.runs({repr(s): grid.rule(*s) for s in settings}, way, few, evaluations=1)
    return {s: lasts(found[repr(s)], study.tasks(few.seeds)) for s in settings}


def best(study: Study, method: str, way: Way, scale: Scale) -> Method | None:
    """The setting with the smallest F among those whose G meets the tolerance, both as means over seeds; or None."""
    found = tried(study, method, way, scale)
    meeting = [s for s in found if mean(found[s], "worst_constraint") <= study.tolerance]
    if not meeting:
        return None
    return study.grids[method].rule(*min(meeting, key=lambda s: mean(found[s], "worst_objective")))


def run(study: Study, scale: Scale) -> Outcome:
    """F and G at the end of every setting of every grid."""
    title = f"{study.title}: how much tuning each method needs (last iterates over its grid)"
    many = len(study.grids)
    figure, axes = narrow_panels(many * len(study.ways(scale)), 2, title, height=2.2)
    rows: list[Row] = []
    claims: list[Claim] = []
    for w, way in enumerate(study.ways(scale)):
        own = axes[w * many : (w + 1) * many]
        own[0, 0].set_title(f"F  ({way.name})")
        own[0, 1].set_title(f"G  ({way.name})")
        found = {method: tried(study, method, way, scale) for method in study.grids}
        for pair, (method, settings) in zip(own, found.items(), strict=True):
            _draw(study, pair, method, settings)
            grid = study.grids[method]
            for setting, points in settings.items():
                named = zip((grid.symbol, grid.other, "η"), setting, strict=True)
                words = ", ".join(f"{key} = {value:g}" for key, value in named if key)
                rows += answer_rows(points, way=way.name, method=method, setting=words)
        claims.append(_claim(found, way, study.tolerance))
    for panel in axes[:, 1]:
        tolerance(panel, study.tolerance)
    legend(figure, axes[:, 1], columns=5)
    return Outcome(figure, {"answers": rows}, tuple(claims))


def _draw(study: Study, pair: Any, method: str, found: Tried) -> None:
    grid = study.grids[method]
    others = sorted({other for _, other, _ in found})
    colours = ladder(len(others)) if len(others) > 1 else [METHODS[method]]
    for colour, other in zip(colours, others, strict=True):
        for step, line in zip(study.steps, ("-", ":"), strict=False):
            settings = sorted(s for s in found if s[1:] == (other, step))
            beside = f", {grid.other} = {other:g}" if grid.other else ""
            for panel, name in zip(pair, ("worst_objective", "worst_constraint"), strict=True):
                values = [[getattr(point, name) for point in found[s]] for s in settings]
                dots(panel, [s[0] for s in settings], values, colour, f"{method}, η = {step:g}{beside}", line)
    for panel in pair:
        panel.axvline(grid.paper, color=GREY, linewidth=0.8, label="the paper's value")
        panel.set(xscale="log", xlabel=f"{grid.symbol}  ({method})")
        log_values(panel)


def _claim(found: dict[str, Tried], way: Way, limit: float) -> Claim:
    """The paper's "no delicate tuning": the widest stretch of its own parameter over which a method is good."""
    level = {
        method: {
            s: mean(points, "worst_objective") if mean(points, "worst_constraint") <= limit else np.inf
            for s, points in settings.items()
        }
        for method, settings in found.items()
    }
    smallest = min(value for values in level.values() for value in values.values())
    width = {method: decades(values, NEAR * smallest) for method, values in level.items()}
    told = "; ".join(
        f"{method} {width[method]:.2f} decades, {np.isfinite(list(values.values())).mean():.0%} of its grid meets G"
        for method, values in level.items()
    )
    return Claim(
        f"{way.name}: Softmax SGM is good (G met, F within {NEAR - 1:.0%} of the best of all) over the widest stretch "
        "of its own parameter, at its best other settings",
        bool(np.isfinite(smallest)) and width["Softmax SGM"] > max(width["Penalty"], width["Primal-dual"]),
        told,
    )


def decades(level: dict[Setting, float], limit: float) -> float:
    """The longest unbroken stretch of the first setting, in powers of ten, with a level of at most ``limit``.

    Over the second setting and the step size the best is taken.
    """
    longest = 0.0
    for line in {s[1:] for s in level}:
        begin = None
        for value in sorted(s[0] for s in level if s[1:] == line):
            if not (level[(value, *line)] <= limit and np.isfinite(level[(value, *line)])):
                begin = None
                continue
            begin = value if begin is None else begin
            longest = max(longest, float(np.log10(value / begin)))
    return longest
