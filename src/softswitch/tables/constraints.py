"""Ready-made problems for a table of one's own: a network on features x, labels y and, where it matters, a group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from softswitch.problem import rates
from softswitch.problem import regression as amounts
from softswitch.problem.fairness import bounded_group_loss, cross_entropy_range, demographic_parity, equal_opportunity
from softswitch.problem.multiclass import class_cross_entropy, class_error_rate, class_miss_rates
from softswitch.problem.networks import Network, false_alarms, misses, network, objective, probability, row_scores
from softswitch.problem.problem import Problem
from softswitch.problem.ranges import ZERO_ONE, Range
from softswitch.support import checks
from softswitch.tables.labels import BinaryLabel, Label, MulticlassLabel, NumberLabel
from softswitch.tables.settings import OF_AMOUNTS, OF_CLASSES

GROUPED = ("decision-parity", "decision-opportunity", "demographic-parity", "equal-opportunity", "group-loss")
"""Tasks that need to know each row's group."""
OF_ONE_CLASS = ("miss-rate", "false-alarm-rate", "neyman-pearson")
"""Tasks whose objective is a loss of one class: a model that always says that class has none."""


LOGICAL = BinaryLabel(0, 1)


class CustomFunctions(NamedTuple):
    """A user's own functions of ``(params, batch)``, as ``Problem`` takes them."""

    objective: Callable[..., Any]
    constraint: Callable[..., Any]
    constraint_surrogate: Callable[..., Any] | None = None
    constraint_range: Any = None


class BuiltProblem(NamedTuple):
    """A problem, and what goes with it.

    Attributes:
        problem: objective, constraint and start.
        strata: what batches are to be drawn by.
        cost: the rate that the bound is paid with, where there is one: false alarms for a bound on misses. Training
            descends on the objective, a smooth loss of the same rows; what a model is worth is said by the rate.
    """

    problem: Problem
    strata: str | tuple[str, ...] | None
    cost: Callable[..., Any] | None = None


class Loss(NamedTuple):
    """What is to be small where the label is a number; None: by the kind."""

    name: str | None = None
    quantile: float | None = None


BY_THE_KIND = Loss()


def check_regret(kind: str, regret: bool) -> None:
    """Raise where regrets would be the objective itself.

    Args:
        kind: what must hold.
        regret: whether they are asked for.
    """
    if regret and kind in OF_ONE_CLASS:
        raise ValueError(
            f"task.regret must be false for the kind {kind!r}: its objective is the loss of one class, which every "
            "client by itself can bring to 0, so that regrets would be the losses themselves"
        )


def first_network(features: int, hidden: tuple[int, ...], seed: int, outputs: int = 1) -> Network:
    """Random weights; zeros for a linear model, where the start does not matter."""
    start = network(features, hidden, outputs=outputs, seed=seed)
    return start if hidden else jax.tree.map(jnp.zeros_like, start)


def build_problem(
    kind: str,
    features: int,
    hidden: tuple[int, ...] = (),
    *,
    seed: int = 0,
    own: CustomFunctions | None = None,
    label: Label = LOGICAL,
    loss: Loss = BY_THE_KIND,
    bound: float | None = None,
) -> BuiltProblem:
    """The problem of a kind.

    Args:
        kind: what must hold.
        features: how many a row has.
        hidden: widths of hidden layers.
        seed: of the first weights.
        own: for the kind "custom": one's own functions.
        label: what the label is.
        loss: of predictions of a number.
        bound: the bound, by which the quantile of coverage is chosen.
    """
    start = first_network(features, hidden, seed, label.outputs)
    if kind == "custom":
        assert own is not None
        stated = Problem(
            own.objective,
            own.constraint,
            start,
            constraint_surrogate=own.constraint_surrogate,
            constraint_range=own.constraint_range,
        )
        return BuiltProblem(stated, None)
    if isinstance(label, NumberLabel):
        return _of_amount(kind, start, label, loss, bound)
    if isinstance(label, MulticlassLabel):
        return _of_classes(kind, start, label)
    decisions: dict[str, tuple[Any, rates.Rate, Any]] = {
        "miss-rate": (false_alarms, rates.miss_rate(row_scores), "y"),
        "false-alarm-rate": (misses, rates.false_alarm_rate(row_scores), "y"),
        "error-rate": (objective, rates.error_rate(row_scores), "y"),
        "decision-parity": (objective, rates.decision_parity(row_scores), "group"),
        "decision-opportunity": (objective, rates.decision_opportunity(row_scores), ("group", "y")),
    }
    if kind in decisions:
        small, rate, strata = decisions[kind]
        stated = Problem(small, rate.constraint, start, constraint_surrogate=rate.stand_in, constraint_range=ZERO_ONE)
        paid_with = {"miss-rate": rates.false_alarm_rate, "false-alarm-rate": rates.miss_rate}.get(kind)
        return BuiltProblem(stated, strata, None if paid_with is None else paid_with(row_scores).constraint)
    made: dict[str, tuple[Any, Any, Any]] = {
        "neyman-pearson": (false_alarms, misses, "y"),
        "demographic-parity": (objective, demographic_parity(probability), "group"),
        "equal-opportunity": (objective, equal_opportunity(probability), ("group", "y")),
        "group-loss": (objective, bounded_group_loss(probability, 0.0), "group"),
    }
    checks.one_of("kind", kind, (*decisions, *made, "custom"))
    small, bounded, strata = made[kind]
    # Of the values whose means are compared, or of a loss that is cut off. The logistic loss has no range.
    ranges: dict[str, Range] = {
        "demographic-parity": (0.0, 1.0),
        "equal-opportunity": (0.0, 1.0),
        "group-loss": cross_entropy_range(),
    }
    # Of these with logistic regression. The others are differences, or cross-entropies cut off at tiny probabilities.
    convex = True if kind == "neyman-pearson" and not hidden else None
    return BuiltProblem(Problem(small, bounded, start, convex=convex, constraint_range=ranges.get(kind)), strata)


def _of_amount(kind: str, start: Network, label: NumberLabel, loss: Loss, bound: float | None) -> BuiltProblem:
    """A label that is a number."""
    _suits(kind, OF_AMOUNTS, "a number")
    coverage = kind == "coverage"
    name = loss.name or ("quantile" if coverage else "squared")
    quantile = loss.quantile or (1 - bound if coverage and bound else 0.5)
    told, unit = amounts.bounded(kind, label.unit), label.unit
    smooth = told.stand_in is None and unit.low is None  # predictions that are kept within limits are not convex
    stated = Problem(
        amounts.loss(name, unit, quantile),
        told.constraint,
        start,
        constraint_surrogate=told.stand_in,
        constraint_range=told.of_row,
        convex=True if smooth and len(start) == 1 else None,
    )
    return BuiltProblem(stated, None)


def _of_classes(kind: str, start: Network, label: MulticlassLabel) -> BuiltProblem:
    """A label of several classes."""
    _suits(kind, OF_CLASSES, "one of several classes")
    rate = class_error_rate() if kind == "error-rate" else class_miss_rates(label.outputs)
    stated = Problem(
        class_cross_entropy, rate.constraint, start, constraint_surrogate=rate.stand_in, constraint_range=ZERO_ONE
    )
    return BuiltProblem(stated, "y")


def _suits(kind: str, kinds: tuple[str, ...], what: str) -> None:
    if kind not in kinds:
        raise ValueError(
            f"task.kind must be one of {', '.join((*kinds, 'custom'))} where the label is {what}, but is {kind!r}"
        )
