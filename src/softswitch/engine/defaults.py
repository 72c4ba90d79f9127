"""What a user left out, filled in: chosen where the rule has no step size, as in the paper where it has one."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from softswitch.data.client_data import ClientData
from softswitch.data.streamed_data import StreamedData
from softswitch.engine.auto_tuning import Choice, choose, first_choice, memory_for
from softswitch.engine.request import CHOSEN_FOR, RunSettings
from softswitch.methods.base import Method
from softswitch.methods.memory import Memory
from softswitch.methods.softmax_sgm import SoftmaxSGM
from softswitch.oracles.base import Oracle
from softswitch.oracles.federation import ClientSettings, Federation, count_participants
from softswitch.problem.problem import Problem
from softswitch.results.checkpoints import Checkpoints
from softswitch.support import checks

PAPER_ROUNDS, PAPER_BATCH = 1000, 32
ROUNDS_OF_A_FEDERATION = 2000
"""Of clients that are no rows of data nobody knows what a round costs."""
SECOND_HALF = 0.5


class Completed(NamedTuple):
    """Settings with nothing left out.

    Attributes:
        methods: the methods; those without a step size still have none: each cycle of a run has its own.
        how: how clients take part.
        settings: of the run.
        choice: what a run that chooses for itself begins with; None where the rules have step sizes.
    """

    methods: tuple[Method, ...]
    how: ClientSettings
    settings: RunSettings
    choice: Choice | None


def completed(
    problem: Any,
    clients: Any,
    methods: Sequence[Method],
    how: ClientSettings,
    told: dict[str, Any],
    checkpoints: Checkpoints | None = None,
) -> Completed:
    """Fill in what is left out, for rules of which all or none have a step size.

    Args:
        problem: the problem.
        clients: its clients.
        methods: the methods.
        how: how clients take part, as far as it is told.
        told: the settings of the run, as far as they are told.
        checkpoints: where these have a run that chose for itself, it keeps what it chose, for however many rounds.
    """
    checks.expect("problem", problem, Problem)
    if not isinstance(clients, StreamedData):
        checks.expect("clients", clients, ClientData)
    if chooses(methods):
        _checked(told)
        rounds, begun_with = told["rounds"], _rounds_begun_with(told["rounds"], checkpoints)
        asked, again = _unless_own_account(methods, told["memory"]), all(method.robust is None for method in methods)
        length = choose(problem, clients, how, rounds, asked, again=again)[0]
        choice, how, memory = choose(problem, clients, how, begun_with, asked, again=again)
        choice = replace(choice, rounds=length.rounds, may_end=length.may_end)
        return Completed(tuple(methods), how, _settings(told, choice.rounds, SECOND_HALF, "auto", memory), choice)
    size = PAPER_BATCH if how.batch_size == "auto" else how.batch_size
    how = replace(how, batch_size=size, value_batch_size=_unless_auto(how.value_batch_size, "same"))
    methods = tuple(as_in_paper(method, len(clients)) for method in methods)
    everyone = count_participants(how.participation, len(clients)) == len(clients)
    noisy = how.value_batch_size is not None
    told = told | {"memory": _memory_of(methods, told["memory"], everyone=everyone, noisy=noisy)}
    return Completed(methods, how, _paper_settings(told), None)


def completed_for(
    federation: Any, methods: Sequence[Method], told: dict[str, Any], checkpoints: Checkpoints | None = None
) -> Completed:
    """The same where the clients are given as an oracle, which knows how they take part."""
    checks.expect("federation", federation, Federation)
    oracle = federation.oracle
    everyone, noisy = oracle.participants == oracle.client_count, oracle.report_batch_size is not None
    chosen_by_server = oracle.supports_client_selection
    if chosen_by_server:
        told = told | {"memory": _memory_of(methods, told["memory"], everyone=everyone, noisy=noisy)}
    if not chooses(methods):
        methods = tuple(as_in_paper(method, federation.oracle.client_count) for method in methods)
        return Completed(methods, ClientSettings(), _paper_settings(told), None)
    _checked(told)
    memory = _unless_own_account(methods, told["memory"])
    if memory == "auto":
        again = oracle.can_repeat_reports and all(method.robust is None for method in methods)
        memory = memory_for(everyone=everyone, noisy=noisy, again=again) if chosen_by_server else None
    length, begun_with = (
        chosen_for(federation, asked, memory)
        for asked in (told["rounds"], _rounds_begun_with(told["rounds"], checkpoints))
    )
    choice = replace(begun_with, rounds=length.rounds, may_end=length.may_end)
    return Completed(
        tuple(methods), ClientSettings(), _settings(told, choice.rounds, SECOND_HALF, "auto", memory), choice
    )


def chosen_for(federation: Federation, rounds: int | None, memory: Memory | None) -> Choice:
    """What a run of so many rounds begins with, where the clients are given as an oracle.

    Args:
        federation: the clients.
        rounds: how many there are to be; None: that is chosen.
        memory: how the server remembers.
    """
    oracle = federation.oracle
    return first_choice(
        federation.start,
        ROUNDS_OF_A_FEDERATION if rounds is None else rounds,
        may_end=rounds is None,
        exact=oracle.reports_full_data,
        jumps=oracle.has_surrogate,
        noisy=oracle.report_batch_size is not None,
        look=None if oracle.reports_full_data else _rounds_a_look(oracle, memory),
    )


def _rounds_a_look(oracle: Oracle, memory: Memory | None) -> float | None:
    """How many rounds it costs to judge an answer, a gradient counted three times; None where that is not known."""
    if oracle.total_rows is None:
        return None
    values, gradients = oracle.cost(oracle.total_rows * oracle.participants / oracle.client_count)
    values *= 1 if memory is None else memory.values_a_report
    return float(oracle.total_rows / (values + 3 * gradients))


def _unless_own_account(methods: Sequence[Method], memory: Any) -> Any:
    """The memory asked for; none where that is to be chosen and a rule keeps account of its clients itself."""
    return None if memory == "auto" and any(method.compares or method.draws_clients for method in methods) else memory


def chooses(methods: Sequence[Method]) -> bool:
    """Whether the runs of these rules choose for themselves: where they have no step size."""
    for method in methods:
        checks.expect("method", method, Method)
    own = {method.step_size is None for method in methods}
    if len(own) > 1:
        raise ValueError("methods must all have a step_size, or none of them, where they share their other settings")
    if not own.pop():
        return False
    for method in methods:
        if not isinstance(method, SoftmaxSGM) or method.alpha is not None:
            continue
        if method.constraint_alpha is not None:
            raise ValueError(f"constraint_alpha goes with an alpha, but {method} has none; give both or neither")
        if method.alpha_scale == "spread":
            raise ValueError(f"alpha_scale='spread' goes with an alpha, but {method} has none; give both or neither")
    return True


def as_in_paper(method: Method, clients: int) -> Method:
    """The rule with an α, where it wants one and has none: 10·ln(n)/tolerance."""
    if not isinstance(method, SoftmaxSGM) or method.alpha is not None:
        return method
    return replace(method, alpha=default_alpha(clients, method.tolerance))


def default_alpha(clients: int, tolerance: float) -> float:
    """α = 10·ln(clients)/tolerance: the softmax mean is at most a tenth of the tolerance below the maximum."""
    if tolerance <= 0:
        raise ValueError("alpha must be given where the tolerance is 0 and a step_size is given")
    return 10 * max(1.0, math.log(clients)) / tolerance


def _memory_of(methods: Sequence[Method], memory: Any, *, everyone: bool, noisy: bool) -> Any:
    """Where few take part and some may lie, a server remembers: who is out of line is seen among all, not among few."""
    robust = any(isinstance(method, Method) and method.robust is not None for method in methods)
    return memory_for(everyone=False, noisy=noisy) if memory == "auto" and robust and not everyone else memory


def _paper_settings(told: dict[str, Any]) -> RunSettings:
    rounds = PAPER_ROUNDS if told["rounds"] is None else told["rounds"]
    return _settings(told, rounds, 1.0, "average", _unless_auto(told["memory"], None))


def _settings(told: dict[str, Any], rounds: int, average_last: float, answer: str, memory: Any) -> RunSettings:
    filled = dict(told, rounds=rounds, memory=memory)
    filled["average_last"] = average_last if told["average_last"] is None else told["average_last"]
    filled["answer"] = answer if told["answer"] == "auto" else told["answer"]
    return RunSettings(**filled)


def _checked(told: dict[str, Any]) -> None:
    """Check what choices are made by."""
    _settings(told, 1 if told["rounds"] is None else told["rounds"], 1.0, "auto", _unless_auto(told["memory"], None))


def _rounds_begun_with(asked: int | None, checkpoints: Checkpoints | None) -> int | None:
    """The rounds that a run in these checkpoints was asked for when it chose; else those asked for now."""
    there = checkpoints.said(CHOSEN_FOR) if isinstance(checkpoints, Checkpoints) else None
    if there is None:
        return asked
    begun_with: int | None = json.loads(there)
    return begun_with


def _unless_auto(given: Any, otherwise: Any) -> Any:
    return otherwise if isinstance(given, str) and given == "auto" else given
