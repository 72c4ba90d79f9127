"""Evaluate f_i and g_i of every client on data that need not fit in memory."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from softswitch.data.client_data import ClientData, Rows
from softswitch.data.streamed_data import DataOutline, StreamedData
from softswitch.oracles import evaluation
from softswitch.oracles.base import Evaluation
from softswitch.oracles.evaluation import EvaluationPlan, Losses, compiled_values, make_evaluator, plan_evaluation
from softswitch.problem.parameters import Params, check_params
from softswitch.problem.problem import Problem
from softswitch.support import checks

INDEX_ROWS = 1 << 18
"""Number of row indices that are computed at a time."""
_statistics = jax.jit(evaluation.client_statistics, static_argnames="losses")


def make_store(data: StreamedData, rows: int) -> dict[str, np.ndarray]:
    """Allocate columns for this number of rows, after the memory of deleted arrays is released."""
    jax.device_put(np.zeros(()))  # JAX releases host memory of deleted arrays at the next transfer
    return data.store(rows)


def put_store(store: dict[str, np.ndarray]) -> dict[str, jax.Array]:
    """Hand the columns over to JAX."""
    return {key: jax.device_put(column, may_alias=True) for key, column in store.items()}


class BlockEvaluator:
    """Evaluates all clients in blocks of clients, each with at most half the buffer of rows."""

    def __init__(self, problem: Problem, data: StreamedData, start: Params) -> None:
        self._data, self._losses, self._half = data, Losses.of(problem), data.buffer_bytes // 2
        outline = DataOutline(data, data.evaluation_sizes[:, None])
        self._plan = plan_evaluation(outline, evaluation.functions_ignoring_weights(problem, outline, start))
        largest = int(np.argmax(data.evaluation_sizes))
        rows = int(data.evaluation_sizes[largest])
        if max(self._plan.widths) * data.row_bytes > self._half:
            raise ValueError(
                f"client {data.names[largest]!r} has {rows:,} rows to evaluate, more than fit into half of "
                f"buffer_bytes = {data.buffer_bytes:,} together with their padding; raise buffer_bytes, or evaluate "
                "fewer rows (max_evaluation_rows)"
            )

    def evaluate(self, params: Params) -> Evaluation:
        """Evaluate parameters at every client."""
        data, losses = self._data, self._losses
        parts: list[list[np.ndarray]] = []  # f, g and the statistics of a pooled constraint
        blocks = list(self._blocks())
        for clients, width in blocks:
            rows = self._read(clients, width)
            indices = jnp.arange(len(clients), dtype=jnp.int32)
            plan = EvaluationPlan((indices,), indices, (width,), data.row_bytes)
            computed: tuple[Any, ...] = compiled_values(plan, rows, params, losses)
            if losses.has_pooled_constraint:
                computed = (*computed, _statistics(plan, rows, params, losses))
            parts.append([np.asarray(value) for value in computed])
            del rows, computed  # before the next block is read
        order = np.argsort(np.concatenate([clients for clients, _ in blocks]))
        objective, constraint, *statistics = (np.concatenate(values)[order] for values in zip(*parts, strict=True))
        if not statistics:
            return Evaluation(objective, constraint)
        sizes = jnp.asarray(data.sizes.astype(np.float64), statistics[0].dtype)
        return Evaluation(objective, constraint, np.asarray(_pool(sizes, jnp.asarray(statistics[0]), losses)))

    def _blocks(self) -> Iterator[tuple[np.ndarray, int]]:
        """Yield clients that are evaluated together, and the number of rows of each."""
        for group, width in zip(self._plan.groups, self._plan.widths, strict=True):
            client_bytes = width * self._data.row_bytes
            together = evaluation.full_data_slice_size(len(group), client_bytes)
            # Whole slices if one fits: sums are then those of data in memory, bit for bit.
            count = self._half // (together * client_bytes) * together or self._half // client_bytes
            for first in range(0, len(group), count):
                yield np.asarray(group[first : first + count]), width

    def _read(self, clients: np.ndarray, width: int) -> Rows:
        store, first, together = make_store(self._data, len(clients) * width), 0, max(1, INDEX_ROWS // width)
        for begin in range(0, len(clients), together):
            rows = self._data.evaluation_rows(clients[begin : begin + together])
            self._data.read(rows, store, first)
            first += len(rows)
        sizes = self._data.evaluation_sizes[clients]
        offsets = np.cumsum(sizes) - sizes
        return Rows(put_store(store), *(jnp.asarray(part.astype(np.int32)[:, None]) for part in (offsets, sizes)))


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
    checks.check_instance("problem", problem, Problem)
    params = check_params("params", params)
    if isinstance(clients, StreamedData):
        return BlockEvaluator(problem, clients, params).evaluate(params)[:2]
    checks.check_instance("clients", clients, ClientData)
    return make_evaluator(problem, clients, params)(params)[:2]
