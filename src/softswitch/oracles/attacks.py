"""Byzantine clients: attacks for testing a federation."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from softswitch.methods.messages import Decision, Reports
from softswitch.methods.robust import combine, norms
from softswitch.oracles.base import Federation, Oracle
from softswitch.problem.parameters import Params
from softswitch.support import checks
from softswitch.support.arrays import expand_like, weighted_sum

HUGE = 1e6  # forged value of a constraint, and factor of a scaled direction
MARGIN = 1e-3  # amount by which a forged report exceeds the largest honest one
SCALES = (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0, 16.0)  # lengths that the adaptive attack tries


class AttackContext(NamedTuple):
    """The information of an attacker about a round with m participants."""

    byzantine: Bool[Array, " m"]  # whether each participant is Byzantine
    weights: Float[Array, " m"]  # weights of the directions; zeros when reports are forged
    feasible: Bool[Array, ""]  # switch bit; True when reports are forged

    def replace_byzantine(self, honest: Array, forged: Array) -> Array:
        """Return ``forged`` in the rows of the Byzantine participants, and ``honest`` in all others."""
        return jnp.where(expand_like(self.byzantine, honest), forged, honest).astype(honest.dtype)


ForgeReports = Callable[[AttackContext, Float[Array, " m"]], Array]
ForgeDirections = Callable[[AttackContext, Params], Params]


def _identity(context: AttackContext, values: Any) -> Any:
    return values


def _exceed_honest(context: AttackContext, values: Array) -> Array:
    """Return the largest finite honest value plus ``MARGIN`` for every participant."""
    honest = jnp.where(context.byzantine | ~jnp.isfinite(values), -jnp.inf, values)
    return jnp.zeros_like(values) + honest.max() + MARGIN


def _scale_by(factor: float) -> ForgeDirections:
    return lambda context, directions: jax.tree.map(lambda leaf: factor * leaf, directions)


def _flip_if_feasible(context: AttackContext, directions: Params) -> Params:
    return jax.tree.map(lambda leaf: jnp.where(context.feasible, -leaf, leaf), directions)


def _oppose_honest(context: AttackContext, directions: Params) -> Params:
    """Return the negative weighted mean of the honest directions (inner-product manipulation)."""
    weights = jnp.where(context.byzantine, 0, context.weights)
    weights = jnp.where(weights.sum() > 0, weights, ~context.byzantine)
    mean = weighted_sum(directions, weights / jnp.maximum(weights.sum(), 1e-30))
    return jax.tree.map(lambda leaf, part: jnp.zeros_like(leaf) - part, directions, mean)


def _shift_by_deviations(context: AttackContext, directions: Params) -> Params:
    """Return the honest mean minus 1.5 standard deviations in every entry ("a little is enough")."""

    def shift(leaf: Array) -> Array:
        honest = jnp.broadcast_to(~expand_like(context.byzantine, leaf), leaf.shape)
        return jnp.zeros_like(leaf) + leaf.mean(axis=0, where=honest) - 1.5 * leaf.std(axis=0, where=honest)

    return jax.tree.map(shift, directions)


def _oppose_with_honest_norm(context: AttackContext, directions: Params) -> Params:
    """Return the result of ``_oppose_honest``, rescaled to the median norm of the honest directions."""
    forged = _oppose_honest(context, directions)
    median = jnp.nanmedian(jnp.where(context.byzantine, jnp.nan, norms(directions)))
    factor = median / jnp.maximum(norms(forged), 1e-30)
    return jax.tree.map(lambda leaf: leaf * expand_like(factor, leaf).astype(leaf.dtype), forged)


def _oppose_combination(context: AttackContext, directions: Params) -> Params:
    """Return the common forged direction with which ``combine`` follows the honest weighted mean the least.

    The candidates are multiples of the negative honest mean and of the negative heaviest honest direction, and sums of
    the honest mean and multiples of the negative one.
    """
    heaviest = jnp.argmax(jnp.where(context.byzantine, -1, context.weights))
    mean = jax.tree.map(lambda leaf: -leaf[0], _oppose_honest(context, directions))
    scaled = jax.tree.map(lambda leaf: leaf[0], _oppose_with_honest_norm(context, directions))
    scales = jnp.asarray(SCALES, context.weights.dtype)

    def candidates(leaf: Array, mean: Array, scaled: Array) -> Array:
        multiples = jnp.multiply.outer(scales.astype(leaf.dtype), jnp.stack([scaled, -leaf[heaviest], scaled]))
        return multiples.at[:, 2].add(mean).reshape(-1, *mean.shape)

    tried = jax.tree.map(candidates, directions, mean, scaled)

    def progress(forged: Params) -> Array:
        step = combine(jax.tree.map(context.replace_byzantine, directions, forged), context.weights)
        return jnp.asarray(optax.tree.vdot(step, mean))

    worst = jnp.argmin(lax.map(progress, tried))
    return jax.tree.map(lambda leaf, part: jnp.broadcast_to(part[worst], leaf.shape), directions, tried)


class Attack(NamedTuple):
    """Functions that forge the reported objectives, the reports of one constraint, and the directions."""

    objective: ForgeReports = _identity
    constraint: ForgeReports = _identity
    direction: ForgeDirections = _identity


ATTACKS = {
    "inflate-objective": Attack(lambda _, values: values + 1, direction=_flip_if_feasible),
    "block-constraint": Attack(constraint=lambda _, values: jnp.full_like(values, HUGE)),
    "hide-constraint": Attack(constraint=lambda _, values: jnp.full_like(values, -HUGE)),
    "sign-flip": Attack(direction=_scale_by(-1)),
    "scale": Attack(direction=_scale_by(HUGE)),
    "free-rider": Attack(_exceed_honest, _exceed_honest, lambda _, part: jax.tree.map(jnp.zeros_like, part)),
    "little-is-enough": Attack(_exceed_honest, _exceed_honest, _shift_by_deviations),
    "inner-product": Attack(_exceed_honest, _exceed_honest, _oppose_honest),
    "adaptive-inner-product": Attack(_exceed_honest, _exceed_honest, _oppose_with_honest_norm),
    "adaptive": Attack(_exceed_honest, _exceed_honest, _oppose_combination),
}
"""Attacks by name. The last five use the reports and directions of the honest clients."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ByzantineOracle(Oracle):
    """Oracle of clients of which some are Byzantine.

    Attributes:
        honest: Oracle of the same clients without the attack.
        byzantine: Mask of the n clients; True for Byzantine ones.
        attack: Index of the attack in ``ATTACKS``. It is traced: another attack does not recompile.
    """

    honest: Oracle
    byzantine: Bool[Array, " n"]
    attack: Int[Array, ""]

    client_count = property(attrgetter("honest.client_count"))
    participants = property(attrgetter("honest.participants"))
    constraints = property(attrgetter("honest.constraints"))
    local_steps = property(attrgetter("honest.local_steps"))
    report_batch_size = property(attrgetter("honest.report_batch_size"))
    has_surrogate = property(attrgetter("honest.has_surrogate"))
    supports_client_selection = property(attrgetter("honest.supports_client_selection"))
    draw = property(attrgetter("honest.draw"))
    draw_randomness = property(attrgetter("honest.draw_randomness"))
    draw_for = property(attrgetter("honest.draw_for"))

    def report(self, params: Params, draws: Any) -> tuple[Reports, Any]:
        """Return the reports, with those of Byzantine participants forged."""
        reports, kept = self.honest.report(params, draws)
        forged = self._forge(self.byzantine[draws.clients], reports.objective, reports.constraint)
        return reports._replace(objective=forged[0], constraint=forged[1]), kept

    def direction(
        self, params: Params, draws: Any, kept: Any, decision: Decision, switches: bool, step_size: Any
    ) -> Params:
        """Return Σ_i r_i u_i with forged directions of the Byzantine participants."""
        directions = self.directions(params, draws, kept, decision, switches, step_size)
        return weighted_sum(directions, decision.weights)

    def directions(
        self, params: Params, draws: Any, kept: Any, decision: Decision, switches: bool, step_size: Any
    ) -> Params:
        """Return the direction u_i of every participant, stacked; those of Byzantine participants are forged."""
        honest = self.honest.directions(params, draws, kept, decision, switches, step_size)
        context = AttackContext(self.byzantine[draws.clients], decision.weights, decision.feasible)
        forged = lax.switch(self.attack, [attack.direction for attack in ATTACKS.values()], context, honest)
        return jax.tree.map(context.replace_byzantine, honest, forged)

    def evaluate(self, params: Params) -> tuple[Float[Array, " n"], Float[Array, "n c"]]:
        """Return f_i and g_i of every client on all of its data; those of Byzantine clients are forged."""
        return self._forge(self.byzantine, *self.honest.evaluate(params))

    def _forge(self, byzantine: Array, objective: Array, constraint: Array) -> tuple[Array, Array]:
        """Return (f, g) with the values of the clients where ``byzantine`` is True forged."""
        context = AttackContext(byzantine, jnp.zeros_like(objective), jnp.array(True))
        for_f, for_g = zip(*((attack.objective, attack.constraint) for attack in ATTACKS.values()), strict=True)
        forged_g = jax.vmap(lambda column: lax.switch(self.attack, for_g, context, column), 1, 1)(constraint)
        forged_f = lax.switch(self.attack, for_f, context, objective)
        return context.replace_byzantine(objective, forged_f), context.replace_byzantine(constraint, forged_g)


def with_attack(federation: Federation, byzantine: Collection[Any], attack: str) -> Federation:
    """Return the federation with some clients turned Byzantine.

    They forge every report, direction and evaluation, so a result contains forged values. The true values are those of
    the given federation, ``federation.oracle.evaluate_params(params)``.

    Args:
        federation: Clients that compute with JAX, such as ``make_federation`` returns.
        byzantine: Labels of the Byzantine clients.
        attack: Name of the attack, a key of ``softswitch.testing.ATTACKS``.
    """
    checks.check_instance("federation", federation, Federation)
    checks.check_choice("attack", attack, tuple(ATTACKS))
    names, oracle = federation.names, federation.oracle
    if not oracle.is_compiled:
        raise ValueError(f"federation must have a compiled oracle, but {type(oracle).__name__} runs on the host")
    if isinstance(byzantine, str) or any(name not in names for name in byzantine):
        raise ValueError(f"byzantine must be labels of clients, some of {names[:5]!r}…, but is {byzantine!r}")
    mask = jnp.asarray([name in byzantine for name in names])
    index = jnp.asarray(list(ATTACKS).index(attack), jnp.int32)
    return replace(federation, oracle=ByzantineOracle(oracle, mask, index))
