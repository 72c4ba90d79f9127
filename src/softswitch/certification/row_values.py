"""Values of objective and constraints on single rows, and whether each function is a mean over rows.

A function counts as a mean over rows if the mean of its values on single rows equals its value on all rows and on a
random half of them, at every client whose values differ. A declared gap between two groups counts as one if it equals
the difference of both groups' means.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from functools import cached_property, partial

import jax
import jax.numpy as jnp
import numpy as np

from softswitch.certification import intervals
from softswitch.certification.intervals import RESAMPLES, ErrorLevels, Ranges, applicable, find_means
from softswitch.data.client_data import ClientData, Rows
from softswitch.oracles.evaluation import Losses, map_slices
from softswitch.oracles.out_of_core import evaluate
from softswitch.privacy.jax_rows import as_batch, evaluate_rows
from softswitch.problem.parameters import Params, float_dtype
from softswitch.problem.problem import PooledConstraint, Problem
from softswitch.problem.ranges import Range, function_ranges
from softswitch.results.certificate import Interval

BLOCK_ROWS = 1 << 22  # largest number of rows that are resampled together


class Kind(StrEnum):
    """How an objective or a constraint depends on a client's rows, which determines its confidence interval."""

    MEAN = "a mean over rows"
    GAP = "a gap between two groups' means"
    OTHER = "something else"


