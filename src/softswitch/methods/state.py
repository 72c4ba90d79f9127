"""State of the server between two rounds, and its optimizer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from softswitch.methods.base import Method
from softswitch.methods.client_state import ClientStates
from softswitch.methods.compression import Compression, compress_steps
from softswitch.methods.directions import OptimisticDirection
from softswitch.methods.memory import ClientMemory, Memory
from softswitch.methods.parts import Part, PreviousIterate
from softswitch.methods.robust import RobustAggregation, WeightCap
from softswitch.problem.parameters import Params, float_dtype
from softswitch.support.arrays import select, update_if


class Average(NamedTuple):
    """A running mean of iterates with compensated (Kahan) summation, so that 10⁶ rounds lose no digits in float32."""

    total: Params  # Σ w_k, rounded
    lost: Params  # rounding error of ``total``, which is subtracted
    rounds: Int[Array, ""]  # number of iterates in the sum

    @classmethod
    def empty(cls, params: Params) -> Average:
        """Return the mean of no iterates, with arrays of 0 in the structure of ``params``."""
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, float_dtype(leaf)), params)
        return cls(zeros, zeros, jnp.int32(0))

    def add(self, params: Params, joins: Bool[Array, ""]) -> Average:
        """Return the mean with another iterate if ``joins`` is true, else this one."""

        def add_iterate(average: Average) -> Average:
            value = jax.tree.map(lambda w, lost: w.astype(lost.dtype) - lost, params, average.lost)
            total = jax.tree.map(jnp.add, average.total, value)
            lost = jax.tree.map(lambda new, old, v: (new - old) - v, total, average.total, value)
            return Average(total, lost, average.rounds + 1)

        return update_if(joins, add_iterate, self)

    def mean(self) -> Params:
        """Return Σ w_k / rounds, or zeros if no iterate was added."""
        count = jnp.maximum(self.rounds, 1)
        return jax.tree.map(lambda s, lost: (s - lost) / count.astype(s.dtype), self.total, self.lost)


class BestIterate(NamedTuple):
    """The feasible iterate with the smallest reported objective; if none is feasible, that of smallest criterion."""

    params: Params  # the iterate
    score: Float[Array, ""]  # its reported worst-client objective; +∞ while no iterate was feasible
    criterion: Float[Array, ""]  # the smallest criterion of any iterate, feasible or not; +∞ before the first

    def offer(self, params: Params, score: Array, feasible: Array, criterion: Array, counts: Array) -> BestIterate:
        """Return the better of this and the iterate ``params``; an invalid round (``counts`` is False) is ignored."""
        better = feasible & (score < self.score)
        nearer = counts & (criterion < self.criterion)
        takes = better | (nearer & jnp.isposinf(self.score))

        def replace(best: tuple[Params, Array]) -> tuple[Params, Array]:
            return params, select(better, score, best[1])

        kept, best = update_if(takes, replace, (self.params, self.score))
        return BestIterate(kept, best, select(nearer, criterion, self.criterion))


class State(NamedTuple):
    """State of the server before round k, a pytree."""

    params: Params  # w_k
    optimizer: Any  # state of the server optimizer
    method: Any  # state of the method
    average: Average  # mean of the feasible iterates
    best: BestIterate  # best feasible iterate by its reports
    diverged_at: Int[Array, ""]  # first round with a value that is not finite; −1 if there is none
    parts: dict[str, Any]  # states of the active optional parts of a round, by ``Part.name``

    @property
    def averaged_params(self) -> Params:
        """Mean of the feasible iterates with the dtypes of the parameters; zeros if there is none."""
        return jax.tree.map(lambda mean, w: mean.astype(w.dtype), self.average.mean(), self.params)

    def with_part(self, name: str, value: Any) -> State:
        """Return the state with ``parts[name]`` replaced by ``value``."""
        return self._replace(parts=self.parts | {name: value})


def first_state(
    params: Params, method: Method, parts: Sequence[Part], clients: int, constraints: int, statistics: int | None = None
) -> State:
    """Return the state before round 0; ``statistics`` is the number of a pooled constraint's, None for a plain one."""
    infinite = jnp.full((), jnp.inf, float_dtype(params))
    initial = {part.name: part.init(params, clients, constraints, statistics) for part in parts}
    return State(
        params=params,
        optimizer=server_optimizer(method, 0).init(params),
        method=method.init(clients, constraints),
        average=Average.empty(params),
        best=BestIterate(params, infinite, infinite),
        diverged_at=jnp.int32(-1),
        parts={name: state for name, state in initial.items() if state is not None},
    )


def first_averaged_round(rounds: int, share: float) -> int:
    """Return the number of the first round of an average over the fraction ``share`` of the last rounds."""
    return rounds - math.ceil(share * rounds)


def server_optimizer(method: Method, k: Any) -> optax.GradientTransformationExtraArgs:
    """Return the method's optax optimizer with the step size of round k, with compressed steps if it has them."""
    optimizer = optax.with_extra_args_support(method.server_optimizer(method.step_size_at(k)))
    if isinstance(method.at_clients, Compression) and method.at_clients.down is not None:
        return compress_steps(optimizer, method.at_clients.down)
    return optimizer


def check_optimizer(method: Method, params: Params) -> None:
    """Raise TypeError if the optimizer is not an optax transformation, ValueError if it needs more than a value."""
    made: list[Any] = []

    def update(k: Array, params: Params) -> Any:
        made.append(method.server_optimizer(method.step_size_at(k)))
        optimizer = optax.with_extra_args_support(made[0])
        return optimizer.update(params, optimizer.init(params), params, value=jnp.zeros((), float_dtype(params)))

    try:
        jax.eval_shape(update, jnp.int32(0), params)
    except (TypeError, AttributeError) as error:
        if made and not isinstance(made[0], optax.GradientTransformation):
            expected = "a function from a step size to an optax transformation"
            raise TypeError(f"optimizer must be {expected}, but returns {made[0]!r}") from error
        if isinstance(error, AttributeError):
            raise
        needs = f"{method.server_optimizer!r} needs more: {error}. A line search cannot be used"
        raise ValueError(f"optimizer must need only a direction, the parameters and a value, but {needs}") from error


def active_parts(method: Method, memory: Memory | None, pool: Any = None, weight_cap: Any = None) -> tuple[Part, ...]:
    """Return the optional parts that these settings activate, in the order in which they wrap ``Method.decide``."""
    corrected = memory is not None and memory.corrected
    parts = (
        None if weight_cap is None else WeightCap(weight_cap),
        None if method.robust is None else RobustAggregation(method.robust),
        None if memory is None else ClientMemory(memory, method.robust, pool),
        PreviousIterate() if method.compares or corrected else None,
        None if method.direction is None else OptimisticDirection(method.direction, method.switches),
        None if method.at_clients is None else ClientStates(method.at_clients, method.switches),
    )
    return tuple(part for part in parts if part is not None)
