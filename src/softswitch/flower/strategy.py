"""SwitchingStrategy: a switching method as a Flower strategy, with two exchanges in a round."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result as FlowerResult
from flwr.serverapp.strategy import Strategy

from softswitch.engine.request import is_automatic, resolve_method
from softswitch.engine.server_step import summarize
from softswitch.flower import messages as wire
from softswitch.flower.client import encode_decision
from softswitch.flower.compression import count_bytes, needs_params
from softswitch.flower.exchange import NoReply, PollingGrid, exchange
from softswitch.flower.remote import RemoteClients
from softswitch.flower.run import FlowerRun
from softswitch.flower.secure_aggregation import MASKED, TERMS, SecureMean
from softswitch.flower.settings import StrategySettings, with_changes
from softswitch.methods import robust
from softswitch.methods.automatic import Automatic
from softswitch.methods.base import Method
from softswitch.methods.messages import Reports
from softswitch.methods.parts import Round
from softswitch.oracles.base import Evaluation
from softswitch.oracles.evaluation import ClientSummary
from softswitch.results.history import ClientOutcome
from softswitch.results.result import Result
from softswitch.support import checks

logger = logging.getLogger("softswitch.flower")
MAX_VOTES = 5
"""Maximum number of votes on the clients' numbers of constraints and statistics before round 0."""


class _RunEnded(Exception):  # noqa: N818
    """There are no more rounds."""


class _Outvoted(Exception):  # noqa: N818
    """Before the first round, a new majority of clients has other numbers of constraints or statistics."""


class _OpenRound(NamedTuple):
    """A round between its two exchanges."""

    clients: list[int]
    outcomes: np.ndarray
    reports: Reports
    played: Round | None  # None if the round is void
    updating: list[int]  # the places in ``clients`` of those asked for a direction
    full: ClientSummary


