"""Values of objective and constraints on single rows, and the kind of each function.

A function counts as a mean over rows if the mean of its values on single rows equals its value on all rows and on a
random half of them, at every client whose values differ. A declared gap between two groups counts as one if it equals
the difference of both groups' means.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from softswitch.certification.intervals import (
    MAX_PERTURBATIONS,
    RESAMPLES,
    ErrorLevels,
    applicable,
    gap_interval,
    is_row_mean,
    mean_interval,
    perturb_array,
    resampled_interval,
    unknown_interval,
)
from softswitch.data.client_data import ClientData, Rows
from softswitch.oracles.client_batches import map_slices
from softswitch.oracles.evaluation import evaluate
from softswitch.oracles.losses import Losses
from softswitch.problem.parameters import WEIGHT, Params, float_dtype
from softswitch.problem.pooled import PooledConstraint
from softswitch.problem.problem import Problem
from softswitch.problem.ranges import Range
from softswitch.results.certificate import Interval

BLOCK_ROWS = 1 << 22
"""Number of rows per block of resamples."""


class Kind(StrEnum):
    """Kind of a function of a client's rows."""

    MEAN = "a mean over rows"
    GAP = "a gap between two groups' means"
    OTHER = "something else"


class RowValues:
    """Values of f and then g on every client's rows, at given parameters.

    Args:
        problem: Objective and constraint.
        data: The clients' rows.
        params: Parameters.
        kinds: Kinds of the functions, if known; they do not depend on the parameters.
    """

    def __init__(
        self, problem: Problem, data: ClientData, params: Params, *, kinds: Sequence[Kind] | None = None
    ) -> None:
        self._problem, self._data, self._params = problem, data, params
        self._losses = Losses.of(problem)
        self._kinds = kinds

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of f and then g."""
        if self._kinds is not None:
            return tuple(self._kinds)
        functions = range(self.values.shape[1])
        return tuple(Kind.GAP if j in self.gaps else Kind.MEAN if self.means[j] else Kind.OTHER for j in functions)

    @cached_property
    def values(self) -> np.ndarray:
        """The values on all rows of each client; clients × functions."""
        if self._kinds is None or Kind.OTHER in self._kinds:
            return _evaluate(self._problem, self._data, self._params)
        columns = [
            [abs(_mean(a) - _mean(b)) if len(a) and len(b) else -math.inf for a, b in self.gaps[j]]
            if kind is Kind.GAP
            else [_mean(rows[:, j]) for rows in self.by_client]
            for j, kind in enumerate(self._kinds)
        ]
        return np.array(columns).T

    @cached_property
    def _by_row(self) -> np.ndarray:
        return np.asarray(_row_values(self._data.rows, self._params, self._losses), dtype=float)

    @cached_property
    def by_client(self) -> list[np.ndarray]:
        """The values on single rows, for each client rows × functions."""
        return _split_by_client(self._data, self._by_row)

    @cached_property
    def means(self) -> Sequence[bool]:
        """Whether each function is a mean over rows."""
        if self._kinds is not None:
            return [kind is Kind.MEAN for kind in self._kinds]
        return _find_means(self._problem, self._data, self._params, self.values, self._by_row)

    @cached_property
    def gaps(self) -> dict[int, list[tuple[np.ndarray, np.ndarray]]]:
        """Both groups' values at every client, by the index of each constraint that is a gap."""
        if not isinstance(self._problem.constraint, PooledConstraint) or not self._problem.constraint.gaps:
            return {}
        count = (self.values.shape[1] if self._kinds is None else len(self._kinds)) - 1
        statistics = np.asarray(_row_statistics(self._data.rows, self._params, self._losses), dtype=float)
        if statistics.shape[1] != 4 * count:
            raise ValueError(f"{count} gaps must have four statistics each, but there are {statistics.shape[1]}")
        by_client = _split_by_client(self._data, statistics)
        gaps = {}
        for j in range(1, count + 1):
            k = 4 * (j - 1)
            groups = [(_group_values(rows[:, k : k + 2]), _group_values(rows[:, k + 2 : k + 4])) for rows in by_client]
            if _is_gap(groups, self.values[:, j]) if self._kinds is None else self._kinds[j] is Kind.GAP:
                gaps[j] = groups
        return gaps

    def rows(self, client: int, function: int) -> np.ndarray:
        """Return a function's values on the rows of a client to which it applies."""
        return applicable(self.by_client[client][:, function])

    def interval(self, client: int, function: int, levels: ErrorLevels, bounds: Range | None) -> Interval:
        """Return a confidence interval for a client's function."""
        value, rows = float(self.values[client, function]), self.rows(client, function)
        if not math.isfinite(value):
            return unknown_interval(len(rows))
        if function in self.gaps and bounds is not None:
            return gap_interval(*self.gaps[function][client], levels, bounds)
        if self.means[function] and len(rows):
            return mean_interval(rows, levels, bounds)
        return self._bootstrap_interval(client, function, value, levels)

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
        return resampled_interval(np.concatenate(resampled).astype(float), value, size, levels)


