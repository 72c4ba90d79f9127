"""The server's two parts of a round, for any engine: to decide by the reports, and to apply what came back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from softswitch.methods import robust, round
from softswitch.methods.base import Method
from softswitch.methods.client_selection import ask, stand_for, turn, with_turns
from softswitch.methods.consistency import compared
from softswitch.methods.memory import Memory, Places, Remembered, decide, hear
from softswitch.methods.messages import Decision, Reports
from softswitch.methods.weighting import maximum
from softswitch.oracles.evaluation import ClientSummary, summarize_clients
from softswitch.problem.domains import Domain
from softswitch.problem.parameters import Params
from softswitch.results.history import Record, RecordedClients

FOR_RULE = 3
"""Folded into a round's key for a rule that draws."""


class Decided(NamedTuple):
    """A round after its first exchange.

    Attributes:
        clients: I_k.
        told: what they reported,
        reports: and what is believed of it: all, or within what the others say where clients may lie.
        decision: what the rule made of it.
        rule_state: the rule's memory after it.
        remembered: what is remembered of every client after it, where the server remembers; else None.
    """

    clients: Int[Array, " m"]
    told: Reports
    reports: Reports
    decision: Decision
    rule_state: Any
    remembered: Remembered | None


class Pointed(NamedTuple):
    """A round after its second exchange.

    Attributes:
        direction: Σ r_i u_i, or what is made of the u_i where clients may lie,
        each: who are then all of them, with the clients as the first axis of every array; else None.
        at_clients: what every client keeps after it, where the rule asks for it; else None.
        traffic: how many bytes went up and down, each in two parts, where messages are compressed; else None.
    """

    direction: Params
    each: Params | None = None
    at_clients: Any = None
    traffic: Any = None


class RoundView(NamedTuple):
    """What a round leaves in its record beside its reports.

    Attributes:
        full: the worst and the mean client on all data; NaN where the round did not look.
        held_out: the same on data not trained on, where there is such.
        rows: how many rows the participants hold together, where that is counted.
        values: on how many rows values were computed, where that is not what the clients' rounds usually cost.
    """

    full: ClientSummary
    held_out: ClientSummary | None
    rows: Any
    values: Any = None


def believed_overview(method: Method, objective: Float[Array, " n"], constraint: Float[Array, "n c"]) -> ClientSummary:
    """The worst and the mean client; where clients may lie, each within what the others say."""
    if method.robust is not None:
        everyone = Reports(objective, constraint, None, jnp.ones(objective.shape, bool))
        objective, constraint = robust.trimmed(everyone, method.robust)[:2]
    return summarize_clients(objective, constraint)


def asked(
    state: round.State, key: Array, k: Int[Array, ""], places: Places, rest: Any
) -> tuple[round.State, Int[Array, " m"]]:
    """The state with the order of round k's turns, and whom to ask, where the server remembers its clients."""
    assert state.memory is not None
    remembered = with_turns(state.memory, key, k, places)
    return state._replace(memory=remembered), ask(remembered, turn(remembered.order, k, places), places, k, rest)


def informed(
    method: Method,
    state: round.State,
    key: Array,
    k: Int[Array, ""],
    clients: Int[Array, " m"],
    reports: Reports,
    again: Callable[[Params], Reports],
) -> Reports:
    """A round's reports with what else the rule, or a memory that is corrected, wants to know.

    Args:
        method: the method.
        state: before the round.
        key: the run's random key.
        k: the round.
        clients: who was asked.
        reports: what they reported.
        again: what they report at other parameters, on the same batches.
    """
    if method.knows_clients:
        reports = reports._replace(clients=clients)
    if state.before is not None:
        before = again(state.before)
        reports = reports._replace(earlier=(before.objective, before.constraint, before.sums))
    if method.draws_clients:
        reports = reports._replace(key=jax.random.fold_in(jax.random.fold_in(key, k), FOR_RULE))
    return reports


def decided(
    method: Method,
    memory: Memory | None,
    places: Places | None,
    state: round.State,
    k: Int[Array, ""],
    clients: Int[Array, " m"],
    reports: Reports,
    pool: Callable[[Float[Array, " s"]], Float[Array, " c"]],
) -> Decided:
    """The rule's decision on a round's reports; by all that is remembered, where the server remembers.

    Args:
        method: the method.
        memory: how the server remembers; None: not at all.
        places: who has the places of a round, where it remembers.
        state: before the round.
        k: the round.
        clients: who was asked.
        reports: what they reported.
        pool: the constraint on data put together, by its summed statistics, where there is one.
    """
    believed = reports if method.robust is None else robust.trimmed(reports, method.robust)
    if memory is None:
        return Decided(clients, reports, believed, *robust.decide(method, state.method, reports), None)
    assert state.memory is not None
    assert places is not None
    everyone = state.memory.objective.shape[0]
    weight = stand_for(places, everyone, reports.objective.dtype)
    reports, believed = (some._replace(stand_for=weight) for some in (reports, believed))
    remembered = hear(memory, state.memory, k, clients, reports)
    pooled = None if remembered.sums is None else pool(remembered.sums.sum(axis=0))
    made = decide(method, state.method, remembered, clients, reports, pooled)
    return Decided(clients, reports, believed, *made, remembered)


def applied(
    method: Method,
    domain: Domain | None,
    averaging_from: Int[Array, ""] | int,
    state: round.State,
    k: Int[Array, ""],
    by: Decided,
    pointed: Pointed,
    seen: RoundView,
    record_clients: bool,
) -> tuple[round.State, Record]:
    """The state after the round, and what the round leaves in the history.

    Args:
        method: the method.
        domain: Θ, or None.
        averaging_from: the first round that may join the average.
        state: before the round.
        k: the round.
        by: the round after its first exchange.
        pointed: what came of its second exchange.
        seen: what else goes into the record.
        record_clients: whether what every participant reported is kept.
    """
    reports, decision, remembered = by.reports, by.decision, by.remembered
    after = round.advance(
        state,
        method,
        domain,
        k,
        averaging_from,
        reports,
        decision,
        by.rule_state,
        pointed.direction,
        remembered,
        pointed.at_clients,
    )
    directions = pointed.each
    if directions is not None and state.consistency is not None:
        step = jax.tree.map(jnp.subtract, after.params, state.params)
        known = compared(state.consistency, k, by.clients, by.told, decision.local_loss, directions, by.told.mask, step)
        after = after._replace(consistency=known)
    told = RecordedClients(by.clients, by.told.objective, by.told.constraint, by.told.metrics)
    record = Record(
        maximum(reports.objective, reports.mask),
        maximum(reports.constraint, reports.mask[:, None]),
        decision.criterion,
        decision.feasible & round.sound(reports, decision),
        by.clients[jnp.argmax(jnp.where(reports.mask, reports.objective, -jnp.inf))],
        seen.full,
        seen.held_out,
        (reports.mask & ~(reports.has_objective & reports.has_constraint.all(axis=1))).sum(),
        seen.rows,
        told if record_clients else None,
        None if remembered is None else remembered.unheard.sum(),
        None if remembered is None else k - jnp.where(remembered.heard, remembered.heard_at, k).min(),
        seen.values,
        pointed.traffic,
    )
    return after, record
