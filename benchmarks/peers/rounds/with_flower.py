"""Flower's simulation under Ray, a worker on each core: its own FedAvg strategy with clients in PyTorch.

Seconds are those of the rounds; the start of Ray and the first rounds, in which workers
import and read, are not counted.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from flower_client import WHOLE, WORK, app
from serve import Arrays, Watch, Work, serve, versions

WARM = 2
"""Rounds that are not counted."""


class Timed(FedAvg):
    """Notes when each round ends."""

    def __init__(self, share: float, least: int) -> None:
        super().__init__(fraction_train=share, fraction_evaluate=0.0, min_train_nodes=least, min_available_nodes=least)
        self.ended: list[float] = []

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        """As it is, and the time."""
        answer = super().aggregate_train(server_round, replies)
        self.ended.append(time.perf_counter())
        return answer


class Flower:
    """One simulation for each order: Ray starts anew, which is not counted."""

    def __init__(self, work: Work, how: str) -> None:
        self.versions = versions("flwr", "ray", "torch")
        self.work = work
        os.environ[WORK] = os.path.abspath(sys.argv[1])
        logging.getLogger("flwr").setLevel(logging.ERROR)

    def predict(self, params: Any, x: np.ndarray) -> np.ndarray:
        """Not asked for: no race is run with Flower."""
        raise NotImplementedError

    def train(self, rounds: int, whole: bool, seed: int, watch: Watch | None, every: int) -> tuple[Arrays, float]:
        """``run_simulation``."""
        work, warm = self.work, 0 if whole else WARM
        least = work.clients if whole else work.participants
        strategy = Timed(least / work.clients, least)
        found: dict[str, Any] = {}
        server = ServerApp()

        @server.main()
        def main(grid: Grid, context: Context) -> None:
            arrays = ArrayRecord({name: Array(array) for name, array in work.start.items()})
            told = ConfigRecord({WHOLE: whole})
            found["result"] = strategy.start(grid, arrays, rounds + warm, train_config=told)

        cores = len(os.sched_getaffinity(0))
        run_simulation(
            server,
            app,
            work.clients,
            backend_config={
                "init_args": {"num_cpus": cores, "include_dashboard": False},
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            },
        )
        last = {name: array.numpy() for name, array in found["result"].arrays.items()}
        seconds = strategy.ended[-1] - strategy.ended[warm - 1] if warm else 0.0
        return last, seconds


if __name__ == "__main__":
    serve(Flower)
