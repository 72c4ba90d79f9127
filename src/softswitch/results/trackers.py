"""Trackers: callbacks that write the values of each round, for a file or a program of the user."""

from __future__ import annotations

import csv
import math
import time
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from softswitch.results.callbacks import Chunk
from softswitch.results.history import ClientOutcome
from softswitch.support.files import write_atomically

SAMPLED = ("objective", "constraint", "criterion", "feasible")  # values of every round
SUMMARY = ("objective", "constraint", "mean_objective", "mean_constraint")  # values of rounds with an evaluation
MAX_BATCH = 1000  # MLflow's limit of metrics in one request
SUFFIX = ".prom"  # the suffix of the files that Prometheus's textfile collector reads


class Tracker(AbstractContextManager["Tracker"]):
    """Base of callbacks that write the values of a run. As a context manager, a tracker closes itself at the end."""

    @abstractmethod
    def __call__(self, chunk: Chunk) -> None:
        """Write the rounds of a chunk."""

    @abstractmethod
    def close(self) -> None:
        """Write what is pending and release files and connections."""

    def __exit__(self, *error: object) -> None:
        self.close()


@contextmanager
def _name_extra(tracker: str, extra: str) -> Iterator[None]:
    """Add the command that installs the missing package to an ImportError in the ``with`` block."""
    try:
        yield
    except ImportError as error:
        raise ImportError(f"{tracker} needs another package: pip install 'softswitch[{extra}]'") from error


def _read_chunk(chunk: Chunk) -> Iterator[tuple[int, str, dict[str, float]]]:
    """Yield (round, part, values by name): part "sampled" for every round, "train" and "held_out" if evaluated."""
    history, first = chunk.history, chunk.round - len(chunk.history)
    for k in range(len(history)):
        yield first + k, "sampled", {name: float(getattr(history, name)[k]) for name in SAMPLED}
    for part, summary in (("train", history.full), ("held_out", history.held_out)):
        for i, k in enumerate(history.full_rounds.tolist() if summary is not None else ()):
            yield k, part, {name: float(getattr(summary, name)[i]) for name in SUMMARY}


class CSVTracker(Tracker):
    """Write one CSV line per round: the sampled values and, in rounds with an evaluation, the values on all data.

    Args:
        file: The CSV file, which must not exist. Its folder is created if it does not exist.
    """

    def __init__(self, file: str | Path) -> None:
        path = Path(file)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._stream = path.open("x", newline="", encoding="utf-8")
        except FileExistsError as error:
            raise ValueError(f"file must not exist, but {path} does; use a new file for each run") from error
        evaluated = (f"{part}_{name}" for part in ("train", "held_out") for name in SUMMARY)
        self._writer = csv.DictWriter(self._stream, ("round", *SAMPLED, *evaluated))
        self._writer.writeheader()

    def __call__(self, chunk: Chunk) -> None:
        """Write the rounds of a chunk, and flush."""
        lines: dict[int, dict[str, float]] = {}
        for k, part, values in _read_chunk(chunk):
            prefix = "" if part == "sampled" else f"{part}_"
            lines.setdefault(k, {"round": k}).update({f"{prefix}{name}": value for name, value in values.items()})
        self._writer.writerows(lines.values())
        self._stream.flush()

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


