"""How wide certificates are, how often they are wrong, and what they cost: ``python -m benchmarks.certificates``.

Widths are those of the upper limit above the estimate, for 20 clients at 95%: as they were (the smaller of Hoeffding's
and the empirical Bernstein bound, each at half the error), and as they are, for one client among all and for the worst.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from scipy import stats

import softswitch as ss
from softswitch.certification.intervals import ErrorLevels, gap_interval, mean_interval
from softswitch.certification.limits import rows_to_certify
from softswitch.problem.ranges import ZERO_ONE, Range

CLIENTS, ERROR = 20, 0.05


def before(rows: np.ndarray) -> float:
    """The width as it was, of values in [0, 1]."""
    n, half = len(rows), ERROR / CLIENTS / 2
    log = math.log(2 / half)
    bernstein = math.sqrt(2 * rows.var(ddof=1) * log / n) + 7 * log / (3 * (n - 1))
    return float(min(math.sqrt(math.log(1 / half) / (2 * n)), bernstein))


def widths() -> None:
    """A table of widths by kind of loss and number of rows."""
    levels = ErrorLevels(ERROR / CLIENTS, ERROR, 0.5)

    def like(distribution: Any) -> Callable[[int], np.ndarray]:
        return lambda n: np.asarray(distribution.ppf((np.arange(n) + 0.5) / n), dtype=float)

    kinds: list[tuple[str, Callable[[int], np.ndarray], Range]] = [
        ("2% errors, exact binomial", lambda n: (np.arange(n) < 0.02 * n).astype(float), ZERO_ONE),
        ("2% errors, betting (not declared to be 0 or 1)", lambda n: (np.arange(n) < 0.02 * n).astype(float), (0, 1)),
        ("losses like beta(0.5, 5), betting", like(stats.beta(0.5, 5)), (0, 1)),
        ("losses like beta(5, 20), betting", like(stats.beta(5, 20)), (0, 1)),
    ]
    print("| loss | rows | before | all clients at once | the worst client |\n|---|---|---|---|---|")
    for name, draw, bounds in kinds:
        for n in (50, 200, 1000, 10_000):
            rows = draw(n)
            # The order matters to bets: over 20 of them.
            orders = [np.random.default_rng(seed).permutation(rows) for seed in range(20)]
            found = [mean_interval(own, levels, bounds) for own in orders]
            told = [
                before(rows),
                *(np.mean([getattr(i, end) - i.estimate for i in found]) for end in ("upper", "marginal_upper")),
            ]
            print(f"| {name} | {n:,} | " + " | ".join(f"{width:.4f}" for width in told) + " |")
    for n in (200, 1000, 10_000):
        pair = [(np.arange(n // 2) < rate * n // 2).astype(float) for rate in (0.32, 0.3)]
        gap = gap_interval(pair[0], pair[1], levels, ZERO_ONE)
        told = [sum(map(before, pair)), gap.upper - gap.estimate, gap.marginal_upper - gap.estimate]
        print(f"| gap of decisions, 32% and 30% | {n:,} | " + " | ".join(f"{width:.4f}" for width in told) + " |")


def rows_before_training() -> None:
    """How many rows without an error certify a bound."""
    print("\n| bound | all 20 clients | each of them, whatever the others come to |\n|---|---|---|")
    for bound in (0.01, 0.02, 0.05, 0.1):
        print(f"| {bound:.0%} | {rows_to_certify(bound, CLIENTS)} | {rows_to_certify(bound, CLIENTS, each=True)} |")


def cost(rows: int = 1_000_000, clients: int = 50) -> None:
    """Seconds to certify many rows, compiled before."""
    generator = np.random.default_rng(0)
    columns = {
        "x": generator.random(rows).astype(np.float32),
        "group": (generator.random(rows) < 0.5).astype(np.int32),
    }
    data = ss.ClientData.from_arrays(columns, client=np.arange(rows) % clients)

    def loss(w: Any, batch: dict[str, Any]) -> Any:
        return jnp.average(w * batch["x"], weights=batch["weight"])

    problem = ss.Problem(loss, loss, jnp.float32(1.0), objective_range=(0, 1), constraint_range=(0, 1))
    for _ in range(2):
        start = time.perf_counter()
        ss.certify(problem.start, problem, data, tolerance=0.6)
        took = time.perf_counter() - start
    print(f"\n{rows:,} rows over {clients} clients, two bounded means: {took:.1f} s")


if __name__ == "__main__":
    widths()
    rows_before_training()
    cost()
