"""Neyman–Pearson under several readings of the paper: every method tuned, and Softmax SGM over the local steps E."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar

from softswitch.methods.multipliers import PrimalDual
from softswitch.methods.penalties import Penalty
from softswitch_experiments.paper.experiment import Claim, Experiment, Outcome, Row, Scale
from softswitch_experiments.paper.np_study import COMMON, FULL, PARTIAL, SOFTMAX, STUDY, TOLERANCE, softmax
from softswitch_experiments.paper.readings import Contender, Contest, Reading, meets, run_contest
from softswitch_experiments.paper.study import Point, Scheme, answer_rows, averages, last_iterates, mean, values_of
from softswitch_experiments.plotting import (
    BLUE,
    VERMILLION,
    add_legend,
    make_narrow_panels,
    plot_error_bars,
    plot_tolerance,
)
from softswitch_experiments.tasks.paper_settings import steps

STEPS = (0.1, 0.2, 0.3, 0.5, 1.0, 1.5)
"""Step sizes of the paper, here for every method."""
ALPHAS = (10.0, 30.0, 100.0, 300.0, 1000.0, 6400.0, 64000.0)
PENALTIES = (2.5, 4.0, 6.0, 10.0, 15.0, 30.0, 60.0)
MULTIPLIERS = ((2.5, 0.01), (4.0, 0.01), (6.0, 0.01), (10.0, 0.01), (16.0, 0.01), (2.5, 0.1), (6.0, 0.1))
"""μ₀ and η_d."""
ALL_ROWS, DRAWN = {"batch_size": None}, {"batch_size": STUDY.batch_size}
FULL_READINGS = (Reading("all 22–23 rows", FULL, ALL_ROWS), Reading("32 drawn by class", FULL, DRAWN))
PARTIAL_READINGS = (
    Reading("all rows, γ = η/E", PARTIAL, ALL_ROWS, divided=True),
    Reading("all rows, γ = η", PARTIAL, ALL_ROWS),
    Reading("32 drawn, γ = η/E", PARTIAL, DRAWN, divided=True),
    Reading("32 drawn, γ = η", PARTIAL, DRAWN),
)
CONTENDERS = (
    Contender("Softmax SGM", "Softmax SGM", last_iterates),
    Contender("Softmax SGM, w̄", "Softmax SGM", lambda results, _: averages(results)),
    Contender("Penalty", "Penalty", last_iterates),
    Contender("Primal-dual", "Primal-dual", last_iterates),
)
LOCAL_STEPS = (1, 2, 5, 10, 20)
SHARE = 0.5
NEAR = 1.25
"""Largest ratio of F over E."""
BATCHES = {"all rows": ALL_ROWS, "32 drawn": DRAWN}
GAMMAS = {"γ = η/E": True, "γ = η": False}
COLOURS = {"γ = η/E": BLUE, "γ = η": VERMILLION}

Value = TypeVar("Value")


def make_contest(step_sizes: Sequence[float] = STEPS, indices: Sequence[int] = range(7)) -> Contest:
    """Return the three methods with up to seven parameter values and six step sizes each."""

    def pick(values: Sequence[Value]) -> list[Value]:
        return [values[index] for index in indices]

    return Contest(
        study=STUDY,
        paper=STUDY.methods,
        grids={
            "Softmax SGM": {f"α = {a:g}, η = {s:g}": softmax(a, s) for a in pick(ALPHAS) for s in step_sizes},
            "Penalty": {
                f"ρ = {rho:g}, η = {s:g}": Penalty(penalty=rho, **steps(s), **COMMON)
                for rho in pick(PENALTIES)
                for s in step_sizes
            },
            "Primal-dual": {
                f"μ₀ = {mu:g}, η_d = {dual:g}, η = {s:g}": PrimalDual(
                    multiplier=mu, dual_step_size=dual, **steps(s), **COMMON
                )
                for mu, dual in pick(MULTIPLIERS)
                for s in step_sizes
            },
        },
        contenders=CONTENDERS,
        tuning_seeds=10,
    )


def run(readings: tuple[Reading, ...], scale: Scale) -> Outcome:
    """Tune and compare the methods under every reading; the quick version has drawn batches and two settings."""
    readings = scale.pick(readings, FULL_READINGS[1:])
    contest = scale.pick(make_contest(), make_contest(STEPS[3:4], (3, 4)))
    return run_contest(contest, readings, f"Neyman–Pearson, {readings[0].scheme.name}", scale)


def run_local_steps(scale: Scale) -> Outcome:
    """Run the paper's setting with each E under each reading; the quick version has one point."""
    batches = scale.pick(BATCHES, {"32 drawn": DRAWN})
    gammas = scale.pick(GAMMAS, {"γ = η": False})
    title = f"Softmax SGM over local steps E (m/n = {scale.pick(SHARE, 1):g})\n— w̄   ┄ last iterate"
    figure, axes = make_narrow_panels(2, len(batches), title)
    rows: list[Row] = []
    claims: list[Claim] = []
    for column, (which, options) in zip(axes.T, batches.items(), strict=True):
        for gamma, divided in gammas.items():
            name = f"{which}, {gamma}"
            swept = {e: _run_reading(e, name, options, divided, scale) for e in scale.pick(LOCAL_STEPS, (1,))}
            for panel, attribute in zip(column, ("worst_objective", "worst_constraint"), strict=True):
                for iterate, line in (("w̄", "-"), ("last", ":")):
                    values = [values_of(points[iterate], attribute) for points in swept.values()]
                    plot_error_bars(panel, list(swept), values, COLOURS[gamma], gamma if iterate == "w̄" else None, line)
            for iterate in ("w̄", "last"):
                points = {e: iterates[iterate] for e, iterates in swept.items()}
                claims.append(robustness_claim(name, iterate, points))
            rows += [
                row
                for e, iterates in swept.items()
                for iterate, points in iterates.items()
                for row in answer_rows(points, reading=name, E=e, iterate=iterate)
            ]
        column[0].set(title=f"F: {which}")
        column[1].set(title=f"G: {which}", xlabel="E")
        plot_tolerance(column[1], TOLERANCE)
    for panel in axes.flat:
        panel.set(xscale="log", xticks=LOCAL_STEPS, xticklabels=[str(e) for e in LOCAL_STEPS], ylim=(0, None))
        panel.minorticks_off()
    add_legend(figure, axes[:, 0], columns=3)
    return Outcome(figure, {"answers": rows}, tuple(claims))


