"""The carts by both ways in turns: compiled, and as Gymnasium environments played step by step.

    python -m benchmarks.gym_carts

Ten carts on three planets, 50 episodes each in a round, a step of TRPO from 20 of them; seconds a round.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import gymnasium

import softswitch as ss
from benchmarks import flat
from benchmarks.timing import seconds_in_turns
from softswitch.oracles.gym import make_gym_federation
from softswitch_experiments.tasks.safe_rl import cartpole
from softswitch_experiments.tasks.safe_rl.task import TEN_PLANETS

ROUNDS = 3
RULE = ss.SoftmaxSGM(alpha=0.05, step_size=1.0, tolerance=0.0, threshold=-5.0)


def runs() -> dict[str, Callable[[], Any]]:
    """Both, for a few rounds from a first policy, whose episodes are short."""
    compiled = cartpole(seed=0)
    by_steps = make_gym_federation(
        {
            f"{planet} {i}": partial(gymnasium.make, "softswitch/ConstrainedCartPole-v0", planet=planet)
            for i, planet in enumerate(TEN_PLANETS)
        },
        30.0,
        horizon=200,
        gradient_episodes=20,
        estimation_episodes=30,
        discounted_cost=True,
    )
    return {
        name: partial(flat.solve_federation, clients, RULE, rounds=ROUNDS, eval_every=0, progress=False)
        for name, clients in (("compiled", compiled), ("Gymnasium", by_steps))
    }


def main() -> None:
    """Print a table."""
    taken = {name: seconds / ROUNDS for name, seconds in seconds_in_turns(runs(), 3).items()}
    print("| | seconds a round | ratio |\n|---|---|---|")
    for name, seconds in taken.items():
        print(f"| {name} | {seconds:.3f} | {seconds / taken['compiled']:.0f} |")


if __name__ == "__main__":
    main()
