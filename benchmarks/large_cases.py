"""Large problems for an accelerator: many clients of a few rows each, a network, a gap between two groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import softswitch as ss

BLOCK = 1 << 16
"""Rows, after which they repeat."""


@dataclass(frozen=True)
class Case:
    """One line of the table.

    Attributes:
        clients: n.
        rows: of each.
        asked: m, clients a round.
        batch: B, rows a client draws, for its report and for each gradient.
        local_steps: E.
        features: columns of x.
        hidden: width of the one hidden layer; 0: logistic regression.
    """

    clients: int
    rows: int
    asked: int
    batch: int
    local_steps: int
    features: int = 100
    hidden: int = 64

    alpha = 50.0
    step = 0.05
    tolerance = 0.3

    @property
    def name(self) -> str:
        """For the table."""
        model = f"{self.features}→{self.hidden}→1" if self.hidden else f"{self.features}→1"
        return f"{self.clients:,} × {self.rows}, {self.asked:,}, {self.batch}, {self.local_steps}, {model}"

    @property
    def parameters(self) -> int:
        """d."""
        return self.hidden * (self.features + 2) + 1 if self.hidden else self.features + 1

    @property
    def least_bytes(self) -> float:
        """What a round must move at least.

        Each drawn row is read, written side by side and read again; where E > 1 each client's iterate and gradient are
        written and read again in each step.
        """
        rows = self.asked * self.batch * (1 + self.local_steps) * 4.0 * (self.features + 2)
        iterates = 0 if self.local_steps == 1 else 4 * self.asked * self.local_steps * 4.0 * self.parameters
        return 3 * rows + iterates

    def start(self) -> Any:
        """w_0."""
        key = jax.random.key(0)
        if not self.hidden:
            return {"v": jnp.zeros(self.features), "c": jnp.zeros(())}
        first = jax.random.normal(key, (self.features, self.hidden)) / np.sqrt(self.features)
        return {"w": first, "b": jnp.zeros(self.hidden), "v": jnp.full((self.hidden,), 0.01), "c": jnp.zeros(())}

    def columns(self) -> dict[str, np.ndarray]:
        """The rows; they repeat, since what is measured does not depend on their values."""
        total, block = self.clients * self.rows, self._block()
        whole = {key: np.empty((total, *part.shape[1:]), np.float32) for key, part in block.items()}
        for first in range(0, total, BLOCK):
            for key, part in block.items():
                whole[key][first : first + BLOCK] = part[: total - first]
        return whole

    def jax_columns(self) -> dict[str, jax.Array]:
        """The same, made where JAX computes."""
        total = self.clients * self.rows
        repeated = jax.jit(lambda part: part[jnp.arange(total, dtype=jnp.int32) % len(part)])
        return {key: repeated(part) for key, part in self._block().items()}

    def _block(self) -> dict[str, np.ndarray]:
        generator = np.random.default_rng(0)
        x = generator.standard_normal((BLOCK, self.features), dtype=np.float32)
        group = generator.integers(0, 2, BLOCK).astype(np.float32)
        y = (x[:, 0] + 0.5 * group + generator.standard_normal(BLOCK, dtype=np.float32) > 0).astype(np.float32)
        return {"x": x, "y": y, "group": group}

    def owners(self) -> np.ndarray:
        """Whose row each is."""
        return np.repeat(np.arange(self.clients, dtype=np.int32), self.rows)

    def problem(self) -> ss.Problem:
        """What is solved."""
        return ss.Problem(objective, constraint, self.start())

    def method(self) -> ss.SoftmaxSGM:
        """With fixed settings."""
        return ss.SoftmaxSGM(
            alpha=self.alpha, step_size=self.step, local_step_size=self.step, tolerance=self.tolerance, slack=10.0
        )


CASES = (
    Case(10_000, 64, 10_000, 32, 1),
    Case(100_000, 32, 10_000, 32, 5),
    Case(1_000_000, 16, 20_000, 16, 5),
    Case(1_000, 64, 100, 32, 5, 1000, 1000),
)
LOGISTIC = Case(20_000_000, 16, 20_000, 16, 1, 32, 0)


def score(w: Any, x: jax.Array) -> jax.Array:
    """The network's output for each row."""
    if "w" in w:
        x = jax.nn.relu(x @ w["w"] + w["b"])
    return x @ w["v"] + w["c"]


def objective(w: Any, batch: dict[str, jax.Array]) -> jax.Array:
    """The logistic loss."""
    z = score(w, batch["x"])
    return jnp.dot(batch["weight"], jax.nn.softplus(z) - batch["y"] * z)


def constraint(w: Any, batch: dict[str, jax.Array]) -> jax.Array:
    """By how much the mean score of one group is above that of the other."""
    z, group, weight = jax.nn.sigmoid(score(w, batch["x"])), batch["group"], batch["weight"]
    first, second = weight * group, weight * (1 - group)
    means = [jnp.dot(part, z) / jnp.maximum(part.sum(), 1e-6) for part in (first, second)]
    return jnp.abs(means[0] - means[1])
