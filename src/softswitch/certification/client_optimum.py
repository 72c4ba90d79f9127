"""f_i*: the smallest objective that a client could have by itself, for regrets."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from softswitch.certification.lbfgs import Look, find_minimum, minimum_in_ball
from softswitch.data.client_data import ClientData, Rows
from softswitch.data.sampling import whole
from softswitch.oracles.evaluation import functions_ignoring_weights, padded_widths
from softswitch.oracles.losses import Losses
from softswitch.oracles.regret import Regret, RegretTask, parse_client_optimum, to_regret_task
from softswitch.problem.domains import Ball, Box, Domain
from softswitch.problem.parameters import Params, float_dtype
from softswitch.problem.problem import Problem
from softswitch.support import checks


def client_optimum(problem: Problem, clients: ClientData) -> np.ndarray:
    """f_i* = min over w in Θ of f_i(w), for each client alone, on all of its rows; −∞ for one that has no objective.

    By L-BFGS from the problem's start, at most 500 looks at a client's rows, or where there is a ball some ten times as
    many. Of a smooth convex objective with features of like scale it is the minimum; with kinks a little above; of any
    other it is the best that was found from there, and regrets may then be below 0. The client's constraint is not
    looked at: f_i* is then the same for every tolerance, and is there also where a client cannot meet its constraint.
    For f_i* within the constraint, give your own numbers.

    Args:
        problem: objective, start, perhaps a domain: a ``Ball`` or a ``Box``.
        clients: whose rows.
    """
    checks.expect("problem", problem, Problem)
    checks.expect("clients", clients, ClientData)
    flat, rebuild = ravel_pytree(problem.start)
    losses = Losses.of(problem)
    if not isinstance(problem.domain, Ball | Box | None):
        raise ValueError(
            f"regret must be numbers where the domain is no Ball or Box, but {type(problem.domain).__name__}: f_i* is "
            "looked for within those only"
        )
    exactly = "objective" in functions_ignoring_weights(problem, clients)
    widths = clients.sizes if exactly else padded_widths(clients)

    def of(client: int) -> float:
        def look(point: np.ndarray) -> tuple[float, np.ndarray]:
            here = rebuild(jnp.asarray(point, flat.dtype))
            value, slope = _look(here, clients.rows, jnp.int32(client), losses, int(widths[client]))
            return float(value), np.asarray(ravel_pytree(slope)[0], float)

        return _lowest_within(problem.domain, look, np.asarray(flat, float))

    found = np.array([of(client) for client in range(len(clients))])
    if np.isnan(found).any():
        name = clients.names[int(np.argmax(np.isnan(found)))]
        raise ValueError(
            f"regret needs objectives with a smallest value, but that of client {name!r} has none, or is not finite on "
            f"the way; give {'a domain (Ball, Box), or ' if problem.domain is None else ''}the numbers f_i* themselves"
        )
    return found


def make_regret_task(problem: Problem, clients: ClientData, regret: Regret) -> RegretTask:
    """The problem of regrets that is asked for: f_i* as they are given, or found.

    Args:
        problem: its objective is f.
        clients: whose rows.
        regret: True, or the numbers.
    """
    told = parse_client_optimum(regret, clients.names)
    return to_regret_task(problem, clients, client_optimum(problem, clients) if told is None else told)


@partial(jax.jit, static_argnames=("losses", "width"))
def _look(params: Params, rows: Rows, client: jax.Array, losses: Losses, width: int) -> tuple[jax.Array, Params]:
    def value(params: Params) -> jax.Array:
        return losses.objective(params, rows.take(*whole(rows, client, width, float_dtype(params))))

    return jax.value_and_grad(value)(params)


def _lowest_within(domain: Domain | None, look: Look, start: np.ndarray) -> float:
    if isinstance(domain, Ball):
        return minimum_in_ball(look, start, domain.radius)
    return find_minimum(look, start, (domain.lower, domain.upper) if isinstance(domain, Box) else None)
