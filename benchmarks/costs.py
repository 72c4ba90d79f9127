"""What a round costs as m, E and B grow, and what memory a run holds as its rounds do: ``python -m benchmarks.costs``.

Each of m, E and B is varied by itself over three decades; the peak of memory is that of a fresh process for each number
of rounds. ``--quick`` goes over a decade of each, to see that it runs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import fields
from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import softswitch as ss
from benchmarks import flat
from benchmarks.many_clients import FEATURES, bias, least_squares, peak_bytes
from benchmarks.timing import seconds_in_turns
from softswitch_experiments.tasks.paper_settings import RUN, SOFTMAX_SWITCH, steps

ROWS = 32
"""Of each client; batches are drawn with replacement."""
WORK = 3_000_000
"""A timed run takes gradients on about so many rows, but not of fewer rounds than ``FEWEST_ROUNDS``."""
FEWEST_ROUNDS, MOST_ROUNDS = 2, 500
RULE = ss.SoftmaxSGM(alpha=10.0, tolerance=0.5, **steps(0.001), **SOFTMAX_SWITCH)


class Size(NamedTuple):
    """How large a round is: m clients, E local steps, batches of B rows."""

    m: int
    e: int
    b: int

    @property
    def rows(self) -> int:
        """m·E·B, on how many rows gradients are taken."""
        return self.m * self.e * self.b


BASE = Size(20, 5, 32)
DECADES, QUICK_DECADES = (1, 10, 100, 1000), (1, 10)
ROUNDS, QUICK_ROUNDS = (100, 1_000, 10_000, 100_000), (100, 1_000)


@cache
def data_of(clients: int) -> ss.ClientData:
    """So many clients of ``ROWS`` rows."""
    x = np.random.default_rng(0).standard_normal((clients * ROWS, FEATURES), dtype=np.float32)
    columns = {"x": x, "y": x.sum(axis=1)}
    return ss.ClientData.from_arrays(columns, client=np.repeat(np.arange(clients), ROWS))


def played(size: Size, rounds: int) -> ss.Result:
    """A run of rounds of this size, all clients in each."""
    problem = ss.Problem(least_squares, bias, jnp.zeros(FEATURES))
    how = RUN | {"local_steps": size.e, "batch_size": size.b, "answer": "last", "eval_every": 0}
    return flat.solve(problem, data_of(size.m), RULE, rounds=rounds, progress=False, **how)


def rounds_of(size: Size) -> int:
    """How many rounds the shorter of two timed runs has."""
    return max(FEWEST_ROUNDS, min(MOST_ROUNDS, WORK // (3 * size.rows)))


def sizes(factors: tuple[int, ...]) -> dict[str, tuple[Size, ...]]:
    """The base with each of m, E and B that many times as large, by which of them it is."""
    return {
        name: tuple(BASE._replace(**{field: getattr(BASE, field) * factor}) for factor in factors)
        for name, field in (("m", "m"), ("E", "e"), ("B", "b"))
    }


def milliseconds(every: set[Size], turns: int) -> dict[Size, float]:
    """A round's milliseconds: of a long run less a short one, which leaves out what a run costs once."""
    runs = {
        f"{size} {length}": partial(played, size, length * rounds_of(size))
        for size in sorted(every)
        for length in (1, 3)
    }
    taken = seconds_in_turns(runs, turns)
    return {size: 1e3 * (taken[f"{size} 3"] - taken[f"{size} 1"]) / (2 * rounds_of(size)) for size in every}


def print_times(factors: tuple[int, ...], turns: int) -> None:
    """Print the table of a round's costs."""
    varied = sizes(factors)
    found = milliseconds({size for some in varied.values() for size in some}, turns)
    print(f"Linear, {FEATURES} features, on {jax.default_backend()}; medians of {turns} turns")
    for name, some in varied.items():
        for size in some:
            ratio = found[size] / found[some[0]]
            print(
                f"  {name}: m = {size.m:6,}, E = {size.e:5,}, B = {size.b:6,}: {found[size]:9.3f} ms a round, "
                f"{1e6 * found[size] / size.rows:6.1f} ns a row of m·E·B; "
                f"{size.rows // some[0].rows:5,} times the rows, {ratio:7.1f} times the time",
                flush=True,
            )


def history_bytes(result: ss.Result) -> int:
    """How large the arrays of a run's history are."""
    history = [getattr(result.history, field.name) for field in fields(result.history)]
    return sum(leaf.nbytes for leaf in jax.tree.leaves(history))


def print_memory_of(rounds: int) -> None:
    """Print this process's peak of memory after a run of so many rounds."""
    result = played(BASE, rounds)
    kept = history_bytes(result)
    print(
        f"  K = {rounds:7,}: peak {peak_bytes() / 2**20:6.1f} MiB; history {kept / 2**20:5.2f} MiB, "
        f"{kept / rounds:.0f} bytes a round",
        flush=True,
    )


def main() -> None:
    """Print both tables, or what one process has to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--memory-of", type=int, help="only the peak of a run of so many rounds in this process")
    asked = parser.parse_args()
    if asked.memory_of is not None:
        print_memory_of(asked.memory_of)
        return
    print_times(QUICK_DECADES if asked.quick else DECADES, 1 if asked.quick else asked.turns)
    print(f"Memory of a run, m = {BASE.m}, E = {BASE.e}, B = {BASE.b}; a process each")
    for rounds in QUICK_ROUNDS if asked.quick else ROUNDS:
        subprocess.run([sys.executable, "-m", "benchmarks.costs", "--memory-of", str(rounds)], check=True)


if __name__ == "__main__":
    main()
