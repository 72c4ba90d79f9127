"""A site: its optimum is its number, and w may not go beyond 2."""

import time
from pathlib import Path

import numpy as np

from softswitch.flower import ClientPolicy, NumpyClient, client_app

START = {"w": np.zeros(2, np.float32)}


def objective(params, batch):
    """½‖w − x‖²."""
    apart = params["w"] - batch["x"]
    return 0.5 * np.square(apart).sum(axis=1).mean(), {"w": apart.mean(axis=0)}


def constraint(params, batch):
    """w₀ − 2."""
    return float(params["w"][0] - 2), {"w": np.array([1, 0], np.float32)}


class Marking(NumpyClient):
    """Leaves a file for every report and update, so that a test knows where a round stands.

    Where a test has put a file of that name with "hold-" before it, it waits until that is gone.
    """

    marks = Path()

    def report(self, params, task):
        """As ever."""
        values = super().report(params, task)
        self._reached(f"{self.name}-{task.round}")
        return values

    def update(self, params, task, loss):
        """As ever."""
        self._reached(f"{self.name}-{task.round}-update")
        return super().update(params, task, loss)

    def _reached(self, where):
        (self.marks / where).touch()
        while (self.marks / f"hold-{where}").exists():
            time.sleep(0.1)


def site(context):
    """The site that the node's config names."""
    number = int(context.node_config["site"])
    x = np.full((6, 2), number, np.float32) + np.arange(6, dtype=np.float32)[:, None] / 10
    client = Marking(objective, constraint, {"x": x}, START, name=f"site-{number}", batch_size=None, held_out={"x": x})
    client.marks = Path(str(context.node_config["marks"]))
    return client


app = client_app(site, ClientPolicy.for_simulations())
