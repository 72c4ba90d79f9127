"""SwitchingStrategy: the paper's round as a Flower strategy, two exchanges with a decision between them."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result as FlowerResult
from flwr.serverapp.strategy import Strategy

from softswitch.clients.evaluation import Overview, overview
from softswitch.engines.compiled import Record
from softswitch.engines.flower import wire
from softswitch.engines.flower.client import decision_record
from softswitch.engines.flower.entries import not_evaluated
from softswitch.engines.flower.exchange import PromptGrid, exchange
from softswitch.engines.flower.reading import Reader
from softswitch.engines.flower.remote import RemoteClients
from softswitch.engines.flower.roster import Roster
from softswitch.engines.flower.run_state import Rounds
from softswitch.engines.request import expect
from softswitch.method.rules import Decision, Reports, Rule
from softswitch.problem.domains import Domain
from softswitch.problem.problem import check_domain, checked_params
from softswitch.results.ending import conclude
from softswitch.results.history import Fate, History
from softswitch.results.result import Result
from softswitch.results.status import ANSWERS
from softswitch.runs.checkpoints import Checkpoints, Standing, fingerprint, without_addresses
from softswitch.runs.watching import Callback, Chunk
from softswitch.support import checks

logger = logging.getLogger("softswitch.flower")
LARGEST_NUMBER = 1e12
"""By default a number of larger size is absurd."""


class _Ended(Exception):  # noqa: N818
    """The rounds end here."""


class _Between(NamedTuple):
    """A round between its two exchanges.

    Attributes:
        clients: the indices of those asked to report.
        fates: what became of each so far.
        reports: what they reported.
        decided: the rule's decision and its memory after it; None in a round that is void already.
        updating: the places, in ``clients``, of those asked for a direction.
        full: F and G on all data, where they were asked for.
    """

    clients: list[int]
    fates: np.ndarray
    reports: Reports
    decided: tuple[Decision, Any] | None
    updating: list[int]
    full: Overview


class SwitchingStrategy(Strategy):
    """Any of softswitch's rules over Flower, usable in anyone's ServerApp.

        strategy = SwitchingStrategy(SoftmaxSGM(alpha=100, step_size=0.5, tolerance=0.1))
        strategy.start(grid, initial_arrays(parameters(module)), num_rounds=100)
        strategy.result        # softswitch's Result: status, history, diagnosis, every client at the answer

    The clients must be of ``client_app``. The arrays that ``start`` returns are the answer, not the last iterate.

    Args:
        rule: the method and its settings.
        local_steps: E.
        participation: the share of the connected clients drawn for each round, from a generator of its own.
        seed: of the sampling, and of the clients' batches.
        average_last: average over the feasible rounds of this last share of the rounds only.
        answer: which iterate is the answer: "average", "last" or "best".
        eval_every: rounds from one evaluation of F and G on all clients' data to the next, an exchange of its own each
            time; 0: only at the end.
        domain: Θ to project onto after every server step: ``Ball``, ``Box`` or None.
        pooled: the ``value`` of a ``PooledConstraint``, where the clients' constraint is one.
        min_clients: with fewer clients in either exchange a round is void: it changes nothing.
        wait: seconds to wait for so many clients before a round, and for all of them before the answer is judged.
        report_timeout: seconds to wait in the first exchange, and wherever else clients are asked for numbers,
        update_timeout: and in the second.
        resend_params: send w again in the second exchange, for clients that may be started anew in between.
        clip_norm: the largest norm of a client's direction; longer ones are shortened by the client, and by the server.
        largest_number: a number of larger size in a report or a direction is absurd, and rejected.
        constraints: how many a client has; by default as many as most of those first met. Others are turned away.
        patience: so many void rounds in a row end the run.
        callbacks: each is called with a ``Chunk`` after every round; one that returns True ends the run.
        checkpoints: keep the run's standing in a folder, and go on from where it stands there.
        names: the clients' labels in the order wanted, where they are known beforehand; the first round then waits for
            all of them, as long as ``wait`` allows. By default they are met as they come.

    Attributes:
        result: what the run came to; None before its end.
        clients: to ask all clients again, for a certificate say; None before the start.
    """

    def __init__(
        self,
        rule: Rule,
        *,
        local_steps: int = 1,
        participation: float = 1.0,
        seed: int = 0,
        average_last: float = 1.0,
        answer: str = "average",
        eval_every: int = 0,
        domain: Domain | None = None,
        pooled: Callable[[Any], Any] | None = None,
        min_clients: int = 1,
        wait: float = 60.0,
        report_timeout: float = 600.0,
        update_timeout: float = 600.0,
        resend_params: bool = False,
        clip_norm: float | None = None,
        largest_number: float = LARGEST_NUMBER,
        constraints: int | None = None,
        patience: int = 10,
        callbacks: Sequence[Callback] = (),
        checkpoints: Checkpoints | None = None,
        names: Sequence[str] = (),
    ) -> None:
        expect("rule", rule, Rule)
        self.rule = rule
        self.local_steps = checks.whole_number("local_steps", local_steps, at_least=1)
        self.participation = checks.real_number("participation", participation, above=0, at_most=1)
        self.seed = checks.seed("seed", seed)
        self.average_last = checks.real_number("average_last", average_last, above=0, at_most=1)
        self.answer = checks.one_of("answer", answer, ANSWERS)
        self.eval_every = checks.whole_number("eval_every", eval_every, at_least=0)
        self.domain = domain
        if rule.criterion == "pooled" and pooled is None:
            raise ValueError("criterion='pooled' needs pooled, the value function of the clients' PooledConstraint")
        self.pooled = pooled
        self.min_clients = checks.whole_number("min_clients", min_clients, at_least=1)
        self.wait = checks.real_number("wait", wait, at_least=0)
        self.report_timeout = checks.real_number("report_timeout", report_timeout, above=0)
        self.update_timeout = checks.real_number("update_timeout", update_timeout, above=0)
        self.resend_params = bool(resend_params)
        self.clip_norm = None if clip_norm is None else checks.real_number("clip_norm", clip_norm, above=0)
        self.largest_number = checks.real_number("largest_number", largest_number, above=0)
        self.constraints = None if constraints is None else checks.whole_number("constraints", constraints, at_least=1)
        self.patience = checks.whole_number("patience", patience, at_least=1)
        if callable(callbacks) or not all(callable(callback) for callback in callbacks):
            raise TypeError(f"callbacks must be a list of functions of a Chunk, but is {callbacks!r}")
        self.callbacks = tuple(callbacks)
        self.checkpoints = checkpoints
        self.names = tuple(str(name) for name in names)
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
        if timeout is not None:
            self.report_timeout = self.update_timeout = checks.real_number("timeout", timeout, above=0)
        self._begin(grid, initial_arrays, checks.whole_number("num_rounds", num_rounds, at_least=1))
        finished, stopped = FlowerResult(train_metrics_clientapp=self._metrics), False
        try:
            if not self._over:
                finished = super().start(
                    self._grid,
                    wire.to_record(self._rounds.state.params),
                    self._rounds.rounds - self._rounds.done,
                    timeout=self.update_timeout,
                    evaluate_fn=evaluate_fn,
                )
        except _Ended:
            stopped = True
        except KeyboardInterrupt:
            if not self._rounds.done:
                raise
            stopped = True
        self._save()
        self.result = self._finish(stopped)
        finished.arrays = wire.to_record(self.result.params)
        return finished

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Look who is there, sample, ask for reports, decide; return the messages of the second exchange."""
        del server_round, config  # a resumed run counts on from where it stood
        if self._over:
            raise _Ended
        rounds, k = self._rounds, self._rounds.done
        self._roster.look(grid, self.min_clients, self.wait)
        nodes = self._roster.connected
        asked = rounds.sample(list(nodes))
        full = not_evaluated()
        if self.eval_every and k % self.eval_every == 0:
            assert self.clients is not None
            full = _overview(*self.clients.judge(rounds.state.params, patiently=False)[:2])
        task: dict[str, Any] = {wire.PARAMS: arrays, wire.SETTINGS: self._settings()}
        content = RecordDict(task)
        messages = [self._message(content, nodes[i], wire.REPORT, self.report_timeout) for i in asked]
        answers = exchange(grid, messages, self.report_timeout)
        reports, fates = self._reader.reports(k, asked, answers)
        decided = rounds.decide(reports)
        updating = [] if decided is None else np.flatnonzero(np.asarray(reports.mask)).tolist()
        self._between = _Between(asked, fates, reports, decided, updating, full)
        if decided is None:
            return []
        loss, feasible = jax.tree.map(np.asarray, decided[0].local_loss), bool(decided[0].feasible)
        again = task if self.resend_params else {}
        updates = []
        for place in updating:
            own = decision_record(loss._replace(constraint=loss.constraint[place]), rounds.switches, feasible)
            content = RecordDict({wire.DECISION: own, **again})
            updates.append(self._message(content, nodes[asked[place]], wire.UPDATE, self.update_timeout))
        return updates

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Drop whoever was lost in between, renormalise, step, and account for the round."""
        del replies  # the grid remembers which reply answers which message
        rounds, now = self._rounds, self._between
        k, fates = rounds.done, now.fates.copy()
        directions = self._reader.directions(k, now.clients, now.updating, self._grid.answers, fates)
        reported = np.flatnonzero(np.asarray(now.reports.mask)).tolist()
        costs = [self._roster.cost(now.clients[place]) for place in reported]
        rows = sum(values for values, _ in costs), sum(gradients for _, gradients in costs)
        record = rounds.apply(now.clients, fates, now.reports, now.decided, directions, now.full, rows)
        if rounds.void_in_a_row:
            logger.warning("round %d is void: %s", k, _words(fates))
        assert self.clients is not None
        history = History.from_records(self.clients, [record], 1, first=k)
        self._feasible += history.feasible_rounds
        self._counted += int((~history.void).sum())
        share = self._feasible / max(1, self._counted)
        news = Chunk(rounds.done, rounds.rounds, history, share, rounds.state, self._seconds)
        said = [callback(news) for callback in self.callbacks]
        self._told_to_stop = any(isinstance(word, bool | np.bool_) and bool(word) for word in said)
        if self.checkpoints is not None and self.checkpoints.due():
            self._save()
        told = MetricRecord({"objective": float(record.objective[0]), "constraint": float(record.constraint[0])})
        self._metrics[server_round] = told
        return wire.to_record(rounds.state.params), told

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
        for name, value in self._request.items():
            logger.info("%s: %s", name, value)

    def _begin(self, grid: Grid, initial_arrays: ArrayRecord, rounds: int) -> None:
        """The state before the first round, or where the checkpoints stand."""
        given = wire.from_record(initial_arrays)
        params = checked_params("initial_arrays", given)
        check_domain(self.domain, params)
        expected = wire.shapes(params)
        changed = [name for name, shape in wire.shapes(given).items() if expected[name] != shape]
        if changed:
            raise ValueError(
                f"initial_arrays must be of a dtype that JAX computes in, but {changed[0]!r} is "
                f"{given[changed[0]].dtype}; use float32, or jax.config.update('jax_enable_x64', True)"
            )
        self._grid = PromptGrid(grid, self.update_timeout)
        self._roster = Roster(self.report_timeout, self.names, self.constraints)
        self._roster.look(self._grid, max(self.min_clients, len(self.names)), self.wait)
        constraints = self._roster.constraints
        if constraints is None:
            raise TimeoutError(f"no client was connected within {self.wait:g} s (wait)")
        self.clients = RemoteClients(
            self._grid,
            self._roster,
            local_steps=self.local_steps,
            timeout=self.report_timeout,
            wait=self.wait,
            largest_number=self.largest_number,
            pooled=self.pooled,
        )
        self._averaging_from = rounds - math.ceil(self.average_last * rounds)
        self._rounds = Rounds(
            self.rule,
            params,
            constraints,
            rounds=rounds,
            averaging_from=self._averaging_from,
            participation=self.participation,
            seed=self.seed,
            domain=self.domain,
            min_clients=self.min_clients,
            pools=self.pooled is not None,
        )
        self._reader = Reader(
            self._roster,
            expected,
            constraints=constraints,
            dtype=self._rounds.dtype,
            largest_number=self.largest_number,
            clip_norm=self.clip_norm,
            pooled=self.pooled,
        )
        self._began = time.perf_counter()
        self._feasible, self._counted, self._told_to_stop = 0, 0, False
        self._metrics: dict[int, MetricRecord] = {}
        self._request = {
            "rule": without_addresses(str(self.rule)),
            "seed": str(self.seed),
            "rounds": str(rounds),
            "averaging_from": str(self._averaging_from),
            "local_steps": str(self.local_steps),
            "participation": str(self.participation),
            "domain": repr(self.domain),
            "clip_norm": str(self.clip_norm),
            "constraints": str(constraints),
            "start": fingerprint(params),
        }
        there = None if self.checkpoints is None else self.checkpoints.latest(self._request, self._rounds.like())
        if there is not None:
            self._rounds.go_on(there)
            self._roster.recall(there.names)
            self._began -= there.seconds
            history = self._history()
            self._feasible, self._counted = history.feasible_rounds, int((~history.void).sum())
            logger.info("going on after %d of %d rounds", there.done, rounds)

    @property
    def _over(self) -> bool:
        rounds = self._rounds
        ended = rounds.done >= rounds.rounds or rounds.diverged
        return ended or self._told_to_stop or rounds.void_in_a_row >= self.patience

    @property
    def _seconds(self) -> float:
        return time.perf_counter() - self._began

    def _settings(self) -> ConfigRecord:
        """What the clients need to know of the round, beside w."""
        told: dict[str, Any] = {
            "round": self._rounds.done,
            "seed": self.seed,
            "local_steps": self.local_steps,
            "step_size": self._rounds.local_step_size,
            "switches": self._rounds.switches,
        }
        if self.clip_norm is not None:
            told["clip_norm"] = self.clip_norm
        return ConfigRecord(told)

    def _message(self, content: RecordDict, node: int, kind: str, timeout: float) -> Message:
        return Message(content, node, kind, ttl=timeout, group_id=str(self._rounds.done))

    def _save(self) -> None:
        rounds = self._rounds
        if self.checkpoints is not None and rounds.record is not None:
            names = tuple(self._roster.names)
            standing = Standing(rounds.state, rounds.record, rounds.done, self._seconds, names)
            self.checkpoints.save(standing, self._request)

    def _history(self) -> History:
        record: Record | None = self._rounds.record
        assert record is not None
        assert self.clients is not None
        return History.from_records(self.clients, [record], self._rounds.done)

    def _finish(self, stopped: bool) -> Result:
        assert self.clients is not None
        history = self._history()
        assert history.per_client is not None
        asked = (history.per_client.clients >= 0).sum(axis=1)
        self.clients.participants = max(1, round(float(asked.mean())))
        result = conclude(
            self._rounds.state,
            history,
            self.rule,
            self.clients,
            tuple(self._roster.names),
            averaging_from=self._averaging_from,
            answer=self.answer,
            stopped=stopped and self._rounds.done < self._rounds.rounds and not self._rounds.diverged,
            vanished=False,
            culprit=None,
            scatter=lambda: math.nan,  # to measure it would take rounds of its own
            seed=self.seed,
            seconds=self._seconds,
        )
        if self._rounds.void_in_a_row < self.patience:
            return result
        why = f"{result.status.message}. The last {self._rounds.void_in_a_row} rounds were void, so it ended (patience)"
        return replace(result, status=replace(result.status, message=why))


def _overview(objective: np.ndarray, constraint: np.ndarray) -> Overview:
    """F and G over the clients that answered."""
    if np.isnan(objective).all():
        return not_evaluated()
    heard = (jnp.asarray(np.where(np.isnan(values), -np.inf, values)) for values in (objective, constraint))
    return overview(*heard)


def _words(fates: np.ndarray) -> str:
    """How many clients met which fate."""
    if not len(fates):
        return "nobody is connected"
    counts = {Fate(int(fate)).words: int((fates == fate).sum()) for fate in np.unique(fates)}
    return ", ".join(f"{count} {name}" for name, count in counts.items())
