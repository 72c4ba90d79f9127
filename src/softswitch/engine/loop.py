"""A run in this process: chunk by chunk, watched, kept in checkpoints, and brought to its result."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from softswitch.engine.request import Request
from softswitch.engine.restarts import Cycles
from softswitch.methods.base import Method
from softswitch.methods.round import State, healthy
from softswitch.oracles.options import Logging
from softswitch.privacy.oracle import NoisyOracle
from softswitch.results.callbacks import Callback, Chunk, ProgressBar, SwitchShare, check_callbacks, run_callbacks
from softswitch.results.checkpoints import Checkpoints, Snapshot
from softswitch.results.history import History, Record, join
from softswitch.results.result import Result, build_result
from softswitch.results.status import RunEnd
from softswitch.support import processes
from softswitch.support.processes import defer_interrupts


def run(
    request: Request,
    method: Method,
    seed: int,
    logging: Logging = Logging(),  # noqa: B008 (frozen)
    checkpoints: Checkpoints | None = None,
) -> Result:
    """Run a request with a method, from its start or from its latest checkpoint."""
    callbacks = check_callbacks(logging.callbacks)
    first = request.oracle.processes == 1 or processes.is_first_process()
    with (
        _locked(request, checkpoints),
        ProgressBar(request.rounds, logging.progress if first else False) as bar,
    ):
        return _run(request, method, seed, (bar, *callbacks), checkpoints)


def _locked(request: Request, checkpoints: Checkpoints | None) -> AbstractContextManager[None]:
    """Within, no other run has the checkpoints' folder; of several processes the first takes it."""
    if checkpoints is None:
        return nullcontext()
    return checkpoints.lock() if request.oracle.processes == 1 else processes.enter_on_first_process(checkpoints.lock)


def _run(
    request: Request, method: Method, seed: int, callbacks: Sequence[Callback], checkpoints: Checkpoints | None
) -> Result:
    began = time.perf_counter()
    together = request.oracle.processes > 1
    first = not together or processes.is_first_process()
    cycles = (
        None
        if method.step_size is not None or request.choice is None
        else Cycles(request, request.choice, method, seed)
    )
    kept = None if checkpoints is None else _RunCheckpoints(request, method, cycles, seed, checkpoints)
    key, length = jax.random.key(seed), request.engine.chunk_length(request.oracle)
    program, rounds, seconds = request.program(length), request.rounds, request.settings.seconds
    records, done, stopped, late = list[Record](), 0, False, False
    state = request.first_state(method) if cycles is None else cycles.begin()
    if cycles is not None or request.warm_start is not None:
        state = request.engine.apart(state)
    if kept is not None and (there := kept.latest(state, length)) is not None:
        state, records, done = request.engine.apart(there.state), [there.record], there.done
        began -= there.seconds
        late = seconds is not None and there.seconds >= seconds  # as all processes read in one file
        if cycles is not None:
            cycles.go_on(there.best, there.journal)
            state = _in_next_cycle(request, cycles, state, records, done, begins=not late)
    share = SwitchShare()
    shown = any(not isinstance(one, ProgressBar) for one in callbacks)  # who may keep the state
    if done:
        share.update(History.from_records(request.oracle, records, done))
    try:
        while not (stopped or late) and (done < rounds if cycles is None else not cycles.over):
            if cycles is None and int(state.diverged_at) >= 0:
                break
            span = request.span(done) if cycles is None else cycles.span(request.span(done))
            active = method if cycles is None else cycles.method
            with defer_interrupts() if request.engine.OVERWRITES else nullcontext():
                after, record = request.engine.run_chunk(request.parts(active), program, span, key, state)
                record = jax.tree.map(np.asarray, record)  # the device keeps nothing of rounds that are over
                diverged_at = int(after.diverged_at)
                last = min(done + length, int(span.last)) if diverged_at < 0 else diverged_at + 1
                record = jax.tree.map(lambda rows, many=last - done: rows[:many], record)
                history = History.from_records(request.oracle, [record], last - done, first=done)
                state, records, done = after, [*records, record], last
            told = request.engine.apart(state) if shown else state
            news = Chunk(done, rounds, history, share.update(history), told, time.perf_counter() - began)
            stopped = first and run_callbacks(callbacks, news)
            late = seconds is not None and time.perf_counter() - began >= seconds
            if together:
                stopped, late = processes.broadcast_flags(stopped, late)
            if cycles is not None:
                state = _in_next_cycle(request, cycles, state, records, done, begins=not (stopped or late))
            if kept is not None and kept.due:
                records = kept.save(state, records, done, time.perf_counter() - began)
    except KeyboardInterrupt:
        if not done:
            raise
        stopped = True
    if kept is not None:
        records = kept.save(state, records, done, time.perf_counter() - began)
    if cycles is not None and cycles.done < done:  # for the answer only: the checkpoint goes on with this cycle
        state = cycles.close(state, done, _since(request, records, done, cycles.done))
    stopped = stopped and done < rounds and int(state.diverged_at) < 0
    if stopped and kept is not None and isinstance(request.oracle, NoisyOracle):
        # There is one judging, and it is for the end: this run can go on.
        request = replace(
            request, federation=replace(request.federation, oracle=request.oracle.without_final_evaluation())
        )
    return finish(request, method, seed, state, records, done, stopped, time.perf_counter() - began, cycles)


