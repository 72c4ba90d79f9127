"""Checks that functions are means over rows, as differential privacy requires."""

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
"""Number of parameter vectors at which functions are checked."""
SPLIT_GAPS = (
    "write a gap between two groups as two constraints, one per side (signed_gaps and gap_sides of "
    "softswitch.problem.fairness)"
)
NO_MEAN = f"objective and constraints must be means over rows to be reported privately; {SPLIT_GAPS}"
Arrays = dict[str, np.ndarray]


def count_applicable_rows(problem: Problem, clients: ClientData) -> np.ndarray:
    """Return the number of rows to which each function applies (clients × functions), if all are means over rows.

    Raises:
        ValueError: The objective or a constraint is not a mean over rows.
    """
    losses = Losses.of(problem)
    if losses.is_random:
        raise ValueError("functions with a random key (dropout, for example) cannot be private; remove the key")
    if losses.has_pooled_constraint:
        raise ValueError(
            "a PooledConstraint is not a mean over rows and cannot be reported privately; if the group sizes are "
            f"public, {SPLIT_GAPS}"
        )
    values = RowValues(problem, clients, problem.start)
    _check_means(values.kinds, "constraint")
    if problem.constraint_surrogate is not None:
        surrogate = replace(problem, constraint=problem.constraint_surrogate, constraint_surrogate=None)
        _check_means(RowValues(surrogate, clients, problem.start).kinds, "constraint_surrogate")
    return np.stack([(~(np.isneginf(rows) | np.isnan(rows))).sum(axis=0) for rows in values.by_client])


def _check_means(kinds: tuple[Kind, ...], name: str) -> None:
    names = ["objective", *(f"{name} {j}" if len(kinds) > 2 else name for j in range(1, len(kinds)))]
    for function, kind in zip(names, kinds, strict=True):
        if kind is not Kind.MEAN:
            raise ValueError(
                f"the {function} is not a mean over rows, or is NaN on some row, and cannot be reported privately. "
                f"Write it as a mean over (some) rows; {SPLIT_GAPS}"
            )


def count_rows_from_values(
    row_values: Callable[[Arrays], np.ndarray],
    total: Callable[[Arrays], np.ndarray],
    start: Arrays,
    attempts: int = ATTEMPTS,
) -> list[int]:
    """Return the number of rows to which f and each g apply, for a client without JAX.

    Args:
        row_values: Return f and then g on every row at the given parameters; rows × functions.
        total: Return f and then g on all rows together.
        start: Parameters by name, which give the shapes.
        attempts: Number of parameter vectors to test. Rows are counted at the last one, which is always the same.

    Raises:
        ValueError: The objective or a constraint is not a mean over rows.
    """
    counts = list[int]()
    for attempt in range(attempts, 0, -1):
        params = perturb_params(start, attempt)
        columns = [applicable(values) for values in row_values(params).T]
        counts = [len(rows) for rows in columns]
        for rows, value in zip(columns, total(params), strict=True):
            mean = rows.mean() if len(rows) else value
            slack = 1e-5 * np.abs(rows).max(initial=0)
            if not (np.isfinite(rows).all() and np.isclose(mean, value, rtol=1e-3, atol=slack)):
                raise ValueError(NO_MEAN)
    return counts
