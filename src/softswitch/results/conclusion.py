"""The result of a finished run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from softswitch.oracles.base import Evaluation
from softswitch.problem.parameters import Params
from softswitch.results.answer import RunEnd, select_answer
from softswitch.results.baseline import START, Baseline
from softswitch.results.diagnostics import Participants, diagnose
from softswitch.results.result import Result
from softswitch.results.status import run_status


class Evaluators(Participants, Protocol):
    """Clients that can evaluate an answer; see ``softswitch.oracles.base.Oracle``."""

    def evaluate_params(self, params: Params) -> Evaluation:
        """Evaluate parameters at every client."""
        ...


def build_result(end: RunEnd, clients: Evaluators, scatter: Callable[[], float]) -> Result:
    """Select the answer of a finished run, evaluate it at all clients, and diagnose the run.

    Args:
        end: The run after its last round.
        clients: The clients that evaluate the answer.
        scatter: Measures how much the sampled G varies at one iterate. Called only if a diagnostic needs it.
    """
    params, selected = select_answer(end)
    evaluation = clients.evaluate_params(params)
    return Result(
        params=params,
        last=end.state.params,
        best=end.state.best.params if end.history.feasible_rounds else None,
        selected=selected,
        status=run_status(end, evaluation),
        diagnostics=diagnose(end, evaluation, clients, scatter),
        history=end.history,
        client_objective=evaluation.objective,
        client_constraint=evaluation.constraint,
        pooled_constraint=evaluation.pooled,
        names=end.names,
        method=end.method,
        seed=end.seed,
        seconds=end.seconds,
        state=end.state,
        restarts=end.restarts,
        auto_settings=end.auto_settings,
        baselines=() if end.start is None else (Baseline.of(START, end.start, end.method),),
    )
