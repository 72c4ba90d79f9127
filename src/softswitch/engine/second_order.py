"""Second-order runs: ``SQP`` on clients in memory, one exchange after another."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple, cast

import jax
import numpy as np

from softswitch.certification.optimality import bound_by_weights, prove_infeasible
from softswitch.data.client_data import ClientData
from softswitch.data.streamed_data import StreamedData
from softswitch.engine.auto_tuning import has_layers
from softswitch.engine.loop import defer_interrupts
from softswitch.engine.request import RunSettings, check_warm_params
from softswitch.methods import sqp
from softswitch.methods.automatic import OpenMethod
from softswitch.methods.sqp import SQP, Derivatives, Phase, SQPState
from softswitch.methods.state import State, first_state
from softswitch.oracles.base import Evaluation
from softswitch.oracles.derivatives import MAX_PARAMETERS, DerivativeOracle, RowDerivatives, UnavailableError
from softswitch.oracles.evaluation import ClientSummary
from softswitch.oracles.options import Compute, Logging, Output, Sampling, TorchData, changed_options
from softswitch.oracles.out_of_core import OutOfCoreDerivatives
from softswitch.oracles.regret import client_optimum_of
from softswitch.oracles.sharded import ShardedDerivatives
from softswitch.problem.domains import Ball, Box
from softswitch.problem.parameters import Params, takes_key, to_vector
from softswitch.problem.problem import PooledConstraint, Problem
from softswitch.results import baseline
from softswitch.results.baseline import Baseline, LowerBound
from softswitch.results.callbacks import Chunk, ProgressBar, SwitchShare, check_callbacks, run_callbacks
from softswitch.results.checkpoints import Checkpoints, Snapshot
from softswitch.results.history import ClientHistory, History, Record, join, keep_clients
from softswitch.results.result import Result
from softswitch.results.status import Diagnostic, DiagnosticCode, Status, StatusCode, model_status
from softswitch.support import checks
from softswitch.support.arrays import fingerprint
from softswitch.support.text import format_value, join_first
from softswitch.support.tracing import strip_addresses

DEFAULT_EXCHANGES = 100
MAX_MARGINS = 6
"""How often the tolerance is lowered because the parameters, rounded to their dtype, exceed it."""
MAX_WORK = 4e10
"""Rows times squared parameters up to which an automatic run computes Hessians: about 10 seconds for ten exchanges."""
FLOWER_ENGINE = "softswitch.flower.simulation"  # imported on first use
INSTEAD = "use solve(..., tolerance=...) or SoftmaxSGM"


def check_second_order(
    problem: Any,
    clients: Any,
    sampling: Sampling | None,
    output: Output,
    compute: Compute,
    logging: Logging,
    privacy: Any,
) -> None:
    """Raise an error that names the alternative, unless these options can be combined with ``SQP``."""
    is_torch = isinstance(problem, Problem) and problem.is_torch
    kinds = (TorchData,) if is_torch else (ClientData, StreamedData)
    if not isinstance(problem, Problem) or not isinstance(clients, kinds):
        expected = " or ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"clients must be {expected} for SQP, but is {type(clients).__name__}; {INSTEAD}")
    changed = [] if sampling is None else changed_options(sampling)
    changed += changed_options(compute, *(["devices", "engine"] if isinstance(clients, ClientData) else []))
    changed += changed_options(output, "lower_bound")
    changed += ["privacy"] if privacy is not None else []
    if changed:
        raise ValueError(f"{changed[0]} must keep its default for SQP, which uses all rows of all clients; {INSTEAD}")
    if problem.constraint_surrogate is not None:
        raise ValueError(f"constraint must be smooth for SQP, but the problem has a constraint_surrogate; {INSTEAD}")
    if not isinstance(problem.domain, Ball | Box | None):
        raise ValueError(f"domain must be a Ball, a Box or None for SQP, but is {problem.domain!r}; {INSTEAD}")
    if (parameters := sum(map(math.prod, _shapes(problem)))) > MAX_PARAMETERS:
        raise ValueError(
            f"start must have at most {MAX_PARAMETERS} parameters for SQP, but has {parameters}; {INSTEAD}"
        )


def _shapes(problem: Problem) -> list[tuple[int, ...]]:
    """Return the shapes of the trained parameters."""
    if problem.is_torch:
        return [tuple(weight.shape) for weight in problem.start.parameters() if weight.requires_grad]
    return [np.shape(leaf) for leaf in jax.tree.leaves(problem.start)]


class Attempt(NamedTuple):
    """The result of second order, or None; and why a first-order method must run, or None if the result is final."""

    result: Result | None
    reason: str | None = None


def attempt_second_order(
    problem: Problem,
    clients: Any,
    method: SQP | OpenMethod,
    settings: RunSettings,
    seed: int,
    sampling: Sampling,
    *,
    output: Output,
    compute: Compute,
    logging: Logging,
    checkpoints: Checkpoints | None = None,
    warm_start: Result | None = None,
    privacy: Any = None,
) -> Attempt:
    """Run ``SQP``, if these options allow it and, unless it was requested, if it suits the problem."""
    chosen = isinstance(method, OpenMethod)
    if chosen and sampling == Sampling.automatic(memory=sampling.memory):
        sampling = Sampling()
    active = method.second_order if isinstance(method, OpenMethod) else method
    try:
        check_second_order(problem, clients, sampling, output, compute, logging, privacy)
        if chosen and (obstacle := _unsuitable(problem, clients)) is not None:
            return Attempt(None, obstacle)
        pooled = active.switches_on == "pooled"
        oracle = make_derivatives(problem, clients, compute, pooled=pooled, held_out=logging.held_out)
        if chosen and oracle.kink is not None:
            return Attempt(None, f"a function is not smooth ({oracle.kink})")
    except (TypeError, ValueError) as error:
        if chosen:
            return Attempt(None, str(error).removesuffix(f"; {INSTEAD}"))
        raise
    with_bound = output.lower_bound is not False
    if compute.engine == "compiled":
        result = solve_second_order(
            oracle,
            active,
            seed=seed,
            rounds=settings.rounds,
            seconds=settings.seconds,
            logging=logging,
            checkpoints=checkpoints,
            warm_start=warm_start,
            lower_bound=with_bound,
        )
    else:
        refuse_over_flower(compute, seconds=settings.seconds, held_out=logging.held_out, warm_start=warm_start)
        exchanges = RunSettings(
            rounds=settings.rounds or DEFAULT_EXCHANGES, eval_every=0, answer="last", average_last=None
        )
        arguments = (exchanges, seed, logging, checkpoints, oracle.digest() if checkpoints else {}, with_bound)
        solve_over_flower: Callable[..., Result] = import_module(FLOWER_ENGINE).solve_over_flower
        result = solve_over_flower(problem, clients, active, Sampling(batch_size=None), *arguments)
    result = replace(result, client_optimum=client_optimum_of(problem, clients))
    if not chosen:
        return Attempt(result)
    reason = f"SQP, because the model has {oracle.size} parameters and no layers"
    result = replace(result, auto_settings={"method": reason})
    return Attempt(result, _failure(result, settings.rounds is None))


def refuse_over_flower(compute: Compute, **options: Any) -> None:
    """Raise an error if an option is given that clients over Flower do not have."""
    unsupported = options | {name: getattr(compute, name) for name in ("client_batch_size", "devices")}
    for name, value in unsupported.items():
        if value is not None:
            raise ValueError(f"{name} must be None with engine={compute.engine!r}, but is {value!r}")


def _unsuitable(problem: Problem, clients: Any) -> str | None:
    """Return why a first-order method suits a problem better; None if it does not."""
    if isinstance(clients, TorchData):
        is_loader = [hasattr(one, "batch_sampler") for one in clients.datasets.values()]
        if clients.optimizer is not None or any(is_loader):
            return "the clients have DataLoaders or an optimizer"
    shapes = _shapes(problem)
    if has_layers(shapes):
        return "the model has layers"
    if takes_key(problem.objective) or takes_key(getattr(problem.constraint, "statistics", problem.constraint)):
        return "a function takes a random key"
    size, rows = sum(map(math.prod, shapes)), int(np.sum(getattr(clients, "sizes", 0)))
    if rows * size**2 > MAX_WORK:
        return f"the Hessians of {size} parameters on {rows:,} rows cost too much"
    return None


def _failure(result: Result, default_rounds: bool) -> str | None:
    """Return why the answer of ``SQP`` may not be the optimum; None if it is, or if the user's limits ended the run."""
    codes = {one.code: one for one in result.diagnostics}
    if result.status.code is StatusCode.DIVERGED:
        return f"SQP failed: {result.status.message}"
    if DiagnosticCode.STALLED in codes or (default_rounds and len(result.history) >= DEFAULT_EXCHANGES):
        return f"SQP did not converge in {len(result.history)} exchanges"
    is_early = result.status.code is StatusCode.STOPPED or DiagnosticCode.STILL_IMPROVING in codes
    if result.status.ok or is_early or DiagnosticCode.NEVER_FEASIBLE in codes:
        return None
    return f"SQP found no feasible parameters in {len(result.history)} exchanges"


