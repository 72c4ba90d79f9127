"""Evaluate f_i and g_i of every client on data that need not fit in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from softswitch.data.client_data import ClientData, Rows
from softswitch.data.streamed_data import DataOutline, StreamedData
from softswitch.oracles import evaluation
from softswitch.oracles.base import Evaluation
from softswitch.oracles.evaluation import EvaluationPlan, Losses, compiled_values, plan_evaluation
from softswitch.problem.parameters import WEIGHT, Batch, Params, check_params, float_dtype
from softswitch.problem.problem import Problem
from softswitch.support import checks

Job = TypeVar("Job")
Result = TypeVar("Result")
MEAN_TEST_ROWS, MEAN_TEST_SPLITS, MEAN_TEST_TOLERANCE = 2**14, 4, 1e-4
"""Maximum number of rows, number of random splits and relative tolerance of ``find_means``."""
MEAN_TEST_DISTANCES = (0.0, 0.1, 1.0)
"""Standard deviations of the random steps from the start at which ``find_means`` tests."""
INDEX_ROWS = 1 << 18
"""Number of row indices that are computed at a time."""


class PrefetchThread:
    """One thread that reads ahead, with the caller's JAX settings."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="rows")

    def submit(self, function: Callable[..., Result], *arguments: Any) -> Future[Result]:
        """Call a function in the thread."""
        x64, device = (getattr(jax.config, name) for name in ("jax_enable_x64", "jax_default_device"))

        def call() -> Result:
            with jax.enable_x64(x64), jax.default_device(device):  # both are settings of a thread
                return function(*arguments)

        return self._pool.submit(call)

    def map(self, function: Callable[[Job], Result], jobs: Iterable[Job]) -> Iterator[tuple[Job, Result]]:
        """Yield each job with its result, while the next result is computed.

        The caller must delete a result before it asks for the next one: then at most two exist at a time.
        """
        pending: tuple[Job, Future[Result]] | None = None
        for job in jobs:
            following = job, self.submit(function, job)
            if pending is not None:
                yield pending[0], pending[1].result()
            pending = following
        if pending is not None:
            yield pending[0], pending[1].result()


def make_store(data: StreamedData, rows: int) -> dict[str, np.ndarray]:
    """Allocate columns for this number of rows, after the memory of deleted arrays is released."""
    jax.device_put(np.zeros(()))  # JAX releases host memory of deleted arrays at the next transfer
    return data.store(rows)


def put_store(store: dict[str, np.ndarray]) -> dict[str, jax.Array]:
    """Hand the columns over to JAX."""
    return {key: jax.device_put(column, may_alias=True) for key, column in store.items()}


