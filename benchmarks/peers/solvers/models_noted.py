"""What the scripts have in common: a case from a file, and models with the seconds that they took, into another.

Only NumPy is imported here: the file is used under every peer's Python.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np


class CaseFile:
    """A case as arrays.

    Attributes:
        name: of the case.
        x: features, the constant last.
        y: labels.
        tolerance: the bound on every constraint.
        objectives: client, row and weight of each share in a client's objective, a mean of the logistic loss.
        constraints: the same of constraints, means of the loss or differences of mean probabilities.
        of_loss: whether constraints are means of the loss.
        both_sides: whether the absolute value of a constraint is bounded.
        seconds: how long a method that goes on for ever is given.
    """

    def __init__(self, path: str) -> None:
        with np.load(path) as file:
            self.x, self.y = file["x"], file["y"]
            self.tolerance, self.seconds = float(file["tolerance"]), float(file["seconds"])
            self.of_loss, self.both_sides = bool(file["of_loss"]), bool(file["both_sides"])
            self.objectives = [file[f"objectives.{part}"] for part in ("mean", "row", "weight")]
            self.constraints = [file[f"constraints.{part}"] for part in ("mean", "row", "weight")]
            self.name = str(file["name"])


class Trace:
    """Models on the way, by setting, with the seconds since the setting's run began; noting them is off the clock."""

    def __init__(self) -> None:
        self.settings: list[str] = []
        self._rows: list[tuple[int, float, float]] = []
        self._models: list[np.ndarray] = []

    def begin(self, setting: str) -> None:
        """Another run."""
        self.settings.append(setting)
        self._began, self._left_out = time.perf_counter(), 0.0
        self._processor_began, self._processor_left_out = time.process_time(), 0.0

    @property
    def seconds(self) -> float:
        """Since the run began."""
        return time.perf_counter() - self._began - self._left_out

    def note(self, model: Callable[[], np.ndarray]) -> None:
        """The model as it is now: its parameters, or the scores of all rows."""
        seconds, began, processor_began = self.seconds, time.perf_counter(), time.process_time()
        processor = processor_began - self._processor_began - self._processor_left_out
        self._models.append(np.asarray(model(), float))
        self._rows.append((len(self.settings) - 1, seconds, processor))
        self._left_out += time.perf_counter() - began
        self._processor_left_out += time.process_time() - processor_began

    def save(self, path: str) -> None:
        """Into a file."""
        np.savez(
            path,
            settings=np.array(self.settings),
            setting=np.array([row[0] for row in self._rows], int),
            seconds=np.array([row[1] for row in self._rows]),
            processor=np.array([row[2] for row in self._rows]),
            models=np.array(self._models),
        )


def solve(method: Callable[[CaseFile, Trace], None]) -> None:
    """Run a script's method on the case that the command line names."""
    trace = Trace()
    method(CaseFile(sys.argv[1]), trace)
    trace.save(sys.argv[2])
