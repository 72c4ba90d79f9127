"""The work that all peers do: clients with rows, a model, local steps, batches."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.peers.images import mnist

HIDDEN = 64
CHANNELS = (8, 16)


@dataclass(frozen=True)
class Workload:
    """Rounds of federated averaging.

    Attributes:
        name: as the table has it.
        model: "logistic", "mlp" (a hidden layer of 64) or "cnn" (two convolutions).
        clients: n.
        participants: m, clients in a round.
        rows: of each client.
        features: of a row; nothing for images.
        steps: E, local steps.
        batch: B, rows of a step.
        step_size: of the local steps.
    """

    name: str
    model: str
    clients: int
    participants: int
    rows: int
    features: int = 0
    steps: int = 5
    batch: int = 32
    step_size: float = 0.1

    @property
    def small(self) -> Workload:
        """The same model with few clients and rows, to see whether all peers compute the same."""
        return replace(self, clients=4, participants=4, rows=40)

    def write(self, path: Path, images: Path) -> Path:
        """The work as a file for the scripts."""
        arrays = self.data(images) | {f"start.{name}": array for name, array in self.start().items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, allow_pickle=False, told=np.array(json.dumps(asdict(self))), **arrays)
        return path

    def data(self, images: Path) -> dict[str, np.ndarray]:
        """Rows of all clients, and rows to judge a model by."""
        if self.model == "cnn":
            x, y, test_x, test_y = mnist(images)
            dealt = np.random.default_rng(0).permutation(len(y))[: self.clients * self.rows]
            shape = (self.clients, self.rows)
            return {
                "x": x[dealt].reshape(*shape, 28, 28, 1),
                "y": y[dealt].reshape(shape),
                "test_x": test_x,
                "test_y": test_y,
            }
        generator = np.random.default_rng(0)
        x = generator.normal(size=(self.clients + 1, self.rows, self.features)).astype(np.float32)
        truth = generator.normal(size=self.features) / np.sqrt(self.features)
        y = (x @ truth + 0.5 * generator.normal(size=x.shape[:2]) > 0).astype(np.int32)
        return {"x": x[:-1], "y": y[:-1], "test_x": x[-1], "test_y": y[-1]}

    def start(self) -> dict[str, np.ndarray]:
        """The first parameters by name: He's initialisation."""
        generator = np.random.default_rng(1)

        def normal(inputs: int, *shape: int) -> np.ndarray:
            drawn: np.ndarray = generator.normal(size=shape) * np.sqrt(2 / inputs)
            return drawn.astype(np.float32)

        def zeros(*shape: int) -> np.ndarray:
            return np.zeros(shape, np.float32)

        if self.model == "logistic":
            return {"w": zeros(self.features)}
        if self.model == "mlp":
            return {
                "w1": normal(self.features, self.features, HIDDEN),
                "b1": zeros(HIDDEN),
                "w2": normal(HIDDEN, HIDDEN),
                "b2": zeros(),
            }
        one, two = CHANNELS
        return {
            "k1": normal(9, 3, 3, 1, one),
            "c1": zeros(one),
            "k2": normal(9 * one, 3, 3, one, two),
            "c2": zeros(two),
            "w": normal(49 * two, 49 * two, 10),
            "b": zeros(10),
        }


WORKLOADS = (
    Workload("logistic regression, n = 20, d = 30, E = 1", "logistic", 20, 20, 160, 30, steps=1),
    Workload("logistic regression, n = 20, d = 30, E = 5", "logistic", 20, 20, 160, 30),
    Workload("logistic regression, n = 100, d = 30, E = 1", "logistic", 100, 100, 160, 30, steps=1),
    Workload("logistic regression, n = 100, d = 30, E = 5", "logistic", 100, 100, 160, 30),
    Workload("logistic regression, n = 100, d = 100, E = 5", "logistic", 100, 100, 160, 100),
    Workload("network 100→64→1, n = 1,000, m = 100, E = 5", "mlp", 1000, 100, 160, 100),
    Workload("CNN on MNIST, n = 100, m = 10, E = 5", "cnn", 100, 10, 100),
)
