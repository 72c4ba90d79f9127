"""Labels that are numbers: losses of a prediction, and what may be bounded at every client.

A batch has the rows' features ``x`` and labels ``y``, standardised: (label − mean)/scale. The network's one output is a
prediction of y. Values are in the label's own unit: an error of 0.2 at a scale of 50 minutes is one of 10 minutes.

All functions are made once for their settings: the same settings give the same function, and compile once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from softswitch.problem.choices import LOSSES
from softswitch.problem.losses import mean_over, share_over
from softswitch.problem.networks import Network, scores
from softswitch.problem.parameters import Batch
from softswitch.problem.ranges import ZERO_ONE, Range
from softswitch.problem.rates import Rate, first_to_mend
from softswitch.support import checks

Function = Callable[[Network, Batch], Array]


class Unit(NamedTuple):
    """What a standardised label means.

    Attributes:
        scale: the label's unit, in labels: what a difference of 1 in y is.
        low: the smallest value that y can have, where that is known,
        high: and the largest. Predictions are then kept between both.
    """

    scale: float = 1.0
    low: float | None = None
    high: float | None = None

    def within(self, prediction: Float[Array, " rows"]) -> Float[Array, " rows"]:
        """A prediction that a label can have."""
        return prediction if self.low is None else jnp.clip(prediction, self.low, self.high)

    @property
    def widest(self) -> float | None:
        """The largest error that there can be, in the label's unit."""
        return None if self.low is None or self.high is None else self.scale * (self.high - self.low)


STANDARD = Unit()


def predicted(params: Network, batch: Batch, unit: Unit = STANDARD) -> Float[Array, " rows"]:
    """Every row's prediction of y."""
    return unit.within(scores(params, batch["x"]))


@lru_cache
def loss(name: str, unit: Unit = STANDARD, quantile: float = 0.5) -> Function:
    """The mean loss of predictions.

    Args:
        name: "squared": (prediction − label)²; "absolute": |prediction − label|; "quantile": the pinball loss, which is
            smallest where the share ``quantile`` of the labels lies below the prediction.
        unit: of the label.
        quantile: of the pinball loss.
    """
    checks.one_of("loss", name, LOSSES)
    if name == "quantile" and not 0 < quantile < 1:
        raise ValueError(f"quantile must be above 0 and below 1, but is {quantile!r}")

    def mean_loss(params: Network, batch: Batch) -> Array:
        error = unit.scale * (predicted(params, batch, unit) - batch["y"])
        of_row = {
            "squared": lambda: error**2,
            "absolute": lambda: jnp.abs(error),
            "quantile": lambda: jnp.maximum(-quantile * error, (1 - quantile) * error),
        }[name]
        return mean_over(of_row(), batch["weight"])

    return mean_loss


@lru_cache
def mean_error(unit: Unit = STANDARD) -> Function:
    """How far predictions are too high on average, and how far too low: two constraints, in the label's unit."""

    def constraint(params: Network, batch: Batch) -> Array:
        error = unit.scale * (predicted(params, batch, unit) - batch["y"])
        return jnp.stack([mean_over(error, batch["weight"]), mean_over(-error, batch["weight"])])

    return constraint


@lru_cache
def uncovered(unit: Unit = STANDARD) -> Rate:
    """The share of rows whose label is above the prediction: of a prediction that is to be an upper limit."""

    def constraint(params: Network, batch: Batch) -> Array:
        return share_over(batch["y"] > predicted(params, batch, unit), batch["weight"])

    def stand_in(params: Network, batch: Batch) -> Array:
        margin = predicted(params, batch, unit) - batch["y"]
        return first_to_mend(margin, margin < 0, batch["weight"])

    return Rate(constraint, stand_in)


class Bounded(NamedTuple):
    """A constraint on predictions, its stand-in where it moves in jumps, and the range of a row's values if known."""

    constraint: Function
    stand_in: Function | None
    of_row: Range | None


def bounded(kind: str, unit: Unit = STANDARD) -> Bounded:
    """What is bounded: "mean-error", "absolute-error" or "coverage"."""
    widest = unit.widest
    if kind == "mean-error":
        return Bounded(mean_error(unit), None, None if widest is None else (-widest, widest))
    if kind == "absolute-error":
        return Bounded(loss("absolute", unit), None, None if widest is None else (0.0, widest))
    checks.one_of("kind", kind, ("mean-error", "absolute-error", "coverage"))
    rate = uncovered(unit)
    return Bounded(rate.constraint, rate.stand_in, ZERO_ONE)
