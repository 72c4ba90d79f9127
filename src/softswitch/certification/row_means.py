"""Whether functions can be told privately: whether each is a mean over rows, and over how many."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from softswitch.certification.intervals import applicable, perturb_params
from softswitch.certification.row_values import Kind, RowValues
from softswitch.data.client_data import ClientData
from softswitch.oracles.losses import Losses
from softswitch.problem.problem import Problem

ATTEMPTS = 3
"""At so many parameters it is tried whether functions are means over rows."""
NO_MEAN = (
    "objective and constraints must be means over rows to be told privately; a gap between two groups is two "
    "constraints that are: gap_sides and side_of_rows of softswitch.problem.fairness"
)
Arrays = dict[str, np.ndarray]


def count_applicable_rows(problem: Problem, clients: ClientData) -> np.ndarray:
    """How many rows the objective and each constraint concern; clients × functions. Raise where one is no mean.

    Whether it is one is a matter of the functions, not of the rows: it is tried on them, and nothing else is told.

    Args:
        problem: the functions.
        clients: whose rows.
    """
    losses = Losses.of(problem)
    if losses.is_random:
        raise ValueError("functions with a random key cannot be told privately: leave the key out (dropout, say)")
    if losses.has_pooled_constraint:
        raise ValueError(
            "a PooledConstraint is no mean over rows, and cannot be told privately. Where the sizes of the groups are "
            "public, a gap between two groups is two constraints that are: gap_sides and side_of_rows of "
            "softswitch.problem.fairness"
        )
    found = RowValues(problem, clients, problem.start)
    _check_means(found.kinds, "constraint")
    if problem.constraint_surrogate is not None:
        other = replace(problem, constraint=problem.constraint_surrogate, constraint_surrogate=None)
        _check_means(RowValues(other, clients, problem.start).kinds, "constraint_surrogate")
    return np.stack([(~(np.isneginf(own) | np.isnan(own))).sum(axis=0) for own in found.by_client])


def _check_means(kinds: tuple[Kind, ...], name: str) -> None:
    names = ["objective", *(f"{name} {j}" if len(kinds) > 2 else name for j in range(1, len(kinds)))]
    for function, kind in zip(names, kinds, strict=True):
        if kind is not Kind.MEAN:
            raise ValueError(
                f"the {function} is no mean over rows, and cannot be told privately: a single row's part in it is not "
                "known (nor is it where some row gives NaN). Write it as a mean over (some) rows; a gap between "
                "two groups as two constraints, one for each side: gap_sides and side_of_rows of "
                "softswitch.problem.fairness"
            )


def count_rows_from_values(
    row_values: Callable[[Arrays], np.ndarray],
    whole: Callable[[Arrays], np.ndarray],
    start: Arrays,
    attempts: int = ATTEMPTS,
) -> list[int]:
    """How many rows f and each g concern, for a client outside of JAX; raise where one is no mean over rows.

    Args:
        row_values: f and then g on every row at some parameters; rows × functions.
        whole: f and then g on all rows there.
        start: parameters by name, of the shapes that come.
        attempts: at how many parameters it is tried; the last are always the same, and rows are counted there.
    """
    counts = list[int]()
    for attempt in range(attempts, 0, -1):
        params = perturb_params(start, attempt)
        parts = [applicable(values) for values in row_values(params).T]
        counts = [len(part) for part in parts]
        for part, value in zip(parts, whole(params), strict=True):
            is_mean = np.isfinite(part).all() and np.isclose(
                part.mean() if len(part) else value, value, rtol=1e-3, atol=1e-5 * np.abs(part).max(initial=0)
            )
            if not is_mean:
                raise ValueError(NO_MEAN)
    return counts
