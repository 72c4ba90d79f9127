"""Estimates of the theorems' constants from pilot batches."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy import optimize
from scipy.special import logsumexp

from softswitch.data.client_data import ClientData, Rows
from softswitch.data.sampling import Batching, make_batching
from softswitch.oracles.evaluation import Losses
from softswitch.oracles.out_of_core import evaluate
from softswitch.problem.domains import Ball, Box
from softswitch.problem.parameters import Params, float_dtype
from softswitch.problem.problem import Problem
from softswitch.support import checks
from softswitch.theory.theorems import Constants, heterogeneity

MAX_CLIENTS = 50  # maximum number of clients, drawn at random, at which noise and gradient norms are measured


def estimate_constants(
    problem: Problem, clients: ClientData, *, points: int = 16, pilots: int = 64, batch_size: int = 32, seed: int = 0
) -> Constants:
    """Estimate the constants D, L, σ_g, σ_ζ and σ as the largest over points of Θ, clients and functions.

    L is the largest gradient norm of f and g on all rows. σ_ζ and σ_g are the deviations of values and gradients on
    pilot batches, times √batch_size, by the theorems' definition E exp(x²/σ²) <= 2. σ is the scale of the gaps to the
    worst client. Noise and L are measured at up to 50 clients.

    The estimates tend to be low: other points may be worse, a maximum over finitely many draws is low, and batches vary
    less than single rows of a skewed distribution. The theorems hold for the true constants.

    Args:
        problem: Objective, constraint, start and domain Θ, a ``Ball`` or ``Box``. It must not have a
            ``constraint_surrogate``.
        clients: The clients' rows.
        points: Number of points of Θ besides the start, at least 1. Default: 16.
        pilots: Number of batches per point and client, at least 2. Default: 64.
        batch_size: Number of rows of a pilot batch. Default: 32.
        seed: Random seed of points and batches. Default: 0.
    """
    checks.check_instance("clients", clients, ClientData)
    theta = problem.domain
    if not isinstance(theta, Ball | Box):
        raise ValueError(f"domain must be a Ball or a Box, because the theorems need a bounded Θ, but is {theta!r}")
    points = checks.check_integer("points", points, minimum=1)
    if problem.constraint_surrogate is not None:
        raise ValueError("problem must not have a constraint_surrogate: the theorems need the constraint's gradients")
    pilots = checks.check_integer("pilots", pilots, minimum=2)
    size = checks.check_integer("batch_size", batch_size, minimum=1)
    how, whole = (make_batching(rows, True, clients.stratum_sizes) for rows in (size, None))
    ignoring = problem.trace(clients.rows.batch_shapes(size, float_dtype(problem.start))).ignore_weight
    if ignoring and not (how.equal and whole.equal):
        names = " and ".join(ignoring)
        raise ValueError(f"{names} must read batch['weight'] to be measured on clients of different sizes")
    generator = np.random.default_rng(seed)
    chosen = np.sort(generator.permutation(len(clients))[:MAX_CLIENTS]).astype(np.int32)
    losses = Losses.of(problem)
    lipschitz, gradient_noise, value_noise, spread = 0.0, 0.0, 0.0, 0.0
    for index, params in enumerate([problem.start, *_points(theta, problem.start, points, generator)]):
        key = jax.random.fold_in(jax.random.key(seed), index)
        measured = _measure_noise(clients.rows, jnp.asarray(chosen), params, key, losses, how, whole, pilots)
        norms, values, gradients = map(np.asarray, measured)
        for array in (norms, values, gradients):
            bad = chosen[~np.isfinite(array).reshape(len(chosen), -1).all(axis=1)]
            if len(bad):
                where = f"at client {clients.names[bad[0]]!r}; if a batch may lack a class or group, use strata"
                raise ValueError(f"objective and constraint must be finite on every batch, but are not {where}")
        lipschitz = max(lipschitz, float(norms.max()))
        value_noise = max(value_noise, _largest_norm(values))
        gradient_noise = max(gradient_noise, _largest_norm(gradients))
        objective, constraint = evaluate(problem, clients, params)
        columns = (column[~np.isneginf(column)] for column in (objective, *constraint.T))
        spread = max(spread, *(heterogeneity(column) for column in columns if len(column)))
    scale = float(np.sqrt(size))  # a mean of b rows deviates 1/√b as much as one row
    diameter = float(theta.diameter(problem.start))
    return Constants(diameter, lipschitz, scale * gradient_noise, scale * value_noise, spread)


def _largest_norm(deviations: np.ndarray) -> float:
    """Return the largest sub-Gaussian norm over clients (the first axis) and functions (the last axis)."""
    return max(subgaussian_norm(column) for client in deviations for column in client.T)


def subgaussian_norm(deviations: Any) -> float:
    """Return the sub-Gaussian norm of a sample x: the smallest σ with mean(exp(x²/σ²)) <= 2; 0 if x is 0."""
    squares = np.asarray(deviations, dtype=float) ** 2
    largest = squares.max()
    if largest == 0:
        return 0.0
    scaled, doubled = squares / largest, np.log(2 * len(squares))
    # σ²/largest is 1/ln 2 if all deviations are equal, and at least 1/ln(2n).
    low, high = (1 - 1e-9) / doubled, (1 + 1e-9) / np.log(2)
    variance = optimize.brentq(lambda variance: logsumexp(scaled / variance) - doubled, low, high, xtol=1e-14)
    return float(np.sqrt(largest * variance))


def _points(theta: Ball | Box, start: Params, points: int, generator: np.random.Generator) -> list[Params]:
    """Return random points of Θ: uniform in a box; in a ball random directions with evenly spaced norms."""
    flat, rebuild = ravel_pytree(start)
    trees = []
    for i in range(points):
        if isinstance(theta, Box):
            point = generator.uniform(theta.lower, theta.upper, flat.size)
        else:
            direction = generator.normal(size=flat.size)
            point = direction / np.linalg.norm(direction) * theta.radius * (i + 1) / points
        trees.append(rebuild(jnp.asarray(point, flat.dtype)))
    return trees


@partial(jax.jit, static_argnames=("losses", "how", "whole", "pilots"))
def _measure_noise(
    rows: Rows, clients: Any, params: Params, key: Any, losses: Losses, how: Batching, whole: Batching, pilots: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return gradient norms on all rows, and distances of pilot values and gradients from those on all rows."""

    def measure(batch: Any) -> tuple[jax.Array, jax.Array]:
        gradients = jax.tree.leaves(jax.jacrev(losses.values)(params, batch))
        flat = jnp.concatenate([g.reshape(g.shape[0], -1) for g in gradients], axis=1)
        return losses.values(params, batch), flat

    dtype = float_dtype(params)
    words = jax.random.bits(key, (how.bit_count(len(clients), pilots),), jnp.uint32)
    drawn = jnp.swapaxes(how.draw(words, rows, clients, pilots), 0, 1)

    def client(inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        client, drawn = inputs
        value, gradient = measure(rows.take(*whole.batch(rows, client, drawn[0], dtype)))
        values, gradients = jax.vmap(lambda pilot: measure(rows.take(*how.batch(rows, client, pilot, dtype))))(drawn)
        return (
            jnp.linalg.norm(gradient, axis=1),
            jnp.where(jnp.isneginf(value), 0, jnp.abs(values - value)),  # a client without the function adds no noise
            jnp.linalg.norm(gradients - gradient, axis=2),
        )

    return jax.lax.map(client, (clients, drawn))
