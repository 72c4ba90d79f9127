"""Problem: an objective, a constraint, initial parameters, and optionally a domain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.interpreters import partial_eval

from softswitch.problem.domains import Domain, check_domain
from softswitch.problem.parameters import WEIGHT, Batch, Params, call_with_key, check_start, takes_key
from softswitch.problem.ranges import Range, check_range, check_ranges
from softswitch.support import checks


@dataclass(frozen=True)
class PooledConstraint:
    """A constraint that is a function of additive statistics, so that it can be computed over all clients.

    A client's constraint is ``value(statistics(params, batch))``. The criterion ``"pooled"`` adds the statistics of
    all reporting clients, each times the client's number of rows, and evaluates ``value`` on the sum. The result is
    the constraint on the pooled data.

    Attributes:
        statistics: ``(params, batch) -> vector``. Each entry is a sum over rows of ``batch["weight"]`` times a value.
            It may take a random ``key``, like the functions of a ``Problem``.
        value: ``(vector) -> scalar or vector``, the constraint as a function of the summed statistics. It must be
            invariant to scaling all statistics, such as a ratio of sums.
        gaps: Whether each constraint is a gap between two group means, |a/b − c/d| of four statistics a, b, c, d:
            the sum of a group's values and its row count, then those of the other group. Certificates then bound it
            by the range of the values (``Problem.constraint_range``).
    """

    statistics: Callable[..., Any]
    value: Callable[[Any], Any]
    gaps: bool = False

    def __post_init__(self) -> None:
        checks.check_callable("statistics", self.statistics, "(params, batch) -> vector of additive statistics")
        checks.check_callable("value", self.value, "(statistics) -> scalar or vector")

    @property
    def inner_function(self) -> Callable[..., Any]:
        """The function that may take a random ``key``."""
        return self.statistics

    def __call__(self, params: Params, batch: Batch, key: Any = None) -> Any:
        """Return the constraint of one client on a batch: a scalar or a vector."""
        return self.value(call_with_key(self.statistics, params, batch, key))


@dataclass(frozen=True)
class Problem:
    """A federated problem: minimise max_i f_i(w) over the parameters w, subject to max_i g_i(w) <= 0, for clients i.

    Attributes:
        objective: ``(params, batch) -> scalar``, f on a batch. It is minimised.
        constraint: ``(params, batch) -> scalar or vector``, g on a batch; satisfied if <= 0 (within the method's
            tolerance). A vector holds several constraints. Or a ``PooledConstraint``.
        start: w_0, a pytree of floating arrays: a vector, nested dicts and lists, the parameters of a Flax or Equinox
            model. Or a PyTorch module: the functions are then ``(module, batch) -> ...``, and clients ``TorchData``.
        domain: Θ to project onto after each server step: ``Ball``, ``Box``, anything with a ``project``. Default: None.
        convex: True if f, g and Θ are convex, which makes the lower bound on the optimum valid. False if they are not.
            Default: None, unknown. Nothing else depends on it.
        constraint_surrogate: ``(params, batch) -> scalar or vector``, of the constraint's shape: a smooth function
            whose gradient replaces the constraint's. For step functions such as error rates, whose gradient is 0
            almost everywhere. The switch, weights, reports, evaluations and certificates use the constraint itself.
            See ``softswitch.problem.rates`` for ready ones, and ``event_rate`` to write your own.
        objective_range: (low, high) if f on a single row lies between them, {low, high} if it is one of the two, None
            if unknown. For certificates only: it makes their bounds valid.
        constraint_range: The same for g; one for all constraints, or one for each. For a gap between groups (see
            ``PooledConstraint``) it is the range of the values whose means are compared.

    A batch is a dict of arrays with the data's columns, one row per sample, and the row weights under ``"weight"``.
    Weights are non-negative, sum to 1, and make Σ weight·loss an unbiased estimate of the client's mean loss. Write
    means as ``(batch["weight"] * loss).sum()`` or ``jnp.average(loss, weights=batch["weight"])``. A function that
    ignores the weights is accepted only if all rows weigh the same.

    A function with an argument ``key`` receives a random key when a gradient is computed, a different one for every
    client, round and local step: for dropout or data augmentation. When a value is computed (reports, evaluations,
    certificates) the key is None, which means no dropout.

    A function that returns −∞ has nothing to measure: the client has no row of that class or group. Such a value is
    excluded from every maximum, mean and weight. ``mean_over`` returns it.
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
        object.__setattr__(self, "objective_range", check_range("objective_range", self.objective_range))
        object.__setattr__(self, "constraint_range", check_ranges(self.constraint_range))
        if self.convex not in (True, False, None):
            raise TypeError(f"convex must be True, False or None, but is {self.convex!r}")
        checks.check_callable("objective", self.objective, "(params, batch) -> scalar")
        checks.check_callable("constraint", self.constraint, "(params, batch) -> scalar or vector")
        if (surrogate := self.constraint_surrogate) is not None:
            checks.check_callable("constraint_surrogate", surrogate, "(params, batch) -> scalar or vector")
            if self.convex is not None:
                raise ValueError(f"convex must be None if there is a constraint_surrogate, but is {self.convex!r}")
        if not self.is_torch:
            object.__setattr__(self, "start", check_start("start", self.start))
            check_domain(self.domain, self.start)

    @property
    def is_torch(self) -> bool:
        """Whether ``start`` is a PyTorch module, which the functions then take in place of parameters."""
        return hasattr(self.start, "named_parameters")

    def trace(self, batch: Batch, params: Params | None = None) -> ProblemTrace:
        """Trace the functions on a batch without running them; raise ValueError if an output has a wrong shape.

        Args:
            batch: Arrays by column name, or their ``jax.ShapeDtypeStruct``.
            params: Parameters to trace with. Default: ``start``.
        """
        params = self.start if params is None else params
        objective, shape = _trace(self.objective, params, batch, "objective", "one number (a scalar)")
        if shape != ():
            given = f"an array of shape {shape}; average over the rows: jnp.average(loss, weights=batch['weight'])"
            raise ValueError(f"objective must return one number (a scalar) for a batch, but returns {given}")
        constraint, count = _trace_constraint(self.constraint, params, batch, "constraint")
        if isinstance(self.constraint, PooledConstraint):
            _, shape = _trace(self.constraint.statistics, params, batch, "statistics", "one vector")
            if len(shape) != 1:
                raise ValueError(f"statistics must return one vector, but returns an array of shape {shape}")
        programs = {"objective": objective, "constraint": constraint}
        if (surrogate := self.constraint_surrogate) is not None:
            program, values = _trace_constraint(surrogate, params, batch, "constraint_surrogate")
            check_surrogate_size(values, count)
            programs["constraint_surrogate"] = program
        ignoring = (name for name, program in programs.items() if _ignores_weight(program, params, batch))
        return ProblemTrace(count, tuple(ignoring))


