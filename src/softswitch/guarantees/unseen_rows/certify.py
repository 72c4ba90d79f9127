"""certify(): which clients meet their constraints, and with what certainty, from rows not trained on.

How a limit is made of rows stands in ``intervals.py``, and what is said of all clients together in ``step_up.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from softswitch.clients.client_data import ClientData, Rows
from softswitch.clients.evaluation import evaluate
from softswitch.clients.losses import Losses
from softswitch.clients.slices import map_slices
from softswitch.guarantees.unseen_rows.intervals import (
    OTHER_PARAMS,
    RESAMPLES,
    ErrorLevels,
    concerned,
    gap_interval,
    looks_like_a_mean,
    mean_interval,
    moved,
    resampled_interval,
    unknown,
)
from softswitch.guarantees.unseen_rows.step_up import certificate_of
from softswitch.problem.parameters import WEIGHT, Params, checked_params, float_dtype
from softswitch.problem.pooled import PooledConstraint
from softswitch.problem.problem import Problem
from softswitch.problem.ranges import Range, checked_range, each_range
from softswitch.results.certificate import Certificate, Interval
from softswitch.results.result import Result
from softswitch.support import checks

BLOCK_ROWS = 1 << 22  # of resamples at once


def certify(
    result: Result | Params,
    problem: Problem,
    held_out: ClientData,
    confidence: float = 0.95,
    *,
    tolerance: float | None = None,
    objective_range: Range | None = None,
    constraint_range: Range | Sequence[Range] | None = None,
) -> Certificate:
    """Bound every client's objective and constraint from held-out rows, and say which clients meet the tolerance.

    What is promised of all clients together stands at ``Certificate``. Limits are promises where a row's values have a
    known range, here or in the problem: exact binomial ones where a row has one of two values, else by betting; of a
    gap between groups (``PooledConstraint(…, gaps=True)``) from both groups' means.

    A function counts as a mean over rows if the mean of its values on single rows is its value on all of them, and on a
    random half of them, at every client whose rows differ. A row on which it is −∞ or NaN (a loss of another class,
    say) belongs to no mean and is left out. Of a client without any row that a function concerns nothing is known, and
    so of a client of the result that has no held-out rows at all: it is in the certificate as "unknown".

    Args:
        result: what ``solve`` returned, or parameters.
        problem: the objective and constraint.
        held_out: rows that played no part in training; the clients may be others than those trained on.
        confidence: the probability with which each kind of statement is true of all clients.
        tolerance: what g_i may be at most; by default the result's rule's.
        objective_range: (low, high), between which the objective on a single row lies, or {low, high}, of which it is
            one; by default the problem's.
        constraint_range: likewise of the constraint; one for all constraints, or one each. Of a gap between groups it
            is the range of the values whose means are compared.
    """
    params = result.params if isinstance(result, Result) else result
    if tolerance is None:
        if not isinstance(result, Result):
            raise ValueError("tolerance must be given where result is not a Result")
        tolerance = result.rule.tolerance
    error = 1 - checks.probability("confidence", confidence)
    levels = ErrorLevels(error / len(held_out.names), error, checks.real_number("tolerance", tolerance))
    params = checked_params("params", params)
    constraints = problem.trace(held_out.batch_shapes(1, float_dtype(params)), params).constraints
    ranges = known_ranges(problem, objective_range, constraint_range, constraints)
    found: list[tuple[Any, Sequence[Interval] | None]] = list(
        zip(held_out.names, intervals_of(params, problem, held_out, levels, ranges), strict=True)
    )
    known = set(map(str, held_out.names))  # a number in one table may be text in another
    trained_on = result.names if isinstance(result, Result) else ()
    found += [(name, None) for name in trained_on if str(name) not in known]
    return certificate_of(found, confidence, levels, ranges)


def known_ranges(problem: Problem, objective_range: Any, constraint_range: Any, constraints: int) -> list[Range | None]:
    """The ranges of f and then g: those given, else the problem's own."""
    objective = problem.objective_range if objective_range is None else objective_range
    constraint = problem.constraint_range if constraint_range is None else constraint_range
    return [checked_range("objective_range", objective), *each_range(constraint, constraints)]


def intervals_of(
    params: Params, problem: Problem, held_out: ClientData, levels: ErrorLevels, ranges: Sequence[Range | None]
) -> list[list[Interval]]:
    """Every client's intervals of f and then g, at the levels given."""
    values = _values(problem, held_out, params)
    losses = Losses.of(problem)
    by_row = np.asarray(_row_values(held_out.rows, params, losses), dtype=float)
    means = _are_means(problem, held_out, params, values, by_row)
    groups = _groups(problem, held_out, params, values, ranges)
    found = []
    for i, own in enumerate(_by_client(held_out, by_row)):
        intervals = []
        for j, bounds in enumerate(ranges):
            rows = concerned(own[:, j])
            if not math.isfinite(values[i, j]):
                intervals.append(unknown(len(rows)))
            elif j in groups and bounds is not None:
                intervals.append(gap_interval(*groups[j][i], levels, bounds))
            elif means[j] and len(rows):
                intervals.append(mean_interval(rows, levels, bounds))
            else:
                intervals.append(_resampled(held_out, i, j, float(values[i, j]), params, losses, levels))
        found.append(intervals)
    return found


def _values(problem: Problem, data: ClientData, params: Params) -> np.ndarray:
    """f and g of every client on all of its rows, side by side."""
    objective, constraint = evaluate(problem, data, params)
    return np.concatenate([objective[:, None], constraint], axis=1)


def _by_client(data: ClientData, by_row: np.ndarray) -> list[np.ndarray]:
    return np.split(by_row, np.cumsum(data.sizes)[:-1])


