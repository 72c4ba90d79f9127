"""The policy: a tanh network from a state to the log-odds of pushing to the right, and its Jacobian, kept for reuse."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

STATE_SIZE = 4
LAST_SCALE = 0.01
"""The last layer begins this small, so that the first policy is close to a fair coin."""


class Layer(NamedTuple):
    """x ↦ x·weights + bias."""

    weights: Float[Array, "inputs outputs"]
    bias: Float[Array, " outputs"]


Policy = list[Layer]


def first_policy(key: PRNGKeyArray, hidden: Sequence[int]) -> Policy:
    """Random weights for the given hidden widths."""
    sizes = (STATE_SIZE, *hidden, 1)
    scales = [inputs**-0.5 for inputs in sizes[:-2]] + [LAST_SCALE]
    return [
        Layer(scale * jax.random.normal(k, (inputs, outputs)), jnp.zeros(outputs))
        for k, scale, (inputs, outputs) in zip(jax.random.split(key, len(scales)), scales, pairwise(sizes), strict=True)
    ]


def logit(policy: Policy, states: Float[Array, "*batch 4"]) -> Float[Array, "*batch"]:
    """The log-odds of action 1 against action 0."""
    return logit_of_columns(policy, jnp.moveaxis(states, -1, 0))


def logit_of_columns(policy: Policy, states: Float[Array, "4 *batch"]) -> Float[Array, "*batch"]:
    """The same where the coordinates come first."""
    return _inputs(policy, states)[-1][0]


def _inputs(policy: Policy, states: Float[Array, "4 *batch"]) -> list[Float[Array, "width *batch"]]:
    """What each layer is given, and at the end what the last one gives."""

    def apply(layer: Layer, given: Array) -> Array:
        return jnp.tensordot(layer.weights, given, axes=(0, 0)) + jnp.expand_dims(layer.bias, range(1, given.ndim))

    inputs = [states]
    for layer in policy[:-1]:
        inputs.append(jnp.tanh(apply(layer, inputs[-1])))
    return [*inputs, apply(policy[-1], inputs[-1])]


class Jacobian(NamedTuple):
    """J, the derivative of every state's logit by all parameters, by its factors.

    A network with one output z has ∂z/∂(weights of layer l) = input_l ⊗ slope_l at each state, where slope_l is ∂z by
    what the layer gives. With both kept, J·v and Jᵀ·u are two thin products a layer, about half of what differentiating
    the network forwards and backwards again would cost. Steps are the last axis: sums over a layer's width then go
    along whole vectors, which takes a third off the time.

    Attributes:
        inputs: what each layer is given.
        slopes: ∂z by what each layer gives, before its tanh.
    """

    inputs: list[Float[Array, "width steps"]]
    slopes: list[Float[Array, "width steps"]]

    @classmethod
    def at(cls, policy: Policy, states: Float[Array, "4 steps"]) -> Jacobian:
        """The Jacobian at these states."""
        *inputs, last = _inputs(policy, states)
        slopes = [jnp.ones_like(last)]
        for layer, given in zip(reversed(policy), reversed(inputs[1:]), strict=False):
            slopes.append((layer.weights @ slopes[-1]) * (1 - given**2))
        return cls(inputs, slopes[::-1])

    def times(self, change: Policy) -> Float[Array, " steps"]:
        """J·v: how each logit changes."""
        parts = zip(change, self.inputs, self.slopes, strict=True)
        return sum(((v.weights.T @ given + v.bias[:, None]) * slope).sum(axis=0) for v, given, slope in parts)  # type: ignore[return-value]

    def transposed(self, on_logits: Float[Array, " steps"]) -> Policy:
        """Jᵀ·u: the gradient of Σ u·z."""
        weighted = [slope * on_logits for slope in self.slopes]
        return [Layer(given @ u.T, u.sum(axis=1)) for given, u in zip(self.inputs, weighted, strict=True)]
