"""estimate_constants(): what the theorems take as known, measured on pilot batches."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import optimize

from softswitch.data.client_data import ClientData, Rows
from softswitch.data.sampling import Batching, batching
from softswitch.oracles.evaluation import evaluate
from softswitch.oracles.losses import Losses
from softswitch.problem.domains import Ball, Box, Domain
from softswitch.problem.parameters import Params, float_dtype
from softswitch.problem.problem import Problem
from softswitch.support import checks
from softswitch.theory.client_gaps import check_gap_shape, heterogeneity
from softswitch.theory.theorems import Constants

MOST_CLIENTS = 50
"""Noise is measured at so many clients, drawn at random where there are more; heterogeneity at all."""


def estimate_constants(
    problem: Problem,
    clients: ClientData,
    domain: Domain | None = None,
    *,
    points: int = 16,
    pilots: int = 64,
    batch_size: int = 32,
    seed: int = 0,
    gap: str = "uniform",
    gap_shape: tuple[float, ...] = (),
) -> Constants:
    """Estimate D, L, σ_g, σ_ζ and σ at points spread over Θ.

    At every point and client: the largest gradient norm of f and g on all of its rows (L); how far values and gradients
    of pilot batches scatter around that, times √batch_size (σ_ζ, σ_g, by the theorems' definition E exp(x²/σ²) <= 2);
    and how far clients lie below the worst (σ). The largest over points, clients and functions is returned.

    These are estimates, and rather low: a point that was not tried may be worse, a maximum over finitely many draws is
    low, and batches scatter more evenly than single rows of a skewed distribution, for which the theorems define σ_ζ
    and σ_g. Noise and L are measured at up to 50 clients. The theorems hold for the true constants.

    Args:
        problem: objective, constraint and start.
        clients: whose data.
        domain: Θ, a ``Ball`` or ``Box``; by default the problem's.
        points: how many points beside the start.
        pilots: how many batches at each point and client.
        batch_size: rows of a pilot batch.
        seed: of points and batches.
        gap: the distribution by whose scale σ is measured: ``softswitch.theory.GAPS``.
        gap_shape: its shape parameters.
    """
    checks.expect("clients", clients, ClientData)
    gap_shape = check_gap_shape(gap, gap_shape)
    theta = problem.domain if domain is None else domain
    if not isinstance(theta, Ball | Box):
        raise ValueError(f"domain must be a Ball or a Box: the theorems need a bounded Θ; but is {theta!r}")
    points = checks.whole_number("points", points, at_least=1)
    if problem.constraint_surrogate is not None:
        raise ValueError(
            "the theorems' constants cannot be measured where the constraint has a stand-in: the theorems speak of a "
            "constraint that is descended on itself"
        )
    pilots = checks.whole_number("pilots", pilots, at_least=2)
    size = checks.whole_number("batch_size", batch_size, at_least=1)
    how = batching(size, True, clients.stratum_sizes)
    whole = batching(None, True, clients.stratum_sizes)
    ignoring = problem.trace(clients.batch_shapes(size, float_dtype(problem.start))).ignore_weight
    if ignoring and not (how.equal and whole.equal):
        raise ValueError(f"{' and '.join(ignoring)} must read batch['weight'] to be measured on clients of these sizes")
    generator = np.random.default_rng(seed)
    chosen = np.sort(generator.permutation(len(clients))[:MOST_CLIENTS]).astype(np.int32)
    losses = Losses.of(problem)
    lipschitz, gradient_noise, value_noise, spread = 0.0, 0.0, 0.0, 0.0
    for index, params in enumerate([problem.start, *_points(theta, problem.start, points, generator)]):
        key = jax.random.fold_in(jax.random.key(seed), index)
        norms, values, gradients = (
            np.asarray(x) for x in _scatter(clients.rows, jnp.asarray(chosen), params, key, losses, how, whole, pilots)
        )
        _refuse_not_finite(clients, chosen, norms, values, gradients)
        lipschitz = max(lipschitz, float(norms.max()))
        # Axes: client, pilot, function. A batch of b rows scatters 1/√b as much as one row.
        value_noise = max(value_noise, *(subgaussian_norm(v) for v in _columns(values)))
        gradient_noise = max(gradient_noise, *(subgaussian_norm(g) for g in _columns(gradients)))
        objective, constraint = evaluate(problem, clients, params)
        columns = (column[~np.isneginf(column)] for column in (objective, *constraint.T))
        spread = max(spread, *(heterogeneity(c, gap, gap_shape) for c in columns if len(c)))
    scale = float(np.sqrt(size))
    return Constants(
        diameter=float(theta.diameter(problem.start)),
        lipschitz=lipschitz,
        gradient_noise=scale * gradient_noise,
        value_noise=scale * value_noise,
        heterogeneity=spread,
        gap=gap,
        gap_shape=gap_shape,
    )


def _refuse_not_finite(clients: ClientData, chosen: np.ndarray, *measured: np.ndarray) -> None:
    for array in measured:
        bad = np.flatnonzero(~np.isfinite(array).reshape(len(chosen), -1).all(axis=1))
        if len(bad):
            raise ValueError(
                f"objective and constraint must be finite on every batch, but are not at client "
                f"{clients.names[chosen[bad[0]]]!r}; does a batch lack a class or group? Draw by strata"
            )


def subgaussian_norm(deviations: Any) -> float:
    """The smallest σ with mean(exp(x²/σ²)) <= 2 over the given deviations x."""
    squares = np.asarray(deviations, dtype=float) ** 2
    largest = squares.max()
    if largest == 0:
        return 0.0
    scaled = squares / largest

    def excess(log_variance: float) -> float:
        return float(np.log(np.mean(np.exp(np.minimum(scaled / np.exp(log_variance), 700)))) - np.log(2))

    # All deviations as large as the largest would need σ² = largest/ln 2; n times fewer, largest/ln(1 + n) or more.
    low, high = -np.log(np.log(1 + len(scaled)) + 1) - 1, -np.log(np.log(2))
    if excess(high) > 0:  # rounding, where all are equal
        return float(np.sqrt(largest * np.exp(high)))
    return float(np.sqrt(largest * np.exp(optimize.brentq(excess, low, high, xtol=1e-12))))


def _columns(scatter: np.ndarray) -> list[np.ndarray]:
    return [scatter[i, :, j] for i in range(scatter.shape[0]) for j in range(scatter.shape[2])]


def _points(theta: Ball | Box, start: Params, points: int, generator: np.random.Generator) -> list[Params]:
    """Points spread over Θ: uniform in a box; in a ball random directions, at all distances up to the rim."""
    leaves, structure = jax.tree.flatten(start)
    sizes = [leaf.size for leaf in leaves]
    total = sum(sizes)
    found = []
    for i in range(points):
        if isinstance(theta, Box):
            flat = generator.uniform(theta.lower, theta.upper, total)
        else:
            direction = generator.normal(size=total)
            flat = direction / np.linalg.norm(direction) * theta.radius * (i + 1) / points
        parts = np.split(flat, np.cumsum(sizes)[:-1])
        shaped = [jnp.asarray(p.reshape(leaf.shape), leaf.dtype) for p, leaf in zip(parts, leaves, strict=True)]
        found.append(jax.tree.unflatten(structure, shaped))
    return found


@partial(jax.jit, static_argnames=("losses", "how", "whole", "pilots"))
def _scatter(
    rows: Rows,
    clients: jax.Array,
    params: Params,
    key: jax.Array,
    losses: Losses,
    how: Batching,
    whole: Batching,
    pilots: int,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Gradient norms on all rows; deviations of pilot values and gradients from theirs. First axis: client."""

    def measure(batch: Any) -> tuple[jax.Array, jax.Array]:
        gradients = jax.tree.leaves(jax.jacrev(losses.values)(params, batch))
        flat = jnp.concatenate([g.reshape(g.shape[0], -1) for g in gradients], axis=1)
        return losses.values(params, batch), flat

    dtype = float_dtype(params)
    words = jax.random.bits(key, (how.words(len(clients), pilots),), jnp.uint32)
    drawn = jnp.swapaxes(how.draw(words, rows, clients, pilots), 0, 1)

    def client(inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        client, drawn = inputs
        value, gradient = measure(rows.take(*whole.batch(rows, client, drawn[0], dtype)))
        values, gradients = jax.vmap(lambda pilot: measure(rows.take(*how.batch(rows, client, pilot, dtype))))(drawn)
        return (
            jnp.linalg.norm(gradient, axis=1),
            jnp.where(jnp.isneginf(value), 0, jnp.abs(values - value)),  # a client without it adds no noise
            jnp.linalg.norm(gradients - gradient, axis=2),
        )

    return jax.lax.map(client, (clients, drawn))
