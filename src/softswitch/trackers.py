"""Trackers: callbacks that write a run's numbers down while it goes on, once a chunk of rounds.

    ss.solve(problem, clients, rule, callbacks=[CSVTracker("progress.csv")])

One file each; TensorBoard and MLflow are extras. A tracker is closed by ``with`` or ``close()``.
"""

from typing import TYPE_CHECKING

from softswitch.support.lazy import on_first_use

if TYPE_CHECKING:
    from softswitch.runs.trackers.csv_file import CSVTracker as CSVTracker
    from softswitch.runs.trackers.mlflow import MLflowTracker as MLflowTracker
    from softswitch.runs.trackers.prometheus import PrometheusTracker as PrometheusTracker
    from softswitch.runs.trackers.tensorboard import TensorBoardTracker as TensorBoardTracker

_PLACES = {
    "CSVTracker": "runs.trackers.csv_file",
    "MLflowTracker": "runs.trackers.mlflow",
    "PrometheusTracker": "runs.trackers.prometheus",
    "TensorBoardTracker": "runs.trackers.tensorboard",
}
"""Where each name lives."""

__all__ = list(_PLACES)
__getattr__, __dir__ = on_first_use(__name__, _PLACES)
