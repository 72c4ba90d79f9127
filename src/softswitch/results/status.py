"""How a run ended: a code for programs, a sentence for people."""

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
from softswitch.support.text import in_words

EARLIER = {"converged-feasible": "feasible"}
"""Codes that earlier versions wrote, and what they are now."""


class StatusCode(StrEnum):
    """How a run ended."""

    FEASIBLE = "feasible"
    """All rounds run; the answer meets the tolerance at every client, on all of their data. How good it is beyond that
    is another question: see ``Result.explain``."""
    VIOLATED = "answer-violates"
    """All rounds run and some passed the switch, but the answer violates the tolerance at some client."""
    NO_FEASIBLE_ROUND = "no-feasible-round"
    """No round passed the switch: there is no feasible average. (A run that chose for itself judges its answer on all
    data: where that meets the tolerance, it is feasible all the same.)"""
    DIVERGED = "diverged"
    """A report or a step was not finite."""
    STOPPED = "stopped"
    """Ended early, by a callback or by Ctrl-C."""

    @classmethod
    def _missing_(cls, value: object) -> StatusCode | None:
        """What earlier versions wrote."""
        return cls(EARLIER[value]) if isinstance(value, str) and value in EARLIER else None


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
    client: Hashable | None = None
    criterion: float | None = None

    @property
    def ok(self) -> bool:
        """Whether the answer is what was asked for."""
        return self.code is StatusCode.FEASIBLE

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


def status_of(ending: RunEnd, judged: Evaluation) -> Status:
    """Say how a run ended, from where it stands and how good its answer is at every client."""
    if ending.diverged_at >= 0:
        return _diverged(ending)
    if ending.stopped:
        return _stopped(ending, judged)
    if ending.history.void.all():
        return _nothing_counted(ending)
    by_pooled = judged.pooled is not None and ending.method.switches_on == "pooled"
    at_answer = _by_pooled(ending, judged, judged.pooled) if by_pooled else _by_client(ending, judged)
    # The answer of a run in cycles was judged on all data, whatever its reports were; else it needs a feasible round.
    if not ending.history.feasible_rounds and not (ending.restarts and at_answer.ok):
        return _never_feasible(ending, judged)
    return at_answer


def status_of_model(names: Sequence[Any], method: Method, judged: Evaluation) -> Status:
    """Say how a model stands that was chosen after its run, from how good it is at every client."""
    there, many, tolerance = _AtAnswer(names, method, judged), len(names), method.tolerance
    if there.all_within:
        message = f"{there.those_within} are within the tolerance {tolerance:g} on training rows; {there}"
        return Status(StatusCode.FEASIBLE, message, None, there.client)
    above = f"{there.violating} of {many} clients {'is' if there.violating == 1 else 'are'} above the tolerance"
    return Status(StatusCode.VIOLATED, f"{above} {tolerance:g} on training rows: {there}", None, there.client)


class _AtAnswer:
    """What the answer's constraint is at the clients."""

    def __init__(self, names: Sequence[Any], method: Method, judged: Evaluation) -> None:
        tolerance, self.robust = method.tolerance, method.robust
        self.worst = judged.constraint.max(axis=1)
        self.client = names[int(np.argmax(np.where(np.isnan(self.worst), -np.inf, self.worst)))]
        self.largest = float("nan") if np.isnan(self.worst).all() else float(np.nanmax(self.worst))
        self.unknown = [names[int(i)] for i in np.flatnonzero(np.isnan(self.worst))]
        self.violating = int((self.worst > tolerance).sum())
        self._enough = worst_but(judged.constraint, method.robust) <= tolerance

    @property
    def all_within(self) -> bool:
        """Whether every client is known to meet the tolerance; but as many as may lie are set aside."""
        return bool(self._enough)

    @property
    def those_within(self) -> str:
        """Who they are."""
        aside, many = self.violating + len(self.unknown), len(self.worst)
        if not aside:
            return f"all {many} clients"
        return f"all clients but {aside} of {many}, set aside as robust={self.robust} allows,"

    def __str__(self) -> str:
        told = f"at the answer, client {self.client!r} has the largest constraint on its data, {in_words(self.largest)}"
        if not self.unknown:
            return told
        more = f" and {len(self.unknown) - 5} more" if len(self.unknown) > 5 else ""
        named = ", ".join(map(repr, self.unknown[:5])) + more
        nothing = f"nothing is known of {named}, so that it cannot be said to be met there"
        return nothing if len(self.unknown) == len(self.worst) else f"{told}; {nothing}"


