"""A client that tells its regret: f_i less its own best, which nobody else learns."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from softswitch.certification.lbfgs import find_minimum
from softswitch.flower.local_client import LocalOracle, Task
from softswitch.flower.messages import Arrays, Values
from softswitch.methods.messages import LocalLoss
from softswitch.support import checks

OF_ROWS = ("row_values", "held_out_values", "clipped_gradient")
"""What a private client asks for: it is not passed on, since f_i* tells of rows and is not counted."""


class RegretClient:
    """A client that reports f_i − f_i* in place of f_i; for ``client_app``, in place of the client itself.

    Its own best is a number that stays with it. The server minimises the largest of what it is told: let all clients
    of a run tell regrets, or none. Constraints, directions and certificates (of f_i itself) are the client's as ever.

    Args:
        client: a ``JaxClient``, a ``TorchClient``, a ``NumpyClient`` or one of your own.
        client_optimum: f_i*, known to its owner. None: it is found when it is first needed, by L-BFGS from the client's
            ``start``, with regard to its objective alone; for clients whose gradients are of all rows
            (``batch_size=None``). Flower makes a client anew for every message: look at ``client_optimum`` once,
            write the number down and give it, and nothing is looked for again.
    """

    def __init__(self, client: LocalOracle, client_optimum: float | None = None) -> None:
        if not isinstance(client, LocalOracle):
            raise TypeError(f"client must have the methods of LocalOracle, but {type(client).__name__} has not")
        if getattr(client, "privacy_report", None) is not None:
            raise ValueError(f"client {client.name!r} keeps its rows private: f_i* tells of rows, and is not counted")
        self._client = client
        self._given = None if client_optimum is None else checks.real_number("client_optimum", client_optimum)
        if client_optimum is None:
            check_findable(client)

    @cached_property
    def client_optimum(self) -> float:
        """f_i*."""
        return found(self._client) if self._given is None else self._given

    def __getattr__(self, name: str) -> Any:
        if name in OF_ROWS or name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no {name}")
        return getattr(self._client, name)

    def only(self, rows: np.ndarray, held_out: np.ndarray | None) -> RegretClient:
        """The same client with some of its rows; by the f_i* that was given, or that of these rows.

        Args:
            rows: which of those to train on,
            held_out: and which of those held out; None: all.
        """
        return RegretClient(self._client.only(rows, held_out), self._given)  # type: ignore[attr-defined]

    def report(self, params: Arrays, task: Task) -> Values:
        """f_i − f_i* and g_i on a batch.

        Args:
            params: w_k.
            task: of the round.
        """
        return self._less(self._client.report(params, task))

    def evaluate(self, params: Arrays) -> Values:
        """The same on all rows.

        Args:
            params: to be judged.
        """
        return self._less(self._client.evaluate(params))

    def _less(self, told: Values) -> Values:
        return told._replace(objective=told.objective - self.client_optimum)


def check_findable(client: LocalOracle) -> None:
    """Raise where a client's own best cannot be found."""
    if getattr(client, "domain", None) is not None:
        raise ValueError(
            f"client_optimum must be given for client {client.name!r}: its problem has a domain, and at a client "
            "f_i* is looked for without one; softswitch.client_optimum finds it within"
        )
    if getattr(client, "start", None) is None or client.gradient_rows < client.rows:
        raise ValueError(
            f"client_optimum must be given for client {client.name!r}: to find it takes a start and gradients of "
            "all rows (batch_size=None)"
        )


def found(client: LocalOracle) -> float:
    """f_i* of a client whose gradients are of all rows; 0 where it has no objective."""
    start: Arrays = client.start  # type: ignore[attr-defined]
    plain = Task(round=0, seed=0, local_steps=1, step_size=0.0, switches=True)
    alone: Any = LocalLoss(1.0, np.zeros(client.constraints), 0.0, 0.0)  # type: ignore[arg-type]
    ends = np.cumsum([leaf.size for leaf in start.values()])

    def look(point: np.ndarray) -> tuple[float, np.ndarray]:
        parts = np.split(point, ends[:-1])
        here = {
            name: part.reshape(leaf.shape).astype(leaf.dtype)
            for (name, leaf), part in zip(start.items(), parts, strict=True)
        }
        slope = client.update(here, plain, alone)
        return client.evaluate(here).objective, np.concatenate([np.ravel(slope[name]) for name in start]).astype(float)

    best = find_minimum(look, np.concatenate([np.ravel(leaf) for leaf in start.values()]).astype(float))
    if np.isnan(best):
        raise ValueError(
            f"client_optimum must be given for client {client.name!r}: its objective has no smallest value"
        )
    return 0.0 if best == -np.inf else best