def _are_means(
    problem: Problem, data: ClientData, params: Params, values: np.ndarray, by_row: np.ndarray
) -> list[bool]:
    """Which functions are means over rows: they are so at every client, on all of its rows and on a random part.

    Rows that all have the same value (nobody was missed) are no evidence. But whether a function is a mean does not
    depend on the parameters, so it is then tried at others, at which rows differ.
    """
    generator = np.random.default_rng(0)
    kept = [np.sort(generator.permutation(size)[: (size + 1) // 2]) for size in data.sizes]
    chosen = np.concatenate(
        [first + rows for first, rows in zip(np.cumsum(data.sizes) - data.sizes, kept, strict=True)]
    )
    columns = {key: np.asarray(column)[chosen] for key, column in data.rows.columns.items()}
    part = ClientData.from_arrays(columns, client=np.repeat(np.arange(len(kept)), [len(rows) for rows in kept]))
    answers: list[bool | None] = [None] * values.shape[1]
    losses, other = Losses.of(problem), params
    for attempt in range(1 + OTHER_PARAMS):
        if attempt:
            other = jax.tree.map(lambda w, at=attempt: jnp.asarray(moved(np.asarray(w), generator, at)), params)
            values, by_row = _values(problem, data, other), np.asarray(_row_values(data.rows, other, losses), float)
        partial = _values(problem, part, other)
        checked = ((values, _by_client(data, by_row)), (partial, _by_client(part, by_row[chosen])))
        for j, answer in enumerate(answers):
            if answer is None:
                answers[j] = looks_like_a_mean(
                    (own[:, j], total)
                    for totals, rows in checked
                    for total, own in zip(totals[:, j], rows, strict=True)
                )
        # What no single row has, such as a gap between groups, is no mean at any parameters.
        if all(answer is not None or len(concerned(by_row[:, j])) == 0 for j, answer in enumerate(answers)):
            break
    return [bool(answer) for answer in answers]


def _groups(
    problem: Problem, data: ClientData, params: Params, values: np.ndarray, ranges: Sequence[Range | None]
) -> dict[int, list[tuple[np.ndarray, np.ndarray]]]:
    """By constraint declared to be a gap: both groups' values at every client; only where that gives its value."""
    losses = Losses.of(problem)
    if not isinstance(problem.constraint, PooledConstraint) or not problem.constraint.gaps:
        return {}
    found = {}
    told = np.asarray(_row_statistics(data.rows, params, losses), dtype=float)
    if told.shape[1] != 4 * (len(ranges) - 1):
        raise ValueError(f"{len(ranges) - 1} gaps must have four statistics each, but there are {told.shape[1]}")
    by_client = _by_client(data, told)
    for j in range(1, len(ranges)):
        first = 4 * (j - 1)
        parts = [
            [own[own[:, k + 1] > 0, k] / own[own[:, k + 1] > 0, k + 1] for k in (first, first + 2)] for own in by_client
        ]
        agrees = all(
            np.isclose(abs(a.mean() - b.mean()), value, rtol=1e-3, atol=1e-4)
            for (a, b), value in zip(parts, values[:, j], strict=True)
            if np.isfinite(value) and len(a) and len(b)
        )
        enough = all(len(a) and len(b) for (a, b), value in zip(parts, values[:, j], strict=True) if np.isfinite(value))
        if agrees and enough:
            found[j] = [(a, b) for a, b in parts]
    return found


def _resampled(
    data: ClientData, client: int, function: int, value: float, params: Params, losses: Losses, levels: ErrorLevels
) -> Interval:
    """An approximate interval for what is not a mean over rows, from its values on resamples of them."""
    size = int(data.sizes[client])
    first = int(data.rows.offsets[client, 0])
    width = 1 << (size - 1).bit_length()  # few widths, few programs
    weights = jnp.asarray((np.arange(width) < size) / size, float_dtype(params))
    generator = np.random.default_rng(client)
    block = max(1, min(RESAMPLES, BLOCK_ROWS // width))
    found = []
    for _ in range(math.ceil(RESAMPLES / block)):
        picks = first + generator.integers(size, size=(block, width), dtype=np.int32)
        found.append(np.asarray(_on_batches(data.rows, jnp.asarray(picks), weights, params, losses))[:, function])
    return resampled_interval(np.concatenate(found).astype(float), value, size, levels)


@partial(jax.jit, static_argnames="losses")
def _row_values(rows: Rows, params: Params, losses: Losses) -> jax.Array:
    """f and g on every single row."""
    one = jnp.ones(1, float_dtype(params))

    def value(row: dict[str, Any]) -> jax.Array:
        return losses.both(params, {**{key: x[None] for key, x in row.items()}, WEIGHT: one})

    return map_slices(value, rows.columns, 1 << 16)


@partial(jax.jit, static_argnames="losses")
def _row_statistics(rows: Rows, params: Params, losses: Losses) -> jax.Array:
    """The additive statistics of every single row."""
    one = jnp.ones(1, float_dtype(params))

    def value(row: dict[str, Any]) -> jax.Array:
        told = losses.statistics(params, {**{key: x[None] for key, x in row.items()}, WEIGHT: one})
        assert told is not None
        return told

    return map_slices(value, rows.columns, 1 << 16)


@partial(jax.jit, static_argnames="losses")
def _on_batches(rows: Rows, picks: jax.Array, weights: jax.Array, params: Params, losses: Losses) -> jax.Array:
    """f and g on batches of the picked rows."""

    def value(indices: jax.Array) -> jax.Array:
        return losses.both(params, rows.take(indices, weights))

    return jax.lax.map(value, picks, batch_size=64)
