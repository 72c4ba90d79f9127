"""The logistic loss and its derivatives, against closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softswitch as ss

SCORES = np.array([-1e4, -80.0, -3.0, -1e-3, 0.0, 0.5, 20.0, 1e4])


@pytest.mark.parametrize("positive", [0, 1, 0.25, True])
def test_value_slope_and_curvature(positive):
    with jax.enable_x64(True):
        scores = jnp.asarray(SCORES)
        value = ss.logistic_loss(scores, positive)
        slope = jax.vmap(jax.grad(ss.logistic_loss), in_axes=(0, None))(scores, positive)
        curvature = jax.vmap(jax.hessian(ss.logistic_loss), in_axes=(0, None))(scores, positive)
    share = 1 / (1 + np.exp(-SCORES.clip(-700)))
    np.testing.assert_allclose(value, np.logaddexp(0, SCORES) - positive * SCORES, rtol=1e-14)
    np.testing.assert_allclose(slope, share - positive, rtol=1e-14, atol=1e-300)
    np.testing.assert_allclose(curvature, share * (1 - share), rtol=1e-12, atol=1e-300)


def test_gradient_needs_fewer_operations_than_jax():
    """The compiled gradient has one exponential and no logarithm."""

    def default_loss(scores, labels):
        return jnp.logaddexp(0, scores) - labels * scores

    def operations(loss):
        slope = jax.jit(jax.grad(lambda scores, labels: loss(scores, labels).mean()))
        text = slope.lower(jnp.zeros(64), jnp.ones(64)).compile().as_text()
        return [text.count(name) for name in (" exponential(", " log-plus-one(")]

    assert operations(ss.logistic_loss)[1] == 0
    assert operations(default_loss)[1] > 0
