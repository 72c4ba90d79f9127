"""What a run gives back: the answer, what kind of answer it is, and how it came about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from softswitch.method.rules import Rule
from softswitch.problem.problem import Params
from softswitch.results.diagnosis import Finding
from softswitch.results.history import History
from softswitch.results.status import Status


@dataclass(frozen=True, eq=False)
class Result:
    """The outcome of ``solve``.

    Attributes:
        params: the answer: the mean of the feasible iterates w_k (before their steps). Without any it is the iterate
            with the smallest criterion, and ``status`` says so. ``selected`` says in words what it is.
        last: the last iterate (after a divergence the last finite one).
        best: among feasible rounds the iterate whose participants reported the smallest worst-client objective; None
            without feasible rounds. Chosen by noisy reports: it is not the smallest F on all data.
        selected: which iterate ``params`` is.
        status: how the run ended.
        diagnosis: what looks wrong with the run, and what to change; empty for a healthy one.
        history: round by round.
        client_objective: f_i of ``params`` on all of client i's training data.
        client_constraint: g_i likewise; clients × constraints.
        pooled_constraint: the constraint on all clients' data put together, one entry a constraint, where it was given
            as a ``PooledConstraint``; else None.
        names: the clients' labels.
        rule: the method and its settings.
        seed: of all random choices.
        seconds: wall time of the rounds, compilation included.
    """

    params: Params
    last: Params
    best: Params | None
    selected: str
    status: Status
    diagnosis: tuple[Finding, ...]
    history: History
    client_objective: np.ndarray
    client_constraint: np.ndarray
    pooled_constraint: np.ndarray | None
    names: tuple[Any, ...]
    rule: Rule
    seed: int
    seconds: float

    @property
    def worst_objective(self) -> float:
        """F(params) on all training data: the worst-off client's objective."""
        return float(self.client_objective.max())

    @property
    def worst_constraint(self) -> float:
        """G(params) on all training data: the largest constraint of any client."""
        return float(self.client_constraint.max())

    @property
    def violating(self) -> tuple[Any, ...]:
        """The labels of the clients whose constraint is above the tolerance on their training data, worst first."""
        worst = self.client_constraint.max(axis=1)
        worst = np.where(np.isnan(worst), np.inf, worst)  # a constraint that is NaN is not met
        order = np.argsort(-worst, kind="stable")
        return tuple(self.names[i] for i in order if worst[i] > self.rule.tolerance)

    def explain(self) -> str:
        """How the run ended, what the answer is, and what looks wrong with it, in words."""
        lines = [f"{self.status}.", f"The answer is the {self.selected.removeprefix('the ')}."]
        if not self.diagnosis:
            lines.append("Nothing looks wrong.")
        lines += [f"- {finding}" for finding in self.diagnosis]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return (
            f"Result({self.status.code}; worst objective {self.worst_objective:.4g}, "
            f"worst constraint {self.worst_constraint:.4g}, tolerance {self.rule.tolerance:g}; {self.selected})"
        )
