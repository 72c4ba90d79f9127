"""100,000 ragged clients on one machine: time a round, and the peak of memory against the size of the data."""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import softswitch as ss
from benchmarks import flat
from softswitch_experiments.tasks.paper_settings import RUN, SOFTMAX_SWITCH, steps

FEATURES = 20


def least_squares(w: jnp.ndarray, batch: dict[str, jnp.ndarray]) -> jnp.ndarray:
    """Half the mean squared error."""
    return jnp.average(0.5 * (batch["x"] @ w - batch["y"]) ** 2, weights=batch["weight"])


def bias(w: jnp.ndarray, batch: dict[str, jnp.ndarray]) -> jnp.ndarray:
    """The mean prediction, to be at most the tolerance."""
    return jnp.average(batch["x"] @ w, weights=batch["weight"])


def peak_bytes() -> int:
    """The most memory this process has held.

    Linux hands a parent's peak on to the ``ru_maxrss`` of the process it starts; ``VmHWM`` is the process's own.
    """
    status = Path("/proc/self/status")
    for line in status.read_text().splitlines() if status.exists() else ():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def make_clients(clients: int, seed: int = 0) -> tuple[ss.ClientData, int]:
    """Clients of 1 to 200 rows, and the bytes of their data; nothing but the ClientData stays in memory."""
    generator = np.random.default_rng(seed)
    sizes = generator.integers(1, 201, clients)
    total = int(sizes.sum())
    x = generator.standard_normal((total, FEATURES), dtype=np.float32)
    y = x.sum(axis=1) + generator.standard_normal(total, dtype=np.float32)
    data = {"x": x, "y": y}
    return ss.ClientData.from_arrays(data, client=np.repeat(np.arange(clients), sizes)), x.nbytes + y.nbytes


def many_clients(clients: int = 100_000, rounds: int = 100) -> float:
    """Print time and memory; return peak memory over data size."""
    began = time.perf_counter()
    data, size = make_clients(clients)
    made = time.perf_counter()
    problem = ss.Problem(least_squares, bias, jnp.zeros(FEATURES))
    method = ss.SoftmaxSGM(alpha=10.0, tolerance=0.5, **steps(0.05), **SOFTMAX_SWITCH)
    how = RUN | {"batch_size": 32, "local_steps": 5, "participation": 0.01}
    result = flat.solve(problem, data, method, rounds=rounds, **how)
    ended = time.perf_counter()
    ratio = peak_bytes() / size
    print(
        f"{clients:,} clients of 1 to 200 rows, {data.sizes.sum():,} rows, {size / 2**20:.0f} MiB: "
        f"m = {clients // 100:,}, E = 5, {rounds} rounds in {ended - made:.1f} s (data made in {made - began:.1f} s); "
        f"peak memory {peak_bytes() / 2**20:.0f} MiB, {ratio:.2f}× the data; {result.status.code}"
    )
    return ratio


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=100)
    arguments = parser.parse_args()
    many_clients(arguments.clients, arguments.rounds)
