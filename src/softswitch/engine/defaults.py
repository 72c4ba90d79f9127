"""Defaults: fill in the options that a user did not set.

A method with given settings runs as published. An automatic run (step size None) has its options chosen.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from softswitch.data.client_data import ClientData
from softswitch.data.streamed_data import StreamedData
from softswitch.engine.auto_tuning import Choice, choose_first_restart, choose_settings, default_memory
from softswitch.engine.request import CHOSEN_FOR, RunSettings
from softswitch.methods.automatic import Automatic
from softswitch.methods.base import Method
from softswitch.methods.memory import Memory
from softswitch.methods.softmax_sgm import SoftmaxSGM
from softswitch.oracles.base import Federation
from softswitch.oracles.options import Compute, Sampling
from softswitch.problem.problem import Problem
from softswitch.results.checkpoints import Checkpoints
from softswitch.support import checks

DEFAULT_ROUNDS = 1000
"""Rounds of a method with given settings."""
FEDERATION_ROUNDS = 2000
"""Rounds of an automatic run whose clients are an oracle: the cost of a round is not known."""
AUTOMATIC_AVERAGE = 0.5


class Resolved(NamedTuple):
    """Options of a run, all filled in. Automatic methods keep a step size of None; without them, choice is None."""

    methods: tuple[Method, ...]
    sampling: Sampling
    compute: Compute
    settings: RunSettings
    choice: Choice | None


def resolve_method(method: Any, tolerance: float | None = None) -> Method:
    """Return the method of a run; its step size is None if it is chosen during the run."""
    if (method is None) == (tolerance is None):
        raise ValueError(f"give either a method or a tolerance, but method={method!r} and tolerance={tolerance!r}")
    if tolerance is not None:
        return Automatic(tolerance).template
    if isinstance(method, Automatic):
        return method.template
    if not isinstance(method, Method):
        raise TypeError(f"method must be a Method, such as SoftmaxSGM(...), or Automatic(...), but is {method!r}")
    required = ("step_size", "alpha") if isinstance(method, SoftmaxSGM) else ("step_size",)
    missing = [name for name in required if getattr(method, name, 0.0) is None]
    if missing:
        raise ValueError(
            f"{missing[0]} must be a number, but is None in {method}; use solve(..., tolerance=...) or "
            "softswitch.methods.Automatic to have it chosen"
        )
    return method


def resolve_sampling(sampling: Sampling | None, method: Method) -> Sampling:
    """Return the sampling of a run: ``Sampling()``, or ``Sampling.automatic()`` for an automatic run."""
    if sampling is None:
        return Sampling.automatic() if method.step_size is None else Sampling()
    checks.check_instance("sampling", sampling, Sampling)
    if sampling.is_automatic and method.step_size is not None:
        needed = "sampling must have given batch sizes for a method with a step size"
        raise ValueError(f"{needed}, but is {sampling}; batch_size=None uses all rows")
    return sampling


def resolve_options(
    problem: Problem,
    clients: ClientData | StreamedData,
    methods: Sequence[Method],
    sampling: Sampling,
    compute: Compute,
    settings: RunSettings,
    checkpoints: Checkpoints | None = None,
) -> Resolved:
    """Fill in the options of runs whose clients hold rows; the methods are all automatic, or none is.

    An automatic run in ``checkpoints`` keeps what it chose, even if the number of rounds has changed.
    """
    checks.check_instance("problem", problem, Problem)
    if not isinstance(clients, StreamedData):
        checks.check_instance("clients", clients, ClientData)
    if not is_automatic(methods):
        all_take_part = sampling.participants(len(clients)) == len(clients)
        noisy = sampling.value_batch_size is not None
        memory = _memory_if_robust(methods, settings.memory, all_take_part=all_take_part, noisy=noisy)
        return Resolved(tuple(methods), sampling, compute, _published_settings(settings, memory), None)
    memory, can_repeat = _memory_unless_compared(methods, settings.memory), all(m.robust is None for m in methods)
    choose = partial(choose_settings, problem, clients, sampling, compute, memory=memory, can_repeat=can_repeat)
    length = choose(settings.rounds)[0]
    choice, sampling, compute, memory = choose(_rounds_of_first_run(settings.rounds, checkpoints))
    choice = replace(choice, rounds=length.rounds, may_end=length.may_end)
    return Resolved(tuple(methods), sampling, compute, _automatic_settings(settings, choice, memory), choice)


def resolve_for_federation(
    federation: Federation, methods: Sequence[Method], settings: RunSettings, checkpoints: Checkpoints | None = None
) -> Resolved:
    """Fill in the options of runs whose clients are an oracle, which has its own sampling."""
    checks.check_instance("federation", federation, Federation)
    oracle, memory = federation.oracle, settings.memory
    all_take_part, noisy = oracle.participants == oracle.client_count, oracle.report_batch_size is not None
    if oracle.supports_client_selection:
        memory = _memory_if_robust(methods, memory, all_take_part=all_take_part, noisy=noisy)
    if not is_automatic(methods):
        return Resolved(tuple(methods), Sampling(), Compute(), _published_settings(settings, memory), None)
    memory = _memory_unless_compared(methods, memory)
    if memory == "auto":
        can_repeat = oracle.can_repeat_reports and all(method.robust is None for method in methods)
        chosen = default_memory(all_take_part=all_take_part, noisy=noisy, can_repeat=can_repeat)
        memory = chosen if oracle.supports_client_selection else None
    rounds = (settings.rounds, _rounds_of_first_run(settings.rounds, checkpoints))
    length, first = (choose_for_federation(federation, one, memory) for one in rounds)
    choice = replace(first, rounds=length.rounds, may_end=length.may_end)
    return Resolved(tuple(methods), Sampling(), Compute(), _automatic_settings(settings, choice, memory), choice)


def choose_for_federation(federation: Federation, rounds: int | None, memory: Memory | None) -> Choice:
    """Return the initial settings of an automatic run of an oracle; rounds of None are chosen."""
    oracle, cost = federation.oracle, None
    if not oracle.reports_full_data and oracle.total_rows is not None:
        values, gradients = oracle.cost(oracle.total_rows * oracle.participants / oracle.client_count)
        values *= 1 if memory is None else memory.values_a_report
        cost = float(oracle.total_rows / (values + 3 * gradients))
    return choose_first_restart(
        federation.start,
        FEDERATION_ROUNDS if rounds is None else rounds,
        may_end=rounds is None,
        exact=oracle.reports_full_data,
        jumps=oracle.has_surrogate,
        noisy=oracle.report_batch_size is not None,
        evaluation_cost=cost,
    )


def is_automatic(methods: Sequence[Method]) -> bool:
    """Return whether the settings of these methods are chosen during the run: if they have no step size."""
    for method in methods:
        checks.check_instance("method", method, Method)
    kinds = {method.step_size is None for method in methods}
    if len(kinds) > 1:
        raise ValueError("methods must be all automatic or all with given settings if they share their options")
    if not kinds.pop():
        return False
    for method in methods:
        if not isinstance(method, SoftmaxSGM) or method.alpha is not None:
            continue
        if method.constraint_alpha is not None or method.alpha_scale == "spread":
            raise ValueError(f"constraint_alpha and alpha_scale need an alpha, but {method} has none; give all or none")
    return True


def default_alpha(clients: int, tolerance: float) -> float:
    """Return α = 10·ln(n)/ε, with which the softmax mean is at most a tenth of the tolerance below the maximum."""
    if tolerance <= 0:
        raise ValueError("alpha must be given if the tolerance is 0")
    return 10 * max(1.0, math.log(clients)) / tolerance


def _memory_unless_compared(methods: Sequence[Method], memory: Any) -> Any:
    """Return no memory in place of "auto" if a method itself keeps account of its clients."""
    return None if memory == "auto" and any(m.compares or m.draws_clients for m in methods) else memory


def _memory_if_robust(methods: Sequence[Method], memory: Any, *, all_take_part: bool, noisy: bool) -> Any:
    """Return a memory in place of "auto" for robust methods with few participants: outliers show among all clients."""
    if memory == "auto" and not all_take_part and any(method.robust is not None for method in methods):
        return default_memory(all_take_part=False, noisy=noisy)
    return memory


def _published_settings(settings: RunSettings, memory: Any) -> RunSettings:
    return replace(
        settings,
        rounds=DEFAULT_ROUNDS if settings.rounds is None else settings.rounds,
        average_last=1.0 if settings.average_last is None else settings.average_last,
        answer="average" if settings.answer == "auto" else settings.answer,
        memory=None if memory == "auto" else memory,
    )


def _automatic_settings(settings: RunSettings, choice: Choice, memory: Memory | None) -> RunSettings:
    average_last = AUTOMATIC_AVERAGE if settings.average_last is None else settings.average_last
    return replace(settings, rounds=choice.rounds, average_last=average_last, memory=memory)


def _rounds_of_first_run(rounds: int | None, checkpoints: Checkpoints | None) -> int | None:
    """Return the rounds that the automatic run in these checkpoints was started with; else the current ones."""
    stored = checkpoints.saved_identity(CHOSEN_FOR) if isinstance(checkpoints, Checkpoints) else None
    first_rounds: int | None = rounds if stored is None else json.loads(stored)
    return first_rounds
