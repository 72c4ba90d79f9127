"""A policy to look at: trained by the paper's settings."""

from __future__ import annotations

from typing import Any

from softswitch.engine.solve import solve_federation
from softswitch.methods.softmax_sgm import SoftmaxSGM
from softswitch_experiments.tasks.paper_settings import ANSWER, SOFTMAX_SWITCH, steps
from softswitch_experiments.tasks.safe_rl.policy import Policy
from softswitch_experiments.tasks.safe_rl.task import cartpole


def train(rounds: int, seed: int, **settings: Any) -> Policy:
    """Train on all ten carts: the iterate with the best worst return of those that passed the switch, else the answer.

    It passed by the softmax mean of noisy reports, so its worst cart may be above its budget. The mean of the feasible
    iterates, which is the answer elsewhere, averages the weights of different networks: as a policy it is poor.
    """
    rule = SoftmaxSGM(alpha=0.05, tolerance=0.0, threshold=-5.0, **steps(1.0), **SOFTMAX_SWITCH)
    carts = cartpole(seed=seed, **{"fisher_every": 5} | settings)
    result = solve_federation(carts, rule, rounds=rounds, seed=seed, eval_every=0, **ANSWER)
    policy: Policy = result.params if result.best is None else result.best
    return policy
