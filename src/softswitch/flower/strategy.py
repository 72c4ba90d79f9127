"""SwitchingStrategy: the paper's round as a Flower strategy, two exchanges with a decision between them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result as FlowerResult
from flwr.serverapp.strategy import Strategy

from softswitch.engine.defaults import is_automatic
from softswitch.engine.server_round import believed_overview
from softswitch.flower import messages as wire
from softswitch.flower.client import MASKED, TERMS, encode_decision
from softswitch.flower.codec import count_bytes
from softswitch.flower.compression import needs_params
from softswitch.flower.exchange import Lost, exchange
from softswitch.flower.local_client import PREVIOUS
from softswitch.flower.remote import RemoteClients
from softswitch.flower.run import Course
from softswitch.flower.secure_server import Summed
from softswitch.flower.settings import StrategySettings, with_changes
from softswitch.methods import robust
from softswitch.methods.automatic import Automatic, resolve_method
from softswitch.methods.base import Method
from softswitch.methods.messages import Decision, Reports
from softswitch.oracles.base import Evaluation
from softswitch.oracles.evaluation import ClientSummary
from softswitch.results.history import ClientOutcome
from softswitch.results.result import Result
from softswitch.support import checks

logger = logging.getLogger("softswitch.flower")
MOST_VOTES = 5
"""So many times it is decided anew what most clients have, while the first round has not begun."""


class _Ended(Exception):  # noqa: N818
    """The rounds end here."""


class _Outvoted(Exception):  # noqa: N818
    """Before the first round more clients have come than are there, and what they have is not what was taken for it."""


class _Between(NamedTuple):
    """A round between its two exchanges.

    Attributes:
        clients: the indices of those asked to report.
        outcomes: what became of each so far.
        reports: what they reported.
        decided: the rule's decision and its memory after it; None in a round that is void already.
        updating: the places, in ``clients``, of those asked for a direction.
        full: F and G on all data, where they were asked for.
    """

    clients: list[int]
    outcomes: np.ndarray
    reports: Reports
    decided: tuple[Decision, Any] | None
    updating: list[int]
    full: ClientSummary


class SwitchingStrategy(Strategy):
    """Any of softswitch's rules over Flower, usable in anyone's ServerApp.

        strategy = SwitchingStrategy(SoftmaxSGM(tolerance=0.1))
        strategy.start(grid, initial_arrays(parameters(module)), num_rounds=100)
        strategy.result        # softswitch's Result: status, history, diagnosis, every client at the answer

    Whatever the rule leaves out is chosen, as ``solve`` does, as far as that costs no more than a few exchanges. What
    was chosen is in the log, in ``result.restarts`` and in checkpoints: a resumed run chooses nothing again. Where the
    rule has a ``step_size``, all else that is left out is as in the paper.

    The clients must be of ``client_app``. The arrays that ``start`` returns are the answer, not the last iterate.

    Args:
        method: the method and its settings.
        settings: everything else, as ``StrategySettings``;
        changes: or single settings by their names: ``SwitchingStrategy(rule, local_steps=5, min_clients=3)``.

    Attributes:
        settings: as given.
        result: what the run came to; None before its end.
        clients: to ask all clients again, for a certificate say; None before the start.
        clients_identity: what the run depends on at the clients, as text, where the server knows it: checkpoints of a
            run with another one are refused. A server does not see the clients' functions and rows.
    """

    def __init__(self, method: Method | Automatic, settings: StrategySettings | None = None, **changes: Any) -> None:
        method = resolve_method(method)
        is_automatic([method])  # refuses what is wrong with it
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
        """Run the rounds, judge the answer, and put softswitch's result into ``self.result``.

        Args:
            grid: Flower's.
            initial_arrays: w_0.
            num_rounds: K.
            timeout: instead of both timeouts.
            train_config: must be empty: settings are arguments of the strategy.
            evaluate_config: likewise.
            evaluate_fn: as in any strategy: called with the round and its arrays after every round.
        """
        for name, config in (("train_config", train_config), ("evaluate_config", evaluate_config)):
            if config:
                raise ValueError(f"{name} must be empty: settings are arguments of SwitchingStrategy; but is {config}")
        settings = self.settings
        if timeout is not None:
            limit = checks.real_number("timeout", timeout, above=0)
            settings = replace(settings, report_timeout=limit, update_timeout=limit)
        rounds = checks.whole_number("num_rounds", num_rounds, at_least=1)
        if settings.secure is not None:
            settings = replace(settings, min_clients=max(settings.min_clients, settings.secure.min_clients))
        if self.method.robust is not None:
            settings = _enough_for(self.method.robust, settings)
        with nullcontext() if settings.checkpoints is None else settings.checkpoints.held():
            for _ in range(MOST_VOTES):
                with suppress(_Outvoted):
                    return self._run(grid, initial_arrays, rounds, settings, evaluate_fn)
            raise ValueError("clients differ in how many constraints they have; set constraints")

    def _run(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        rounds: int,
        settings: StrategySettings,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None,
    ) -> FlowerResult:
        course = Course(self.method, settings, grid, initial_arrays, rounds, self.clients_identity)
        self._course = course
        self.clients = course.clients
        finished, stopped = FlowerResult(train_metrics_clientapp=course.metrics), False
        try:
            if not course.over:
                finished = super().start(
                    course.grid,
                    wire.to_record(course.run.state.params),
                    course.run.rounds - course.run.done,
                    timeout=settings.update_timeout,
                    evaluate_fn=evaluate_fn,
                )
        except _Ended:
            stopped = True
        except KeyboardInterrupt:
            if not course.run.done:
                raise
            stopped = True
        course.save()
        self.result = course.finish(stopped)
        finished.arrays = wire.to_record(self.result.params)
        return finished

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Look who is there, sample, ask for reports, decide; return the messages of the second exchange."""
        del server_round, config  # a resumed run counts on from where it stood
        course, settings = self._course, self._course.settings
        if course.over:
            raise _Ended
        run, k = course.run, course.run.done
        course.events.round = k
        course.roster.look(grid, settings.min_clients, settings.wait)
        if not k and course.roster.outvoted:
            raise _Outvoted
        nodes = course.roster.connected
        asked = run.sample(course.roster.awake(k, settings.min_clients), len(course.roster.names))
        full = ClientSummary.missing()
        if settings.eval_every and k % settings.eval_every == 0:
            full = _overview(self.method, course.clients.judge_now(run.state.params))
        task: dict[str, Any] = {wire.PARAMS: arrays, wire.SETTINGS: self._round_settings()}
        if course.before is not None:
            course.before.begin(*(jax.tree.map(np.asarray, one) for one in (run.state.params, run.state.before)))
            task[wire.SETTINGS][PREVIOUS] = course.before.digest
        answers = self._first_exchange(grid, asked, RecordDict(task))
        reports, outcomes = course.reader.reports(k, asked, answers)
        decided = run.decide(asked, reports)
        updating = [] if decided is None else np.flatnonzero(np.asarray(reports.mask)).tolist()
        masking: dict[str, Any] = {}
        if course.summing is not None and decided is not None:
            names = {place: course.roster.names[asked[place]] for place in updating}
            terms = course.summing.begin(k, names, answers, np.asarray(decided[0].weights))
            if terms is None:
                decided, updating = None, []
            else:
                masking = {TERMS: terms.record()}
        self._between = _Between(asked, outcomes, reports, decided, updating, full)
        if decided is None:
            return []
        loss, feasible = jax.tree.map(np.asarray, decided[0].local_loss), bool(decided[0].feasible)
        again = task if settings.resend_params else {}
        updates = []
        for place in updating:
            own = encode_decision(loss.of(place), run.switches, feasible)
            content = RecordDict({wire.DECISION: own, **again, **masking})
            updates.append(self._message(content, nodes[asked[place]], wire.UPDATE, settings.update_timeout))
        return updates

    def _first_exchange(self, grid: Grid, asked: list[int], content: RecordDict) -> list[Message | Lost]:
        """What those asked answer; where messages are compressed, whoever lacks parameters is asked again with them."""
        course, limit = self._course, self._course.settings.report_timeout
        nodes, held, run, before = course.roster.connected, course.held, course.run, course.before
        if held is None:
            own = [content if before is None else before.beside(i, content) for i in asked]
            messages = [self._message(told, nodes[i], wire.REPORT, limit) for i, told in zip(asked, own, strict=True)]
            answers = exchange(grid, messages, limit, course.settings.enough(len(messages)))
            if before is not None:
                for i, answer in zip(asked, answers, strict=True):
                    before.heard(i, answer)
            return answers
        settings = wire.get_config(content, wire.SETTINGS)
        params = wire.from_record(content[wire.PARAMS])
        held.begin(params)

        def ask(places: list[int]) -> list[Message | Lost]:
            own = [held.content(asked[i], params, settings, run.begun_at, before) for i in places]
            sent = [
                self._message(told, nodes[asked[i]], wire.REPORT, limit) for i, told in zip(places, own, strict=True)
            ]
            found = exchange(grid, sent, limit, course.settings.enough(len(sent)))
            for i, answer in zip(places, found, strict=True):
                held.heard(asked[i], answer)
                if before is not None:
                    before.heard(asked[i], answer)
            return found

        answers = ask(list(range(len(asked))))
        lacking = [i for i, answer in enumerate(answers) if needs_params(answer)]
        for i, answer in zip(lacking, ask(lacking) if lacking else [], strict=True):
            answers[i] = answer
        return answers

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Drop whoever was lost in between, weigh the others again, step, and account for the round."""
        del replies  # the grid remembers which reply answers which message
        course, now = self._course, self._between
        run, k, outcomes = course.run, course.run.done, now.outcomes.copy()
        directions = self._directions(outcomes)
        course.roster.after_round(k, course.reader.silent, course.reader.answered)
        reported = np.flatnonzero(np.asarray(now.reports.mask)).tolist()
        costs = [course.roster.cost(now.clients[place]) for place in reported]
        times = _reports_made(now.reports)[reported]
        rows = (
            int(sum(many * values for many, (values, _) in zip(times, costs, strict=True))),
            sum(gradients for _, gradients in costs),
        )
        held, traffic = course.held, None
        if held is not None:
            up = (answer.content.get(wire.DIRECTION) for answer in course.grid.answers if isinstance(answer, Message))
            traffic = sum(map(count_bytes, up)) if now.updating else 0, held.down
        spent = course.reader.epsilon
        record = run.apply(now.clients, outcomes, now.reports, now.decided, directions, now.full, rows, traffic, spent)
        if held is not None:
            held.after_round(k, now.clients, outcomes, run.change, run.state.params)
        if run.void_in_a_row:
            logger.warning("round %d is void: %s", k, _counted(outcomes))
            course.events.record("void round", _counted(outcomes))
        course.tell(record)
        told = MetricRecord({"objective": float(record.objective[0]), "constraint": float(record.constraint[0])})
        course.metrics[server_round] = told
        return wire.to_record(run.state.params), told

    def _directions(self, outcomes: np.ndarray) -> dict[int, wire.Arrays] | Summed:
        """What the second exchange brought: directions that can be used, or the mean of masked ones."""
        course, now = self._course, self._between
        what = course.run.done, now.clients, now.updating, course.grid.answers, outcomes
        if course.summing is None:
            return course.reader.directions(*what)
        parts = course.reader.masked_parts(*what)
        if not parts:
            return {}
        limit, nodes = course.settings.report_timeout, course.roster.connected

        def ask(letters: dict[int, RecordDict]) -> dict[int, Message | Lost]:
            messages = [self._message(own, nodes[now.clients[i]], wire.UNMASK, limit) for i, own in letters.items()]
            return dict(zip(letters, exchange(course.grid, messages, limit), strict=True))

        return course.summing.mean(course.run.done, parts, ask) or {}

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Nothing: an evaluation is of a round's own iterate, and asked for before its reports."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Nothing."""
        return None

    def summary(self) -> None:
        """Log the settings."""
        for name, value in self._course.identity.items():
            logger.info("%s: %s", name, value)

    def _round_settings(self) -> ConfigRecord:
        """What the clients need to know of the round, beside w."""
        run, settings = self._course.run, self._course.settings
        told: dict[str, Any] = {
            "round": run.done,
            "seed": settings.seed,
            "local_steps": settings.local_steps,
            "step_size": run.local_step_size,
            "switches": run.switches,
        }
        if self._course.summing is not None:
            told[MASKED] = True
        if settings.clip_norm is not None:
            told["clip_norm"] = float(settings.clip_norm)
        if self._course.held is not None:
            told |= self._course.held.told
        return ConfigRecord(told)

    def _message(self, content: RecordDict, node: int, kind: str, timeout: float) -> Message:
        return Message(content, node, kind, ttl=timeout, group_id=str(self._course.run.done))