class RowValues:
    """Values of the functions, f and then each g, on every client's rows at given parameters, computed when needed.

    ``kinds`` are the kinds of the functions, which do not depend on the parameters. Default: found from the values.
    """

    def __init__(
        self, problem: Problem, data: ClientData, params: Params, *, kinds: Sequence[Kind] | None = None
    ) -> None:
        self._problem, self._data, self._params = problem, data, params
        self._losses, self._kinds = Losses.of(problem), kinds

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of f and then each g."""
        if self._kinds is not None:
            return tuple(self._kinds)
        means = enumerate(self._find_means())
        return tuple(Kind.GAP if j in self.gaps else Kind.MEAN if is_mean else Kind.OTHER for j, is_mean in means)

    @cached_property
    def values(self) -> np.ndarray:
        """The values on all rows of each client together, clients × functions; −∞ without applicable rows."""
        if self._kinds is None or Kind.OTHER in self._kinds:
            return self._evaluate(self._data, self._params)
        columns = [
            [abs(_mean(a) - _mean(b)) if len(a) and len(b) else -math.inf for a, b in self.gaps[j]]
            if kind is Kind.GAP
            else [_mean(rows[:, j]) for rows in self.by_client]
            for j, kind in enumerate(self._kinds)
        ]
        return np.array(columns).T

    @cached_property
    def by_client(self) -> list[np.ndarray]:
        """The values on single rows, one array (rows × functions) per client."""
        return self._evaluate_rows(self._params)

    def _find_means(self) -> list[bool]:
        """Return whether each function is a mean over rows, at every client on all rows and on a random half."""
        generator, sizes = np.random.default_rng(0), self._data.sizes
        halves = [np.sort(generator.permutation(size)[: (size + 1) // 2]) for size in sizes]
        offsets = np.cumsum(sizes) - sizes
        chosen = np.concatenate([offset + rows for offset, rows in zip(offsets, halves, strict=True)])
        columns = {key: np.asarray(column)[chosen] for key, column in self._data.rows.columns.items()}
        half = ClientData.from_arrays(columns, client=np.repeat(np.arange(len(halves)), list(map(len, halves))))

        def evidence(attempt: int) -> intervals.Evidence:
            params, values, by_client = self._params, self.values, self.by_client
            if attempt:
                params = jax.tree.map(
                    lambda w: jnp.asarray(intervals.perturb_array(np.asarray(w), generator, attempt)), params
                )
                values, by_client = self._evaluate(self._data, params), self._evaluate_rows(params)
            half_rows = [rows[half] for rows, half in zip(by_client, halves, strict=True)]
            half_values = self._evaluate(half, params)
            return [*zip(by_client, values, strict=True), *zip(half_rows, half_values, strict=True)]

        return find_means(evidence, self.values.shape[1])

    @cached_property
    def gaps(self) -> dict[int, list[tuple[np.ndarray, np.ndarray]]]:
        """Values on the rows of both groups, one pair per client, by the index of each function that is a gap."""
        if not isinstance(self._problem.constraint, PooledConstraint) or not self._problem.constraint.gaps:
            return {}
        count = (self.values.shape[1] if self._kinds is None else len(self._kinds)) - 1
        by_client = self._evaluate_rows(self._params, statistics=True)
        statistics = by_client[0].shape[1]
        if statistics != 4 * count:
            raise ValueError(f"{count} gaps must have four statistics each, but there are {statistics}")
        gaps = {}
        for j in range(1, count + 1):
            k = 4 * (j - 1)
            groups = [(_group_values(rows[:, k : k + 2]), _group_values(rows[:, k + 2 : k + 4])) for rows in by_client]
            if _is_gap(groups, self.values[:, j]) if self._kinds is None else self._kinds[j] is Kind.GAP:
                gaps[j] = groups
        return gaps

    def rows(self, client: int, function: int) -> np.ndarray:
        """Return the values of the function with index ``function`` on the applicable rows of a client."""
        return applicable(self.by_client[client][:, function])

    def interval(self, client: int, function: int, levels: ErrorLevels, bounds: Range | None) -> Interval:
        """Return the confidence interval of a function at a client; ``bounds`` is its range on a row, if known."""
        value, rows = float(self.values[client, function]), self.rows(client, function)
        if not math.isfinite(value):
            return intervals.unknown_interval(len(rows))
        if function in self.gaps and bounds is not None:
            return intervals.gap_interval(*self.gaps[function][client], levels, bounds)
        if self.kinds[function] is Kind.MEAN and len(rows):
            return intervals.mean_interval(rows, levels, bounds)
        return self._bootstrap_interval(client, function, value, levels)

    def _evaluate(self, data: ClientData, params: Params) -> np.ndarray:
        """Return f and then each g of every client on all of its rows, clients × functions."""
        objective, constraint = evaluate(self._problem, data, params)
        return np.concatenate([objective[:, None], constraint], axis=1)

    def _evaluate_rows(self, params: Params, *, statistics: bool = False) -> list[np.ndarray]:
        """Return the values, or a pooled constraint's statistics, on single rows: rows × functions per client."""
        by_row = np.asarray(_on_rows(self._data.rows, params, self._losses, statistics), dtype=float)
        return np.split(by_row, np.cumsum(self._data.sizes)[:-1])

    def _bootstrap_interval(self, client: int, function: int, value: float, levels: ErrorLevels) -> Interval:
        data, size = self._data, int(self._data.sizes[client])
        first = int(data.rows.offsets[client, 0])
        width = 1 << (size - 1).bit_length()  # few widths, hence few compiled programs
        weights = jnp.asarray((np.arange(width) < size) / size, float_dtype(self._params))
        generator = np.random.default_rng(client)
        block = max(1, min(RESAMPLES, BLOCK_ROWS // width))
        resampled = []
        for _ in range(math.ceil(RESAMPLES / block)):
            picks = first + generator.integers(size, size=(block, width), dtype=np.int32)
            values = _on_batches(data.rows, jnp.asarray(picks), weights, self._params, self._losses)
            resampled.append(np.asarray(values)[:, function])
        return intervals.resampled_interval(np.concatenate(resampled).astype(float), value, size, levels)


def values_apart(problem: Problem, data: ClientData, params: Params) -> list[np.ndarray]:
    """Return the values on single rows, rows × functions per client, with rounding that no other row changes."""
    by_row = np.asarray(_apart(Losses.of(problem), params, data.rows.columns), dtype=float)
    return np.split(by_row, np.cumsum(data.sizes)[:-1])


def row_ranges(problem: Problem, data: ClientData, params: Params | None = None) -> list[Range | None]:
    """Return the ranges of f and then each g on a row, traced with ``params`` (default: the start); None if unknown."""
    params = problem.start if params is None else params
    constraints = problem.trace(data.rows.batch_shapes(1, float_dtype(params)), params).constraints
    return function_ranges(problem.objective_range, problem.constraint_range, constraints)


def compute_intervals(
    params: Params,
    problem: Problem,
    held_out: ClientData,
    levels: ErrorLevels,
    ranges: Ranges,
    kinds: Sequence[Kind] | None = None,
) -> list[list[Interval]]:
    """Return the intervals of f and then each g, for each client of ``held_out``."""
    rows = RowValues(problem, held_out, params, kinds=kinds)
    functions = list(enumerate(ranges))
    return [[rows.interval(i, j, levels, bounds) for j, bounds in functions] for i in range(len(held_out))]


def _group_values(statistics: np.ndarray) -> np.ndarray:
    """Return the values of a group's rows; the columns of ``statistics`` are value × weight, and weight."""
    members = statistics[statistics[:, 1] > 0]
    return members[:, 0] / members[:, 1]


def _is_gap(groups: list[tuple[np.ndarray, np.ndarray]], values: np.ndarray) -> bool:
    """Return whether each client's value is the absolute difference of its two group means."""
    known = [(*pair, value) for pair, value in zip(groups, values, strict=True) if np.isfinite(value)]
    return all(
        len(a) > 0 and len(b) > 0 and np.isclose(abs(a.mean() - b.mean()), value, rtol=1e-3, atol=1e-4)
        for a, b, value in known
    )


def _mean(by_row: np.ndarray) -> float:
    """Return the mean over applicable rows; −∞ if there is none."""
    rows = by_row[~np.isneginf(by_row)]
    return float(rows.mean()) if len(rows) else -math.inf


@partial(jax.jit, static_argnames=("losses", "statistics"))
def _on_rows(rows: Rows, params: Params, losses: Losses, statistics: bool) -> jax.Array:
    function = losses.statistics if statistics else losses.values
    return map_slices(lambda row: function(params, as_batch(row, params)), rows.columns, 1 << 16)


_apart = partial(jax.jit, static_argnames="losses")(evaluate_rows)


@partial(jax.jit, static_argnames="losses")
def _on_batches(rows: Rows, picks: jax.Array, weights: jax.Array, params: Params, losses: Losses) -> jax.Array:
    return jax.lax.map(lambda indices: losses.values(params, rows.take(indices, weights)), picks, batch_size=64)