def _in_next_cycle(
    request: Request, cycles: Cycles, state: State, records: Sequence[Record], done: int, *, begins: bool
) -> State:
    """The state to go on with: where a cycle has ended, it is closed and the next one begins, if it may."""
    if cycles.ended(state, done):
        state = cycles.close(state, done, _since(request, records, done, cycles.done))
    if not begins or done != cycles.done or cycles.over:
        return state
    begun: State = request.engine.apart(cycles.begin(state))
    return begun


def _since(request: Request, records: Sequence[Record], done: int, first: int) -> History:
    """The rounds from the first on."""
    return History.from_records(request.oracle, records, done).since(first)


class _RunCheckpoints:
    """A run's checkpoints."""

    def __init__(
        self, request: Request, method: Method, cycles: Cycles | None, seed: int, checkpoints: Checkpoints
    ) -> None:
        self._request, self._cycles, self._checkpoints = request, cycles, checkpoints
        self._rule = method if cycles is None else cycles.method
        self._identity = request.identity(method if cycles is None else cycles.template, seed)

    @property
    def due(self) -> bool:
        """Whether it is time for another."""
        return self._checkpoints.is_due()

    def save(self, state: State, records: Sequence[Record], done: int, seconds: float) -> list[Record]:
        """Keep where the run stands; the records come back as one, so that they are put together once only."""
        request = self._request
        if not done:
            return list(records)
        joined = join(records, done)
        averaging_from = request.settings.averaging_from
        standing = Snapshot(state, joined, done, seconds, averaging_from)
        if self._cycles is not None:
            best, journal = self._cycles.journal()
            standing = standing._replace(best=best, journal=journal)
        if request.oracle.processes == 1 or processes.is_first_process():
            self._checkpoints.save(standing, self._identity)
        return [joined]

    def latest(self, state: State, length: int) -> Snapshot | None:
        """Where the run stands, made ready for as many rounds as are asked for now."""
        request = self._request
        asked = (request.parts(self._rule), request.program(length), request.span(0), jax.random.key(0), state)

        def like() -> tuple[State, Any]:
            shapes: tuple[State, Any] = request.engine.like_records(*asked)
            return shapes

        there = self._checkpoints.latest(self._identity, like, self._cycles and state.params)
        if request.oracle.processes > 1 and not processes.all_equal(0 if there is None else there.done):
            raise ValueError(
                f"checkpoints must be in a folder that all processes see, but {self._checkpoints.folder} is not the "
                "same in all of them"
            )
        if there is None:
            return None
        if self._cycles is not None:
            if request.choice is None or not request.choice.may_end:
                there.check_rounds(request.rounds)
            return there
        return there.extend(request.rounds, request.settings.averaging_from, state)


def finish(
    request: Request,
    method: Method,
    seed: int,
    state: State,
    records: Sequence[Record],
    done: int,
    stopped: bool,
    seconds: float,
    cycles: Cycles | None = None,
) -> Result:
    """Make a result of where a run ended: choose the answer, evaluate it on all data, say how it went."""
    diverged_at = int(state.diverged_at)
    rounds = done if diverged_at < 0 else diverged_at + 1
    history = History.from_records(request.oracle, records, rounds)
    state = jax.tree.map(jnp.asarray, state)
    guarded = request.oracle.is_private  # then nothing is asked beside the rounds and the judging of the answer
    vanished = not guarded and bool(history.void[-1]) and not _anything_left(request, state.params)
    if vanished:
        diverged_at = int(np.flatnonzero(~history.void).max(initial=-1)) + 1
        state = state._replace(diverged_at=jnp.int32(diverged_at))
    names = request.federation.names
    method = method if cycles is None else cycles.method
    ending = RunEnd(
        state,
        history,
        method,
        names,
        averaging_from=request.settings.averaging_from,
        answer=request.settings.answer,
        stopped=stopped,
        seed=seed,
        seconds=seconds,
        vanished=vanished,
        culprit=_culprit(request, state, seed) if diverged_at >= 0 and not guarded else None,
        restarts=() if cycles is None or diverged_at >= 0 else tuple(cycles.past),
        start=None
        if guarded
        else request.oracle.evaluate_params(request.start)
        if cycles is None
        else cycles.start.judged,
        auto_settings={} if cycles is None or request.choice is None else request.choice.told(request.oracle),
    )

    def scatter() -> float:
        if isinstance(request.oracle, NoisyOracle):  # known without asking
            deviations = request.oracle.report_deviations[:, 1:]
            return float(deviations.max(where=np.isfinite(deviations), initial=0))
        return float(
            request.engine.scatter(request.oracle_in_rounds, state.params, jax.random.key(seed), jnp.int32(rounds))
        )

    return build_result(ending, request.oracle, scatter)


def _anything_left(request: Request, params: Any) -> bool:
    """Whether any client has an objective, and any a constraint, on all of its rows."""
    judged = request.oracle.evaluate_params(params)
    return not any(np.isneginf(values).all() for values in (judged.objective, judged.constraint))


def _culprit(request: Request, state: State, seed: int) -> Any:
    """The label of the client whose report was not finite, found by asking again; None where it was the step."""
    key, k = jax.random.key(seed), state.diverged_at
    asked, reports = request.engine.report(request.oracle_in_rounds, state.params, key, k)
    finite = np.asarray(healthy(reports))
    return None if finite.all() else request.federation.names[int(asked[np.argmin(finite)])]
