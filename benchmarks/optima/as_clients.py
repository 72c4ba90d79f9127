"""A known problem as one over clients: client i has the objective f_i, and every client all constraints."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

import softswitch as ss
from benchmarks.optima.known import KnownProblem


def as_clients(known: KnownProblem) -> tuple[ss.Problem, ss.ClientData]:
    """The problem and its clients, each with a single row that says which it is.

    All constraints belong to every client: the softmax over pairs is then that over the constraints alone. A problem
    without constraints has the constant −1. Precision is that of the start, float64: set ``jax_enable_x64`` first.
    """
    constraints = known.constraints

    def objective(w: Any, batch: dict[str, Any]) -> Any:
        return jnp.average(known.objectives(w)[batch["i"]], weights=batch["weight"])

    def constraint(w: Any, batch: dict[str, Any]) -> Any:
        return jnp.full(1, -1.0, w.dtype) if constraints is None else constraints(w)

    start = jnp.asarray(known.start)
    if start.dtype != jnp.float64:
        raise ValueError("jax_enable_x64 must be set: these optima are looked for in float64")
    number = np.arange(len(known.objectives(start)))
    return ss.Problem(objective, constraint, start), ss.ClientData.from_arrays({"i": number}, client=number)
