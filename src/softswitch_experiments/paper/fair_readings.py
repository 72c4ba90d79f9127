"""Adult with every method tuned on equal terms, judged at the worst client and on all data, as the paper's server does.

In both ways to take part; and with local epochs that are passes over a client's rows rather than gradient steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from softswitch.results.result import Result
from softswitch_experiments.paper.adult_study import PARTIAL, STUDY, TOLERANCE, penalty, primal_dual, softmax
from softswitch_experiments.paper.experiment import Experiment, Outcome, Scale
from softswitch_experiments.paper.readings import Contender, Contest, Reading, contested, steps_of_passes
from softswitch_experiments.paper.study import Point, StudyTask, Way, lasts
from softswitch_experiments.tasks.fair_classification import accuracy_and_gap

ADAM_STEPS = (0.001, 0.003)
ALPHAS = (1.0, 10.0, 100.0, 1.0, 10.0, 100.0)
CRITERIA = (*["pooled"] * 3, *["softmax"] * 3)
"""What the switch looks at, beside each α."""
PENALTIES = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0)
MULTIPLIERS = ((0.1, 0.01), (1.0, 0.01), (10.0, 0.01), (0.1, 0.1), (1.0, 0.1), (10.0, 0.1))
"""μ₀ and η_d."""
AT_WORST, ON_ALL = "G at the worst client", "G on all data together"


def on_all_data(results: Sequence[Result], own: Sequence[StudyTask]) -> list[Point]:
    """Last iterates with the one gap that the paper's server computes, that of all clients' data put together."""
    found = []
    for result, task, point in zip(results, own, lasts(results, own), strict=True):
        gap = accuracy_and_gap(result.last, task.train)["probability_gap"]
        found.append(Point(point.objective, np.array([gap]), TOLERANCE))
    return found


CONTENDERS = (
    *(Contender(method, method, lasts, AT_WORST) for method in STUDY.rules),
    *(Contender(f"{method}, all data", method, on_all_data, ON_ALL) for method in STUDY.rules),
)


@lru_cache
def contest(quick: bool) -> Contest:
    """The three methods with six values of their own and two steps of Adam each; the quick version has one of each."""
    places, adam = ((1,), ADAM_STEPS[:1]) if quick else (tuple(range(6)), ADAM_STEPS)
    return Contest(
        study=STUDY,
        paper=STUDY.rules,
        grids={
            "Softmax SGM": {
                f"α = {ALPHAS[i]:g}, {CRITERIA[i]} criterion, η = {s:g}": softmax(ALPHAS[i], s, criterion=CRITERIA[i])
                for i in places
                for s in adam
            },
            "Penalty": {f"ρ = {PENALTIES[i]:g}, η = {s:g}": penalty(PENALTIES[i], s) for i in places for s in adam},
            "Primal-dual": {
                f"μ₀ = {MULTIPLIERS[i][0]:g}, η_d = {MULTIPLIERS[i][1]:g}, η = {s:g}": primal_dual(*MULTIPLIERS[i], s)
                for i in places
                for s in adam
            },
        },
        contenders=CONTENDERS,
        tuning_seeds=5,
    )


READINGS = {way.name: Reading(way.name, way) for way in (STUDY.full, STUDY.partial)}
PASSES = 2
"""The paper's E, as passes."""


def run(scale: Scale) -> Outcome:
    """Both ways to take part, a local epoch being a step; the quick version has the first."""
    readings = [READINGS[way.name] for way in STUDY.ways(scale)]
    return contested(contest(scale.quick), readings, STUDY.title, scale)


def run_passes(scale: Scale) -> Outcome:
    """Local epochs as passes over a client's rows, at settings chosen where they are steps; quick: two steps again."""
    rows = int(STUDY.tasks(1)[0].train.sizes.max())
    count = scale.pick(steps_of_passes(PASSES, rows, STUDY.batch_size), PARTIAL.local_steps)
    way = Way(f"E = {PASSES} passes, {count} steps", count, PARTIAL.participation)
    # Tuned and judged at the worst client, and at the paper's setting Softmax SGM alone: a run takes half a minute.
    softmax_only = {method: STUDY.rules[method] for method in ("Softmax SGM",)}
    every = contest(scale.quick)
    every.tune(READINGS[PARTIAL.name], scale)  # all contenders at once; what follows finds it done
    few = replace(every, paper=softmax_only, contenders=every.contenders[:3])
    passes = {Reading(f"{PASSES} passes", way, {"replace": False}): READINGS[PARTIAL.name]}
    return contested(few, passes, f"Adult, local epochs as passes: {way.name}, m/n = {way.participation:g}", scale)


EXPERIMENT = Experiment(
    "fair-readings",
    "Adult: every method tuned on equal terms, G at the worst client and on all data together",
    run,
    seeds=10,
    group="fair readings",
)
PASSES_EXPERIMENT = Experiment(
    "fair-passes",
    "Adult: local epochs as passes over a client's rows, every method tuned",
    run_passes,
    seeds=10,
    group="fair readings",
)
