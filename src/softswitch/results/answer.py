"""The end of a run, and which iterate is its answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from softswitch.methods.base import Method
from softswitch.methods.round import State
from softswitch.oracles.base import Evaluation
from softswitch.problem.parameters import Params
from softswitch.results.history import History
from softswitch.results.restart import Restart


@dataclass(frozen=True, eq=False)
class RunEnd:
    """A run after its last round.

    Attributes:
        averaging_from: The first round that could join the average.
        answer: The requested iterate.
        vanished: Whether no client has an objective, or none has a constraint, on all its data.
        culprit: The label of the client that made the run diverge, if known.
        restarts: The restarts of an auto-tuned run. The answer is then the start of the next one.
        start: The values of the start at every client, if known.
        auto_settings: The settings that auto-tuning chose, by name.
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
        """The round in which a value was not finite; −1 if there was none."""
        return int(self.state.diverged_at)


def select_answer(end: RunEnd) -> tuple[Params, str]:
    """Return the answer and its description: the requested iterate or, if there is none, the next best."""
    state, history, wanted, first = end.state, end.history, end.answer, end.averaging_from
    if end.restarts:
        return state.params, end.restarts[-1].answer
    if wanted == "last":
        return state.params, f"last iterate, after {len(history)} rounds"
    in_window = int(np.sum(history.feasible[first:]))
    count = int(state.average.rounds) if wanted == "average" and in_window else 0
    if count:
        window = f"rounds {first} to {len(history) - 1}" if first else f"{len(history)} rounds"
        window += " and of the previous run" if count > in_window else ""
        mean = jax.tree.map(lambda m, w: m.astype(w.dtype), state.average.mean(), state.params)
        return mean, f"mean of the {count} feasible iterates of {window}"
    reason = f"no feasible round from {first} on"
    if len(history) <= first:
        reason = f"the average begins with round {first}, and the run ended before it"
    return _best_iterate(state, history, "" if wanted == "best" else f": {reason}")


def _best_iterate(state: State, history: History, reason: str) -> tuple[Params, str]:
    if history.feasible_rounds:
        best = np.argmin(np.where(history.feasible, history.objective, np.inf))
        return state.best.params, f"best feasible iterate by its reports, from round {best}{reason}"
    if np.isfinite(state.best.criterion):
        return state.best.params, f"iterate with the smallest criterion, round {smallest_criterion(history)}"
    return state.params, "the start: no round was completed"


def smallest_criterion(history: History) -> int:
    """Return the round with the smallest criterion."""
    return int(np.argmin(np.where(np.isfinite(history.criterion), history.criterion, np.inf)))
