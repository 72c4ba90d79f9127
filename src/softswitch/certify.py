"""certify(): which clients meet their constraints, and with what certainty, from rows not trained on.

A bound on a client's mean holds where its values on single rows are independent draws and lie in a known range
[low, high]. With n rows, mean x̄, sample variance s² and error probability p, the truth is at most x̄ + width, and
likewise at least x̄ − width, where width is the smaller of

    Hoeffding:            (high − low)·√(ln(1/p)/(2n))
    empirical Bernstein:  √(2s² ln(2/p)/n) + 7(high − low)·ln(2/p)/(3(n − 1))        (Maurer and Pontil, 2009)

each at p/2, so that both may be looked at. Without a range, or for a function that is not a mean over rows (a parity
gap), there is no such promise: the bound is then x̄ ± z·(standard error) and is labelled approximate.

All statements hold together with the confidence asked for: its error probability is divided by their number
(Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from softswitch import checks
from softswitch.certificate import Certificate, ClientCertificate, Interval, Verdict
from softswitch.clients import ClientData, Rows
from softswitch.losses import Losses
from softswitch.problem import WEIGHT, Params, Problem, float_dtype
from softswitch.result import Result
from softswitch.slices import map_slices
from softswitch.solve import evaluate

Range = tuple[float, float]
RESAMPLES = 400  # for functions that are not a mean over rows
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
    say) belongs to no mean and is left out. Of a client without any row that a function concerns nothing is known.

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
    ranges = [_checked_range("objective_range", objective_range), *_each(constraint_range, functions - 1)]
    losses = Losses(problem.objective, problem.constraint)
    by_row = np.asarray(_row_values(held_out.rows, params, losses), dtype=float)
    means = _are_means(problem, held_out, params, values, by_row)
    # Two sides of every function of every client.
    each = error / (2 * values.size)
    found = []
    for i, (name, own) in enumerate(zip(held_out.names, _by_client(held_out, by_row), strict=True)):
        intervals = []
        for j in range(functions):
            rows = _concerned(own[:, j])
            if not math.isfinite(values[i, j]):
                intervals.append(Interval(math.nan, -math.inf, math.inf, len(rows), math.inf, approximate=True))
            elif means[j] and len(rows):
                intervals.append(mean_interval(rows, each, ranges[j]))
            else:
                intervals.append(_resampled(held_out, i, j, float(values[i, j]), params, losses, each))
        objective, *constraints = intervals
        verdict, needed = _judge(constraints, limit, each, ranges[1:])
        found.append(ClientCertificate(name, objective, tuple(constraints), verdict, needed))
    return Certificate(limit, confidence, tuple(found))


def _values(problem: Problem, data: ClientData, params: Params) -> np.ndarray:
    """f and g of every client on all of its rows, side by side."""
    objective, constraint = evaluate(problem, data, params)
    return np.concatenate([objective[:, None], constraint], axis=1)


def _concerned(by_row: np.ndarray) -> np.ndarray:
    """The values on the rows that a function concerns."""
    return by_row[~(np.isnan(by_row) | np.isneginf(by_row))]


def _by_client(data: ClientData, by_row: np.ndarray) -> list[np.ndarray]:
    return np.split(by_row, np.cumsum(data.sizes)[:-1])


def _are_means(
    problem: Problem, data: ClientData, params: Params, values: np.ndarray, by_row: np.ndarray
) -> list[bool]:
    """Which functions are means over rows: they are so at every client, on all of its rows and on a random part.

    A client whose rows all have the same value is no evidence: there almost any function looks like a mean. Without
    evidence from any client the answer is no.
    """
    generator = np.random.default_rng(0)
    kept = [np.sort(generator.permutation(size)[: (size + 1) // 2]) for size in data.sizes]
    chosen = np.concatenate(
        [first + rows for first, rows in zip(np.cumsum(data.sizes) - data.sizes, kept, strict=True)]
    )
    columns = {key: np.asarray(column)[chosen] for key, column in data.rows.columns.items()}
    part = ClientData.from_arrays(columns, client=np.repeat(np.arange(len(kept)), [len(rows) for rows in kept]))
    checked = ((values, _by_client(data, by_row)), (_values(problem, part, params), _by_client(part, by_row[chosen])))
    answers = []
    for j in range(values.shape[1]):
        evidence = []
        for totals, rows in checked:
            for total, own in zip(totals[:, j], rows, strict=True):
                valid = _concerned(own[:, j])
                if len(valid) > 1 and np.ptp(valid) > 0:
                    evidence.append(np.isclose(valid.mean(), total, rtol=1e-4, atol=1e-5 * np.abs(valid).max()))
        answers.append(bool(evidence) and all(evidence))
    return answers


def mean_interval(rows: np.ndarray, error: float, bounds: Range | None) -> Interval:
    """Where the mean of the distribution lies from which ``rows`` were drawn; ``error`` is that of each side."""
    estimate, deviation = float(rows.mean()), float(rows.std(ddof=1)) if len(rows) > 1 else math.inf
    if bounds is not None:
        low, high = bounds
        slack = 1e-6 * max(high - low, abs(low), abs(high))  # float32
        if rows.min() < low - slack or rows.max() > high + slack:
            raise ValueError(f"values from {rows.min():.6g} to {rows.max():.6g} lie outside their range {bounds!r}")
    width = _width(len(rows), deviation, error, bounds)
    lower, upper = estimate - width, estimate + width
    if bounds is not None:
        lower, upper = max(lower, bounds[0]), min(upper, bounds[1])
    return Interval(estimate, lower, upper, len(rows), deviation, approximate=bounds is None)


def _width(n: int, deviation: float, error: float, bounds: Range | None) -> float:
    """How far the truth may be from the estimate, on either side."""
    if bounds is None:
        # Rows that are all equal tell nothing of how far others lie.
        return float(stats.t(n - 1).isf(error)) * deviation / math.sqrt(n) if n > 1 and deviation > 0 else math.inf
    span, half = bounds[1] - bounds[0], error / 2
    hoeffding = span * math.sqrt(math.log(1 / half) / (2 * n))
    if n < 2:
        return hoeffding
    log = math.log(2 / half)
    bernstein = math.sqrt(2 * deviation**2 * log / n) + 7 * span * log / (3 * (n - 1))
    return min(hoeffding, bernstein)


def _judge(
    intervals: Sequence[Interval], limit: float, error: float, ranges: Sequence[Range | None]
) -> tuple[Verdict, int | None]:
    """The verdict on a client's constraints, and how many more rows would probably decide an open one."""
    if any(interval.lower > limit for interval in intervals):
        return Verdict.VIOLATES, None
    if all(interval.upper <= limit for interval in intervals):
        return Verdict.MEETS, None
    needed = 0
    for interval, bounds in zip(intervals, ranges, strict=True):
        if interval.upper <= limit:
            continue
        margin = abs(limit - interval.estimate)
        more = _rows_needed(interval, margin, error, None if interval.approximate else bounds)
        if more is None:
            return Verdict.UNCLEAR, None
        needed = max(needed, more)
    return Verdict.UNCLEAR, needed