class SwitchingStrategy(Strategy):
    """A softswitch method as a Flower strategy, for use in any ServerApp.

        strategy = SwitchingStrategy(Automatic(tolerance=0.1))
        strategy.start(grid, initial_arrays(parameters(module)), num_rounds=100)
        strategy.result        # softswitch's Result: status, history, diagnostics, values at every client

    The settings of an ``Automatic`` method are chosen during the run, as by ``solve``. The choices are logged, and they
    are in ``result.restarts`` and in checkpoints.

    The clients must use ``client_app``. ``start`` returns the arrays of the answer, not of the last iterate.

    Args:
        method: The method and its settings.
        settings: All further settings.
        changes: Single settings by name, such as ``SwitchingStrategy(method, local_steps=5, min_clients=3)``.

    Attributes:
        settings: The settings.
        result: The result; None before the end of the run.
        clients: All clients, for a certificate for example; None before the start.
        clients_identity: What the run depends on at the clients, as text, if the server knows it. Checkpoints of a run
            with another identity are refused.
    """

    def __init__(self, method: Method | Automatic, settings: StrategySettings | None = None, **changes: Any) -> None:
        method = resolve_method(method)
        is_automatic([method])  # raises if it is invalid
        self.settings = with_changes(settings, changes)
        if self.settings.robust is not None:
            method = replace(method, robust=self.settings.robust)
        self.method = method
        if method.switches_on == "pooled" and self.settings.pooled is None:
            raise ValueError("criterion='pooled' needs pooled, the value function of the clients' PooledConstraint")
        self.clients_identity: dict[str, str] = {}
        self.result: Result | None = None
        self.clients: RemoteClients | None = None

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 100,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> FlowerResult:
        """Run the rounds, evaluate the answer, and set ``self.result``.

        Args:
            grid: Flower's grid.
            initial_arrays: The first parameters w_0.
            num_rounds: Number of rounds K.
            timeout: Timeout of both exchanges, in seconds. Default: that of the settings.
            train_config: Must be empty: settings are arguments of the strategy.
            evaluate_config: Must be empty.
            evaluate_fn: Called with the round and its arrays after every round, as in any strategy.
        """
        for name, config in (("train_config", train_config), ("evaluate_config", evaluate_config)):
            if config:
                raise ValueError(f"{name} must be empty: settings are arguments of SwitchingStrategy; but is {config}")
        settings = self.settings
        if timeout is not None:
            limit = checks.check_real("timeout", timeout, above=0)
            settings = replace(settings, report_timeout=limit, update_timeout=limit)
        rounds = checks.check_integer("num_rounds", num_rounds, minimum=1)
        if settings.secure is not None:
            settings = replace(settings, min_clients=max(settings.min_clients, settings.secure.min_clients))
        if self.method.robust is not None:
            settings = _with_min_clients(self.method.robust, settings)
        with nullcontext() if settings.checkpoints is None else settings.checkpoints.lock():
            for _ in range(MAX_VOTES):
                with suppress(_Outvoted):
                    return self._start(grid, initial_arrays, rounds, settings, evaluate_fn)
            raise ValueError("clients differ in how many constraints they have; set constraints")

    def _start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        rounds: int,
        settings: StrategySettings,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None,
    ) -> FlowerResult:
        run = self._run = FlowerRun(self.method, settings, grid, initial_arrays, rounds, self.clients_identity)
        self.clients = run.clients
        flower_result, stopped = FlowerResult(train_metrics_clientapp=run.metrics), False
        try:
            if not run.is_over:
                flower_result = super().start(
                    run.grid,
                    wire.to_record(run.server.state.params),
                    run.server.rounds - run.server.done,
                    timeout=settings.update_timeout,
                    evaluate_fn=evaluate_fn,
                )
        except _RunEnded:
            stopped = True
        except KeyboardInterrupt:
            if not run.server.done:
                raise
            stopped = True
        run.save()
        self.result = run.finish(stopped)
        flower_result.arrays = wire.to_record(self.result.params)
        return flower_result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sample clients, collect their reports and decide; return the messages of the second exchange."""
        del server_round, config  # a resumed run continues its own count of rounds
        run, settings, server = self._run, self._run.settings, self._run.server
        if run.is_over:
            raise _RunEnded
        k = run.events.round = server.done
        run.roster.refresh(grid, settings.min_clients, settings.wait)
        if not k and run.roster.is_outvoted:
            raise _Outvoted
        nodes = run.roster.connected
        clients = server.sample(run.roster.available(k, settings.min_clients), len(run.roster.names))
        full = ClientSummary.missing()
        if settings.eval_every and k % settings.eval_every == 0:
            full = _overview(self.method, run.clients.judge_now(server.state.params))
        task: dict[str, Any] = {wire.PARAMS: arrays, wire.SETTINGS: self._round_settings()}
        if run.before is not None:
            params, previous = (
                jax.tree.map(np.asarray, tree) for tree in (server.state.params, server.state.parts["previous"])
            )
            run.before.begin(params, previous)
            task[wire.SETTINGS][wire.PREVIOUS] = run.before.digest
        replies = self._request_reports(grid, clients, RecordDict(task))
        reports, outcomes = run.reader.read_reports(k, clients, replies)
        played = server.decide(clients, reports)
        updating = [] if played is None else np.flatnonzero(np.asarray(reports.mask)).tolist()
        terms: dict[str, Any] = {}
        if run.aggregator is not None and played is not None:
            names = {place: run.roster.names[clients[place]] for place in updating}
            agreed = run.aggregator.begin_round(k, names, replies, np.asarray(played.decision.weights))
            if agreed is None:
                played, updating = None, []
            else:
                terms = {TERMS: agreed.record()}
        self._open = _OpenRound(clients, outcomes, reports, played, updating, full)
        if played is None:
            return []
        loss, feasible = jax.tree.map(np.asarray, played.decision.local_loss), bool(played.decision.feasible)
        resent = task if settings.resend_params else {}
        messages = []
        for place in updating:
            decision = encode_decision(loss.of(place), bool(server.method.switches), feasible)
            content = RecordDict({wire.DECISION: decision, **resent, **terms})
            messages.append(self._message(content, nodes[clients[place]], wire.UPDATE, settings.update_timeout))
        return messages

    def _request_reports(self, grid: Grid, clients: list[int], content: RecordDict) -> list[Message | NoReply]:
        """Run the first exchange; with compression, ask clients that lack the parameters again."""
        run, timeout = self._run, self._run.settings.report_timeout
        nodes, held, before = run.roster.connected, run.held, run.before
        settings = wire.get_config(content, wire.SETTINGS)
        params = {} if held is None else wire.from_record(content[wire.PARAMS])
        if held is not None:
            held.begin(params)

        def content_for(index: int) -> RecordDict:
            if held is not None:
                return held.content(index, params, settings, run.server.cycle_begin, before)
            return content if before is None else before.add_to(index, content)

        def ask(indices: list[int]) -> list[Message | NoReply]:
            messages = [self._message(content_for(index), nodes[index], wire.REPORT, timeout) for index in indices]
            replies = exchange(grid, messages, timeout, run.settings.required_replies(len(messages)))
            for index, reply in zip(indices, replies, strict=True):
                for tracker in (held, before):
                    if tracker is not None:
                        tracker.record_reply(index, reply)
            return replies

        replies = ask(clients)
        lacking = [place for place, reply in enumerate(replies) if held is not None and needs_params(reply)]
        if lacking:
            for place, reply in zip(lacking, ask([clients[place] for place in lacking]), strict=True):
                replies[place] = reply
        return replies

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate the directions that arrived, step, and record the round."""
        del replies  # the grid keeps the reply to each message
        run, server, open_round = self._run, self._run.server, self._open
        k, clients, outcomes = server.done, open_round.clients, open_round.outcomes.copy()
        directions = self._read_directions(outcomes)
        run.roster.finish_round(k, run.reader.silent, run.reader.replied)
        traffic = None
        if run.held is not None:
            records = (reply.content.get(wire.DIRECTION) for reply in self._results if isinstance(reply, Message))
            traffic = sum(map(count_bytes, records)) if open_round.updating else 0, run.held.down
        record = server.apply(
            clients,
            outcomes,
            open_round.played,
            directions,
            open_round.full,
            self._count_rows(),
            traffic,
            run.reader.epsilon,
        )
        if run.held is not None:
            run.held.end_round(k, clients, outcomes, server.change, server.state.params)
        if server.void_in_a_row:
            logger.warning("round %d is void: %s", k, _describe(outcomes))
            run.events.record("void round", _describe(outcomes))
        run.after_round(record)
        metrics = MetricRecord({"objective": float(record.objective[0]), "constraint": float(record.constraint[0])})
        run.metrics[server_round] = metrics
        return wire.to_record(server.state.params), metrics

    @property
    def _results(self) -> list[Message | NoReply]:
        """The replies and failures of the second exchange."""
        return cast(PollingGrid, self._run.grid).results

    def _read_directions(self, outcomes: np.ndarray) -> dict[int, wire.Arrays] | SecureMean:
        """Return the usable directions of the second exchange, or their mean with secure aggregation."""
        run, clients = self._run, self._open.clients
        updates = run.reader.read_updates(run.server.done, clients, self._open.updating, self._results, outcomes)
        if run.aggregator is None or not updates:
            return updates
        timeout, nodes = run.settings.report_timeout, run.roster.connected

        def ask(contents: dict[int, RecordDict]) -> dict[int, Message | NoReply]:
            messages = [
                self._message(content, nodes[clients[place]], wire.UNMASK, timeout)
                for place, content in contents.items()
            ]
            return dict(zip(contents, exchange(run.grid, messages, timeout), strict=True))

        return run.aggregator.aggregate(run.server.done, updates, ask) or {}

    def _count_rows(self) -> tuple[int, int]:
        """Return the numbers of rows of the round's reports, some at two iterates, and of its gradients."""
        reports = self._open.reports
        iterates = np.ones(len(reports.mask), int)
        if reports.earlier is not None:
            iterates += ~np.isnan(np.asarray(reports.earlier[0]))
        reported = np.flatnonzero(np.asarray(reports.mask)).tolist()
        costs = [self._run.roster.cost(self._open.clients[place]) for place in reported]
        values = sum(iterates[place] * rows for place, (rows, _) in zip(reported, costs, strict=True))
        return int(values), sum(gradients for _, gradients in costs)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return no messages: evaluations are requested before a round's reports."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return None."""
        return None

    def summary(self) -> None:
        """Log the settings."""
        for name, value in self._run.identity.items():
            logger.info("%s: %s", name, value)

    def _round_settings(self) -> ConfigRecord:
        run, settings = self._run, self._run.settings
        record: dict[str, Any] = {
            "round": run.server.done,
            "seed": settings.seed,
            "local_steps": settings.local_steps,
            "step_size": run.server.local_step_size,
            "switches": bool(run.server.method.switches),
        }
        if run.aggregator is not None:
            record[MASKED] = True
        if settings.clip_norm is not None:
            record["clip_norm"] = float(settings.clip_norm)
        if run.held is not None:
            record |= run.held.settings
        return ConfigRecord(record)

    def _message(self, content: RecordDict, node: int, kind: str, timeout: float) -> Message:
        return Message(content, node, kind, ttl=timeout, group_id=str(self._run.server.done))


def _with_min_clients(byzantine: int, settings: StrategySettings) -> StrategySettings:
    """Return the settings with enough clients in a round for this many Byzantine ones; raise if there are fewer."""
    fewest = robust.min_participants(byzantine)
    if settings.expected and len(settings.expected) < fewest:
        raise ValueError(
            f"robust={byzantine} needs at least {fewest} clients in every round, but {len(settings.expected)} may "
            "take part"
        )
    return replace(settings, min_clients=max(settings.min_clients, fewest), robust=byzantine)


def _overview(method: Method, values: Evaluation) -> ClientSummary:
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