class TensorBoardTracker(Tracker):
    """Write TensorBoard scalars: ``sampled/…`` in every round, ``train/…`` and ``held_out/…`` if evaluated on all data.

    Args:
        folder: TensorBoard's log directory. It is created if it does not exist.
    """

    def __init__(self, folder: str | Path) -> None:
        with _name_extra("TensorBoardTracker", "tensorboard"):
            from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(str(folder))

    def __call__(self, chunk: Chunk) -> None:
        """Write the rounds of a chunk, and flush."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        for k, part, values in _read_chunk(chunk):
            scalars: list[Any] = [Summary.Value(tag=f"{part}/{n}", simple_value=value) for n, value in values.items()]
            self._writer.add_event(Event(step=k, summary=Summary(value=scalars)))
        self._writer.flush()

    def close(self) -> None:
        """Flush and close the event file."""
        self._writer.close()


class MLflowTracker(Tracker):
    """Log to a new MLflow run: settings as parameters, the values of each round as metrics.

    As a context manager, the tracker marks the MLflow run as failed if the block ends with an exception.

    Args:
        experiment: Name of the experiment, which is created if it does not exist. Default: "softswitch".
        settings: Parameters of the MLflow run by name; values are logged as text. Default: none.
        tracking_uri: Tracking URI. Default: MLflow's setting.
    """

    def __init__(
        self, experiment: str = "softswitch", *, settings: dict[str, Any] | None = None, tracking_uri: str | None = None
    ) -> None:
        with _name_extra("MLflowTracker", "mlflow"):
            from mlflow.entities import Param
            from mlflow.tracking import MlflowClient

        self._client = MlflowClient(tracking_uri=tracking_uri)
        known = self._client.get_experiment_by_name(experiment)
        experiment_id = self._client.create_experiment(experiment) if known is None else known.experiment_id
        self.run_id: str = self._client.create_run(experiment_id).info.run_id
        params = [Param(name, str(value)) for name, value in (settings or {}).items()]
        self._client.log_batch(self.run_id, params=params)

    def __call__(self, chunk: Chunk) -> None:
        """Log the rounds of a chunk; values that are not finite are omitted."""
        from mlflow.entities import Metric

        now, parts = int(time.time() * 1000), _read_chunk(chunk)
        points = [(k, f"{part}_{name}", value) for k, part, values in parts for name, value in values.items()]
        metrics = [Metric(name, value, now, k) for k, name, value in points if math.isfinite(value)]
        for first in range(0, len(metrics), MAX_BATCH):
            self._client.log_batch(self.run_id, metrics=metrics[first : first + MAX_BATCH])

    def close(self) -> None:
        """End the MLflow run as finished."""
        self._client.set_terminated(self.run_id)

    def __exit__(self, *error: object) -> None:
        self._client.set_terminated(self.run_id, "FAILED" if any(error) else None)


class PrometheusTracker(Tracker):
    """Write metrics to a file for Prometheus after every chunk of rounds (over Flower, after every round).

    The node exporter's textfile collector reads the file, so that no port is open. The file is written atomically.
    The number of lost clients is known only over Flower.

    Args:
        file: The file, with the suffix .prom. Its folder is created if it does not exist. A file of an earlier run is
            overwritten.
        run: Value of the label ``run`` of every metric. Default: "softswitch".
    """

    def __init__(self, file: str | Path, *, run: str = "softswitch") -> None:
        with _name_extra("PrometheusTracker", "prometheus"):
            from prometheus_client import CollectorRegistry
        self._file, self._run = Path(file), run
        if self._file.suffix != SUFFIX:
            raise ValueError(f"file must end in {SUFFIX}, which the textfile collector reads, but is {str(file)!r}")
        self._values: dict[str, float] = {}
        self._registry: Any = CollectorRegistry()
        self._registry.register(self)

    def __call__(self, chunk: Chunk) -> None:
        """Write the values of the chunk's last round and the totals of the run so far."""
        history, clients = chunk.history, chunk.history.per_client
        self._values |= {
            "round": chunk.round,
            "rounds": chunk.rounds,
            "objective": float(history.objective[-1]),
            "constraint": float(history.constraint[-1]),
            "feasible_share": chunk.switch_share,
            "void_rounds_total": self._values.get("void_rounds_total", 0) + int(history.void.sum()),
            "run_seconds": chunk.seconds,
            "running": 1.0,
        }
        if clients is not None and clients.outcomes is not None:
            completed = np.isin(clients.outcomes, (ClientOutcome.COUNTED, ClientOutcome.VOID))
            lost = (clients.outcomes != ClientOutcome.EMPTY) & ~completed
            self._values |= {
                "clients_counted": int(completed[-1].sum()),
                "clients_lost": int(lost[-1].sum()),
                "clients_lost_total": self._values.get("clients_lost_total", 0) + int(lost.sum()),
            }
        if clients is not None and clients.epsilon is not None and not np.isnan(clients.epsilon).all():
            self._values["epsilon"] = max(self._values.get("epsilon", 0.0), float(np.nanmax(clients.epsilon)))
        self._write()

    def close(self) -> None:
        """Write ``softswitch_running`` 0, for a run that has ended."""
        self._values["running"] = 0.0
        self._write()

    def collect(self) -> Iterator[Any]:
        """Yield a Prometheus metric family for each value. The registry calls it when it writes the file."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for name, value in self._values.items():
            family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            metric = family(f"softswitch_{name}", name.replace("_", " "), labels=["run"])
            metric.add_metric([self._run], value)
            yield metric

    def _write(self) -> None:
        from prometheus_client import generate_latest

        self._values["updated_timestamp_seconds"] = time.time()
        self._file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._file, generate_latest(self._registry), durable=False)