def better(first: Result, second: Result) -> Result:
    """Return the result with the smaller excess over the tolerance, or if equal, with the smaller F; else the first."""

    def rank(result: Result) -> tuple[float, float]:
        constraint, pooled = result.client_constraint, result.pooled_constraint
        level = pooled if result.method.switches_on == "pooled" and pooled is not None else constraint
        excess, objective = float(level.max()) - result.method.tolerance, float(result.client_objective.max())
        failed = result.status.code is StatusCode.DIVERGED or not np.isfinite([excess, objective]).all()
        return (math.inf, math.inf) if failed else (max(0.0, excess), objective)

    return second if rank(second) < rank(first) else first


def make_derivatives(
    problem: Problem, clients: Any, compute: Compute, *, pooled: bool = False, held_out: Any = None
) -> DerivativeOracle:
    """Return the clients of ``solve`` as clients that return derivatives; ``pooled``: with one constraint of all."""
    if pooled and not isinstance(problem.constraint, PooledConstraint):
        raise ValueError(f"constraint must be a PooledConstraint with criterion='pooled', but is {problem.constraint}")
    if isinstance(clients, TorchData):
        make: Callable[..., DerivativeOracle] = import_module("softswitch.engine.torch").torch_derivatives
        return make(problem, clients, held_out)
    if held_out is not None:
        checks.check_instance("held_out", held_out, ClientData)
    if isinstance(clients, StreamedData):
        return OutOfCoreDerivatives(problem, clients, pooled=pooled, held_out=held_out)
    if compute.devices is not None:
        return ShardedDerivatives(problem, clients, compute.devices, pooled=pooled, held_out=held_out)
    return RowDerivatives(problem, clients, pooled=pooled, held_out=held_out)


