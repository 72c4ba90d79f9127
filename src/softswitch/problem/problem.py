"""What a user states: an objective, a constraint, a start, and perhaps a domain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import partial_eval

from softswitch.problem.domains import Ball, Box, Domain
from softswitch.support import checks

Params = Any  # a pytree of floating arrays
Batch = dict[str, Any]  # the data's columns, and "weight"

WEIGHT = "weight"
"""The key under which every batch carries its row weights."""


def float_dtype(params: Params) -> Any:
    """The dtype to compute weights, reports and averages in: that of the parameters, and float32 at least."""
    return jnp.promote_types(jnp.result_type(*jax.tree.leaves(params)), jnp.float32)


@dataclass(frozen=True)
class PooledConstraint:
    """A constraint that is a function of additive statistics, so that it can be recomputed over all clients.

    A client's own constraint is ``value(statistics(params, batch))``. The criterion ``"pooled"`` adds the statistics of
    all reporting clients, each times the client's number of rows, and takes ``value`` of the sum: the constraint on
    the clients' data put together.

    Attributes:
        statistics: ``(params, batch) -> vector``; each entry a sum over rows of ``batch["weight"]`` times something.
        value: ``(vector) -> scalar or vector``, the constraint as a function of the summed statistics. It must not
            change when all statistics are multiplied by one number: a ratio of sums, say.
    """

    statistics: Callable[[Params, Batch], Any]
    value: Callable[[Any], Any]

    def __post_init__(self) -> None:
        checks.function("statistics", self.statistics, "(params, batch) -> vector of additive statistics")
        checks.function("value", self.value, "(statistics) -> scalar or vector")

    def __call__(self, params: Params, batch: Batch) -> Any:
        """The constraint of one client."""
        return self.value(self.statistics(params, batch))


@dataclass(frozen=True)
class Problem:
    """min over w of max_i f_i(w) subject to max_i g_i(w) <= 0, each seen through client i's batches only.

    Attributes:
        objective: ``(params, batch) -> scalar``, f on a batch; smaller is better.
        constraint: ``(params, batch) -> scalar or vector``, g on a batch; satisfied where <= 0 (within the rule's
            tolerance). A vector holds several constraints. Or a ``PooledConstraint``.
        start: w_0, a pytree of floating arrays.
        domain: Θ to project onto after every server step: ``Ball``, ``Box`` or None.

    A batch is a dict of arrays with the data's columns, one row a sample, and the row weights under ``"weight"``. They
    are non-negative and sum to 1, and make Σ weight·loss an unbiased estimate of the client's mean loss, so write
    means as ``(batch["weight"] * loss).sum()`` or ``jnp.average(loss, weights=batch["weight"])``. A function that
    ignores them is right as long as all rows weigh the same; where they do not, it is refused.

    A function that returns −∞ says that there is nothing to measure: the client has no row of that class or group, and
    so no such objective or constraint. It then counts in no maximum, no mean and no weight; ``mean_over`` does this.
    """

    objective: Callable[[Params, Batch], Any]
    constraint: Callable[[Params, Batch], Any]
    start: Params
    domain: Domain | None = None

    def __post_init__(self) -> None:
        checks.function("objective", self.objective, "(params, batch) -> scalar")
        checks.function("constraint", self.constraint, "(params, batch) -> scalar or vector")
        object.__setattr__(self, "start", checked_params("start", self.start))
        check_domain(self.domain, self.start)

    def trace(self, batch: Batch, params: Params | None = None) -> Traced:
        """Learn the functions' shapes on a batch of this shape, without computing; raise where they are wrong."""
        params = self.start if params is None else params
        objective = _closed(self.objective, params, batch, "objective")
        shape = _single_output(objective, "objective", "one number (a scalar)").shape
        if shape != ():
            raise ValueError(
                f"objective must return one number (a scalar) for a batch, but returns an array of shape {shape}; "
                "average over the rows: jnp.average(loss, weights=batch['weight'])"
            )
        constraint = _closed(self.constraint, params, batch, "constraint")
        shape = _single_output(constraint, "constraint", "a scalar or a vector").shape
        if len(shape) > 1 or shape == (0,):
            raise ValueError(
                "constraint must return a scalar, or a vector with one entry a constraint, "
                f"but returns an array of shape {shape}"
            )
        if isinstance(self.constraint, PooledConstraint):
            _checked_statistics(self.constraint, params, batch)
        ignoring = [
            name
            for name, function in (("objective", objective), ("constraint", constraint))
            if _ignores_weight(function, params, batch)
        ]
        return Traced(constraints=1 if shape == () else shape[0], ignore_weight=tuple(ignoring))