def _run_reading(e: int, name: str, batches: dict[str, Any], divided: bool, scale: Scale) -> dict[str, list[Point]]:
    reading = Reading(name, Scheme(f"E = {e}", e, scale.pick(SHARE, 1.0)), batches, divided)
    methods = {name: reading.apply(SOFTMAX)}
    results = STUDY.run(methods, reading.scheme, scale, evaluations=scale.pick(0, 1), **batches)[name]
    return {"w̄": averages(results), "last": last_iterates(results, STUDY.tasks(scale.seeds))}


def robustness_claim(name: str, iterate: str, points: dict[int, list[Point]]) -> Claim:
    """Test whether G is met for every E, and F hardly depends on E."""
    objective = {e: mean(one, "worst_objective") for e, one in points.items()}
    met = all(meets(values_of(one, "worst_constraint"), TOLERANCE) for one in points.values())
    return Claim(
        f"{name}, {iterate}: robust to E, G <= {TOLERANCE} for every E and F within {NEAR - 1:.0%} of its smallest",
        met and max(objective.values()) <= NEAR * min(objective.values()),
        ", ".join(f"E = {e}: F {objective[e]:.3f}, G {mean(one, 'worst_constraint'):.3f}" for e, one in points.items()),
    )


EXPERIMENT = Experiment(
    "np-readings",
    "E = 1, all clients: whole local data and drawn batches, every method tuned on equal terms",
    partial(run, FULL_READINGS),
    seeds=20,
)
PARTIAL_EXPERIMENT = Experiment(
    "np-readings-partial",
    "E = 5, half of the clients: whole and drawn, γ = η/E and γ = η, every method tuned on equal terms",
    partial(run, PARTIAL_READINGS),
    seeds=20,
)
LOCAL_STEPS_EXPERIMENT = Experiment(
    "local-steps-readings",
    "Softmax SGM over E with γ = η/E and γ = η, on all rows and on drawn ones",
    run_local_steps,
    seeds=20,
)
