"""Comparisons of an answer: a lower bound on the optimum, the start, constant predictions, unconstrained models.

A model is useful if it beats the best constant prediction beyond the sampling error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from softswitch.methods.base import Method
from softswitch.methods.weighting import trimmed_max, winsorised_mean
from softswitch.oracles.base import Evaluation
from softswitch.problem.parameters import Params
from softswitch.results.json_numbers import JsonRecord, replace_non_finite
from softswitch.results.status import Diagnostic
from softswitch.results.status import DiagnosticCode as Code
from softswitch.support.text import format_number, format_percent, format_value, join_first

# Names of baselines
START = "the start"
CONSTANT = "best constant prediction"
UNCONSTRAINED_WORST = "no constraint, worst client"

START_MARGIN = 1e-9  # relative margin by which F must be below that of the start
CONSTANT_MARGIN = 1e-3  # relative margin by which F must be below that of a constant prediction

FALSE_ALARMS, MISSES = "false_alarm_rate", "miss_rate"
_WORDS = {  # by metric: what happens to the rows at the model, and what the constant prediction does to all of them
    FALSE_ALARMS: ("are called positive", "calls all of them positive"),
    MISSES: ("are missed", "misses all of them"),
}


@dataclass(frozen=True, eq=False)
class LowerBound:
    """A lower bound on F*, the smallest worst-client objective of any parameters within the tolerance.

    Attributes:
        value: The bound; −∞ if there is none.
        objective: F of the answer on all training data.
        tolerance: The tolerance ε in the definition of F*.
        feasible: Whether the answer meets the tolerance and is in the domain. If not, ``objective`` may be below F*.
        certified: Whether the bound is rigorous: the problem is declared convex, and no check contradicted that.
            Otherwise it is an estimate.
        reason: Why the bound is rigorous or an estimate, or why there is none.
        assumptions: What is assumed in addition to convexity; empty if nothing is.
        weights: Weights p of the clients' objectives in the Lagrangian, shape (clients,).
        multipliers: Multipliers μ of the constraints, clients × constraints; 1 × constraints if they are pooled.
        subtracted: Margin that was subtracted from ``value`` for an inexact minimum and for rounding.
        rows: Number of rows evaluated to compute the bound; a Hessian of d parameters counts d times.
    """

    value: float
    objective: float
    tolerance: float
    feasible: bool
    certified: bool
    reason: str
    assumptions: str
    weights: np.ndarray
    multipliers: np.ndarray
    subtracted: float
    rows: int

    @property
    def gap(self) -> float:
        """The optimality gap ``objective − value``; ∞ without a bound."""
        return self.objective - self.value

    @property
    def relative_gap(self) -> float:
        """The gap divided by ``value``; ∞ if that is not positive."""
        return self.gap / self.value if self.value > 0 else math.inf

    def __str__(self) -> str:
        """Describe the gap and the bound in one clause, without a full stop."""
        if not math.isfinite(self.value):
            return f"no bound: {self.reason}"
        kind = f"({'certified' if self.certified else 'estimated'}: {self.reason})"
        if not self.feasible:
            least = f"the optimum is {'at least' if self.certified else 'about'} {format_value(self.value)} {kind}"
            reason = "is above the tolerance or outside the domain, and may be below the optimum"
            return f"{least}; the answer has {format_value(self.objective)}, but {reason}"
        gap, share = max(self.gap, 0.0), max(self.relative_gap, 0.0)
        written = f"{gap:.3g}" if share > 10 else f"{100 * share:.2g}%" if share < 0.995 else f"{100 * share:.0f}%"
        return f"{'at most' if self.certified else 'about'} {written} above the optimum {kind}"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields except arrays, the gap and the description for JSON, with None for infinite numbers."""
        numbers = {name: value for name, value in vars(self).items() if not isinstance(value, np.ndarray)}
        return dict(replace_non_finite(numbers | {"gap": self.gap, "description": str(self)}))


@dataclass(frozen=True)
class Baseline(JsonRecord):
    """The values of a model on all training data, for comparison with an answer.

    If the method is robust, F and G are trimmed, and the mean is winsorised.

    Attributes:
        name: Name of the model, such as "the start".
        objective: F, the worst client's objective.
        mean_objective: The clients' mean objective; −∞ if no client has one.
        constraint: G, the largest constraint of any client.
        violating: Number of clients above the tolerance, without trimming.
        feasible: Whether G, or the pooled constraint if the method switches on it, is at most the tolerance.
        params: Parameters of the model; None if they were not kept. They are not saved.
    """

    name: str
    objective: float
    mean_objective: float
    constraint: float
    violating: int
    feasible: bool
    params: Params | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, name: str, evaluation: Evaluation, method: Method, params: Params | None = None) -> Baseline:
        """Summarise a model's values at every client; ``method`` has the tolerance and the number of trimmed ones."""
        worst = evaluation.constraint.max(axis=1)
        has_values = not np.isneginf(evaluation.objective).all()
        return cls(
            name=name,
            objective=trimmed_max(evaluation.objective, method.robust),
            mean_objective=winsorised_mean(evaluation.objective, method.robust) if has_values else -math.inf,
            constraint=trimmed_max(evaluation.constraint, method.robust),
            violating=int((~(worst <= method.tolerance)).sum()),
            feasible=evaluation.is_feasible(method),
            params=params,
        )


