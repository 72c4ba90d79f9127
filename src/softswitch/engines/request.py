"""Checking a request before any work, and building the oracle for it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import jax

from softswitch.clients.client_data import ClientData, Rows
from softswitch.clients.evaluation import Evaluation, evaluation, row_bytes
from softswitch.clients.federation import Federation
from softswitch.clients.losses import Losses
from softswitch.clients.oracle import GradientOracle, Oracle
from softswitch.clients.sampling import Batching, batching
from softswitch.clients.slices import slice_size
from softswitch.engines import compiled as engine
from softswitch.method.rules import Rule
from softswitch.problem.problem import WEIGHT, Params, Problem, float_dtype
from softswitch.results.status import ANSWERS
from softswitch.runs.checkpoints import fingerprint, without_addresses, words
from softswitch.support import checks

BatchSize = int | None | Literal["same"]
EVALUATIONS = 20
"""How often a run looks at all data, unless told otherwise."""


@dataclass(frozen=True)
class Prepared:
    """A checked request, ready to run.

    Attributes:
        federation: the clients and the start.
        rounds: K.
        averaging_from: the first round that may join the average.
        eval_every: rounds from one evaluation on all data to the next; 0: none.
        answer: which iterate is the answer.
    """

    federation: Federation
    rounds: int
    averaging_from: int
    eval_every: int
    answer: str = "average"

    @property
    def oracle(self) -> Oracle:
        """The clients."""
        return self.federation.oracle

    @cached_property
    def playing(self) -> Oracle:
        """The clients as the rounds see them: without a way through all data where no round looks at it."""
        return self.oracle if self.eval_every else self.oracle.blind()

    def request(self, rule: Rule, seed: int, record_clients: bool) -> dict[str, str]:
        """What is asked for, in words: two runs of the same request are the same to the last bit."""
        return {
            "rule": without_addresses(str(rule)),
            "seed": str(seed),
            "rounds": str(self.rounds),
            "averaging_from": str(self.averaging_from),
            "eval_every": str(self.eval_every),
            "record_clients": str(bool(record_clients)),
            "domain": repr(self.federation.domain),
            "start": fingerprint(self.federation.start),
            "clients": fingerprint(self.oracle),
            **words(self.oracle),
            "functions": self._functions(),
        }

    def _functions(self) -> str:
        """A digest of what clients compute for their reports: two functions of one name may differ."""
        oracle = self.oracle

        def report(params: Params, key: Any) -> Any:
            return oracle.report(params, oracle.draw(key))[0]

        traced = str(jax.make_jaxpr(report)(self.federation.start, jax.random.key(0)))
        return hashlib.sha256(without_addresses(traced).encode()).hexdigest()

    def span(self, first: int) -> engine.Span:
        """The traced numbers of the chunk that begins with round ``first``."""
        return engine.Span(first, self.rounds, self.averaging_from, self.eval_every)


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
    held_out: ClientData | None = None,
    answer: str = "average",
) -> Prepared:
    """Check everything that can be checked before any work, and build the oracle."""
    expect("problem", problem, Problem)
    expect("clients", clients, ClientData)
    for rule in rules:
        expect("rule", rule, Rule)
    rounds = checks.whole_number("rounds", rounds, at_least=1)
    local_steps = checks.whole_number("local_steps", local_steps, at_least=1)
    participation = checks.real_number("participation", participation, above=0, at_most=1)
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
        held_out=None if held_out is None else _held_out(held_out, clients, traced.ignore_weight),
    )
    if eval_every is None:
        training = participants * (report.width + 3 * local_steps * update.width)  # a gradient costs about 3 values
        evaluated = clients.sizes.sum() + (0 if held_out is None else held_out.sizes.sum())
        eval_every = max(math.ceil(rounds / EVALUATIONS), math.ceil(evaluated / training))
    if held_out is not None and eval_every == 0:
        raise ValueError("held_out is evaluated every eval_every rounds, but eval_every is 0, which means never")
    federation = Federation(oracle, problem.start, clients.names, problem.domain)
    return prepare_federation(
        federation, rules, rounds=rounds, average_last=average_last, eval_every=eval_every, answer=answer
    )


def prepare_federation(
    federation: Federation,
    rules: Sequence[Rule],
    *,
    rounds: int,
    average_last: float,
    eval_every: int | None,
    answer: str = "average",
) -> Prepared:
    """Check what there is to check where the clients are given as an oracle."""
    expect("federation", federation, Federation)
    for rule in rules:
        expect("rule", rule, Rule)
        if rule.criterion == "pooled" and not federation.oracle.pools:
            raise ValueError(
                "criterion='pooled' needs a constraint that is a function of additive statistics, given as "
                "PooledConstraint(statistics, value); the other criteria are 'softmax', 'max' and 'mean'"
            )
    rounds = checks.whole_number("rounds", rounds, at_least=1)
    average_last = checks.real_number("average_last", average_last, above=0, at_most=1)
    checks.one_of("answer", answer, ANSWERS)
    if eval_every is None:
        eval_every = math.ceil(rounds / EVALUATIONS) if federation.oracle.evaluates else 0
    return Prepared(
        federation=federation,
        rounds=rounds,
        averaging_from=rounds - math.ceil(average_last * rounds),
        eval_every=checks.whole_number("eval_every", eval_every, at_least=0),
        answer=answer,
    )


def batch_shapes(clients: ClientData, width: int, params: Params) -> dict[str, Any]:
    """The shapes of a batch of ``width`` rows."""
    shapes = {
        key: jax.ShapeDtypeStruct((width, *column.shape[1:]), column.dtype)
        for key, column in clients.rows.columns.items()
    }
    shapes[WEIGHT] = jax.ShapeDtypeStruct((width,), float_dtype(params))
    return shapes


def expect(name: str, value: Any, kind: type) -> None:
    """Raise unless ``value`` is of the given kind."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, but is {value!r}")


def _held_out(held_out: Any, clients: ClientData, ignoring: tuple[str, ...]) -> tuple[Rows, Evaluation]:
    """The held-out rows and how to go through them; they must have the columns of the training rows."""
    expect("held_out", held_out, ClientData)
    columns, wanted = (
        {key: (column.shape[1:], column.dtype.name) for key, column in data.rows.columns.items()}
        for data in (held_out, clients)
    )
    if columns != wanted:
        raise ValueError(f"held_out must have the clients' columns {wanted}, but has {columns}")
    return held_out.rows, evaluation(held_out.rows, held_out.sizes, ignoring)


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
