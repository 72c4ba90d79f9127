"""Effect of Byzantine clients on the honest ones, with and without ``robust``.

    python -m benchmarks.attacks                                  # all tasks and attacks, 5 seeds
    python -m benchmarks.attacks --task two uneven                # the tables of the documentation
    python -m benchmarks.attacks --task two --attack adaptive --seeds 2

The tables contain the worst objective and the worst constraint of the honest clients on all their rows: the mean of the
seeds, and the worst seed in brackets. With ``robust`` they also contain the worst constraint without the b worst honest
clients, and in how many runs the diagnostics name all Byzantine clients.
"""

from __future__ import annotations

import argparse
import logging
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flwr.app import Context

import softswitch as ss
import softswitch.flower as fl
from benchmarks import flat
from softswitch.methods.messages import LocalLoss
from softswitch.testing import with_attack
from softswitch_experiments.tasks.fair_classification import adult
from softswitch_experiments.tasks.neyman_pearson import breast_cancer

NAMING = (
    "trimmed-violation",
    "outlier-values",
    "inconsistent-updates",
    "update-scale-mismatch",
    "client-dropout",
)
"""Codes of the diagnostics that name clients."""
_LISTED = r"(?<![\w.]){}(?= \(| in \d|$)"
"""Pattern of a client's name in the evidence, which lists "name (value)" or "name in so many rounds"."""
FLIPPED, RAISES = "flipped-labels", "claims-and-raises"
ROWS = (
    None,
    "inflate-objective",
    FLIPPED,
    "block-constraint",
    "sign-flip",
    "scale",
    RAISES,
    "hide-constraint",
    "free-rider",
    "little-is-enough",
    "inner-product",
    "adaptive-inner-product",
    "adaptive",
)
"""Attacks in the order of the tables. ``ATTACKS`` contains all but two: flipped labels, and a failure to update."""


class Task(NamedTuple):
    """Clients, the settings of a method, and the number of rounds and of Byzantine clients."""

    title: str
    data: Callable[[int], tuple[ss.Problem, ss.ClientData]]
    method: dict[str, Any]
    rounds: int
    byzantine: int = 1
    participation: float = 1.0


def _cancer(clients: int, concentration: float | None = None) -> Callable[[int], tuple[ss.Problem, ss.ClientData]]:
    def made(seed: int) -> tuple[ss.Problem, ss.ClientData]:
        found = breast_cancer(clients, seed=seed, concentration=concentration)
        return found.problem, found.train

    return made


def _adult(seed: int) -> tuple[ss.Problem, ss.ClientData]:
    found = adult(by="occupation", hidden=(), seed=seed)
    return found.problem, found.train


FIXED = {"alpha": 100.0, "step_size": 0.5, "tolerance": 0.1}
TASKS = {
    "all": Task(
        "breast cancer over 16 clients, all in every round, α = 100, η = 0.5, 400 rounds", _cancer(16), FIXED, 400
    ),
    "few": Task("the same, 5 of 16 in a round, 1,500 rounds", _cancer(16), FIXED, 1500, participation=5 / 16),
    "uneven": Task("12 clients of very different rows, one Byzantine", _cancer(12, 2.0), FIXED, 400),
    "two": Task("20 clients, two Byzantine", _cancer(20), FIXED, 400, byzantine=2),
    "chosen": Task("16 clients, automatic settings, 800 rounds", _cancer(16), {"tolerance": 0.1}, 800),
    "adult": Task("Adult by occupation, parity gap, automatic settings, 200 rounds", _adult, {"tolerance": 0.05}, 200),
}
"""Tasks by name. The rule was developed on ``all`` and ``two``."""


class Outcome(NamedTuple):
    """Worst values of the honest clients, and whether the diagnostics name all Byzantine clients."""

    objective: float
    constraint: float
    trimmed_constraint: float
    named: bool


