"""Objectives and constraints that are shifted by numbers of each client: regrets, and margins.

A regret is f_i − f_i*, where f_i* is the client optimum: the minimum of f_i for client i alone. Margins raise the
constraints of a client, so that a bound holds with them. The numbers are one more column of the client's rows. They are
constants, so gradients stay the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from softswitch.data.client_data import ClientData
from softswitch.oracles.options import TorchData
from softswitch.problem.fairness import gap_pieces
from softswitch.problem.parameters import CLIENT_OPTIMUM, Batch, Params, call_with_key, float_dtype
from softswitch.problem.problem import PooledConstraint, Problem
from softswitch.support import checks

MARGIN = "client_margin"
"""Name of the column of margins, with the same values in all rows of a client."""


def _with_column(clients: ClientData, name: str, numbers: np.ndarray, problem: Problem, use: str) -> ClientData:
    """Return the clients' data with a column of numbers of each client; raise ValueError if it exists already."""
    if name in clients.rows.columns:
        raise ValueError(f"data must not have a column {name!r} {use}; rename it")
    column = jnp.asarray(np.repeat(numbers, clients.sizes, axis=0), float_dtype(problem.start))
    extended = copy(clients)
    extended.rows = clients.rows._replace(columns={**clients.rows.columns, name: column})
    return extended


@dataclass(frozen=True)
class RegretObjective:
    """The objective function f minus the client optimum f*, a column with the same value in all rows of a client."""

    inner_function: Callable[..., Any]  # f

    def __call__(self, params: Params, batch: Batch, key: Any = None) -> Any:
        """Return f − f* on a batch."""
        return call_with_key(self.inner_function, params, batch, key) - batch[CLIENT_OPTIMUM][0]


def client_optimum_of(problem: Problem, clients: Any) -> np.ndarray | None:
    """Return f_i* in the clients' order if the objectives of the problem are regrets, else None."""
    has_optimum = isinstance(clients, TorchData) or isinstance(problem.objective, RegretObjective)
    return clients.client_optimum if has_optimum else None


class RegretTask(NamedTuple):
    """A problem whose objectives are regrets, with its clients."""

    problem: Problem  # with objective f_i − f_i*
    clients: Any  # data with f_i* in a column
    client_optimum: np.ndarray  # f_i* in the clients' order; −∞ for a client without an objective

    def transform(self, data: ClientData) -> ClientData:
        """Return other rows of the same clients with f_i* in a column; raise ValueError for an unknown client."""
        checks.check_instance("held_out", data, ClientData)
        optima = dict(zip(self.clients.names, self.client_optimum, strict=True))
        for name in data.names:
            if name not in optima:
                raise ValueError(f"held_out must contain only training clients if regret is used, but has {name!r}")
        return _with_client_optimum(data, np.array([optima[name] for name in data.names]), self.problem)


def to_regret_task(problem: Problem, clients: ClientData, client_optimum: np.ndarray) -> RegretTask:
    """Return the problem with objectives f_i − f_i* (−∞: none) and its clients; unchanged if they are regrets."""
    if isinstance(problem.objective, RegretObjective):
        return RegretTask(problem, clients, client_optimum)
    # The range of f does not bound f_i − f_i*.
    shifted = replace(problem, objective=RegretObjective(problem.objective), objective_range=None)
    return RegretTask(shifted, _with_client_optimum(clients, client_optimum, problem), client_optimum)


def _with_client_optimum(clients: ClientData, optimum: np.ndarray, problem: Problem) -> ClientData:
    """Return the clients' data with the column ``client_optimum`` of f_i*, where −∞ becomes 0."""
    if len(optimum) != len(clients):
        raise ValueError(f"client_optimum must have one number for each of {len(clients)} clients, not {len(optimum)}")
    constants = np.where(np.isneginf(optimum), 0.0, optimum)
    extended = _with_column(clients, CLIENT_OPTIMUM, constants, problem, "if regret is used")
    extended.client_optimum = optimum
    return extended


def check_optimum(optimum: Any, names: tuple[Any, ...]) -> np.ndarray:
    """Return f_i* (−∞: no objective) in the clients' order, from such numbers or a dict by name; else ValueError."""
    if isinstance(optimum, Mapping) and set(optimum) == set(names):
        optimum = [optimum[name] for name in names]
    try:
        numbers = np.asarray(optimum, float)
    except (TypeError, ValueError):
        numbers = np.zeros(0)
    if numbers.shape != (len(names),) or not (np.isfinite(numbers) | np.isneginf(numbers)).all():
        expected = f"one number for each of {len(names)} clients (in their order, or a dict by name)"
        raise ValueError(f"optimum must be {expected}, but is {optimum!r}")
    return numbers


@dataclass(frozen=True)
class MarginConstraint:
    """The constraints of a client plus its margins. A smooth gap |a − b| becomes two constraints, a − b and b − a."""

    inner_function: Callable[..., Any]  # the constraints
    has_pieces: bool  # whether they are gaps without a surrogate

    def __call__(self, params: Params, batch: Batch, key: Any = None) -> Array:
        """Return the constraints plus the margins on a batch."""
        margins, constraint = batch[MARGIN][0], self.inner_function
        if not self.has_pieces:
            return jnp.atleast_1d(call_with_key(constraint, params, batch, key)) + margins
        assert isinstance(constraint, PooledConstraint)
        pieces = gap_pieces(call_with_key(constraint.statistics, params, batch, key))
        return pieces + jnp.tile(margins, 2)


def with_margins(problem: Problem, clients: ClientData, margins: np.ndarray) -> tuple[Problem, ClientData]:
    """Return the problem and its clients with ``margins`` (clients × constraints) added to the constraints."""
    constraint = problem.constraint
    has_gaps = isinstance(constraint, PooledConstraint) and constraint.gaps
    margin_constraint = MarginConstraint(constraint, has_gaps and problem.constraint_surrogate is None)
    extended = _with_column(clients, MARGIN, margins, problem, "for certified training")
    return replace(problem, constraint=margin_constraint, constraint_range=None), extended
