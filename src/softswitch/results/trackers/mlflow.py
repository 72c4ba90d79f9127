"""A tracker for MLflow: ``pip install 'softswitch[mlflow]'``."""

from __future__ import annotations

import math
import time
from typing import Any

from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient

from softswitch.results.callbacks import Chunk
from softswitch.results.trackers.tracker import Tracker, evaluated_values, sampled_values

MAX_BATCH = 1000  # MLflow's limit


class MLflowTracker(Tracker):
    """Logs a new MLflow run: settings as parameters, reports and evaluations as metrics.

    Args:
        experiment: Name of the experiment. It is created if it does not exist.
        settings: Parameters to log.
        tracking_uri: Tracking URI. Default: MLflow's setting.
        every: Number of rounds from one logged round to the next.
    """

    def __init__(
        self,
        experiment: str = "softswitch",
        *,
        settings: dict[str, Any] | None = None,
        tracking_uri: str | None = None,
        every: int = 1,
    ) -> None:
        self._client, self._every = MlflowClient(tracking_uri=tracking_uri), every
        known = self._client.get_experiment_by_name(experiment)
        experiment_id = self._client.create_experiment(experiment) if known is None else known.experiment_id
        self.run_id: str = self._client.create_run(experiment_id).info.run_id
        params = [Param(name, str(value)) for name, value in (settings or {}).items()]
        self._client.log_batch(self.run_id, params=params)

    def __call__(self, chunk: Chunk) -> None:
        """Log a chunk of rounds."""
        now = int(time.time() * 1000)
        points = [
            (k, f"sampled_{name}", value)
            for k, values in sampled_values(chunk)
            if k % self._every == 0
            for name, value in values.items()
        ]
        points += [(k, name, value) for k, values in evaluated_values(chunk) for name, value in values.items()]
        metrics = [Metric(name, value, now, k) for k, name, value in points if math.isfinite(value)]
        for first in range(0, len(metrics), MAX_BATCH):
            self._client.log_batch(self.run_id, metrics=metrics[first : first + MAX_BATCH])

    def close(self) -> None:
        """End the MLflow run."""
        self._client.set_terminated(self.run_id)
