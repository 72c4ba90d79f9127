"""Some cases with a small network, where no optimum is known: our method against the best of a grid of settings."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import optax
from rich.table import Table

import softswitch as ss
from benchmarks import flat
from benchmarks.tables.cases import Case
from benchmarks.tables.ours import ours

NETWORKS = ("adult, demographic-parity", "crashes, neyman-pearson", "loans, group-loss")
HIDDEN = (16,)
ROUNDS = 1000
STEPS = (0.003, 0.01, 0.03, 0.1, 0.3)
SHARPNESS = (10.0, 50.0)
"""α in units of ln(n)/tolerance."""
OPTIMIZERS = (optax.adam, optax.sgd)


def best_of_grid(case: Case, seed: int = 0) -> dict[str, Any]:
    """The smallest F of 20 settings whose G is within the tolerance, all rows and clients in every round."""
    problem, clients = case.make(HIDDEN, seed=seed)
    methods = [
        ss.SoftmaxSGM(
            alpha=sharpness * math.log(len(clients)) / case.tolerance,
            step_size=optax.cosine_decay_schedule(step, ROUNDS),
            tolerance=case.tolerance,
            threshold=case.tolerance / 1.02,
            optimizer=optimizer,
        )
        for step, sharpness, optimizer in product(STEPS, SHARPNESS, OPTIMIZERS)
    ]
    swept = flat.sweep(
        problem,
        clients,
        methods,
        seeds=[seed],
        rounds=ROUNDS,
        batch_size=None,
        answer="last",
        eval_every=0,
        progress=False,
    )
    results = [runs[0] for runs in swept.results]
    kept = [k for k, result in enumerate(results) if result.worst_constraint <= case.tolerance]
    if not kept:
        return {
            "objective": np.inf,
            "constraint": min(r.worst_constraint for r in results),
            "settings": "none feasible",
        }
    best = min(kept, key=lambda k: results[k].worst_objective)
    step, sharpness, optimizer = list(product(STEPS, SHARPNESS, OPTIMIZERS))[best]
    return {
        "objective": float(results[best].worst_objective),
        "constraint": float(results[best].worst_constraint),
        "settings": f"{optimizer.__name__}, step {step:g}, α {sharpness:g}·ln(n)/tolerance",
    }


def row_of(case: Case, recipe: str, participation: float = 1.0, seed: int = 0) -> dict[str, Any]:
    """Our method's network beside the best of the grid."""
    mine = ours(case, participation, seed, recipe=recipe, hidden=HIDDEN)
    return {
        "case": case.name,
        "participation": participation,
        "tolerance": case.tolerance,
        "objective": float(mine.worst_objective),
        "constraint": float(mine.worst_constraint),
        **{f"grid_{key}": value for key, value in best_of_grid(case, seed).items()},
    }


def printed(rows: list[dict[str, Any]]) -> Table:
    """The rows for the terminal."""
    table = Table("case", "F", "G", "bound", "best of the grid: F", "G", "its settings", "ours, of the grid's")
    for row in rows:
        table.add_row(
            row["case"],
            f"{row['objective']:.4f}",
            f"{row['constraint']:.4f}",
            f"{row['tolerance']:g}",
            f"{row['grid_objective']:.4f}",
            f"{row['grid_constraint']:.4f}",
            row["grid_settings"],
            f"{row['objective'] / row['grid_objective']:.3f}",
        )
    return table
