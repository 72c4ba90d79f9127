"""Clients whose rows lie outside of memory and are read as they are drawn, ahead of the rounds."""

from __future__ import annotations

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
from softswitch.oracles.base import Evaluation, Oracle
from softswitch.oracles.evaluation import Evaluator, make_evaluator
from softswitch.oracles.gradient import GradientOracle, RowDraws, check_columns, make_gradient_oracle
from softswitch.oracles.options import Compute, Sampling
from softswitch.oracles.out_of_core_evaluation import BlockEvaluator, make_store, put_store
from softswitch.problem.parameters import Params
from softswitch.problem.problem import Problem
from softswitch.support import checks

MAX_ROUNDS = 250
"""Maximum number of rounds whose rows are read together."""


class RoundRows(NamedTuple):
    """The rows of some rounds on the device, and the draws of the rounds, with indices into these rows."""

    rows: Rows
    draws: RowDraws


class PendingRows(NamedTuple):
    """Rows that are being read: for which run (its key as bytes), from which round on, and for how many rounds."""

    run: bytes
    first: int
    rounds: int
    rows: Future[RoundRows]


class RowFeed:
    """Reads the rows that rounds draw.

    The rows of two groups of rounds, one computed and one being read, take at most ``data.buffer_bytes`` together.
    Rows are read together for at most ``rounds`` rounds.
    """

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
            raise ValueError(
                f"one round's rows take up to {self._bytes(1):,} bytes{reason}, more than half of buffer_bytes = "
                f"{data.buffer_bytes:,}; lower batch_size, value_batch_size, local_steps or participation, or raise "
                "buffer_bytes"
            )
        self.pending: PendingRows | None = None
        self._on_device: tuple[np.ndarray, Rows] | None = None  # all rows of some participants

    def submit(self, draws: RowDraws, count: int) -> Future[RoundRows]:
        """Call ``read`` in the background."""
        x64, device = (getattr(jax.config, name) for name in ("jax_enable_x64", "jax_default_device"))

        def call() -> RoundRows:
            with jax.enable_x64(x64), jax.default_device(device):  # both are settings of a thread
                return self.read(draws, count)

        return self._thread.submit(call)

    def read(self, draws: RowDraws, count: int) -> RoundRows:
        """Read the rows of the first ``count`` rounds of ``draws``; the rows of further rounds are zeros.

        All rows of the participants that use all of them come first, then the drawn rows.
        """
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
    """Clients that hold rows outside of memory and take gradient steps on them.

    ``drawing`` are the clients without their rows; it draws, and holds all settings. ``feed`` reads the rows.
    """

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
        self._held_out = None if held_out is None else _held_out_evaluator(problem, held_out, data)

    def with_rows(self, read: RoundRows) -> GradientOracle:
        """Return the clients with the rows of some rounds instead of all rows."""
        return replace(self.drawing, rows=read.rows)

    def report(self, params: Params, draws: RowDraws) -> tuple[Reports, Any]:
        """Compute f_i and g_i on the drawn rows."""
        oracle, draws = self._read_round(draws)
        return oracle.report(params, draws)

    def direction(
        self, params: Params, draws: RowDraws, kept: Any, decision: Decision, switches: bool, step_size: Any
    ) -> Params:
        """Compute Σ_i r_i u_i on the drawn rows."""
        oracle, draws = self._read_round(draws)
        return oracle.direction(params, draws, kept, decision, switches, step_size)

    def _read_round(self, draws: RowDraws) -> tuple[GradientOracle, RowDraws]:
        read = self.feed.read(jax.tree.map(lambda part: part[None], draws), 1)
        return self.with_rows(read), jax.tree.map(lambda part: part[0], read.draws)

    def evaluate(self, params: Params) -> tuple[Any, Any]:
        """Compute f_i and g_i of every client on its evaluation rows."""
        return self._evaluator(params)[:2]

    def evaluate_held_out(self, params: Params) -> tuple[Any, Any] | None:
        """Compute f_i and g_i on held-out rows; None if there are none."""
        return None if self._held_out is None else self._held_out(params)[:2]

    def evaluate_params(self, params: Params) -> Evaluation:
        """Evaluate parameters at every client."""
        return self._evaluator(params)


def _held_out_evaluator(problem: Problem, held_out: Any, data: StreamedData) -> Evaluator:
    if not isinstance(held_out, StreamedData):
        checks.check_instance("held_out", held_out, ClientData)
    check_columns(DataOutline(held_out) if isinstance(held_out, StreamedData) else held_out, DataOutline(data))
    if isinstance(held_out, ClientData):
        return make_evaluator(problem, held_out)
    return BlockEvaluator(problem, held_out, problem.start).evaluate
