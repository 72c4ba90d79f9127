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
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from scipy import stats

from softswitch import checks
from softswitch.clients import ClientData, Rows
from softswitch.losses import Losses
from softswitch.problem import WEIGHT, Params, Problem, float_dtype
from softswitch.result import Result
from softswitch.slices import map_slices
from softswitch.solve import evaluate

Range = tuple[float, float]
RESAMPLES = 400  # for functions that are not a mean over rows


class Verdict(StrEnum):
    """What the held-out rows say of a client or of all."""

    MEETS = "meets"
    UNCLEAR = "cannot tell"
    VIOLATES = "violates"


@dataclass(frozen=True)
class Interval:
    """A mean and where the truth lies.

    Attributes:
        estimate: on the held-out rows.
        lower: the truth is at least this,
        upper: and at most this, together with all other intervals of the certificate.
        rows: how many rows it rests on.
        deviation: the standard deviation of one row.
        approximate: whether it is a normal approximation instead of a promise.
    """

    estimate: float
    lower: float
    upper: float
    rows: int
    deviation: float
    approximate: bool


@dataclass(frozen=True)
class ClientCertificate:
    """What is known of one client.

    Attributes:
        client: its label.
        objective: f_i.
        constraints: g_i, one interval a constraint.
        verdict: on its constraints.
        rows_needed: where it cannot be told: how many more rows of this client would probably decide; None where no
            number would.
    """

    client: Any
    objective: Interval
    constraints: tuple[Interval, ...]
    verdict: Verdict
    rows_needed: int | None = None


@dataclass(frozen=True)
class Certificate:
    """Which clients meet the tolerance, with what certainty.

    Attributes:
        tolerance: what g_i may be at most.
        confidence: the probability with which all statements hold together.
        clients: one certificate a client.
    """

    tolerance: float
    confidence: float
    clients: tuple[ClientCertificate, ...]

    @property
    def verdict(self) -> Verdict:
        """On all clients: "meets" if every one meets, "violates" if any violates."""
        verdicts = {client.verdict for client in self.clients}
        for verdict in (Verdict.VIOLATES, Verdict.UNCLEAR):
            if verdict in verdicts:
                return verdict
        return Verdict.MEETS

    @property
    def approximate(self) -> bool:
        """Whether any interval is a normal approximation instead of a promise."""
        return any(i.approximate for client in self.clients for i in (client.objective, *client.constraints))

    @property
    def worst_objective(self) -> float:
        """An upper bound on F, the worst client's objective."""
        return max(client.objective.upper for client in self.clients)

    @property
    def worst_constraint(self) -> float:
        """An upper bound on G, the largest constraint of any client."""
        return max(interval.upper for client in self.clients for interval in client.constraints)

    def to_dict(self) -> dict[str, Any]:
        """The certificate as plain numbers and words, for JSON."""
        return {
            "verdict": str(self.verdict),
            "approximate": self.approximate,
            "worst_objective": self.worst_objective,
            "worst_constraint": self.worst_constraint,
            **asdict(self),
        }

    def table(self) -> Table:
        """The certificate as a table for the terminal, the largest upper bound first."""
        title = f"Constraint <= {self.tolerance:g} with confidence {self.confidence:g}: {self.verdict}"
        table = Table("client", "rows", "objective at most", "constraint", "constraint at most", "verdict", title=title)
        if self.approximate:
            table.caption = "Approximate bounds: no range of the losses is known, or they are not means over rows."
        for client in sorted(self.clients, key=lambda c: -max(i.upper for i in c.constraints)):
            worst = max(client.constraints, key=lambda interval: interval.upper)
            more = f" ({client.rows_needed:,} more rows)" if client.rows_needed else ""
            table.add_row(
                escape(str(client.client)),
                f"{worst.rows:,}",
                f"{client.objective.upper:.4g}",
                f"{worst.estimate:.4g}",
                f"{worst.upper:.4g}",
                f"{client.verdict}{more}",
            )
        return table

    def __str__(self) -> str:
        console = Console(width=110)
        with console.capture() as capture:
            console.print(self.table())
        return capture.get()


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

    A client's function counts as a mean over rows if the mean of its values on single rows is its value on all of them.
    A row on which it is NaN (a loss of another class, say) belongs to no mean and is left out.

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
    objective, constraint = evaluate(problem, held_out, params)
    ranges = [objective_range, *_each(constraint_range, constraint.shape[1])]
    for interval in ranges:
        if interval is not None and not (len(interval) == 2 and interval[0] < interval[1]):
            raise ValueError(f"a range must be (low, high) with low < high, but is {interval!r}")
    values = np.concatenate([objective[:, None], constraint], axis=1)
    losses = Losses(problem.objective, problem.constraint)
    by_row = np.asarray(_row_values(held_out.rows, params, losses), dtype=float)
    # Two sides of every function of every client.
    each = error / (2 * values.size)
    ends = np.cumsum(held_out.sizes)
    found = []
    for i, name in enumerate(held_out.names):
        own = by_row[ends[i] - held_out.sizes[i] : ends[i]]
        intervals = []
        for j, bounds in enumerate(ranges):
            rows = own[:, j][~np.isnan(own[:, j])]
            if len(rows) and np.isclose(rows.mean(), values[i, j], rtol=1e-4, atol=1e-6):
                intervals.append(mean_interval(rows, each, bounds))
            else:
                intervals.append(_resampled(held_out, i, j, float(values[i, j]), params, losses, each))
        objective_interval, *constraints = intervals
        verdict, needed = _judge(constraints, limit, each, ranges[1:])
        found.append(ClientCertificate(name, objective_interval, tuple(constraints), verdict, needed))
    return Certificate(limit, confidence, tuple(found))


