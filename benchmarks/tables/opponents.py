"""What others reach on a case: scikit-learn, Fairlearn, and the library's own baselines with their settings tuned.

All are judged alike, by the reference's functions of the rows' scores (the log odds). Those that are tuned get the
choice that is best on the very rows it is judged by.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import optax
from scipy import special
from sklearn.linear_model import LogisticRegression

import softswitch as ss
from benchmarks import flat
from benchmarks.tables.cases import Case
from benchmarks.tables.reference import SAFE, Logistic, smallest_objective

ROUNDS = 1000
PENALTIES = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
STEPS = (0.01, 0.05)
DUAL_STEPS = (0.01, 0.1, 1.0)
TIGHTER = (1.0, 0.5, 0.25)
"""Primal–dual bounds the clients' mean: a smaller tolerance may bring the worst client within the true one."""


@dataclass(frozen=True)
class Judged:
    """What an opponent reaches.

    Attributes:
        name: who.
        objective: F.
        constraint: G.
        violating: how many clients' constraints are broken.
    """

    name: str
    objective: float
    constraint: float
    violating: int


class Judge:
    """A case's rows, to judge scores by."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.rows = Logistic.of(case)
        self.columns, self.client = case.columns()
        kinds = self.rows.constraints.weights
        self.owner = self.client[kinds.indices[kinds.indptr[:-1]]]

    def judge(self, name: str, score: np.ndarray) -> Judged:
        """F, G and the clients violating, of these log odds."""
        bounds = self.rows.constraints.values(score, self.rows.y)
        over = (bounds > self.case.tolerance).reshape(-1, len(self.owner)).any(axis=0)
        worst = float(self.rows.objectives.values(score, self.rows.y).max())
        return Judged(name, worst, float(bounds.max()), len(np.unique(self.owner[over])))

    def result(self, name: str, result: ss.Result) -> Judged:
        """Those of a run's logistic regression."""
        (layer,) = result.params
        w = np.append(np.asarray(layer["w"], float)[:, 0], np.asarray(layer["b"], float))
        return self.judge(name, self.rows.x @ w)


def opponents(case: Case) -> list[Judged]:
    """All that apply to the case's kind."""
    judge = Judge(case)
    found = [*sklearn(judge), penalty(judge), primal_dual(judge)]
    return found + ([fairlearn(judge)] if case.kind in ("demographic-parity", "equal-opportunity") else [])


def sklearn(judge: Judge) -> list[Judged]:
    """Logistic regression on all rows together; as it is, and with a + b·score in place of its score.

    The latter's a and b are the best there are under the constraint.
    """
    model = LogisticRegression(C=1e6, max_iter=5000).fit(judge.columns["x"], judge.columns["y"])
    score = model.decision_function(judge.columns["x"]).astype(float)
    rows = judge.rows
    line = Logistic(np.column_stack([score, np.ones(len(score))]), rows.y, rows.objectives, rows.constraints)
    a_and_b = smallest_objective(line, np.zeros(2), judge.case.tolerance - SAFE)
    return [
        judge.judge("scikit-learn", score),
        judge.judge("scikit-learn, its score stretched and shifted", line.x @ a_and_b),
    ]


def fairlearn(judge: Judge) -> Judged:
    """Exponentiated gradient with the gap bounded at every client, the clients being its control feature.

    It bounds the gap of decisions, not of probabilities. What is judged is the mean of its models' probabilities by
    their weights, since the decisions themselves have no finite cross-entropy.
    """
    from fairlearn.reductions import DemographicParity, ExponentiatedGradient, TruePositiveRateParity

    gap = {"demographic-parity": DemographicParity, "equal-opportunity": TruePositiveRateParity}[judge.case.kind]
    # It bounds each group's distance from all rows together: two groups may then be twice as far apart.
    method = ExponentiatedGradient(
        LogisticRegression(C=1e6, max_iter=1000), gap(difference_bound=judge.case.tolerance / 2), max_iter=30
    )
    x = judge.columns["x"].astype(float)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        method.fit(x, judge.columns["y"], sensitive_features=judge.columns["group"], control_features=judge.client)
    chance = sum(
        weight * method.predictors_[index].predict_proba(x)[:, 1]
        for index, weight in method.weights_.items()
        if weight > 0
    )
    return judge.judge("Fairlearn", special.logit(np.clip(chance, 1e-12, 1 - 1e-12)))


def penalty(judge: Judge) -> Judged:
    """The library's penalty method with Adam, the best of a grid."""
    methods = [
        ss.Penalty(penalty=price, step_size=_falling(step), tolerance=judge.case.tolerance, optimizer=optax.adam)
        for price, step in product(PENALTIES, STEPS)
    ]
    return _best(judge, "penalty, tuned", methods)


def primal_dual(judge: Judge) -> Judged:
    """The library's primal–dual method with Adam, the best of a grid."""
    methods = [
        ss.PrimalDual(
            multiplier=1.0,
            dual_step_size=dual,
            step_size=_falling(0.05),
            tolerance=factor * judge.case.tolerance,
            optimizer=optax.adam,
        )
        for dual, factor in product(DUAL_STEPS, TIGHTER)
    ]
    return _best(judge, "primal–dual, tuned", methods)


def _falling(step: float) -> Any:
    return optax.cosine_decay_schedule(step, ROUNDS)


def _best(judge: Judge, name: str, methods: list[Any]) -> Judged:
    """The smallest F of those within the tolerance; where none is, the smallest G."""
    problem, clients = judge.case.make()
    swept = flat.sweep(
        problem, clients, methods, seeds=1, rounds=ROUNDS, batch_size=None, answer="last", eval_every=0, progress=False
    )
    tried = [judge.result(name, runs[0]) for runs in swept.results]
    feasible = [one for one in tried if one.constraint <= judge.case.tolerance]
    if feasible:
        return min(feasible, key=lambda one: one.objective)
    return min(tried, key=lambda one: one.constraint)
