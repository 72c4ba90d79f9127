"""Adult with a client an occupation: how many rows a report takes, with every method tuned on equal terms."""

from __future__ import annotations

from collections.abc import Sequence

from softswitch_experiments.paper.adult_study import FULL, STUDY, penalty, primal_dual, softmax
from softswitch_experiments.paper.experiment import Experiment, Outcome, Scale
from softswitch_experiments.paper.fair_noniid import VARIANT
from softswitch_experiments.paper.readings import Contender, Contest, Reading, contested
from softswitch_experiments.paper.study import lasts

ADAM_STEPS = (0.001, 0.003)
ALPHAS = (10.0, 30.0, 100.0)
PENALTIES = (2.0, 3.0, 5.0)
MULTIPLIERS = ((1.0, 0.01), (3.0, 0.01), (3.0, 0.1))
"""μ₀ and η_d."""
READINGS = (
    Reading("B_ζ = 128", FULL, {"value_batch_size": 128}),
    Reading("B_ζ = 1024", FULL, {"value_batch_size": 1024}),
)
PAPER = {**STUDY.rules, "Softmax SGM": softmax(1.0)}
"""With the softmax criterion: the pooled one says nothing about single occupations."""


def contest(places: Sequence[int] = range(3), adam: Sequence[float] = ADAM_STEPS) -> Contest:
    """The three methods with three values of their own and two steps of Adam each, or with some of them."""
    return Contest(
        study=STUDY,
        paper=PAPER,
        grids={
            "Softmax SGM": {f"α = {ALPHAS[i]:g}, η = {s:g}": softmax(ALPHAS[i], s) for i in places for s in adam},
            "Penalty": {f"ρ = {PENALTIES[i]:g}, η = {s:g}": penalty(PENALTIES[i], s) for i in places for s in adam},
            "Primal-dual": {
                f"μ₀ = {MULTIPLIERS[i][0]:g}, η_d = {MULTIPLIERS[i][1]:g}, η = {s:g}": primal_dual(*MULTIPLIERS[i], s)
                for i in places
                for s in adam
            },
        },
        contenders=tuple(Contender(method, method, lasts) for method in PAPER),
        tuning_seeds=5,
        variant=VARIANT,
    )


def run(scale: Scale) -> Outcome:
    """Reports of 128 and of 1024 rows; the quick version has the first and one setting a method."""
    methods = scale.pick(contest(), contest((1,), (0.001,)))
    return contested(methods, scale.pick(READINGS, READINGS[:1]), "Adult, a client an occupation", scale)


EXPERIMENT = Experiment(
    "fair-noniid-readings", "Adult by occupation: rows a report, every method tuned on equal terms", run, seeds=10
)
