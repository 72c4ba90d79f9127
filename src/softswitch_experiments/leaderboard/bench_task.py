"""A task of the leaderboard: clients, a bound, and a budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from softswitch.data.client_data import ClientData
from softswitch.oracles.federation import Federation, make_federation
from softswitch.problem.problem import Problem
from softswitch_experiments.leaderboard.scheme import Scheme

BATCH = 32
"""Rows of a batch, of values and of gradients."""


class Stage(NamedTuple):
    """A task, ready to be played.

    Attributes:
        federation: the clients.
        rows: of all of them: what a pass through the data is.
    """

    federation: Federation
    rows: int


@dataclass(frozen=True)
class BenchTask:
    """A problem that methods are compared on. One of your own goes into a list, as those in ``contests.py`` do.

    Attributes:
        name: for tables and files.
        tolerance: ε, the bound on every client's constraint.
        stage: makes the clients for a scheme.
        passes: the budget: how often the data are gone through, reports and gradients together.
        convex: whether all functions are.
        several: whether it is played with all schemes.
        optimum: F*, where it is known.
        gradients: whether clients take gradients of rows; simulated ones cannot do all that some methods ask for.
    """

    name: str
    tolerance: float
    stage: Callable[[Scheme], Stage]
    passes: float
    convex: bool = True
    several: bool = False
    optimum: float | None = None
    gradients: bool = True


def of_rows(make: Callable[[], tuple[Problem, ClientData]]) -> Callable[[Scheme], Stage]:
    """The stage of clients with rows: batches as large for all tasks, and all rows where a client has fewer."""

    def stage(scheme: Scheme) -> Stage:
        problem, clients = make()
        federation = make_federation(
            problem,
            clients,
            local_steps=scheme.local_steps,
            participation=scheme.participation,
            batch_size=BATCH,
        )
        return Stage(federation, int(np.sum(clients.sizes)))

    return stage
