"""Trackers: callbacks that write a run's numbers down while it goes on, once a chunk of rounds.

    ss.solve(problem, clients, rule, callbacks=[CSVTracker("progress.csv")])

One file each; TensorBoard and MLflow are extras. A tracker is closed by ``with`` or ``close()``.
"""

from softswitch.trackers.csv_file import CSVTracker

__all__ = ["CSVTracker", "MLflowTracker", "TensorBoardTracker"]


def __getattr__(name: str) -> object:
    """The other two are imported where they are asked for: what they need may not be installed."""
    if name == "TensorBoardTracker":
        from softswitch.trackers.tensorboard import TensorBoardTracker

        return TensorBoardTracker
    if name == "MLflowTracker":
        from softswitch.trackers.mlflow import MLflowTracker

        return MLflowTracker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
