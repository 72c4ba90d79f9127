"""Caps on weights, and robust aggregation: up to b Byzantine clients have a bounded effect.

    f̃, g̃ = each report clipped to the range between the (b+1)-th smallest and the (b+1)-th largest
    r_i <= 1/(2b+1), so that b clients never have half of the weight;
    r_i <= 1/max(2b+1, min(3b+1, m/2)) after 20 infeasible rounds without progress, which b clients may have caused
    c = the weighted geometric median of the directions;  u = c + Σ r_i clip(u_i − c, median distance)

The b worst-off honest clients lose the protection of the maximum: they cannot be distinguished from Byzantine ones.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from softswitch.methods.base import Method
from softswitch.methods.consistency import Consistency
from softswitch.methods.messages import Decision, Reports
from softswitch.methods.parts import Decide, Part, Round, Update
from softswitch.problem.parameters import Params, float_dtype
from softswitch.support.arrays import expand_like, weighted_sum

STALLED_ROUNDS = 20  # infeasible rounds without progress after which the weight of Byzantine clients is reduced
MEDIAN_STEPS = 8  # Weiszfeld iterations for the geometric median; more have no visible effect on a server step
MIN_DISTANCE = 1e-3  # lower limit of distances in Weiszfeld's iteration, as a fraction of the median norm


def min_participants(byzantine: int) -> int:
    """Return 2b + 1, the smallest number of clients in a round of which b may be Byzantine."""
    return 2 * byzantine + 1


def check_robust(method: Method, participants: int) -> None:
    """Raise ValueError if fewer than 2b + 1 clients take part in a round of a method with ``robust=b``."""
    if (b := method.robust) is not None and participants < (least := min_participants(b)):
        needed = f"at least 2·{b} + 1 = {least} clients in every round"
        raise ValueError(f"robust={b} needs {needed}, but {participants} take part")


class RobustAggregation(Part):
    """Hooks of the server step for ``Method.robust``: trimmed reports and capped weights. State: ``Consistency``."""

    name = "consistency"

    def __init__(self, byzantine: Any) -> None:
        self.byzantine = byzantine

    def init(self, params: Params, clients: int, constraints: int, statistics: int | None) -> Consistency:
        """Return the consistency statistics before the first round."""
        return Consistency.empty(clients, constraints, float_dtype(params))

    def trust(self, reports: Reports) -> Reports:
        """Return the reports with the b largest and b smallest values clipped (``trim``)."""
        return trim(reports, self.byzantine)

    def wrap(self, decide: Decide, state: Any, clients: Array) -> Decide:
        """Return ``decide`` on trimmed reports, with weights of at most 1/(2b+1), or 1/(3b+1) if it stalls."""
        fewest = min_participants(self.byzantine)
        more = jnp.clip(len(clients) // 2, fewest, 3 * self.byzantine + 1)
        count = jnp.where(state.stalled_rounds < STALLED_ROUNDS, fewest, more)
        decide_capped = WeightCap(1 / count).wrap(decide, state, clients)
        return lambda method, reports: decide_capped(method, trim(reports, self.byzantine))

    def compare(self, state: Consistency, played: Round, update: Update, before: Params, after: Params) -> Consistency:
        """Return the consistency statistics after the round; unchanged without the clients' directions."""
        if update.directions is None:
            return state
        returned = played.reports.mask if update.returned is None else update.returned
        step = jax.tree.map(jnp.subtract, after, before)
        return state.compare(played, update.directions, returned, step)


class WeightCap(Part):
    """Hooks of the server step that limit the weight of each client, as secure aggregation requires."""

    name = "weight_cap"

    def __init__(self, cap: Any) -> None:
        self.cap = cap

    def wrap(self, decide: Decide, state: Any, clients: Array) -> Decide:
        """Return ``decide`` with weights of at most ``cap``."""

        def decide_capped(method: Any, reports: Reports) -> tuple[Decision, Any]:
            decision, after = decide(method, reports)
            cap = jnp.asarray(self.cap, decision.weights.dtype)
            return cap_weights(decide, method, reports, decision, cap), after

        return decide_capped


