"""Our method on a case, in one place: the defaults, and until then a recipe."""

from __future__ import annotations

import math
from typing import Any

import optax

import softswitch as ss
from benchmarks import flat
from benchmarks.tables.cases import Case

LEAST = 4
"""Clients a round, at least."""
RECIPES = ("defaults", "adam")


def share_of(participation: float, clients: int) -> float:
    """The share of clients a round, so that at least four take part."""
    return participation if participation >= 1 else min(1.0, max(participation, LEAST / clients))


def ours(
    case: Case, participation: float = 1.0, seed: int = 0, *, recipe: str = "defaults", hidden: tuple[int, ...] = ()
) -> ss.Result:
    """The result of our method.

    Args:
        case: the problem.
        participation: the share of clients a round; at least four take part.
        seed: of the run, and of a network's first weights.
        recipe: "defaults": nothing is chosen but the tolerance. "adam": Adam on all rows, its step falling by a cosine.
        hidden: widths of a network's hidden layers.
    """
    problem, clients = case.make(hidden, seed=seed)
    share = share_of(participation, len(clients))
    settings: dict[str, Any] = {"tolerance": case.tolerance}
    if recipe == "defaults":
        return flat.solve(problem, clients, ss.Automatic(**settings), participation=share, seed=seed, progress=False)
    settings |= {
        "alpha": 50 * math.log(len(clients)) / case.tolerance,
        "step_size": optax.cosine_decay_schedule(0.05, 1000),
        "optimizer": optax.adam,
        "threshold": case.tolerance / 1.02,
    }
    return flat.solve(
        problem,
        clients,
        ss.SoftmaxSGM(**settings),
        rounds=1000,
        batch_size=None,
        answer="last",
        participation=share,
        seed=seed,
        eval_every=0,
        progress=False,
    )
