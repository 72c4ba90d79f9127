"""Why no round was feasible: the constraint is not met, or the reports never show that it is."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy import optimize

from softswitch.data.client_data import ClientData, Rows
from softswitch.data.sampling import whole
from softswitch.methods.trimming import worst_but
from softswitch.oracles.base import Evaluation
from softswitch.oracles.losses import Losses
from softswitch.problem.domains import Domain, as_argument
from softswitch.problem.parameters import Params, float_dtype
from softswitch.problem.problem import Problem
from softswitch.results.answer import RunEnd
from softswitch.results.diagnostic import Diagnostic, DiagnosticCode
from softswitch.support.text import in_words

MOST_STEPS = 200
"""The search for a client's smallest constraint takes at most so many steps;"""
FEWEST_STEPS = 10
"""fewer would tell nothing."""


class Alone(NamedTuple):
    """How far a client's constraint can be brought down with no regard to any other.

    Attributes:
        smallest: the smallest value found of its largest constraint, of the constraint itself where it has a stand-in.
        settled: whether the search ended at a minimum, and not for want of steps.
    """

    smallest: float
    settled: bool


class _Enough(Exception):  # noqa: N818
    """The search has taken all its steps."""


def minimise_constraint(
    problem: Problem, clients: ClientData, index: int, params: Params, row_gradients: int
) -> Alone | None:
    """Minimise one client's largest constraint on all of its rows, from ``params``, by L-BFGS within the domain.

    With a stand-in for the constraint that one is minimised, and the smallest constraint on the way is told.

    It is a look aside, and does not cost more than the run that led to it: gradients are taken of at most
    ``row_gradients`` rows in all, in at most ``MOST_STEPS`` steps. None where that is not enough for a look.
    """
    size = int(clients.sizes[index])
    steps = min(MOST_STEPS, row_gradients // size)
    if steps < FEWEST_STEPS:
        return None
    flat, rebuild = ravel_pytree(params)
    losses, domain = Losses.of(problem), as_argument(problem.domain)
    values: list[float] = []

    def step(point: np.ndarray) -> tuple[float, np.ndarray]:
        if len(values) == steps:
            raise _Enough
        here = rebuild(jnp.asarray(point, flat.dtype))
        (value, true), gradient = _descend(here, clients.rows, jnp.int32(index), domain, losses, size)
        values.append(float(true))
        return float(value), np.asarray(ravel_pytree(gradient)[0], dtype=float)

    try:
        found = optimize.minimize(step, np.asarray(flat, dtype=float), jac=True, method="L-BFGS-B")
    except _Enough:
        return Alone(min(values), settled=False)
    return Alone(min(values) if losses.has_surrogate else float(found.fun), bool(found.success))


@partial(jax.jit, static_argnames=("losses", "size"))
def _descend(
    params: Params, rows: Rows, client: jax.Array, domain: Domain | None, losses: Losses, size: int
) -> tuple[tuple[jax.Array, jax.Array], Params]:
    """What falls in place of the client's constraint on all of its rows, the constraint, and the first one's gradient.

    The rows are arguments: no copy is made.
    """

    def violation(params: Params) -> tuple[jax.Array, jax.Array]:
        here = params if domain is None else domain.project(params)
        batch = rows.take(*whole(rows, client, size, float_dtype(here)))
        descended = losses.differentiable_constraints(here, batch).max()
        return descended, losses.constraints(here, batch).max() if losses.has_surrogate else descended

    return jax.value_and_grad(violation, has_aux=True)(params)


def never_passed(ending: RunEnd, judged: Evaluation, noise_setting: str) -> Diagnostic | None:
    """No round passed the switch: by a constraint that is not met, or by reports that never show that it is."""
    history, tolerance = ending.history, ending.method.tolerance
    if history.feasible_rounds or history.void.all() or ending.stopped:
        return None
    worst = judged.constraint.max(axis=1)
    if not worst_but(judged.constraint, ending.method.robust) <= tolerance:
        return never_feasible(ending.names, worst, tolerance, int(worst.argmax()), None)
    return Diagnostic(
        DiagnosticCode.SWITCH_NEVER_PASSES,
        f"at the iterate with the smallest criterion all {len(worst)} clients are within the tolerance {tolerance:g} "
        f"on all their data, the largest at {in_words(float(worst.max()))}, but no round's criterion was at most "
        f"{in_words(float(ending.method.switch_at))}",
        f"The largest of noisy reports is too large: raise {noise_setting}; or raise the threshold towards the "
        "tolerance, or run longer",
        suggests_more_rounds=True,
    )


def never_feasible(
    names: tuple[Any, ...], worst: np.ndarray, tolerance: float, blocker: int, alone: Alone | None
) -> Diagnostic:
    """The constraint was never met: who is how far, and whether the worst client could meet it by itself.

    Args:
        names: the clients' labels.
        worst: each client's largest constraint, where the criterion was smallest.
        tolerance: ε.
        blocker: the client that was looked at by itself.
        alone: how far its constraint can be brought down; None where that was not looked for.
    """
    above = np.flatnonzero(~(worst <= tolerance))
    order = above[np.argsort(-worst[above])]
    named = ", ".join(f"{names[i]!r} ({in_words(worst[i])})" for i in order[:5])
    more = f" and {len(order) - 5} more" if len(order) > 5 else ""
    seen = f"{len(above)} of {len(names)} clients are above the tolerance {tolerance:g} at best: {named}{more}"
    longer = "Run longer, change the step size, or raise the tolerance"
    if alone is None or not math.isfinite(alone.smallest):
        return Diagnostic(DiagnosticCode.NEVER_FEASIBLE, seen, longer, suggests_more_rounds=True)
    if alone.smallest <= tolerance:
        return Diagnostic(
            DiagnosticCode.INCOMPATIBLE_CONSTRAINTS,
            f"{seen}. By itself client {names[blocker]!r} reaches {in_words(alone.smallest)}, within the tolerance",
            "If a longer run or another step size does not help, the clients pull against each other: raise the "
            "tolerance or enlarge the model",
        )
    if not alone.settled:
        return Diagnostic(
            DiagnosticCode.NEVER_FEASIBLE,
            f"{seen}. By itself client {names[blocker]!r} was brought to {in_words(alone.smallest)}, with no end in "
            "sight",
            longer,
            suggests_more_rounds=True,
        )
    return Diagnostic(
        DiagnosticCode.INFEASIBLE_CLIENT,
        f"{seen}. Minimising the constraint of client {names[blocker]!r} alone ends at {in_words(alone.smallest)}",
        f"No other client is to blame: raise the tolerance, or give {names[blocker]!r} a constraint it can meet",
    )