def _rows_needed(interval: Interval, margin: float, error: float, bounds: Range | None) -> int | None:
    """How many more rows, with the same mean and scatter, make the width smaller than the margin."""
    deviation = interval.deviation
    if not margin > 0 or (bounds is None and not 0 < deviation < math.inf):
        return None
    low, high = interval.rows, 2 * interval.rows
    while _width(high, deviation, error, bounds) >= margin:
        low, high = high, 2 * high
        if high > 10**12:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _width(middle, deviation, error, bounds) < margin else (middle, high)
    return high - interval.rows


def _resampled(
    data: ClientData, client: int, function: int, value: float, params: Params, losses: Losses, error: float
) -> Interval:
    """An approximate interval for what is not a mean over rows: normal, with the bootstrap's standard error.

    Where a resample in a hundred has no value, or all have the same, the rows are too few to say anything.
    """
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
    resampled = np.concatenate(found).astype(float)
    finite = resampled[np.isfinite(resampled)]
    known = len(finite) >= 0.99 * len(resampled)
    spread = float(finite.std(ddof=1)) if known else 0.0
    margin = float(stats.norm.isf(error)) * spread if spread > 0 else math.inf
    deviation = spread * math.sqrt(size) if spread > 0 else math.inf
    return Interval(value, value - margin, value + margin, size, deviation, approximate=True)


def _each(ranges: Any, count: int) -> list[Range | None]:
    """One range a constraint."""
    if ranges is None or (np.ndim(ranges) == 1 and len(ranges) == 2 and None not in ranges):
        return [_checked_range("constraint_range", ranges)] * count
    if np.ndim(ranges) == 0 or len(ranges) != count:
        raise ValueError(
            f"constraint_range must be one range, or one for each of {count} constraints, but is {ranges!r}"
        )
    return [_checked_range("constraint_range", interval) for interval in ranges]


def _checked_range(name: str, interval: Any) -> Range | None:
    if interval is None:
        return None
    if np.shape(interval) != (2,) or not interval[0] < interval[1]:
        raise ValueError(f"{name} must be (low, high) with low < high, but is {interval!r}")
    return float(interval[0]), float(interval[1])


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