def solve_second_order(
    oracle: DerivativeOracle,
    method: SQP,
    *,
    seed: int = 0,
    rounds: int | None = None,
    seconds: float | None = None,
    logging: Logging = Logging(),  # noqa: B008 (frozen)
    checkpoints: Checkpoints | None = None,
    warm_start: Result | None = None,
    lower_bound: bool = True,
    check_convexity: bool = True,
) -> Result:
    """Run ``SQP`` from the start or from its latest checkpoint, with any clients that return derivatives.

    ``lower_bound`` adds the optimality gap, and ``check_convexity`` tests the assumption behind it, with 24 further
    evaluations.
    """
    start, tolerance, domain = oracle.start, method.tolerance, oracle.domain
    if warm_start is not None:
        check_warm_params(start := warm_start.last, oracle.start, domain)
    rounds = DEFAULT_EXCHANGES if rounds is None else rounds
    callbacks, began, share = check_callbacks(logging.callbacks), time.perf_counter(), SwitchShare()
    state = sqp.start(method, to_vector(start), len(oracle.names), oracle.shape)
    records, done, margin, margins, stopped, late, reason = list[Record](), 0, 0.0, 0, False, False, ""
    identity = {} if checkpoints is None else _identity(oracle, method, start, logging)
    with checkpoints.lock() if checkpoints else nullcontext(), ProgressBar(rounds, logging.progress) as bar:
        if checkpoints is not None:
            like = partial(_record, oracle, method, state.found, 0, logging)
            if (saved := checkpoints.latest(identity, lambda: (state, like()))) is not None:
                saved.check_rounds(rounds)
                state, records, done = saved.state, [saved.record], saved.done
                names = tuple(map(str, oracle.names))
                if oracle.outcomes is not None and saved.names != names:  # clients were excluded, or are new
                    kept = [i for i, name in enumerate(saved.names) if name in names]
                    records = [keep_clients(saved.record, kept, len(saved.names))]
                    state = _restart(oracle, method, state)
                margin, margins = json.loads(saved.journal)
                began -= saved.seconds
                late = seconds is not None and saved.seconds >= seconds
                share.update(History.from_records(oracle, records, done))
        try:
            while not (stopped or late) and done < rounds:
                if state.is_over:
                    excess = _rounding_excess(oracle, method, state)
                    if not excess > 0 or margins == MAX_MARGINS:
                        break
                    least = 5 * sqp.NEGLIGIBLE_VIOLATION * max(1.0, tolerance)
                    margin, margins = max(margin + 2 * excess, 4 * margin, least), margins + 1
                    state = sqp.propose(method, tolerance - margin, domain, state)
                    continue
                before, point = oracle.rows, state.query.point
                try:
                    reply = oracle.reply(state.query)
                except UnavailableError as error:
                    if not done:
                        raise
                    stopped, reason = True, str(error)
                    break
                with defer_interrupts():
                    record = _record(oracle, method, reply, oracle.rows - before, logging, point)
                    if _have_clients_changed(state, reply):
                        state = _restart(oracle, method, state)
                    else:
                        state = sqp.advance(method, tolerance - margin, domain, state, reply)
                    records, done = [*records, record], done + 1
                elapsed = time.perf_counter() - began
                history = History.from_records(oracle, [record], 1, first=done - 1)
                chunk = Chunk(
                    done, rounds, history, share.update(history), _server_state(oracle, method, state), elapsed
                )
                stopped = run_callbacks((bar, *callbacks), chunk)
                late = seconds is not None and elapsed >= seconds
                if checkpoints is not None and checkpoints.is_due():
                    records = _save(checkpoints, identity, oracle, state, records, done, elapsed, (margin, margins))
        except KeyboardInterrupt:
            if not done:
                raise
            stopped = True
        elapsed = time.perf_counter() - began
        if checkpoints is not None:
            records = _save(checkpoints, identity, oracle, state, records, done, elapsed, (margin, margins))
    stopped = stopped and not state.is_over
    result = _finish(oracle, method, state, records, done, seed, elapsed, stopped, reason)
    if not lower_bound or result.status.code in (StatusCode.DIVERGED, StatusCode.STOPPED):
        return result
    try:
        return replace(result, lower_bound=_lower_bound(oracle, result, state, check_convexity))
    except (KeyboardInterrupt, UnavailableError):  # the run itself is complete
        return result


