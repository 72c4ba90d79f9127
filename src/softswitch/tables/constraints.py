"""The registry of constraint kinds.

An entry declares all that the package needs to know about a kind. The settings file, the estimators, private training,
the frontier, the command line and the report read it from here. To add a kind, write a function that builds its
``ProblemFunctions`` and call ``register``.

The module is cheap to import, because builders import JAX only when they are called.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from softswitch.problem.choices import BINARY, LABEL_TYPES, MULTICLASS, NUMBER
from softswitch.results.descriptions import ConstraintDescription

if TYPE_CHECKING:
    import pandas as pd

    from softswitch.problem.pooled import PooledConstraint
    from softswitch.problem.problem import Problem
    from softswitch.tables.labels import Label

CUSTOM = "custom"
"""The kind whose functions the user supplies."""
Function = Callable[..., Any]
"""A function ``(params, batch) -> value``."""


@dataclass(frozen=True)
class ProblemFunctions:
    """The functions of ``(params, batch)`` that state a problem.

    Attributes:
        objective: The loss to minimise.
        constraint: The value that the bound limits.
        surrogate: Smooth replacement of a constraint without gradients, used for descent only.
        range: Range of the constraint's value on a single row; None if unknown.
        cost: Rate that a tighter bound makes worse, such as false alarms for misses.
        pieces: Smooth functions whose maximum is the constraint. A gap has two, the difference and its negative.
        private_surrogate: Surrogate that is a mean over rows, for training with differential privacy.
        is_convex_if_linear: Whether the problem is convex for a linear model.
    """

    objective: Function
    constraint: Function
    surrogate: Function | None = None
    range: Any = None
    cost: Function | None = None
    pieces: tuple[Function, ...] = ()
    private_surrogate: Function | None = None
    is_convex_if_linear: bool = False


@dataclass(frozen=True)
class BuildOptions:
    """What a builder may use: the fitted label, the loss for a number, the bound, and custom functions."""

    label: Label
    loss: str | None = None
    quantile: float | None = None
    bound: float | None = None
    custom: ProblemFunctions | None = None


@dataclass(frozen=True)
class ConstraintKind:
    """A kind of constraint.

    Attributes:
        name: Value of the setting ``task.kind``.
        build: Function that returns the problem's functions.
        description: Names and units for reports.
        sentence: What must hold. It may contain {bound}, {points} (a difference of shares in percentage points),
            {positive} ("diagnosis = malignant"), {label}, {group} ("sex = F") and {constraint}.
        label_types: Types of labels that the kind supports.
        strata: Columns that batches are stratified by.
        uses_groups: Whether rows need a group.
        default_bound: Bound that ``softswitch init`` proposes, or a function of the label column that returns it.
        has_one_class_objective: Whether the objective is the loss of one class, which a constant model minimises.
        constraint_names: Function of the label and the protected group that names the constraints, if several.
    """

    name: str
    build: Callable[[BuildOptions], ProblemFunctions]
    description: ConstraintDescription
    sentence: str
    label_types: tuple[str, ...] = (BINARY,)
    strata: str | tuple[str, ...] | None = None
    uses_groups: bool = False
    default_bound: float | Callable[[pd.Series], float] = 0.1
    has_one_class_objective: bool = False
    constraint_names: Callable[[Any, Any], list[str]] | None = None

    @property
    def estimator(self) -> str | None:
        """Name of the estimator that offers the kind."""
        if self.name == CUSTOM:
            return None
        return "BoundedRegressor" if self.label_types == (NUMBER,) else "BoundedClassifier"

    def propose_bound(self, labels: pd.Series) -> float:
        """Return a bound to start with."""
        return self.default_bound(labels) if callable(self.default_bound) else self.default_bound

    def describe_bound(
        self,
        bound: float,
        *,
        client: str = "client",
        label: str = "label",
        positive: Any = None,
        group: str = "group",
        constraint: str | None = None,
    ) -> str:
        """Return the sentence that states what must hold at every client."""
        from softswitch.support.text import format_number

        requirement = self.sentence.format(
            bound=self.description.write(bound),
            points=f"{format_number(100 * bound)} percentage point{'s' * (bound != 0.01)}",
            positive=f"a positive {label}" if positive is None else f"{label} = {positive}",
            label=label,
            group=group,
            constraint=constraint or "the constraint",
        )
        return f"At every {client}, {requirement}"


KINDS: dict[str, ConstraintKind] = {}
"""All registered kinds by name."""


def register(kind: ConstraintKind) -> None:
    """Add a kind to the registry."""
    if kind.name in KINDS:
        raise ValueError(f"kind.name must be new, but {kind.name!r} is registered already")
    KINDS[kind.name] = kind


def find_kind(name: str, label_type: str | None = None) -> ConstraintKind:
    """Return a registered kind, or raise if it is unknown or does not support the label type."""
    if name not in KINDS or (label_type is not None and label_type not in KINDS[name].label_types):
        condition = "" if label_type is None else f" if the label type is {label_type!r}"
        names = kind_names(*(LABEL_TYPES if label_type is None else (label_type,)))
        raise ValueError(f"task.kind must be one of {', '.join(names)}{condition}, but is {name!r}")
    return KINDS[name]


def kind_names(*label_types: str, estimator: str | None = None) -> tuple[str, ...]:
    """Return the names of the kinds that support one of these label types, or that an estimator offers."""
    return tuple(
        kind.name
        for kind in KINDS.values()
        if (kind.estimator == estimator if estimator is not None else set(label_types) & set(kind.label_types))
    )


def check_regret(kind: str, regret: bool) -> None:
    """Raise if ``task.regret`` is set for an objective that every client can bring to 0."""
    if regret and KINDS[kind].has_one_class_objective:
        raise ValueError(
            f"task.regret must be false for the kind {kind!r}: its objective is the loss of one class, which every "
            "client can bring to 0 alone. Its regret would be the loss itself"
        )


@dataclass(frozen=True)
class BuiltProblem:
    """A problem, with the columns that batches are stratified by and the functions that state it."""

    problem: Problem
    strata: str | tuple[str, ...] | None
    functions: ProblemFunctions

    @property
    def cost(self) -> Function | None:
        """Rate that a tighter bound makes worse, if there is one."""
        return self.functions.cost


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
    custom: ProblemFunctions | None = None,
) -> BuiltProblem:
    """Build the problem of a kind for a network on tabular features.

    Args:
        kind: Name of the constraint kind.
        features: Number of features.
        hidden: Widths of the hidden layers; () is a linear model.
        seed: Seed of the initial weights.
        label: The label. Default: two classes, 0 and 1.
        loss: Loss for a number. Default: "quantile" for coverage, else "squared".
        quantile: Quantile of the quantile loss. Default: 1 - ``bound`` for coverage, else 0.5.
        bound: The constraint's bound.
        custom: Functions of the kind "custom".
    """
    from softswitch.problem.problem import Problem
    from softswitch.tables.labels import BinaryLabel

    label = label or BinaryLabel(0, 1)
    entry = find_kind(kind, label.label_type)
    functions = entry.build(BuildOptions(label, loss, quantile, bound, custom))
    problem = Problem(
        functions.objective,
        functions.constraint,
        label.initial_network(features, hidden, seed),
        constraint_surrogate=functions.surrogate,
        constraint_range=functions.range,
        convex=True if functions.is_convex_if_linear and not hidden else None,
    )
    return BuiltProblem(problem, entry.strata, functions)


def _binary_problem(kind: str) -> Callable[[BuildOptions], ProblemFunctions]:
    def build(options: BuildOptions) -> ProblemFunctions:
        from softswitch.problem import fairness, rates
        from softswitch.problem.networks import (
            batch_scores,
            false_alarms,
            logistic_objective,
            misses,
            predict_probability,
        )
        from softswitch.problem.ranges import ZERO_ONE

        miss_rate, false_alarm_rate = rates.miss_rate(batch_scores), rates.false_alarm_rate(batch_scores)
        if kind == "miss-rate":
            cost = false_alarm_rate.constraint
            return ProblemFunctions(false_alarms, *miss_rate, ZERO_ONE, cost, private_surrogate=misses)
        if kind == "false-alarm-rate":
            cost = miss_rate.constraint
            return ProblemFunctions(misses, *false_alarm_rate, ZERO_ONE, cost, private_surrogate=false_alarms)
        if kind == "error-rate":
            rate = rates.error_rate(batch_scores)
            return ProblemFunctions(logistic_objective, *rate, ZERO_ONE, private_surrogate=logistic_objective)
        if kind == "neyman-pearson":
            return ProblemFunctions(false_alarms, misses, is_convex_if_linear=True)
        if kind == "decision-parity":
            return ProblemFunctions(logistic_objective, *rates.decision_parity(batch_scores), ZERO_ONE)
        if kind == "decision-opportunity":
            return ProblemFunctions(logistic_objective, *rates.decision_opportunity(batch_scores), ZERO_ONE)
        if kind == "group-loss":
            constraint = fairness.bounded_group_loss(predict_probability, 0.0)
            return ProblemFunctions(logistic_objective, constraint, range=fairness.cross_entropy_range())
        gap = (fairness.demographic_parity if kind == "demographic-parity" else fairness.equal_opportunity)(
            predict_probability
        )
        return ProblemFunctions(logistic_objective, gap, range=(0.0, 1.0), pieces=_gap_pieces(gap))

    return build


def _gap_pieces(gap: PooledConstraint) -> tuple[Function, ...]:
    """Return the difference of the groups' means and its negative; their maximum is the gap."""
    import jax.numpy as jnp

    def piece(sign: float, params: Any, batch: Any) -> Any:
        protected, protected_rows, rest, rest_rows = gap.statistics(params, batch)
        has_both = (protected_rows > 0) & (rest_rows > 0)
        difference = protected / jnp.where(has_both, protected_rows, 1) - rest / jnp.where(has_both, rest_rows, 1)
        return jnp.where(has_both, sign * difference, -jnp.inf)

    return partial(piece, 1.0), partial(piece, -1.0)


