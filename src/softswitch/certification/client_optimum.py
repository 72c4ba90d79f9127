"""Regrets: the smallest objective f_i* that each client can reach alone, and problems that minimise f_i − f_i*."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import ArrayLike
from scipy import optimize

from softswitch.data.client_data import ClientData, Rows
from softswitch.data.sampling import all_rows
from softswitch.data.splits import DataSplit
from softswitch.data.streamed_data import StreamedData
from softswitch.oracles.client_shifts import RegretTask, check_optimum, to_regret_task
from softswitch.oracles.evaluation import Losses, functions_ignoring_weights, padded_widths
from softswitch.oracles.options import TorchData
from softswitch.problem.domains import Ball, Box
from softswitch.problem.parameters import Params, float_dtype
from softswitch.problem.problem import Problem
from softswitch.support import checks

MAX_EVALUATIONS = 500  # largest number of function evaluations in find_minimum
UNBOUNDED_FACTOR = 1e6  # a function is unbounded if it falls by this many times 1 + |initial value|
LOG_MULTIPLIERS = (-12.0, 12.0)  # log10 of the searched multipliers of a ball, relative to initial gradient / radius

ValueAndGradient = Callable[[np.ndarray], tuple[float, np.ndarray]]


def client_optimum(problem: Problem, clients: ClientData) -> np.ndarray:
    """Return f_i* = min over w in Θ of f_i(w) on all rows of each client, shape (n,); −∞ without an objective.

    The search is L-BFGS from the problem's start, with at most 500 evaluations per client (about ten times as many in a
    ball). It finds the minimum of a smooth convex objective with features of similar scale, and nearly so with kinks.
    Otherwise the value is the best found, and regrets may be negative. The client's constraint is ignored, so f_i*
    does not depend on the tolerance. To include the constraint, compute the numbers yourself.

    Args:
        problem: Objective, start and optional domain (``Ball`` or ``Box``).
        clients: The clients' rows.
    """
    checks.check_instance("problem", problem, Problem)
    checks.check_instance("clients", clients, ClientData)
    domain = problem.domain
    if not isinstance(domain, Ball | Box | None):
        raise ValueError(f"optimum must be given if the domain is {type(domain).__name__}, not a Ball or Box")
    flat, rebuild = ravel_pytree(problem.start)
    losses = Losses.of(problem)
    exactly = "objective" in functions_ignoring_weights(problem, clients)
    widths = clients.sizes if exactly else padded_widths(clients)

    def minimise(client: int) -> float:
        def evaluate(point: np.ndarray) -> tuple[float, np.ndarray]:
            params, width = rebuild(jnp.asarray(point, flat.dtype)), int(widths[client])
            value, gradient = _value_and_grad(params, clients.rows, jnp.int32(client), losses, width)
            return float(value), np.asarray(ravel_pytree(gradient)[0], float)

        start = np.asarray(flat, float)
        if isinstance(domain, Ball):
            return minimum_in_ball(evaluate, start, domain.radius)
        return find_minimum(evaluate, start, (domain.lower, domain.upper) if isinstance(domain, Box) else None)[0]

    optima = np.array([minimise(client) for client in range(len(clients))])
    if np.isnan(optima).any():
        name = clients.names[int(np.argmax(np.isnan(optima)))]
        raise ValueError(
            f"regret needs objectives with a minimum, but the objective of client {name!r} is unbounded or not finite; "
            f"give {'a domain (Ball, Box), or ' if domain is None else ''}the numbers f_i* themselves"
        )
    return optima


def with_regret(
    problem: Problem,
    clients: ClientData | DataSplit | TorchData,
    optimum: ArrayLike | Mapping[Any, float] | None = None,
) -> RegretTask:
    """Return the problem of regrets f_i − f_i*, and its clients, for ``solve``, ``sweep`` and ``solve_certified``.

    With regrets, a client with a large unavoidable loss does not dominate the others. Objectives of the result are
    regrets, and ``result.client_loss`` has f_i.

    Args:
        problem: Problem whose objective is f.
        clients: ``ClientData``, a ``DataSplit`` (f_i* is found on its training rows) or ``TorchData``.
        optimum: f_i*, one number per client in their order, or by name. Default: computed by ``client_optimum``.
    """
    checks.check_instance("problem", problem, Problem)
    if isinstance(clients, StreamedData):
        raise ValueError("clients must not be StreamedData for regrets: subtract a column with f_i* in the objective")
    names = clients.train.names if isinstance(clients, DataSplit) else clients.names
    given = None if optimum is None else check_optimum(optimum, names)
    if isinstance(clients, TorchData):
        if given is None:
            given = import_module("softswitch.certification.torch").torch_client_optima(problem, clients)
        given = np.where(np.isneginf(given), 0.0, given)
        return RegretTask(problem, replace(clients, client_optimum=given), given)
    if isinstance(clients, DataSplit):
        task = with_regret(problem, clients.train, optimum)
        others = (task.transform(part) for part in (clients.validation, clients.calibration))
        return RegretTask(task.problem, DataSplit(task.clients, *others), task.client_optimum)
    checks.check_instance("clients", clients, ClientData)
    return to_regret_task(problem, clients, client_optimum(problem, clients) if given is None else given)


@partial(jax.jit, static_argnames=("losses", "width"))
def _value_and_grad(
    params: Params, rows: Rows, client: jax.Array, losses: Losses, width: int
) -> tuple[jax.Array, Params]:
    def value(params: Params) -> jax.Array:
        return losses.objective(params, rows.take(*all_rows(rows, client, width, float_dtype(params))))

    return jax.value_and_grad(value)(params)


def minimum_in_ball(function: ValueAndGradient, start: np.ndarray, radius: float) -> float:
    """Return the smallest value of a convex function in ‖w‖ <= radius; −∞ and NaN as in ``find_minimum``.

    If the unconstrained minimum lies outside the ball, the constrained one minimises h(w) + (μ/2)‖w‖² for the μ at
    which that minimum has norm ``radius``. The value is taken at a point scaled to that norm.
    """
    value, free = find_minimum(function, start)
    if value == -np.inf or (np.isfinite(value) and float(np.linalg.norm(free)) <= radius):
        return value
    unit = float(np.linalg.norm(function(start)[1])) / radius or 1.0
    nearby = start

    def excess_norm(log_multiplier: float) -> float:
        nonlocal nearby
        multiplier = unit * 10.0**log_multiplier

        def penalised(point: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = function(point)
            return value + multiplier / 2 * float(point @ point), gradient + multiplier * point

        nearby = find_minimum(penalised, nearby)[1]
        return float(np.linalg.norm(nearby)) - radius

    low, high = LOG_MULTIPLIERS
    if excess_norm(low) <= 0:  # the unconstrained minimum, up to rounding
        return function(nearby)[0]
    excess = excess_norm(optimize.brentq(excess_norm, low, high, xtol=1e-5))
    return function(nearby * (radius / (radius + excess)))[0]


def find_minimum(
    function: ValueAndGradient, start: np.ndarray, box: tuple[float, float] | None = None
) -> tuple[float, np.ndarray]:
    """Return the smallest value found and its point; −∞ if the start has that value, NaN if unbounded or not finite.

    ``box`` is the range of all entries.
    """
    best, best_point, is_finite = np.inf, start, True

    def tracked(point: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal best, best_point, is_finite
        value, gradient = function(point)
        is_finite = is_finite and bool(np.isfinite(value))
        if value < best:
            best, best_point = value, point.copy()
        return value, gradient

    first = function(start)[0]
    if first == -np.inf:
        return -np.inf, start
    bounds = None if box is None else [box] * len(start)
    options = {"maxcor": 20, "maxiter": MAX_EVALUATIONS, "maxfun": MAX_EVALUATIONS, "ftol": 1e-13, "gtol": 1e-9}
    optimize.minimize(tracked, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    unbounded = best < first - UNBOUNDED_FACTOR * (1 + abs(first))
    return np.nan if unbounded or not is_finite else best, best_point
