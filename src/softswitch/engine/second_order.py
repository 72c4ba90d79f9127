"""Second-order runs: ``SQP`` on clients in memory, one exchange after another."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import cached_property, partial
from importlib import import_module
from typing import Any, NamedTuple, cast

import jax
import numpy as np

from softswitch.certification.optimality import bound_by_weights, prove_infeasible
from softswitch.data.client_data import ClientData
from softswitch.data.streamed_data import StreamedData
from softswitch.engine.auto_tuning import has_layers
from softswitch.engine.loop import defer_interrupts
from softswitch.engine.request import RunOptions, check_warm_params
from softswitch.methods import sqp
from softswitch.methods.automatic import OpenMethod
from softswitch.methods.sqp import SQP, Derivatives, Phase, SQPState
from softswitch.methods.state import State, first_state
from softswitch.oracles.base import Evaluation
from softswitch.oracles.client_shifts import client_optimum_of
from softswitch.oracles.derivatives import MAX_PARAMETERS, DerivativeOracle, RowDerivatives, UnavailableError
from softswitch.oracles.evaluation import ClientSummary
from softswitch.oracles.options import Sampling, TorchData, changed_options
from softswitch.oracles.out_of_core import OutOfCoreDerivatives
from softswitch.oracles.sharded import ShardedDerivatives
from softswitch.problem.domains import Ball, Box
from softswitch.problem.parameters import takes_key, to_vector
from softswitch.problem.problem import PooledConstraint, Problem
from softswitch.results import baseline
from softswitch.results.baseline import Baseline, LowerBound
from softswitch.results.callbacks import Chunk, ProgressBar, SwitchShare, check_callbacks, run_callbacks
from softswitch.results.checkpoints import Snapshot
from softswitch.results.history import ClientHistory, History, Record, join, keep_clients
from softswitch.results.result import Result
from softswitch.results.status import Diagnostic, DiagnosticCode, Status, StatusCode, model_status
from softswitch.support import checks
from softswitch.support.arrays import fingerprint
from softswitch.support.text import format_value, join_first
from softswitch.support.tracing import strip_addresses

DEFAULT_EXCHANGES = 100
MAX_MARGINS = 6  # how often the tolerance is lowered because the parameters, rounded to their dtype, exceed it
MAX_WORK = 4e10  # rows × parameters² up to which an automatic run computes Hessians: 10 seconds for ten exchanges
INSTEAD = "use solve(..., tolerance=...) or SoftmaxSGM"


def check_second_order(problem: Any, clients: Any, options: RunOptions) -> None:
    """Raise an error that names the alternative, unless these options can be combined with ``SQP``."""
    kinds = (TorchData,) if problem.is_torch else (ClientData, StreamedData)
    if not isinstance(clients, kinds):
        expected = " or ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"clients must be {expected} for SQP, but is {type(clients).__name__}; {INSTEAD}")
    changed = changed_options(options.sampling or Sampling())
    changed += changed_options(options.compute, *(["devices"] if isinstance(clients, ClientData) else []))
    changed += changed_options(options.output, "lower_bound")
    changed += ["privacy"] if options.privacy is not None else []
    if changed:
        raise ValueError(f"{changed[0]} must keep its default for SQP, which uses all rows of all clients; {INSTEAD}")
    if problem.constraint_surrogate is not None:
        raise ValueError(f"constraint must be smooth for SQP, but the problem has a constraint_surrogate; {INSTEAD}")
    if not isinstance(problem.domain, Ball | Box | None):
        raise ValueError(f"domain must be a Ball, a Box or None for SQP, but is {problem.domain!r}; {INSTEAD}")
    if (parameters := sum(map(math.prod, _shapes(problem)))) > MAX_PARAMETERS:
        limit = f"at most {MAX_PARAMETERS} parameters for SQP, but has {parameters}"
        raise ValueError(f"start must have {limit}; {INSTEAD}")


def _shapes(problem: Problem) -> list[tuple[int, ...]]:
    """Return the shapes of the trained parameters."""
    if problem.is_torch:
        return [tuple(weight.shape) for weight in problem.start.parameters() if weight.requires_grad]
    return [np.shape(leaf) for leaf in jax.tree.leaves(problem.start)]


class Attempt(NamedTuple):
    """A run of ``SQP`` in place of a first-order method, or the reason against it."""

    result: Result | None  # None if there was no run
    reason: str | None = None  # why a first-order method must run; None if the result is final
    oracle: DerivativeOracle | None = None  # the clients of the run


def attempt_second_order(problem: Problem, clients: Any, method: SQP | OpenMethod, options: RunOptions) -> Attempt:
    """Run ``SQP``, if these options allow it and, unless it was requested, if it suits the problem.

    A PyTorch module has its initial parameters again afterwards.
    """
    chosen, sampling = isinstance(method, OpenMethod), options.sampling or Sampling()
    if chosen and sampling == Sampling.automatic(memory=sampling.memory):
        options = replace(options, sampling=Sampling())
    active = method.second_order if isinstance(method, OpenMethod) else method
    try:
        check_second_order(problem, clients, options)
        if chosen and (obstacle := _unsuitable(problem, clients)) is not None:
            return Attempt(None, obstacle)
        oracle = make_derivatives(problem, clients, options, pooled=active.switches_on == "pooled")
        if chosen and oracle.kink is not None:
            return Attempt(None, f"a function is not smooth ({oracle.kink})")
    except (TypeError, ValueError) as error:
        if chosen:
            return Attempt(None, str(error).removesuffix(f"; {INSTEAD}"))
        raise
    result = solve_second_order(oracle, active, options)
    result = replace(result, client_optimum=client_optimum_of(problem, clients))
    oracle.load_params(oracle.start)
    if not chosen:
        return Attempt(result, None, oracle)
    reason = f"SQP, because the model has {oracle.size} parameters and no layers"
    return Attempt(
        replace(result, auto_settings={"method": reason}),
        describe_failure(result, default_rounds=options.rounds is None),
        oracle,
    )


def _unsuitable(problem: Problem, clients: Any) -> str | None:
    """Return why a first-order method suits a problem better; None if it does not."""
    if isinstance(clients, TorchData):
        is_loader = [hasattr(one, "batch_sampler") for one in clients.datasets.values()]
        if clients.optimizer is not None or any(is_loader):
            return "the clients have DataLoaders or an optimizer"
    shapes = _shapes(problem)
    if has_layers(shapes):
        return "the model has layers"
    if takes_key(problem.objective) or takes_key(problem.constraint):
        return "a function takes a random key"
    size, rows = sum(map(math.prod, shapes)), int(np.sum(getattr(clients, "sizes", 0)))
    if rows * size**2 > MAX_WORK:
        return f"the Hessians of {size} parameters on {rows:,} rows cost too much"
    return None


def describe_failure(result: Result, *, default_rounds: bool = False) -> str | None:
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
        excess = result.evaluation.constraint_level(result.method) - result.method.tolerance
        objective = result.worst_objective
        failed = result.status.code is StatusCode.DIVERGED or not np.isfinite([excess, objective]).all()
        return (math.inf, math.inf) if failed else (max(0.0, excess), objective)

    return second if rank(second) < rank(first) else first


def make_derivatives(problem: Problem, clients: Any, options: RunOptions, *, pooled: bool = False) -> DerivativeOracle:
    """Return the clients of ``solve`` as clients that return derivatives; ``pooled``: with one constraint of all."""
    held_out, devices = cast(Any, options.logging.held_out), options.compute.devices
    if pooled and not isinstance(problem.constraint, PooledConstraint):
        raise ValueError(f"constraint must be a PooledConstraint with criterion='pooled', but is {problem.constraint}")
    if isinstance(clients, TorchData):
        make: Callable[..., DerivativeOracle] = import_module("softswitch.engine.torch").torch_derivatives
        return make(problem, clients, held_out)
    if held_out is not None:
        checks.check_instance("held_out", held_out, ClientData)
    if isinstance(clients, StreamedData):
        return OutOfCoreDerivatives(problem, clients, pooled=pooled, held_out=held_out)
    if devices is not None:
        return ShardedDerivatives(problem, clients, devices, pooled=pooled, held_out=held_out)
    return RowDerivatives(problem, clients, pooled=pooled, held_out=held_out)


def solve_second_order(oracle: DerivativeOracle, method: SQP, options: RunOptions) -> Result:
    """Run ``SQP`` from the start or from its latest checkpoint, with any clients that return derivatives."""
    run, checkpoints, seconds = _Run(oracle, method, options), options.checkpoints, options.seconds
    rounds, logging = options.rounds or DEFAULT_EXCHANGES, options.logging
    callbacks, began, share = check_callbacks(logging.callbacks), time.perf_counter(), SwitchShare()
    stopped, late, reason = False, False, ""
    with checkpoints.lock() if checkpoints else nullcontext(), ProgressBar(rounds, logging.progress) as bar:
        if (saved := run.resume()) is not None:
            saved.check_rounds(rounds)
            began -= saved.seconds
            late = seconds is not None and saved.seconds >= seconds
            share.update(run.history)
        try:
            while not (stopped or late) and run.done < rounds:
                if run.state.is_over:
                    if not run.lower_tolerance():
                        break
                    continue
                try:
                    record = run.exchange()
                except UnavailableError as error:
                    if not run.done:
                        raise
                    stopped, reason = True, str(error)
                    break
                elapsed = time.perf_counter() - began
                history = History.from_records(oracle, [record], 1, first=run.done - 1)
                chunk = Chunk(run.done, rounds, history, share.update(history), run.server_state, elapsed)
                stopped = run_callbacks((bar, *callbacks), chunk)
                late = seconds is not None and elapsed >= seconds
                if checkpoints is not None and checkpoints.is_due():
                    run.save(elapsed)
        except KeyboardInterrupt:
            if not run.done:
                raise
            stopped = True
        elapsed = time.perf_counter() - began
        run.save(elapsed)
    result = run.finish(elapsed, stopped and not run.state.is_over, reason)
    if options.output.lower_bound is False or result.status.code in (StatusCode.DIVERGED, StatusCode.STOPPED):
        return result
    with suppress(KeyboardInterrupt, UnavailableError):  # the run itself is complete
        return replace(result, lower_bound=run.lower_bound(result))
    return result


class _Run:
    """A second-order run: its clients, method and options, and its state after ``done`` exchanges."""

    def __init__(self, oracle: DerivativeOracle, method: SQP, options: RunOptions) -> None:
        self.oracle, self.method, self.options = oracle, method, options
        self.start = oracle.start
        if options.warm_start is not None:
            check_warm_params(options.warm_start.last, oracle.start, oracle.domain)
            self.start = options.warm_start.last
        self.records, self.done, self.margin, self.margins = list[Record](), 0, 0.0, 0
        self._restart(to_vector(self.start))

    def _restart(self, point: np.ndarray) -> None:
        """Set the first state with the present clients, at a point."""
        self.state = sqp.start(self.method, point, len(self.oracle.names), self.oracle.shape)

    @property
    def history(self) -> History:
        """The history of all exchanges."""
        return History.from_records(self.oracle, self.records, self.done)

    @property
    def server_state(self) -> State:
        """The state in the form of first-order runs, for callbacks and results."""
        oracle = self.oracle
        return first_state(oracle.rebuild(self.state.point), self.method, (), len(oracle.names), oracle.shape[1])

    @cached_property
    def _identity(self) -> dict[str, str]:
        """Everything that determines a run, as text."""
        return {
            "method": strip_addresses(str(self.method)),
            "domain": strip_addresses(repr(self.oracle.domain)),
            "record_clients": str(self.options.logging.record_clients),
            "start": fingerprint(self.start),
            **self.oracle.digest(),
            "jax": jax.__version__,
        }

    def resume(self) -> Snapshot | None:
        """Restore and return the latest checkpoint; None if there is none."""
        if self.options.checkpoints is None:
            return None
        like = partial(self._record, self.state.found, 0)
        saved = self.options.checkpoints.latest(self._identity, lambda: (self.state, like()))
        if saved is not None:
            self.state, self.records, self.done = saved.state, [saved.record], saved.done
            self.margin, self.margins = json.loads(saved.journal)
            names = tuple(map(str, self.oracle.names))
            if self.oracle.outcomes is not None and saved.names != names:  # clients were excluded, or are new
                kept = [i for i, name in enumerate(saved.names) if name in names]
                self.records = [keep_clients(saved.record, kept, len(saved.names))]
                self._restart(self.state.point)
        return saved

    def save(self, seconds: float) -> None:
        """Save the run, if it has a folder of checkpoints, and join its records into one."""
        if self.options.checkpoints is not None:
            self.records = [join(self.records, self.done)]
            names, journal = tuple(map(str, self.oracle.names)), json.dumps((self.margin, self.margins))
            snapshot = Snapshot(self.state, self.records[0], self.done, seconds, 0, names, journal=journal)
            self.options.checkpoints.save(snapshot, self._identity)

    def exchange(self) -> Record:
        """Run one exchange, and return its record."""
        oracle, method, before, point = self.oracle, self.method, self.oracle.rows, self.state.query.point
        reply = oracle.reply(self.state.query)
        with defer_interrupts():
            record = self._record(reply, oracle.rows - before, point)
            if _have_clients_changed(self.state, reply):
                self._restart(self.state.point)
            else:
                self.state = sqp.advance(method, method.tolerance - self.margin, oracle.domain, self.state, reply)
            self.records, self.done = [*self.records, record], self.done + 1
        return record

    def lower_tolerance(self) -> bool:
        """Lower the tolerance and return True, if the answer exceeds it only because it is rounded to its dtype."""
        method, state, tolerance = self.method, self.state, self.method.tolerance
        has_failed = int(state.phase) == Phase.DIVERGED or state.found.violation(tolerance) > 1e-6 * (1 + tolerance)
        if has_failed or self.margins == MAX_MARGINS:
            return False
        excess = self.oracle.evaluate(self.oracle.rebuild(state.point)).constraint_level(method) - tolerance
        if not excess > 0:
            return False
        least = 5 * sqp.NEGLIGIBLE_VIOLATION * max(1.0, tolerance)
        self.margin, self.margins = max(self.margin + 2 * excess, 4 * self.margin, least), self.margins + 1
        self.state = sqp.propose(method, tolerance - self.margin, self.oracle.domain, state)
        return True

    def _record(self, found: Derivatives, rows: int, point: np.ndarray | None = None) -> Record:
        """Return the record of an exchange, with one round; without a point, one of the same structure."""
        oracle, logging, count = self.oracle, self.options.logging, len(self.oracle.names)
        constraint: Any = found.constraint
        objective: Any = found.objective
        if oracle.has_gaps:
            constraint = np.maximum(*np.split(constraint, 2, axis=1))
        if len(constraint) != count:  # pooled
            constraint = np.repeat(constraint, count, axis=0)
        worst, held_out, clients = constraint.max(), None, None
        if logging.held_out is not None:
            values = None if point is None else oracle.evaluate_held_out(oracle.rebuild(point))
            held_out = ClientSummary.missing() if values is None else _summarize(*values[:2])
        if logging.record_clients:
            numbers: Any = np.arange(count, dtype=np.int32)
            clients = ClientHistory(numbers, objective, constraint, {}, oracle.outcomes)
        no_value = np.isneginf(objective) | np.isneginf(constraint).any(axis=1)
        record = Record(
            objective=objective.max(),
            constraint=worst,
            criterion=worst,
            feasible=worst <= self.method.tolerance,
            worst_client=cast(Any, np.int32(objective.argmax())),
            full=_summarize(objective, constraint),
            held_out=held_out,
            absent=cast(Any, np.int32(no_value.sum())),
            rows=cast(Any, np.int64(rows)),
            clients=clients,
        )
        return jax.tree.map(lambda leaf: np.asarray(leaf)[None], record)

    def finish(self, seconds: float, stopped: bool, reason: str) -> Result:
        """Return the result: the last iterate, evaluated in the user's precision."""
        oracle, method = self.oracle, self.method
        params = oracle.rebuild(self.state.point)
        evaluation: Evaluation = oracle.evaluate(params)
        status, diagnostics = self._describe(evaluation, stopped, reason)
        start: Evaluation = oracle.evaluate(oracle.start)
        return Result(
            params=params,
            last=params,
            best=params if status.ok else None,
            selected=f"last iterate, after {self.done} exchanges",
            status=status,
            diagnostics=diagnostics,
            history=self.history,
            client_objective=evaluation.objective,
            client_constraint=evaluation.constraint,
            pooled_constraint=evaluation.pooled,
            names=oracle.names,
            method=method,
            seed=self.options.seed,
            seconds=seconds,
            state=self.server_state,
            baselines=(Baseline.of(baseline.START, start, method),),
        )

    def lower_bound(self, result: Result) -> LowerBound:
        """Return the bound by the multipliers of the last quadratic program."""
        oracle, state, answer = self.oracle, self.state, to_vector(result.params)
        found, query = state.found, state.query._replace(point=state.point)
        if not np.array_equal(answer, state.point):  # rounded to the dtype of the start
            objective, constraint = oracle.values(answer)
            found = found._replace(objective=objective, constraint=constraint)
        return bound_by_weights(oracle, answer, found, float(self.method.tolerance), query, meets=result.status.ok)

    def _describe(self, evaluation: Evaluation, stopped: bool, reason: str) -> tuple[Status, tuple[Diagnostic, ...]]:
        """Return how the run ended, and what to know about it."""
        oracle, method, names, query = self.oracle, self.method, self.oracle.names, self.state.query
        status, phase, diagnostics = model_status(names, method, evaluation), int(self.state.phase), []
        if phase == Phase.DIVERGED:
            found = self.state.found
            values = (found.objective, found.objective_gradient, found.constraint_gradient)
            culprit = int(np.argmin([all(np.isfinite(part[i]).all() for part in values) for i in range(len(names))]))
            message = f"the derivatives of client {names[culprit]!r} are not finite at the start"
            return Status(StatusCode.DIVERGED, message, 0, names[culprit]), ()
        if stopped:
            message = f"stopped after {self.done} exchanges{reason and f': {reason}'}; {status.message}"
            return Status(StatusCode.STOPPED, message, self.done, status.client), ()
        if phase == Phase.STALLED or phase < Phase.CONVERGED:
            code, evidence = DiagnosticCode.STALLED, "no step improves the answer, against its derivatives"
            advice = "Check that the functions are twice differentiable, or use solve(..., tolerance=...)"
            if phase != Phase.STALLED:
                evidence = f"a decrease of {float(self.state.predicted):.2g} is predicted"
                code = DiagnosticCode.STILL_IMPROVING
            diagnostics.append(Diagnostic(code, evidence, advice, phase != Phase.STALLED))
        if not oracle.is_exact:
            advice = "Compute in the dtype of the arguments, without astype(float32), for the full precision"
            diagnostics.append(Diagnostic(DiagnosticCode.LIMITED_PRECISION, "a function computes in float32", advice))
        proof = None
        with suppress(UnavailableError):
            proof = None if status.ok else prove_infeasible(oracle, method.tolerance, query)
        if proof is not None:
            least, assumed = proof
            blocking = [repr(names[i]) for i in np.flatnonzero(query.multipliers.any(axis=1))]
            is_pooled = method.switches_on == "pooled"
            where = "on the pooled data" if is_pooled else f"at all of {join_first(blocking)}"
            evidence = f"no parameters have constraints below {format_value(method.tolerance + least)} {where}"
            evidence += f", if {assumed}" if assumed else ""
            advice = f"Raise the tolerance to at least {format_value(evaluation.constraint_level(method))}"
            diagnostics.append(Diagnostic(DiagnosticCode.NEVER_FEASIBLE, evidence, advice))
        return status, tuple(diagnostics)


def _have_clients_changed(state: SQPState, reply: Derivatives) -> bool:
    """Return whether clients were lost, came back or are new since the iterate was evaluated."""
    if reply.constraint.shape != state.found.constraint.shape:
        return True
    lost, was_lost = (
        np.isneginf(found.objective) & np.isneginf(found.constraint).all(axis=1) for found in (reply, state.found)
    )
    return int(state.phase) != Phase.START and bool((lost != was_lost).any())


def _summarize(objective: Any, constraint: Any) -> ClientSummary:
    """Return the worst and the mean of the clients' values, without compiling anything."""

    def mean(values: np.ndarray) -> Any:
        return np.mean(known) if len(known := values[~np.isneginf(values)]) else -np.inf

    return ClientSummary(objective.max(), constraint.max(), mean(objective), mean(constraint))
