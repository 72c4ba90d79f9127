"""What objective and constraint are on single rows, and what kind of function each of them is: what limits are made of.

A function counts as a mean over rows if the mean of its values on single rows is its value on all of them, and on a
random half of them, at every client whose rows differ. A declared gap between two groups is one if both groups' means
give its value. Anything else has a value on all rows, and nothing more is known of it.
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
    OTHER_PARAMS,
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

BLOCK_ROWS = 1 << 22  # of resamples at once


class Kind(StrEnum):
    """What a function of a client's rows is."""

    MEAN = "a mean over rows"
    GAP = "a gap between two groups' means"
    OTHER = "something else"


class RowValues:
    """f and then g of every client's rows at some parameters."""

    def __init__(
        self, problem: Problem, data: ClientData, params: Params, *, kinds: Sequence[Kind] | None = None
    ) -> None:
        """``kinds``: what the functions are, where that is known; it does not depend on the parameters."""
        self._problem, self._data, self._params = problem, data, params
        self._losses = Losses.of(problem)
        self._known = kinds

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """What the functions are."""
        if self._known is not None:
            return tuple(self._known)
        many = self.values.shape[1]
        return tuple(Kind.GAP if j in self.gaps else Kind.MEAN if self.means[j] else Kind.OTHER for j in range(many))

    @cached_property
    def values(self) -> np.ndarray:
        """On all rows of each client; clients × functions."""
        if self._known is None or Kind.OTHER in self._known:
            return _values(self._problem, self._data, self._params)
        found = [
            [abs(_mean(a) - _mean(b)) if len(a) and len(b) else -math.inf for a, b in self.gaps[j]]
            if kind is Kind.GAP
            else [_mean(own[:, j]) for own in self.by_client]
            for j, kind in enumerate(self._known)
        ]
        return np.array(found).T

    @cached_property
    def _by_row(self) -> np.ndarray:
        return np.asarray(_row_values(self._data.rows, self._params, self._losses), dtype=float)

    @cached_property
    def by_client(self) -> list[np.ndarray]:
        """On single rows; for each client rows × functions."""
        return _by_client(self._data, self._by_row)

    @cached_property
    def means(self) -> Sequence[bool]:
        """Which functions are means over rows."""
        if self._known is not None:
            return [kind is Kind.MEAN for kind in self._known]
        return _are_means(self._problem, self._data, self._params, self.values, self._by_row)

    @cached_property
    def gaps(self) -> dict[int, list[tuple[np.ndarray, np.ndarray]]]:
        """By constraint declared to be a gap: both groups' values at every client; only where that gives its value."""
        if not isinstance(self._problem.constraint, PooledConstraint) or not self._problem.constraint.gaps:
            return {}
        many = (self.values.shape[1] if self._known is None else len(self._known)) - 1
        told = np.asarray(_row_statistics(self._data.rows, self._params, self._losses), dtype=float)
        if told.shape[1] != 4 * many:
            raise ValueError(f"{many} gaps must have four statistics each, but there are {told.shape[1]}")
        by_client = _by_client(self._data, told)
        found = {}
        for j in range(1, many + 1):
            first = 4 * (j - 1)
            parts = [
                [own[own[:, k + 1] > 0, k] / own[own[:, k + 1] > 0, k + 1] for k in (first, first + 2)]
                for own in by_client
            ]
            if self._known is not None:
                if self._known[j] is Kind.GAP:
                    found[j] = [(a, b) for a, b in parts]
                continue
            values = self.values[:, j]
            known = [pair for pair, value in zip(parts, values, strict=True) if np.isfinite(value)]
            agrees = all(
                np.isclose(abs(a.mean() - b.mean()), value, rtol=1e-3, atol=1e-4)
                for (a, b), value in zip(parts, values, strict=True)
                if np.isfinite(value) and len(a) and len(b)
            )
            if agrees and all(len(a) and len(b) for a, b in known):
                found[j] = [(a, b) for a, b in parts]
        return found

    def rows(self, client: int, function: int) -> np.ndarray:
        """A function's values on the rows of a client that it concerns."""
        return applicable(self.by_client[client][:, function])

    def interval(self, client: int, function: int, levels: ErrorLevels, bounds: Range | None) -> Interval:
        """Where a client's function lies, by these rows."""
        value, rows = float(self.values[client, function]), self.rows(client, function)
        if not math.isfinite(value):
            return unknown_interval(len(rows))
        if function in self.gaps and bounds is not None:
            return gap_interval(*self.gaps[function][client], levels, bounds)
        if self.means[function] and len(rows):
            return mean_interval(rows, levels, bounds)
        return self._resampled(client, function, value, levels)

    def _resampled(self, client: int, function: int, value: float, levels: ErrorLevels) -> Interval:
        """An approximate interval for what is not a mean over rows, from its values on resamples of them."""
        data, size = self._data, int(self._data.sizes[client])
        first = int(data.rows.offsets[client, 0])
        width = 1 << (size - 1).bit_length()  # few widths, few programs
        weights = jnp.asarray((np.arange(width) < size) / size, float_dtype(self._params))
        generator = np.random.default_rng(client)
        block = max(1, min(RESAMPLES, BLOCK_ROWS // width))
        found = []
        for _ in range(math.ceil(RESAMPLES / block)):
            picks = first + generator.integers(size, size=(block, width), dtype=np.int32)
            values = _on_batches(data.rows, jnp.asarray(picks), weights, self._params, self._losses)
            found.append(np.asarray(values)[:, function])
        return resampled_interval(np.concatenate(found).astype(float), value, size, levels)


def _values(problem: Problem, data: ClientData, params: Params) -> np.ndarray:
    """f and g of every client on all of its rows, side by side."""
    objective, constraint = evaluate(problem, data, params)
    return np.concatenate([objective[:, None], constraint], axis=1)


def _mean(by_row: np.ndarray) -> float:
    """Over the rows that a function concerns; −∞ without any, NaN where any is."""
    rows = by_row[~np.isneginf(by_row)]
    return float(rows.mean()) if len(rows) else -math.inf


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
            other = jax.tree.map(lambda w, at=attempt: jnp.asarray(perturb_array(np.asarray(w), generator, at)), params)
            values, by_row = _values(problem, data, other), np.asarray(_row_values(data.rows, other, losses), float)
        partial = _values(problem, part, other)
        checked = ((values, _by_client(data, by_row)), (partial, _by_client(part, by_row[chosen])))
        for j, answer in enumerate(answers):
            if answer is None:
                answers[j] = is_row_mean(
                    (own[:, j], total)
                    for totals, rows in checked
                    for total, own in zip(totals[:, j], rows, strict=True)
                )
        # What no single row has, such as a gap between groups, is no mean at any parameters.
        if all(answer is not None or len(applicable(by_row[:, j])) == 0 for j, answer in enumerate(answers)):
            break
    return [bool(answer) for answer in answers]


@partial(jax.jit, static_argnames="losses")
def _row_values(rows: Rows, params: Params, losses: Losses) -> jax.Array:
    """f and g on every single row."""
    one = jnp.ones(1, float_dtype(params))

    def value(row: dict[str, Any]) -> jax.Array:
        return losses.values(params, {**{key: x[None] for key, x in row.items()}, WEIGHT: one})

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
        return losses.values(params, rows.take(indices, weights))

    return jax.lax.map(value, picks, batch_size=64)
