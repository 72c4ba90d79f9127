"""solve(): a problem, clients and a rule in, a result out, by the compiled engine."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import numpy as np

from softswitch import checks, engine
from softswitch.clients import ClientData, Rows
from softswitch.evaluation import Evaluation, evaluation, row_bytes
from softswitch.history import History
from softswitch.losses import Losses
from softswitch.oracle import GradientOracle
from softswitch.problem import WEIGHT, Params, PooledConstraint, Problem
from softswitch.result import Result, answer, status
from softswitch.round import State, healthy
from softswitch.rules import Rule
from softswitch.sampling import Batching, batching
from softswitch.slices import slice_size
from softswitch.tracking import Callback, Chunk, ProgressBar

BatchSize = int | None | Literal["same"]


@dataclass(frozen=True)
class Prepared:
    """A checked request, ready to run."""

    oracle: GradientOracle
    rounds: int
    averaging_from: int
    eval_every: int

    def span(self, first: int) -> engine.Span:
        """The traced numbers of the chunk that begins with round ``first``."""
        return engine.Span(first, self.rounds, self.averaging_from, self.eval_every)


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
    eval_every: int | None = None,
    record_clients: bool = False,
    clients_at_once: int | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
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
        eval_every: rounds from one evaluation of F and G on all clients' data to the next; 0: never. By default up to
            20 times in a run, and never so often that it costs more than the training.
        record_clients: keep what every participant reported in every round.
        clients_at_once: how many clients are computed side by side; by default as many as fit in 256 MiB.
        callbacks: each is called with a ``Chunk`` after every chunk of rounds; one that returns True ends the run.
        progress: show a progress bar; by default on a terminal only.

    Returns:
        A ``Result``. Ctrl-C ends the run early and returns what there is, with status "stopped".
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
    )
    seed = checks.whole_number("seed", seed, at_least=0)
    with ProgressBar(prepared.rounds, progress) as bar:
        return run(prepared, problem, clients, rule, seed, (bar, *callbacks), record_clients)


def run(
    prepared: Prepared,
    problem: Problem,
    clients: ClientData,
    rule: Rule,
    seed: int,
    callbacks: Sequence[Callback],
    record_clients: bool,
) -> Result:
    """Run a prepared request, chunk by chunk."""
    oracle, rounds = prepared.oracle, prepared.rounds
    key = jax.random.key(seed)
    length = engine.chunk_length(oracle)
    state = engine.start(problem.start, rule, oracle.constraints)
    records: list[engine.Record] = []
    began = time.perf_counter()
    done, feasible, stopped = 0, 0, False
    try:
        while done < rounds and not stopped and int(state.diverged_at) < 0:
            state, record = engine.run_chunk(
                oracle,
                rule,
                problem.domain,
                prepared.span(done),
                key,
                state,
                length=length,
                record_clients=record_clients,
            )
            history = History.from_records(oracle, [record], min(length, rounds - done))
            records.append(record)
            done += len(history)
            feasible += history.feasible_rounds
            news = Chunk(done, rounds, history, feasible / done, state, time.perf_counter() - began)
            answers = [callback(news) for callback in callbacks]
            stopped = any(answer is True for answer in answers)
    except KeyboardInterrupt:
        stopped = True
    seconds = time.perf_counter() - began
    return finish(prepared, rule, clients, seed, state, records, done, stopped and done < rounds, seconds)


def evaluate(problem: Problem, clients: ClientData, params: Params) -> tuple[np.ndarray, np.ndarray]:
    """f_i and g_i of every client on all of its rows: one entry a client, and clients × constraints.

    For held-out data as well: make a ``ClientData`` of it.
    """
    _expect("problem", problem, Problem)
    _expect("clients", clients, ClientData)
    traced = problem.trace(batch_shapes(clients, int(clients.sizes.max()), params))
    way = evaluation(clients.rows, clients.sizes, traced.ignore_weight)
    objective, constraint = _evaluate(way, clients.rows, params, Losses(problem.objective, problem.constraint))
    return np.asarray(objective), np.asarray(constraint)


@partial(jax.jit, static_argnames="losses")
def _evaluate(way: Evaluation, rows: Rows, params: Params, losses: Losses) -> tuple[Any, Any]:
    return way.run(losses, rows, params)


def finish(
    prepared: Prepared,
    rule: Rule,
    clients: ClientData,
    seed: int,
    state: State,
    records: Sequence[engine.Record],
    done: int,
    stopped: bool,
    seconds: float,
) -> Result:
    """Make a result of where a run ended: choose the answer, evaluate it on all data, say how it went."""
    diverged_at = int(state.diverged_at)
    rounds = done if diverged_at < 0 else diverged_at + 1
    history = History.from_records(prepared.oracle, records, rounds)
    params, selected = answer(state, history, prepared.averaging_from)
    objective, constraint = (np.asarray(v) for v in engine.evaluate(prepared.oracle, params))
    culprit = _culprit(prepared.oracle, clients, state, seed) if diverged_at >= 0 else None
    how = status(state, history, rule, clients.names, constraint, stopped=stopped, diverged_name=culprit)
    return Result(
        params=params,
        last=state.params,
        best=state.best.params if history.feasible_rounds else None,
        selected=selected,
        status=how,
        history=history,
        client_objective=objective,
        client_constraint=constraint,
        names=clients.names,
        rule=rule,
        seed=seed,
        seconds=seconds,
    )


def _culprit(oracle: GradientOracle, clients: ClientData, state: State, seed: int) -> Any:
    """The label of the client whose report was not finite, found by asking again; None where it was the step."""
    draws = oracle.draw(jax.random.fold_in(jax.random.key(seed), state.diverged_at))
    finite = np.asarray(healthy(oracle.report(state.params, draws)))
    return None if finite.all() else clients.names[int(draws.clients[np.argmin(finite)])]


def prepare(
    problem: Problem,
    clients: ClientData,
    rules: Sequence[Rule],
    *,
    rounds: int,
    local_steps: int,
    participation: float,
    batch_size: int | None,
    value_batch_size: BatchSize,
    replace: bool,
    average_last: float,
    eval_every: int | None,
    clients_at_once: int | None,
) -> Prepared:
    """Check everything that can be checked before any work, and build the oracle."""
    _expect("problem", problem, Problem)
    _expect("clients", clients, ClientData)
    for rule in rules:
        _expect("rule", rule, Rule)
        if rule.criterion == "pooled" and not isinstance(problem.constraint, PooledConstraint):
            raise ValueError(
                "criterion='pooled' needs a constraint given as PooledConstraint(statistics, value), but constraint is "
                f"{problem.constraint!r}; the other criteria are 'softmax', 'max' and 'mean'"
            )
    rounds = checks.whole_number("rounds", rounds, at_least=1)
    local_steps = checks.whole_number("local_steps", local_steps, at_least=1)
    participation = checks.real_number("participation", participation, above=0, at_most=1)
    average_last = checks.real_number("average_last", average_last, above=0, at_most=1)
    update = batching(_checked_size("batch_size", batch_size), replace, clients.stratum_sizes)
    if value_batch_size == "same":
        report = update
    else:
        size = _checked_size("value_batch_size", value_batch_size)
        report = batching(size, replace, clients.stratum_sizes)
    traced = problem.trace(batch_shapes(clients, report.width, problem.start))
    _refuse_ignored_weights(traced.ignore_weight, report, update, clients)
    participants = max(1, round(participation * len(clients)))
    oracle = GradientOracle(
        rows=clients.rows,
        evaluation=evaluation(clients.rows, clients.sizes, traced.ignore_weight),
        losses=Losses(problem.objective, problem.constraint),
        constraints=traced.constraints,
        participants=participants,
        local_steps=local_steps,
        report_batching=report,
        update_batching=update,
        slice_size=_clients_at_once(clients_at_once, participants, clients, problem, max(report.width, update.width)),
    )
    if eval_every is None:
        training = participants * (report.width + 3 * local_steps * update.width)  # a gradient costs about 3 values
        eval_every = max(math.ceil(rounds / 20), math.ceil(clients.sizes.sum() / training))
    return Prepared(
        oracle=oracle,
        rounds=rounds,
        averaging_from=rounds - math.ceil(average_last * rounds),
        eval_every=checks.whole_number("eval_every", eval_every, at_least=0),
    )


def batch_shapes(clients: ClientData, width: int, params: Params) -> dict[str, Any]:
    """The shapes of a batch of ``width`` rows."""
    shapes = {
        key: jax.ShapeDtypeStruct((width, *column.shape[1:]), column.dtype)
        for key, column in clients.rows.columns.items()
    }
    shapes[WEIGHT] = jax.ShapeDtypeStruct((width,), jax.tree.leaves(params)[0].dtype)
    return shapes


def _expect(name: str, value: Any, kind: type) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, but is {value!r}")


def _checked_size(name: str, size: Any) -> int | None:
    return None if size is None else checks.whole_number(name, size, at_least=1)


def _refuse_ignored_weights(ignoring: tuple[str, ...], report: Batching, update: Batching, clients: ClientData) -> None:
    if not ignoring or (report.equal and update.equal):
        return
    why = (
        "strata are drawn in other proportions than the client's own"
        if len(clients.strata) > 1
        else "clients have different sizes and batch_size=None pads the smaller ones with rows of weight 0"
    )
    raise ValueError(
        f"{' and '.join(ignoring)} must read batch['weight'], because {why}; write means as "
        "jnp.average(loss, weights=batch['weight'])"
    )


def _clients_at_once(wanted: int | None, participants: int, clients: ClientData, problem: Problem, width: int) -> int:
    if wanted is not None:
        return checks.whole_number("clients_at_once", wanted, at_least=1)
    # A batch and about three times as much for what is computed from it; a local iterate, its gradient and its sum.
    iterate = sum(leaf.nbytes for leaf in jax.tree.leaves(problem.start))
    return slice_size(participants, 4 * width * row_bytes(clients.rows) + 3 * iterate)
