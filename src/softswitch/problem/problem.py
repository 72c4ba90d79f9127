"""What a user states: an objective, a constraint, a start, and perhaps a domain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import partial_eval

from softswitch.problem.domains import Domain, check_domain
from softswitch.problem.parameters import WEIGHT, Batch, Params, checked_start
from softswitch.problem.pooled import PooledConstraint
from softswitch.problem.random_keys import call, takes_key
from softswitch.problem.ranges import Range, checked_range, checked_ranges
from softswitch.support import checks


@dataclass(frozen=True)
class Problem:
    """min over w of max_i f_i(w) subject to max_i g_i(w) <= 0, each seen through client i's batches only.

    Attributes:
        objective: ``(params, batch) -> scalar``, f on a batch; smaller is better.
        constraint: ``(params, batch) -> scalar or vector``, g on a batch; satisfied where <= 0 (within the rule's
            tolerance). A vector holds several constraints. Or a ``PooledConstraint``.
        start: w_0, a pytree of floating arrays: a vector, nested dicts and lists, the parameters of a Flax or Equinox
            model. Or a PyTorch module: the functions are then ``(module, batch) -> ...``, and clients ``TorchData``.
        domain: Θ to project onto after every server step: ``Ball``, ``Box``, anything with a ``project``, or None.
        convex: True where f, g and Θ are convex, which makes a promise of the bound on the best possible; False where
            they are not; None where that is not said. Nothing else depends on it.
        constraint_surrogate: ``(params, batch) -> scalar or vector``, of the constraint's shape: what is descended on
            where the constraint is to fall, in place of it. For a constraint that moves in jumps, such as a rate of
            wrong decisions, whose gradient is 0 almost everywhere: a smooth function that falls where the rate falls.
            Everything else reads the constraint itself: the switch, weights, reports, judging, certificates. See
            ``softswitch.problem.rates`` for ready ones, and ``share_over`` to write your own.
        objective_range: (low, high) if f on a single row lies between them, {low, high} if it is one of the two; None
            if that is not said. For certificates only: it makes promises of their limits.
        constraint_range: likewise of g; one for all constraints, or one each. Of a gap between groups (see
            ``PooledConstraint``) it is the range of the values whose means are compared.

    A batch is a dict of arrays with the data's columns, one row a sample, and the row weights under ``"weight"``. They
    are non-negative and sum to 1, and make Σ weight·loss an unbiased estimate of the client's mean loss, so write
    means as ``(batch["weight"] * loss).sum()`` or ``jnp.average(loss, weights=batch["weight"])``. A function that
    ignores them is right as long as all rows weigh the same; where they do not, it is refused.

    A function with an argument ``key`` is given a random key wherever a gradient is taken, another for every client,
    round and local step: for dropout, say, or augmented rows. Where a value is wanted (reports, evaluations,
    certificates) the key is None: no dropout then.

    A function that returns −∞ says that there is nothing to measure: the client has no row of that class or group, and
    so no such objective or constraint. It then counts in no maximum, no mean and no weight; ``mean_over`` does this.
    """

    objective: Callable[..., Any]
    constraint: Callable[..., Any]
    start: Params
    domain: Domain | None = None
    convex: bool | None = None
    constraint_surrogate: Callable[..., Any] | None = None
    objective_range: Range | None = None
    constraint_range: Range | Sequence[Range | None] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "objective_range", checked_range("objective_range", self.objective_range))
        object.__setattr__(self, "constraint_range", checked_ranges(self.constraint_range))
        if self.convex not in (True, False, None):
            raise TypeError(f"convex must be True, False or None, but is {self.convex!r}")
        checks.function("objective", self.objective, "(params, batch) -> scalar")
        checks.function("constraint", self.constraint, "(params, batch) -> scalar or vector")
        if self.constraint_surrogate is not None:
            checks.function("constraint_surrogate", self.constraint_surrogate, "(params, batch) -> scalar or vector")
            if self.convex is not None:
                raise ValueError(
                    "convex must be left out where there is a constraint_surrogate: the constraint moves in jumps, and "
                    "there is no bound on the best possible to promise"
                )
        if not self.is_torch:
            object.__setattr__(self, "start", checked_start("start", self.start))
            check_domain(self.domain, self.start)

    @property
    def is_torch(self) -> bool:
        """Whether the start is a PyTorch module, and the functions take that module in place of parameters."""
        return hasattr(self.start, "named_parameters")

    def trace(self, batch: Batch, params: Params | None = None) -> Traced:
        """Learn the functions' shapes on a batch of this shape, without computing; raise where they are wrong.

        Args:
            batch: arrays by name, or their shapes.
            params: parameters to trace with; None: the start.
        """
        params = self.start if params is None else params
        objective = _closed(self.objective, params, batch, "objective")
        shape = _single_output(objective, "objective", "one number (a scalar)").shape
        if shape != ():
            raise ValueError(
                f"objective must return one number (a scalar) for a batch, but returns an array of shape {shape}; "
                "average over the rows: jnp.average(loss, weights=batch['weight'])"
            )
        constraint, many = _traced_constraint(self.constraint, params, batch, "constraint")
        if isinstance(self.constraint, PooledConstraint):
            _checked_statistics(self.constraint, params, batch)
        functions = {"objective": objective, "constraint": constraint}
        if self.constraint_surrogate is not None:
            stand_in, stood_for = _traced_constraint(self.constraint_surrogate, params, batch, "constraint_surrogate")
            check_stand_in(stood_for, many)
            functions["constraint_surrogate"] = stand_in
        ignoring = [name for name, function in functions.items() if _ignores_weight(function, params, batch)]
        return Traced(constraints=many, ignore_weight=tuple(ignoring))


@dataclass(frozen=True)
class Traced:
    """What tracing a problem's functions tells.

    Attributes:
        constraints: how many constraints a client has.
        ignore_weight: which of "objective", "constraint" and "constraint_surrogate" never read ``batch["weight"]``.
    """

    constraints: int
    ignore_weight: tuple[str, ...]


def check_stand_in(values: int, constraints: int) -> None:
    """Raise unless a stand-in gives one value for each constraint."""
    if values != constraints:
        raise ValueError(
            "constraint_surrogate must return as many values as the constraint, one for each, but returns "
            f"{values} where the constraint returns {constraints}"
        )


def _traced_constraint(function: Callable[..., Any], params: Params, batch: Batch, name: str) -> tuple[Any, int]:
    """A constraint's program, or its stand-in's, and how many constraints it has."""
    closed = _closed(function, params, batch, name)
    shape = _single_output(closed, name, "a scalar or a vector").shape
    if len(shape) > 1 or shape == (0,):
        raise ValueError(
            f"{name} must return a scalar, or a vector with one entry a constraint, "
            f"but returns an array of shape {shape}"
        )
    return closed, 1 if shape == () else shape[0]


def _checked_statistics(constraint: PooledConstraint, params: Params, batch: Batch) -> None:
    statistics = _closed(constraint.statistics, params, batch, "statistics")
    shape = _single_output(statistics, "statistics", "one vector").shape
    if len(shape) != 1:
        raise ValueError(f"statistics must return one vector, but returns an array of shape {shape}")


def _closed(function: Callable[..., Any], params: Params, batch: Batch, name: str) -> Any:
    """The function's program, as values are computed; one that takes a key is tried with a key as well."""
    try:
        if takes_key(function):
            jax.eval_shape(lambda params, batch, key: call(function, params, batch, key), params, batch, _a_key())
        return jax.make_jaxpr(lambda params, batch: call(function, params, batch, None))(params, batch)
    except Exception as error:
        columns = ", ".join(f"{key}: {value.shape} {value.dtype}" for key, value in batch.items())
        error.add_note(f"raised while {name}(params, batch) was traced with a batch of {{{columns}}}")
        if takes_key(function):
            error.add_note("its key is None where a value is wanted, and a random key where a gradient is taken")
        raise


def _a_key() -> Any:
    return jax.eval_shape(lambda: jax.random.key(0))


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
