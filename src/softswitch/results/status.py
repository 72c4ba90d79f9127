"""The status of a run: a code for programs and a message for people."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from softswitch.methods.base import Method
from softswitch.methods.trimming import worst_but
from softswitch.oracles.base import Evaluation
from softswitch.results.answer import RunEnd, smallest_criterion
from softswitch.support.text import format_value, join_first


class StatusCode(StrEnum):
    """How a run ended."""

    FEASIBLE = "feasible"
    """All rounds were run and the answer meets the tolerance at every client on all training data."""
    VIOLATED = "answer-violates"
    """All rounds were run and some were feasible, but the answer violates the tolerance at some client."""
    NO_FEASIBLE_ROUND = "no-feasible-round"
    """No round was feasible, hence there is no feasible average. An auto-tuned run evaluates its answer on all data and
    is feasible if that meets the tolerance."""
    DIVERGED = "diverged"
    """A report or a step was not finite."""
    STOPPED = "stopped"
    """A callback or Ctrl-C stopped the run early."""


@dataclass(frozen=True)
class Status:
    """How a run ended.

    Attributes:
        code: The kind of ending, for programs.
        message: What happened, for people.
        round: The round in question: where the run diverged or stopped, or where the criterion was smallest.
        client: The label of the client in question: the one with the largest constraint or a value that is not finite.
        criterion: The smallest criterion of any round.
    """

    code: StatusCode
    message: str
    round: int | None = None
    client: Hashable | None = None
    criterion: float | None = None

    @property
    def ok(self) -> bool:
        """Whether the run completed and its answer is feasible."""
        return self.code is StatusCode.FEASIBLE

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


def run_status(end: RunEnd, evaluation: Evaluation) -> Status:
    """Return the status of a finished run, given its answer's values at every client."""
    history = end.history
    if end.diverged_at >= 0:
        return _diverged(end)
    answer = _Answer(end.names, end.method, evaluation)
    smallest = float(end.state.best.criterion)
    if end.stopped:
        message = f"stopped after {len(history)} rounds, {history.feasible_rounds} of them feasible; {answer}"
        return Status(StatusCode.STOPPED, message, len(history), answer.client, smallest)
    if history.void.all():
        return Status(StatusCode.NO_FEASIBLE_ROUND, _all_rounds_void(end), None, None, smallest)
    pooled = evaluation.pooled if end.method.switches_on == "pooled" else None
    is_feasible, message = answer.check() if pooled is None else answer.check_pooled(float(pooled.max()))
    # The answer of an auto-tuned run was evaluated on all data. Any other answer needs a feasible round.
    if not history.feasible_rounds and not (end.restarts and is_feasible):
        return _never_feasible(end, answer)
    message = f"{message}. {history.feasible_rounds} of {len(history)} rounds were feasible"
    return Status(StatusCode.FEASIBLE if is_feasible else StatusCode.VIOLATED, message, None, answer.client, smallest)


def model_status(names: Sequence[Any], method: Method, evaluation: Evaluation) -> Status:
    """Return the status of a model that was selected after its run, given its values at every client."""
    answer = _Answer(names, method, evaluation)
    is_feasible, message = answer.check(" on training rows")
    return Status(StatusCode.FEASIBLE if is_feasible else StatusCode.VIOLATED, message, None, answer.client)


class _Answer:
    """The constraint of an answer at the clients."""

    def __init__(self, names: Sequence[Any], method: Method, evaluation: Evaluation) -> None:
        self.tolerance, self.robust = method.tolerance, method.robust
        worst = evaluation.constraint.max(axis=1)
        self.client = names[int(np.argmax(np.where(np.isnan(worst), -np.inf, worst)))]
        self.largest = float("nan") if np.isnan(worst).all() else float(np.nanmax(worst))
        self.clients = len(worst)
        self.unknown = [names[int(i)] for i in np.flatnonzero(np.isnan(worst))]
        self.violating = int((worst > self.tolerance).sum())
        self.is_feasible = bool(worst_but(evaluation.constraint, self.robust) <= self.tolerance)

    @property
    def within(self) -> str:
        trimmed = self.violating + len(self.unknown)
        if trimmed:
            return f"all clients but {trimmed} of {self.clients}, trimmed as robust={self.robust} allows, are within"
        return f"all {self.clients} clients are within"

    @property
    def above(self) -> str:
        return f"{self.violating} of {self.clients} clients {'is' if self.violating == 1 else 'are'} above"

    def check(self, where: str = "") -> tuple[bool, str]:
        """Return whether the clients meet the tolerance, and a message."""
        counts = self.within if self.is_feasible else self.above
        return self.is_feasible, f"{counts} the tolerance {self.tolerance:g}{where}; {self}"

    def check_pooled(self, level: float) -> tuple[bool, str]:
        """Return whether the constraint on the clients' pooled data meets the tolerance, and a message."""
        within = level <= self.tolerance
        message = (
            f"the constraint on the pooled data is {format_value(level)}, {'within' if within else 'above'} the "
            f"tolerance {self.tolerance:g}; individually, {self.above} it; {self}"
        )
        return within and not self.unknown, message

    def __str__(self) -> str:
        largest = f"the largest constraint is {format_value(self.largest)}, at client {self.client!r}"
        if not self.unknown:
            return largest
        unknown = f"nothing is known of {join_first(list(map(repr, self.unknown)))}, which counts as a violation"
        return unknown if len(self.unknown) == self.clients else f"{largest}; {unknown}"


def _diverged(end: RunEnd) -> Status:
    cause = "the server's step is not finite"
    if end.culprit is not None:
        cause = f"client {end.culprit!r} reported a value that is not finite"
    elif end.vanished:
        cause = "no client has an objective, or none has a constraint: all are −∞, also on all data"
    advice = "Lower step_size, or check that client's values"
    if not end.diverged_at:
        advice = "Check objective and constraint at the start"
    message = f"in round {end.diverged_at} {cause}; the last finite iterate is returned. {advice}"
    return Status(StatusCode.DIVERGED, message, end.diverged_at, end.culprit, float(end.state.best.criterion))


def _all_rounds_void(end: RunEnd) -> str:
    history, robust = end.history, end.method.robust
    message = (
        f"in none of {len(history)} rounds did the participants have an objective and a constraint; raise "
        "participation, or sample by strata"
    )
    if history.per_client is not None and not (history.per_client.clients >= 0).any():
        message = f"in none of {len(history)} rounds was any client connected"
    elif history.lost_share:
        message = (
            f"in none of {len(history)} rounds did enough clients complete the round: {history.lost_share:.0%} of the "
            "participants were lost or rejected; the log names them"
        )
    return message if robust is None else f"{message}; robust={robust} needs {2 * robust + 1} clients in every round"


def _never_feasible(end: RunEnd, answer: _Answer) -> Status:
    smallest, when = float(end.state.best.criterion), smallest_criterion(end.history)
    reason = f"client {answer.client!r} has the largest constraint, {format_value(answer.largest)}"
    if answer.is_feasible:
        reason = (
            f"{answer.within} the tolerance {answer.tolerance:g} on their data "
            f"(the largest is {format_value(answer.largest)}, at {answer.client!r}), which no round's reports showed"
        )
    message = (
        f"none of {len(end.history)} rounds had a criterion <= {format_value(float(end.method.switch_at))}; the "
        f"smallest was {format_value(smallest)} in round {when}, where {reason}"
    )
    return Status(StatusCode.NO_FEASIBLE_ROUND, message, when, answer.client, smallest)
