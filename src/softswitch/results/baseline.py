"""Other models beside an answer, trivial ones and such as keep no constraint: what is the answer worth?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from softswitch.methods.base import Method
from softswitch.methods.trimming import mean_within, worst_but
from softswitch.oracles.base import Evaluation
from softswitch.problem.parameters import Params
from softswitch.results.diagnostic import Diagnostic, DiagnosticCode
from softswitch.support.text import in_words, number

START = "the start"
CONSTANT = "best constant prediction"
UNCONSTRAINED_WORST = "no constraint, worst client"
UNCONSTRAINED_MEAN = "no constraint, mean client"

EQUAL = 1e-9
"""An answer whose F is not smaller than the start's by this share has gained nothing,"""
HARDLY_BETTER = 1e-3
"""and one that is not better than a constant by this share is not worth its features."""


@dataclass(frozen=True)
class Baseline:
    """How good a model is on all training data, to be put beside an answer.

    Attributes:
        name: which model it is.
        objective: F, the worst client's objective.
        mean_objective: the mean client's.
        constraint: G, the largest constraint of any client.
        violating: how many clients are above the tolerance.
        feasible: whether it meets what the rule is held to.
        params: the model itself, where it was kept; files do not hold it.
    """

    name: str
    objective: float
    mean_objective: float
    constraint: float
    violating: int
    feasible: bool
    params: Params | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, name: str, judged: Evaluation, method: Method, params: Params | None = None) -> Baseline:
        """From what every client has.

        Args:
            name: what it is called in tables.
            judged: its objective and constraints at every client.
            method: says by which criterion and tolerance it is judged.
            params: its parameters, to be kept with it; None: they are not.
        """
        worst = judged.constraint.max(axis=1)
        known = judged.objective[~np.isneginf(judged.objective)]
        within = not np.isnan(worst).any()
        if judged.pooled is not None and method.switches_on == "pooled":
            feasible = within and float(judged.pooled.max()) <= method.tolerance
        else:
            feasible = worst_but(judged.constraint, method.robust) <= method.tolerance
        return cls(
            name=name,
            objective=worst_but(judged.objective, method.robust),
            mean_objective=mean_within(judged.objective, method.robust) if len(known) else -math.inf,
            constraint=worst_but(judged.constraint, method.robust),
            violating=int((~(worst <= method.tolerance)).sum()),
            feasible=bool(feasible),
            params=params,
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain numbers and words, for JSON: what is not finite is None."""
        told = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name != "params"}
        return {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in told.items()}

    @classmethod
    def from_dict(cls, told: dict[str, Any]) -> Baseline:
        """From ``to_dict``; what was not finite is NaN.

        Args:
            told: what ``to_dict`` gave.
        """
        known: dict[str, Any] = {}
        for entry in (entry for entry in fields(cls) if entry.name != "params"):
            known[entry.name] = math.nan if told[entry.name] is None else told[entry.name]
        return cls(**known)


def side_by_side(answer: Baseline, others: Sequence[Baseline], clients: int) -> list[str]:
    """The answer and the other models as lines of a table."""
    rows = [["", "F", "mean", "G", "clients violating"]]
    for one in (answer, *others):
        numbers = (number(value) for value in (one.objective, one.mean_objective, one.constraint))
        rows.append([one.name, *numbers, f"{one.violating:,} of {clients:,}"])
    widths = [max(len(row[c]) for row in rows) for c in range(len(rows[0]))]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]


def find_baseline(name: str, among: Sequence[Baseline]) -> Baseline | None:
    """The one of that name, where there is one."""
    return next((one for one in among if one.name == name), None)


def compare_with_trivial(
    answer: Baseline, among: Sequence[Baseline], costs: Sequence[float] | None = None
) -> list[Diagnostic]:
    """Where an answer is no better than a trivial model that is feasible.

    Args:
        answer: the answer,
        among: and the models beside it.
        costs: of the answer and the constant, where they are not to be compared by F.
    """
    found = [_no_better_than_start(answer, find_baseline(START, among))]
    found.append(_no_better_than_constant(answer, find_baseline(CONSTANT, among), costs))
    return [finding for finding in found if finding is not None]


def _no_better_than_start(answer: Baseline, start: Baseline | None) -> Diagnostic | None:
    if start is None or not start.feasible or not _at_least(answer.objective, start.objective, EQUAL):
        return None
    return Diagnostic(
        DiagnosticCode.NO_BETTER_THAN_START,
        f"the start is feasible and has F = {in_words(start.objective)}, the answer {in_words(answer.objective)}",
        "Run longer, or leave step_size out: it is then chosen",
        suggests_more_rounds=True,
    )


def _no_better_than_constant(
    answer: Baseline, constant: Baseline | None, costs: Sequence[float] | None
) -> Diagnostic | None:
    if constant is None:
        return None
    own, other = (answer.objective, constant.objective) if costs is None else costs
    if not constant.feasible or not _at_least(own, other, HARDLY_BETTER):
        return None
    what = "F =" if costs is None else "the rate that the bound is paid with at"
    return Diagnostic(
        DiagnosticCode.NO_BETTER_THAN_CONSTANT,
        f"one and the same prediction for every row is feasible and has {what} {in_words(other)}, the answer "
        f"{in_words(own)}",
        "Run longer or leave step_size out; if that does not help, raise the tolerance, or look whether the features "
        "tell anything of the label",
        suggests_more_rounds=True,
    )


def _at_least(value: float, other: float, share: float) -> bool:
    return value >= other - share * abs(other)
