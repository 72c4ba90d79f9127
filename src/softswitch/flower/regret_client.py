"""RegretClient: a client that reports its regret instead of its objective."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from softswitch.certification.lbfgs import find_minimum
from softswitch.flower.local_client import LocalOracle, Task
from softswitch.flower.messages import Arrays, Values
from softswitch.methods.messages import LocalLoss
from softswitch.support import checks

PER_ROW_METHODS = ("row_values", "held_out_values", "clipped_gradient")
"""Methods that are not forwarded: f_i* depends on rows, and a private client would not account for it."""


class RegretClient:
    """A client that reports f_i − f_i* instead of f_i, to pass to ``client_app`` in place of another client.

    The client optimum f_i* is not sent. The server minimises the largest report, so either all clients of a run report
    regrets or none. Constraints, directions and certificates (of f_i) are those of the wrapped client.

    Args:
        client: A ``JaxClient``, a ``TorchClient``, a ``NumpyClient`` or another client.
        client_optimum: The value f_i*. Default: it is computed when it is first needed, by L-BFGS from the client's
            ``start`` on its objective without constraints. This requires ``batch_size=None``. Flower creates a client
            for every message, so read ``client_optimum`` once and pass it to avoid repeated searches.
    """

    def __init__(self, client: LocalOracle, client_optimum: float | None = None) -> None:
        if not isinstance(client, LocalOracle):
            raise TypeError(f"client must have the methods of LocalOracle, but is a {type(client).__name__}")
        if getattr(client, "privacy_report", None) is not None:
            raise ValueError(f"client must not be a PrivateClient, but {client.name!r} is: f_i* would not be private")
        self._client = client
        self._given = None if client_optimum is None else checks.check_real("client_optimum", client_optimum)
        required = f"client_optimum is required for client {client.name!r}"
        if client_optimum is None and getattr(client, "domain", None) is not None:
            raise ValueError(f"{required}, because its problem has a domain; compute it with softswitch.client_optimum")
        has_exact_gradients = getattr(client, "start", None) is not None and client.gradient_rows >= client.rows
        if client_optimum is None and not has_exact_gradients:
            raise ValueError(f"{required}, unless it has a start and gradients of all rows (batch_size=None)")

    @cached_property
    def client_optimum(self) -> float:
        """The client optimum f_i*."""
        return _find_optimum(self._client) if self._given is None else self._given

    def __getattr__(self, name: str) -> Any:
        if name in PER_ROW_METHODS or name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no {name}")
        return getattr(self._client, name)

    def restrict(self, rows: np.ndarray, held_out: np.ndarray | None) -> RegretClient:
        """Return this client with the selected rows only, and with the same given f_i*, if any.

        Args:
            rows: Mask of the training rows to keep.
            held_out: Mask of the held-out rows to keep, or None for all.
        """
        return RegretClient(self._client.restrict(rows, held_out), self._given)  # type: ignore[attr-defined]

    def report(self, params: Arrays, task: Task) -> Values:
        """Return f_i − f_i* and g_i on a batch.

        Args:
            params: The parameters w_k.
            task: The settings of the round.
        """
        return self._subtract_optimum(self._client.report(params, task))

    def evaluate(self, params: Arrays) -> Values:
        """Return f_i − f_i* and g_i on all rows.

        Args:
            params: The parameters to evaluate.
        """
        return self._subtract_optimum(self._client.evaluate(params))

    def _subtract_optimum(self, values: Values) -> Values:
        return values._replace(objective=values.objective - self.client_optimum)


def _find_optimum(client: LocalOracle) -> float:
    """Return f_i*, or 0 if the client has no objective."""
    start: Arrays = client.start  # type: ignore[attr-defined]
    task = Task(round=0, seed=0, local_steps=1, step_size=0.0, switches=True)
    objective_only: Any = LocalLoss(1.0, np.zeros(client.constraints), 0.0, 0.0)  # type: ignore[arg-type]
    ends = np.cumsum([leaf.size for leaf in start.values()])

    def to_vector(arrays: Arrays) -> np.ndarray:
        return np.concatenate([np.ravel(arrays[name]) for name in start]).astype(float)

    def value_and_gradient(point: np.ndarray) -> tuple[float, np.ndarray]:
        parts = zip(start.items(), np.split(point, ends[:-1]), strict=True)
        params = {name: part.reshape(leaf.shape).astype(leaf.dtype) for (name, leaf), part in parts}
        return client.evaluate(params).objective, to_vector(client.update(params, task, objective_only))

    optimum = find_minimum(value_and_gradient, to_vector(start))
    if np.isnan(optimum):
        raise ValueError(f"client_optimum is required for client {client.name!r}: its objective is unbounded below")
    return 0.0 if optimum == -np.inf else optimum
