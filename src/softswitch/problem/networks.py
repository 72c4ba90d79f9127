"""ReLU networks for tabular rows, and the losses and constraints that they are trained with.

Labels ``y`` are binary, classes 0, 1, …, or numbers. A network for classes has one output per class, and predicts the
class with the largest one. In regression the output predicts the standardised label (label − mean)/scale. Losses and
constraints are then in the label's unit: an error of 0.2 at a scale of 50 minutes is an error of 10 minutes.
Constraints are cached by their settings, so equal settings compile once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from softswitch.problem.choices import LOSSES
from softswitch.problem.losses import event_rate, logistic_loss, mean_over
from softswitch.problem.parameters import Batch
from softswitch.problem.ranges import ZERO_ONE, Range
from softswitch.problem.rates import Rate, nearest_error_loss
from softswitch.support import checks

Network = list[dict[str, Array]]
"""Parameters of a network: for each layer the weights ``w`` of shape (inputs, outputs) and the biases ``b``."""
Function = Callable[[Network, Batch], Array]
MAX_WEIGHTS = 2**30  # of a network, biases included


def init_network(features: int, hidden: tuple[int, ...] = (64,), *, outputs: int = 1, seed: int = 0) -> Network:
    """Return random parameters of a network with ReLU layers. Without hidden layers it is a linear model.

    Weights follow He's initialisation: normal with variance 2/inputs, or 1/inputs in the last layer. Biases are 0.

    Args:
        features: Number of features of a row.
        hidden: Widths of the hidden layers.
        outputs: Number of outputs: 1 for binary labels and regression, otherwise one per class.
        seed: Random seed of the weights.
    """
    checks.check_integer("features", features, minimum=1)
    if not isinstance(hidden, tuple | list):
        raise TypeError(f"hidden must be a tuple of widths, such as (64,), but is {hidden!r}")
    inner = [checks.check_integer("hidden", width, minimum=1) for width in hidden]
    widths = (features, *inner, checks.check_integer("outputs", outputs, minimum=1))
    entries = sum(before * after + after for before, after in pairwise(widths))
    if entries > MAX_WEIGHTS:
        raise ValueError(f"hidden must have at most {MAX_WEIGHTS:,} weights, but {hidden!r} has {entries:,}")
    layers = []
    for depth, key in enumerate(jax.random.split(jax.random.key(checks.check_seed("seed", seed)), len(widths) - 1)):
        before, after = widths[depth : depth + 2]
        scale = (1 if depth == len(inner) else 2) / before
        layers.append({"w": jnp.sqrt(scale) * jax.random.normal(key, (before, after)), "b": jnp.zeros(after)})
    return layers


def constant_network(like: Network, odds: float | Array) -> Network:
    """Return a network of the shape of ``like`` with outputs ``odds`` for every row; only its last bias is not 0."""
    *hidden, last = jax.tree.map(jnp.zeros_like, like)
    return [*hidden, {**last, "b": last["b"] + odds}]


def rescale_network(params: Network, scale: float, offset: float | Array) -> Network:
    """Return a copy of the network with the outputs ``scale`` · (outputs of ``params``) + ``offset``."""
    *hidden, last = params
    return [*hidden, {"w": scale * last["w"], "b": scale * last["b"] + offset}]


def apply_network(params: Network, x: Float[Array, "rows features"]) -> Float[Array, "rows outputs"]:
    """Return the outputs of the network for each row, one column per output."""
    *hidden, last = params
    for layer in hidden:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return x @ last["w"] + last["b"]


def scores(params: Network, x: Float[Array, "rows features"]) -> Float[Array, " rows"]:
    """Return the first output for each row: the log-odds of the positive class, or the standardised prediction."""
    return apply_network(params, x)[:, 0]


def batch_scores(params: Network, batch: Batch) -> Float[Array, " rows"]:
    """Return the first output of the network for each row of a batch: ``scores`` of its column ``x``."""
    return scores(params, batch["x"])


def predict_probability(params: Network, batch: Batch) -> Float[Array, " rows"]:
    """Return every row's probability of the positive class."""
    return jax.nn.sigmoid(scores(params, batch["x"]))


def logistic_objective(params: Network, batch: Batch) -> Float[Array, ""]:
    """Return the weighted mean of the binary cross-entropy over the rows of a batch."""
    return jnp.average(_logistic_losses(params, batch), weights=batch["weight"])


def false_alarms(params: Network, batch: Batch) -> Float[Array, ""]:
    """Return the mean logistic loss of the negative rows, or −∞ if there are none."""
    return mean_over(_logistic_losses(params, batch), batch["weight"] * (batch["y"] == 0))


def misses(params: Network, batch: Batch) -> Float[Array, ""]:
    """Return the mean logistic loss of the positive rows, or −∞ if there are none."""
    return mean_over(_logistic_losses(params, batch), batch["weight"] * (batch["y"] == 1))


def _logistic_losses(params: Network, batch: Batch) -> Float[Array, " rows"]:
    return logistic_loss(scores(params, batch["x"]), batch["y"] == 1)


def class_cross_entropy(params: Network, batch: Batch) -> Float[Array, ""]:
    """Return the mean cross-entropy, −log of the softmax probability of each row's class."""
    log_probabilities = jax.nn.log_softmax(apply_network(params, batch["x"]))
    return mean_over(-_take_label(log_probabilities, batch), batch["weight"])


def predict_class(values: Float[Array, "rows classes"]) -> Int[Array, " rows"]:
    """Return the predicted class of each row: the index of its largest output."""
    return jnp.argmax(values, axis=1)


