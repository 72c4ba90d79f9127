"""f_i*: the smallest objective that a client could have by itself, for regrets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import ArrayLike

from softswitch.certification.lbfgs import Look, find_minimum, minimum_in_ball
from softswitch.data.client_data import ClientData, Rows
from softswitch.data.sampling import whole
from softswitch.data.splits import DataSplit
from softswitch.data.streamed_data import StreamedData
from softswitch.oracles.evaluation import functions_ignoring_weights, padded_widths
from softswitch.oracles.losses import Losses
from softswitch.oracles.regret import RegretTask, check_optimum, to_regret_task
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
            f"optimum must be given if the domain is no Ball or Box, but {type(problem.domain).__name__}: f_i* is "
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


def with_regret(problem: Problem, clients: Any, optimum: ArrayLike | Mapping[Any, float] | None = None) -> RegretTask:
    """Return the problem of regrets f_i − f_i*, and its clients, for ``solve``, ``sweep`` and ``solve_certified``.

    With regrets, one client whose data are noise does not dominate the others. Objectives of the result are regrets,
    and ``result.client_loss`` has f_i.

    Args:
        problem: Its objective is f.
        clients: ``ClientData``, a ``DataSplit`` (f_i* is found on its training rows) or ``TorchData``.
        optimum: f_i*, in the order of the clients or by name. Default: computed by ``client_optimum``.
    """
    checks.expect("problem", problem, Problem)
    if isinstance(clients, StreamedData):
        raise ValueError(
            "clients must be in memory for regrets, but are StreamedData: give the rows a column with f_i*, and "
            "subtract it in the objective"
        )
    names = clients.train.names if isinstance(clients, DataSplit) else clients.names
    given = None if optimum is None else check_optimum(optimum, names)
    if problem.is_torch:
        if given is None:
            given = import_module("softswitch.certification.torch").torch_client_optima(problem, clients)
        given = np.where(np.isneginf(given), 0.0, given)
        return RegretTask(problem, replace(clients, client_optimum=given), given)
    if isinstance(clients, DataSplit):
        task = with_regret(problem, clients.train, optimum)
        others = (task.transform(part) for part in (clients.validation, clients.calibration))
        return RegretTask(task.problem, DataSplit(task.clients, *others), task.client_optimum)
    checks.expect("clients", clients, ClientData)
    return to_regret_task(problem, clients, client_optimum(problem, clients) if given is None else given)


@partial(jax.jit, static_argnames=("losses", "width"))
def _look(params: Params, rows: Rows, client: jax.Array, losses: Losses, width: int) -> tuple[jax.Array, Params]:
    def value(params: Params) -> jax.Array:
        return losses.objective(params, rows.take(*whole(rows, client, width, float_dtype(params))))

    return jax.value_and_grad(value)(params)


def _lowest_within(domain: Domain | None, look: Look, start: np.ndarray) -> float:
    if isinstance(domain, Ball):
        return minimum_in_ball(look, start, domain.radius)
    return find_minimum(look, start, (domain.lower, domain.upper) if isinstance(domain, Box) else None)
