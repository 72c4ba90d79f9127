"""SwitchingStrategy: a switching method as a strategy for Flower."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NoReturn

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result as FlowerResult
from flwr.serverapp.strategy import Strategy

from softswitch.engine.request import is_automatic, resolve_method
from softswitch.flower import messages as wire
from softswitch.flower.remote import RemoteClients
from softswitch.flower.rounds import play_round
from softswitch.flower.run import FlowerRun
from softswitch.flower.settings import StrategySettings, with_changes
from softswitch.methods import robust
from softswitch.methods.automatic import Automatic
from softswitch.methods.base import Method
from softswitch.results.result import Result
from softswitch.support import checks

logger = logging.getLogger("softswitch.flower")


class SwitchingStrategy(Strategy):
    """A softswitch method as a Flower strategy, for use in any ServerApp.

        strategy = SwitchingStrategy(Automatic(tolerance=0.1))
        strategy.start(grid, initial_arrays(parameters(module)), num_rounds=100)
        strategy.result        # softswitch's Result: status, history, diagnostics, values at every client

    The settings of an ``Automatic`` method are chosen during the run, as by ``solve``. The choices are logged, and they
    are in ``result.restarts`` and in checkpoints.

    The clients must use ``client_app``. ``start`` returns the arrays of the answer, not of the last iterate. A round
    has two exchanges, so Flower's hooks for single exchanges, such as ``configure_train``, raise NotImplementedError.

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
            num_rounds: Number of rounds K.
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
        with nullcontext() if settings.checkpoints is None else settings.checkpoints.lock():
            run = self._run = FlowerRun(self.method, settings, grid, initial_arrays, rounds, self.clients_identity)
            self.clients = run.clients
            flower_result = FlowerResult()

            def evaluate() -> None:
                if evaluate_fn is None:
                    return
                metrics = evaluate_fn(run.server.done, wire.to_record(run.server.state.params))
                if metrics is not None:
                    flower_result.evaluate_metrics_serverapp[run.server.done] = metrics

            try:
                evaluate()
                while not run.is_over:
                    record = play_round(run)
                    run.after_round(record)
                    objective, constraint = float(record.objective[0]), float(record.constraint[0])
                    metrics = MetricRecord({"objective": objective, "constraint": constraint})
                    flower_result.train_metrics_clientapp[run.server.done] = metrics
                    evaluate()
            except KeyboardInterrupt:
                if not run.server.done:
                    raise
            run.save()
            self.result = run.finish()
        flower_result.arrays = wire.to_record(self.result.params)
        return flower_result

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
