"""At which earlier iterate a client that was away should report: the round's own before, or the last that it saw.

``python -m benchmarks.which_iterate [--seeds 12]``: least squares in a plain NumPy loop, the root mean square by which
what is believed of those asked misses the truth, in the last two thirds of the rounds.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from softswitch.methods.drift_correction import DECAY_RATES, ERROR_DECAY

CLIENTS, FEATURES, ROWS, BATCH, ROUNDS, ALPHA = 20, 5, 80, 4, 300, 10.0
FIRST_SEED = 100


class Way(NamedTuple):
    """How estimates are moved: at the client's own last iterate or the server's, by β^a or by β."""

    own: bool
    by_age: bool


WAYS = {"w_{k−1}, β^a": Way(False, True), "its own, β^a": Way(True, True), "its own, β": Way(True, False)}


def miss_of(way: Way, asked: int, step: float, falls: bool, seed: int) -> float:
    """Root mean square miss of those asked."""
    rng, shares = np.random.default_rng(seed), np.asarray(DECAY_RATES)
    x = rng.normal(size=(CLIENTS, ROWS, FEATURES))
    y = np.einsum("nij,nj->ni", x, 0.7 * rng.normal(size=(CLIENTS, FEATURES)) + 1)
    y += 0.5 * rng.normal(size=y.shape)

    def value(w: np.ndarray, i: int, rows: np.ndarray) -> float:
        return float(0.5 * np.square(x[i, rows] @ w - y[i, rows]).mean())

    w = before = np.zeros(FEATURES)
    last, heard = np.zeros((CLIENTS, FEATURES)), np.full(CLIENTS, -1)
    estimates, missed = np.full((CLIENTS, len(shares)), np.inf), np.zeros(len(shares))
    believed, errors = estimates[:, 0], []
    for k in range(ROUNDS):
        worst = np.argsort(-believed)[: asked - 2]
        chosen = [*worst, *rng.choice(np.setdiff1d(np.arange(CLIENTS), worst), 2, replace=False)]
        missed *= ERROR_DECAY
        for i in chosen:
            rows, age = rng.integers(0, ROWS, BATCH), k - heard[i]
            now, miss = value(w, i, rows), np.zeros(len(shares))
            if heard[i] >= 0:
                miss = value(last[i] if way.own else before, i, rows) - estimates[i]
                missed += (1 - ERROR_DECAY) * miss**2 * (age == 1)
            estimates[i] = now - shares ** (age if way.by_age else 1) * miss
            heard[i], last[i] = k, w
        believed = estimates[:, missed.argmin()].copy()
        if k >= ROUNDS // 3:
            errors += [believed[i] - value(w, i, np.arange(ROWS)) for i in chosen]
        weights = np.exp(ALPHA * (believed[chosen] - believed[chosen].max()))
        direction = np.zeros(FEATURES)
        for weight, i in zip(weights / weights.sum(), chosen, strict=True):
            rows = rng.integers(0, ROWS, BATCH)
            direction += weight * x[i, rows].T @ (x[i, rows] @ w - y[i, rows]) / BATCH
        before, w = w, w - step * (0.5 * (1 + np.cos(np.pi * k / ROUNDS)) if falls else 1) * direction
    return float(np.sqrt(np.mean(np.square(errors))))


def main() -> None:
    """Print one row a course."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=12)
    seeds = range(FIRST_SEED, FIRST_SEED + parser.parse_args().seeds)
    table = Table("step", "asked", *WAYS)
    for falls, step in ((True, 0.2), (True, 0.05), (False, 0.2), (False, 0.05)):
        for asked in (3, 5, 10):
            found = [np.mean([miss_of(way, asked, step, falls, seed) for seed in seeds]) for way in WAYS.values()]
            table.add_row(
                f"{step:g}, {'falling' if falls else 'constant'}",
                f"{asked} of {CLIENTS}",
                *(f"{one:.3f}" for one in found),
            )
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
