import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import softswitch as ss


def norm(params):
    return np.sqrt(sum((np.asarray(leaf) ** 2).sum() for leaf in jax.tree.leaves(params)))


def test_ball_uses_norm_of_pytree():
    params = {"a": jnp.array([3.0, 0.0]), "b": jnp.float32(4.0)}
    projected = ss.Ball(2.5).project(params)
    np.testing.assert_allclose(projected["a"], [1.5, 0])
    assert float(projected["b"]) == pytest.approx(2.0)
    inside = ss.Ball(6.0).project(params)
    np.testing.assert_array_equal(inside["a"], params["a"])
    assert ss.Ball(2.5).diameter(params) == 5.0


def test_box_clips_each_entry():
    params = {"a": jnp.array([3.0, -9.0, 0.5])}
    np.testing.assert_array_equal(ss.Box(-1, 2).project(params)["a"], [2, -1, 0.5])
    assert ss.Box(-1, 2).diameter(params) == pytest.approx(3 * np.sqrt(3))


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=5), st.floats(0.01, 100))
def test_projections_are_feasible_and_idempotent(entries, size):
    params = jnp.asarray(entries, jnp.float32)
    for domain in (ss.Ball(size), ss.Box(-size, size)):
        projected = domain.project(params)
        assert np.isfinite(projected).all()
        np.testing.assert_allclose(domain.project(projected), projected, rtol=1e-5, atol=1e-6)
    assert norm(ss.Ball(size).project(params)) <= size * (1 + 1e-5)
    assert np.abs(ss.Box(-size, size).project(params)).max() <= size * (1 + 1e-6)


def test_radius_is_traced():
    project = jax.jit(lambda domain, w: domain.project(w))
    assert float(project(ss.Ball(1.0), jnp.float32(3.0))) == 1
    assert float(project(ss.Ball(2.0), jnp.float32(3.0))) == 2
    assert project._cache_size() == 1


def test_distant_point_is_projected_to_boundary():
    """The square of 2e19 overflows float32."""
    assert norm(ss.Ball(10.0).project(jnp.full(4, 2e19))) == pytest.approx(10, rel=1e-5)
    assert norm(ss.Ball(10.0).project(jnp.zeros(4))) == 0
