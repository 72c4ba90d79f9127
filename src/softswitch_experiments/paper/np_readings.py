"""Neyman–Pearson under every reading of the paper, with every method tuned on equal terms."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TypeVar

from softswitch.methods.penalty import Penalty
from softswitch.methods.primal_dual import PrimalDual
from softswitch_experiments.paper.experiment import Experiment, Outcome, Scale
from softswitch_experiments.paper.np_study import COMMON, FULL, PARTIAL, STUDY, softmax
from softswitch_experiments.paper.readings import Contender, Contest, Reading, contested
from softswitch_experiments.paper.study import averages, lasts
from softswitch_experiments.tasks.paper_settings import steps

STEPS = (0.1, 0.2, 0.3, 0.5, 1.0, 1.5)
"""The paper's own choice of step sizes, here for every method."""
ALPHAS = (10.0, 30.0, 100.0, 300.0, 1000.0, 6400.0, 64000.0)
PENALTIES = (2.5, 4.0, 6.0, 10.0, 15.0, 30.0, 60.0)
MULTIPLIERS = ((2.5, 0.01), (4.0, 0.01), (6.0, 0.01), (10.0, 0.01), (16.0, 0.01), (2.5, 0.1), (6.0, 0.1))
"""μ₀ and η_d."""
WHOLE, DRAWN = {"batch_size": None}, {"batch_size": STUDY.batch_size}
FULL_READINGS = (Reading("all 22–23 rows", FULL, WHOLE), Reading("32 drawn by class", FULL, DRAWN))
PARTIAL_READINGS = (
    Reading("all rows, γ = η/E", PARTIAL, WHOLE, divided=True),
    Reading("all rows, γ = η", PARTIAL, WHOLE),
    Reading("32 drawn, γ = η/E", PARTIAL, DRAWN, divided=True),
    Reading("32 drawn, γ = η", PARTIAL, DRAWN),
)
CONTENDERS = (
    Contender("Softmax SGM", "Softmax SGM", lasts),
    Contender("Softmax SGM, w̄", "Softmax SGM", lambda results, _: averages(results)),
    Contender("Penalty", "Penalty", lasts),
    Contender("Primal-dual", "Primal-dual", lasts),
)

Value = TypeVar("Value")


def contest(step_sizes: Sequence[float] = STEPS, places: Sequence[int] = range(7)) -> Contest:
    """The three methods with seven values of their own and six step sizes each, or with some of them."""
    return Contest(
        study=STUDY,
        paper=STUDY.rules,
        grids={
            "Softmax SGM": {f"α = {a:g}, η = {s:g}": softmax(a, s) for a in _of(ALPHAS, places) for s in step_sizes},
            "Penalty": {
                f"ρ = {rho:g}, η = {s:g}": Penalty(penalty=rho, **steps(s), **COMMON)
                for rho in _of(PENALTIES, places)
                for s in step_sizes
            },
            "Primal-dual": {
                f"μ₀ = {mu:g}, η_d = {dual:g}, η = {s:g}": _primal_dual(mu, dual, s)
                for mu, dual in _of(MULTIPLIERS, places)
                for s in step_sizes
            },
        },
        contenders=CONTENDERS,
        tuning_seeds=10,
    )


def _of(values: Sequence[Value], places: Sequence[int]) -> list[Value]:
    return [values[place] for place in places]


def _primal_dual(multiplier: float, dual_step: float, step: float) -> PrimalDual:
    return PrimalDual(multiplier=multiplier, dual_step_size=dual_step, **steps(step), **COMMON)


def run(readings: tuple[Reading, ...], scale: Scale) -> Outcome:
    """Every method under every reading; the quick version has the drawn batches and two settings a method."""
    readings = scale.pick(readings, FULL_READINGS[1:])
    methods = scale.pick(contest(), contest(STEPS[3:4], (3, 4)))
    return contested(methods, readings, f"Neyman–Pearson, {readings[0].way.name}", scale)


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
