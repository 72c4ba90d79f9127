"""What a certificate of parity costs at clients of very different sizes: ``python -m benchmarks.unequal_clients``.

A simulated census: 47 clients of 3,400 to 68,000 rows, whose shares of groups, features and labels differ. The gap of
the mean probability between two groups is at most 0.05 at each client. The table compares F on the training rows with
the optimum without a certificate, for several draws, and checks the gap on ten times as many new rows.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import softswitch as ss
from softswitch.data.splits import DataSplit
from softswitch.tables.constraints import build_problem

FEATURES = 12
BOUND = 0.05
COLUMNS = ("draw", "outcome", "model", "certified F", "optimum F", "above", "largest true gap", "seconds")


def draw_rows(sizes: np.ndarray, seed: int, clients: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return rows and their clients; the clients' distributions depend on ``clients``, the rows on ``seed``."""
    world, generator = np.random.default_rng(clients), np.random.default_rng(seed)
    shares, shifts = world.uniform(0.3, 0.6, len(sizes)), world.normal(0, 0.3, (len(sizes), FEATURES))
    gaps, levels = world.uniform(0.2, 0.7, len(sizes)), world.normal(-0.8, 0.4, len(sizes))
    weights = world.normal(0, 0.5, FEATURES)
    client = np.repeat(np.arange(len(sizes)), sizes)
    group = (generator.random(len(client)) < shares[client]).astype(np.int32)
    x = generator.normal(size=(len(client), FEATURES)) + shifts[client]
    x[:, 0] += gaps[client] * group
    odds = levels[client] + x @ weights + 0.6 * x[:, 0] + 0.2 * group
    y = (generator.random(len(client)) < 1 / (1 + np.exp(-odds))).astype(np.int32)
    return {"x": x.astype(np.float32), "y": y, "group": group}, client


def main() -> None:
    """Print a row for each draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="number of the first draw")
    parser.add_argument("--clients", type=int, default=47)
    given = parser.parse_args()
    sizes = np.geomspace(3_400, 68_000, given.clients).astype(int)
    problem = build_problem("demographic-parity", FEATURES).problem
    print(" | ".join(COLUMNS))
    for seed in range(given.first, given.first + given.draws):
        data, client = draw_rows(sizes, seed, seed)
        split = DataSplit.from_arrays(data, client, stratify=("y", "group"), seed=seed, strata="group")
        began = time.perf_counter()
        certified = ss.solve_certified(problem, split, tolerance=BOUND)
        seconds = time.perf_counter() - began
        optimum = ss.solve(problem, split.train, tolerance=BOUND).worst_objective
        largest = np.zeros(given.clients)
        for part in range(10):
            new = ss.ClientData.from_arrays(*draw_rows(sizes, 1000 * (seed + 1) + part, seed))
            largest += np.asarray(ss.evaluate(problem, new, certified.result.params)[1])[:, 0] / 10
        objective = certified.result.worst_objective
        cells = seed, certified.outcome, certified.description, f"{objective:.4f}", f"{optimum:.4f}"
        print(
            *cells, f"{objective / optimum - 1:+.1%}", f"{largest.max():.4f}", f"{seconds:.1f}", sep=" | ", flush=True
        )


if __name__ == "__main__":
    main()
