"""SwitchingStrategy: a switching method as a strategy for Flower."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result as FlowerResult
from flwr.serverapp.strategy import Strategy

from softswitch.engine.request import is_automatic, resolve_method
from softswitch.engine.second_order import describe_failure
from softswitch.flower import messages as wire
from softswitch.flower.remote import RemoteClients
from softswitch.flower.roster import Roster
from softswitch.flower.run import FlowerRun, check_run, parse_start, play_round
from softswitch.flower.second_order import FOLDER, find_obstacle, run_second_order
from softswitch.flower.settings import StrategySettings, with_changes
from softswitch.methods import robust
from softswitch.methods.automatic import Automatic, to_first_order
from softswitch.methods.base import Method
from softswitch.methods.sqp import SQP
from softswitch.oracles.derivatives import UnavailableError
from softswitch.problem.domains import check_domain
from softswitch.problem.parameters import Params
from softswitch.results.callbacks import Chunk
from softswitch.results.events import EventLog
from softswitch.results.result import Result
from softswitch.results.status import StatusCode
from softswitch.support import checks

logger = logging.getLogger("softswitch.flower")


class _Meeting(NamedTuple):
    """The clients that have been met, the start, the number of rounds, and what to call after each."""

    grid: Grid
    roster: Roster
    events: EventLog
    params: Params
    rounds: int
    after_round: Callable[..., None]


class SwitchingStrategy(Strategy):
    """A softswitch method as a Flower strategy, for use in any ServerApp.

        strategy = SwitchingStrategy(Automatic(tolerance=0.1))
        strategy.start(grid, initial_arrays(parameters(module)), num_rounds=100)
        strategy.result        # softswitch's Result: status, history, diagnostics, values at every client

    The settings of an ``Automatic`` method are chosen during the run, as by ``solve``. The choices are logged, and they
    are in ``result.restarts`` and in checkpoints. If all clients allow second derivatives and the model is small,
    ``SQP`` runs in place of a first-order method; ``result.auto_settings`` says which ran and why.

    The clients must use ``client_app``. ``start`` returns the arrays of the answer, not of the last iterate. A round
    has two exchanges, or one with ``SQP``. Flower's hooks, such as ``configure_train``, raise NotImplementedError.

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
        self.method = resolve_method(method)
        is_automatic([self.method])  # raises if it is invalid
        self.settings = with_changes(settings, changes)
        if self.method.switches_on == "pooled" and self.settings.pooled is None:
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
            num_rounds: Number of rounds K; with ``SQP`` the maximum number of exchanges.
            timeout: Timeout of both exchanges, in seconds. Default: those of the settings.
            train_config: Must be empty: settings are arguments of the strategy.
            evaluate_config: Must be empty.
            evaluate_fn: Called with the number of rounds so far and the arrays, before the first round and after each.
        """
        rounds = checks.check_integer("num_rounds", num_rounds, minimum=1)
        for name, config in (("train_config", train_config), ("evaluate_config", evaluate_config)):
            if config:
                raise ValueError(f"{name} must be empty: settings are arguments of SwitchingStrategy; but is {config}")
        settings = self._with_min_clients()
        if timeout is not None:
            limit = checks.check_real("timeout", timeout, above=0)
            settings = replace(settings, report_timeout=limit, update_timeout=limit)
        self.summary()
        params = parse_start(initial_arrays)
        check_domain(settings.domain, params)
        obstacle = find_obstacle(self.method, settings, params)
        if not isinstance(self.method, SQP):
            check_run(self.method, settings, params, rounds)
        elif obstacle:
            raise ValueError(f"{obstacle}, which SQP cannot use over Flower: use Automatic or SoftmaxSGM")
        events = EventLog(settings.events)
        roster = Roster(settings, events)
        roster.refresh(grid, settings.min_clients, settings.wait, all_expected=True)
        if roster.constraints is None:
            which = "client of the list" if settings.clients else "client"
            raise TimeoutError(f"no {which} connected within wait={settings.wait:g} s")
        flower_result = FlowerResult()

        def after_round(done: int, params: Params, record: Any = None) -> None:
            if record is not None:
                numbers = {"objective": float(record.objective[0]), "constraint": float(record.constraint[0])}
                flower_result.train_metrics_clientapp[done] = MetricRecord({**numbers})
            metrics = None if evaluate_fn is None else evaluate_fn(done, wire.to_record(params))
            if metrics is not None:
                flower_result.evaluate_metrics_serverapp[done] = metrics

        meeting = _Meeting(grid, roster, events, params, rounds, after_round)
        if isinstance(self.method, SQP):
            self.result = self._run_second_order(self.method, settings, meeting)
        else:
            self.result = self._run_automatic(settings, meeting, obstacle)
        flower_result.arrays = wire.to_record(self.result.params)
        return flower_result

    def _run_automatic(self, settings: StrategySettings, meeting: _Meeting, obstacle: str) -> Result:
        """Run ``SQP`` in place of automatic settings if it is possible, and else the rounds of the method."""
        if not is_automatic([self.method]):
            return self._run_rounds(settings, meeting)
        checkpoints, begin_at = settings.checkpoints, None
        obstacle = obstacle or find_obstacle(self.method, settings, meeting.params, meeting.roster)
        if checkpoints is not None and checkpoints.saved_identity("method") is not None:
            obstacle = obstacle or "the run has gone on with it before"
        if not obstacle:
            if checkpoints is not None:
                checkpoints = replace(checkpoints, folder=Path(checkpoints.folder) / FOLDER)
            try:
                method = SQP(tolerance=self.method.tolerance)
                result = self._run_second_order(method, replace(settings, checkpoints=checkpoints), meeting)
                obstacle = describe_failure(result) or ""
                begin_at = result.last if result.status.code is not StatusCode.DIVERGED else None
            except UnavailableError as error:
                obstacle = str(error)
            if not obstacle:
                why = "all clients allow second derivatives, and the model is small"
                return replace(result, auto_settings={"method": f"SQP, because {why}"})
            logger.warning("continuing with a first-order method: %s", obstacle)
            meeting.events.record("first order", obstacle)
        result = self._run_rounds(settings, meeting, begin_at)
        return replace(result, auto_settings={"method": f"first order, because {obstacle}"} | result.auto_settings)

    def _run_second_order(self, method: SQP, settings: StrategySettings, meeting: _Meeting) -> Result:
        clients = self.clients = RemoteClients(meeting.grid, meeting.roster, settings, meeting.events)
        meeting.after_round(0, meeting.params)

        def after_exchange(chunk: Chunk) -> None:
            meeting.after_round(chunk.round, chunk.state.params, chunk.history)

        return run_second_order(method, clients, meeting.params, meeting.rounds, self.clients_identity, after_exchange)

    def _run_rounds(self, settings: StrategySettings, meeting: _Meeting, begin_at: Params | None = None) -> Result:
        grid, roster, events, params, rounds, after_round = meeting
        method = to_first_order(self.method)
        with nullcontext() if settings.checkpoints is None else settings.checkpoints.lock():
            run = self._run = FlowerRun(
                method, settings, grid, roster, events, params, rounds, self.clients_identity, begin_at
            )
            self.clients = run.clients
            try:
                after_round(run.server.done, run.server.state.params)
                while not run.is_over:
                    record = play_round(run)
                    run.after_round(record)
                    after_round(run.server.done, run.server.state.params, record)
            except KeyboardInterrupt:
                if not run.server.done:
                    raise
            run.save()
            return run.finish()

    def summary(self) -> None:
        """Log the method and the settings."""
        logger.info("%s, %s", self.method, self.settings)

    def _refuse_hook(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise NotImplementedError: a round has two exchanges, which ``start`` runs."""
        raise NotImplementedError("SwitchingStrategy runs rounds of two exchanges, without Flower's hooks: call start")

    configure_train = aggregate_train = configure_evaluate = aggregate_evaluate = _refuse_hook

    def _with_min_clients(self) -> StrategySettings:
        """Return the settings with enough clients in a round for secure aggregation or for Byzantine clients."""
        settings, byzantine = self.settings, self.method.robust
        fewest = settings.min_clients if settings.secure is None else settings.secure.min_clients
        if byzantine is not None:
            fewest = robust.min_participants(byzantine)
            if settings.expected and len(settings.expected) < fewest:
                problem = f"robust={byzantine} needs at least {fewest} clients in every round"
                raise ValueError(f"{problem}, but {len(settings.expected)} may take part")
        return replace(settings, min_clients=max(settings.min_clients, fewest))
