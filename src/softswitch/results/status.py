"""The end of a run: selection of its answer, its status (a code and a message) and the codes of diagnostics."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from softswitch.methods.base import Method
from softswitch.methods.state import State
from softswitch.oracles.base import Evaluation
from softswitch.problem.parameters import Params
from softswitch.results.history import History
from softswitch.results.json_numbers import JsonRecord
from softswitch.support.text import format_value, join_first


class StatusCode(StrEnum):
    """How a run ended.

    Attributes:
        FEASIBLE: The run ended by its limits or stalled progress, and the answer meets the tolerance on training data.
        VIOLATED: The run ended in the same way, and some rounds were feasible, but the answer violates the tolerance.
        NO_FEASIBLE_ROUND: No round was feasible, hence there is no feasible average. An auto-tuned run is FEASIBLE
            nevertheless if its answer meets the tolerance on all training data.
        DIVERGED: A report or a step was not finite.
        STOPPED: A callback or Ctrl-C stopped the run early.
    """

    FEASIBLE = "feasible"
    VIOLATED = "answer-violates"
    NO_FEASIBLE_ROUND = "no-feasible-round"
    DIVERGED = "diverged"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Status:
    """How a run ended, as a code and as text.

    Attributes:
        code: Code of the ending, for programs.
        message: Description of the ending, without a full stop.
        round: Index of the round that diverged, or of the smallest criterion if no round was feasible; number of rounds
            if the run was stopped; else None.
        client: Label of the client with the largest constraint, or with a value that is not finite; None if unknown.
        criterion: The smallest criterion of any round; None if unknown.
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


class DiagnosticCode(StrEnum):
    """The kind of problem that a ``Diagnostic`` reports."""

    DIVERGED = "diverged"  # a value was not finite
    NO_VALUES = "no-values"  # no client has an objective, or none a constraint
    VOID_ROUNDS = "void-rounds"  # many rounds had no objective or no constraint
    MISSING_STRATA = "missing-strata"  # batches often lack a class or group of their client
    CLIENT_DROPOUT = "client-dropout"  # many participants did not complete their round
    EXCLUDED_CLIENTS = "excluded-clients"  # the settings exclude clients
    NEVER_FEASIBLE = "never-feasible"  # no round was feasible, and the answer violates the tolerance
    SWITCH_NEVER_PASSES = "switch-never-passes"  # no round was feasible, but the answer meets the tolerance
    INACTIVE_CONSTRAINT = "inactive-constraint"  # nearly all rounds were feasible
    MASKED_WORST_CLIENT = "masked-worst-client"  # a client violated the tolerance in feasible rounds
    NOISY_SWITCH = "noisy-switch"  # noise of the reports decides the switch
    STEP_SIZE_TOO_LARGE = "step-size-too-large"  # a round changes the criterion by more than the tolerance
    FEW_AVERAGED_ROUNDS = "few-averaged-rounds"  # the answer is the mean of few iterates
    STILL_IMPROVING = "still-improving"  # F still decreased at the end
    STALLED = "stalled"  # no step improves F, but the optimum is not reached
    LIMITED_PRECISION = "limited-precision"  # a function computes in float32
    NO_BETTER_THAN_START = "no-better-than-start"  # the start is feasible, and F did not decrease
    NO_BETTER_THAN_CONSTANT = "no-better-than-constant"  # a constant prediction is feasible and as good
    VIOLATING_CLIENTS = "violating-clients"  # clients above the tolerance on training rows, and not certified
    OVERFITTED = "overfitted"  # a rate or a loss is significantly larger on held-out rows than on training rows
    TRIMMED_VIOLATION = "trimmed-violation"  # a client that a robust method trims violates the tolerance
    OUTLIER_VALUES = "outlier-values"  # a client's values are far from those of all others
    INCONSISTENT_UPDATES = "inconsistent-updates"  # a client's updates contradict its reports
    UPDATE_SCALE_MISMATCH = "update-scale-mismatch"  # a client's reports and updates have different scales
    UNKNOWN_BENEFIT = "unknown-benefit"  # a private run was not compared with baselines
    CLIPPED_ROWS = "clipped-rows"  # the constraint can exceed the clipping norm of a private run


