"""The loop of a run in this process: chunks of rounds, callbacks, checkpoints, and the result."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from softswitch.engine.request import Request
from softswitch.engine.restarts import LocalRestarts
from softswitch.engine.server_step import is_healthy
from softswitch.methods.base import Method
from softswitch.methods.state import State
from softswitch.methods.weighting import maximum
from softswitch.privacy.oracle import PrivateOracle
from softswitch.results.callbacks import Chunk, ProgressBar, SwitchShare, check_callbacks, run_callbacks
from softswitch.results.checkpoints import Checkpoints, Snapshot
from softswitch.results.history import History, Record, join
from softswitch.results.result import Result, build_result
from softswitch.results.status import RunEnd

NOISE_SAMPLES = 32  # number of reports from which the noise of the sampled constraint is estimated
MAX_DEFERRED = 2  # largest number of interrupts that are deferred during a chunk; the next one is raised at once


def run(request: Request, method: Method) -> Result:
    """Run a request with a method, from its start or its latest checkpoint, and return the result.

    A method whose ``step_size`` is None is auto-tuned by restarts.
    """
    logging = request.options.logging
    checkpoints = request.options.checkpoints
    callbacks = check_callbacks(logging.callbacks)
    engine = request.engine
    rounds, seconds = request.rounds, request.options.seconds
    began = time.perf_counter()
    records: list[Record] = []
    done = 0
    stopped = late = False
    lock = nullcontext() if checkpoints is None else checkpoints.lock()
    with lock, ProgressBar(rounds, logging.progress) as bar:
        restarts = None if request.choice is None else LocalRestarts(request, method)
        saved = None if checkpoints is None else _RunCheckpoints(request, method, restarts, checkpoints)
        key = jax.random.key(request.options.seed)
        length = engine.chunk_length(request.oracle)
        program = request.program(length)
        state = request.first_state(method) if restarts is None else restarts.begin()
        if restarts is not None or request.options.warm_start is not None:
            state = engine.copy_state(state)
        if saved is not None and (snapshot := saved.latest(state, length)) is not None:
            state, records, done = engine.copy_state(snapshot.state), [snapshot.record], snapshot.done
            began -= snapshot.seconds
            late = seconds is not None and snapshot.seconds >= seconds
            if restarts is not None:
                restarts.resume(snapshot.best, snapshot.journal)
                state = restarts.advance(state, records, done, begins=not late)
        share = SwitchShare()
        if done:
            share.update(History.from_records(request.oracle, records, done))
        try:
            while not (stopped or late) and (done < rounds if restarts is None else not restarts.is_over):
                if restarts is None and int(state.diverged_at) >= 0:
                    break
                span = request.span(done) if restarts is None else restarts.span(request.span(done))
                setup = request.setup(method if restarts is None else restarts.method)
                with defer_interrupts() if engine.completes_chunks else nullcontext():
                    after, record = engine.run_chunk(setup, program, span, key, state)
                    record = jax.tree.map(np.asarray, record)  # free the device's memory
                    diverged_at = int(after.diverged_at)
                    last = min(done + length, int(span.last)) if diverged_at < 0 else diverged_at + 1
                    record = jax.tree.map(lambda rows, count=last - done: rows[:count], record)
                    history = History.from_records(request.oracle, [record], last - done, first=done)
                    state, records, done = after, [*records, record], last
                shown = engine.copy_state(state) if callbacks else state  # a callback may keep it
                chunk = Chunk(done, rounds, history, share.update(history), shown, time.perf_counter() - began)
                stopped = run_callbacks((bar, *callbacks), chunk)
                late = seconds is not None and time.perf_counter() - began >= seconds
                if restarts is not None:
                    state = restarts.advance(state, records, done, begins=not (stopped or late))
                if saved is not None and saved.checkpoints.is_due():
                    records = saved.save(state, records, done, time.perf_counter() - began)
        except KeyboardInterrupt:
            if not done:
                raise
            stopped = True
        if saved is not None:
            records = saved.save(state, records, done, time.perf_counter() - began)
        if restarts is not None and restarts.done < done:  # for the answer only: the checkpoint is within the restart
            state = restarts.close(state, records, done)
        stopped = stopped and done < rounds and int(state.diverged_at) < 0
        if stopped and saved is not None and isinstance(request.oracle, PrivateOracle):
            # The budget has one final evaluation, for the end of the run: this one can continue.
            request.oracle.evaluates = False
        return finish(request, method, state, records, done, stopped, time.perf_counter() - began, restarts)


@contextmanager
def defer_interrupts() -> Iterator[None]:
    """Defer KeyboardInterrupt to the end of the block. A third Ctrl-C interrupts the block."""
    before = signal.getsignal(signal.SIGINT)
    # Other threads are never interrupted. A handler that was not set from Python cannot be restored.
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield
        return
    received: list[int] = []

    def receive(number: int, frame: Any) -> None:
        received.append(number)
        if len(received) > MAX_DEFERRED:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, receive)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if received:
        signal.raise_signal(signal.SIGINT)


class _RunCheckpoints:
    """Checkpoints of a run in this process, including the state of its restarts."""

    def __init__(
        self, request: Request, method: Method, restarts: LocalRestarts | None, checkpoints: Checkpoints
    ) -> None:
        self._request = request
        self._restarts = restarts
        self.checkpoints = checkpoints
        self._method = method if restarts is None else restarts.method
        self._identity = request.identity(method if restarts is None else restarts.template)

    def save(self, state: State, records: Sequence[Record], done: int, seconds: float) -> list[Record]:
        """Save a checkpoint after ``done`` rounds, unless that is 0, and return the records joined into one."""
        if not done:
            return list(records)
        joined = join(records, done)
        snapshot = Snapshot(state, joined, done, seconds, self._request.averaging_from)
        if self._restarts is not None:
            best, journal = self._restarts.to_checkpoint()
            snapshot = snapshot._replace(best=best, journal=journal)
        self.checkpoints.save(snapshot, self._identity)
        return [joined]

    def latest(self, state: State, length: int) -> Snapshot | None:
        """Return the latest checkpoint, extended to the number of rounds of this run; None if there is none."""
        request = self._request
        setup, program = request.setup(self._method), request.program(length)
        snapshot = self.checkpoints.latest(
            self._identity,
            lambda: request.engine.shapes(setup, program, request.span(0), jax.random.key(0), state),
            self._restarts and state.params,
        )
        if snapshot is None or request.choice is None:
            return snapshot and snapshot.extend(request.rounds, request.averaging_from, state)
        if not request.choice.may_end:
            snapshot.check_rounds(request.rounds)
        return snapshot


def finish(
    request: Request,
    method: Method,
    state: State,
    records: Sequence[Record],
    done: int,
    stopped: bool,
    seconds: float,
    restarts: LocalRestarts | None = None,
) -> Result:
    """Return the result of a run after ``done`` rounds: select and evaluate the answer, and diagnose the run."""
    oracle, diverged_at = request.oracle, int(state.diverged_at)
    rounds = done if diverged_at < 0 else diverged_at + 1
    history = History.from_records(oracle, records, rounds)
    state = jax.tree.map(jnp.asarray, state)
    is_private = oracle.is_private  # only the rounds and one evaluation of the answer are accounted for
    vanished = False
    if not is_private and bool(history.void[-1]):  # no client has an objective, or none a constraint, on all its rows
        values = oracle.evaluate_params(state.params)
        vanished = any(np.isneginf(part).all() for part in (values.objective, values.constraint))
    if vanished:
        diverged_at = int(np.flatnonzero(~history.void).max(initial=-1)) + 1
        state = state._replace(diverged_at=jnp.int32(diverged_at))
    start = None
    if not is_private:
        start = oracle.evaluate_params(request.start) if restarts is None else restarts.start.values
    end = RunEnd(
        state,
        history,
        method if restarts is None else restarts.method,
        request.federation.names,
        averaging_from=request.averaging_from,
        answer=request.options.output.iterate,
        stopped=stopped,
        seed=request.options.seed,
        seconds=seconds,
        vanished=vanished,
        culprit=_find_culprit(request, state) if diverged_at >= 0 and not is_private else None,
        restarts=() if restarts is None or diverged_at >= 0 else tuple(restarts.past),
        start=start,
        auto_settings={} if request.choice is None else request.choice.describe(oracle),
    )

    def constraint_noise() -> float:
        if isinstance(oracle, PrivateOracle):  # known without another release
            deviations = oracle.report_deviations[:, 1:]
            return float(deviations.max(where=np.isfinite(deviations), initial=0))
        return _sample_noise(request, state, rounds)

    return replace(build_result(end, oracle, constraint_noise), client_optimum=request.client_optimum)


def _sample_noise(request: Request, state: State, first: int) -> float:
    """Return the standard deviation of the sampled G at a fixed iterate, over the draws of ``NOISE_SAMPLES`` rounds."""
    oracle, key = request.oracle_in_rounds, jax.random.key(request.options.seed)
    sampled = np.empty(NOISE_SAMPLES)
    for i in range(NOISE_SAMPLES):
        reports = request.engine.report(oracle, state.params, key, jnp.int32(first + i))[1]
        sampled[i] = maximum(jnp.asarray(reports.constraint), jnp.asarray(reports.mask)[:, None])
    return float(sampled[~np.isneginf(sampled)].std())


def _find_culprit(request: Request, state: State) -> Any:
    """Return the label of a client whose report in the diverged round is not finite; None if all are finite."""
    key = jax.random.key(request.options.seed)
    clients, reports = request.engine.report(request.oracle_in_rounds, state.params, key, state.diverged_at)
    is_finite = np.asarray(is_healthy(reports))
    return None if is_finite.all() else request.federation.names[int(clients[np.argmin(is_finite)])]