def _have_clients_changed(state: SQPState, reply: Derivatives) -> bool:
    """Return whether clients were lost, came back or are new since the iterate was evaluated."""
    if reply.constraint.shape != state.found.constraint.shape:
        return True
    lost, was_lost = (
        np.isneginf(found.objective) & np.isneginf(found.constraint).all(axis=1) for found in (reply, state.found)
    )
    return int(state.phase) != Phase.START and bool((lost != was_lost).any())


def _restart(oracle: DerivativeOracle, method: SQP, state: SQPState) -> SQPState:
    """Return the first state with the present clients, at the iterate."""
    return sqp.start(method, state.point, len(oracle.names), oracle.shape)


def _save(
    checkpoints: Checkpoints,
    identity: Any,
    oracle: DerivativeOracle,
    state: SQPState,
    records: Any,
    done: int,
    seconds: float,
    margins: Any,
) -> list[Record]:
    """Save the run, and return its records as one."""
    joined, names = join(records, done), tuple(map(str, oracle.names))
    checkpoints.save(Snapshot(state, joined, done, seconds, 0, names, journal=json.dumps(margins)), identity)
    return [joined]


def _identity(oracle: DerivativeOracle, method: SQP, start: Params, logging: Logging) -> dict[str, str]:
    """Return everything that determines a run, as text."""
    return {
        "method": strip_addresses(str(method)),
        "domain": strip_addresses(repr(oracle.domain)),
        "record_clients": str(logging.record_clients),
        "start": fingerprint(start),
        **oracle.digest(),
        "jax": jax.__version__,
    }


