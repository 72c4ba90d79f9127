"""Whether a client that blocks could meet its constraint by itself."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy import optimize

from softswitch.clients.client_data import ClientData
from softswitch.clients.losses import Losses
from softswitch.clients.sampling import whole
from softswitch.problem.problem import Params, Problem, float_dtype


class Alone(NamedTuple):
    """How far a client's constraint can be brought down with no regard to any other.

    Attributes:
        smallest: the smallest value found of its largest constraint.
        settled: whether the search ended at a minimum, and not for want of steps.
    """

    smallest: float
    settled: bool


def smallest_alone(problem: Problem, clients: ClientData, index: int, params: Params, steps: int = 200) -> Alone:
    """Minimise one client's largest constraint on all of its rows, from ``params``, by L-BFGS within the domain."""
    flat, rebuild = ravel_pytree(params)
    losses = Losses(problem.objective, problem.constraint)
    width = int(clients.sizes[index])
    rows, client = clients.rows, jnp.int32(index)

    @jax.jit
    def violation(flat: jax.Array) -> jax.Array:
        here = rebuild(flat)
        if problem.domain is not None:
            here = problem.domain.project(here)
        return losses.constraints(here, rows.take(*whole(rows, client, width, float_dtype(here)))).max()

    descend = jax.jit(jax.value_and_grad(violation))

    def step(point: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = descend(point.astype(flat.dtype))
        return float(value), np.asarray(gradient, dtype=float)

    found = optimize.minimize(
        step, np.asarray(flat, dtype=float), jac=True, method="L-BFGS-B", options={"maxiter": steps}
    )
    return Alone(float(found.fun), bool(found.success))