def _multiclass_problem(kind: str) -> Callable[[BuildOptions], ProblemFunctions]:
    def build(options: BuildOptions) -> ProblemFunctions:
        from softswitch.problem import multiclass
        from softswitch.problem.ranges import ZERO_ONE

        is_error = kind == "error-rate"
        rate = multiclass.class_error_rate() if is_error else multiclass.class_miss_rates(options.label.outputs)
        return ProblemFunctions(multiclass.class_cross_entropy, *rate, ZERO_ONE)

    return build


def _error_rate(options: BuildOptions) -> ProblemFunctions:
    is_multiclass = options.label.label_type == MULTICLASS
    return (_multiclass_problem if is_multiclass else _binary_problem)("error-rate")(options)


def _number_problem(kind: str) -> Callable[[BuildOptions], ProblemFunctions]:
    def build(options: BuildOptions) -> ProblemFunctions:
        from softswitch.problem import regression

        unit, is_coverage = options.label.unit, kind == "coverage"  # type: ignore[attr-defined]
        loss = options.loss or ("quantile" if is_coverage else "squared")
        quantile = options.quantile or (1 - options.bound if is_coverage and options.bound else 0.5)
        constraint, surrogate, row_range = regression.regression_constraint(kind, unit)
        is_convex = surrogate is None and unit.low is None  # clipped predictions are not convex
        objective = regression.make_loss(loss, unit, quantile)
        return ProblemFunctions(objective, constraint, surrogate, row_range, is_convex_if_linear=is_convex)

    return build


