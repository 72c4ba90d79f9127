"""Clients that lie, to try a federation with: what would become of the others?"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from softswitch.methods.messages import Decision, Reports
from softswitch.methods.robust import lengths
from softswitch.oracles.base import Judged, Oracle
from softswitch.oracles.federation import Federation
from softswitch.problem.parameters import Params
from softswitch.support import checks
from softswitch.support.arrays import beside, weighted_sum

HUGE = 1e6
"""What a client claims that does not care to be believed."""
A_LITTLE = 1e-3
"""By how much one that does claims to be worse off than all others."""
FOR_LIES = 0x7FFFFFFE
"""Folded into a round's key for what liars draw."""


class Lie(NamedTuple):
    """What a liar sees of a round.

    Attributes:
        liars: which of the participants lie.
        weights: of the participants, in the second exchange.
        feasible: whether the round improves the objective, in the second exchange.
        key: for what is random.
    """

    liars: Bool[Array, " m"]
    weights: Float[Array, " m"]
    feasible: Bool[Array, ""]
    key: Array

    @property
    def now(self) -> Bool[Array, ""]:
        """True in every other round, at random."""
        return jax.random.bernoulli(self.key)

    def of_each(self, leaf: Array, lies: Array) -> Array:
        """``lies`` for the liars, and the truth for the others."""
        return jnp.where(beside(self.liars, leaf), lies, leaf).astype(leaf.dtype)

    def honest(self, directions: Params) -> Params:
        """Where the honest would go together."""
        weights = jnp.where(self.liars, 0, self.weights)
        weights = jnp.where(weights.sum() > 0, weights, ~self.liars)
        share = weights / jnp.maximum(weights.sum(), 1e-30)
        return weighted_sum(directions, share)


Claims = Callable[[Lie, Float[Array, " m"]], Array]
"""What a liar says of f, or of g, by what all clients have."""


def _truth(lie: Lie, values: Array) -> Array:
    return values


def _one_more(lie: Lie, values: Array) -> Array:
    return values + 1


def _huge(lie: Lie, values: Array) -> Array:
    return jnp.full_like(values, HUGE)


def _none_at_all(lie: Lie, values: Array) -> Array:
    return jnp.full_like(values, -HUGE)


def _huge_now_and_then(lie: Lie, values: Array) -> Array:
    return jnp.where(lie.now, HUGE, values)


def _just_above(lie: Lie, values: Array) -> Array:
    honest = jnp.where(lie.liars | ~jnp.isfinite(values), -jnp.inf, values)
    return jnp.zeros_like(values) + honest.max() + A_LITTLE


def _as_it_is(lie: Lie, directions: Params) -> Params:
    return directions


def _back(lie: Lie, directions: Params) -> Params:
    return jax.tree.map(jnp.negative, directions)


def _back_from_the_objective(lie: Lie, directions: Params) -> Params:
    return jax.tree.map(lambda leaf: jnp.where(lie.feasible, -leaf, leaf), directions)


def _back_now_and_then(lie: Lie, directions: Params) -> Params:
    return jax.tree.map(lambda leaf: jnp.where(lie.now, -leaf, leaf), directions)


def _far(lie: Lie, directions: Params) -> Params:
    return jax.tree.map(lambda leaf: HUGE * leaf, directions)


def _nowhere(lie: Lie, directions: Params) -> Params:
    return jax.tree.map(jnp.zeros_like, directions)


def _anywhere(lie: Lie, directions: Params) -> Params:
    """Noise, as long as the honest directions are."""
    leaves, structure = jax.tree.flatten(directions)
    keys = jax.random.split(lie.key, len(leaves))
    noise = [jax.random.normal(key, leaf.shape, leaf.dtype) for key, leaf in zip(keys, leaves, strict=True)]
    drawn = jax.tree.unflatten(structure, noise)
    return _as_long_as(lie, directions, drawn)


def _against_the_others(lie: Lie, directions: Params) -> Params:
    """Back from where the honest would go together, and as long as that (inner-product manipulation)."""
    together = lie.honest(directions)
    return jax.tree.map(lambda leaf, own: jnp.zeros_like(leaf) - own, directions, together)


