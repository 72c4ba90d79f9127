"""Networks that classify rows of features, and the loss they are trained with."""

from __future__ import annotations

from itertools import pairwise

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from softswitch.problem.losses import logistic_loss, mean_over
from softswitch.problem.parameters import Batch, Params
from softswitch.support import checks

Network = list[dict[str, Array]]
"""Layer by layer: weights ``w`` and biases ``b``."""

MOST_WEIGHTS = 2**30
"""A network of more takes more memory than it could be trained in here."""


def network(features: int, hidden: tuple[int, ...] = (64,), *, outputs: int = 1, seed: int = 0) -> Network:
    """Random weights of a network with ReLU layers; no hidden layer makes it a linear model.

    He's initialisation: normal weights of variance 2/(inputs), zero biases. The last layer's are smaller, 1/(inputs).

    Args:
        features: how many a row has.
        hidden: widths of the hidden layers.
        outputs: how many numbers it gives for a row: one for two classes or an amount, else one a class.
        seed: of the weights.
    """
    checks.whole_number("features", features, at_least=1)
    if not isinstance(hidden, tuple | list):
        raise TypeError(f"hidden must be a tuple of widths, such as (64,), but is {hidden!r}")
    inner = [checks.whole_number("hidden", width, at_least=1) for width in hidden]
    widths = (features, *inner, checks.whole_number("outputs", outputs, at_least=1))
    entries = sum(before * after + after for before, after in pairwise(widths))
    if entries > MOST_WEIGHTS:
        raise ValueError(
            f"hidden makes a network of {entries:,} weights, more than {MOST_WEIGHTS:,}; make its layers narrower"
        )
    layers = []
    for depth, key in enumerate(jax.random.split(jax.random.key(checks.seed("seed", seed)), len(widths) - 1)):
        before, after = widths[depth : depth + 2]
        scale = (1 if depth == len(inner) else 2) / before
        weights = jnp.sqrt(scale) * jax.random.normal(key, (before, after))
        layers.append({"w": weights, "b": jnp.zeros(after)})
    return layers


def constant_network(like: Network, odds: float | Array) -> Network:
    """A network of the same shape that gives every row the same outputs: all weights 0, but for the last bias."""
    *hidden, last = jax.tree.map(jnp.zeros_like, like)
    return [*hidden, {**last, "b": last["b"] + odds}]


def moved_network(params: Network, scale: float, offset: float | Array) -> Network:
    """The network whose outputs are ``scale`` times these, and ``offset`` more."""
    *hidden, last = params
    return [*hidden, {"w": scale * last["w"], "b": scale * last["b"] + offset}]


def outputs(params: Network, x: Float[Array, "rows features"]) -> Float[Array, "rows outputs"]:
    """All that the network gives: one number a class, where there are several."""
    *hidden, last = params
    for layer in hidden:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return x @ last["w"] + last["b"]


def scores(params: Network, x: Float[Array, "rows features"]) -> Float[Array, " rows"]:
    """The network's one output: the log odds of the positive class, or an amount."""
    return outputs(params, x)[:, 0]


def row_scores(params: Network, batch: Batch) -> Float[Array, " rows"]:
    """Every row's log odds of the positive class."""
    return scores(params, batch["x"])


def probability(params: Network, batch: Batch) -> Float[Array, " rows"]:
    """π: every row's probability of the positive class."""
    return jax.nn.sigmoid(scores(params, batch["x"]))


def objective(params: Network, batch: Batch) -> Float[Array, ""]:
    """f_i: the mean binary cross-entropy."""
    score = scores(params, batch["x"])
    return jnp.average(logistic_loss(score, batch["y"] == 1), weights=batch["weight"])


def false_alarms(params: Network, batch: Batch) -> Float[Array, ""]:
    """The mean logistic loss of the rows that are negative."""
    return _class_loss(params, batch, 0)


def misses(params: Network, batch: Batch) -> Float[Array, ""]:
    """The mean logistic loss of the rows that are positive."""
    return _class_loss(params, batch, 1)


def _class_loss(params: Network, batch: Batch, label: int) -> Float[Array, ""]:
    score = scores(params, batch["x"])
    return mean_over(logistic_loss(score, batch["y"] == 1), batch["weight"] * (batch["y"] == label))


def count(params: Params) -> int:
    """How many parameters there are."""
    return sum(int(leaf.size) for leaf in jax.tree.leaves(params))