@lru_cache
def class_miss_rates(classes: int) -> Rate:
    """Return one constraint for each of ``classes`` classes: the fraction of its rows predicted as another class."""

    def apply_per_class(rate: Callable[[Array], Array], batch: Batch) -> Array:
        return jnp.stack([rate(batch["weight"] * (batch["y"] == label)) for label in range(classes)])

    return _class_rate(apply_per_class)


@lru_cache
def class_error_rate() -> Rate:
    """Return one constraint: the fraction of all rows that are misclassified."""
    return _class_rate(lambda rate, batch: rate(batch["weight"]))


def _class_rate(apply: Callable[[Callable[[Array], Array], Batch], Array]) -> Rate:
    """Return a misclassification rate; ``apply(rate, batch)`` calls ``rate`` with weights of 0 for other rows."""

    def constraint(params: Network, batch: Batch) -> Array:
        wrong = predict_class(apply_network(params, batch["x"])) != batch["y"]
        return apply(lambda weights: event_rate(wrong, weights), batch)

    def surrogate(params: Network, batch: Batch) -> Array:
        """Return the surrogate; a row's margin is the output of its class minus the largest other output."""
        values = apply_network(params, batch["x"])
        is_label = jax.nn.one_hot(batch["y"], values.shape[1], dtype=bool)
        margin = _take_label(values, batch) - jnp.where(is_label, -jnp.inf, values).max(axis=1)
        wrong = predict_class(values) != batch["y"]
        return apply(lambda weights: nearest_error_loss(margin, wrong, weights), batch)

    return Rate(constraint, surrogate)


def _take_label(values: Float[Array, "rows classes"], batch: Batch) -> Float[Array, " rows"]:
    return jnp.take_along_axis(values, batch["y"][:, None].astype(int), axis=1)[:, 0]


class LabelScale(NamedTuple):
    """Scale and range of a regression label.

    Attributes:
        scale: Standard deviation of the label, in the label's unit. Default: 1.
        low: Smallest standardised label, to which predictions are clipped. Default: None, unknown, no clipping.
        high: Largest standardised label; None together with ``low``.
    """

    scale: float = 1.0
    low: float | None = None
    high: float | None = None

    def clip(self, prediction: Float[Array, " rows"]) -> Float[Array, " rows"]:
        """Return the standardised predictions, clipped to [low, high] if it is known."""
        return prediction if self.low is None else jnp.clip(prediction, self.low, self.high)

    @property
    def max_error(self) -> float | None:
        """Largest possible |prediction − label| in the label's unit, or None if the range is unknown."""
        return None if self.low is None or self.high is None else self.scale * (self.high - self.low)

    def errors(self, params: Network, batch: Batch) -> Float[Array, " rows"]:
        """Return prediction − label for every row, in the label's unit."""
        return self.scale * (self.clip(scores(params, batch["x"])) - batch["y"])


STANDARD = LabelScale()


def row_loss(name: str, quantile: float = 0.5) -> Callable[[Array], Array]:
    """Return the loss "squared", "absolute" or "quantile" as a function of prediction − label.

    The last is the pinball loss, minimal when the fraction ``quantile`` of the labels lies below the prediction.
    """
    checks.check_choice("loss", name, LOSSES)
    if name == "quantile" and not 0 < quantile < 1:
        raise ValueError(f"quantile must be above 0 and below 1, but is {quantile!r}")
    losses: dict[str, Callable[[Array], Array]] = {
        "squared": lambda error: error**2,
        "absolute": jnp.abs,
        "quantile": lambda error: jnp.maximum(-quantile * error, (1 - quantile) * error),
    }
    return losses[name]


@lru_cache
def make_loss(name: str, scale: LabelScale = STANDARD, quantile: float = 0.5) -> Function:
    """Return the function ``(params, batch) -> mean loss`` of a ``row_loss``, in the label's unit."""
    loss = row_loss(name, quantile)
    return lambda params, batch: mean_over(loss(scale.errors(params, batch)), batch["weight"])


@lru_cache
def mean_errors(scale: LabelScale = STANDARD) -> Function:
    """Return two constraints: the mean of prediction − label, in the label's unit, and its negative."""

    def constraint(params: Network, batch: Batch) -> Array:
        error = scale.errors(params, batch)
        return jnp.stack([mean_over(error, batch["weight"]), mean_over(-error, batch["weight"])])

    return constraint


@lru_cache
def miscoverage_rate(scale: LabelScale = STANDARD) -> Rate:
    """Return the miscoverage rate of predicted upper limits (fraction of labels above them), with its surrogate."""

    def constraint(params: Network, batch: Batch) -> Array:
        return event_rate(batch["y"] > scale.clip(scores(params, batch["x"])), batch["weight"])

    def surrogate(params: Network, batch: Batch) -> Array:
        margin = scale.clip(scores(params, batch["x"])) - batch["y"]
        return nearest_error_loss(margin, margin < 0, batch["weight"])

    return Rate(constraint, surrogate)


def regression_constraint(kind: str, scale: LabelScale = STANDARD) -> tuple[Function, Function | None, Range | None]:
    """Return the constraint "mean-error", "absolute-error" or "coverage", its surrogate or None, and its range."""
    checks.check_choice("kind", kind, ("mean-error", "absolute-error", "coverage"))
    if kind == "coverage":
        return *miscoverage_rate(scale), ZERO_ONE
    low, constraint = (-1, mean_errors(scale)) if kind == "mean-error" else (0, make_loss("absolute", scale))
    return constraint, None, None if scale.max_error is None else (low * scale.max_error, scale.max_error)
