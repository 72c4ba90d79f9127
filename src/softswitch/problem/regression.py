"""Regression: losses, and constraints on the prediction error.

A batch has features ``x`` and standardised labels ``y``: (label − mean)/scale. The network's output predicts y. Losses
and constraints are in the label's unit: an error of 0.2 at a scale of 50 minutes is an error of 10 minutes.

Functions are cached by their settings, so equal settings compile once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from softswitch.problem.choices import LOSSES
from softswitch.problem.losses import event_rate, mean_over
from softswitch.problem.networks import Network, scores
from softswitch.problem.parameters import Batch
from softswitch.problem.ranges import ZERO_ONE, Range
from softswitch.problem.rates import Rate, nearest_error_loss
from softswitch.support import checks

Function = Callable[[Network, Batch], Array]


class LabelScale(NamedTuple):
    """The scale of a standardised label.

    Attributes:
        scale: Standard deviation of the label, in its unit.
        low: Smallest standardised label, if known. Predictions are clipped to [low, high].
        high: Largest standardised label, if known.
    """

    scale: float = 1.0
    low: float | None = None
    high: float | None = None

    def clip(self, prediction: Float[Array, " rows"]) -> Float[Array, " rows"]:
        """Return the predictions, clipped to the label's range if it is known."""
        return prediction if self.low is None else jnp.clip(prediction, self.low, self.high)

    @property
    def max_error(self) -> float | None:
        """Largest possible error in the label's unit, or None if unknown."""
        return None if self.low is None or self.high is None else self.scale * (self.high - self.low)


STANDARD = LabelScale()


def predict(params: Network, batch: Batch, scale: LabelScale = STANDARD) -> Float[Array, " rows"]:
    """Return every row's prediction of y."""
    return scale.clip(scores(params, batch["x"]))


@lru_cache
def make_loss(name: str, scale: LabelScale = STANDARD, quantile: float = 0.5) -> Function:
    """Return the mean loss of predictions as a function of parameters and a batch.

    Args:
        name: "squared": (prediction − label)²; "absolute": |prediction − label|; "quantile": the pinball loss, minimal
            when the share ``quantile`` of the labels lies below the prediction.
        scale: Scale of the label.
        quantile: Quantile of the pinball loss.
    """
    checks.check_choice("loss", name, LOSSES)
    if name == "quantile" and not 0 < quantile < 1:
        raise ValueError(f"quantile must be above 0 and below 1, but is {quantile!r}")

    def mean_loss(params: Network, batch: Batch) -> Array:
        error = scale.scale * (predict(params, batch, scale) - batch["y"])
        row_loss = {
            "squared": lambda: error**2,
            "absolute": lambda: jnp.abs(error),
            "quantile": lambda: jnp.maximum(-quantile * error, (1 - quantile) * error),
        }[name]
        return mean_over(row_loss(), batch["weight"])

    return mean_loss


@lru_cache
def mean_errors(scale: LabelScale = STANDARD) -> Function:
    """Return two constraints: the mean error of predictions, and its negative, in the label's unit."""

    def constraint(params: Network, batch: Batch) -> Array:
        error = scale.scale * (predict(params, batch, scale) - batch["y"])
        return jnp.stack([mean_over(error, batch["weight"]), mean_over(-error, batch["weight"])])

    return constraint


@lru_cache
def miscoverage_rate(scale: LabelScale = STANDARD) -> Rate:
    """Return the share of rows whose label exceeds the prediction, for predictions of an upper limit."""

    def constraint(params: Network, batch: Batch) -> Array:
        return event_rate(batch["y"] > predict(params, batch, scale), batch["weight"])

    def surrogate(params: Network, batch: Batch) -> Array:
        margin = predict(params, batch, scale) - batch["y"]
        return nearest_error_loss(margin, margin < 0, batch["weight"])

    return Rate(constraint, surrogate)


class RegressionConstraint(NamedTuple):
    """A constraint on predictions, its surrogate if it is a step function, and the range on a row if known."""

    constraint: Function
    surrogate: Function | None
    row_range: Range | None


def regression_constraint(kind: str, scale: LabelScale = STANDARD) -> RegressionConstraint:
    """Return the constraint "mean-error", "absolute-error" or "coverage"."""
    widest = scale.max_error
    if kind == "mean-error":
        return RegressionConstraint(mean_errors(scale), None, None if widest is None else (-widest, widest))
    if kind == "absolute-error":
        return RegressionConstraint(make_loss("absolute", scale), None, None if widest is None else (0.0, widest))
    checks.check_choice("kind", kind, ("mean-error", "absolute-error", "coverage"))
    return RegressionConstraint(*miscoverage_rate(scale), ZERO_ONE)
