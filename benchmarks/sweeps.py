"""A sweep against single runs: python -m benchmarks.sweeps."""

from __future__ import annotations

from functools import partial

import jax

import softswitch as ss
from benchmarks import flat
from benchmarks.timing import seconds_in_turns
from softswitch_experiments.tasks.neyman_pearson import breast_cancer
from softswitch_experiments.tasks.paper_settings import RUN, SOFTMAX_SWITCH, steps


def softmax(alpha: float) -> ss.SoftmaxSGM:
    """The method with the paper's settings but for α."""
    return ss.SoftmaxSGM(alpha=alpha, tolerance=0.1, **steps(0.5), **SOFTMAX_SWITCH)


def sweep_against_singles(repeats: int = 3) -> None:
    """Print what 5 seeds × 6 α cost as a sweep, in single runs."""
    task = breast_cancer(20, seed=0)
    methods = [softmax(a) for a in (1, 10, 100, 1000, 6400, 1e5)]
    print(f"Sweep of 5 seeds × 6 α on {jax.devices()[0].device_kind}, in units of one solve()")
    for local_steps, participation in ((1, 1.0), (5, 0.5)):
        sizes = {"rounds": 1000, "batch_size": 32}
        how = RUN | sizes | {"local_steps": local_steps, "participation": participation}
        sweep = partial(flat.sweep, task.problem, task.train, methods, seeds=5, **how)
        taken = seconds_in_turns(
            {
                "one": partial(flat.solve, task.problem, task.train, softmax(6400.0), **how),
                "sweep": partial(sweep, vectorize=False),
                "together": partial(sweep, vectorize=True),
            },
            repeats,
        )
        one_by_one, together = (
            f"{taken[way] / taken['one']:.1f} ({taken[way]:.2f} s)" for way in ("sweep", "together")
        )
        print(f"  E = {local_steps}, r = {participation}: one by one {one_by_one}; side by side {together}")


if __name__ == "__main__":
    sweep_against_singles()
