"""SwitchingStrategy: a switching method as a strategy for Flower."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result as FlowerResult

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


class SwitchingStrategy:
    """A softswitch method as a strategy for Flower, for use in any ServerApp.

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
        self.method = resolve_method(method)
        is_automatic([self.method])  # raises if it is invalid
        self.settings = with_changes(settings, changes)
        if self.method.switches_on == "pooled" and self.settings.pooled is None:
            raise ValueError("criterion='pooled' needs pooled, the value function of the clients' PooledConstraint")
        self.clients_identity: dict[str, str] = {}
        self.result: Result | None = None
        self.clients: RemoteClients | None = None

    def start(self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int = 100) -> FlowerResult:
        """Run the rounds, evaluate the answer, and set ``self.result``.

        Args:
            grid: Flower's grid.
            initial_arrays: The first parameters w_0.
            num_rounds: Number of rounds K.
        """
        rounds = checks.check_integer("num_rounds", num_rounds, minimum=1)
        settings = self._with_min_clients()
        with nullcontext() if settings.checkpoints is None else settings.checkpoints.lock():
            run = self._run = FlowerRun(self.method, settings, grid, initial_arrays, rounds, self.clients_identity)
            self.clients = run.clients
            metrics: dict[int, MetricRecord] = {}
            try:
                while not run.is_over:
                    record = play_round(run)
                    run.after_round(record)
                    objective, constraint = float(record.objective[0]), float(record.constraint[0])
                    metrics[run.server.done] = MetricRecord({"objective": objective, "constraint": constraint})
            except KeyboardInterrupt:
                if not run.server.done:
                    raise
            run.save()
            self.result = run.finish()
        return FlowerResult(arrays=wire.to_record(self.result.params), train_metrics_clientapp=metrics)

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
