"""Adult with every method tuned on equal terms: IID clients, local epochs as passes, and clients by occupation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from softswitch.methods.base import Method
from softswitch.results.result import Result
from softswitch_experiments.paper.adult_study import FULL, PARTIAL, STUDY, TOLERANCE, penalty, primal_dual, softmax
from softswitch_experiments.paper.experiment import Experiment, Outcome, Scale
from softswitch_experiments.paper.fair_noniid import VARIANT
from softswitch_experiments.paper.readings import Contender, Contest, Reading, count_steps, run_contest
from softswitch_experiments.paper.study import Point, Scheme, StudyTask, last_iterates
from softswitch_experiments.tasks.fair_classification import accuracy_and_gap

ADAM_STEPS = (0.001, 0.003)
ALPHAS: Sequence[float] = (1.0, 10.0, 100.0, 1.0, 10.0, 100.0)
CRITERIA: Sequence[str] = (*["pooled"] * 3, *["softmax"] * 3)
"""Criterion of the switch for each α."""
PENALTIES: Sequence[float] = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0)
MULTIPLIERS: Sequence[tuple[float, float]] = (
    (0.1, 0.01),
    (1.0, 0.01),
    (10.0, 0.01),
    (0.1, 0.1),
    (1.0, 0.1),
    (10.0, 0.1),
)
"""μ₀ and η_d."""
AT_WORST, ON_ALL = "G at the worst client", "G on all data together"
READINGS = {scheme.name: Reading(scheme.name, scheme) for scheme in (STUDY.full, STUDY.partial)}
PASSES = 2
"""The paper's E, as passes over the data."""

OCCUPATION_ALPHAS: Sequence[float] = (10.0, 30.0, 100.0)
OCCUPATION_PENALTIES: Sequence[float] = (2.0, 3.0, 5.0)
OCCUPATION_MULTIPLIERS: Sequence[tuple[float, float]] = ((1.0, 0.01), (3.0, 0.01), (3.0, 0.1))
OCCUPATION_READINGS = tuple(Reading(f"B_ζ = {rows}", FULL, {"value_batch_size": rows}) for rows in (128, 1024))
OCCUPATION_METHODS = {**STUDY.methods, "Softmax SGM": softmax(1.0)}
"""With the softmax criterion, since the pooled one does not see single occupations."""


def evaluate_pooled(results: Sequence[Result], tasks: Sequence[StudyTask]) -> list[Point]:
    """Return last iterates with the gap on the pooled data of all clients, as the paper's server computes it."""
    points = []
    for result, task, point in zip(results, tasks, last_iterates(results, tasks), strict=True):
        gap = accuracy_and_gap(result.last, task.train)["probability_gap"]
        points.append(Point(point.objective, np.array([gap]), TOLERANCE))
    return points


CONTENDERS = (
    *(Contender(method, method, last_iterates, AT_WORST) for method in STUDY.methods),
    *(Contender(f"{method}, all data", method, evaluate_pooled, ON_ALL) for method in STUDY.methods),
)


def _baseline_grids(
    penalties: Sequence[float], multipliers: Sequence[tuple[float, float]], adam: Sequence[float]
) -> Mapping[str, Mapping[str, Method]]:
    return {
        "Penalty": {f"ρ = {rho:g}, η = {s:g}": penalty(rho, s) for rho in penalties for s in adam},
        "Primal-dual": {
            f"μ₀ = {mu:g}, η_d = {dual:g}, η = {s:g}": primal_dual(mu, dual, s)
            for mu, dual in multipliers
            for s in adam
        },
    }


@lru_cache
def make_contest(quick: bool) -> Contest:
    """Return the three methods with six parameter values and two Adam steps each, or one of each."""
    part, adam = (slice(1, 2), ADAM_STEPS[:1]) if quick else (slice(None), ADAM_STEPS)
    return Contest(
        study=STUDY,
        paper=STUDY.methods,
        grids={
            "Softmax SGM": {
                f"α = {alpha:g}, {criterion} criterion, η = {s:g}": softmax(alpha, s, criterion=criterion)
                for alpha, criterion in zip(ALPHAS[part], CRITERIA[part], strict=True)
                for s in adam
            },
            **_baseline_grids(PENALTIES[part], MULTIPLIERS[part], adam),
        },
        contenders=CONTENDERS,
        tuning_seeds=5,
    )


def make_occupation_contest(part: slice = slice(None), adam: Sequence[float] = ADAM_STEPS) -> Contest:
    """Return the three methods on clients by occupation, with three parameter values and two Adam steps."""
    return Contest(
        study=STUDY,
        paper=OCCUPATION_METHODS,
        grids={
            "Softmax SGM": {f"α = {a:g}, η = {s:g}": softmax(a, s) for a in OCCUPATION_ALPHAS[part] for s in adam},
            **_baseline_grids(OCCUPATION_PENALTIES[part], OCCUPATION_MULTIPLIERS[part], adam),
        },
        contenders=tuple(Contender(method, method, last_iterates) for method in OCCUPATION_METHODS),
        tuning_seeds=5,
        variant=VARIANT,
    )


def run(scale: Scale) -> Outcome:
    """Tune and compare with both schemes, a local epoch being a step; the quick version has the first."""
    readings = [READINGS[scheme.name] for scheme in STUDY.schemes(scale)]
    return run_contest(make_contest(scale.quick), readings, STUDY.title, scale)


def run_passes(scale: Scale) -> Outcome:
    """Compare with local epochs as passes over a client's rows, at settings tuned with epochs as steps."""
    rows = int(STUDY.tasks(1)[0].train.sizes.max())
    count = scale.pick(count_steps(PASSES, rows, STUDY.batch_size), PARTIAL.local_steps)
    scheme = Scheme(f"E = {PASSES} passes, {count} steps", count, PARTIAL.participation)
    contest = make_contest(scale.quick)
    contest.tune(READINGS[PARTIAL.name], scale)  # all contenders at once; the result is cached
    # Only the worst client, and only Softmax SGM at the paper's setting: a run takes half a minute.
    paper = {"Softmax SGM": STUDY.methods["Softmax SGM"]}
    contest = replace(contest, paper=paper, contenders=contest.contenders[:3])
    passes = {Reading(f"{PASSES} passes", scheme, {"replace": False}): READINGS[PARTIAL.name]}
    title = f"Adult, local epochs as passes: {scheme.name}, m/n = {scheme.participation:g}"
    return run_contest(contest, passes, title, scale)


def run_occupations(scale: Scale) -> Outcome:
    """Compare with reports of 128 and of 1024 rows; the quick version has the first and one setting per method."""
    contest = scale.pick(make_occupation_contest(), make_occupation_contest(slice(1, 2), ADAM_STEPS[:1]))
    readings = scale.pick(OCCUPATION_READINGS, OCCUPATION_READINGS[:1])
    return run_contest(contest, readings, "Adult, a client an occupation", scale)


EXPERIMENT = Experiment(
    "fair-readings",
    "Adult: every method tuned on equal terms, G at the worst client and on all data together",
    run,
    group="fair readings",
)
PASSES_EXPERIMENT = Experiment(
    "fair-passes",
    "Adult: local epochs as passes over a client's rows, every method tuned",
    run_passes,
    group="fair readings",
)
OCCUPATION_EXPERIMENT = Experiment(
    "fair-noniid-readings", "Adult by occupation: rows a report, every method tuned on equal terms", run_occupations
)