@dataclass(frozen=True)
class Diagnostic:
    """A problem detected in a run.

    Attributes:
        code: The kind of problem.
        evidence: Observation in the run that indicates the problem, with numbers.
        advice: Settings to change or to check.
        suggests_more_rounds: Whether the advice includes a longer run. Default: False.
    """

    code: DiagnosticCode
    evidence: str
    advice: str
    suggests_more_rounds: bool = False

    def __str__(self) -> str:
        return f"{self.code}: {self.evidence}. {self.advice}."


@dataclass(frozen=True)
class Restart(JsonRecord):
    """Consecutive rounds of an auto-tuned run: they start at its best answer so far, and the step size decays to 0."""

    begin: int  # index of the first round
    end: int  # index of the last round plus 1
    step_size: float  # step size η of the first round
    momentum: float
    threshold: float  # λ of the switch
    objective: float  # F of the best answer so far, after this restart, on all training data
    constraint: float  # G of that answer on all training data
    answer: str  # description of that answer
    better: bool  # whether this restart found that answer
    diverged: bool = False  # whether a value in the last round was not finite
    aim: float = math.nan  # the value that the method minimises at that answer: F, or the clients' mean
    judged: int = 0  # number of candidate answers evaluated on all training data at the end

    def __str__(self) -> str:
        step, level = f"{self.step_size:.3g}", format_value(self.threshold)
        settings = f"rounds {self.begin} to {self.end - 1}, step {step} decaying to 0, λ = {level}"
        if self.diverged:
            return f"{settings}: not finite"
        outcome = f"F {format_value(self.objective)}, G {format_value(self.constraint)}"
        return f"{settings}: {outcome}{'' if self.better else ', no improvement'}"


@dataclass(frozen=True, eq=False)
class RunEnd:
    """A run after its last round, before its answer is selected. Fields without a comment are those of ``Result``."""

    state: State
    history: History
    method: Method
    names: tuple[Any, ...]
    averaging_from: int  # first round that could join the average
    answer: str  # the requested iterate: "average", "best" or "last"
    stopped: bool  # whether a callback or Ctrl-C stopped the run
    seed: int
    seconds: float
    vanished: bool = False  # whether no client has an objective, or none a constraint, on all its data
    culprit: Any = None  # label of the client whose value is not finite; None if unknown
    restarts: tuple[Restart, ...] = ()
    start: Evaluation | None = None  # values of the initial parameters at every client; None if unknown
    auto_settings: dict[str, str] = field(default_factory=dict)

    @property
    def diverged_at(self) -> int:
        """Index of the round in which a value was not finite; −1 if there is none."""
        return int(self.state.diverged_at)

    @property
    def smallest_criterion_round(self) -> int:
        """Index of the round with the smallest finite criterion; 0 if there is none."""
        criterion = self.history.criterion
        return int(np.argmin(np.where(np.isfinite(criterion), criterion, np.inf)))


def select_answer(end: RunEnd) -> tuple[Params, str]:
    """Return the answer's parameters and description.

    If the requested iterate does not exist, the answer is the first that exists of the best feasible iterate, the
    iterate with the smallest criterion, and the last iterate.
    """
    state, history, first = end.state, end.history, end.averaging_from
    if end.restarts:
        return state.params, end.restarts[-1].answer
    if end.answer == "last":
        return state.params, f"last iterate, after {len(history)} rounds"
    reason = ""
    if end.answer == "average":
        in_window, count = int(np.sum(history.feasible[first:])), int(state.average.rounds)
        if in_window and count:
            window = f"rounds {first} to {len(history) - 1}" if first else f"{len(history)} rounds"
            window += " and of the previous run" if count > in_window else ""
            return state.averaged_params, f"mean of the {count} feasible iterates of {window}"
        reason = f": no feasible round from {first} on"
        if len(history) <= first:
            reason = f": the average begins with round {first}, and the run ended before it"
    if history.feasible_rounds:
        best = np.argmin(np.where(history.feasible, history.objective, np.inf))
        return state.best.params, f"best feasible iterate by its reports, from round {best}{reason}"
    if np.isfinite(state.best.criterion):
        return state.best.params, f"iterate with the smallest criterion, round {end.smallest_criterion_round}"
    return state.params, "the start: no round was completed"


