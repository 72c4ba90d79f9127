"""Robust to E? Softmax SGM over the local steps, with γ = η/E and γ = η, on all rows and on drawn ones."""

from __future__ import annotations

from typing import Any

from softswitch.support.plotting import BLUE, VERMILLION, dots, legend, narrow_panels, tolerance
from softswitch_experiments.paper.experiment import Claim, Experiment, Outcome, Row, Scale
from softswitch_experiments.paper.np_readings import DRAWN, WHOLE
from softswitch_experiments.paper.np_study import SOFTMAX, STUDY, TOLERANCE
from softswitch_experiments.paper.readings import Reading, meets
from softswitch_experiments.paper.study import Point, Way, answer_rows, averages, lasts, mean

STEPS = (1, 2, 5, 10, 20)
SHARE = 0.5
NEAR = 1.25
"""F may differ by this factor over E."""
DATA = {"all rows": WHOLE, "32 drawn": DRAWN}
LOCAL = {"γ = η/E": True, "γ = η": False}
COLOURS = {"γ = η/E": BLUE, "γ = η": VERMILLION}
Swept = dict[int, dict[str, list[Point]]]


def run(scale: Scale) -> Outcome:
    """The paper's setting with each E under each reading; the quick version has one point."""
    data = scale.pick(DATA, {"32 drawn": DRAWN})
    local = scale.pick(LOCAL, {"γ = η": False})
    title = f"Softmax SGM over local steps E (m/n = {scale.pick(SHARE, 1):g})\n— w̄   ┄ last iterate"
    figure, axes = narrow_panels(2, len(data), title)
    rows: list[Row] = []
    claims: list[Claim] = []
    for column, (which, batches) in zip(axes.T, data.items(), strict=True):
        for gamma, divided in local.items():
            name = f"{which}, {gamma}"
            swept = {e: _at(e, name, batches, divided, scale) for e in scale.pick(STEPS, (1,))}
            _draw(column, swept, gamma)
            rows += [
                row
                for e, iterates in swept.items()
                for iterate, points in iterates.items()
                for row in answer_rows(points, reading=name, E=e, iterate=iterate)
            ]
            claims += [claim(name, iterate, {e: own[iterate] for e, own in swept.items()}) for iterate in ("w̄", "last")]
        column[0].set(title=f"F: {which}")
        column[1].set(title=f"G: {which}", xlabel="E")
        tolerance(column[1], TOLERANCE)
    for panel in axes.flat:
        panel.set(xscale="log", xticks=STEPS, xticklabels=[str(e) for e in STEPS], ylim=(0, None))
        panel.minorticks_off()
    legend(figure, axes[:, 0], columns=3)
    return Outcome(figure, {"answers": rows}, tuple(claims))


def _at(e: int, name: str, batches: dict[str, Any], divided: bool, scale: Scale) -> dict[str, list[Point]]:
    reading = Reading(name, Way(f"E = {e}", e, scale.pick(SHARE, 1.0)), batches, divided)
    looks = scale.pick(0, 1)
    results = STUDY.runs({name: reading.of(SOFTMAX)}, reading.way, scale, evaluations=looks, **batches)[name]
    return {"w̄": averages(results), "last": lasts(results, STUDY.tasks(scale.seeds))}


def _draw(column: Any, swept: Swept, gamma: str) -> None:
    for panel, number in zip(column, ("worst_objective", "worst_constraint"), strict=True):
        for iterate, line in (("w̄", "-"), ("last", ":")):
            values = [[getattr(point, number) for point in own[iterate]] for own in swept.values()]
            dots(panel, list(swept), values, COLOURS[gamma], gamma if iterate == "w̄" else None, line)


def claim(name: str, iterate: str, points: dict[int, list[Point]]) -> Claim:
    """Robust: G is met for every E, and F hardly depends on E."""
    levels = {e: mean(own, "worst_objective") for e, own in points.items()}
    met = all(meets([point.worst_constraint for point in own], TOLERANCE) for own in points.values())
    told = ", ".join(f"E = {e}: F {levels[e]:.3f}, G {mean(own, 'worst_constraint'):.3f}" for e, own in points.items())
    return Claim(
        f"{name}, {iterate}: robust to E, G <= {TOLERANCE} for every E and F within {NEAR - 1:.0%} of its smallest",
        met and max(levels.values()) <= NEAR * min(levels.values()),
        told,
    )


EXPERIMENT = Experiment(
    "local-steps-readings", "Softmax SGM over E with γ = η/E and γ = η, on all rows and on drawn ones", run, seeds=20
)
