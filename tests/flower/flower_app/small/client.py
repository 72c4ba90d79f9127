"""A client with its number as optimum, and the constraint w₀ <= 2."""

import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from softswitch.flower import ClientPolicy, NumpyClient, client_app

START = {"w": np.zeros(2, np.float32)}


def objective(params, batch):
    """½‖w − x‖²."""
    difference = params["w"] - batch["x"]
    return 0.5 * np.square(difference).sum(axis=1).mean(), {"w": difference.mean(axis=0)}


def constraint(params, batch):
    """w₀ − 2."""
    return float(params["w"][0] - 2), {"w": np.array([1, 0], np.float32)}


class MarkingClient(NumpyClient):
    """Create a marker file for every report and update, so that a test can follow the round.

    If a file of that name with the prefix "hold-" exists, the client waits until the file is removed.
    """

    marks = Path()

    def report(self, params, task):
        """Report or update as usual, and mark the step."""
        values = super().report(params, task)
        self._mark(f"{self.name}-{task.round}")
        return values

    def update(self, params, task, loss):
        """Report or update as usual, and mark the step."""
        self._mark(f"{self.name}-{task.round}-update")
        return super().update(params, task, loss)

    def _mark(self, step):
        (self.marks / step).touch()
        while (self.marks / f"hold-{step}").exists():
            time.sleep(0.1)


def site(context):
    """Return the client of the site in the node's configuration."""
    number = int(context.node_config["site"])
    x = np.full((6, 2), number, np.float32) + np.arange(6, dtype=np.float32)[:, None] / 10
    client = MarkingClient(
        objective, constraint, {"x": x}, START, name=f"site-{number}", batch_size=None, held_out={"x": x}
    )
    client.marks = Path(str(context.node_config["marks"]))
    return client


app = client_app(site, replace(ClientPolicy.for_simulations(), max_rounds=100))
