"""Clients whose rows are read as they are drawn: ``GradientOracle`` does the arithmetic, on the rows of some rounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from softswitch.data.client_data import ClientData
from softswitch.data.row_reader import RowShape
from softswitch.data.sampling import Batching
from softswitch.data.streamed_data import Outline, StreamedData
from softswitch.methods.messages import Decision, Reports
from softswitch.oracles.base import Evaluation, Oracle
from softswitch.oracles.evaluation import Evaluator, ignoring_weights, make_evaluator
from softswitch.oracles.federation import ClientSettings, gradient_oracle
from softswitch.oracles.gradient import GradientOracle, RowDraws
from softswitch.oracles.losses import Losses
from softswitch.oracles.out_of_core_evaluation import BlockValues
from softswitch.oracles.row_feed import RowFeed, Stretch
from softswitch.problem.parameters import Params
from softswitch.problem.problem import Problem
from softswitch.support import checks


class OutOfCoreOracle(Oracle):
    """Clients that hold rows outside of memory, and take gradient steps on them.

    Its rounds are compiled some at a time, on the rows that these draw; see ``engines/streamed_rounds.py``.

    Attributes:
        drawing: the clients without their rows: what draws, and knows all settings.
        feed: what reads the rows.
    """

    is_compiled: ClassVar[bool] = False
    can_repeat_reports = True

    def __init__(self, problem: Problem, data: StreamedData, how: ClientSettings, held_out: Any = None) -> None:
        outline = Outline(data)
        self.drawing: GradientOracle = gradient_oracle(problem, outline, how)
        self.drawing = self.drawing.without_evaluation()
        self.feed = RowFeed(data, self.drawing)
        self._data = data
        self.participants, self.constraints = self.drawing.participants, self.drawing.constraints
        self.local_steps = self.drawing.local_steps
        self.has_pooled_constraint, self.has_surrogate = self.drawing.has_pooled_constraint, self.drawing.has_surrogate
        losses, ignoring = self.drawing.losses, ignoring_weights(problem, outline)
        self._judge: Evaluator = BlockValues(data, losses, ignoring, problem.start).judged
        self._judge_held_out = None if held_out is None else _judge_of(problem, held_out, data, losses)

    @property
    def client_count(self) -> int:
        """n."""
        return self.drawing.client_count

    @property
    def report_batch_size(self) -> int | None:
        """How many rows a client draws for its report; None: all of them."""
        return self.drawing.report_batch_size

    @property
    def report_batching(self) -> Batching:
        """How the batch for f_i and g_i is drawn."""
        return self.drawing.report_batching

    @property
    def update_batching(self) -> Batching:
        """How the batches for gradients are drawn."""
        return self.drawing.update_batching

    @property
    def has_held_out(self) -> bool:
        """Whether there are rows not trained on."""
        return self._judge_held_out is not None

    def with_rows(self, stretch: Stretch) -> GradientOracle:
        """The clients with the rows of some rounds in place of all: those rounds' arithmetic."""
        return replace(self.drawing, rows=stretch.rows)

    def draw(self, key: Array) -> RowDraws:
        """As from rows in memory."""
        return self.drawing.draw(key)

    def draw_randomness(self, key: Array) -> Any:
        """As from rows in memory."""
        return self.drawing.draw_randomness(key)

    def draw_for(self, clients: Int[Array, " m"], randomness: Any) -> RowDraws:
        """As from rows in memory."""
        return self.drawing.draw_for(clients, randomness)

    def pool(self, sums: Float[Array, " s"]) -> Float[Array, " c"]:
        """The constraint of the clients' data put together."""
        return self.drawing.pool(sums)

    def report(self, params: Params, draws: RowDraws) -> tuple[Reports, Any]:
        """What participants report, on the rows they drew."""
        oracle, draws = self._of_one_round(draws)
        return oracle.report(params, draws)

    def direction(
        self, params: Params, draws: RowDraws, kept: Any, decision: Decision, switches: bool, step_size: Any
    ) -> Params:
        """Σ_i r_i u_i, on the rows they drew."""
        oracle, draws = self._of_one_round(draws)
        return oracle.direction(params, draws, kept, decision, switches, step_size)

    def _of_one_round(self, draws: RowDraws) -> tuple[GradientOracle, RowDraws]:
        stretch = self.feed.read(_several(draws), 1)
        return self.with_rows(stretch), _first(stretch.draws)

    def count_rows(self, draws: RowDraws) -> Int[Array, ""] | None:
        """Σ_i of the participants' rows, where a batch is all of them; else None."""
        return self.drawing.count_rows(draws)

    def cost(self, row_count: Any) -> tuple[Any, Any]:
        """m·B_ζ values and m·E·B_g gradients; a batch of all rows counts its rows."""
        return self.drawing.cost(row_count)

    def evaluate(self, params: Params) -> tuple[Any, Any]:
        """f_i and g_i of every client on all rows that are looked at."""
        return self._judge(params)[:2]

    def evaluate_held_out(self, params: Params) -> tuple[Any, Any] | None:
        """The same on rows not trained on, where there are such."""
        return None if self._judge_held_out is None else self._judge_held_out(params)[:2]

    def evaluate_params(self, params: Params) -> Evaluation:
        """The same, and a pooled constraint on all rows put together."""
        return self._judge(params)

    def fingerprint(self) -> str:
        """A digest of the data: of sizes, and of some rows."""
        return self._data.fingerprint()


def _several(draws: RowDraws) -> RowDraws:
    """One round's draws as those of several rounds."""
    return RowDraws(*(None if part is None else part[None] for part in draws))  # type: ignore[arg-type]


def _first(draws: RowDraws) -> RowDraws:
    return RowDraws(*(None if part is None else part[0] for part in draws))  # type: ignore[arg-type]


def _judge_of(problem: Problem, held_out: Any, data: StreamedData, losses: Losses) -> Callable[[Params], Evaluation]:
    """What judges by rows not trained on, in memory or not; they must have the columns of the training rows."""
    if not isinstance(held_out, StreamedData):
        checks.expect("held_out", held_out, ClientData)
    columns = (
        held_out.columns
        if isinstance(held_out, StreamedData)
        else {key: RowShape(column.shape[1:], column.dtype) for key, column in held_out.rows.columns.items()}
    )
    wanted, given = (
        {key: (tuple(row.shape), jnp.dtype(row.dtype).name) for key, row in some.items()}
        for some in (data.columns, columns)
    )
    if wanted != given:
        raise ValueError(f"held_out must have the clients' columns {wanted}, but has {given}")
    if isinstance(held_out, ClientData):
        return make_evaluator(problem, held_out)
    ignoring = ignoring_weights(problem, Outline(held_out, np.asarray(held_out.looked_at)[:, None]))
    return BlockValues(held_out, losses, ignoring, problem.start).judged