def _rounding_excess(oracle: DerivativeOracle, method: SQP, state: SQPState) -> float:
    """Return by how much the answer exceeds the tolerance only because it is rounded; 0 or less if it does not."""
    if int(state.phase) == Phase.DIVERGED or state.found.violation(method.tolerance) > 1e-6 * (1 + method.tolerance):
        return 0.0
    evaluation = oracle.evaluate(oracle.rebuild(state.point))
    values: Any = evaluation.pooled if method.switches_on == "pooled" else evaluation.constraint
    return float(values.max()) - method.tolerance


def _record(
    oracle: DerivativeOracle,
    method: SQP,
    found: Derivatives,
    rows: int,
    logging: Logging,
    point: np.ndarray | None = None,
) -> Record:
    """Return the record of an exchange, with one round; without a point, one of the same structure."""
    constraint: Any = found.constraint
    objective: Any = found.objective
    count = len(oracle.names)
    if oracle.has_gaps:
        constraint = np.maximum(*np.split(constraint, 2, axis=1))
    if len(constraint) != count:  # pooled
        constraint = np.repeat(constraint, count, axis=0)
    worst, held_out = constraint.max(), None
    if logging.held_out is not None:
        values = None if point is None else oracle.evaluate_held_out(oracle.rebuild(point))
        held_out = ClientSummary.missing() if values is None else _summarize(*values[:2])
    clients = None
    if logging.record_clients:
        clients = ClientHistory(cast(Any, np.arange(count, dtype=np.int32)), objective, constraint, {}, oracle.outcomes)
    no_value = np.isneginf(objective) | np.isneginf(constraint).any(axis=1)
    record = Record(
        objective=objective.max(),
        constraint=worst,
        criterion=worst,
        feasible=worst <= method.tolerance,
        worst_client=cast(Any, np.int32(objective.argmax())),
        full=_summarize(objective, constraint),
        held_out=held_out,
        absent=cast(Any, np.int32(no_value.sum())),
        rows=cast(Any, np.int64(rows)),
        clients=clients,
    )
    return jax.tree.map(lambda leaf: np.asarray(leaf)[None], record)


def _summarize(objective: Any, constraint: Any) -> ClientSummary:
    """Return the worst and the mean of the clients' values, without compiling anything."""

    def mean(values: np.ndarray) -> Any:
        return np.mean(known) if len(known := values[~np.isneginf(values)]) else -np.inf

    return ClientSummary(objective.max(), constraint.max(), mean(objective), mean(constraint))


def _server_state(oracle: DerivativeOracle, method: SQP, state: SQPState) -> State:
    params = oracle.rebuild(state.point)
    return first_state(params, method, (), len(oracle.names), oracle.shape[1])


