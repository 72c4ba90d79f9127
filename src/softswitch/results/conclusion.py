"""The end of a run, by whatever engine: choose the answer, judge it at all clients, say how it went."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from softswitch.oracles.base import Evaluation
from softswitch.problem.parameters import Params
from softswitch.results.answer import RunEnd, choose_answer
from softswitch.results.baseline import START, Baseline
from softswitch.results.diagnostics import Asked, diagnose
from softswitch.results.result import Result
from softswitch.results.status import status_of


class Judges(Asked, Protocol):
    """Clients that can be asked about an answer; see ``softswitch.oracles.base.Oracle``."""

    def evaluate_params(self, params: Params) -> Evaluation:
        """How good parameters are at every client."""
        ...


def conclude(ending: RunEnd, clients: Judges, scatter: Callable[[], float]) -> Result:
    """Make a result of where a run ended.

    Args:
        ending: the run after its last round.
        clients: to judge the answer.
        scatter: measures how much the sampled G scatters at one iterate; called only where it matters.
    """
    state, history = ending.state, ending.history
    if ending.restarts:
        params, selected = state.params, ending.restarts[-1].answer
    else:
        params, selected = choose_answer(state, history, ending.averaging_from, ending.answer)
    judged = clients.evaluate_params(params)
    return Result(
        params=params,
        last=state.params,
        best=state.best.params if history.feasible_rounds else None,
        selected=selected,
        status=status_of(ending, judged),
        diagnostics=diagnose(ending, judged, clients, scatter),
        history=history,
        client_objective=judged.objective,
        client_constraint=judged.constraint,
        pooled_constraint=judged.pooled,
        names=ending.names,
        method=ending.method,
        seed=ending.seed,
        seconds=ending.seconds,
        state=state,
        restarts=ending.restarts,
        auto_settings=ending.auto_settings,
        baselines=() if ending.start is None else (Baseline.of(START, ending.start, ending.method),),
    )
