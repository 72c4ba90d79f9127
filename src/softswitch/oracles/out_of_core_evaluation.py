"""Evaluate f_i and g_i of every client on data that need not fit in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from softswitch.data.client_data import ClientData, Rows
from softswitch.data.streamed_data import DataOutline, StreamedData
from softswitch.oracles import evaluation
from softswitch.oracles.base import Evaluation
from softswitch.oracles.client_batches import full_data_slice_size
from softswitch.oracles.evaluation import EvaluationPlan, compiled_values, plan_evaluation
from softswitch.oracles.losses import Losses
from softswitch.oracles.row_feed import PrefetchThread, make_store
from softswitch.problem.parameters import WEIGHT, Batch, Params, check_params, float_dtype
from softswitch.problem.problem import Problem
from softswitch.support import checks

MEAN_TEST_ROWS, MEAN_TEST_SPLITS, MEAN_TEST_TOLERANCE = 2**14, 4, 1e-4
"""Maximum number of rows, number of random splits and relative tolerance of ``find_means``."""
MEAN_TEST_DISTANCES = (0.0, 0.1, 1.0)
"""Standard deviations of the random steps from the start at which ``find_means`` tests."""
INDEX_ROWS = 1 << 18
"""Number of row indices that are computed at a time."""


def find_means(data: StreamedData, client: int, losses: Losses, start: Params) -> dict[str, bool]:
    """Test on random splits of a client's rows whether objective and constraint are means over rows.

    A pooled constraint is not tested: its statistics are means by definition.
    """
    total = int(data.sizes[client])
    capacity = max(3, data.buffer_bytes // 2 // data.row_bytes)
    rows = np.unique(np.linspace(0, total - 1, min(total, MEAN_TEST_ROWS, capacity)).astype(np.int64))
    store = data.store(len(rows))
    data.read(int(data.offsets[client, 0]) + rows, store, 0)
    generator, cut = np.random.default_rng(0), len(rows) // 3
    means = {"objective": True, "constraint": True}
    for distance in MEAN_TEST_DISTANCES:
        params = jax.tree.map(
            lambda leaf, d=distance: leaf + d * generator.normal(size=leaf.shape).astype(leaf.dtype), start
        )
        for _ in range(MEAN_TEST_SPLITS):
            order = generator.permutation(len(rows))
            parts = [
                tuple(np.asarray(value, float) for value in _values(params, _batch(store, part, params), losses))
                for part in (order, order[:cut], order[cut:])
            ]
            for name, whole, first, second in zip(means, *parts, strict=True):
                mean = (cut * first + (len(rows) - cut) * second) / len(rows)
                scale = np.maximum(np.abs(first), np.abs(second)) + np.abs(whole)
                means[name] &= bool((np.abs(whole - mean) <= MEAN_TEST_TOLERANCE * scale + 1e-30).all())
    return means | ({"constraint": True} if losses.has_pooled_constraint else {})


def _batch(store: dict[str, np.ndarray], rows: np.ndarray, params: Params) -> Batch:
    weights = jnp.full((len(rows),), 1 / len(rows), float_dtype(params))
    return {**{key: jnp.asarray(column[rows]) for key, column in store.items()}, WEIGHT: weights}


@partial(jax.jit, static_argnames="losses")
def _values(params: Params, batch: Batch, losses: Losses) -> tuple[Any, Any]:
    return losses.objective(params, batch), losses.constraints(params, batch)


class RowBlock(NamedTuple):
    """Clients that are evaluated together, or a part of the rows of one large client.

    Attributes:
        clients: Indices of the clients.
        width: Number of rows for each client, padding included.
        part: First row and end of the part of a single client; None for all rows.
    """

    clients: np.ndarray
    width: int
    part: tuple[int, int] | None = None


class BlockEvaluator:
    """Evaluates all clients in blocks of at most half the buffer each.

    A client that is larger than that is evaluated in parts, which requires functions that are means over rows.

    Args:
        data: The clients' data.
        losses: Functions to evaluate.
        ignoring: Functions that do not read the row weights.
        start: Parameters near which functions are tested for being means.
        may_prefetch: Whether the next block may be read while one is evaluated.
    """

    def __init__(
        self,
        data: StreamedData,
        losses: Losses,
        ignoring: tuple[str, ...],
        start: Params,
        may_prefetch: Callable[[], bool] = lambda: True,
    ) -> None:
        self._data, self._losses, self._ignoring, self._may_prefetch = data, losses, ignoring, may_prefetch
        self._thread, self._half = PrefetchThread(), data.buffer_bytes // 2
        self._plan = plan_evaluation(DataOutline(data, data.evaluation_sizes[:, None]), ignoring)
        large = next((block for block in self._blocks() if block.part is not None), None)
        if large is not None:
            self._check_means(int(large.clients[0]), start)

    def evaluate(self, params: Params) -> Evaluation:
        """Evaluate parameters at every client."""
        objective, constraint, *statistics = self._evaluate_blocks(params)
        if not statistics:
            return Evaluation(objective, constraint)
        sizes = jnp.asarray(self._data.sizes.astype(np.float64), statistics[0].dtype)
        return Evaluation(objective, constraint, np.asarray(_pool(sizes, jnp.asarray(statistics[0]), self._losses)))

    def _evaluate_blocks(self, params: Params) -> list[np.ndarray]:
        """Return f, g and the statistics of a pooled constraint, with clients as the first axis."""
        results: list[np.ndarray] = []
        sums: dict[int, list[np.ndarray]] = {}
        for block, rows in self._read_blocks():
            plan = _single_width_plan(len(block.clients), block.width, self._data.row_bytes)
            computed: tuple[Any, ...] = compiled_values(plan, rows, params, self._losses)
            if self._losses.has_pooled_constraint:
                computed = (*computed, _statistics(plan, rows, params, self._losses))
            values = [np.asarray(value) for value in computed]
            del rows, computed  # before the next block is read
            results = results or [np.zeros((len(self._data), *value.shape[1:]), value.dtype) for value in values]
            if block.part is None:
                for result, value in zip(results, values, strict=True):
                    result[block.clients] = value
                continue
            client = int(block.clients[0])
            share = (block.part[1] - block.part[0]) / int(self._data.evaluation_sizes[client])
            totals = sums.setdefault(client, [np.zeros(value.shape[1:]) for value in values])
            for total, value in zip(totals, values, strict=True):
                total += share * value[0].astype(np.float64)
        for client, totals in sums.items():
            for result, total in zip(results, totals, strict=True):
                result[client] = total
            if self._losses.has_pooled_constraint:
                results[1][client] = np.asarray(self._losses.pool(jnp.asarray(results[2][client])))
        return results

    def _blocks(self) -> Iterator[RowBlock]:
        row_bytes = self._data.row_bytes
        for group, width in zip(self._plan.groups, self._plan.widths, strict=True):
            clients, client_bytes = np.asarray(group), width * row_bytes
            if int(self._data.evaluation_sizes[clients].max()) * row_bytes > self._half:
                for client in clients:
                    yield from self._parts(int(client))
                continue
            together = full_data_slice_size(len(clients), client_bytes)
            # Whole slices if one fits: sums are then those of data in memory, bit for bit.
            count = self._half // (together * client_bytes) * together or max(1, self._half // client_bytes)
            for first in range(0, len(clients), count):
                yield RowBlock(clients[first : first + count], width)

    def _parts(self, client: int) -> Iterator[RowBlock]:
        rows = int(self._data.evaluation_sizes[client])
        width = min(rows, max(1, self._half // self._data.row_bytes))
        if width == rows:
            yield RowBlock(np.asarray([client]), rows)
            return
        for first in range(0, rows, width):
            end = min(rows, first + width)
            yield RowBlock(np.asarray([client]), end - first if self._ignoring else width, (first, end))

    def _read_blocks(self) -> Iterator[tuple[RowBlock, Rows]]:
        if self._may_prefetch():
            yield from self._thread.map(self._read, self._blocks())
        else:
            for block in self._blocks():
                yield block, self._read(block)

    def _read(self, block: RowBlock) -> Rows:
        sizes = self._data.evaluation_sizes[block.clients]
        if block.part is not None:
            sizes = np.asarray([block.part[1] - block.part[0]])
        store, first = make_store(self._data, len(block.clients) * block.width), 0
        for clients, part in _split_indices(block, sizes):
            rows = self._data.evaluation_rows(clients, part)
            self._data.read(rows, store, first)
            first += len(rows)
        columns = {key: jax.device_put(column, may_alias=True) for key, column in store.items()}
        offsets = np.cumsum(sizes) - sizes
        return Rows(columns, *(jnp.asarray(counts.astype(np.int32)[:, None]) for counts in (offsets, sizes)))

    def _check_means(self, client: int, start: Params) -> None:
        means = find_means(self._data, client, self._losses, start)
        wrong = [name for name, is_mean in means.items() if not is_mean]
        if wrong:
            raise ValueError(
                f"client {self._data.names[client]!r} has {int(self._data.evaluation_sizes[client]):,} rows to "
                "evaluate, more "
                f"than fit into half of buffer_bytes = {self._data.buffer_bytes:,}; they can be evaluated in parts "
                f"only if {' and '.join(wrong)} is a mean over rows, and it is not: raise buffer_bytes, or evaluate "
                "fewer rows (max_evaluation_rows)"
            )


def _split_indices(block: RowBlock, sizes: np.ndarray) -> Iterator[tuple[np.ndarray, tuple[int, int] | None]]:
    """Split a block so that row indices take little memory."""
    if len(block.clients) > 1 and block.width <= INDEX_ROWS:
        together = INDEX_ROWS // block.width
        for first in range(0, len(block.clients), together):
            yield block.clients[first : first + together], None
        return
    for client, size in zip(block.clients, sizes, strict=True):
        begin, end = block.part or (0, int(size))
        for first in range(begin, end, INDEX_ROWS):
            yield np.asarray([client]), (first, min(end, first + INDEX_ROWS))


def _single_width_plan(clients: int, width: int, row_bytes: int) -> EvaluationPlan:
    indices = jnp.arange(clients, dtype=jnp.int32)
    return EvaluationPlan((indices,), indices, (width,), row_bytes)


@partial(jax.jit, static_argnames="losses")
def _statistics(plan: EvaluationPlan, rows: Rows, params: Params, losses: Losses) -> Any:
    return plan.map_clients(lambda batch: losses.statistics(params, batch), rows, float_dtype(params))


@partial(jax.jit, static_argnames="losses")
def _pool(sizes: Any, statistics: Any, losses: Losses) -> Any:
    return losses.pool(jnp.tensordot(sizes, statistics, axes=1))


def evaluate(problem: Problem, clients: ClientData | StreamedData, params: Params) -> tuple[np.ndarray, np.ndarray]:
    """Return f_i (one entry a client) and g_i (clients × constraints) on all rows of the clients.

    Args:
        problem: Objective and constraint.
        clients: Training or held-out data. With ``StreamedData(max_evaluation_rows=...)`` only these rows are used.
        params: Parameters, any tree of floating arrays.
    """
    if not isinstance(clients, StreamedData):
        return evaluation.evaluate(problem, clients, params)
    checks.check_instance("problem", problem, Problem)
    params = check_params("params", params)
    ignoring = evaluation.functions_ignoring_weights(problem, DataOutline(clients), params)
    values = BlockEvaluator(clients, Losses.of(problem), ignoring, params).evaluate(params)
    return values.objective, values.constraint
