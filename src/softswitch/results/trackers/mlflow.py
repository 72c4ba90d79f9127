"""A run's rounds for MLflow: ``pip install 'softswitch[mlflow]'``."""

from __future__ import annotations

import math
import time
from types import TracebackType
from typing import Any

from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient

from softswitch.results.callbacks import Chunk
from softswitch.results.trackers.numbers import on_all_data, sampled

MOST_AT_ONCE = 1000  # MLflow's limit for a batch


class MLflowTracker:
    """Logs into a new MLflow run: its settings as parameters, reports and evaluations as metrics.

    Args:
        experiment: the experiment's name; made if need be.
        settings: what to log as parameters.
        tracking_uri: where; by default what MLflow is set to.
        every: a point every so many rounds, for long runs.
    """

    def __init__(
        self,
        experiment: str = "softswitch",
        *,
        settings: dict[str, Any] | None = None,
        tracking_uri: str | None = None,
        every: int = 1,
    ) -> None:
        self._client = MlflowClient(tracking_uri=tracking_uri)
        found = self._client.get_experiment_by_name(experiment)
        number = self._client.create_experiment(experiment) if found is None else found.experiment_id
        self._every = every
        self.run_id: str = self._client.create_run(number).info.run_id
        params = [Param(name, str(value)) for name, value in (settings or {}).items()]
        self._client.log_batch(self.run_id, params=params)

    def __call__(self, chunk: Chunk) -> None:
        """Log a chunk."""
        now = int(time.time() * 1000)
        points = [
            (k, f"sampled_{name}", v)
            for k, values in sampled(chunk)
            if k % self._every == 0
            for name, v in values.items()
        ]
        points += [(k, name, v) for k, values in on_all_data(chunk) for name, v in values.items()]
        metrics = [Metric(name, value, now, k) for k, name, value in points if math.isfinite(value)]
        for first in range(0, len(metrics), MOST_AT_ONCE):
            self._client.log_batch(self.run_id, metrics=metrics[first : first + MOST_AT_ONCE])

    def close(self) -> None:
        """End the MLflow run."""
        self._client.set_terminated(self.run_id)

    def __enter__(self) -> MLflowTracker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
