"""OutOfCoreOracle: clients whose rows are read from disk when they are drawn, ahead of the rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from softswitch.data.client_data import ClientData, Rows
from softswitch.data.streamed_data import DataOutline, StreamedData
from softswitch.methods.messages import Decision, Reports
from softswitch.oracles import evaluation
from softswitch.oracles.base import Evaluation, Oracle
from softswitch.oracles.derivatives import RowDerivatives, derive_clients
from softswitch.oracles.evaluation import EvaluationPlan, Evaluator, Losses, make_evaluator
from softswitch.oracles.gradient import GradientOracle, RowDraws, check_columns, make_gradient_oracle
from softswitch.oracles.options import Compute, Sampling
from softswitch.problem.parameters import Params, check_params
from softswitch.problem.problem import Problem
from softswitch.support import checks

INDEX_ROWS = 1 << 18  # maximum number of row indices that an evaluation computes at a time


def make_store(data: StreamedData, rows: int) -> dict[str, np.ndarray]:
    """Return NumPy columns of zeros for ``rows`` rows, after the memory of deleted JAX arrays is released."""
    jax.device_put(np.zeros(()))  # JAX releases host memory of deleted arrays at the next transfer
    return data.store(rows)


def put_store(store: dict[str, np.ndarray]) -> dict[str, jax.Array]:
    """Return the columns as JAX arrays, which may share their memory."""
    return {key: jax.device_put(column, may_alias=True) for key, column in store.items()}


class BlockEvaluator:
    """Evaluator of all clients in blocks of clients, whose rows take at most half of ``data.buffer_bytes``."""

    def __init__(self, problem: Problem, data: StreamedData, start: Params) -> None:
        self._data, self._losses, self._half = data, Losses.of(problem), data.buffer_bytes // 2
        outline = DataOutline(data, data.evaluation_sizes[:, None])
        self._plan = evaluation.plan_evaluation(outline, evaluation.functions_ignoring_weights(problem, outline, start))
        if max(self._plan.widths) * data.row_bytes > self._half:
            largest, limit = int(np.argmax(data.evaluation_sizes)), f"half of buffer_bytes = {data.buffer_bytes:,}"
            rows = f"client {data.names[largest]!r} has {data.evaluation_sizes[largest]:,} rows to evaluate"
            advice = "raise buffer_bytes, or evaluate fewer rows (max_evaluation_rows)"
            raise ValueError(f"{rows}, more than fit into {limit} together with their padding; {advice}")

    def evaluate(self, params: Params) -> Evaluation:
        """Return f_i, g_i and pooled constraints of every client on its evaluation rows."""
        data, losses = self._data, self._losses
        parts: list[list[np.ndarray]] = []  # f, g and the statistics of a pooled constraint
        blocks = list(self._blocks())
        for clients, width in blocks:
            rows = read_clients(data, clients, width)
            indices = jnp.arange(len(clients), dtype=jnp.int32)
            plan = EvaluationPlan((indices,), (width,), len(clients))
            computed = [value for value in evaluation.compiled_values(plan, rows, params, losses) if value is not None]
            parts.append([np.asarray(value) for value in computed])
            del rows, computed  # before the next block is read
        order = np.argsort(np.concatenate([clients for clients, _ in blocks]))
        objective, constraint, *rest = (np.concatenate(values)[order] for values in zip(*parts, strict=True))
        statistics = rest[0] if rest else None
        sizes = jnp.asarray(data.sizes.astype(np.float64), objective.dtype)
        return evaluation.to_evaluation(losses, sizes, objective, constraint, statistics)

    def _blocks(self) -> Iterator[tuple[np.ndarray, int]]:
        """Yield the indices of clients that are evaluated together, and the padded number of rows of each."""
        for group, width in zip(self._plan.groups, self._plan.widths, strict=True):
            client_bytes = width * self._data.row_bytes
            together = evaluation.full_data_slice_size(len(group), client_bytes)
            # Whole slices if one fits: sums are then those of data in memory, bit for bit.
            count = self._half // (together * client_bytes) * together or self._half // client_bytes
            for first in range(0, len(group), count):
                yield np.asarray(group[first : first + count]), width


def read_clients(data: StreamedData, clients: np.ndarray, width: int) -> Rows:
    """Return the evaluation rows of ``clients`` on the device, followed by zeros up to ``width`` rows per client."""
    store, first, together = make_store(data, len(clients) * width), 0, max(1, INDEX_ROWS // width)
    for begin in range(0, len(clients), together):
        rows = data.evaluation_rows(clients[begin : begin + together])
        data.read(rows, store, first)
        first += len(rows)
    return Rows.of(put_store(store), data.evaluation_sizes[clients][:, None])


class OutOfCoreDerivatives(RowDerivatives):
    """Derivative oracle of ``StreamedData``: each reply reads the rows of all clients, half a buffer at a time."""

    def __init__(self, problem: Problem, data: StreamedData, *, pooled: bool = False, held_out: Any = None) -> None:
        if (data.evaluation_sizes < data.sizes).any():
            raise ValueError("max_evaluation_rows must be None for SQP, which uses all rows; use SoftmaxSGM")
        self._data, self._blocks = data, BlockEvaluator(problem, data, problem.start)
        super().__init__(problem, DataOutline(data), pooled=pooled, held_out=held_out)

    def evaluate(self, params: Params) -> Evaluation:
        """Return the values of every client on all of its rows, in the precision of the parameters."""
        return self._blocks.evaluate(params)

    def digest(self) -> dict[str, str]:
        """Return digests of a sample of rows and of the program, as text by name."""
        return super().digest() | {"clients": self._data.fingerprint()}

    def compute(self, point: np.ndarray, weights: np.ndarray, needed: np.ndarray) -> Iterator[tuple[np.ndarray, Any]]:
        """Yield (client indices, derivatives) of one block of clients after another."""
        for group, width in self.groups:
            count = max(1, self._data.buffer_bytes // (2 * width * self._data.row_bytes))
            for clients in np.array_split(group, -(-len(group) // count)):
                if needed[clients].any():
                    rows, places = read_clients(self._data, clients, width), np.arange(len(clients), dtype=np.int32)
                    arguments = places, weights[clients], needed[clients]
                    yield clients, derive_clients(point, rows, *arguments, self.program(width))
                    del rows  # before the next block is read


def evaluate(problem: Problem, clients: ClientData | StreamedData, params: Params) -> tuple[np.ndarray, np.ndarray]:
    """Return f_i (one entry per client) and g_i (clients × constraints) on all rows of the clients.

    A value is −∞ if a client has no row for it.

    Args:
        problem: Objective and constraint.
        clients: Training or held-out data. With ``StreamedData(max_evaluation_rows=...)`` only these rows are used.
        params: Parameters, a pytree of floating arrays.
    """
    checks.check_instance("problem", problem, Problem)
    params = check_params("params", params)
    if isinstance(clients, StreamedData):
        return BlockEvaluator(problem, clients, params).evaluate(params)[:2]
    checks.check_instance("clients", clients, ClientData)
    return make_evaluator(problem, clients, params)(params)[:2]


MAX_ROUNDS = 250  # maximum number of rounds whose rows are read at a time
Stretch = tuple[bytes, int, int]  # rounds whose rows are read together: random key of the run, first round, number


class RoundRows(NamedTuple):
    """Rows of some rounds on the device, and the draws of these rounds with indices into the rows."""

    rows: Rows
    draws: RowDraws


class RowFeed:
    """Reader of the rows that rounds draw; one group of rounds is computed while the rows of the next are read."""

    def __init__(self, data: StreamedData, drawing: GradientOracle) -> None:
        self._data, self._drawing = data, drawing
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rows")
        m, report, update = drawing.participants, drawing.report_batching, drawing.update_batching
        self._report_rows = 0 if report.draws is None else m * report.width
        self._update_rows = 0 if update.draws is None else m * drawing.local_steps * update.width
        self._drawn_rows = self._report_rows + self._update_rows
        takes_all = report.draws is None or update.draws is None
        self._participant_rows = int(np.sort(data.sizes)[-m:].sum()) if takes_all else 0
        self._total = int(data.sizes.sum())
        half = data.buffer_bytes // 2
        self.rounds = next((r for r in range(MAX_ROUNDS, 0, -1) if self._bytes(r) <= half), 0)
        if not self.rounds:
            reason = " (all rows of every participant, as with batch_size=None)" if takes_all else ""
            limit = f"more than half of buffer_bytes = {data.buffer_bytes:,}"
            advice = "lower batch_size, value_batch_size, local_steps or participation, or raise buffer_bytes"
            raise ValueError(f"one round's rows take up to {self._bytes(1):,} bytes{reason}, {limit}; {advice}")
        self._pending: dict[Stretch, Future[RoundRows]] = {}  # at most one entry
        self._on_device: tuple[np.ndarray, Rows] | None = None  # all rows of some participants

    def request(self, stretch: Stretch, draw: Callable[[int], RowDraws]) -> None:
        """Start to read the rows of a stretch in the background, unless it was requested before.

        ``draw(first)`` dispatches the draws of rounds from ``first`` on. It is called in this thread, before the rounds
        that precede them are dispatched, so that the draws do not wait for those.
        """
        if stretch in self._pending:
            return
        _, first, count = stretch
        draws = draw(first)
        x64, device = (getattr(jax.config, name) for name in ("jax_enable_x64", "jax_default_device"))

        def read() -> RoundRows:
            with jax.enable_x64(x64), jax.default_device(device):  # both are settings of a thread
                return self.read(draws, count)

        self._pending = {stretch: self._thread.submit(read)}

    def wait(self, stretch: Stretch) -> RoundRows:
        """Wait for the rows of a stretch that was requested, and return them."""
        return self._pending.pop(stretch).result()

    def read(self, draws: RowDraws, count: int) -> RoundRows:
        """Return the rows of the first ``count`` rounds: all rows of participants that use all, then drawn rows."""
        rounds = draws.clients.shape[0]
        participants = np.unique(np.asarray(draws.clients)[:count]) if self._participant_rows else np.zeros(0, int)
        if self._on_device is not None and np.array_equal(self._on_device[0], participants):
            return RoundRows(self._on_device[1], draws)
        self._on_device = None
        first = self._whole_rows(rounds)
        store = make_store(self._data, first + rounds * self._drawn_rows)
        sizes = self._data.sizes[participants]
        begins = np.cumsum(sizes) - sizes
        shift = np.repeat(self._data.offsets[participants, 0] - begins, sizes)
        self._data.read(shift + np.arange(len(shift)), store, 0)
        placed = {}
        for name, size in (("report_rows", self._report_rows), ("update_rows", self._update_rows)):
            drawn: Any = getattr(draws, name)
            if size:
                self._data.read(np.asarray(drawn)[:count].reshape(-1), store, first)
                placed[name] = jnp.arange(first, first + rounds * size, dtype=jnp.int32).reshape(drawn.shape)
                first += rounds * size
        offsets = np.zeros(self._drawing.rows.offsets.shape, np.int32)
        offsets[participants] = begins[:, None]
        rows = Rows(put_store(store), jnp.asarray(offsets), self._drawing.rows.counts)
        if not self._drawn_rows:
            self._on_device = participants, rows
        return RoundRows(rows, draws._replace(**placed))

    def _whole_rows(self, rounds: int) -> int:
        return min(self._total, rounds * self._participant_rows)

    def _bytes(self, rounds: int) -> int:
        return (self._whole_rows(rounds) + rounds * self._drawn_rows) * self._data.row_bytes


class OutOfCoreOracle(Oracle):
    """Oracle of clients whose rows are read by ``feed``; ``drawing``, an oracle without rows, draws their numbers."""

    is_compiled: ClassVar[bool] = False
    can_repeat_reports = True
    has_held_out = property(lambda self: self._held_out is not None)
    client_count = property(attrgetter("drawing.client_count"))
    participants = property(attrgetter("drawing.participants"))
    constraints = property(attrgetter("drawing.constraints"))
    local_steps = property(attrgetter("drawing.local_steps"))
    has_pooled_constraint = property(attrgetter("drawing.has_pooled_constraint"))
    has_surrogate = property(attrgetter("drawing.has_surrogate"))
    report_batch_size = property(attrgetter("drawing.report_batch_size"))
    report_batching = property(attrgetter("drawing.report_batching"))
    update_batching = property(attrgetter("drawing.update_batching"))
    draw = property(attrgetter("drawing.draw"))
    draw_randomness = property(attrgetter("drawing.draw_randomness"))
    draw_for = property(attrgetter("drawing.draw_for"))
    pool = property(attrgetter("drawing.pool"))
    count_rows = property(attrgetter("drawing.count_rows"))
    cost = property(attrgetter("drawing.cost"))

    def __init__(
        self,
        problem: Problem,
        data: StreamedData,
        sampling: Sampling,
        compute: Compute | None = None,
        held_out: Any = None,
    ) -> None:
        self.drawing = make_gradient_oracle(problem, DataOutline(data), sampling, compute).without_evaluation()
        self.feed = RowFeed(data, self.drawing)
        self.fingerprint = data.fingerprint
        self._evaluator: Evaluator = BlockEvaluator(problem, data, problem.start).evaluate
        self._held_out: Evaluator | None = None
        if held_out is not None:
            check_columns(held_out, DataOutline(data))
            self._held_out = make_evaluator(problem, held_out)

    def with_rows(self, read: RoundRows) -> GradientOracle:
        """Return an oracle in memory with the rows of some rounds, for their draws."""
        return replace(self.drawing, rows=read.rows)

    def report(self, params: Params, draws: RowDraws) -> tuple[Reports, Any]:
        """Return f_i and g_i of the participants on the drawn rows, which are read first."""
        oracle, draws = self.read_round(draws)
        return oracle.report(params, draws)

    def direction(
        self, params: Params, draws: RowDraws, kept: Any, decision: Decision, switches: bool, step_size: Any
    ) -> Params:
        """Return Σ_i r_i u_i on the drawn rows, which are read first."""
        oracle, draws = self.read_round(draws)
        return oracle.direction(params, draws, kept, decision, switches, step_size)

    def read_round(self, draws: RowDraws) -> tuple[GradientOracle, RowDraws]:
        """Return an oracle with the rows of one round in memory, and the draws of the round for it."""
        read = self.feed.read(jax.tree.map(lambda part: part[None], draws), 1)
        return self.with_rows(read), jax.tree.map(lambda part: part[0], read.draws)

    def evaluate(self, params: Params) -> tuple[Any, Any]:
        """Return f_i and g_i of every client on its evaluation rows."""
        return self._evaluator(params)[:2]

    def evaluate_held_out(self, params: Params) -> tuple[Any, Any] | None:
        """Return f_i and g_i on held-out rows, or None if there are none."""
        return None if self._held_out is None else self._held_out(params)[:2]

    def evaluate_params(self, params: Params) -> Evaluation:
        """Return f_i, g_i and pooled constraints of every client on its evaluation rows."""
        return self._evaluator(params)
