"""The policy, a tanh network from a state to the log-odds of pushing to the right; its Jacobian; its file."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from softswitch.support.files import open_atomically, read_npz

STATE_SIZE = 4
LAST_SCALE = 0.01
"""Initial scale of the last layer: small, so that both actions are about equally likely."""


class Layer(NamedTuple):
    """x ↦ x·weights + bias."""

    weights: Float[Array, "inputs outputs"]
    bias: Float[Array, " outputs"]


Policy = list[Layer]


def init_policy(key: PRNGKeyArray, hidden: Sequence[int]) -> Policy:
    """Return random weights for the given hidden widths."""
    sizes = (STATE_SIZE, *hidden, 1)
    scales = [inputs**-0.5 for inputs in sizes[:-2]] + [LAST_SCALE]
    return [
        Layer(scale * jax.random.normal(k, (inputs, outputs)), jnp.zeros(outputs))
        for k, scale, (inputs, outputs) in zip(jax.random.split(key, len(scales)), scales, pairwise(sizes), strict=True)
    ]


def logit(policy: Policy, states: Float[Array, "*batch 4"]) -> Float[Array, "*batch"]:
    """Return the log-odds of action 1 against action 0."""
    return logit_of_columns(policy, jnp.moveaxis(states, -1, 0))


def logit_of_columns(policy: Policy, states: Float[Array, "4 *batch"]) -> Float[Array, "*batch"]:
    """Return the log-odds for states with the coordinates on the first axis."""
    return _layer_inputs(policy, states)[-1][0]


def _layer_inputs(policy: Policy, states: Float[Array, "4 *batch"]) -> list[Float[Array, "width *batch"]]:
    """Return the input of each layer, followed by the output of the last one."""

    def apply(layer: Layer, x: Array) -> Array:
        return jnp.tensordot(layer.weights, x, axes=(0, 0)) + jnp.expand_dims(layer.bias, range(1, x.ndim))

    inputs = [states]
    for layer in policy[:-1]:
        inputs.append(jnp.tanh(apply(layer, inputs[-1])))
    return [*inputs, apply(policy[-1], inputs[-1])]


class Jacobian(NamedTuple):
    """J, the derivative of the logit of every state by all parameters, in factored form.

    For a network with one output z, ∂z/∂(weights of layer l) = input_l ⊗ slope_l at each state. Here slope_l is the
    derivative of z by the output of the layer. J·v and Jᵀ·u are then two thin products per layer. Steps are the last
    axis, along which sums over the width of a layer vectorise.
    """

    inputs: list[Float[Array, "width steps"]]  # input of each layer
    slopes: list[Float[Array, "width steps"]]  # derivative of z by the output of each layer, before its tanh

    @classmethod
    def at(cls, policy: Policy, states: Float[Array, "4 steps"]) -> Jacobian:
        """Return the Jacobian at these states."""
        *inputs, output = _layer_inputs(policy, states)
        slopes = [jnp.ones_like(output)]
        for layer, x in zip(reversed(policy), reversed(inputs[1:]), strict=False):
            slopes.append((layer.weights @ slopes[-1]) * (1 - x**2))
        return cls(inputs, slopes[::-1])

    def times(self, change: Policy) -> Float[Array, " steps"]:
        """Return J·v, the change of each logit."""
        parts = zip(change, self.inputs, self.slopes, strict=True)
        return sum(((v.weights.T @ x + v.bias[:, None]) * slope).sum(axis=0) for v, x, slope in parts)  # type: ignore[return-value]

    def transposed_times(self, vector: Float[Array, " steps"]) -> Policy:
        """Return Jᵀ·u, the gradient of Σ u·z."""
        weighted = [slope * vector for slope in self.slopes]
        return [Layer(x @ u.T, u.sum(axis=1)) for x, u in zip(self.inputs, weighted, strict=True)]


def save_policy(policy: Policy, file: Path) -> None:
    """Write the policy to an .npz file."""
    arrays = {
        f"{i}.{name}": np.asarray(array) for i, layer in enumerate(policy) for name, array in layer._asdict().items()
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    with open_atomically(file, durable=False) as stream:
        np.savez(stream, **arrays)  # type: ignore[arg-type]


def load_policy(file: Path) -> Policy:
    """Read a policy from an .npz file."""
    try:
        arrays = {name: jnp.asarray(array) for name, array in read_npz(file.resolve()).items()}
        policy = [Layer(arrays[f"{i}.weights"], arrays[f"{i}.bias"]) for i in range(len(arrays) // 2)]
        if jax.eval_shape(logit, policy, jnp.zeros(STATE_SIZE)).shape != ():
            raise ValueError("it has more than one output")
        return policy
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise ValueError(
            f"{file} must be a policy written by softswitch (.npz), but could not be read: {error}"
        ) from error
