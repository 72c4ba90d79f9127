"""Memory of a network's layers."""

import jax
import jax.numpy as jnp

from softswitch.support.activations import estimate_activation_bytes

ROWS = 40
BATCH = {"x": jnp.ones((ROWS, 8))}


def network(batch):
    hidden = jax.nn.relu(batch["x"] @ jnp.ones((8, 32)))
    return (jnp.tanh(hidden @ jnp.ones((32, 32))) @ jnp.ones((32, 1))).mean()


def test_activation_bytes():
    number = BATCH["x"].dtype.itemsize
    assert estimate_activation_bytes(lambda batch: batch["x"].sum(), BATCH) == 0
    for function in (network, jax.jit(network)):
        assert estimate_activation_bytes(function, BATCH) == 3 * number * ROWS * (32 + 32 + 1)
