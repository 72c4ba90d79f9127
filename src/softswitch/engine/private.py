"""Runs with differential privacy: noise for a privacy budget, settings that use no rows, and the ε of each client."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from softswitch.certification.private import count_applicable_rows
from softswitch.data.client_data import ClientData
from softswitch.engine.auto_tuning import SMOOTHING, default_alpha
from softswitch.engine.loop import run
from softswitch.engine.request import AUTOMATIC_AVERAGE, RunOptions, prepare_federation
from softswitch.methods.automatic import to_first_order
from softswitch.methods.base import Method
from softswitch.methods.memory import Memory
from softswitch.methods.schedules import FallingStep
from softswitch.methods.softmax_sgm import SoftmaxSGM
from softswitch.methods.state import first_averaged_round
from softswitch.oracles.base import Federation
from softswitch.oracles.client_shifts import RegretObjective
from softswitch.oracles.options import Sampling
from softswitch.privacy.accounting import PrivacyAccount, calibrate_noise, compute_epsilon
from softswitch.privacy.ledger import ReleaseLedger
from softswitch.privacy.oracle import PrivateOracle
from softswitch.privacy.settings import NoiseLevels, RecordPrivacy, Releases
from softswitch.problem.problem import Problem
from softswitch.problem.ranges import endpoints, expand_ranges
from softswitch.results.checkpoints import Checkpoints
from softswitch.results.result import Result
from softswitch.results.status import Diagnostic, DiagnosticCode
from softswitch.support import checks

ROUNDS = 100  # default number of rounds of a private run; more rounds need more noise in each
FIRST_LENGTH = 2.0  # default step size of round 0, times the clipping norm of a row's gradient; it decays to 0
MARGIN = (
    0.5  # distance of λ below the tolerance, in standard deviations of the smoothed noise; maxima are biased upwards
)
UNKNOWN_BENEFIT = Diagnostic(
    DiagnosticCode.UNKNOWN_BENEFIT,
    "the model was not compared with a constant prediction or an unconstrained model: that would read rows without "
    "counting it",
    "Tune rounds and step size on public data, and scale features to the range of most values",
)
COPIED = ("delta", "neighbours", "rate", "clip_value", "clip_gradient")  # from the privacy settings
AT_CLIENTS = "PrivateClient(...) of softswitch.flower"
NEW_RUN = "A private run cannot be extended: more rounds are a new run, at full ε again"


class PrivatePlan(NamedTuple):
    """The settings of a private run, with all defaults filled in."""

    privacy: RecordPrivacy
    levels: NoiseLevels  # noise multipliers that spend the budget
    options: RunOptions


def make_plan(privacy: RecordPrivacy, options: RunOptions) -> PrivatePlan:
    """Calibrate the noise for a client that participates in every round, and fill in the defaults of other settings."""
    sampling, output, rounds = options.sampling or Sampling(), options.output, options.rounds or ROUNDS
    memory = Memory(smoothing=SMOOTHING) if isinstance(sampling.memory, str) else sampling.memory
    filled = replace(
        options,
        rounds=rounds,
        sampling=replace(sampling, memory=memory),
        output=replace(output, average_last=output.average_last or AUTOMATIC_AVERAGE),
        logging=replace(options.logging, eval_every=0, record_clients=True),
    )
    levels = calibrate_noise(privacy, Releases(rounds, rounds * sampling.local_steps, evaluations=1))
    return PrivatePlan(privacy, levels, filled)


def solve_privately(problem: Problem, clients: ClientData, method: Method, options: RunOptions) -> Result:
    """Solve a problem with differential privacy; its objective and constraints must be means over rows.

    With checkpoints, rounds are counted in their folder before they are played. Those of an interrupted process stay
    spent, and the resumed run has as many rounds less. The answer is evaluated only once, at the end.
    """
    check_settings(problem, clients, options)
    privacy, sampling = cast(RecordPrivacy, options.privacy), options.sampling or Sampling()
    counts, plan = count_applicable_rows(problem, clients), make_plan(privacy, options)
    ledger, planned, options = ReleaseLedger(), cast(int, plan.options.rounds), plan.options
    settings = f"{privacy} for {planned} rounds"
    if options.checkpoints is not None:
        ledger = ReleaseLedger(Path(options.checkpoints.folder), f"{settings} of {sampling.local_steps} steps", planned)
        options = _without_lost_rounds(options, options.checkpoints, ledger)
    oracle = PrivateOracle(
        problem,
        clients,
        privacy,
        plan.levels,
        counts,
        participants=sampling.participants(len(clients)),
        local_steps=sampling.local_steps,
        ledger=ledger,
    )
    federation = Federation(oracle, problem.start, clients.names, problem.domain)
    method = _fill_method(to_first_order(method), oracle, plan.options)
    request = prepare_federation(federation, (method,), options)
    request = replace(request, privacy=settings)
    result = add_account(run(request, method), oracle, plan)
    return _compare_with_ranges(result, problem, privacy)


def _without_lost_rounds(options: RunOptions, checkpoints: Checkpoints, ledger: ReleaseLedger) -> RunOptions:
    """Return the options with checkpoints after every chunk, and without rounds that were begun but not completed."""
    done, from_ = checkpoints.saved_rounds()
    planned, output = cast(int, options.rounds), options.output
    if done and not ledger.rounds:
        problem = "has checkpoints, but no count of the rounds that were begun"
        raise ValueError(f"{checkpoints.folder} {problem}, so the run cannot be resumed; start a new run")
    lost = max(0, ledger.rounds - done)
    options = replace(options, checkpoints=replace(checkpoints, every=0.0))
    if not lost:
        return options
    rounds = planned - lost
    if rounds < 1:
        spent = f"was spent on {lost} rounds that were begun and interrupted"
        raise ValueError(f"the privacy budget of {checkpoints.folder} {spent}; start a new run")
    first = first_averaged_round(rounds, cast(float, output.average_last))
    first = from_ if done > from_ else max(first, done)  # the average cannot begin in the past
    share = max(rounds - first, 0.5) / rounds
    return replace(options, rounds=rounds, output=replace(output, average_last=share))


def check_settings(problem: Problem, clients: Any, options: RunOptions) -> None:
    """Raise if a private run does not support the clients or engine, or an option reads rows that are not counted."""
    checks.check_instance("privacy", options.privacy, RecordPrivacy)
    if not isinstance(clients, ClientData):
        given = f"{type(clients).__name__}: rows must be in memory"
        raise ValueError(f"clients must be a ClientData with privacy, but are {given}; use a subset, or {AT_CLIENTS}")
    sampling = options.sampling or Sampling()
    size, value_size = sampling.batch_size, sampling.value_batch_size
    given_options = {
        "held_out": options.logging.held_out,
        "warm_start": options.warm_start,
        "lower_bound": options.output.lower_bound,
        "regret": isinstance(problem.objective, RegretObjective),
        "devices": options.compute.devices,
        "client_batch_size": options.compute.client_batch_size,
        "compile": options.compute.compile,
        "dtype": options.compute.dtype,
        "seconds": options.seconds,
        "eval_every": options.logging.eval_every,
        "batch_size": None if size == "auto" else size,
        "value_batch_size": None if value_size in ("same", "auto") else f"{value_size}",
        "replace": sampling.replace,
    }
    for name, value in given_options.items():
        if value is not None and value is not False and value != 0:
            reason = "a private run computes on one device, with the rows that its rate draws and nothing else"
            raise ValueError(f"{name} must keep its default with privacy, but is {value!r}: {reason}")


def _fill_method(method: Method, oracle: PrivateOracle, options: RunOptions) -> Method:
    """Return the method with defaults, which use no rows, in place of settings that are None."""
    filled: dict[str, Any] = {}
    if method.threshold is None and method.slack is None:
        deviations = oracle.report_deviations[:, 1:]
        largest = float(deviations.max(where=np.isfinite(deviations), initial=0))
        memory = cast(Sampling, options.sampling).memory
        smoothing = float(memory.smoothing) if isinstance(memory, Memory) else 0.0
        remaining = math.sqrt((1 - smoothing) / (1 + smoothing))  # the noise of a running mean
        filled["threshold"] = method.tolerance - MARGIN * largest * remaining
    if method.step_size is None:
        first = FIRST_LENGTH / oracle.privacy.clip_gradient
        filled["step_size"] = FallingStep(first=first, rounds=cast(int, options.rounds))
        if isinstance(method, SoftmaxSGM) and method.criterion is None:
            filled["criterion"] = "max"
    if isinstance(method, SoftmaxSGM) and method.alpha is None:
        filled["alpha"] = default_alpha(oracle.client_count, method.tolerance)
    return replace(method, **filled)


def add_account(result: Result, oracle: Any, plan: PrivatePlan) -> Result:
    """Return the result with its ``PrivacyAccount``, a note on noisy values, and advice that suits private runs."""
    privacy, levels, steps = plan.privacy, plan.levels, oracle.local_steps
    history = result.history.per_client
    assert history is not None
    rounds = np.bincount(history.clients.ravel(), minlength=oracle.client_count)
    evaluated = not np.isnan(result.client_objective).all()  # otherwise the run was stopped, and can continue
    lost = max(0, oracle.ledger.rounds - len(history.clients))
    counts = (rounds + lost).tolist()
    releases = tuple(Releases(count, count * steps, int(evaluated)) for count in counts)
    spent = (compute_epsilon(one, levels, privacy.rate, privacy.delta) for one in releases)
    deviations = ([float(one) if np.isfinite(one) else None for one in row] for row in oracle.evaluation_deviations)
    copied: dict[str, Any] = {name: getattr(privacy, name) for name in COPIED}
    account = PrivacyAccount(
        epsilon=tuple(spent),
        budget=privacy.epsilon,
        releases=releases,
        noise=levels,
        deviations=tuple(map(tuple, deviations)),
        **copied,
    )
    note = account.value_note if evaluated else "the answer is evaluated once, at the end; resume from the checkpoints"
    status = replace(result.status, message=f"{result.status.message}; {note}")
    diagnostics = [
        replace(one, advice=f"{one.advice}. {NEW_RUN}") if one.suggests_more_rounds else one
        for one in result.diagnostics
    ]
    return replace(result, status=status, privacy=account, diagnostics=(*diagnostics, UNKNOWN_BENEFIT))


def _compare_with_ranges(result: Result, problem: Problem, privacy: RecordPrivacy) -> Result:
    """Return the result, with a diagnostic if the constraint on a row can exceed the clipping norm."""
    ranges = expand_ranges(problem.constraint_range, result.client_constraint.shape[1])
    largest = max((max(map(abs, endpoints(bounds))) for bounds in ranges if bounds is not None), default=0.0)
    if largest <= privacy.clip_value:
        return result
    clipped = Diagnostic(
        DiagnosticCode.CLIPPED_ROWS,
        f"a constraint can be {largest:.3g} on a row, which is clipped to {privacy.clip_value:g}: constraints may be "
        "underestimated",
        f"Raise clip_value to at most {largest:.3g}, or more if several functions apply to the same rows",
    )
    return replace(result, diagnostics=(*result.diagnostics, clipped))
