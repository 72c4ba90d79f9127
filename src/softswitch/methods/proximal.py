"""Proximal point stages for weakly convex problems, and a stationarity measure.

    stage t, of R rounds:   min_w max_i f_i(w) + (ρ/2)‖w − c_t‖²   subject to   max_i g_i(w) + (ρ/2)‖w − c_t‖² <= ε
    at its end:             c_{t+1} = the mean of the stage's feasible iterates

If f_i + (ρ/2)‖w‖² and g_i + (ρ/2)‖w‖² are convex, so is the problem of each stage. The quadratic term is the same for
all clients and does not change softmax weights. The server adds (ρ/2)‖w_k − c_t‖² to the criterion and ρ(w_k − c_t) to
the direction. This is the inexact constrained proximal point method of Boob, Deng and Lan (arXiv 1908.02734) and of Ma,
Lin and Yang (arXiv 1908.01871).
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
from softswitch.support.arrays import select
from softswitch.support.function_equality import traced_settings


@traced_settings
@dataclass(frozen=True, kw_only=True)
class Proximal:
    """Proximal point stages for weakly convex problems; for ``Method.proximal``.

    Stages of R rounds minimise max f_i + (ρ/2)‖w − c‖² subject to max g_i + (ρ/2)‖w − c‖² <= ε. The centre c then moves
    to the mean of the stage's feasible iterates, and the iterates continue. The distance that the centre moved, times
    ρ, is the stationarity measure ``result.stationarity``. Clients do not receive the centre; with several local steps
    the proximal term is evaluated at w_k.

    Attributes:
        strength: ρ > 0, per squared unit of the parameters. The theory requires more than the weak convexity of all f_i
            and g_i. Larger values make stages easier and movements shorter.
        rounds: R >= 1, the number of rounds per stage. Void rounds do not count.
        average_last: Share of a stage's last rounds, in (0, 1], whose feasible iterates are averaged.
    """

    strength: float
    rounds: int
    average_last: float = 0.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "strength", checks.check_real("strength", self.strength, above=0))
        share = checks.check_real("average_last", self.average_last, above=0, maximum=1)
        object.__setattr__(self, "average_last", share)
        if not checks.is_array(self.rounds):  # a traced value was checked before
            object.__setattr__(self, "rounds", checks.check_integer("rounds", self.rounds, minimum=1))

    def extra(self, params: Params, centre: Params) -> Float[Array, ""]:
        """Return (ρ/2)‖w − c‖².

        Args:
            params: w.
            centre: c.
        """
        distance = optax.tree.norm(jax.tree.map(jnp.subtract, params, centre), squared=True)
        return (0.5 * self.strength * distance).astype(float_dtype(params))

    def pulled(self, direction: Params, params: Params, centre: Params) -> Params:
        """Return the direction plus ρ(w − c).

        Args:
            direction: Direction u.
            params: w.
            centre: c.
        """
        return jax.tree.map(lambda u, w, c: (u + self.strength * (w - c)).astype(u.dtype), direction, params, centre)


def check_stages(proximal: Proximal | None, rounds: int) -> None:
    """Raise an error if a run is shorter than a stage."""
    if proximal is not None and rounds < proximal.rounds:
        raise ValueError(
            f"rounds must be at least {proximal.rounds}, the length of a stage of {proximal!r}, but is {rounds}"
        )


class Stages(NamedTuple):
    """State of a run with proximal stages.

    Attributes:
        centre: c_t.
        rounds: Number of rounds of the current stage so far.
        finished: t, the number of finished stages.
        joined: Number of feasible iterates averaged in c_t; 0 if c_t is the last iterate of its stage.
        stationarity: ρ‖c_t − c_{t−1}‖; NaN before the first move, ∞ after a stage without a feasible round.
    """

    centre: Params
    rounds: Int[Array, ""]
    finished: Int[Array, ""]
    joined: Int[Array, ""]
    stationarity: Float[Array, ""]

    @classmethod
    def begun(cls, params: Params) -> Stages:
        """Return the state before the first round, with the start as the centre."""
        none = jnp.int32(0)
        return cls(params, none, none, none, jnp.full((), jnp.nan, float_dtype(params)))

    def averages(self, way: Proximal) -> Bool[Array, ""]:
        """Return whether this round's iterate may enter the average of its stage."""
        return self.rounds >= jnp.floor(way.rounds * (1 - jnp.asarray(way.average_last)))

    def after(
        self, way: Proximal, params: Params, mean: Params, joined: Int[Array, ""]
    ) -> tuple[Stages, Bool[Array, ""]]:
        """Return the state after a round, and whether that round was the last of its stage.

        After a stage without a feasible round the centre is its last iterate.

        Args:
            way: ρ and R.
            params: w_{k+1}.
            mean: Mean of the stage's feasible iterates.
            joined: Number of these iterates.
        """
        rounds = self.rounds + 1
        ends = rounds >= way.rounds
        mean = jax.tree.map(lambda m, w: m.astype(w.dtype), mean, params)
        centre = select(joined > 0, mean, params)
        movement = way.strength * optax.tree.norm(jax.tree.map(jnp.subtract, centre, self.centre))
        measure = jnp.where(joined > 0, movement, jnp.inf).astype(self.stationarity.dtype)
        finished = Stages(centre, jnp.zeros_like(self.rounds), self.finished + 1, joined, measure)
        return select(ends, finished, self._replace(rounds=rounds)), ends
