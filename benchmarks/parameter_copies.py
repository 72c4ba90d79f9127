"""How many copies of the parameters a round needs: ``python -m benchmarks.parameter_copies [--parameters 1000000]``.

Counted by the compiler for this machine's device: what goes into a chunk of rounds, comes out of it and lies between,
without the rows. ``--train`` also trains so many parameters, and prints the device's own peak.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import softswitch as ss
from benchmarks import flat
from softswitch.engine import compiled
from softswitch.engine.server_step import Setup
from softswitch.methods.state import first_state

OPTIMIZERS = {"SGD": optax.sgd, "Adam": optax.adam}
CLIENTS, ROWS = 4, 2


def score(w: jax.Array, batch: dict[str, jax.Array]) -> jax.Array:
    """One layer of a network, and its mean."""
    return jnp.tanh(batch["x"] @ w).mean(axis=1)


def objective(w: jax.Array, batch: dict[str, jax.Array]) -> jax.Array:
    """The mean squared error."""
    return jnp.average((score(w, batch) - batch["y"]) ** 2, weights=batch["weight"])


def constraint(w: jax.Array, batch: dict[str, jax.Array]) -> jax.Array:
    """The mean score."""
    return jnp.average(score(w, batch), weights=batch["weight"])


def made(width: int) -> tuple[ss.Problem, ss.ClientData]:
    """A problem of width × width parameters."""
    rows = {
        "x": np.random.default_rng(0).standard_normal((CLIENTS * ROWS, width), dtype=np.float32),
        "y": np.ones(CLIENTS * ROWS, np.float32),
    }
    clients = ss.ClientData.from_arrays(rows, client=np.repeat(np.arange(CLIENTS), ROWS))
    return ss.Problem(objective, constraint, jnp.zeros((width, width))), clients


def copies(problem: ss.Problem, clients: ss.ClientData, method: ss.SoftmaxSGM, local_steps: int) -> dict[str, float]:
    """What the compiler counts, in copies of the parameters."""
    oracle = flat.federation_of(
        problem, clients, local_steps=local_steps, client_batch_size=1
    ).oracle.without_evaluation()
    parts = Setup(oracle, method, None)
    asked = (parts, compiled.Program(100, False, False), compiled.Span(0, 100, 0, 1), jax.random.key(0))
    state = jax.eval_shape(lambda: first_state(problem.start, method, (), 0, 1))
    run_chunk: Any = compiled.CompiledEngine.run_chunk
    needed: Any = run_chunk.lower(*asked, state).compile().memory_analysis()
    rows = sum(column.nbytes for column in clients.rows.columns.values())
    found = {
        "kept": needed.argument_size_in_bytes - rows,
        "new": needed.output_size_in_bytes - needed.alias_size_in_bytes,
        "between": needed.temp_size_in_bytes,
    }
    return {name: size / problem.start.nbytes for name, size in found.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--train", action="store_true")
    asked = parser.parse_args()
    problem, clients = made(math.isqrt(asked.parameters))
    print(f"{jax.devices()[0].device_kind}, JAX {jax.__version__}; {problem.start.size:,} parameters")
    for local_steps in (1, 5):
        for name, optimizer in OPTIMIZERS.items():
            method = ss.SoftmaxSGM(alpha=10.0, step_size=0.1, tolerance=0.5, optimizer=optimizer)
            found = copies(problem, clients, method, local_steps)
            told = ", ".join(f"{what} {many:.1f}" for what, many in found.items())
            print(f"{name}, E = {local_steps}: {sum(found.values()):.1f} copies ({told})", flush=True)
    if asked.train:
        method = ss.SoftmaxSGM(alpha=10.0, step_size=0.1, tolerance=0.5, optimizer=optax.adam)
        result = flat.solve(problem, clients, method, rounds=20, eval_every=0, batch_size=None)
        peak = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0)
        print(f"trained: {result!r}; peak {peak / problem.start.nbytes:.1f} copies, {peak / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
