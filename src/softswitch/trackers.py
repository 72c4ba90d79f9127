"""Trackers: callbacks that write the numbers of a run, once per chunk of rounds.

    ss.solve(problem, clients, method, callbacks=[CSVTracker("progress.csv")])

TensorBoard, MLflow and Prometheus need extras. A tracker is closed by ``with`` or ``close()``.
"""

from typing import TYPE_CHECKING

from softswitch.support.startup import lazy_attributes

if TYPE_CHECKING:
    from softswitch.results.trackers.csv_file import CSVTracker as CSVTracker
    from softswitch.results.trackers.mlflow import MLflowTracker as MLflowTracker
    from softswitch.results.trackers.prometheus import PrometheusTracker as PrometheusTracker
    from softswitch.results.trackers.tensorboard import TensorBoardTracker as TensorBoardTracker

_MODULES = {
    "CSVTracker": "results.trackers.csv_file",
    "MLflowTracker": "results.trackers.mlflow",
    "PrometheusTracker": "results.trackers.prometheus",
    "TensorBoardTracker": "results.trackers.tensorboard",
}


__all__ = list(_MODULES)
__getattr__, __dir__ = lazy_attributes(__name__, _MODULES)
