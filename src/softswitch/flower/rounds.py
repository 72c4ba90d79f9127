"""One round over Flower: two exchanges with the clients, and a third one to remove masks."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import Message, RecordDict

from softswitch.engine.server_step import summarize
from softswitch.flower import messages as wire
from softswitch.flower.client import encode_decision
from softswitch.flower.compression import count_bytes, needs_params
from softswitch.flower.exchange import NoReply, Reply, exchange
from softswitch.flower.run import FlowerRun
from softswitch.flower.secure_aggregation import MASKED, TERMS
from softswitch.flower.server_state import Observed
from softswitch.methods.base import Method
from softswitch.methods.messages import Reports
from softswitch.oracles.base import Evaluation
from softswitch.oracles.evaluation import ClientSummary
from softswitch.results.history import ClientOutcome, Record

logger = logging.getLogger("softswitch.flower")


def play_round(run: FlowerRun) -> Record:
    """Sample clients, collect their reports, decide, collect directions, and step; return the round's record."""
    settings, server, roster, aggregator = run.settings, run.server, run.roster, run.aggregator
    k = run.events.round = server.done
    roster.refresh(run.grid, settings.min_clients, settings.wait)
    clients = server.sample(roster.available(k, settings.min_clients), len(roster.names))
    full = ClientSummary.missing()
    if settings.eval_every and k % settings.eval_every == 0:
        full = _summarize(run.requested, run.clients.evaluate_params(server.state.params, patient=False))
    state = server.state
    run.held.begin(*(jax.tree.map(np.asarray, tree) for tree in (state.params, state.parts.get("previous"))))
    no_records = {place: dict[str, Any]() for place in range(len(clients))}
    replies = list(_request(run, clients, wire.REPORT, no_records, with_params=True).values())
    reports, outcomes = run.reader.read_reports(clients, replies)
    played = server.decide(clients, reports)
    updating = np.flatnonzero(np.asarray(reports.mask)).tolist()
    terms: dict[str, Any] = {}
    if aggregator is not None and played is not None:
        names = {place: roster.names[clients[place]] for place in updating}
        agreed = aggregator.begin_round(k, names, replies, np.asarray(played.decision.weights))
        if agreed is None:
            played = None
        else:
            terms = {TERMS: agreed.record()}
    update_replies: dict[int, Reply] = {}
    directions: Any = {}
    if played is not None:
        loss, feasible = jax.tree.map(np.asarray, played.decision.local_loss), bool(played.decision.feasible)
        switches = bool(server.method.switches)
        decisions = {place: encode_decision(loss.of(place), switches, feasible) for place in updating}
        records = {place: {wire.DECISION: one, **terms} for place, one in decisions.items()}
        update_replies = _request(run, clients, wire.UPDATE, records, with_params=False)
        directions = run.reader.read_updates(clients, update_replies, outcomes)
    if aggregator is not None and directions:
        unmasking = aggregator.aggregate(
            k, directions, lambda contents: _ask(run, clients, wire.UNMASK, contents, settings.report_timeout)
        )
        directions = unmasking or {}
    every_reply = [*enumerate(replies), *update_replies.items()]
    silent = {clients[place] for place, reply in every_reply if isinstance(reply, NoReply) and reply.silent}
    roster.finish_round(k, silent, {clients[place] for place, reply in every_reply if isinstance(reply, Message)})
    traffic = None
    if server.compression is not None:
        sent = (reply.content.get(wire.DIRECTION) for reply in update_replies.values() if isinstance(reply, Message))
        traffic = sum(map(count_bytes, sent)), run.held.down
    observed = Observed(clients, outcomes, full, _count_rows(run, clients, reports), traffic, run.reader.epsilon)
    record = server.apply(played, directions, observed)
    run.held.end_round(k, clients, outcomes, server.change, server.state.params)
    if server.void_in_a_row:
        logger.warning("round %d is void: %s", k, _describe(outcomes))
        run.events.record("void round", _describe(outcomes))
    return record


def _ask(
    run: FlowerRun, clients: list[int], kind: str, contents: Mapping[int, RecordDict], timeout: float
) -> dict[int, Reply]:
    """Send a message to each of some clients, by place, and return their replies."""
    nodes, group = run.roster.connected, str(run.server.done)
    messages = [
        Message(content, nodes[clients[place]], kind, ttl=timeout, group_id=group)
        for place, content in contents.items()
    ]
    return dict(zip(contents, exchange(run.grid, messages, timeout), strict=True))


def _request(
    run: FlowerRun, clients: list[int], kind: str, records: Mapping[int, dict[str, Any]], *, with_params: bool
) -> dict[int, Reply]:
    """Send records to clients by place, with the parameters or not; ask those that lack them again, with whole ones."""
    held, timeout = run.held, run.settings.report_timeout if kind == wire.REPORT else run.settings.update_timeout
    settings: dict[str, Any] = {
        "round": run.server.done,
        "seed": run.settings.seed,
        "local_steps": run.settings.local_steps,
        "step_size": run.server.local_step_size,
        "switches": bool(run.server.method.switches),
    }
    if run.aggregator is not None:
        settings[MASKED] = True
    if run.settings.clip_norm is not None:
        settings["clip_norm"] = float(run.settings.clip_norm)
    replies: dict[int, Reply] = {}
    places = list(records)
    for _ in range(2):
        contents = {place: RecordDict(records[place]) for place in places}
        if with_params:
            for place, content in contents.items():
                content.update(held.content(clients[place], settings, run.server.restart_begin))
        replies |= _ask(run, clients, kind, contents, timeout)
        lacking = [place for place in places if needs_params(replies[place])]
        for place in places if with_params else lacking:
            held.record_reply(clients[place], replies[place])
        places, with_params = lacking, True
        if not places:
            break
    return replies


def _count_rows(run: FlowerRun, clients: list[int], reports: Reports) -> tuple[int, int]:
    """Return the numbers of rows of the round's reports, some at two iterates, and of its gradients."""
    iterates = np.ones(len(reports.mask), int)
    if reports.earlier is not None:
        iterates += ~np.isnan(np.asarray(reports.earlier[0]))
    reported = np.flatnonzero(np.asarray(reports.mask)).tolist()
    costs = {place: run.roster.cost(clients[place]) for place in reported}
    values = sum(int(iterates[place]) * rows for place, (rows, _) in costs.items())
    return values, sum(gradients for _, gradients in costs.values())


def _summarize(method: Method, values: Evaluation) -> ClientSummary:
    """Return F and G over the clients that replied."""
    if np.isnan(values.objective).all():
        return ClientSummary.missing()
    both = (values.objective, values.constraint)
    return summarize(method, *(jnp.asarray(np.where(np.isnan(part), -np.inf, part)) for part in both))


def _describe(outcomes: np.ndarray) -> str:
    """Return the number of clients with each outcome."""
    if not len(outcomes):
        return "no client is connected"
    counts = {ClientOutcome(int(outcome)).label: int((outcomes == outcome).sum()) for outcome in np.unique(outcomes)}
    return ", ".join(f"{count} {label}" for label, count in counts.items())