def _custom(options: BuildOptions) -> ProblemFunctions:
    assert options.custom is not None
    return options.custom


_LOSS, _POSITIVE_LOSS, _NEGATIVE_LOSS = "mean log loss", "log loss of positive rows", "log loss of negative rows"

for _kind in (
    ConstraintKind(
        "miss-rate",
        _binary_problem("miss-rate"),
        ConstraintDescription("miss rate", _NEGATIVE_LOSS, is_share=True, is_nonnegative=True, cost="false_alarm_rate"),
        "at most {bound} of the rows with {positive} may be missed (classified otherwise).",
        strata="y",
        default_bound=0.05,
        has_one_class_objective=True,
    ),
    ConstraintKind(
        "false-alarm-rate",
        _binary_problem("false-alarm-rate"),
        ConstraintDescription("false-alarm rate", _POSITIVE_LOSS, is_share=True, is_nonnegative=True, cost="miss_rate"),
        "at most {bound} of the rows without {positive} may be classified as {positive} (false alarms).",
        strata="y",
        default_bound=0.05,
        has_one_class_objective=True,
    ),
    ConstraintKind(
        "error-rate",
        _error_rate,
        ConstraintDescription("error rate", _LOSS, is_share=True, is_nonnegative=True),
        "at most {bound} of all rows may be misclassified.",
        label_types=(BINARY, MULTICLASS),
        strata="y",
        default_bound=0.05,
    ),
    ConstraintKind(
        "class-miss-rate",
        _multiclass_problem("class-miss-rate"),
        ConstraintDescription("worst class's miss rate", _LOSS, is_share=True, is_nonnegative=True),
        "at most {bound} of the rows of each {label} may be missed (classified otherwise).",
        label_types=(MULTICLASS,),
        strata="y",
        default_bound=0.5,
        constraint_names=lambda label, protected: [f"{value} missed" for value in label.values],
    ),
    ConstraintKind(
        "decision-parity",
        _binary_problem("decision-parity"),
        ConstraintDescription("gap of decisions", _LOSS, is_share=True, is_nonnegative=True),
        "the share of rows classified as {positive} may differ by at most {points} between rows with {group} and all "
        "other rows.",
        strata="group",
        uses_groups=True,
        default_bound=0.05,
    ),
    ConstraintKind(
        "decision-opportunity",
        _binary_problem("decision-opportunity"),
        ConstraintDescription("gap of hit rates", _LOSS, is_share=True, is_nonnegative=True),
        "among rows with {positive}, the share classified as such may differ by at most {points} between rows with "
        "{group} and all other rows.",
        strata=("group", "y"),
        uses_groups=True,
        default_bound=0.05,
    ),
    ConstraintKind(
        "neyman-pearson",
        _binary_problem("neyman-pearson"),
        ConstraintDescription(_POSITIVE_LOSS, _NEGATIVE_LOSS, is_nonnegative=True, cost="false_alarm_rate"),
        "the mean log loss of the rows with {positive} may be at most {bound}. It measures misses, but is not a share "
        "of rows.",
        strata="y",
        has_one_class_objective=True,
    ),
    ConstraintKind(
        "demographic-parity",
        _binary_problem("demographic-parity"),
        ConstraintDescription("gap of probabilities", _LOSS, is_share=True, is_nonnegative=True),
        "the mean predicted probability of {positive} may differ by at most {points} between rows with {group} and "
        "all other rows.",
        strata="group",
        uses_groups=True,
    ),
    ConstraintKind(
        "equal-opportunity",
        _binary_problem("equal-opportunity"),
        ConstraintDescription("gap of probabilities", _LOSS, is_share=True, is_nonnegative=True),
        "among rows with {positive}, the mean predicted probability of it may differ by at most {points} between rows "
        "with {group} and all other rows.",
        strata=("group", "y"),
        uses_groups=True,
    ),
    ConstraintKind(
        "group-loss",
        _binary_problem("group-loss"),
        ConstraintDescription("larger group's log loss", _LOSS, is_nonnegative=True),
        "the mean log loss may be at most {bound} for rows with {group}, and for all other rows.",
        strata="group",
        uses_groups=True,
        constraint_names=lambda label, protected: [f"log loss of {protected}", "log loss of others"],
    ),
    ConstraintKind(
        "mean-error",
        _number_problem("mean-error"),
        ConstraintDescription("mean error", "loss", is_nonnegative=True),
        "predictions of {label} may be too high or too low by at most {bound} on average, in the unit of {label}.",
        label_types=(NUMBER,),
        default_bound=lambda labels: float(f"{0.1 * labels.std():.2g}"),
        constraint_names=lambda label, protected: ["too high on average", "too low on average"],
    ),
    ConstraintKind(
        "absolute-error",
        _number_problem("absolute-error"),
        ConstraintDescription("mean absolute error", "loss", is_nonnegative=True),
        "the mean absolute error of {label} may be at most {bound}, in the unit of {label}.",
        label_types=(NUMBER,),
        default_bound=lambda labels: float(f"{0.75 * (labels - labels.median()).abs().mean():.2g}"),
    ),
    ConstraintKind(
        "coverage",
        _number_problem("coverage"),
        ConstraintDescription("share above the prediction", "loss", is_share=True, is_nonnegative=True),
        "at most {bound} of the rows may have {label} above its prediction.",
        label_types=(NUMBER,),
    ),
    ConstraintKind(
        CUSTOM,
        _custom,
        ConstraintDescription(),
        "{constraint} may be at most {bound}.",
        label_types=LABEL_TYPES,
    ),
):
    register(_kind)
