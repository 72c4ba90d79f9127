"""How wide each method's good region is: final F and G over its grid. Also the tuned baselines of the comparison."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from softswitch.paper.experiment import Claim, Experiment, Outcome, Row, Scale
from softswitch.paper.neyman_pearson import (
    TOLERANCE,
    Point,
    Way,
    answer_rows,
    lasts,
    mean,
    runs,
    tasks,
    ways,
)
from softswitch.plotting import GREY, METHODS, dots, ladder, legend, log_values, panels, tolerance
from softswitch.rules import Penalty, PrimalDual, Rule, SoftmaxSGM

STEPS = (0.1, 0.5)
NEAR = 1.25
"""A setting is good if it meets the tolerance with an F of at most so many times the best that any method reaches."""


@dataclass(frozen=True)
class Grid:
    """The settings to try of one method.

    Attributes:
        symbol: the setting along the x-axis.
        values: its values.
        paper: its value in the paper.
        other: the second setting, one line each, beside the step size.
        others: its values.
        rule: makes the rule from value, second value and step size.
    """

    symbol: str
    values: tuple[float, ...]
    paper: float
    other: str
    others: tuple[float, ...]
    rule: Callable[[float, float, float], Rule]


GRIDS = {
    "Softmax SGM": Grid(
        "α",
        (1, 10, 100, 1000, 6400, 64000),
        6400,
        "",
        (0.0,),
        lambda alpha, _, step: SoftmaxSGM(alpha=alpha, step_size=step, tolerance=TOLERANCE),
    ),
    "Penalty": Grid(
        "ρ",
        (0.5, 1, 2.5, 5, 10, 25, 50, 100),
        2.5,
        "",
        (0.0,),
        lambda rho, _, step: Penalty(penalty=rho, step_size=step, tolerance=TOLERANCE),
    ),
    "Primal-dual": Grid(
        "μ₀",
        (0.5, 2.5, 10, 25),
        2.5,
        "η_d",
        (0.001, 0.01, 0.1, 1.0),
        lambda mu, dual, step: PrimalDual(multiplier=mu, dual_step_size=dual, step_size=step, tolerance=TOLERANCE),
    ),
}
Setting = tuple[float, float, float]
Tried = dict[Setting, list[Point]]


@lru_cache
def tried(method: str, way: Way, scale: Scale) -> Tried:
    """Every setting of a method's grid: its last iterates, one a seed."""
    grid = GRIDS[method]
    values = scale.pick(grid.values, tuple(sorted({grid.paper, grid.values[-2]})))
    others = scale.pick(grid.others, grid.others[:2])
    settings = [(value, other, step) for value in values for other in others for step in STEPS]
    found = runs({repr(s): grid.rule(*s) for s in settings}, way, scale, evaluations=1)
    return {s: lasts(found[repr(s)], tasks(scale.seeds)) for s in settings}


def best(method: str, way: Way, scale: Scale) -> Rule | None:
    """The setting with the smallest F among those whose G meets the tolerance, both as means over seeds; or None."""
    found = tried(method, way, scale)
    meeting = [s for s in found if mean(found[s], "worst_constraint") <= TOLERANCE]
    if not meeting:
        return None
    return GRIDS[method].rule(*min(meeting, key=lambda s: mean(found[s], "worst_objective")))


def run(scale: Scale) -> Outcome:
    """F and G at the end of every setting of every grid."""
    title = "How much tuning each method needs: last iterates over its grid"
    figure, axes = panels(3, 2 * len(ways(scale)), title, width=3.7, height=2.7)
    rows: list[Row] = []
    claims: list[Claim] = []
    for w, way in enumerate(ways(scale)):
        columns = axes[:, 2 * w : 2 * w + 2]
        columns[0, 0].set_title(f"F  ({way.name})")
        columns[0, 1].set_title(f"G  ({way.name})")
        found = {method: tried(method, way, scale) for method in GRIDS}
        for panels_, (method, settings) in zip(columns, found.items(), strict=True):
            _draw(panels_, method, settings)
            for setting, points in settings.items():
                named = dict(zip((GRIDS[method].symbol, GRIDS[method].other or "-", "η"), setting, strict=True))
                rows += answer_rows(points, way=way.name, method=method, setting=_words(named))
        claims.append(_claim(found, way))
    for panel in axes[:, 1::2].flat:
        tolerance(panel, TOLERANCE)
    legend(figure, axes[:, 1], columns=5)
    return Outcome(figure, {"np-tuning": rows}, tuple(claims))


def _words(named: dict[str, float]) -> str:
    return ", ".join(f"{key} = {value:g}" for key, value in named.items() if key != "-")


def _draw(axes: Any, method: str, found: Tried) -> None:
    grid = GRIDS[method]
    others = sorted({other for _, other, _ in found})
    colours = ladder(len(others)) if len(others) > 1 else [METHODS[method]]
    for colour, other in zip(colours, others, strict=True):
        for step, line in zip(STEPS, ("-", ":"), strict=True):
            settings = sorted(s for s in found if s[1:] == (other, step))
            beside = f", {grid.other} = {other:g}" if grid.other else ""
            for panel, name in zip(axes, ("worst_objective", "worst_constraint"), strict=True):
                values = [[getattr(point, name) for point in found[s]] for s in settings]
                label = f"{method}, η = {step:g}{beside}"
                dots(panel, [s[0] for s in settings], values, colour, label, line)
    for panel in axes:
        panel.axvline(grid.paper, color=GREY, linewidth=0.8, label="the paper's value")
        panel.set(xscale="log", xlabel=f"{grid.symbol}  ({method})")
        log_values(panel)


def _claim(found: dict[str, Tried], way: Way) -> Claim:
    """The paper's "no delicate tuning": a larger share of its grid is good than of the others'."""
    meets = {
        method: {s: mean(points, "worst_objective") for s, points in settings.items() if _meets(points)}
        for method, settings in found.items()
    }
    smallest = min((value for values in meets.values() for value in values.values()), default=np.inf)
    share = {
        method: sum(value <= NEAR * smallest for value in values.values()) / len(found[method])
        for method, values in meets.items()
    }
    told = "; ".join(
        f"{method}: {share[method]:.0%} good, {len(values) / len(found[method]):.0%} meet the tolerance"
        for method, values in meets.items()
    )
    return Claim(
        f"{way.name}: Softmax SGM's good region (G met, F within {NEAR - 1:.0%} of the best) is the widest",
        share["Softmax SGM"] > max(share["Penalty"], share["Primal-dual"]),
        told,
    )


def _meets(points: list[Point]) -> bool:
    return mean(points, "worst_constraint") <= TOLERANCE


EXPERIMENT = Experiment("np-tuning", "final F and G of each method over its grid: how wide is the good region?", run)