def _group_values(statistics: np.ndarray) -> np.ndarray:
    """Return the values of a group's rows from their statistics: the value times a weight, and the weight."""
    members = statistics[statistics[:, 1] > 0]
    return members[:, 0] / members[:, 1]


def _is_gap(groups: list[tuple[np.ndarray, np.ndarray]], values: np.ndarray) -> bool:
    """Return whether the values are the absolute differences of the group means at every client."""
    return all(
        len(first) > 0
        and len(second) > 0
        and np.isclose(abs(first.mean() - second.mean()), value, rtol=1e-3, atol=1e-4)
        for (first, second), value in zip(groups, values, strict=True)
        if np.isfinite(value)
    )


def _evaluate(problem: Problem, data: ClientData, params: Params) -> np.ndarray:
    """Return f and g of every client on all of its rows; clients × functions."""
    objective, constraint = evaluate(problem, data, params)
    return np.concatenate([objective[:, None], constraint], axis=1)


def _mean(by_row: np.ndarray) -> float:
    """Return the mean over applicable rows; −∞ if there is none."""
    rows = by_row[~np.isneginf(by_row)]
    return float(rows.mean()) if len(rows) else -math.inf


def _split_by_client(data: ClientData, by_row: np.ndarray) -> list[np.ndarray]:
    return np.split(by_row, np.cumsum(data.sizes)[:-1])


def _find_means(
    problem: Problem, data: ClientData, params: Params, values: np.ndarray, by_row: np.ndarray
) -> list[bool]:
    """Return whether each function is a mean, at every client, of all of its rows and of a random half.

    Rows that all have the same value are no evidence. The functions are then tested at perturbed parameters.
    """
    generator = np.random.default_rng(0)
    halves = [np.sort(generator.permutation(size)[: (size + 1) // 2]) for size in data.sizes]
    offsets = np.cumsum(data.sizes) - data.sizes
    chosen = np.concatenate([offset + rows for offset, rows in zip(offsets, halves, strict=True)])
    columns = {key: np.asarray(column)[chosen] for key, column in data.rows.columns.items()}
    half = ClientData.from_arrays(columns, client=np.repeat(np.arange(len(halves)), [len(rows) for rows in halves]))
    answers: list[bool | None] = [None] * values.shape[1]
    losses, perturbed = Losses.of(problem), params
    for attempt in range(1 + MAX_PERTURBATIONS):
        if attempt:
            perturbed = jax.tree.map(
                lambda w, at=attempt: jnp.asarray(perturb_array(np.asarray(w), generator, at)), params
            )
            values = _evaluate(problem, data, perturbed)
            by_row = np.asarray(_row_values(data.rows, perturbed, losses), float)
        half_values = _evaluate(problem, half, perturbed)
        evidence = (
            (values, _split_by_client(data, by_row)),
            (half_values, _split_by_client(half, by_row[chosen])),
        )
        for j, answer in enumerate(answers):
            if answer is None:
                answers[j] = is_row_mean(
                    (rows[:, j], total)
                    for totals, by_client in evidence
                    for total, rows in zip(totals[:, j], by_client, strict=True)
                )
        # A function without a value on any single row, such as a gap, is not a mean, at any parameters.
        if all(answer is not None or len(applicable(by_row[:, j])) == 0 for j, answer in enumerate(answers)):
            break
    return [bool(answer) for answer in answers]


@partial(jax.jit, static_argnames="losses")
def _row_values(rows: Rows, params: Params, losses: Losses) -> jax.Array:
    one = jnp.ones(1, float_dtype(params))

    def value(row: dict[str, Any]) -> jax.Array:
        return losses.values(params, {**{key: x[None] for key, x in row.items()}, WEIGHT: one})

    return map_slices(value, rows.columns, 1 << 16)


@partial(jax.jit, static_argnames="losses")
def _row_statistics(rows: Rows, params: Params, losses: Losses) -> jax.Array:
    one = jnp.ones(1, float_dtype(params))

    def value(row: dict[str, Any]) -> jax.Array:
        statistics = losses.statistics(params, {**{key: x[None] for key, x in row.items()}, WEIGHT: one})
        assert statistics is not None
        return statistics

    return map_slices(value, rows.columns, 1 << 16)


@partial(jax.jit, static_argnames="losses")
def _on_batches(rows: Rows, picks: jax.Array, weights: jax.Array, params: Params, losses: Losses) -> jax.Array:
    def value(indices: jax.Array) -> jax.Array:
        return losses.values(params, rows.take(indices, weights))

    return jax.lax.map(value, picks, batch_size=64)
