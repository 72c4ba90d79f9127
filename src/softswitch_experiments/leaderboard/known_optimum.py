"""Convex problems whose optimum is known: by a published solution, and by a solver in float64."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from scipy import optimize

from softswitch.data.client_data import ClientData
from softswitch.problem.problem import Problem

QUADRATICS, VARIABLES = 12, 10
TOLERANCE = 1e-2
"""Of the problems here, in units of their constraints."""


def rosen_suzuki() -> tuple[Problem, ClientData]:
    """Rosen and Suzuki's problem as a minimax over four clients, with its constraints at every client.

    Its published solution is (0, 1, 2, −1) with objective −44: see Hock and Schittkowski (1981), problem 43. Client i
    has the objective f + i·(a constraint that is 0 there or below), whose maximum is f wherever w is feasible.
    """

    def parts(w: Any) -> tuple[Any, Any]:
        a, b, c, d = w
        f = a**2 + b**2 + 2 * c**2 + d**2 - 5 * a - 5 * b - 21 * c + 7 * d
        g = jnp.stack(
            [
                a**2 + b**2 + c**2 + d**2 + a - b + c - d - 8,
                a**2 + 2 * b**2 + c**2 + 2 * d**2 - a - d - 10,
                2 * a**2 + b**2 + c**2 + 2 * a - b - d - 5,
            ]
        )
        return f, g

    def objective(w: Any, batch: dict[str, Any]) -> Any:
        f, g = parts(w)
        of_client = jnp.concatenate([f[None], f + g])
        return jnp.average(of_client[batch["i"]], weights=batch["weight"])

    def constraint(w: Any, batch: dict[str, Any]) -> Any:
        return parts(w)[1]

    number = np.arange(4)
    return Problem(objective, constraint, jnp.zeros(4), convex=True), ClientData.from_arrays({"i": number}, number)


ROSEN_SUZUKI = -44.0


def quadratics(seed: int = 0) -> tuple[Problem, ClientData]:
    """Clients with a quadratic each, around a point of its own, and a half-space each that these points lie outside of.

    All half-spaces have points in common. Every client has 40 rows, points scattered around its own, so that batches
    are noisy.
    """
    generator = np.random.default_rng(seed)
    centres = generator.normal(size=(QUADRATICS, VARIABLES))
    slopes = (1 + generator.normal(size=(QUADRATICS, VARIABLES))) / np.sqrt(VARIABLES)
    rows = 40
    owner = np.repeat(np.arange(QUADRATICS), rows)
    noise = generator.normal(size=(len(owner), VARIABLES))
    noise -= np.repeat(noise.reshape(QUADRATICS, rows, -1).mean(axis=1), rows, axis=0)
    data = {
        "centre": (centres[owner] + noise).astype(np.float32),
        "slope": slopes[owner].astype(np.float32),
    }

    def objective(w: Any, batch: dict[str, Any]) -> Any:
        return jnp.average(0.5 * jnp.square(w - batch["centre"]).sum(axis=1), weights=batch["weight"])

    def constraint(w: Any, batch: dict[str, Any]) -> Any:
        return jnp.average(batch["slope"] @ w, weights=batch["weight"]) + 0.5

    return Problem(objective, constraint, jnp.zeros(VARIABLES), convex=True), ClientData.from_arrays(data, owner)


def optimum_of_quadratics(seed: int = 0, tolerance: float = TOLERANCE) -> float:
    """F* at the tolerance, by SLSQP in epigraph form."""
    _, clients = quadratics(seed)
    columns = {name: np.asarray(column, float) for name, column in clients.rows.columns.items()}
    shape = (QUADRATICS, -1, VARIABLES)
    points, slopes = columns["centre"].reshape(shape), columns["slope"].reshape(shape)[:, 0]
    centres, spread = points.mean(axis=1), 0.5 * np.square(points - points.mean(axis=1, keepdims=True)).sum(-1).mean(1)

    def objectives(w: np.ndarray) -> np.ndarray:
        value: np.ndarray = 0.5 * np.square(w - centres).sum(axis=1) + spread
        return value

    constraints = [
        {"type": "ineq", "fun": lambda z: z[-1] - objectives(z[:-1])},
        {"type": "ineq", "fun": lambda z: tolerance - 0.5 - slopes @ z[:-1]},
    ]
    start = np.append(np.zeros(VARIABLES), objectives(np.zeros(VARIABLES)).max())
    found = optimize.minimize(
        lambda z: z[-1], start, method="SLSQP", constraints=constraints, options={"maxiter": 500, "ftol": 1e-12}
    )
    if not found.success:
        raise RuntimeError(f"no optimum was found: {found.message}")
    return float(found.fun)
