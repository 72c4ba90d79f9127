"""The registry of constraint kinds.

Settings, estimators, the command line and reports read everything about a kind from its entry. To add a kind, write a
function that builds its ``ProblemFunctions`` and add an entry to ``KINDS``. Builders import JAX only when called.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from softswitch.problem.choices import BINARY, MULTICLASS, NUMBER
from softswitch.results.descriptions import ConstraintDescription

if TYPE_CHECKING:
    import pandas as pd

    from softswitch.problem.problem import Problem
    from softswitch.tables.labels import Label

Function = Callable[..., Any]  # a function ``(params, batch) -> value``


@dataclass(frozen=True)
class ProblemFunctions:
    """The functions of ``(params, batch)`` that define a problem."""

    objective: Function
    constraint: Function
    surrogate: Function | None = None  # differentiable surrogate of a constraint without gradients
    range: Any = None  # range of the constraint on a single row; None if unknown
    cost: Function | None = None  # rate that a tighter bound increases, such as false alarms for misses
    private_surrogate: Function | None = None  # surrogate that is a mean over rows, for differential privacy
    is_convex_if_linear: bool = False  # whether the problem is convex for a linear model


@dataclass(frozen=True)
class ConstraintKind:
    """A kind of constraint, such as "miss-rate".

    ``sentence`` may contain {bound}, {points} (a difference of shares in percentage points), {positive} ("diagnosis =
    malignant"), {label} and {group} ("sex = F").
    """

    name: str  # value of the setting task.kind
    build: Callable[..., ProblemFunctions]  # function of the keywords label, loss, quantile and bound
    description: ConstraintDescription
    sentence: str  # the requirement, after "At every client,"
    label_types: tuple[str, ...] = (BINARY,)  # supported label types
    strata: str | tuple[str, ...] | None = None  # columns by which batches are stratified
    uses_groups: bool = False  # whether the constraint compares a protected group with all other rows
    default_bound: float | Callable[[pd.Series], float] = 0.1  # proposed by ``softswitch init``, from the label column
    constraint_names: Callable[[Any, Any], list[str]] | None = None  # from label and protected group, if several
    path: str | None = None  # key of ``thresholds.PATHS``; None: models are trained with the constraint
    objective: str = ""  # what a model with a ``path`` minimises, such as "false-alarm rate"

    def describe_bound(self, bound: float, *, client: str, label: str, positive: Any, group: str) -> str:
        """Return the requirement as a sentence; ``client`` and ``label`` are the names of the columns."""
        from softswitch.support.text import format_number

        points = f"{format_number(100 * bound)} percentage point{'s' * (bound != 0.01)}"
        positive = f"a positive {label}" if positive is None else f"{label} = {positive}"
        names = {"points": points, "positive": positive, "label": label, "group": group}
        return f"At every {client}, {self.sentence.format(bound=self.description.write(bound), **names)}"


KINDS: dict[str, ConstraintKind] = {}  # all registered kinds by name


def kind_names(*label_types: str) -> tuple[str, ...]:
    """Return the names of the kinds that support at least one of these label types."""
    return tuple(kind.name for kind in KINDS.values() if set(label_types) & set(kind.label_types))


@dataclass(frozen=True)
class BuiltProblem:
    """A problem, and the strata and functions that belong to its kind of constraint."""

    problem: Problem
    strata: str | tuple[str, ...] | None  # columns by which batches are stratified
    cost: Function | None  # as in ``ProblemFunctions``
    private_surrogate: Function | None  # as in ``ProblemFunctions``


def build_problem(
    kind: str,
    features: int,
    hidden: tuple[int, ...] = (),
    *,
    seed: int = 0,
    label: Label | None = None,
    loss: str | None = None,
    quantile: float | None = None,
    bound: float | None = None,
) -> BuiltProblem:
    """Build the problem of a kind for a network on tabular features.

    Args:
        kind: Name of the constraint kind.
        features: Number of features.
        hidden: Widths of the hidden layers. Default: (), a linear model.
        seed: Seed of the initial weights. Default: 0.
        label: The fitted label. Default: two classes, 0 and 1.
        loss: Loss of a numeric label. Default: "quantile" for coverage, else "squared".
        quantile: Quantile of the quantile loss. Default: 1 − ``bound`` for coverage, else 0.5.
        bound: Bound of the constraint, which only coverage uses. Default: None.
    """
    from softswitch.problem.problem import Problem
    from softswitch.tables.labels import BinaryLabel

    label = label or BinaryLabel(0, 1)
    names = kind_names(label.type)
    if kind not in names:
        accepted = f"{', '.join(names)} if the label type is {label.type!r}"
        raise ValueError(f"task.kind must be one of {accepted}, but is {kind!r}")
    entry = KINDS[kind]
    functions = entry.build(label=label, loss=loss, quantile=quantile, bound=bound)
    problem = Problem(
        functions.objective,
        functions.constraint,
        label.initial_network(features, hidden, seed),
        constraint_surrogate=functions.surrogate,
        constraint_range=functions.range,
        convex=True if functions.is_convex_if_linear and not hidden else None,
    )
    return BuiltProblem(problem, entry.strata, functions.cost, functions.private_surrogate)


def _binary(kind: str, **options: Any) -> ProblemFunctions:
    from softswitch.problem import fairness, networks, rates
    from softswitch.problem.ranges import ZERO_ONE

    score, probability, log_loss = networks.batch_scores, networks.predict_probability, networks.logistic_objective
    misses, false_alarms = networks.misses, networks.false_alarms
    miss_rate, false_alarm_rate = rates.miss_rate(score), rates.false_alarm_rate(score)
    errors = rates.error_rate(score)
    group_loss = fairness.bounded_group_loss(probability, 0.0)
    parity, opportunity = fairness.demographic_parity(probability), fairness.equal_opportunity(probability)
    return {
        "miss-rate": ProblemFunctions(false_alarms, *miss_rate, ZERO_ONE, false_alarm_rate.constraint, misses),
        "false-alarm-rate": ProblemFunctions(misses, *false_alarm_rate, ZERO_ONE, miss_rate.constraint, false_alarms),
        "error-rate": ProblemFunctions(log_loss, *errors, ZERO_ONE, errors.constraint, log_loss),
        "neyman-pearson": ProblemFunctions(false_alarms, misses, is_convex_if_linear=True),
        "decision-parity": ProblemFunctions(log_loss, *rates.decision_parity(score), ZERO_ONE),
        "decision-opportunity": ProblemFunctions(log_loss, *rates.decision_opportunity(score), ZERO_ONE),
        "group-loss": ProblemFunctions(log_loss, group_loss, range=fairness.cross_entropy_range()),
        "demographic-parity": ProblemFunctions(log_loss, parity, range=(0.0, 1.0)),
        "equal-opportunity": ProblemFunctions(log_loss, opportunity, range=(0.0, 1.0)),
    }[kind]


def _multiclass(kind: str, label: Label, **options: Any) -> ProblemFunctions:
    from softswitch.problem import networks
    from softswitch.problem.ranges import ZERO_ONE

    if label.type == BINARY:
        return _binary(kind)
    is_error = kind == "error-rate"
    rate = networks.class_error_rate() if is_error else networks.class_miss_rates(label.outputs)
    return ProblemFunctions(networks.class_cross_entropy, *rate, ZERO_ONE, networks.class_error_rate().constraint)


def number_loss(kind: str, loss: str | None, quantile: float | None, bound: float | None) -> tuple[str, float]:
    """Return the loss of a numeric label and its quantile, with defaults for None."""
    is_coverage = kind == "coverage"
    default = 1 - bound if is_coverage and bound else 0.5
    return loss or ("quantile" if is_coverage else "squared"), quantile or default


def _number(
    kind: str, label: Any, loss: str | None, quantile: float | None, bound: float | None, **options: Any
) -> ProblemFunctions:
    from softswitch.problem import networks

    unit, (loss, quantile) = label.unit, number_loss(kind, loss, quantile, bound)
    constraint, surrogate, row_range = networks.regression_constraint(kind, unit)
    is_convex = surrogate is None and unit.low is None  # clipped predictions are not convex
    objective = networks.make_loss(loss, unit, quantile)
    return ProblemFunctions(objective, constraint, surrogate, row_range, is_convex_if_linear=is_convex)


SENTENCES = {
    "miss-rate": "at most {bound} of the rows with {positive} may be missed (classified otherwise).",
    "false-alarm-rate": "at most {bound} of the rows without {positive} may be classified as {positive} (false "
    "alarms).",
    "error-rate": "at most {bound} of all rows may be misclassified.",
    "class-miss-rate": "at most {bound} of the rows of each {label} may be missed (classified otherwise).",
    "decision-parity": "the share of rows classified as {positive} may differ by at most {points} between rows with "
    "{group} and all other rows.",
    "decision-opportunity": "among rows with {positive}, the share classified as such may differ by at most {points} "
    "between rows with {group} and all other rows.",
    "neyman-pearson": "the mean log loss of the rows with {positive} may be at most {bound}. It measures misses, but "
    "is not a share of rows.",
    "demographic-parity": "the mean predicted probability of {positive} may differ by at most {points} between rows "
    "with {group} and all other rows.",
    "equal-opportunity": "among rows with {positive}, the mean predicted probability of it may differ by at most "
    "{points} between rows with {group} and all other rows.",
    "group-loss": "the mean log loss may be at most {bound} for rows with {group}, and for all other rows.",
    "mean-error": "predictions of {label} may be too high or too low by at most {bound} on average, in the unit of "
    "{label}.",
    "absolute-error": "the mean absolute error of {label} may be at most {bound}, in the unit of {label}.",
    "coverage": "at most {bound} of the rows may have {label} above its prediction.",
}
_LOSS, _POSITIVE_LOSS, _NEGATIVE_LOSS = "mean log loss", "log loss of positive rows", "log loss of negative rows"
_value = partial(ConstraintDescription, is_nonnegative=True)
_share = partial(_value, is_share=True)
_ONE_CLASS: dict[str, Any] = {"strata": "y", "default_bound": 0.05}
_GROUP: dict[str, Any] = {"strata": "group", "uses_groups": True}
_GROUP_AND_Y = _GROUP | {"strata": ("group", "y")}
_CLASSES: dict[str, Any] = {
    "strata": "y",
    "default_bound": 0.5,
    "label_types": (MULTICLASS,),
    "constraint_names": lambda label, group: [f"{c} missed" for c in label.classes],
}


def _add(name: str, build: Callable[..., ProblemFunctions], description: ConstraintDescription, **options: Any) -> None:
    types = {"label_types": (NUMBER,)} if build is _number else {}
    KINDS[name] = ConstraintKind(name, partial(build, name), description, SENTENCES[name], **types | options)


_miss = _share("miss rate", _NEGATIVE_LOSS, cost="false_alarm_rate")
_add("miss-rate", _binary, _miss, path="miss", objective="false-alarm rate", **_ONE_CLASS)
_false_alarm = _share("false-alarm rate", _POSITIVE_LOSS, cost="miss_rate")
_add("false-alarm-rate", _binary, _false_alarm, path="false-alarm", objective="miss rate", **_ONE_CLASS)
_either = {"label_types": (BINARY, MULTICLASS), "path": "error", "objective": "error rate"}
_add("error-rate", _multiclass, _share("error rate", _LOSS), **_either, **_ONE_CLASS)
_missed = _share("worst class's miss rate", _LOSS)
_add("class-miss-rate", _multiclass, _missed, path="class-miss", objective="error rate", **_CLASSES)
_add("decision-parity", _binary, _share("gap of decisions", _LOSS), default_bound=0.05, **_GROUP)
_add("decision-opportunity", _binary, _share("gap of hit rates", _LOSS), default_bound=0.05, **_GROUP_AND_Y)
_add("neyman-pearson", _binary, _value(_POSITIVE_LOSS, _NEGATIVE_LOSS, cost="false_alarm_rate"), strata="y")
_add("demographic-parity", _binary, _share("gap of probabilities", _LOSS), **_GROUP)
_add("equal-opportunity", _binary, _share("gap of probabilities", _LOSS), **_GROUP_AND_Y)
_losses: dict[str, Any] = {"constraint_names": lambda label, group: [f"log loss of {group}", "log loss of others"]}
_add("group-loss", _binary, _value("larger group's log loss", _LOSS), **_losses, **_GROUP)
_error: dict[str, Any] = {
    "constraint_names": lambda label, group: ["too high on average", "too low on average"],
    "default_bound": lambda y: float(f"{0.1 * y.std():.2g}"),
}
_add("mean-error", _number, _value("mean error", "loss"), **_error)
_absolute = {"default_bound": lambda y: float(f"{0.75 * (y - y.median()).abs().mean():.2g}")}
_add("absolute-error", _number, _value("mean absolute error", "loss"), **_absolute)
_add("coverage", _number, _share("share above the prediction", "loss"), path="coverage")
