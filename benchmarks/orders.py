"""First and second order on problems of different size: rounds, exchanges, bytes, seconds and gap.

``python -m benchmarks.orders [--only WORD …]`` prints the table of docs/orders.md.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

import softswitch as ss
from softswitch.tables.constraints import build_problem

TOLERANCE = 0.5
NUMBER, EXACT = 4, 8
"""Bytes of a float32 and of a float64 number."""


@dataclass(frozen=True)
class Case:
    """A Neyman–Pearson problem on generated rows: the loss of class 1 is bounded at every client.

    Attributes:
        features: Number of features.
        rows: Number of rows of all clients together.
        clients: Number of clients.
        hidden: Widths of hidden layers.
    """

    features: int
    rows: int
    clients: int
    hidden: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Name of the model and of the data."""
        model = f"network {self.features}→{'→'.join(map(str, self.hidden))}→1" if self.hidden else "linear"
        return f"{model}, {self.rows:,} rows, {self.clients} clients"

    def make(self) -> tuple[ss.Problem, ss.ClientData]:
        """Return the problem and its clients; their labels depend on the features in different ways."""
        generator = np.random.default_rng(0)
        share = generator.dirichlet(np.full(self.clients, 5.0))
        client = np.sort(generator.choice(self.clients, self.rows, p=share))
        x = generator.normal(size=(self.rows, self.features)).astype(np.float32)
        common = generator.normal(size=self.features) * 2
        weights = common + generator.normal(size=(self.clients, self.features)) * 0.5
        score = np.einsum("rf,rf->r", x, weights[client]) / np.sqrt(self.features)
        y = (generator.uniform(size=self.rows) < 1 / (1 + np.exp(-score))).astype(np.int32)
        made = build_problem("neyman-pearson", self.features, self.hidden)
        return made.problem, ss.ClientData.from_arrays({"x": x, "y": y}, client, strata=made.strata)


CASES = (
    Case(5, 1_000, 5),
    Case(30, 20_000, 20),
    Case(99, 100_000, 50),
    Case(299, 30_000, 20),
    Case(20, 1_000_000, 50),
    Case(20, 20_000, 10, (32,)),
)


@dataclass(frozen=True)
class Row:
    """What a run cost and reached.

    Attributes:
        order: "first" or "second".
        rounds: Number of rounds; None if there are none.
        exchanges: Number of exchanges with all clients.
        up: Bytes from one client to the server.
        down: Bytes from the server to one client.
        cold: Processor seconds with compilation.
        warm: Processor seconds without.
        objective: F.
        constraint: G.
        gap: Bound on (F − F*)/F*; None if there is none.
    """

    order: str
    rounds: int | None
    exchanges: int
    up: int
    down: int
    cold: float
    warm: float
    objective: float
    constraint: float
    gap: float | None


def first_order(problem: ss.Problem, clients: ss.ClientData) -> Row:
    """Run ``SoftmaxSGM`` with automatic settings. A round is two exchanges: two numbers, then a direction."""
    size = _parameters(problem)
    result, *seconds = _timed(lambda: ss.solve(problem, clients, ss.Automatic(TOLERANCE, ss.SoftmaxSGM)))
    rounds = len(result.history)
    up, down = rounds * NUMBER * (2 + size), rounds * NUMBER * (2 + size)
    return _row("first", rounds, 2 * rounds, up, down, seconds, result)


def second_order(problem: ss.Problem, clients: ss.ClientData) -> Row:
    """Run ``SQP``. A client returns two values, two gradients and half of a symmetric matrix."""
    size = _parameters(problem)
    result, *seconds = _timed(lambda: ss.solve(problem, clients, ss.SQP(tolerance=TOLERANCE)))
    exchanges = len(result.history)
    up = exchanges * EXACT * (2 + 2 * size + size * (size + 1) // 2)
    return _row("second", None, exchanges, up, exchanges * EXACT * (2 + size), seconds, result)


def _parameters(problem: ss.Problem) -> int:
    return sum(int(np.size(leaf)) for leaf in jax.tree.leaves(problem.start))


def _timed(run: Callable[[], ss.Result]) -> tuple[Any, float, float]:
    """Return the result of a run, its processor seconds with compilation, and those of a second run without."""
    jax.clear_caches()
    began = time.process_time()
    result = run()
    middle = time.process_time()
    run()
    return result, middle - began, time.process_time() - middle


def _row(
    order: str, rounds: int | None, exchanges: int, up: int, down: int, seconds: list[float], result: ss.Result
) -> Row:
    gap = None if result.lower_bound is None or result.gap is None else float(result.gap)
    objective, constraint = float(result.worst_objective), float(result.worst_constraint)
    return Row(order, rounds, exchanges, up, down, seconds[0], seconds[1], objective, constraint, gap)


def table(case: Case, problem: ss.Problem, rows: list[Row]) -> Iterator[str]:
    """Yield the rows of one case in Markdown."""
    for row in rows:
        start = (
            f"| {case.name} | {_parameters(problem)} | {row.order} | {'–' if row.rounds is None else f'{row.rounds:,}'}"
        )
        sizes = f"{row.exchanges:,} | {_bytes(row.up)} | {_bytes(row.down)} | {row.cold:.1f} | {row.warm:.2f}"
        gap = "–" if row.gap is None else f"{row.gap:.0e}" if row.gap > 1e-9 else "< 1e-9"
        yield f"{start} | {sizes} | {row.objective:.5f} | {row.constraint:.5f} | {gap} |"


def _bytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=(), help="problems whose name has one of these words")
    asked = parser.parse_args()
    print("| problem | d | order | rounds | exchanges | up | down | cold | warm | F | G | gap |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    for case in CASES:
        if asked.only and not any(word in case.name for word in asked.only):
            continue
        problem, clients = case.make()
        rows = [first_order(problem, clients)]
        if not case.hidden:
            rows.append(second_order(problem, clients))
        print("\n".join(table(case, problem, rows)), flush=True)


if __name__ == "__main__":
    main()