def _against_all_defences(lie: Lie, directions: Params) -> Params:
    """The same, as long as the honest directions usually are: too short to be shortened."""
    return _as_long_as(lie, directions, _against_the_others(lie, directions))


def _a_little_off(lie: Lie, directions: Params) -> Params:
    """Where an honest client might still be: 1.5 standard deviations from their mean, to the wrong side."""

    def off(leaf: Array) -> Array:
        honest = jnp.broadcast_to(~beside(lie.liars, leaf), leaf.shape)
        away = leaf.mean(axis=0, where=honest) - 1.5 * leaf.std(axis=0, where=honest)
        return jnp.zeros_like(leaf) + away

    return jax.tree.map(off, directions)


def _as_long_as(lie: Lie, directions: Params, others: Params) -> Params:
    """Other directions, each as long as the honest ones usually are."""
    usual = jnp.nanmedian(jnp.where(lie.liars, jnp.nan, lengths(directions)))
    factor = usual / jnp.maximum(lengths(others), 1e-30)
    return jax.tree.map(lambda leaf: leaf * beside(factor, leaf).astype(leaf.dtype), others)


class Attack(NamedTuple):
    """How a client lies.

    Attributes:
        objective: what it says of f,
        constraint: and of g;
        direction: where it points.
    """

    objective: Claims = _truth
    constraint: Claims = _truth
    direction: Callable[[Lie, Params], Params] = _as_it_is


ATTACKS = {
    "claims-more": Attack(objective=_one_more, direction=_back_from_the_objective),
    "now-and-then": Attack(objective=_huge_now_and_then, direction=_back_now_and_then),
    "blocks": Attack(constraint=_huge),
    "claims-none": Attack(constraint=_none_at_all),
    "reversed": Attack(direction=_back),
    "far": Attack(direction=_far),
    "lazy": Attack(_just_above, _just_above, _nowhere),
    "noise": Attack(_just_above, _just_above, _anywhere),
    "a-little-off": Attack(_just_above, _just_above, _a_little_off),
    "against-the-others": Attack(_just_above, _just_above, _against_the_others),
    "knows-the-defence": Attack(_just_above, _just_above, _against_all_defences),
}
"""Attacks by their names. The last five know all other clients' numbers and directions."""


