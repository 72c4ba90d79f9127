"""solve(): a problem, clients and a rule in, a result out, by the compiled engine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from softswitch.clients.client_data import ClientData
from softswitch.clients.evaluation import evaluate_all, evaluation
from softswitch.clients.federation import Federation
from softswitch.clients.losses import Losses
from softswitch.clients.oracle import Oracle
from softswitch.engines import compiled
from softswitch.engines.request import BatchSize, Prepared, batch_shapes, expect, prepare, prepare_federation
from softswitch.method.round import State, healthy
from softswitch.method.rules import Rule
from softswitch.problem.problem import Params, Problem, checked_params
from softswitch.results.blocker import smallest_alone
from softswitch.results.diagnosis import NEVER_MET, never_feasible
from softswitch.results.ending import conclude
from softswitch.results.history import History, join
from softswitch.results.result import Result
from softswitch.results.status import StatusCode
from softswitch.runs.checkpoints import Checkpoints, Standing
from softswitch.runs.watching import Callback, Chunk, ProgressBar
from softswitch.support import checks

ENGINES = ("compiled", "grid", "ray")


def solve(
    problem: Problem,
    clients: ClientData,
    rule: Rule,
    *,
    rounds: int = 1000,
    local_steps: int = 1,
    participation: float = 1.0,
    batch_size: int | None = 32,
    value_batch_size: BatchSize = "same",
    replace: bool = True,
    seed: int = 0,
    average_last: float = 1.0,
    answer: str = "average",
    eval_every: int | None = None,
    held_out: ClientData | None = None,
    record_clients: bool = False,
    clients_at_once: int | None = None,
    callbacks: Sequence[Callback] = (),
    checkpoints: Checkpoints | None = None,
    progress: bool | None = None,
    engine: str = "compiled",
) -> Result:
    """Minimise the worst client's objective subject to every client's constraint.

    Args:
        problem: objective, constraint, start, perhaps a domain.
        clients: whose data.
        rule: the method and its settings, such as ``SoftmaxSGM(alpha=100, step_size=0.5, tolerance=0.1)``.
        rounds: K.
        local_steps: E, gradient steps a client takes in a round.
        participation: r = m/n in (0, 1], the share of clients drawn for each round.
        batch_size: B_g, rows a client draws for a gradient; None: all of its rows.
        value_batch_size: B_ζ, rows it draws for its report; by default as ``batch_size``.
        replace: draw rows with replacement, or without.
        seed: of all random choices: the same seed gives the same result on the same machine, bit for bit.
        average_last: average over the feasible rounds of this last share of the rounds only; 1 is the paper's average.
            A start far away spoils that one for a long time; 0.5 forgets it.
        answer: which iterate is ``result.params``: "average", of the feasible ones, the paper's; "last"; or "best", the
            feasible one whose reports had the smallest worst objective. For networks the average is often poor.
        eval_every: rounds from one evaluation of F and G on all clients' data to the next; 0: never. By default up to
            20 times in a run, and never so often that it costs more than the training.
        held_out: rows not trained on, evaluated in the same rounds into ``history.held_out``.
        record_clients: keep what every participant reported in every round.
        clients_at_once: how many clients are computed side by side; by default as many as fit in 256 MiB.
        callbacks: each is called with a ``Chunk`` after every chunk of rounds; one that returns True ends the run.
        checkpoints: keep the run's standing in a folder, and go on from where it stands there; ``Checkpoints(folder)``.
        progress: show a progress bar; by default on a terminal only.
        engine: "compiled": whole stretches of rounds as one program. "grid" and "ray" speak to every client in Flower's
            messages, in this process or under its Ray simulation: slower, for a look at what a deployment will do.
            With ``batch_size=None`` all give the same trajectory; batches are drawn by each client for itself there.

    Returns:
        A ``Result``. Ctrl-C ends the run early and returns what there is, with status "stopped". Where no round was
        feasible, the client that blocks is looked at by itself for the diagnosis: at most 200 steps on its own rows.
    """
    prepared = prepare(
        problem,
        clients,
        (rule,),
        rounds=rounds,
        local_steps=local_steps,
        participation=participation,
        batch_size=batch_size,
        value_batch_size=value_batch_size,
        replace=replace,
        average_last=average_last,
        eval_every=eval_every,
        clients_at_once=clients_at_once,
        held_out=held_out,
        answer=answer,
    )
    if checks.one_of("engine", engine, ENGINES) == "compiled":
        result = _watched(prepared, rule, seed, callbacks, record_clients, checkpoints, progress)
    else:
        if held_out is not None or clients_at_once is not None:
            raise ValueError(f"held_out and clients_at_once must be None with engine={engine!r}; certify the result")
        from softswitch.engines.flower.simulation import solve_over_flower

        with ProgressBar(prepared.rounds, progress) as bar:
            result = solve_over_flower(
                problem,
                clients,
                rule,
                engine,
                prepared.rounds,
                {"batch_size": batch_size, "value_batch_size": value_batch_size, "replace": replace},
                local_steps=local_steps,
                participation=participation,
                seed=seed,
                average_last=average_last,
                answer=answer,
                eval_every=prepared.eval_every,
                callbacks=(bar, *callbacks),
                checkpoints=checkpoints,
            )
    if result.status.code is StatusCode.NO_FEASIBLE_ROUND and result.status.client is not None:
        return _with_blocker_alone(result, problem, clients)
    return result


def solve_federation(
    federation: Federation,
    rule: Rule,
    *,
    rounds: int = 1000,
    seed: int = 0,
    average_last: float = 1.0,
    answer: str = "average",
    eval_every: int | None = None,
    record_clients: bool = False,
    callbacks: Sequence[Callback] = (),
    checkpoints: Checkpoints | None = None,
    progress: bool | None = None,
) -> Result:
    """As ``solve``, where the clients are given as an oracle: simulated robots, say, instead of rows of data.

    How they draw, how many take part and what a local step is, the oracle knows. The arguments are those of ``solve``.
    """
    prepared = prepare_federation(
        federation, (rule,), rounds=rounds, average_last=average_last, eval_every=eval_every, answer=answer
    )
    return _watched(prepared, rule, seed, callbacks, record_clients, checkpoints, progress)


def _watched(
    prepared: Prepared,
    rule: Rule,
    seed: int,
    callbacks: Sequence[Callback],
    record_clients: bool,
    checkpoints: Checkpoints | None,
    progress: bool | None,
) -> Result:
    seed = checks.seed("seed", seed)
    if checkpoints is not None:
        expect("checkpoints", checkpoints, Checkpoints)
    if callable(callbacks) or not all(callable(callback) for callback in callbacks):
        raise TypeError(f"callbacks must be a list of functions of a Chunk, but is {callbacks!r}")
    with ProgressBar(prepared.rounds, progress) as bar:
        return run(prepared, rule, seed, (bar, *callbacks), record_clients, checkpoints)


def run(
    prepared: Prepared,
    rule: Rule,
    seed: int,
    callbacks: Sequence[Callback],
    record_clients: bool,
    checkpoints: Checkpoints | None = None,
) -> Result:
    """Run a prepared request, chunk by chunk, from its start or from where its checkpoints stand."""
    federation, oracle, rounds = prepared.federation, prepared.oracle, prepared.rounds
    key = jax.random.key(seed)
    length = compiled.chunk_length(oracle)
    computed = rule.computed_as()

    def chunk(done: int, state: State) -> tuple[State, compiled.Record]:
        return compiled.run_chunk(
            prepared.playing,
            computed,
            federation.domain,
            prepared.span(done),
            key,
            state,
            length=length,
            record_clients=record_clients,
        )

    def save() -> None:
        if checkpoints is not None and done:
            so_far = join(records, done)
            checkpoints.save(Standing(state, so_far, done, time.perf_counter() - began), request)

    state = compiled.start(federation.start, computed, oracle.constraints)
    records: list[compiled.Record] = []
    began = time.perf_counter()
    done, feasible, counted, stopped = 0, 0, 0, False
    if checkpoints is not None:
        request = prepared.request(rule, seed, record_clients)
        there = checkpoints.latest(request, (state, jax.eval_shape(lambda: chunk(0, state))[1]))
        if there is not None:
            state, records, done = jax.tree.map(jnp.asarray, there.state), [there.record], there.done
            history = History.from_records(oracle, records, done)
            feasible, counted = history.feasible_rounds, int((~history.void).sum())
            began -= there.seconds
    try:
        while done < rounds and not stopped and int(state.diverged_at) < 0:
            after, record = chunk(done, state)
            diverged_at = int(after.diverged_at)
            last = min(done + length, rounds) if diverged_at < 0 else diverged_at + 1
            history = History.from_records(oracle, [record], last - done, first=done)
            # Nothing above is kept if Ctrl-C comes before this line; all of it if after.
            state, records, done = after, [*records, record], last
            feasible, counted = feasible + history.feasible_rounds, counted + int((~history.void).sum())
            news = Chunk(done, rounds, history, feasible / max(1, counted), state, time.perf_counter() - began)
            answers = [callback(news) for callback in callbacks]
            stopped = any(isinstance(answer, bool | np.bool_) and bool(answer) for answer in answers)
            if checkpoints is not None and checkpoints.due():
                save()
    except KeyboardInterrupt:
        if not done:
            raise
        stopped = True
    save()
    seconds = time.perf_counter() - began
    stopped = stopped and done < rounds and int(state.diverged_at) < 0
    return finish(prepared, rule, seed, state, records, done, stopped, seconds)


def evaluate(problem: Problem, clients: ClientData, params: Params) -> tuple[np.ndarray, np.ndarray]:
    """f_i and g_i of every client on all of its rows: one entry a client, and clients × constraints.

    For held-out data as well: make a ``ClientData`` of it.
    """
    expect("problem", problem, Problem)
    expect("clients", clients, ClientData)
    params = checked_params("params", params)
    traced = problem.trace(batch_shapes(clients, int(clients.sizes.max()), params), params)
    way = evaluation(clients.rows, clients.sizes, traced.ignore_weight)
    objective, constraint = evaluate_all(way, clients.rows, params, Losses(problem.objective, problem.constraint))
    return np.asarray(objective), np.asarray(constraint)


def finish(
    prepared: Prepared,
    rule: Rule,
    seed: int,
    state: State,
    records: Sequence[compiled.Record],
    done: int,
    stopped: bool,
    seconds: float,
) -> Result:
    """Make a result of where a run ended: choose the answer, evaluate it on all data, say how it went."""
    diverged_at = int(state.diverged_at)
    rounds = done if diverged_at < 0 else diverged_at + 1
    history = History.from_records(prepared.oracle, records, rounds)
    state = jax.tree.map(jnp.asarray, state)
    vanished = bool(history.void[-1]) and not _anything_left(prepared, state.params)
    if vanished:
        diverged_at = int(np.flatnonzero(~history.void).max(initial=-1)) + 1
        state = state._replace(diverged_at=jnp.int32(diverged_at))
    names = prepared.federation.names
    return conclude(
        state,
        history,
        rule,
        prepared.oracle,
        names,
        averaging_from=prepared.averaging_from,
        answer=prepared.answer,
        stopped=stopped,
        vanished=vanished,
        culprit=_culprit(prepared.playing, names, state, seed) if diverged_at >= 0 else None,
        scatter=lambda: float(
            compiled.scatter(prepared.playing, state.params, jax.random.key(seed), jnp.int32(rounds))
        ),
        seed=seed,
        seconds=seconds,
    )


def _anything_left(prepared: Prepared, params: Params) -> bool:
    """Whether any client has an objective, and any a constraint, on all of its rows."""
    return not any(np.isneginf(values).all() for values in prepared.oracle.judge(params)[:2])


def _culprit(oracle: Oracle, names: Sequence[Any], state: State, seed: int) -> Any:
    """The label of the client whose report was not finite, found by asking again; None where it was the step."""
    asked, reports = compiled.report(oracle, state.params, jax.random.key(seed), state.diverged_at)
    finite = np.asarray(healthy(reports))
    return None if finite.all() else names[int(asked[np.argmin(finite)])]


def _with_blocker_alone(result: Result, problem: Problem, clients: ClientData) -> Result:
    """Look whether the client that blocks could meet its constraint by itself, and put it into the diagnosis."""
    worst = result.client_constraint.max(axis=1)
    if not np.isfinite(worst).any():
        return result
    blocker = int(np.nanargmax(worst))
    try:
        alone = smallest_alone(problem, clients, blocker, result.params)
    except KeyboardInterrupt:  # the run itself is done
        return result
    finding = never_feasible(clients.names, worst, result.rule.tolerance, blocker, alone)
    told = tuple(finding if found.illness == NEVER_MET else found for found in result.diagnosis)
    return replace(result, diagnosis=told)
