"""Properties of the softmax mean on NumPy, JAX and PyTorch arrays."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.optimize import brentq

import softswitch as ss
from problems import record_iterates
from softswitch.methods.weighting import equal_weights, hardmax_weights, maximum, softmax_mean, softmax_weights

MODERATE = st.floats(-100, 100, allow_subnormal=False)
HUGE = st.floats(-1e8, 1e8, allow_subnormal=False)
ALPHAS = st.one_of(st.just(0.0), st.floats(1e-3, 1e6))


def vectors(elements=MODERATE):
    return hnp.arrays(np.float64, st.integers(1, 12), elements=elements)


@st.composite
def masked_vectors(draw, elements=MODERATE):
    values = draw(vectors(elements))
    mask = draw(hnp.arrays(bool, len(values)))
    assume(mask.any())
    return values, mask


def test_hand_computed_weights():
    weights = softmax_weights(np.array([0.0, np.log(3.0)]), 1.0)
    np.testing.assert_allclose(weights, [0.25, 0.75])
    assert softmax_mean(np.array([0.0, np.log(3.0)]), 1.0) == pytest.approx(0.75 * np.log(3))
    np.testing.assert_allclose(softmax_weights(np.array([0.0, np.log(3.0)]), 2.0), [0.1, 0.9])


@given(vectors(), ALPHAS, MODERATE)
def test_shift(x, alpha, c):
    assert softmax_mean(x + c, alpha) == pytest.approx(softmax_mean(x, alpha) + c, abs=1e-9 * (1 + alpha))


@given(vectors(), st.floats(1e-2, 1e3), st.floats(0, 50))
def test_scale(x, alpha, c):
    assert softmax_mean(c * x, alpha) == pytest.approx(c * softmax_mean(x, c * alpha), abs=1e-9, rel=1e-9)


@given(vectors(), ALPHAS, st.floats(1, 10))
def test_mean_does_not_fall_as_alpha_grows(x, alpha, factor):
    assert softmax_mean(x, alpha * factor) >= softmax_mean(x, alpha) - 1e-10


@given(masked_vectors(HUGE), ALPHAS)
def test_between_maximum_and_maximum_minus_log_over_alpha(pair, alpha):
    """Includes α = 1e6 and values of size 1e8: nothing overflows. With a mask, m takes the place of n."""
    x, mask = pair
    gap = x[mask].max() - softmax_mean(x, alpha, mask)
    assert gap >= 0
    if alpha > 0:
        assert gap <= np.log(mask.sum()) / alpha * (1 + 1e-9) + 1e-7 * (np.abs(x).max() > 1e6)
    assert np.isfinite(softmax_weights(x, alpha, mask)).all()


@given(masked_vectors(), st.floats(1e-2, 1e6), st.data())
def test_weights_from_noisy_values_approximate_maximum(pair, alpha, data):
    """<softmax(α(x + d)), x> >= max x − 2‖d‖∞ − ln m/α."""
    x, mask = pair
    noise = data.draw(hnp.arrays(np.float64, len(x), elements=st.floats(-5, 5)))
    weights = softmax_weights(x + noise, alpha, mask)
    bound = x[mask].max() - 2 * np.abs(noise[mask]).max() - np.log(mask.sum()) / alpha
    assert weights @ x >= bound - 1e-8


@given(vectors(st.floats(-5, 5)), st.floats(0.1, 20), st.data())
def test_weights_maximise_mean_plus_entropy(x, alpha, data):
    """softmax(αx) = argmax over the simplex of <q, x> + Ent(q)/α: no other q has a larger value."""

    def value(q):
        positive = q[q > 0]
        return q @ x - (positive * np.log(positive)).sum() / alpha

    alternative = data.draw(hnp.arrays(np.float64, len(x), elements=st.floats(1e-3, 1))) + 0.0
    assert value(softmax_weights(x, alpha)) >= value(alternative / alternative.sum()) - 1e-10


@given(masked_vectors(HUGE), ALPHAS)
def test_weights_form_a_distribution_on_the_mask(pair, alpha):
    x, mask = pair
    weights = softmax_weights(x, alpha, mask)
    assert weights.sum() == pytest.approx(1)
    assert (weights >= 0).all()
    assert (weights[~mask] == 0).all()
    # Masking equals removing the other clients, and their values are not read.
    np.testing.assert_allclose(weights[mask], softmax_weights(x[mask], alpha), atol=1e-15)
    poisoned = np.where(mask, x, np.nan)
    np.testing.assert_array_equal(softmax_weights(poisoned, alpha, mask), weights)
    assert softmax_mean(poisoned, alpha, mask) == softmax_mean(x, alpha, mask)


@given(vectors())
def test_limits_of_alpha(x):
    np.testing.assert_allclose(softmax_weights(x, 0.0), np.full(len(x), 1 / len(x)))
    np.testing.assert_allclose(equal_weights(x), softmax_weights(x, 0.0))
    assert softmax_mean(x, 0.0) == pytest.approx(x.mean(), abs=1e-12)
    gaps = x.max() - x
    assume((gaps[gaps > 0] > 1e-3).all())
    np.testing.assert_allclose(softmax_weights(x, 1e6), hardmax_weights(x), atol=1e-12)


def test_ties_and_matrices():
    values = np.array([[3.0, 1.0], [3.0, -2.0]])
    np.testing.assert_array_equal(hardmax_weights(values), [[0.5, 0], [0.5, 0]])
    pairs = softmax_weights(values, 0.7)
    np.testing.assert_allclose(pairs.ravel(), softmax_weights(values.ravel(), 0.7))
    only_first = np.array([True, False])
    np.testing.assert_allclose(softmax_weights(values, 0.7, only_first[:, None])[0], softmax_weights(values[0], 0.7))


def test_maximum_up_to_rounding():
    """The maximum may differ in the last digit from the value that it is compared with."""
    values = np.array([12.96, 1.0, np.nextafter(12.96, 13), np.inf])
    np.testing.assert_array_equal(hardmax_weights(values, np.array([True, True, True, False])), [0.5, 0, 0.5, 0])
    np.testing.assert_array_equal(hardmax_weights(np.array([1.0, 1.0 + 1e-9, 0.5])), [0, 1, 0])
    np.testing.assert_array_equal(hardmax_weights(np.array([-3.0, -1e-20, -2.0])), [0, 1, 0])


def test_empty_mask():
    values, empty_mask = np.array([1.0, np.nan]), np.array([False, False])
    np.testing.assert_array_equal(softmax_weights(values, 5.0, empty_mask), [0, 0])
    np.testing.assert_array_equal(equal_weights(values, empty_mask), [0, 0])
    assert maximum(values, empty_mask) == -np.inf
    assert softmax_mean(values, 5.0, empty_mask) == -np.inf


@pytest.mark.parametrize("library", [jnp.asarray, torch.asarray], ids=["jax", "torch"])
def test_array_libraries_agree(x64, library):
    generator = np.random.default_rng(0)
    x, mask = generator.normal(size=(7, 2)), generator.random((7, 1)) < 0.6
    for function in (lambda v, m: softmax_weights(v, 3.0, m), lambda v, m: softmax_mean(v, 3.0, m), hardmax_weights):
        actual = function(library(x), library(mask))
        assert type(actual).__module__.split(".")[0] in ("jaxlib", "torch")
        np.testing.assert_allclose(np.asarray(actual), function(x, mask), rtol=1e-12)
    np.testing.assert_allclose(np.asarray(equal_weights(library(x), library(mask))), equal_weights(x, mask))


@pytest.mark.parametrize(("alpha", "regime"), [(0.8, "monotone"), (1.6, "alternating"), (2.5, "2-cycle")])
def test_tanh_recurrence(monkeypatch, x64, alpha, regime):
    """f_1 = w, f_2 = −w, g ≡ −1: w_{k+1} = w_k − η tanh(α w_k) exactly, in all three regimes of αη (here η = 1)."""
    clients = ss.ClientData.from_arrays({"sign": np.array([1.0, -1.0])}, client=[0, 1])
    problem = ss.Problem(lambda w, b: w * b["sign"][0], lambda w, b: -1.0 + 0 * w, jnp.float64(0.3))
    method = ss.SoftmaxSGM(alpha=alpha, step_size=1.0, tolerance=0.1)
    w, _ = record_iterates(monkeypatch, problem, clients, method, rounds=200, batch_size=None)
    expected = [0.3]
    for _ in range(200):
        expected.append(expected[-1] - np.tanh(alpha * expected[-1]))
    np.testing.assert_allclose(w, expected, rtol=1e-9, atol=1e-14)
    early = w[:20]
    if regime == "monotone":
        assert (early > 0).all()
        assert (np.diff(early) < 0).all()
    elif regime == "alternating":
        assert (early[1:] * early[:-1] < 0).all()
        assert (np.abs(early[1:]) < np.abs(early[:-1])).all()
    else:
        amplitude = brentq(lambda p: np.tanh(alpha * p) - 2 * p, 1e-6, 1)
        np.testing.assert_allclose(np.abs(w[-10:]), amplitude, rtol=1e-9)
        assert (w[-9:] * w[-10:-1] < 0).all()
