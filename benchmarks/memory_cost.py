"""What remembering costs a round: many clients, a hundredth of them asked, against the plain method.

``python -m benchmarks.memory_cost [--clients 100000] [--rounds 100] [--network] [--processor-time]``
"""

from __future__ import annotations

import argparse
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import softswitch as ss
from benchmarks import flat
from benchmarks.many_clients import FEATURES, bias, least_squares
from benchmarks.timing import seconds_in_turns
from softswitch.problem import networks
from softswitch_experiments.tasks.paper_settings import RUN, SOFTMAX_SWITCH, steps

ROWS = 16
"""Of each client."""


def cost(clients: int, rounds: int, network: bool = False, repeats: int = 5, processor_time: bool = False) -> float:
    """Print a round's milliseconds of both, E = 5 and batches of 32; return their ratio."""
    generator = np.random.default_rng(0)
    features = 100 if network else FEATURES
    x = generator.standard_normal((clients * ROWS, features), dtype=np.float32)
    y = x[:, :20].sum(axis=1) + generator.standard_normal(len(x), dtype=np.float32)
    columns = {"x": x, "y": (y > 0).astype(np.int32) if network else y}
    data = ss.ClientData.from_arrays(columns, client=np.repeat(np.arange(clients), ROWS))
    problem = ss.Problem(least_squares, bias, jnp.zeros(features))
    if network:
        problem = ss.Problem(networks.logistic_objective, networks.misses, networks.init_network(features, (64,)))
    method = ss.SoftmaxSGM(alpha=10.0, tolerance=0.5, **steps(0.05), **SOFTMAX_SWITCH)
    how = RUN | {"local_steps": 5, "participation": 0.01, "batch_size": 32, "eval_every": 0, "answer": "last"}
    run = partial(flat.solve, problem, data, method, **how)
    # The difference of a long and a short run leaves out what a run costs once, such as judging its answer.
    taken = seconds_in_turns(
        {
            f"{name} {length}": partial(run, rounds=length, memory=memory)
            for name, memory in (("plain", None), ("remembers", ss.Memory()))
            for length in (rounds, 3 * rounds)
        },
        repeats,
        time.process_time if processor_time else time.perf_counter,
    )
    plain, remembers = (
        (taken[f"{name} {3 * rounds}"] - taken[f"{name} {rounds}"]) / (2 * rounds) * 1e3
        for name in ("plain", "remembers")
    )
    print(
        f"{'network 100 → 64 → 1' if network else f'linear, {features} features'}, "
        f"{clients:,} clients on {jax.default_backend()}, m = {clients // 100:,}, E = 5, batches of 32"
        f"{', processor time' * processor_time}: "
        f"plain {plain:.2f} ms a round, remembers {remembers:.2f} ms, {remembers / plain:.2f}×",
        flush=True,
    )
    return remembers / plain


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--network", action="store_true")
    parser.add_argument("--processor-time", action="store_true", help="not the clock's: others use the machine too")
    chosen = parser.parse_args()
    cost(chosen.clients, chosen.rounds, chosen.network, processor_time=chosen.processor_time)
