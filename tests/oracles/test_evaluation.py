"""Evaluation is exact for clients of unequal sizes, for functions with and without row weights."""

import jax.numpy as jnp
import numpy as np
import pytest

import softswitch as ss
from softswitch.oracles import evaluation as slices
from softswitch.oracles.evaluation import MAX_WIDTHS


def ragged(sizes, seed=0):
    owner = np.repeat(np.arange(len(sizes)), sizes)
    x = np.random.default_rng(seed).normal(size=len(owner)).astype(np.float32)
    shuffled = np.random.default_rng(1).permutation(len(owner))
    means = np.array([x[owner == i].mean() for i in range(len(sizes))])
    return ss.ClientData.from_arrays({"x": x[shuffled]}, client=owner[shuffled]), means


def weighted(w, b):
    return jnp.average(b["x"], weights=b["weight"]) + 0 * w


def unweighted(w, b):
    return b["x"].mean() + 0 * w


@pytest.mark.parametrize("function", [weighted, unweighted])
@pytest.mark.parametrize("sizes", [[4, 4, 4], [13, 1, 8, 2, 5, 3], [200]])
def test_exact_means_in_client_order(function, sizes):
    clients, means = ragged(sizes)
    problem = ss.Problem(function, lambda w, b: jnp.stack([function(w, b), -function(w, b)]), 0.0)
    objective, constraint = ss.evaluate(problem, clients, problem.start)
    np.testing.assert_allclose(objective, means, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(constraint, np.stack([means, -means], axis=1), rtol=1e-5, atol=1e-7)


def test_evaluation_in_batches(monkeypatch):
    clients, means = ragged(np.arange(1, 60))
    problem = ss.Problem(weighted, weighted, 0.0)
    monkeypatch.setattr(slices, "SLICE_BYTES", 1000)
    np.testing.assert_allclose(ss.evaluate(problem, clients, problem.start)[0], means, rtol=1e-5, atol=1e-7)


def test_too_many_client_sizes_without_weights():
    clients, _ = ragged(np.arange(1, MAX_WIDTHS + 2))
    problem = ss.Problem(unweighted, weighted, 0.0)
    with pytest.raises(ValueError, match="objective must read batch\\['weight'\\], because clients have 65 different"):
        ss.evaluate(problem, clients, problem.start)