def _enough_for(liars: int, settings: StrategySettings) -> StrategySettings:
    """The settings with as many clients in a round at least as b liars take, or raise where there are never so many."""
    least = robust.fewest(liars)
    if settings.expected and len(settings.expected) < least:
        raise ValueError(
            f"robust={liars} needs at least {least} clients in every round, but {len(settings.expected)} may take part"
        )
    return replace(settings, min_clients=max(settings.min_clients, least), robust=liars)


def _reports_made(reports: Reports) -> np.ndarray:
    """How many reports each client made: two where it told of the iterate before as well."""
    once = np.ones(len(reports.mask), int)
    return once if reports.earlier is None else once + ~np.isnan(np.asarray(reports.earlier[0]))


def _overview(method: Method, judged: Evaluation) -> ClientSummary:
    """F and G over the clients that answered."""
    if np.isnan(judged.objective).all():
        return ClientSummary.missing()
    both = (judged.objective, judged.constraint)
    heard = (jnp.asarray(np.where(np.isnan(values), -np.inf, values)) for values in both)
    return believed_overview(method, *heard)


def _counted(outcomes: np.ndarray) -> str:
    """How many clients met which fate."""
    if not len(outcomes):
        return "nobody is connected"
    counts = {ClientOutcome(int(fate)).label: int((outcomes == fate).sum()) for fate in np.unique(outcomes)}
    return ", ".join(f"{count} {name}" for name, count in counts.items())
