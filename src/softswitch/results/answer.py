"""Which iterate is the answer of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from softswitch.methods.base import Method
from softswitch.methods.proximal import Stages
from softswitch.methods.round import State
from softswitch.oracles.base import Evaluation
from softswitch.problem.parameters import Params
from softswitch.results.history import History
from softswitch.results.restart import Restart


def choose_answer(state: State, history: History, averaging_from: int, wanted: str) -> tuple[Params, str]:
    """The answer and what it is: the iterate that is wanted, or where there is none the next best thing."""
    if wanted == "last":
        return state.params, f"last iterate, after {len(history)} rounds"
    if state.stages is not None and wanted == "average":
        return _of_stages(state, state.stages, history)
    own = int(np.sum(history.feasible[averaging_from:]))
    count = int(state.average.rounds) if wanted == "average" and own else 0
    if count:
        window = f"rounds {averaging_from} to {len(history) - 1}" if averaging_from else f"{len(history)} rounds"
        window += " and of the run before" if count > own else ""
        mean = jax.tree.map(lambda m, w: m.astype(w.dtype), state.average.mean(), state.params)
        return mean, f"mean of the {count} feasible iterates of {window}"
    if len(history) <= averaging_from:
        why = f"the average begins with round {averaging_from}, and the run ended before it"
    else:
        why = f"no feasible round from {averaging_from} on"
    return _next_best(state, history, "" if wanted == "best" else f": {why}")


def _of_stages(state: State, stages: Stages, history: History) -> tuple[Params, str]:
    """The last stage's answer, where a run has a proximal centre."""
    finished, joined = int(stages.finished), int(stages.joined)
    if joined:
        return stages.centre, f"proximal centre after stage {finished}: the mean of {joined} feasible iterates of it"
    why = f"no feasible round to average in stage {finished}" if finished else "no stage was finished"
    return _next_best(state, history, f": {why}")


def _next_best(state: State, history: History, why: str) -> tuple[Params, str]:
    if history.feasible_rounds:
        reported = np.where(history.feasible, history.objective, np.inf)
        when = f"best feasible iterate by its reports, from round {np.argmin(reported)}"
        return state.best.params, f"{when}{why}"
    if np.isfinite(state.best.criterion):
        return state.best.params, f"iterate with the smallest criterion, round {smallest_criterion(history)}"
    return state.params, "the start: no round was completed"


def smallest_criterion(history: History) -> int:
    """The round with the smallest criterion."""
    return int(np.argmin(np.where(np.isfinite(history.criterion), history.criterion, np.inf)))


@dataclass(frozen=True, eq=False)
class RunEnd:
    """A run after its last round.

    Attributes:
        state: what the server kept.
        history: what happened.
        method: the method.
        names: the clients' labels.
        averaging_from: the first round that could join the average.
        answer: which iterate is wanted.
        stopped: whether the run ended early.
        seed: of the run.
        seconds: how long it took.
        vanished: whether no client has an objective, or none a constraint, on all its data.
        culprit: the label of the client that made the run diverge, where it is known.
        restarts: what a run that chooses for itself went through; the answer is then where it would go on from.
        start: how good the start is at every client, where it is known.
        auto_settings: what a run that chooses for itself began with, in words, by what it is.
    """

    state: State
    history: History
    method: Method
    names: tuple[Any, ...]
    averaging_from: int
    answer: str
    stopped: bool
    seed: int
    seconds: float
    vanished: bool = False
    culprit: Any = None
    restarts: tuple[Restart, ...] = ()
    start: Evaluation | None = None
    auto_settings: dict[str, str] = field(default_factory=dict)

    @property
    def diverged_at(self) -> int:
        """The round in which something was not finite; −1 where all was well."""
        return int(self.state.diverged_at)
