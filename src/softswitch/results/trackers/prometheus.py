"""A tracker for Prometheus: ``pip install 'softswitch[prometheus]'``."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from softswitch.results.callbacks import Chunk
from softswitch.results.history import ClientHistory, ClientOutcome
from softswitch.results.trackers.tracker import Tracker

try:
    from prometheus_client import CollectorRegistry, write_to_textfile
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ImportError("PrometheusTracker needs prometheus-client: pip install 'softswitch[prometheus]'") from error

SUFFIX = ".prom"  # the suffix of the files that the textfile collector reads
METRICS = {
    "round": "Number of completed rounds.",
    "rounds": "Maximum number of rounds.",
    "objective": "Objective of the worst participant in the last round, as reported.",
    "constraint": "Constraint of the worst participant in the last round, as reported.",
    "feasible_share": "Share of feasible rounds among those that are not void.",
    "void_rounds_total": "Number of rounds that changed nothing because too few clients completed them.",
    "clients_counted": "Number of clients that completed the last round.",
    "clients_lost": "Number of participants that did not complete the last round.",
    "clients_lost_total": "Number of participants that did not complete their round, over all rounds.",
    "epsilon": "Largest epsilon that any client reports to have spent.",
    "run_seconds": "Seconds since the run began.",
    "updated_timestamp_seconds": "Time of this file in seconds since 1970.",
    "running": "1 during the run, 0 after its end.",
}
"""Descriptions of the metrics, whose names begin with softswitch_."""


class PrometheusTracker(Tracker, Collector):
    """Writes metrics to a file for Prometheus after every chunk of rounds (over Flower, after every round).

    The node exporter's textfile collector reads the file, so that no port is open. The file is written atomically.
    The number of lost clients is known only over Flower.

    Args:
        file: The file, with the suffix .prom. Its folder is created if it does not exist. A file of an earlier run is
            overwritten.
        run: The label ``run`` of every metric.
    """

    def __init__(self, file: str | Path, *, run: str = "softswitch") -> None:
        self._file, self._run = Path(file), run
        if self._file.suffix != SUFFIX:
            raise ValueError(f"file must end in {SUFFIX}, which the textfile collector reads, but is {str(file)!r}")
        self._values: dict[str, float] = {}
        self._void = self._lost = 0
        self._epsilon = math.nan
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def __call__(self, chunk: Chunk) -> None:
        """Write the progress of the run."""
        history, clients = chunk.history, chunk.history.per_client
        self._void += int(history.void.sum())
        self._values = {
            "round": chunk.round,
            "rounds": chunk.rounds,
            "objective": float(history.objective[-1]),
            "constraint": float(history.constraint[-1]),
            "feasible_share": chunk.switch_share,
            "void_rounds_total": self._void,
            "run_seconds": chunk.seconds,
            "running": 1.0,
        }
        if clients is not None:
            self._add_clients(clients)
        self._write()

    def close(self) -> None:
        """Write that the run has ended."""
        self._values["running"] = 0.0
        self._write()

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Yield the metrics with a value, for the registry."""
        for name, description in METRICS.items():
            if name in self._values:
                family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
                metric = family(f"softswitch_{name}", description, labels=["run"])
                metric.add_metric([self._run], self._values[name])
                yield metric

    def _add_clients(self, clients: ClientHistory) -> None:
        if clients.outcomes is not None:
            completed = np.isin(clients.outcomes, (ClientOutcome.COUNTED, ClientOutcome.VOID))
            lost = (clients.outcomes != ClientOutcome.EMPTY) & ~completed
            self._lost += int(lost.sum())
            self._values |= {
                "clients_counted": int(completed[-1].sum()),
                "clients_lost": int(lost[-1].sum()),
                "clients_lost_total": self._lost,
            }
        if clients.epsilon is not None:
            self._epsilon = float(np.fmax(self._epsilon, np.nanmax(clients.epsilon)))
        if not math.isnan(self._epsilon):
            self._values["epsilon"] = self._epsilon

    def _write(self) -> None:
        self._values["updated_timestamp_seconds"] = time.time()
        self._file.parent.mkdir(parents=True, exist_ok=True)
        write_to_textfile(str(self._file), self._registry)
