"""certify(): which clients meet their constraints, and with what certainty, from rows not trained on.

How a bound is made of rows stands in ``intervals.py``. All statements hold together with the confidence asked for: its
error probability is divided by their number (Bonferroni).
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
from softswitch.guarantees.intervals import (
    RESAMPLES,
    Range,
    checked_range,
    client_certificate,
    concerned,
    each_range,
    looks_like_a_mean,
    mean_interval,
    nothing_known,
    resampled_interval,
    unknown,
)
from softswitch.problem.parameters import WEIGHT, Params, float_dtype
from softswitch.problem.problem import Problem
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
    """Bound every client's objective and constraint from held-out rows, all bounds valid together.

    A function counts as a mean over rows if the mean of its values on single rows is its value on all of them, and on a
    random half of them, at every client whose rows differ. A row on which it is −∞ or NaN (a loss of another class,
    say) belongs to no mean and is left out. Of a client without any row that a function concerns nothing is known, and
    so of a client of the result that has no held-out rows at all: it is in the certificate as "unknown".

    Args:
        result: what ``solve`` returned, or parameters.
        problem: the objective and constraint.
        held_out: rows that played no part in training; the clients may be others than those trained on.
        confidence: the probability with which all bounds hold together.
        tolerance: what g_i may be at most; by default the result's rule's.
        objective_range: the range [low, high] of the objective on a single row, if it has one.
        constraint_range: the range of the constraint on a single row; one for all constraints, or one each.
    """
    params = result.params if isinstance(result, Result) else result
    if tolerance is None:
        if not isinstance(result, Result):
            raise ValueError("tolerance must be given where result is not a Result")
        tolerance = result.rule.tolerance
    limit = checks.real_number("tolerance", tolerance)
    error = 1 - checks.probability("confidence", confidence)
    values = _values(problem, held_out, params)
    functions = values.shape[1]
    ranges = [checked_range("objective_range", objective_range), *each_range(constraint_range, functions - 1)]
    losses = Losses.of(problem)
    by_row = np.asarray(_row_values(held_out.rows, params, losses), dtype=float)
    means = _are_means(problem, held_out, params, values, by_row)
    # Two sides of every function of every client.
    each = error / (2 * values.size)
    found = []
    for i, (name, own) in enumerate(zip(held_out.names, _by_client(held_out, by_row), strict=True)):
        intervals = []
        for j in range(functions):
            rows = concerned(own[:, j])
            if not math.isfinite(values[i, j]):
                intervals.append(unknown(len(rows)))
            elif means[j] and len(rows):
                intervals.append(mean_interval(rows, each, ranges[j]))
            else:
                intervals.append(_resampled(held_out, i, j, float(values[i, j]), params, losses, each))
        found.append(client_certificate(name, intervals, limit, each, ranges))
    known = set(map(str, held_out.names))  # a number in one table may be text in another
    trained_on = result.names if isinstance(result, Result) else ()
    found += [nothing_known(name, functions - 1) for name in trained_on if str(name) not in known]
    return Certificate(limit, confidence, tuple(found))


def _values(problem: Problem, data: ClientData, params: Params) -> np.ndarray:
    """f and g of every client on all of its rows, side by side."""
    objective, constraint = evaluate(problem, data, params)
    return np.concatenate([objective[:, None], constraint], axis=1)


def _by_client(data: ClientData, by_row: np.ndarray) -> list[np.ndarray]:
    return np.split(by_row, np.cumsum(data.sizes)[:-1])


def _are_means(
    problem: Problem, data: ClientData, params: Params, values: np.ndarray, by_row: np.ndarray
) -> list[bool]:
    """Which functions are means over rows: they are so at every client, on all of its rows and on a random part."""
    generator = np.random.default_rng(0)
    kept = [np.sort(generator.permutation(size)[: (size + 1) // 2]) for size in data.sizes]
    chosen = np.concatenate(
        [first + rows for first, rows in zip(np.cumsum(data.sizes) - data.sizes, kept, strict=True)]
    )
    columns = {key: np.asarray(column)[chosen] for key, column in data.rows.columns.items()}
    part = ClientData.from_arrays(columns, client=np.repeat(np.arange(len(kept)), [len(rows) for rows in kept]))
    checked = ((values, _by_client(data, by_row)), (_values(problem, part, params), _by_client(part, by_row[chosen])))
    return [
        looks_like_a_mean(
            (own[:, j], total) for totals, rows in checked for total, own in zip(totals[:, j], rows, strict=True)
        )
        for j in range(values.shape[1])
    ]


def _resampled(
    data: ClientData, client: int, function: int, value: float, params: Params, losses: Losses, error: float
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
    return resampled_interval(np.concatenate(found).astype(float), value, size, error)


@partial(jax.jit, static_argnames="losses")
def _row_values(rows: Rows, params: Params, losses: Losses) -> jax.Array:
    """f and g on every single row."""
    one = jnp.ones(1, float_dtype(params))

    def value(row: dict[str, Any]) -> jax.Array:
        return losses.both(params, {**{key: x[None] for key, x in row.items()}, WEIGHT: one})

    return map_slices(value, rows.columns, 1 << 16)


@partial(jax.jit, static_argnames="losses")
def _on_batches(rows: Rows, picks: jax.Array, weights: jax.Array, params: Params, losses: Losses) -> jax.Array:
    """f and g on batches of the picked rows."""

    def value(indices: jax.Array) -> jax.Array:
        return losses.both(params, rows.take(indices, weights))

    return jax.lax.map(value, picks, batch_size=64)
