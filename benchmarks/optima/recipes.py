"""How a problem is handed to ``solve``: the one place that says with which settings."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

import softswitch as ss
from benchmarks import flat

ROUNDS = 20_000
"""Of the recipe "adam"."""


def recipe(name: str, problem: ss.Problem, clients: ss.ClientData, tolerance: float) -> dict[str, np.ndarray]:
    """The answers of a recipe by their names.

    Args:
        name: "first-order", with automatic settings; "adam", with settings fixed here for all problems; or "sqp",
            which prints its number of exchanges.
        problem: what ``as_clients`` made.
        clients: likewise.
        tolerance: how far constraints may be above 0.
    """
    return RECIPES[name](problem, clients, tolerance)


def first_order(problem: ss.Problem, clients: ss.ClientData, tolerance: float) -> dict[str, np.ndarray]:
    """First order with automatic settings."""
    return {"answer": np.asarray(flat.solve(problem, clients, ss.Automatic(tolerance, ss.SoftmaxSGM)).params)}


def adam(problem: ss.Problem, clients: ss.ClientData, tolerance: float) -> dict[str, np.ndarray]:
    """Adam with a step that goes to 0 by a cosine, as a user would write it; the last iterate and a late average."""
    start: Any = problem.start
    method = ss.SoftmaxSGM(
        alpha=1e4,
        step_size=optax.cosine_decay_schedule(0.01 * max(1.0, float(jnp.abs(start).max())), ROUNDS),
        optimizer=optax.adam,
        tolerance=tolerance,
        slack=100.0,
        criterion="max",
    )
    run = flat.solve(problem, clients, method, rounds=ROUNDS, batch_size=None, average_last=0.5, eval_every=0)
    return {"last": np.asarray(run.last), "average": np.asarray(run.params)}


def second_order(problem: ss.Problem, clients: ss.ClientData, tolerance: float) -> dict[str, np.ndarray]:
    """Second-order exchanges, with their number printed."""
    result = ss.solve(problem, clients, ss.SQP(tolerance=tolerance), output=ss.Output(lower_bound=False))
    print(f"{len(result.history):3d} exchanges, F {result.worst_objective:.9g}")
    return {"answer": np.asarray(result.params)}


RECIPES = {"first-order": first_order, "adam": adam, "sqp": second_order}