@dataclass(frozen=True)
class Usefulness(JsonRecord):
    """A comparison of a model with the best constant prediction.

    Miss rates and false-alarm rates are compared at the worst client, other metrics by their mean over the clients.
    """

    is_useful: bool  # better than the constant beyond the sampling error, or no constant prediction meets the bound
    metric: str  # "false_alarm_rate", "miss_rate", "error_rate" or "loss"
    worst: float  # value at the worst client
    mean: float  # mean over the clients
    constant: float  # value of the constant prediction, at the worst client or on average
    upper: float  # upper limit of the compared value; of a mean: constant − lower limit of the paired difference
    confidence: float  # of that limit
    worst_client: str  # label of the worst client as text; empty if all rows were pooled
    errors: int  # at the worst client; 0 if the metric is a loss
    rows: int  # of the worst client
    condition: str = ""  # the rows that a rate refers to, such as "disease = 0"; empty if all
    prediction: str = ""  # the constant, such as "disease = 1"; empty if it is a probability or a number
    not_judged: tuple[str, ...] = ()  # clients with too few rows, with their errors and rows: "va (9 of 12)"
    constant_is_feasible: bool = True  # whether the constant prediction meets the bound
    is_held_out: bool = True  # whether the rows were held out; training rows favour the model

    @property
    def constant_prediction(self) -> str:
        """The constant prediction in words, such as "always predicting disease = 1"."""
        return f"always predicting {self.prediction}" if self.prediction else "the best constant prediction"

    def describe(self, noun: str = "client") -> str:
        """Return the comparison as a sentence; ``noun`` is the name of a client, such as "hospital"."""
        text = self._describe_rate(noun) if self.metric in _WORDS else self._describe_mean(noun)
        if not self.constant_is_feasible:
            text += " No constant prediction meets the bound."
        return text if self.is_held_out else f"On training rows: {text[0].lower()}{text[1:]}"

    def _describe_rate(self, noun: str) -> str:
        worst = f"At the worst {noun}{' with enough rows' if self.not_judged else ''}"
        where = f"{worst} ({self.worst_client})" if self.worst_client else "Over all rows"
        happens, does = _WORDS[self.metric]
        level = f"with {format_percent(self.confidence)} confidence"
        count = f"{self.errors:,} of {self.rows:,}; at most {format_percent(self.upper)} {level}"
        rate = f"{format_percent(self.worst)} of the rows with {self.condition} {happens} ({count})"
        others = f" Too few rows to judge {join_first(list(self.not_judged), 3)}." if self.not_judged else ""
        return f"{where}, {rate}; {self.constant_prediction} {does}.{others}"

    def _describe_mean(self, noun: str) -> str:
        write = format_percent if self.metric.endswith("_rate") else format_number
        name = self.metric.replace("_", " ")
        level = f"with {format_percent(self.confidence)} confidence"
        if self.upper < self.constant:
            gain = f"an improvement of at least {write(self.constant - self.upper)} {level}"
        elif self.mean < self.constant:
            gain = "a difference within the sampling error"
        else:
            gain = "no improvement"
        values = f"The {name} at the average {noun} is {write(self.mean)}"
        text = f"{values}, compared with {write(self.constant)} for {self.constant_prediction}"
        worst = f" At the worst {noun} ({self.worst_client}) it is {write(self.worst)}." if self.worst_client else ""
        return f"{text}: {gain}.{worst}"


def tabulate_baselines(answer: Baseline, others: Sequence[Baseline], clients: int) -> list[str]:
    """Return a plain-text table of an answer and its baselines, line by line; ``clients`` is the number of clients."""
    rows = [["", "F", "mean", "G", "clients violating"]]
    for model in (answer, *others):
        numbers = map(format_number, (model.objective, model.mean_objective, model.constraint))
        rows.append([model.name, *numbers, f"{model.violating:,} of {clients:,}"])
    widths = [max(len(row[c]) for row in rows) for c in range(len(rows[0]))]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]


def find_baseline(name: str, baselines: Sequence[Baseline]) -> Baseline | None:
    """Return the first baseline with that name; None if there is none."""
    return next((baseline for baseline in baselines if baseline.name == name), None)


def compare_with_trivial(
    answer: Baseline, baselines: Sequence[Baseline], usefulness: Usefulness | None = None
) -> list[Diagnostic]:
    """Return a diagnostic for each of the start and the constant prediction that is feasible and as good as the answer.

    ``usefulness`` decides about the constant. Default: None, and F on training rows decides.
    """
    longer = "Run longer, or omit step_size to have it chosen automatically"
    features = "raise the tolerance, or check that the features predict the label"
    if usefulness is not None:
        if usefulness.is_useful:
            return []
        return [Diagnostic(Code.NO_BETTER_THAN_CONSTANT, usefulness.describe().rstrip("."), features.capitalize())]
    checked = (
        (START, Code.NO_BETTER_THAN_START, START_MARGIN, longer),
        (CONSTANT, Code.NO_BETTER_THAN_CONSTANT, CONSTANT_MARGIN, f"{longer}; if that does not help, {features}"),
    )
    diagnostics = []
    for name, code, margin, advice in checked:
        trivial = find_baseline(name, baselines)
        if trivial is None or not trivial.feasible:
            continue
        ours, theirs = answer.objective, trivial.objective
        if ours >= theirs - margin * abs(theirs):
            values = f"F = {format_value(theirs)}, the answer {format_value(ours)}"
            diagnostics.append(Diagnostic(code, f"{name} is feasible and has {values}", advice, True))
    return diagnostics
