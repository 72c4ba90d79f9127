"""One model over many devices: the worst of 64 clients, each kept below its bound.

python examples/many_devices.py                 all devices of this host
python examples/many_devices.py --virtual 8     eight devices that a processor pretends to have
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import softswitch as ss

CLIENTS, FEATURES, HIDDEN = 64, 20, 16


def score(params: Any, x: jax.Array) -> jax.Array:
    """The network's output, of rows."""
    return jnp.tanh(x @ params["in"]) @ params["out"]


def missed(params: Any, batch: Any) -> jax.Array:
    """The objective: the loss of the positive rows."""
    loss = jax.nn.softplus(-score(params, batch["x"]))
    return ss.mean_over(loss, batch["weight"] * (batch["y"] > 0))


def false_alarms(params: Any, batch: Any) -> jax.Array:
    """The constraint: the loss of the negative rows, at most 0.5."""
    loss = jax.nn.softplus(score(params, batch["x"]))
    return ss.mean_over(loss, batch["weight"] * (batch["y"] <= 0)) - 0.5


def made() -> tuple[ss.Problem, ss.ClientData]:
    """Clients of 50 to 400 rows, whose classes lie differently."""
    generator = np.random.default_rng(0)
    owner = np.repeat(np.arange(CLIENTS), generator.integers(50, 401, CLIENTS))
    y = generator.integers(0, 2, len(owner))
    toward = 0.2 + 0.1 * generator.standard_normal((CLIENTS, FEATURES))
    x = generator.standard_normal((len(owner), FEATURES)) + (2 * y - 1)[:, None] * toward[owner]
    # On the host: no single device has to hold the rows of all clients.
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        clients = ss.ClientData.from_arrays({"x": x.astype(np.float32), "y": y}, client=owner)
    start = {
        "in": 0.3 * generator.standard_normal((FEATURES, HIDDEN)).astype(np.float32),
        "out": np.zeros(HIDDEN, np.float32),
    }
    return ss.Problem(missed, false_alarms, start), clients


def main() -> None:
    """Train and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--virtual", type=int, help="so many virtual devices on a processor")
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--checkpoints", type=Path, help="folder from which the run resumes")
    arguments = parser.parse_args()
    if arguments.virtual:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", arguments.virtual)
    problem, clients = made()
    result = ss.solve(
        problem,
        clients,
        ss.Automatic(tolerance=0.0, method=ss.SoftmaxSGM),  # first order: second derivatives cost more here
        rounds=arguments.rounds,
        compute=ss.Compute(devices="all"),
        checkpoints=None if arguments.checkpoints is None else ss.Checkpoints(arguments.checkpoints),
    )
    print(f"{len(jax.devices())} devices, {CLIENTS} clients, {arguments.rounds} rounds")
    print(f"worst objective {result.client_objective.max():.3f}")
    print(f"worst constraint {result.client_constraint.max():.3f}, to be at most 0")


if __name__ == "__main__":
    main()
