"""Whether a client that blocks could meet its constraint by itself."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy import optimize

from softswitch.clients.client_data import ClientData, Rows
from softswitch.clients.losses import Losses
from softswitch.clients.sampling import whole
from softswitch.problem.domains import Domain, as_argument
from softswitch.problem.parameters import Params, float_dtype
from softswitch.problem.problem import Problem

MOST_STEPS = 200
"""The search for a client's smallest constraint takes at most so many steps;"""
FEWEST_STEPS = 10
"""fewer would tell nothing."""


class Alone(NamedTuple):
    """How far a client's constraint can be brought down with no regard to any other.

    Attributes:
        smallest: the smallest value found of its largest constraint, of the constraint itself where it has a stand-in.
        settled: whether the search ended at a minimum, and not for want of steps.
    """

    smallest: float
    settled: bool


class _Enough(Exception):  # noqa: N818
    """The search has taken all its steps."""


def smallest_alone(
    problem: Problem, clients: ClientData, index: int, params: Params, row_gradients: int
) -> Alone | None:
    """Minimise one client's largest constraint on all of its rows, from ``params``, by L-BFGS within the domain.

    With a stand-in for the constraint that one is minimised, and the smallest constraint on the way is told.

    It is a look aside, and does not cost more than the run that led to it: gradients are taken of at most
    ``row_gradients`` rows in all, in at most ``MOST_STEPS`` steps. None where that is not enough for a look.
    """
    size = int(clients.sizes[index])
    steps = min(MOST_STEPS, row_gradients // size)
    if steps < FEWEST_STEPS:
        return None
    flat, rebuild = ravel_pytree(params)
    losses, domain = Losses.of(problem), as_argument(problem.domain)
    values: list[float] = []

    def step(point: np.ndarray) -> tuple[float, np.ndarray]:
        if len(values) == steps:
            raise _Enough
        here = rebuild(jnp.asarray(point, flat.dtype))
        (value, true), gradient = _descend(here, clients.rows, jnp.int32(index), domain, losses, size)
        values.append(float(true))
        return float(value), np.asarray(ravel_pytree(gradient)[0], dtype=float)

    try:
        found = optimize.minimize(step, np.asarray(flat, dtype=float), jac=True, method="L-BFGS-B")
    except _Enough:
        return Alone(min(values), settled=False)
    return Alone(min(values) if losses.stands_in else float(found.fun), bool(found.success))


@partial(jax.jit, static_argnames=("losses", "size"))
def _descend(
    params: Params, rows: Rows, client: jax.Array, domain: Domain | None, losses: Losses, size: int
) -> tuple[tuple[jax.Array, jax.Array], Params]:
    """What falls in place of the client's constraint on all of its rows, the constraint, and the first one's gradient.

    The rows are arguments: no copy is made.
    """

    def violation(params: Params) -> tuple[jax.Array, jax.Array]:
        here = params if domain is None else domain.project(params)
        batch = rows.take(*whole(rows, client, size, float_dtype(here)))
        descended = losses.descended(here, batch).max()
        return descended, losses.constraints(here, batch).max() if losses.stands_in else descended

    return jax.value_and_grad(violation, has_aux=True)(params)
