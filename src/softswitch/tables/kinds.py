"""Ready-made problems for a table of one's own: a network on features x, labels y and, where it matters, a group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from softswitch.problem.problem import Problem
from softswitch.problem.ranges import ZERO_ONE, Range
from softswitch.support import checks
from softswitch.tasks import rates
from softswitch.tasks.fairness import (
    bounded_group_loss,
    cross_entropy_range,
    demographic_parity,
    equal_opportunity,
)
from softswitch.tasks.networks import Network, false_alarms, misses, network, objective, probability, row_scores

GROUPED = ("decision-parity", "decision-opportunity", "demographic-parity", "equal-opportunity", "group-loss")
"""Tasks that need to know each row's group."""


class OwnFunctions(NamedTuple):
    """A user's own functions of ``(params, batch)``, as ``Problem`` takes them."""

    objective: Callable[..., Any]
    constraint: Callable[..., Any]
    constraint_stand_in: Callable[..., Any] | None = None


class KindOfProblem(NamedTuple):
    """A problem, and what batches are to be drawn by."""

    problem: Problem
    strata: str | tuple[str, ...] | None


def first_network(features: int, hidden: tuple[int, ...], seed: int) -> Network:
    """Random weights; zeros for logistic regression, where the start does not matter."""
    start = network(features, hidden, seed=seed)
    return start if hidden else jax.tree.map(jnp.zeros_like, start)


def problem_of_kind(
    kind: str,
    features: int,
    hidden: tuple[int, ...] = (),
    *,
    seed: int = 0,
    own: OwnFunctions | None = None,
) -> KindOfProblem:
    """The problem of a kind for so many features; for the kind "own" with one's own functions."""
    start = first_network(features, hidden, seed)
    if kind == "own":
        assert own is not None
        return KindOfProblem(
            Problem(own.objective, own.constraint, start, constraint_stand_in=own.constraint_stand_in), None
        )
    decisions: dict[str, tuple[Any, rates.Rate, Any]] = {
        "miss-rate": (false_alarms, rates.miss_rate(row_scores), "y"),
        "false-alarm-rate": (misses, rates.false_alarm_rate(row_scores), "y"),
        "error-rate": (objective, rates.error_rate(row_scores), "y"),
        "decision-parity": (objective, rates.decision_parity(row_scores), "group"),
        "decision-opportunity": (objective, rates.decision_opportunity(row_scores), ("group", "y")),
    }
    if kind in decisions:
        small, rate, strata = decisions[kind]
        stated = Problem(small, rate.constraint, start, constraint_stand_in=rate.stand_in, constraint_range=ZERO_ONE)
        return KindOfProblem(stated, strata)
    made: dict[str, tuple[Any, Any, Any]] = {
        "neyman-pearson": (false_alarms, misses, "y"),
        "demographic-parity": (objective, demographic_parity(probability), "group"),
        "equal-opportunity": (objective, equal_opportunity(probability), ("group", "y")),
        "group-loss": (objective, bounded_group_loss(probability, 0.0), "group"),
    }
    checks.one_of("kind", kind, (*decisions, *made, "own"))
    small, bounded, strata = made[kind]
    # Of the values whose means are compared, or of a loss that is cut off. The logistic loss has no range.
    ranges: dict[str, Range] = {
        "demographic-parity": (0.0, 1.0),
        "equal-opportunity": (0.0, 1.0),
        "group-loss": cross_entropy_range(),
    }
    # Of these with logistic regression. The others are differences, or cross-entropies cut off at tiny probabilities.
    convex = True if kind == "neyman-pearson" and not hidden else None
    return KindOfProblem(Problem(small, bounded, start, convex=convex, constraint_range=ranges.get(kind)), strata)
