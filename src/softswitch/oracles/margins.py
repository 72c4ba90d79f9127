"""Margins of single clients: constraints that are raised by a number for each client, so that a bound holds with it."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from softswitch.data.client_data import ClientData
from softswitch.problem.fairness import gap_pieces
from softswitch.problem.parameters import Batch, Params, call_with_key, float_dtype
from softswitch.problem.problem import PooledConstraint, Problem

MARGIN = "client_margin"
"""Name of the column of margins, with the same values in all rows of a client."""


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
    if MARGIN in clients.rows.columns:
        raise ValueError(f"data must not have a column {MARGIN!r} for certified training; rename it")
    constraint = problem.constraint
    has_gaps = isinstance(constraint, PooledConstraint) and constraint.gaps
    margin_constraint = MarginConstraint(constraint, has_gaps and problem.constraint_surrogate is None)
    column = jnp.asarray(np.repeat(margins, clients.sizes, axis=0), float_dtype(problem.start))
    extended = copy(clients)
    extended.rows = clients.rows._replace(columns={**clients.rows.columns, MARGIN: column})
    return replace(problem, constraint=margin_constraint, constraint_range=None), extended