def find_means(data: StreamedData, client: int, losses: Losses, start: Params) -> dict[str, bool]:
    """Test on random splits of a client's rows whether objective and constraint are means over rows.

    A pooled constraint is not tested: its statistics are means by definition.
    """
    total, capacity = int(data.sizes[client]), max(3, data.buffer_bytes // 2 // data.row_bytes)
    rows = np.unique(np.linspace(0, total - 1, min(total, MEAN_TEST_ROWS, capacity)).astype(np.int64))
    store = data.store(len(rows))
    data.read(int(data.offsets[client, 0]) + rows, store, 0)
    generator, cut = np.random.default_rng(0), len(rows) // 3

    def values(params: Params, part: np.ndarray) -> list[np.ndarray]:
        weights = jnp.full((len(part),), 1 / len(part), float_dtype(params))
        batch = {**{key: jnp.asarray(column[part]) for key, column in store.items()}, WEIGHT: weights}
        return [np.asarray(value, float) for value in _values(params, batch, losses)]

    means = {"objective": True, "constraint": True}
    for distance in MEAN_TEST_DISTANCES:
        params = jax.tree.map(
            lambda leaf, d=distance: leaf + d * generator.normal(size=leaf.shape).astype(leaf.dtype), start
        )
        for _ in range(MEAN_TEST_SPLITS):
            order = generator.permutation(len(rows))
            parts = [values(params, part) for part in (order, order[:cut], order[cut:])]
            for name, whole, first, second in zip(means, *parts, strict=True):
                mean = (cut * first + (len(rows) - cut) * second) / len(rows)
                scale = np.maximum(np.abs(first), np.abs(second)) + np.abs(whole)
                means[name] &= bool((np.abs(whole - mean) <= MEAN_TEST_TOLERANCE * scale + 1e-30).all())
    return means | ({"constraint": True} if losses.has_pooled_constraint else {})


@partial(jax.jit, static_argnames="losses")
def _values(params: Params, batch: Batch, losses: Losses) -> tuple[Any, Any]:
    return losses.objective(params, batch), losses.constraints(params, batch)


_statistics = jax.jit(evaluation.client_statistics, static_argnames="losses")


class RowBlock(NamedTuple):
    """Clients that are evaluated together, with ``width`` rows each; or rows ``part`` of one large client."""

    clients: np.ndarray
    width: int
    part: tuple[int, int] | None = None


class BlockEvaluator:
    """Evaluates all clients in blocks of at most half the buffer each.

    A client that is larger than that is evaluated in parts, which requires functions that are means over rows.
    ``may_prefetch`` returns whether the next block may be read while one is evaluated.
    """

    def __init__(
        self, problem: Problem, data: StreamedData, start: Params, may_prefetch: Callable[[], bool] = lambda: True
    ) -> None:
        self._data, self._losses, self._may_prefetch = data, Losses.of(problem), may_prefetch
        self._thread, self._half = PrefetchThread(), data.buffer_bytes // 2
        outline = DataOutline(data, np.asarray(data.evaluation_sizes)[:, None])
        self._ignoring = evaluation.functions_ignoring_weights(problem, outline, start)
        self._plan = plan_evaluation(outline, self._ignoring)
        large = next((int(block.clients[0]) for block in self._blocks() if block.part is not None), None)
        if large is None:
            return
        wrong = [name for name, is_mean in find_means(data, large, self._losses, start).items() if not is_mean]
        if wrong:
            raise ValueError(
                f"client {data.names[large]!r} has {int(data.evaluation_sizes[large]):,} rows to evaluate, more than "
                f"fit into half of buffer_bytes = {data.buffer_bytes:,}; they can be evaluated in parts only if "
                f"{' and '.join(wrong)} is a mean over rows, and it is not: raise buffer_bytes, or evaluate fewer rows "
                "(max_evaluation_rows)"
            )

    def evaluate(self, params: Params) -> Evaluation:
        """Evaluate parameters at every client."""
        data, losses = self._data, self._losses
        results: list[np.ndarray] = []  # f, g and the statistics of a pooled constraint, with clients as the first axis
        values: list[np.ndarray] = []
        divided = set()
        for block, rows in self._read_blocks():
            indices = jnp.arange(len(block.clients), dtype=jnp.int32)
            plan = EvaluationPlan((indices,), indices, (block.width,), data.row_bytes)
            computed: tuple[Any, ...] = compiled_values(plan, rows, params, losses)
            if losses.has_pooled_constraint:
                computed = (*computed, _statistics(plan, rows, params, losses))
            values = [np.asarray(value) for value in computed]
            del rows, computed  # before the next block is read
            results = results or [np.zeros((len(data), *value.shape[1:])) for value in values]
            share = 1.0
            if block.part is not None:
                divided.add(client := int(block.clients[0]))
                share = (block.part[1] - block.part[0]) / int(data.evaluation_sizes[client])
            for result, value in zip(results, values, strict=True):
                result[block.clients] += share * value.astype(np.float64)
        objective, constraint, *statistics = (r.astype(value.dtype) for r, value in zip(results, values, strict=True))
        if not statistics:
            return Evaluation(objective, constraint)
        for client in divided:
            constraint[client] = np.asarray(losses.pool(jnp.asarray(statistics[0][client])))
        sizes = jnp.asarray(data.sizes.astype(np.float64), statistics[0].dtype)
        return Evaluation(objective, constraint, np.asarray(_pool(sizes, jnp.asarray(statistics[0]), losses)))

    def _blocks(self) -> Iterator[RowBlock]:
        row_bytes = self._data.row_bytes
        for group, width in zip(self._plan.groups, self._plan.widths, strict=True):
            clients, client_bytes = np.asarray(group), width * row_bytes
            if int(self._data.evaluation_sizes[clients].max()) * row_bytes > self._half:
                for client in clients:
                    yield from self._parts(int(client))
                continue
            together = evaluation.full_data_slice_size(len(clients), client_bytes)
            # Whole slices if one fits: sums are then those of data in memory, bit for bit.
            count = self._half // (together * client_bytes) * together or max(1, self._half // client_bytes)
            for first in range(0, len(clients), count):
                yield RowBlock(clients[first : first + count], width)

    def _parts(self, client: int) -> Iterator[RowBlock]:
        rows = int(self._data.evaluation_sizes[client])
        width = min(rows, max(1, self._half // self._data.row_bytes))
        for first in range(0, rows, width):
            end = min(rows, first + width)
            part = None if width == rows else (first, end)
            yield RowBlock(np.asarray([client]), end - first if self._ignoring else width, part)

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
        counted = (jnp.asarray(counts.astype(np.int32)[:, None]) for counts in (np.cumsum(sizes) - sizes, sizes))
        return Rows(put_store(store), *counted)


@partial(jax.jit, static_argnames="losses")
def _pool(sizes: Any, statistics: Any, losses: Losses) -> Any:
    return losses.pool(jnp.tensordot(sizes, statistics, axes=1))


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
    plan = plan_evaluation(clients, evaluation.functions_ignoring_weights(problem, clients, params))
    objective, constraint = compiled_values(plan, clients.rows, params, Losses.of(problem))
    return np.asarray(objective), np.asarray(constraint)
