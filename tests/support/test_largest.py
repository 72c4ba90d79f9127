"""The places of the largest numbers, found in blocks."""

import jax
import numpy as np
import pytest
from jax import lax

from softswitch.support.arrays import top_k_indices


@pytest.mark.parametrize(("n", "many"), [(1, 1), (7, 7), (100, 1), (1000, 9), (1001, 62), (4096, 64), (5000, 400)])
@pytest.mark.parametrize("kinds", [2, 50, 10**6])
def test_they_are_those_of_top_k_in_its_order(n, many, kinds):
    """Also where many are equal, infinite, or −∞ as the padding is."""
    generator = np.random.default_rng(n + kinds)
    values = generator.integers(0, kinds, n).astype(np.float32)
    values[generator.random(n) < 0.1] = -np.inf
    values[generator.random(n) < 0.02] = np.inf
    found = np.asarray(jax.jit(top_k_indices, static_argnums=1)(values, many))
    np.testing.assert_array_equal(found, lax.top_k(values, many)[1])


def test_where_nearly_all_are_minus_infinity():
    values = np.full(1003, -np.inf, np.float32)
    values[[1002, 500, 7]] = [1.0, 3.0, 2.0]
    np.testing.assert_array_equal(top_k_indices(values, 3), [500, 7, 1002])
    np.testing.assert_array_equal(top_k_indices(values, 10), lax.top_k(values, 10)[1])


def test_it_can_be_mapped():
    values = np.random.default_rng(0).normal(size=(3, 2000)).astype(np.float32)
    found = jax.vmap(lambda one: top_k_indices(one, 20))(values)
    np.testing.assert_array_equal(found, np.argsort(-values, axis=1)[:, :20])