def mean_interval(rows: np.ndarray, error: float, bounds: Range | None) -> Interval:
    """Where the mean of the distribution lies from which ``rows`` were drawn; ``error`` is that of each side."""
    estimate, deviation = float(rows.mean()), float(rows.std(ddof=1)) if len(rows) > 1 else math.inf
    if bounds is not None:
        low, high = bounds
        if rows.min() < low - 1e-9 or rows.max() > high + 1e-9:
            raise ValueError(f"a value of {rows.min():.6g} or {rows.max():.6g} lies outside its range {bounds!r}")
    width = _width(len(rows), deviation, error, bounds)
    lower, upper = estimate - width, estimate + width
    if bounds is not None:
        lower, upper = max(lower, bounds[0]), min(upper, bounds[1])
    return Interval(estimate, lower, upper, len(rows), deviation, approximate=bounds is None)


def _width(n: int, deviation: float, error: float, bounds: Range | None) -> float:
    """How far the truth may be from the estimate, on either side."""
    if bounds is None:
        return float(stats.t(n - 1).isf(error)) * deviation / math.sqrt(n) if n > 1 else math.inf
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
        more = _rows_needed(interval, margin, error, bounds)
        if more is None:
            return Verdict.UNCLEAR, None
        needed = max(needed, more)
    return Verdict.UNCLEAR, needed


def _rows_needed(interval: Interval, margin: float, error: float, bounds: Range | None) -> int | None:
    """How many more rows, with the same mean and scatter, make the width smaller than the margin."""
    deviation = interval.deviation
    if margin <= 0 or not math.isfinite(deviation):
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
    """An approximate interval for what is not a mean over rows: normal, with the bootstrap's standard error."""
    size = int(data.sizes[client])
    first = int(data.rows.offsets[client, 0])
    picks = np.random.default_rng(client).integers(size, size=(RESAMPLES, size)) + first
    found = np.asarray(_on_batches(data.rows, jnp.asarray(picks), params, losses), dtype=float)[:, function]
    found = found[np.isfinite(found)]
    spread = float(found.std(ddof=1)) if len(found) > 1 and size > 1 else math.inf
    width = float(stats.norm.isf(error)) * spread
    return Interval(value, value - width, value + width, size, spread * math.sqrt(size), approximate=True)


def _each(ranges: Any, count: int) -> list[Range | None]:
    """One range a constraint."""
    if ranges is None or np.ndim(ranges[0]) == 0:
        return [ranges] * count
    if len(ranges) != count:
        raise ValueError(
            f"constraint_range must be one range, or one for each of {count} constraints, but is {ranges!r}"
        )
    return list(ranges)


def _functions(losses: Losses, params: Params, batch: dict[str, Any]) -> jax.Array:
    return jnp.concatenate([losses.objective(params, batch)[None], losses.constraints(params, batch)])


@partial(jax.jit, static_argnames="losses")
def _row_values(rows: Rows, params: Params, losses: Losses) -> jax.Array:
    """f and g on every single row."""
    one = jnp.ones(1, float_dtype(params))

    def value(row: dict[str, Any]) -> jax.Array:
        return _functions(losses, params, {**{key: x[None] for key, x in row.items()}, WEIGHT: one})

    return map_slices(value, rows.columns, 1 << 16)


@partial(jax.jit, static_argnames="losses")
def _on_batches(rows: Rows, picks: jax.Array, params: Params, losses: Losses) -> jax.Array:
    """f and g on batches of equally weighted rows."""
    weights = jnp.full(picks.shape[1], 1 / picks.shape[1], float_dtype(params))

    def value(indices: jax.Array) -> jax.Array:
        return _functions(losses, params, rows.take(indices, weights))

    return jax.lax.map(value, picks, batch_size=64)
