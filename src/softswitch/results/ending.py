"""The end of a run, by whatever engine: choose the answer, judge it at all clients, say how it went."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from softswitch.method.round import State
from softswitch.method.rules import Rule
from softswitch.problem.problem import Params
from softswitch.results.diagnosis import clients_lost, diagnose, never_feasible
from softswitch.results.history import History
from softswitch.results.result import Result
from softswitch.results.status import StatusCode, status
from softswitch.results.status import answer as chosen


class Judges(Protocol):
    """Clients that can be asked about an answer; see ``softswitch.clients.oracle.Oracle``."""

    @property
    def participants(self) -> int:
        """m, how many take part in a round."""
        ...

    @property
    def steadied_by(self) -> str:
        """The name of the setting that makes reports less noisy, for advice."""
        ...

    def judge(self, params: Params) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """f_i and g_i on all data, and the constraint on all clients' data put together, where that has a meaning."""
        ...


def conclude(
    state: State,
    history: History,
    rule: Rule,
    clients: Judges,
    names: tuple[Any, ...],
    *,
    averaging_from: int,
    answer: str,
    stopped: bool,
    vanished: bool,
    culprit: Any,
    scatter: Callable[[], float],
    seed: int,
    seconds: float,
) -> Result:
    """Make a result of a run's last state and its history.

    Args:
        state: what the server kept.
        history: what happened.
        rule: the method.
        clients: to judge the answer.
        names: their labels.
        averaging_from: the first round that could join the average.
        answer: which iterate is wanted.
        stopped: whether the run ended early.
        vanished: whether no client has an objective, or none a constraint, on all its data.
        culprit: the label of the client that made the run diverge, where it is known.
        scatter: measures how much the sampled G scatters at one iterate; called only where it matters.
        seed: of the run.
        seconds: how long it took.
    """
    diverged_at = int(state.diverged_at)
    params, selected = chosen(state, history, averaging_from, answer)
    objective, constraint, pooled = clients.judge(params)
    how = status(
        state,
        history,
        rule,
        names,
        constraint,
        stopped=stopped,
        diverged_name=culprit,
        vanished=vanished,
        pooled=pooled if rule.criterion == "pooled" else None,
    )
    findings = diagnose(
        history,
        rule,
        clients.participants,
        len(names),
        constraint.shape[1],
        diverged_at=diverged_at,
        vanished=vanished,
        absent_on_all_data=float(np.mean(np.isneginf(objective) | np.isneginf(constraint).any(axis=1))),
        steadied_by=clients.steadied_by,
        scatter=scatter,
    )
    if how.code is StatusCode.NO_FEASIBLE_ROUND and how.client is not None:
        worst = constraint.max(axis=1)
        blocked = never_feasible(names, worst, rule.tolerance, int(worst.argmax()), None)
        findings = (blocked, *findings)
    lost = clients_lost(history, names)
    if lost is not None:
        findings = (lost, *findings)
    return Result(
        params=params,
        last=state.params,
        best=state.best.params if history.feasible_rounds else None,
        selected=selected,
        status=how,
        diagnosis=findings,
        history=history,
        client_objective=objective,
        client_constraint=constraint,
        pooled_constraint=pooled,
        names=names,
        rule=rule,
        seed=seed,
        seconds=seconds,
    )