def run(task: Task, attack: str | None, seed: int, robust: int | None) -> Outcome:
    """Run a task under an attack."""
    problem, clients = task.data(seed)
    n = len(clients)
    byzantine = [(3 + 5 * seed + 7 * i) % n for i in range(task.byzantine)]
    honest = [i for i in range(n) if i not in byzantine]
    settings = dict(task.method)
    if attack == "hide-constraint" and "alpha" in settings:
        settings |= {"alpha": 5.0, "alpha_scale": "spread"}
    method = (ss.SoftmaxSGM if "alpha" in settings else ss.Automatic)(**settings, robust=robust)
    memory: Any = ss.Memory() if task.participation < 1 else "auto"
    options: dict[str, Any] = {"rounds": task.rounds, "seed": seed, "progress": False, "memory": memory}
    names = [clients.names[i] for i in byzantine]
    if attack == RAISES:
        result = _over_grid(problem, clients, method, names, task, seed)
    elif attack == FLIPPED:
        taken = _flipped(clients, byzantine)
        result = flat.solve(problem, taken, method, batch_size=None, participation=task.participation, **options)
    else:
        federation = flat.federation_of(problem, clients, participation=task.participation)
        if attack is not None:
            federation = with_attack(federation, names, attack)
        result = flat.solve_federation(federation, method, **options)
    objective, constraint = (np.asarray(part) for part in ss.evaluate(problem, clients, result.params))
    evidence = [finding.evidence for finding in result.diagnostics if finding.code in NAMING]
    named = all(any(re.search(_LISTED.format(re.escape(repr(name))), text) for text in evidence) for name in names)
    levels = np.sort(constraint[honest].max(axis=1))
    return Outcome(objective[honest].max(), levels[-1], levels[-1 - task.byzantine], named)


def _flipped(clients: ss.ClientData, byzantine: list[int]) -> ss.ClientData:
    """Return the same rows, with the labels of the Byzantine clients flipped."""
    owner = np.repeat(np.arange(len(clients)), clients.sizes)
    columns = {key: np.asarray(column) for key, column in clients.rows.columns.items()}
    columns["y"] = np.where(np.isin(owner, byzantine), 1 - columns["y"], columns["y"]).astype(columns["y"].dtype)
    names = np.asarray(clients.names)
    return ss.ClientData.from_arrays(columns, names[owner])


class _ClaimsAndRaises(fl.JaxClient):
    """A client that reports the largest objective, and fails when it should return a direction."""

    def report(self, params: Any, task: Any) -> Any:
        return super().report(params, task)._replace(objective=1e6)

    def update(self, params: Any, task: Any, loss: LocalLoss) -> Any:
        raise RuntimeError("gone")


def _over_grid(
    problem: ss.Problem, clients: ss.ClientData, method: Any, byzantine: list[Any], task: Task, seed: int
) -> ss.Result:
    owner = np.repeat(np.arange(len(clients)), clients.sizes)

    def made(context: Context) -> fl.JaxClient:
        i = int(context.node_config["partition-id"])
        rows = {key: np.asarray(column)[owner == i] for key, column in clients.rows.columns.items()}
        kind = _ClaimsAndRaises if clients.names[i] in byzantine else fl.JaxClient
        return kind(problem, rows, name=str(clients.names[i]), batch_size=None)

    strategy = fl.SwitchingStrategy(method, seed=seed, participation=task.participation, simulation=True)
    grid = fl.InProcessGrid(fl.client_app(made, fl.ClientPolicy.for_simulations()), len(clients))
    strategy.start(grid, fl.initial_arrays(problem.start), task.rounds)
    result = strategy.result
    assert result is not None
    return result.__class__(**{**vars(result), "params": jnp.asarray(next(iter(result.params.values())))})


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=[*TASKS], nargs="*", default=list(TASKS))
    parser.add_argument("--attack", choices=[str(name) for name in ROWS], nargs="*")
    parser.add_argument("--seeds", type=int, default=5)
    asked = parser.parse_args()
    for logger in ("flwr", "softswitch.flower"):
        logging.getLogger(logger).setLevel(logging.ERROR)
    for name in asked.task:
        task = TASKS[name]
        print(f"\n{task.title}; {asked.seeds} seeds\n")
        print("| attack | not robust: F | G | robust: F | G | G, all but b | named |")
        print("|---|---|---|---|---|---|---|")
        for attack in ROWS:
            if asked.attack and str(attack) not in asked.attack:
                continue
            if attack == RAISES and name != "all":
                continue
            cells = []
            for robust in (None, task.byzantine):
                outcomes = [run(task, attack, seed, robust) for seed in range(asked.seeds)]
                shown = np.array([outcome[: 2 if robust is None else 3] for outcome in outcomes])
                cells += [f"{np.mean(values):.2g} ({np.max(values):.2g})" for values in shown.T]
            cells.append("–" if attack is None else f"{sum(outcome.named for outcome in outcomes)} of {len(outcomes)}")
            print(f"| {attack or 'none'} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
