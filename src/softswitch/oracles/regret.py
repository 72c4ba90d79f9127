"""Regrets in place of objectives: f_i − f_i*, what a client loses by not having its own best model.

The smallest f_i* of a client whose data are mostly noise is large, and so is its f_i for whatever parameters: it rules
max_i f_i, and the others are given up for it. By max_i (f_i − f_i*) everybody is measured by what it could have.

f_i* is a constant of the client: gradients and constraints stay what they are. It travels as one more column of the
client's rows, so that all that reads rows and functions works with it: any engine, devices, a memory, checkpoints, a
bound on the best possible.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from softswitch.data.client_data import ClientData
from softswitch.problem.parameters import CLIENT_OPTIMUM, Batch, Params, float_dtype
from softswitch.problem.problem import Problem
from softswitch.problem.random_keys import takes_key
from softswitch.support import checks

Regret = bool | ArrayLike | Mapping[Any, float] | None
"""How regrets are asked for: True, f_i* are found; or the numbers themselves, in the clients' order or by name."""


def uses_regret(regret: Regret) -> bool:
    """Whether regrets are to stand for objectives.

    Args:
        regret: as it was given; numbers are asked for too, whatever they are.
    """
    return regret is not None and regret is not False


@dataclass(frozen=True)
class RegretObjective:
    """An objective less the client's own best.

    The first row says what that is: all rows of a batch, those of weight 0 too, are the client's own, and the column is
    the same in all of them. Weights are not read: whether f reads them stays to be seen.

    Attributes:
        objective: f.
    """

    objective: Callable[..., Any]

    def __call__(self, params: Params, batch: Batch) -> Any:
        """f − f*; −∞ where there is no f."""
        return self.objective(params, batch) - batch[CLIENT_OPTIMUM][0]


@dataclass(frozen=True)
class RandomRegretObjective(RegretObjective):
    """The same for an objective that takes a random key."""

    def __call__(self, params: Params, batch: Batch, key: Any = None) -> Any:
        """f − f*."""
        return self.objective(params, batch, key=key) - batch[CLIENT_OPTIMUM][0]


class RegretTask(NamedTuple):
    """A problem of regrets.

    Attributes:
        problem: with f_i − f_i* as its objective.
        clients: with f_i* in a column.
        client_optimum: f_i*, in the clients' order.
    """

    problem: Problem
    clients: ClientData
    client_optimum: np.ndarray

    def also(self, others: ClientData | None) -> ClientData | None:
        """Other rows of the same clients, with f_i* in a column."""
        if others is None:
            return None
        checks.expect("held_out", others, ClientData)
        known = dict(zip(self.clients.names, self.client_optimum, strict=True))
        strangers = [name for name in others.names if name not in known]
        if strangers:
            raise ValueError(
                f"held_out must have only clients that are trained on where regret is asked for, but has "
                f"{strangers[0]!r}, of which no f_i* is known"
            )
        return with_client_optimum(others, np.array([known[name] for name in others.names]), self.problem)


def to_regret_task(problem: Problem, clients: ClientData, client_optimum: np.ndarray) -> RegretTask:
    """The problem of regrets; one that is that already stays as it is.

    Args:
        problem: its objective is f.
        clients: whose rows.
        client_optimum: f_i*, in their order; of a client that has no objective −∞, which then counts as 0.
    """
    if isinstance(problem.objective, RegretObjective):
        return RegretTask(problem, clients, client_optimum)
    kind = RandomRegretObjective if takes_key(problem.objective) else RegretObjective
    # A range of f is none of f_i − f_i*, which is another at every client.
    shifted = replace(problem, objective=kind(problem.objective), objective_range=None)
    return RegretTask(shifted, with_client_optimum(clients, client_optimum, problem), client_optimum)


def with_client_optimum(clients: ClientData, client_optimum: np.ndarray, problem: Problem) -> ClientData:
    """The clients' rows with one more column."""
    if len(client_optimum) != len(clients):
        raise ValueError(
            f"client_optimum must have a number for each of {len(clients)} clients, but has {len(client_optimum)}"
        )
    if CLIENT_OPTIMUM in clients.rows.columns:
        raise ValueError(f"data must not have a column {CLIENT_OPTIMUM!r} where regret is asked for; rename it")
    dtype = np.dtype(float_dtype(problem.start))
    column = np.repeat(np.where(np.isneginf(client_optimum), 0.0, client_optimum), clients.sizes).astype(dtype)
    more = copy(clients)
    more.rows = clients.rows._replace(columns={**clients.rows.columns, CLIENT_OPTIMUM: jnp.asarray(column)})
    return more


def parse_client_optimum(regret: Regret, names: tuple[Any, ...]) -> np.ndarray | None:
    """The numbers f_i* that were given, in the clients' order, or raise; None where they are to be found.

    −∞, as ``client_optimum`` has it for a client without an objective, is a number here.
    """
    if regret is True:
        return None
    wanted = f"True, or one number for each of {len(names)} clients (their order, or a dict by name)"
    if isinstance(regret, Mapping):
        missing = [name for name in names if name not in regret]
        if missing:
            raise ValueError(f"regret must be {wanted}, but has none for {missing[0]!r}")
        others = [name for name in regret if name not in names]
        if others:
            raise ValueError(f"regret must be {wanted}, but has one for {others[0]!r}, which is no client")
        regret = [regret[name] for name in names]
    try:
        numbers = np.asarray(regret, float)
    except (TypeError, ValueError) as error:
        raise ValueError(f"regret must be {wanted}, but is {regret!r}") from error
    known = np.isfinite(numbers) | np.isneginf(numbers)
    if isinstance(regret, bool | str) or numbers.shape != (len(names),) or not known.all():
        raise ValueError(f"regret must be {wanted}, but is {regret!r}")
    return numbers