class ProblemTrace(NamedTuple):
    """Result of ``Problem.trace``: a client's number of constraints, and the functions that ignore the row weights."""

    constraints: int
    ignore_weight: tuple[str, ...]


def check_surrogate_size(values: int, constraints: int) -> None:
    """Raise ValueError unless ``values``, the number that a surrogate returns, equals the number of constraints."""
    if values != constraints:
        expected = f"one value for each constraint, {constraints}"
        raise ValueError(f"constraint_surrogate must return {expected}, but returns {values}")


def _trace_constraint(function: Callable[..., Any], params: Params, batch: Batch, name: str) -> tuple[Any, int]:
    """Return the jaxpr of a constraint or a surrogate, and its number of values (1 for a scalar)."""
    program, shape = _trace(function, params, batch, name, "a scalar or a vector")
    if len(shape) > 1 or shape == (0,):
        accepted = "a scalar, or a vector with one entry per constraint"
        raise ValueError(f"{name} must return {accepted}, but returns an array of shape {shape}")
    return program, 1 if shape == () else shape[0]


def _trace(
    function: Callable[..., Any], params: Params, batch: Batch, name: str, accepted: str
) -> tuple[Any, tuple[int, ...]]:
    """Return a function's jaxpr with key None, and its output's shape; also trace it with a key if it takes one."""
    try:
        if takes_key(function):
            key = jax.eval_shape(lambda: jax.random.key(0))
            jax.eval_shape(lambda params, batch, key: call_with_key(function, params, batch, key), params, batch, key)
        program = jax.make_jaxpr(lambda params, batch: call_with_key(function, params, batch, None))(params, batch)
    except Exception as error:
        columns = ", ".join(f"{key}: {value.shape} {value.dtype}" for key, value in batch.items())
        error.add_note(f"raised while tracing {name}(params, batch) with a batch of {{{columns}}}")
        if takes_key(function):
            error.add_note("its key is None when a value is computed, and a random key when a gradient is computed")
        raise
    if len(program.out_avals) != 1:
        raise ValueError(f"{name} must return {accepted}, but returns {len(program.out_avals)} arrays")
    output = program.out_avals[0]
    if not jnp.issubdtype(output.dtype, jnp.floating):
        raise ValueError(f"{name} must return floating values, but returns {output.dtype}")
    return program, output.shape


def _ignores_weight(program: Any, params: Params, batch: Batch) -> bool:
    """Return whether the output of a jaxpr depends on a batch's columns, but not on its row weights."""
    _, used = partial_eval.dce_jaxpr(program.jaxpr, [True] * len(program.jaxpr.outvars))
    reads = dict(zip(sorted(batch), used[len(jax.tree.leaves(params)) :], strict=True))  # a dict's leaves are sorted
    return any(reads.values()) and not reads[WEIGHT]