def cap_weights(decide: Decide, state: Any, reports: Reports, decision: Decision, cap: Float[Array, ""]) -> Decision:
    """Return the decision with weights <= ``cap``, whose sum may be below 1; ``decide`` weights the others again."""

    def exceeds_cap(carry: tuple[Array, Array, Any]) -> Array:
        is_capped, weights, _ = carry
        return (~is_capped & (weights > cap * 1.001)).any()

    def apply_cap(carry: tuple[Array, Array, Any]) -> tuple[Array, Array, Any]:
        is_capped, weights, per_client = carry
        is_capped = is_capped | (weights > cap)
        remaining = reports._replace(mask=reports.mask & ~is_capped, bit=decision.feasible)
        again, _ = decide(state, remaining)
        rest = jnp.maximum(1 - cap * is_capped.sum(), 0)
        weights = jnp.where(is_capped, cap, rest * again.weights).astype(weights.dtype)

        def keep_capped(kept: Array, new: Array) -> Array:
            return jnp.where(expand_like(is_capped, kept), kept, new).astype(kept.dtype)

        return is_capped, weights, jax.tree.map(keep_capped, per_client, again.local_loss.own)

    first = (jnp.zeros(decision.weights.shape, bool), decision.weights, decision.local_loss.own)
    _, weights, per_client = lax.while_loop(exceeds_cap, apply_cap, first)
    return decision._replace(weights=weights, local_loss=decision.local_loss.with_own(per_client))


def trim(reports: Reports, byzantine: Any) -> Reports:
    """Clip objectives, and each constraint, to the range from the (b+1)-th smallest to the (b+1)-th largest report."""
    columns = jax.vmap(_trim_values, (1, 1, None), 1)(reports.constraint, reports.has_constraint, byzantine)
    objective = _trim_values(reports.objective, reports.has_objective, byzantine)
    return reports._replace(objective=objective, constraint=columns)


def _trim_values(values: Float[Array, " m"], known: Bool[Array, " m"], byzantine: Any) -> Float[Array, " m"]:
    place = jnp.clip(jnp.asarray(byzantine, jnp.int32), 0, jnp.maximum(known.sum() - 1, 0))
    high = jnp.sort(jnp.where(known, values, -jnp.inf))[len(values) - 1 - place]
    low = jnp.sort(jnp.where(known, values, jnp.inf))[place]
    return jnp.where(known, jnp.clip(values, jnp.minimum(low, high), high), values)


@partial(jax.jit, inline=True)
def combine(directions: Params, weights: Float[Array, " m"]) -> Params:
    """Return c + Σ r_i clip(u_i − c), with the weights r and the weighted geometric median c of the directions u_i."""
    typical = _weighted_median(norms(directions), weights)
    smallest = (MIN_DISTANCE * typical) ** 2 + jnp.finfo(weights.dtype).tiny

    def approach(_: Any, median: Params) -> Params:
        pull = weights / jnp.sqrt(norms(_differences(directions, median)) ** 2 + smallest)
        return weighted_sum(directions, pull / _nonzero(pull.sum()))

    first = weighted_sum(_clip(directions, typical), weights / _nonzero(weights.sum()))
    median = lax.fori_loop(0, MEDIAN_STEPS, approach, first)
    differences = _differences(directions, median)
    rest = weighted_sum(_clip(differences, _weighted_median(norms(differences), weights)), weights)
    return jax.tree.map(jnp.add, median, rest)


def norms(directions: Params) -> Float[Array, " m"]:
    """Return the Euclidean norm of every client's direction over all arrays, without overflow."""
    parts = [jnp.reshape(leaf, (leaf.shape[0], -1)) for leaf in jax.tree.leaves(directions)]
    largest = jnp.stack([jnp.max(jnp.abs(part), axis=1, initial=0) for part in parts]).max(axis=0)
    scale = _nonzero(largest)
    return largest * jnp.sqrt(sum(jnp.square(part / scale[:, None]).sum(axis=1) for part in parts))


def _weighted_median(values: Float[Array, " m"], weights: Float[Array, " m"]) -> Float[Array, ""]:
    order = jnp.argsort(values)
    below = jnp.cumsum(weights[order])
    return values[order][jnp.argmax(below >= 0.5 * below[-1])]


def _clip(directions: Params, limit: Float[Array, ""]) -> Params:
    sizes = norms(directions)
    factor = jnp.where(sizes > limit, limit / _nonzero(sizes), 1)
    return jax.tree.map(lambda leaf: leaf * expand_like(factor, leaf).astype(leaf.dtype), directions)


def _differences(directions: Params, center: Params) -> Params:
    return jax.tree.map(lambda leaf, at: leaf - at, directions, center)


def _nonzero(value: Array) -> Array:
    return jnp.where(value > 0, value, 1)
