"""How a run ended, and which iterate is its answer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import jax
import numpy as np

from softswitch.method.round import State
from softswitch.method.rules import Rule
from softswitch.problem.problem import Params
from softswitch.results.history import History


class StatusCode(StrEnum):
    """How a run ended."""

    FEASIBLE = "converged-feasible"
    """All rounds run; the answer meets the tolerance at every client, on all of their data."""
    VIOLATED = "answer-violates"
    """All rounds run and some passed the switch, but the answer violates the tolerance at some client."""
    NO_FEASIBLE_ROUND = "no-feasible-round"
    """No round passed the switch: there is no feasible average."""
    DIVERGED = "diverged"
    """A report or a step was not finite."""
    STOPPED = "stopped"
    """Ended early, by a callback or by Ctrl-C."""


@dataclass(frozen=True)
class Status:
    """How a run ended, for programs (``code``, ``round``, ``client``) and for people (``message``).

    Attributes:
        code: the kind of ending.
        message: what happened, in a sentence or two.
        round: the round it is about: where it diverged or stopped, or where the criterion was smallest.
        client: the label of the client it is about: the one that blocks, violates most or reported NaN.
        criterion: the smallest criterion seen.
    """

    code: StatusCode
    message: str
    round: int | None = None
    client: Any = None
    criterion: float | None = None

    @property
    def ok(self) -> bool:
        """Whether the answer is what was asked for."""
        return self.code is StatusCode.FEASIBLE

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


ANSWERS = ("average", "last", "best")
"""Which iterate is wanted: the mean of the feasible ones, the last, or the best feasible one by its reports."""


def answer(state: State, history: History, averaging_from: int, wanted: str = "average") -> tuple[Params, str]:
    """The answer and what it is: the iterate that is wanted, or where there is none the next best thing."""
    if wanted == "last":
        return state.params, f"last iterate, after {len(history)} rounds"
    count = int(state.average.rounds) if wanted == "average" else 0
    if count:
        window = f"rounds {averaging_from} to {len(history) - 1}" if averaging_from else f"{len(history)} rounds"
        mean = jax.tree.map(lambda m, w: m.astype(w.dtype), state.average.mean(), state.params)
        return mean, f"mean of the {count} feasible iterates of {window}"
    if history.feasible_rounds:
        reported = np.where(history.feasible, history.objective, np.inf)
        when = f"best feasible iterate by its reports, from round {np.argmin(reported)}"
        return state.best.params, when if wanted == "best" else f"{when}: no feasible round from {averaging_from} on"
    if np.isfinite(state.least_violating.score):
        when = f"round {_smallest_criterion(history)}"
        return state.least_violating.params, f"iterate with the smallest criterion, {when}"
    return state.params, "the start: no round was completed"


def _smallest_criterion(history: History) -> int:
    """The round with the smallest criterion."""
    return int(np.argmin(np.where(np.isfinite(history.criterion), history.criterion, np.inf)))


def status(
    state: State,
    history: History,
    rule: Rule,
    names: tuple[Any, ...],
    client_constraint: np.ndarray,
    *,
    stopped: bool,
    diverged_name: Any,
    vanished: bool,
    pooled: np.ndarray | None = None,
) -> Status:
    """Say how a run ended."""
    feasible = history.feasible_rounds
    worst = client_constraint.max(axis=1)
    blocker = names[int(np.argmax(np.where(np.isnan(worst), -np.inf, worst)))]
    largest = float(np.nanmax(worst)) if not np.isnan(worst).all() else float("nan")
    at_answer = f"at the answer, client {blocker!r} has the largest constraint on its data, {largest:.4g}"
    unknown = [name for name, value in zip(names, worst, strict=True) if np.isnan(value)]
    if unknown:
        named = ", ".join(map(repr, unknown[:5])) + (f" and {len(unknown) - 5} more" if len(unknown) > 5 else "")
        nothing = f"nothing is known of {named}, so that it cannot be said to be met there"
        at_answer = nothing if len(unknown) == len(names) else f"{at_answer}; {nothing}"
    smallest = float(state.least_violating.score)
    diverged_at = int(state.diverged_at)
    if diverged_at >= 0:
        cause = "the server's step is not finite"
        if diverged_name is not None:
            cause = f"client {diverged_name!r} reported a value that is not finite"
        elif vanished:
            cause = "no client has an objective, or none a constraint: all are −∞, also on all data"
        advice = "Lower step_size, or look at that client's values"
        if not diverged_at:
            advice = "Look at objective and constraint at the start"
        message = f"in round {diverged_at} {cause}; the last finite iterate is kept. {advice}"
        return Status(StatusCode.DIVERGED, message, diverged_at, diverged_name, smallest)
    if stopped:
        message = f"ended after {len(history)} rounds, {feasible} of them feasible; {at_answer}"
        return Status(StatusCode.STOPPED, message, len(history), blocker, smallest)
    if history.void.all():
        message = (
            f"in none of {len(history)} rounds did the participants have an objective and a constraint among them; "
            "raise participation, or draw by strata"
        )
        if history.per_client is not None and not (history.per_client.clients >= 0).any():
            message = f"in none of {len(history)} rounds was any client connected"
        elif history.lost_share:
            message = (
                f"in none of {len(history)} rounds did enough clients do their part: {history.lost_share:.0%} of those "
                "asked were lost or rejected; the log names them"
            )
        return Status(StatusCode.NO_FEASIBLE_ROUND, message, None, None, smallest)
    if not feasible:
        when = _smallest_criterion(history)
        message = (
            f"none of {len(history)} rounds had a criterion <= {float(rule.switch_at):.4g}; the smallest was "
            f"{smallest:.4g} in round {when}, and there client {blocker!r} blocks with a constraint of "
            f"{largest:.4g} on its data"
        )
        return Status(StatusCode.NO_FEASIBLE_ROUND, message, when, blocker, smallest)
    passed = f"{feasible} of {len(history)} rounds were feasible"
    if pooled is not None:
        level, many = float(pooled.max()), int((worst > rule.tolerance).sum())
        within = level <= rule.tolerance
        met = within and not unknown
        message = (
            f"{passed}, {'and' if met else 'but'} the constraint on all data put together is {level:.4g}, "
            f"{'within' if within else 'above'} the tolerance {rule.tolerance:g}; by themselves {many} of {len(names)} "
            f"clients {'is' if many == 1 else 'are'} above it: {at_answer}"
        )
        return Status(StatusCode.FEASIBLE if met else StatusCode.VIOLATED, message, None, blocker, smallest)
    violating = int((worst > rule.tolerance).sum())
    if violating or unknown:
        above = f"{violating} of {len(names)} clients {'is' if violating == 1 else 'are'} above the tolerance"
        message = f"{passed}, but {above} {rule.tolerance:g}: {at_answer}"
        return Status(StatusCode.VIOLATED, message, None, blocker, smallest)
    message = f"{passed}, and all {len(names)} clients are within the tolerance {rule.tolerance:g}; {at_answer}"
    return Status(StatusCode.FEASIBLE, message, None, blocker, smallest)