def run_status(end: RunEnd, evaluation: Evaluation) -> Status:
    """Return the status of a finished run; ``evaluation`` has the values of its answer at every client."""
    history, smallest = end.history, float(end.state.best.criterion)
    if end.diverged_at >= 0:
        cause = "the server's step is not finite"
        if end.culprit is not None:
            cause = f"client {end.culprit!r} reported a value that is not finite"
        elif end.vanished:
            cause = "no client has an objective, or none has a constraint: all are −∞, also on all data"
        later = "Lower step_size, or check that client's values"
        advice = later if end.diverged_at else "Check objective and constraint at the start"
        message = f"in round {end.diverged_at} {cause}; the last finite iterate is returned. {advice}"
        return Status(StatusCode.DIVERGED, message, end.diverged_at, end.culprit, smallest)
    is_feasible, client, message = _judge(end.names, end.method, evaluation)
    if end.stopped:
        message = f"stopped after {len(history)} rounds, {history.feasible_rounds} of them feasible; {message}"
        return Status(StatusCode.STOPPED, message, len(history), client, smallest)
    if history.void.all():
        return Status(StatusCode.NO_FEASIBLE_ROUND, _describe_void_rounds(end), None, None, smallest)
    # The answer of an auto-tuned run was evaluated on all data. Any other answer needs a feasible round.
    if not history.feasible_rounds and not (end.restarts and is_feasible):
        level, when = format_value(float(end.method.switch_at)), end.smallest_criterion_round
        criterion = f"none of {len(history)} rounds had a criterion <= {level}"
        message = f"{criterion}; the smallest was {format_value(smallest)} in round {when}, where {message}"
        return Status(StatusCode.NO_FEASIBLE_ROUND, message, when, client, smallest)
    message = f"{message}. {history.feasible_rounds} of {len(history)} rounds were feasible"
    return Status(StatusCode.FEASIBLE if is_feasible else StatusCode.VIOLATED, message, None, client, smallest)


def model_status(names: Sequence[Any], method: Method, evaluation: Evaluation) -> Status:
    """Return the status, FEASIBLE or VIOLATED, of a model selected after its run, from its values at every client."""
    is_feasible, client, message = _judge(names, method, evaluation, " on training rows")
    return Status(StatusCode.FEASIBLE if is_feasible else StatusCode.VIOLATED, message, None, client)


def _judge(names: Sequence[Any], method: Method, evaluation: Evaluation, where: str = "") -> tuple[bool, Any, str]:
    """Return whether a model is feasible, the client with the largest constraint, and a message on data ``where``."""
    worst, tolerance = evaluation.constraint.max(axis=1), f"the tolerance {method.tolerance:g}"
    count, above = len(worst), int((~(worst <= method.tolerance)).sum())
    unknown = [repr(names[int(i)]) for i in np.flatnonzero(np.isnan(worst))]
    client = names[int(np.argmax(np.where(np.isnan(worst), -np.inf, worst)))]
    is_feasible = evaluation.is_feasible(method)
    parts = [f"{above} of {count} clients {'is' if above == 1 else 'are'} above {tolerance}{where}"]
    if not above:
        parts = [f"all {count} clients are within {tolerance}{where}"]
    elif is_feasible and method.robust is not None:
        parts[0] += f", trimmed as robust={method.robust} allows"
    if method.switches_on == "pooled" and evaluation.pooled is not None:
        level = evaluation.constraint_level(method)
        side = "within" if level <= method.tolerance else "above"
        parts.insert(0, f"the constraint on the pooled data is {format_value(level)}, {side} {tolerance}")
    if len(unknown) < count:
        parts.append(f"the largest constraint is {format_value(float(np.nanmax(worst)))}, at client {client!r}")
    if unknown:
        parts.append(f"nothing is known of {join_first(unknown)}, which counts as a violation")
    return is_feasible, client, "; ".join(parts)


def _describe_void_rounds(end: RunEnd) -> str:
    lost, robust = end.history.lost_share, end.method.robust
    message = f"in none of {len(end.history)} rounds did enough participants have an objective and a constraint"
    message += f"; {lost:.0%} of the participants were lost or rejected, and the log names them" if lost else ""
    message += "" if robust is None else f"; robust={robust} needs {2 * robust + 1} clients in every round"
    return f"{message}. Raise participation, or sample by strata"
