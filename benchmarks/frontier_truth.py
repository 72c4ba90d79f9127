"""Are frontiers' certificates true? Draws from populations whose miss rates are known exactly.

    python -m benchmarks.frontier_truth --draws 200

Two classes at three clients, normal around means of their own: a linear model's miss rate is then a value of the normal
distribution function. Of every draw a frontier is made, and it counts as wrong if any model that it calls certified has
a true miss rate above its bound at any client.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from scipy.special import ndtr
from scipy.stats import binom

import softswitch as ss
from benchmarks import flat
from softswitch.data.splits import DataSplit
from softswitch.problem.ranges import ZERO_ONE
from softswitch.problem.rates import miss_rate

MEANS = np.array([[1.2, 0.4], [1.0, 0.9], [0.8, 1.2]])
"""Of the positive rows of each client; of the negative ones the opposite."""
BOUNDS = (0.4, 0.3, 0.2, 0.15, 0.1, 0.07, 0.05)
CONFIDENCE = 0.95


def score(w: Any, batch: Any) -> Any:
    """A linear model's."""
    return batch["x"] @ w[:-1] + w[-1]


def false_alarms(w: Any, batch: Any) -> Any:
    """The logistic loss of negative rows."""
    return ss.mean_over(jnp.logaddexp(0, score(w, batch)), batch["weight"] * (batch["y"] == 0))


def moved(w: Any, scale: float, offset: float) -> Any:
    """The model with other scores."""
    return scale * w + offset * jnp.zeros_like(w).at[-1].set(1.0)


RATE = miss_rate(score)


def true_misses(w: np.ndarray) -> float:
    """The largest miss rate of any client, in truth."""
    size = float(np.linalg.norm(w[:-1])) or 1e-12
    return float(ndtr(-(MEANS @ w[:-1] + w[-1]) / size).max())


def drawn(rows: int, seed: int) -> DataSplit:
    """So many rows a client, half of them positive."""
    generator = np.random.default_rng(seed)
    client = np.repeat(np.arange(len(MEANS)), rows)
    y = np.tile([0, 1], len(client) // 2)
    x = generator.normal(size=(len(client), 2)) + (2 * y[:, None] - 1) * MEANS[client]
    return DataSplit.from_arrays({"x": x.astype(np.float32), "y": y}, client, stratify=("y",), strata="y", seed=seed)


def main() -> None:
    """Count what is claimed and wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--rows", type=int, nargs="*", default=[200, 800])
    asked = parser.parse_args()
    domain = ss.Ball(20.0)
    problem = ss.Problem(
        false_alarms,
        RATE.constraint,
        jnp.zeros(3),
        domain=domain,
        constraint_surrogate=RATE.surrogate,
        constraint_range=ZERO_ONE,
    )
    most = int(binom.ppf(0.99, asked.draws, 1 - CONFIDENCE))
    for rows in asked.rows:
        claims = wrong = failed = 0
        smallest = []
        for seed in range(asked.draws):
            found = flat.frontier(
                problem,
                drawn(rows, seed),
                BOUNDS,
                confidence=CONFIDENCE,
                move=moved,
                rounds=300,
                seed=seed,
                progress=False,
            )
            truth = [true_misses(np.asarray(p.result.params)) > p.bound for p in found.certified if p.result]
            claims += bool(found.certified)
            wrong += any(truth)
            failed += any(point.failing_clients for point in found.points)
            smallest.append(math.inf if found.smallest_certified is None else found.smallest_certified)
        print(
            f"{rows} rows a client, {asked.draws} draws: {claims} certify a bound, {wrong} of them any wrongly (at "
            f"most {most} are to be expected); {failed} met one that is not certified; the smallest bound certified is "
            f"{np.median(smallest):g} in the median draw",
            flush=True,
        )


if __name__ == "__main__":
    main()
