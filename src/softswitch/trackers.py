"""Trackers: callbacks that write the metrics of a run, once per chunk of rounds.

    ss.solve(problem, clients, method, logging=ss.Logging(callbacks=[CSVTracker("progress.csv")]))

TensorBoard, MLflow and Prometheus need extras. A tracker is closed by ``with`` or ``close()``.
"""

from softswitch.results.trackers import CSVTracker as CSVTracker
from softswitch.results.trackers import MLflowTracker as MLflowTracker
from softswitch.results.trackers import PrometheusTracker as PrometheusTracker
from softswitch.results.trackers import TensorBoardTracker as TensorBoardTracker

__all__ = ["CSVTracker", "MLflowTracker", "PrometheusTracker", "TensorBoardTracker"]
