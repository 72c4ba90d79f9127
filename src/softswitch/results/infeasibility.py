"""Why no round was feasible: the constraint is not met, or the reports do not show that it is."""

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
from softswitch.data.sampling import all_rows
from softswitch.methods.weighting import trimmed_max
from softswitch.oracles.base import Evaluation
from softswitch.oracles.evaluation import Losses
from softswitch.problem.domains import Domain, as_pytree
from softswitch.problem.parameters import Params, float_dtype
from softswitch.problem.problem import Problem
from softswitch.results.status import Diagnostic, RunEnd
from softswitch.results.status import DiagnosticCode as Code
from softswitch.support.text import format_value, join_first

MIN_STEPS, MAX_STEPS = 10, 200  # limits of the steps of ``minimise_constraint``


class ClientMinimum(NamedTuple):
    """The smallest constraint of one client, minimised alone."""

    smallest: float
    converged: bool


class _StepLimitReached(Exception):  # noqa: N818
    pass


def minimise_constraint(
    problem: Problem, clients: ClientData, index: int, params: Params, row_gradients: int
) -> ClientMinimum | None:
    """Minimise one client's largest constraint, or its surrogate, on all of its rows by L-BFGS within the domain.

    Gradients of at most ``row_gradients`` rows are computed; None if that allows fewer than ``MIN_STEPS`` steps.
    """
    size = int(clients.sizes[index])
    steps = min(MAX_STEPS, row_gradients // size)
    if steps < MIN_STEPS:
        return None
    flat, unravel = ravel_pytree(params)
    losses, domain = Losses.of(problem), as_pytree(problem.domain)
    values: list[float] = []

    def step(point: np.ndarray) -> tuple[float, np.ndarray]:
        if len(values) == steps:
            raise _StepLimitReached
        here = unravel(jnp.asarray(point, flat.dtype))
        (value, constraint), gradient = _descend(here, clients.rows, jnp.int32(index), domain, losses, size)
        values.append(float(constraint))
        return float(value), np.asarray(ravel_pytree(gradient)[0], dtype=float)

    try:
        minimum = optimize.minimize(step, np.asarray(flat, dtype=float), jac=True, method="L-BFGS-B")
    except _StepLimitReached:
        return ClientMinimum(min(values), converged=False)
    return ClientMinimum(min(values) if losses.has_surrogate else float(minimum.fun), bool(minimum.success))


@partial(jax.jit, static_argnames=("losses", "size"))
def _descend(
    params: Params, rows: Rows, client: jax.Array, domain: Domain | None, losses: Losses, size: int
) -> tuple[tuple[jax.Array, jax.Array], Params]:
    """Return the minimised function and the constraint of the client on all of its rows, and the former's gradient."""

    def violation(params: Params) -> tuple[jax.Array, jax.Array]:
        here = params if domain is None else domain.project(params)
        batch = rows.take(*all_rows(rows, client, size, float_dtype(here)))
        descended = losses.differentiable_constraints(here, batch).max()
        return descended, losses.constraints(here, batch).max() if losses.has_surrogate else descended

    return jax.value_and_grad(violation, has_aux=True)(params)


def diagnose_no_feasible_round(end: RunEnd, evaluation: Evaluation, noise_setting: str) -> list[Diagnostic]:
    """Diagnose why no round was feasible."""
    tolerance = end.method.tolerance
    worst = evaluation.constraint.max(axis=1)
    if not trimmed_max(evaluation.constraint, end.method.robust) <= tolerance:
        return [describe_infeasibility(end.names, worst, tolerance, int(worst.argmax()), None)]
    largest, level = format_value(float(worst.max())), format_value(float(end.method.switch_at))
    within = (
        f"all {len(worst)} clients are within the tolerance {tolerance:g} on all their data, the largest at {largest}"
    )
    evidence = f"at the iterate with the smallest criterion {within}, but no round's criterion was at most {level}"
    threshold = "or raise the threshold towards the tolerance, or run longer"
    advice = f"The largest of noisy reports is too large: raise {noise_setting}; {threshold}"
    return [Diagnostic(Code.SWITCH_NEVER_PASSES, evidence, advice, suggests_more_rounds=True)]


def describe_infeasibility(
    names: tuple[Any, ...], worst: np.ndarray, tolerance: float, client: int, minimum: ClientMinimum | None
) -> Diagnostic:
    """Diagnose a run whose constraint was never met.

    ``worst`` has the largest constraint of each client where the criterion was smallest. ``minimum`` is the result of
    minimising the constraint of ``client`` alone, if that was done.
    """
    above = np.flatnonzero(~(worst <= tolerance))
    listed = join_first([f"{names[i]!r} ({format_value(worst[i])})" for i in above[np.argsort(-worst[above])]])
    evidence = f"{len(above)} of {len(names)} clients are above the tolerance {tolerance:g} at best: {listed}"
    name, longer = repr(names[client]), "Run longer, change the step size, or raise the tolerance"
    if minimum is None or not math.isfinite(minimum.smallest):
        return Diagnostic(Code.NEVER_FEASIBLE, evidence, longer, suggests_more_rounds=True)
    smallest = format_value(minimum.smallest)
    if minimum.smallest <= tolerance:
        evidence = f"{evidence}. Alone, client {name} reaches {smallest}, within the tolerance"
        conflict = "If a longer run or another step size does not help, the clients' constraints conflict"
        advice = f"{conflict}: raise the tolerance or enlarge the model"
        return Diagnostic(Code.INCOMPATIBLE_CONSTRAINTS, evidence, advice)
    if not minimum.converged:
        evidence = f"{evidence}. Alone, client {name} reached {smallest}, and the search had not converged"
        return Diagnostic(Code.NEVER_FEASIBLE, evidence, longer, suggests_more_rounds=True)
    evidence = f"{evidence}. Minimising the constraint of client {name} alone ends at {smallest}"
    advice = f"This does not depend on other clients: raise the tolerance, or give {name} a constraint it can meet"
    return Diagnostic(Code.INFEASIBLE_CLIENT, evidence, advice)