@dataclass(frozen=True)
class Traced:
    """What tracing a problem's functions tells.

    Attributes:
        constraints: how many constraints a client has.
        ignore_weight: which of "objective" and "constraint" never read ``batch["weight"]``.
    """

    constraints: int
    ignore_weight: tuple[str, ...]


def checked_params(argument: str, params: Params) -> Params:
    """The parameters as floating arrays, all finite, or raise."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    if not leaves:
        raise ValueError(f"{argument} must hold at least one floating array, but is {params!r}")
    for path, leaf in leaves:
        name = f"{argument}{jax.tree_util.keystr(path)}"
        try:
            array = jnp.asarray(leaf)
        except (TypeError, ValueError) as error:
            raise TypeError(f"{name} must be a floating array, but is {leaf!r}") from error
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise TypeError(
                f"{name} must be a floating array, but has dtype {array.dtype}; write 0.0, or .astype(float)"
            )
        if not bool(jnp.isfinite(array).all()):
            raise ValueError(f"{name} must be finite, but holds NaN or infinity")
    return jax.tree.map(lambda leaf: jnp.array(leaf, dtype=jnp.asarray(leaf).dtype), params)


def check_domain(domain: Any, start: Params) -> None:
    """Raise unless ``domain`` is one, and holds the start; None is no domain."""
    if domain is None:
        return
    if not isinstance(domain, Ball | Box):
        raise TypeError(f"domain must be a Ball, a Box or None, but is {domain!r}")
    moved = jax.tree.map(jnp.subtract, domain.project(start), start)
    if any(not np.allclose(leaf, 0, atol=1e-5) for leaf in jax.tree.leaves(moved)):
        raise ValueError(f"start must lie in the domain {domain!r}, but does not")


def _checked_statistics(constraint: PooledConstraint, params: Params, batch: Batch) -> None:
    statistics = _closed(constraint.statistics, params, batch, "statistics")
    shape = _single_output(statistics, "statistics", "one vector").shape
    if len(shape) != 1:
        raise ValueError(f"statistics must return one vector, but returns an array of shape {shape}")


def _closed(function: Callable[..., Any], params: Params, batch: Batch, name: str) -> Any:
    try:
        return jax.make_jaxpr(function)(params, batch)
    except Exception as error:
        columns = ", ".join(f"{key}: {value.shape} {value.dtype}" for key, value in batch.items())
        error.add_note(f"raised while {name}(params, batch) was traced with a batch of {{{columns}}}")
        raise


def _single_output(closed: Any, name: str, accepted: str) -> Any:
    if len(closed.out_avals) != 1:
        raise ValueError(f"{name} must return {accepted}, but returns {len(closed.out_avals)} arrays")
    output = closed.out_avals[0]
    if not jnp.issubdtype(output.dtype, jnp.floating):
        raise ValueError(f"{name} must return floating values, but returns {output.dtype}")
    return output


def _ignores_weight(closed: Any, params: Params, batch: Batch) -> bool:
    """Whether the output depends on rows, but not on their weights: dead code is taken away, and the rest is asked."""
    _, used = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
    read = dict(zip(sorted(batch), used[len(jax.tree.leaves(params)) :], strict=True))  # a dict's leaves are sorted
    return any(read.values()) and not read[WEIGHT]
