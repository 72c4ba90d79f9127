"""Safe reinforcement learning: the compiled engine against a sequential loop, per step of the environment.

Both start from a policy that balances on all planets, so that nearly all episodes last 200 steps and nearly all
simulated steps count.
"""

from __future__ import annotations

import os
import statistics
import time
from functools import partial
from typing import Any

import gymnasium
import jax
import numpy as np
import torch

import softswitch as ss
from benchmarks import flat, gymnasium_loop
from softswitch.engine import compiled as engine
from softswitch.engine.request import RunOptions, prepare_federation
from softswitch_experiments.options import group_options
from softswitch_experiments.tasks.paper_settings import ANSWER, SOFTMAX_SWITCH, steps
from softswitch_experiments.tasks.safe_rl import cartpole
from softswitch_experiments.tasks.safe_rl.task import TEN_PLANETS

EPISODES, ROUNDS, REPEATS = 10, 10, 3
BALANCING_ROUNDS = 80
RULE = ss.SoftmaxSGM(alpha=0.05, tolerance=0.0, **steps(1.0), **SOFTMAX_SWITCH)


def balancing() -> Any:
    """A policy that keeps the pole up on every planet: trained without a budget."""
    carts = cartpole(budgets=[1000.0] * len(TEN_PLANETS), fisher_every=5)
    return flat.solve_federation(carts, RULE, rounds=BALANCING_ROUNDS, eval_every=0, **ANSWER).last


def compiled(policy: Any, fisher_every: int) -> tuple[float, float]:
    """Seconds and environment steps of a round, compiled; every round begins with the given policy."""
    carts = cartpole(gradient_episodes=EPISODES, estimation_episodes=0, fisher_every=fisher_every)
    options = group_options(rounds=ROUNDS, eval_every=0, record_clients=True, **ANSWER)
    request = prepare_federation(carts, (RULE,), RunOptions(**options))
    state = engine.CompiledEngine().start(policy, RULE, carts.oracle, None)
    go = partial(engine.CompiledEngine.run_chunk, request.setup(RULE), request.program(1))
    steps, began = 0.0, time.perf_counter()
    for k in range(ROUNDS):
        _, record = jax.block_until_ready(go(request.span(k), jax.random.key(0), state))
        assert record.clients is not None
        steps += float(np.asarray(record.clients.metrics["return"]).sum()) * EPISODES
    return (time.perf_counter() - began) / ROUNDS, steps / ROUNDS


def sequential(policy: Any) -> tuple[float, float]:
    """Seconds and environment steps of a round, one step after another."""
    network = gymnasium_loop.network()
    gymnasium_loop.load(network, policy)
    carts = [gymnasium.make("softswitch/ConstrainedCartPole-v0", planet=planet) for planet in TEN_PLANETS]
    began = time.perf_counter()
    steps = gymnasium_loop.round_of_all(network, carts, np.linspace(25, 35, 10), 0.05, EPISODES)
    return time.perf_counter() - began, float(steps)


def against_gymnasium() -> None:
    """Print time per environment step of both, in turns, and the ratios."""
    torch.set_num_threads(1)
    policy = balancing()
    candidates = {
        "sequential Gymnasium + PyTorch": partial(sequential, policy),
        "softswitch, full Fisher": partial(compiled, policy, 1),
        "softswitch, Fisher on every 5th time step": partial(compiled, policy, 5),
    }
    for name, candidate in candidates.items():
        if name.startswith("softswitch"):
            candidate()  # compile
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in candidates}
    for _ in range(REPEATS):
        for name, candidate in candidates.items():
            taken[name].append(candidate())
    a_step = {name: statistics.median(s / steps for s, steps in times) for name, times in taken.items()}
    first = next(iter(a_step.values()))
    print(f"\nSafe RL: a round of 10 carts, {EPISODES} episodes each, one TRPO step; one core, medians of {REPEATS}")
    for name, seconds in a_step.items():
        steps = statistics.median(steps for _, steps in taken[name])
        print(f"  {name:45} {1e6 * seconds:8.2f} µs a step ({steps:6.0f} steps a round)  {first / seconds:6.1f} times")


if __name__ == "__main__":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # all candidates on one core, before XLA starts its threads
    against_gymnasium()