class _Draws(NamedTuple):
    """A round's random choices, with one for the liars."""

    own: Any
    key: Array

    @property
    def clients(self) -> Int[Array, " m"]:
        """Who takes part."""
        clients: Int[Array, " m"] = self.own.clients
        return clients


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class AttackedOracle(Oracle):
    """Clients some of whom lie.

    Attributes:
        truth: the clients as they would be.
        liars: which of them lie.
        attack: how they do it, by its place among ``ATTACKS``: a number, so that another one compiles nothing.
    """

    truth: Oracle
    liars: Bool[Array, " n"]
    attack: Int[Array, ""]

    @property
    def client_count(self) -> int:
        """n."""
        return self.truth.client_count

    @property
    def participants(self) -> int:  # type: ignore[override]
        """m."""
        return self.truth.participants

    @property
    def constraints(self) -> int:  # type: ignore[override]
        """How many a client has."""
        return self.truth.constraints

    @property
    def local_steps(self) -> int:  # type: ignore[override]
        """E."""
        return self.truth.local_steps

    @property
    def rows_a_report(self) -> int | None:
        """How many rows a report rests on."""
        return self.truth.rows_a_report

    @property
    def stands_in(self) -> bool:  # type: ignore[override]
        """Whether the constraint has a stand-in to descend on."""
        return self.truth.stands_in

    @property
    def takes_whom_it_is_told(self) -> bool:
        """Whether the server can choose who takes part."""
        return self.truth.takes_whom_it_is_told

    def draw(self, key: Array) -> _Draws:
        """What the clients draw, and a key for the liars."""
        return _Draws(self.truth.draw(key), jax.random.fold_in(key, FOR_LIES))

    def chance(self, key: Array) -> Any:
        """Likewise, before it is known who takes part."""
        return self.truth.chance(key), jax.random.fold_in(key, FOR_LIES)

    def draw_for(self, clients: Int[Array, " m"], chance: Any) -> _Draws:
        """Likewise, for given participants."""
        return _Draws(self.truth.draw_for(clients, chance[0]), chance[1])

    def report(self, params: Params, draws: _Draws) -> tuple[Reports, Any]:
        """What they report: the truth, or what a liar claims."""
        reports, kept = self.truth.report(params, draws.own)
        lie = self._lie(draws, jnp.zeros_like(reports.objective), jnp.array(True))
        objective, constraint = self._claimed(lie, reports.objective, reports.constraint)
        return reports._replace(objective=objective, constraint=constraint), kept

    def direction(
        self, params: Params, draws: _Draws, kept: Any, decision: Decision, switches: bool, step_size: Any
    ) -> Params:
        """Σ r_i u_i, with the liars' u_i."""
        every = self.directions(params, draws, kept, decision, switches, step_size)
        return weighted_sum(every, decision.weights)

    def directions(
        self, params: Params, draws: _Draws, kept: Any, decision: Decision, switches: bool, step_size: Any
    ) -> Params:
        """Every u_i: what a client found, or what a liar makes of it."""
        truth = self.truth.directions(params, draws.own, kept, decision, switches, step_size)
        lie = self._lie(draws, decision.weights, decision.feasible)
        pointing = [attack.direction for attack in ATTACKS.values()]
        return jax.tree.map(lie.of_each, truth, lax.switch(self.attack, pointing, lie, truth))

    def evaluate(self, params: Params) -> tuple[Float[Array, " n"], Float[Array, "n c"]]:
        """What they say of all their data: a liar lies here as well."""
        objective, constraint = self.truth.evaluate(params)
        lie = Lie(self.liars, jnp.zeros_like(objective), jnp.array(True), jax.random.key(0))
        return self._claimed(lie, objective, constraint)

    def honest(self, params: Params) -> Judged:
        """What the honest clients truly have.

        Args:
            params: parameters, any tree of floating arrays.
        """
        honest, judged = ~np.asarray(self.liars), self.truth.judge(params)
        return Judged(judged.objective[honest], judged.constraint[honest])

    def _lie(self, draws: _Draws, weights: Array, feasible: Array) -> Lie:
        return Lie(self.liars[draws.clients], weights, feasible, draws.key)

    def _claimed(self, lie: Lie, objective: Array, constraint: Array) -> tuple[Array, Array]:
        of_f, of_g = zip(*((attack.objective, attack.constraint) for attack in ATTACKS.values()), strict=True)
        columns = jax.vmap(lambda column: lax.switch(self.attack, of_g, lie, column), 1, 1)(constraint)
        return lie.of_each(objective, lax.switch(self.attack, of_f, lie, objective)), lie.of_each(constraint, columns)


def with_attack(federation: Federation, liars: Collection[Any], attack: str) -> Federation:
    """The same federation, with clients who lie: in every report, every direction, and when they are judged.

    A result holds what they claim; ``with_attack(…).oracle.honest(params)`` tells what the honest truly have.

    Args:
        federation: the clients as they would be, such as ``federation_of`` makes; one that is compiled.
        liars: the labels of those who lie.
        attack: how, one of ``softswitch.oracles.attacks.ATTACKS``.
    """
    checks.expect("federation", federation, Federation)
    checks.one_of("attack", attack, tuple(ATTACKS))
    if not federation.oracle.compiles:
        raise ValueError("attacked needs clients that are compiled, but these are asked round by round")
    unknown = [name for name in liars if name not in federation.names]
    if unknown or isinstance(liars, str):
        raise ValueError(f"liars must be labels of clients, some of {federation.names[:5]!r}…, but is {liars!r}")
    who = jnp.asarray([name in liars for name in federation.names])
    which = jnp.asarray(list(ATTACKS).index(attack), jnp.int32)
    return replace(federation, oracle=AttackedOracle(federation.oracle, who, which))
