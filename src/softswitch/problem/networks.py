"""ReLU networks for tabular rows, and the losses they are trained with."""

from __future__ import annotations

from itertools import pairwise

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from softswitch.problem.losses import logistic_loss, mean_over
from softswitch.problem.parameters import Batch, Params
from softswitch.support import checks

Network = list[dict[str, Array]]
"""Layers with weights ``w`` and biases ``b``."""

MAX_WEIGHTS = 2**30
"""Maximum number of weights."""


def init_network(features: int, hidden: tuple[int, ...] = (64,), *, outputs: int = 1, seed: int = 0) -> Network:
    """Return random weights of a network with ReLU layers. Without hidden layers it is a linear model.

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
        raise ValueError(
            f"hidden = {hidden!r} makes a network of {entries:,} weights, more than {MAX_WEIGHTS:,}; make it narrower"
        )
    layers = []
    for depth, key in enumerate(jax.random.split(jax.random.key(checks.check_seed("seed", seed)), len(widths) - 1)):
        before, after = widths[depth : depth + 2]
        scale = (1 if depth == len(inner) else 2) / before
        weights = jnp.sqrt(scale) * jax.random.normal(key, (before, after))
        layers.append({"w": weights, "b": jnp.zeros(after)})
    return layers


def constant_network(like: Network, odds: float | Array) -> Network:
    """Return a network of the same shape with constant outputs ``odds``: all weights 0 except the last bias."""
    *hidden, last = jax.tree.map(jnp.zeros_like, like)
    return [*hidden, {**last, "b": last["b"] + odds}]


def rescale_network(params: Network, scale: float, offset: float | Array) -> Network:
    """Return the network whose outputs are ``scale`` · outputs + ``offset``."""
    *hidden, last = params
    return [*hidden, {"w": scale * last["w"], "b": scale * last["b"] + offset}]


def apply_network(params: Network, x: Float[Array, "rows features"]) -> Float[Array, "rows outputs"]:
    """Return all outputs of the network for each row."""
    *hidden, last = params
    for layer in hidden:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return x @ last["w"] + last["b"]


def scores(params: Network, x: Float[Array, "rows features"]) -> Float[Array, " rows"]:
    """Return the first output of the network: the log-odds of the positive class, or a regression value."""
    return apply_network(params, x)[:, 0]


def batch_scores(params: Network, batch: Batch) -> Float[Array, " rows"]:
    """Return every row's log-odds of the positive class."""
    return scores(params, batch["x"])


def predict_probability(params: Network, batch: Batch) -> Float[Array, " rows"]:
    """Return every row's probability of the positive class."""
    return jax.nn.sigmoid(scores(params, batch["x"]))


def logistic_objective(params: Network, batch: Batch) -> Float[Array, ""]:
    """Return the mean binary cross-entropy."""
    score = scores(params, batch["x"])
    return jnp.average(logistic_loss(score, batch["y"] == 1), weights=batch["weight"])


def false_alarms(params: Network, batch: Batch) -> Float[Array, ""]:
    """Return the mean logistic loss of the negative rows."""
    return _class_loss(params, batch, 0)


def misses(params: Network, batch: Batch) -> Float[Array, ""]:
    """Return the mean logistic loss of the positive rows."""
    return _class_loss(params, batch, 1)


def _class_loss(params: Network, batch: Batch, label: int) -> Float[Array, ""]:
    score = scores(params, batch["x"])
    return mean_over(logistic_loss(score, batch["y"] == 1), batch["weight"] * (batch["y"] == label))


def count_parameters(params: Params) -> int:
    """Return the number of parameters."""
    return sum(int(leaf.size) for leaf in jax.tree.leaves(params))
