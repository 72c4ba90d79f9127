"""Clients whose rows lie outside of memory and are read as they are drawn."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from softswitch.data.client_data import ClientData
from softswitch.data.streamed_data import DataOutline, StreamedData
from softswitch.methods.messages import Decision, Reports
from softswitch.oracles.base import Evaluation, Oracle
from softswitch.oracles.evaluation import Evaluator, functions_ignoring_weights, make_evaluator
from softswitch.oracles.federation import make_gradient_oracle
from softswitch.oracles.gradient import GradientOracle, RowDraws
from softswitch.oracles.losses import Losses
from softswitch.oracles.options import Compute, Sampling
from softswitch.oracles.out_of_core_evaluation import BlockEvaluator
from softswitch.oracles.row_feed import RoundRows, RowFeed
from softswitch.problem.parameters import Params
from softswitch.problem.problem import Problem
from softswitch.support import checks


class OutOfCoreOracle(Oracle):
    """Clients that hold rows outside of memory and take gradient steps on them.

    Attributes:
        drawing: The clients without their rows. It draws, and holds all settings.
        feed: Reads the rows that rounds draw.
    """

    is_compiled: ClassVar[bool] = False
    can_repeat_reports = True
    client_count = property(attrgetter("drawing.client_count"))
    report_batch_size = property(attrgetter("drawing.report_batch_size"))
    report_batching = property(attrgetter("drawing.report_batching"))
    update_batching = property(attrgetter("drawing.update_batching"))

    def __init__(
        self,
        problem: Problem,
        data: StreamedData,
        sampling: Sampling,
        compute: Compute | None = None,
        held_out: Any = None,
    ) -> None:
        outline = DataOutline(data)
        self.drawing: GradientOracle = make_gradient_oracle(problem, outline, sampling, compute).without_evaluation()
        self.feed = RowFeed(data, self.drawing)
        self._data = data
        self.participants, self.constraints = self.drawing.participants, self.drawing.constraints
        self.local_steps = self.drawing.local_steps
        self.has_pooled_constraint, self.has_surrogate = self.drawing.has_pooled_constraint, self.drawing.has_surrogate
        losses, ignoring = self.drawing.losses, functions_ignoring_weights(problem, outline)
        self._evaluator: Evaluator = BlockEvaluator(
            data, losses, ignoring, problem.start, may_prefetch=lambda: not self.feed.holds_rows
        ).evaluate
        self._held_out = None if held_out is None else _held_out_evaluator(problem, held_out, data, losses)

    @property
    def has_held_out(self) -> bool:
        """Whether there are held-out rows."""
        return self._held_out is not None

    def with_rows(self, read: RoundRows) -> GradientOracle:
        """Return the clients with the rows of some rounds instead of all rows."""
        return replace(self.drawing, rows=read.rows)

    def draw(self, key: Array) -> RowDraws:
        """Draw as from rows in memory."""
        return self.drawing.draw(key)

    def draw_randomness(self, key: Array) -> Any:
        """Draw as from rows in memory."""
        return self.drawing.draw_randomness(key)

    def draw_for(self, clients: Int[Array, " m"], randomness: Any) -> RowDraws:
        """Draw as from rows in memory."""
        return self.drawing.draw_for(clients, randomness)

    def pool(self, sums: Float[Array, " s"]) -> Float[Array, " c"]:
        """Compute a pooled constraint from summed statistics."""
        return self.drawing.pool(sums)

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

    def count_rows(self, draws: RowDraws) -> Int[Array, ""] | None:
        """Count the participants' rows if a batch is all of them."""
        return self.drawing.count_rows(draws)

    def cost(self, row_count: Any) -> tuple[Any, Any]:
        """Return the cost of a round, as with rows in memory."""
        return self.drawing.cost(row_count)

    def evaluate(self, params: Params) -> tuple[Any, Any]:
        """Compute f_i and g_i of every client on its evaluation rows."""
        return self._evaluator(params)[:2]

    def evaluate_held_out(self, params: Params) -> tuple[Any, Any] | None:
        """Compute f_i and g_i on held-out rows; None if there are none."""
        return None if self._held_out is None else self._held_out(params)[:2]

    def evaluate_params(self, params: Params) -> Evaluation:
        """Evaluate parameters at every client."""
        return self._evaluator(params)

    def fingerprint(self) -> str:
        """Return a digest of the sizes and of some rows."""
        return self._data.fingerprint()


def _held_out_evaluator(problem: Problem, held_out: Any, data: StreamedData, losses: Losses) -> Evaluator:
    if isinstance(held_out, StreamedData):
        columns = held_out.columns
    else:
        checks.check_instance("held_out", held_out, ClientData)
        columns = {
            key: jax.ShapeDtypeStruct(column.shape[1:], column.dtype) for key, column in held_out.rows.columns.items()
        }
    expected, given = (
        {key: (tuple(row.shape), jnp.dtype(row.dtype).name) for key, row in shapes.items()}
        for shapes in (data.columns, columns)
    )
    if expected != given:
        raise ValueError(f"held_out must have the clients' columns {expected}, but has {given}")
    if isinstance(held_out, ClientData):
        return make_evaluator(problem, held_out)
    ignoring = functions_ignoring_weights(
        problem, DataOutline(held_out, np.asarray(held_out.evaluation_sizes)[:, None])
    )
    return BlockEvaluator(held_out, losses, ignoring, problem.start).evaluate