def _smallest(ending: RunEnd) -> float:
    return float(ending.state.best.criterion)


def _diverged(ending: RunEnd) -> Status:
    when, client = ending.diverged_at, ending.culprit
    cause = "the server's step is not finite"
    if client is not None:
        cause = f"client {client!r} reported a value that is not finite"
    elif ending.vanished:
        cause = "no client has an objective, or none a constraint: all are −∞, also on all data"
    advice = "Lower step_size, or look at that client's values"
    if not when:
        advice = "Look at objective and constraint at the start"
    message = f"in round {when} {cause}; the last finite iterate is kept. {advice}"
    return Status(StatusCode.DIVERGED, message, when, client, _smallest(ending))


def _stopped(ending: RunEnd, judged: Evaluation) -> Status:
    history, there = ending.history, _AtAnswer(ending.names, ending.method, judged)
    message = f"ended after {len(history)} rounds, {history.feasible_rounds} of them feasible; {there}"
    return Status(StatusCode.STOPPED, message, len(history), there.client, _smallest(ending))


def _nothing_counted(ending: RunEnd) -> Status:
    history = ending.history
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
    if ending.method.robust is not None:
        message += f"; robust={ending.method.robust} needs {2 * ending.method.robust + 1} clients in every round"
    return Status(StatusCode.NO_FEASIBLE_ROUND, message, None, None, _smallest(ending))


def _never_feasible(ending: RunEnd, judged: Evaluation) -> Status:
    there, when = _AtAnswer(ending.names, ending.method, judged), smallest_criterion(ending.history)
    blocks = f"client {there.client!r} blocks with a constraint of {in_words(there.largest)} on its data"
    if there.all_within:
        blocks = (
            f"{there.those_within} are within the tolerance {ending.method.tolerance:g} on their data "
            f"(the largest is {there.client!r}, {in_words(there.largest)}): what was reported never showed it"
        )
    message = (
        f"none of {len(ending.history)} rounds had a criterion <= {in_words(float(ending.method.switch_at))}; the "
        f"smallest was {in_words(_smallest(ending))} in round {when}, and there {blocks}"
    )
    return Status(StatusCode.NO_FEASIBLE_ROUND, message, when, there.client, _smallest(ending))


def _passed(ending: RunEnd) -> str:
    return f"{ending.history.feasible_rounds} of {len(ending.history)} rounds were feasible"


def _by_pooled(ending: RunEnd, judged: Evaluation, pooled: Any) -> Status:
    """A rule that switches on the constraint of all data put together is held to that one."""
    there, level, tolerance = (
        _AtAnswer(ending.names, ending.method, judged),
        float(pooled.max()),
        ending.method.tolerance,
    )
    within = level <= tolerance
    met = within and not there.unknown
    message = (
        f"{_passed(ending)}, {'and' if met else 'but'} the constraint on all data put together is {in_words(level)}, "
        f"{'within' if within else 'above'} the tolerance {tolerance:g}; by themselves {there.violating} of "
        f"{len(ending.names)} clients {'is' if there.violating == 1 else 'are'} above it: {there}"
    )
    return Status(StatusCode.FEASIBLE if met else StatusCode.VIOLATED, message, None, there.client, _smallest(ending))


def _by_client(ending: RunEnd, judged: Evaluation) -> Status:
    there, many, tolerance = (
        _AtAnswer(ending.names, ending.method, judged),
        len(ending.names),
        ending.method.tolerance,
    )
    if there.all_within:
        message = f"{_passed(ending)}, and {there.those_within} are within the tolerance {tolerance:g}; {there}"
        return Status(StatusCode.FEASIBLE, message, None, there.client, _smallest(ending))
    above = f"{there.violating} of {many} clients {'is' if there.violating == 1 else 'are'} above the tolerance"
    message = f"{_passed(ending)}, but {above} {tolerance:g}: {there}"
    return Status(StatusCode.VIOLATED, message, None, there.client, _smallest(ending))