def _finish(
    oracle: DerivativeOracle,
    method: SQP,
    state: SQPState,
    records: Any,
    done: int,
    seed: int,
    seconds: float,
    stopped: bool,
    reason: str,
) -> Result:
    """Return the result: the last iterate, evaluated in the user's precision."""
    params, history = oracle.rebuild(state.point), History.from_records(oracle, records, done)
    evaluation: Evaluation = oracle.evaluate(params)
    status, diagnostics = _describe(oracle, method, state, evaluation, done, stopped, reason)
    start: Evaluation = oracle.evaluate(oracle.start)
    oracle.load_answer(params)
    return Result(
        params=params,
        last=params,
        best=params if status.ok else None,
        selected=f"last iterate, after {done} exchanges",
        status=status,
        diagnostics=diagnostics,
        history=history,
        client_objective=evaluation.objective,
        client_constraint=evaluation.constraint,
        pooled_constraint=evaluation.pooled,
        names=oracle.names,
        method=method,
        seed=seed,
        seconds=seconds,
        state=_server_state(oracle, method, state),
        baselines=(Baseline.of(baseline.START, start, method),),
    )


def _lower_bound(oracle: DerivativeOracle, result: Result, state: SQPState, check_convexity: bool) -> LowerBound:
    """Return the bound by the multipliers of the last quadratic program."""
    answer, found, tolerance = to_vector(result.params), state.found, float(result.method.tolerance)
    if not np.array_equal(answer, state.point):  # rounded to the dtype of the start
        objective, constraint = oracle.values(answer)
        found = found._replace(objective=objective, constraint=constraint)
    query = state.query._replace(point=state.point)
    return bound_by_weights(
        oracle, answer, found, tolerance, query, meets=result.status.ok, check_convexity=check_convexity
    )


def _describe(
    oracle: DerivativeOracle,
    method: SQP,
    state: SQPState,
    evaluation: Evaluation,
    done: int,
    stopped: bool,
    reason: str,
) -> tuple[Status, tuple[Diagnostic, ...]]:
    """Return how the run ended, and what to know about it."""
    status, phase, diagnostics = model_status(oracle.names, method, evaluation), int(state.phase), []
    if phase == Phase.DIVERGED:
        values = (state.found.objective, state.found.objective_gradient, state.found.constraint_gradient)
        culprit = int(np.argmin([all(np.isfinite(part[i]).all() for part in values) for i in range(len(oracle.names))]))
        message = f"the derivatives of client {oracle.names[culprit]!r} are not finite at the start"
        return Status(StatusCode.DIVERGED, message, 0, oracle.names[culprit]), ()
    if stopped:
        message = f"stopped after {done} exchanges{reason and f': {reason}'}; {status.message}"
        return Status(StatusCode.STOPPED, message, done, status.client), ()
    if phase == Phase.STALLED or phase < Phase.CONVERGED:
        code, evidence = (
            DiagnosticCode.STALLED,
            "no step improves the answer, against its derivatives",
        )
        advice = "Check that the functions are twice differentiable, or use solve(..., tolerance=...)"
        if phase != Phase.STALLED:
            code, evidence = DiagnosticCode.STILL_IMPROVING, f"a decrease of {float(state.predicted):.2g} is predicted"
        diagnostics.append(Diagnostic(code, evidence, advice, phase != Phase.STALLED))
    if not oracle.is_exact:
        advice = "Compute in the dtype of the arguments, without astype(float32), for the full precision"
        diagnostics.append(Diagnostic(DiagnosticCode.LIMITED_PRECISION, "a function computes in float32", advice))
    try:
        proof = None if status.ok else prove_infeasible(oracle, method.tolerance, state.query)
    except UnavailableError:
        proof = None
    if proof is not None:
        least, assumed = proof
        blocking = [oracle.names[i] for i in np.flatnonzero(state.query.multipliers.any(axis=1))]
        is_pooled = method.switches_on == "pooled"
        where = "on the pooled data" if is_pooled else f"at all of {join_first(list(map(repr, blocking)))}"
        evidence = f"no parameters have constraints below {format_value(method.tolerance + least)} {where}"
        evidence += f", if {assumed}" if assumed else ""
        reached: Any = evaluation.pooled if is_pooled else evaluation.constraint
        advice = f"Raise the tolerance to at least {format_value(float(reached.max()))}"
        diagnostics.append(Diagnostic(DiagnosticCode.NEVER_FEASIBLE, evidence, advice))
    return status, tuple(diagnostics)
