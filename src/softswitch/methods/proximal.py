"""A proximal centre for objectives and constraints that are not convex, and how far from stationary its answers are.

    stage t, of R rounds:   min_w max_i f_i(w) + (ρ/2)‖w − c_t‖²   subject to   max_i g_i(w) + (ρ/2)‖w − c_t‖² <= ε
    at its end:             c_{t+1} = the mean of the stage's feasible iterates

If f_i and g_i become convex by (ρ/2)‖w‖², a stage's problem is convex, and the switching method is at home in it. The
quadratic is the same for all clients, so that softmax weights do not see it: (ρ/2)‖w_k − c_t‖² is added to the
criterion and ρ(w_k − c_t) to the direction, both by the server. (The constrained proximal point method of Boob, Deng
and Lan, arXiv 1908.02734, and of Ma, Lin and Yang, arXiv 1908.01871, solved inexactly.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from softswitch.problem.parameters import Params, float_dtype
from softswitch.support import checks
from softswitch.support.buffer_donation import select
from softswitch.support.traced_settings import traced_settings


@traced_settings
@dataclass(frozen=True, kw_only=True)
class Proximal:
    """A proximal centre, for ``Rule.proximal``: problems that are not convex, but weakly so.

    Stages of R rounds minimise max f_i + (ρ/2)‖w − c‖² subject to max g_i + (ρ/2)‖w − c‖² <= ε; then the centre c moves
    to the mean of the stage's feasible iterates. Iterates go on from where they are. How far the centre moved, times ρ,
    is the stationarity measure: ``result.stationarity``. Clients are told nothing of it; where they take several local
    steps, the pull to the centre is that at w_k.

    Attributes:
        strength: ρ > 0, per squared unit of the parameters. Larger than the weak convexity of all f_i and g_i (how far
            their second derivatives go below 0) for the theory to hold; larger still makes stages easier and moves
            shorter.
        rounds: R >= 1, rounds of a stage. Void rounds do not count.
        average_last: the share of a stage's rounds, in (0, 1], whose feasible iterates are averaged: its last half by
            default, since a stage begins where the one before ended.
    """

    strength: float
    rounds: int
    average_last: float = 0.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "strength", checks.real_number("strength", self.strength, above=0))
        share = checks.real_number("average_last", self.average_last, above=0, at_most=1)
        object.__setattr__(self, "average_last", share)
        if not checks.is_array(self.rounds):  # an array was checked when it was a number
            object.__setattr__(self, "rounds", checks.whole_number("rounds", self.rounds, at_least=1))

    def extra(self, params: Params, centre: Params) -> Float[Array, ""]:
        """(ρ/2)‖w − c‖².

        Args:
            params: w.
            centre: c.
        """
        far = optax.tree.norm(jax.tree.map(jnp.subtract, params, centre), squared=True)
        return (0.5 * self.strength * far).astype(float_dtype(params))

    def pulled(self, direction: Params, params: Params, centre: Params) -> Params:
        """The direction with ρ(w − c).

        Args:
            direction: of the clients.
            params: w.
            centre: c.
        """
        return jax.tree.map(lambda u, w, c: (u + self.strength * (w - c)).astype(u.dtype), direction, params, centre)


def check_stages(proximal: Proximal | None, rounds: int) -> None:
    """Raise where a run is too short for a stage.

    Args:
        proximal: the rule's, or None.
        rounds: K.
    """
    if proximal is not None and rounds < proximal.rounds:
        raise ValueError(
            f"rounds must be at least the {proximal.rounds} of a stage of {proximal!r}, but is {rounds}: no stage "
            "would come to its end"
        )


class Stages(NamedTuple):
    """Where a run with a proximal centre stands.

    Attributes:
        centre: c_t.
        rounds: how many rounds the present stage has had.
        finished: t, how many stages are over.
        joined: how many feasible iterates c_t is the mean of; 0: none, and it is the last iterate of its stage.
        stationarity: ρ‖c_t − c_{t−1}‖; NaN before the first move, ∞ where the stage had no feasible round.
    """

    centre: Params
    rounds: Int[Array, ""]
    finished: Int[Array, ""]
    joined: Int[Array, ""]
    stationarity: Float[Array, ""]

    @classmethod
    def begun(cls, params: Params) -> Stages:
        """Before the first round, with the start as the centre."""
        none = jnp.int32(0)
        return cls(params, none, none, none, jnp.full((), jnp.nan, float_dtype(params)))

    def averages(self, way: Proximal) -> Bool[Array, ""]:
        """Whether this round's iterate may join its stage's average.

        Args:
            way: R, and the share of it.
        """
        return self.rounds >= jnp.floor(way.rounds * (1 - jnp.asarray(way.average_last)))

    def after(
        self, way: Proximal, params: Params, mean: Params, joined: Int[Array, ""]
    ) -> tuple[Stages, Bool[Array, ""]]:
        """Where it stands after a round, and whether that was the stage's last.

        A stage without a feasible round has done nothing but descend on the constraint: its last iterate is where that
        has come to, and the next stage goes on from there.

        Args:
            way: ρ and R.
            params: w_{k+1}.
            mean: the mean of the stage's feasible iterates,
            joined: and how many there are.
        """
        played = self.rounds + 1
        ends = played >= way.rounds
        mean = jax.tree.map(lambda m, w: m.astype(w.dtype), mean, params)
        centre = select(joined > 0, mean, params)
        moved = way.strength * optax.tree.norm(jax.tree.map(jnp.subtract, centre, self.centre))
        measure = jnp.where(joined > 0, moved, jnp.inf).astype(self.stationarity.dtype)
        over = Stages(centre, jnp.zeros_like(self.rounds), self.finished + 1, joined, measure)
        return select(ends, over, self._replace(rounds=played)), ends
