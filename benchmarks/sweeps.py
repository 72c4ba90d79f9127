"""A sweep against single runs: python -m benchmarks.sweeps."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax

import softswitch as ss
from benchmarks.timing import seconds_in_turns
from softswitch.tasks.neyman_pearson import breast_cancer

RULE = ss.SoftmaxSGM(alpha=6400.0, step_size=0.5, tolerance=0.1)


def sweep_against_singles(repeats: int = 3) -> None:
    """Print what 5 seeds × 6 α cost as a sweep, in single runs."""
    task = breast_cancer(20, seed=0)
    rules = [ss.SoftmaxSGM(alpha=a, step_size=0.5, tolerance=0.1) for a in (1, 10, 100, 1000, 6400, 1e5)]
    print(f"Sweep of 5 seeds × 6 α on {jax.devices()[0].device_kind}, in units of one solve()")
    for local_steps, participation in ((1, 1.0), (5, 0.5)):
        how: dict[str, Any] = {"local_steps": local_steps, "participation": participation}
        sweep = partial(ss.sweep, task.problem, task.train, rules, seeds=5, **how)
        taken = seconds_in_turns(
            {
                "one": partial(ss.solve, task.problem, task.train, RULE, **how),
                "sweep": partial(sweep, together=False),
                "together": partial(sweep, together=True),
            },
            repeats,
        )
        one_by_one, together = (
            f"{taken[way] / taken['one']:.1f} ({taken[way]:.2f} s)" for way in ("sweep", "together")
        )
        print(f"  E = {local_steps}, r = {participation}: one by one {one_by_one}; side by side {together}")


if __name__ == "__main__":
    sweep_against_singles()
