"""Robust methods: the effect of Byzantine clients is bounded by the values of honest clients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

import softswitch as ss
from softswitch.methods import Reports, robust
from softswitch.methods.consistency import Consistency

combine, trim = jax.jit(robust.combine), jax.jit(robust.trim)


@jax.jit
def decide(method, state, reports, stalled_rounds=0):
    if method.robust is None:
        return method.decide(state, reports)
    clients, constraints = reports.constraint.shape
    before = Consistency.empty(clients, constraints, jnp.float32)._replace(stalled_rounds=stalled_rounds)
    part = robust.RobustAggregation(method.robust)
    return part.wrap(method.decide, before, jnp.arange(clients))(state, reports)


numbers = st.floats(-100, 100, width=32)
byzantine_values = st.floats(-(2.0**40), 2.0**40, width=32)


def make_reports(objective, constraint, mask=None):
    objective, constraint = jnp.asarray(objective, jnp.float32), jnp.asarray(constraint, jnp.float32)
    all_clients = jnp.ones(len(objective), bool)
    return Reports(objective, constraint.reshape(len(objective), -1), None, all_clients if mask is None else mask)


def test_extreme_values_are_trimmed():
    reports = trim(make_reports([5, 1, 9, 3, -7], [[0, 1], [9, 1], [2, -8], [3, 1], [4, 7]]), 1)
    np.testing.assert_array_equal(reports.objective, [5, 1, 5, 3, 1])
    np.testing.assert_array_equal(reports.constraint, [[2, 1], [4, 1], [2, 1], [3, 1], [4, 1]])


def test_missing_values_and_clients_are_ignored():
    absent = -jnp.inf
    reports = trim(
        make_reports([absent, 1, 2, 3, 4, 900], [1, 2, 3, absent, 5, 6], jnp.array([1, 1, 1, 1, 1, 0], bool)), 1
    )
    np.testing.assert_array_equal(reports.objective[:5], [absent, 2, 2, 3, 3])
    np.testing.assert_array_equal(reports.constraint[:5, 0], [2, 2, 3, absent, 3])


@given(st.lists(numbers, min_size=4, max_size=9), st.lists(byzantine_values, min_size=1, max_size=3))
def test_trimmed_values_stay_in_honest_range(honest, byzantine):
    count = len(byzantine)
    if len(honest) < count + 1:
        honest = honest * 2
    values = np.array([*byzantine, *honest], np.float32)
    reports = trim(make_reports(values, values), count)
    for trimmed_values in (reports.objective, reports.constraint[:, 0]):
        assert np.min(trimmed_values) >= np.float32(min(honest))
        assert np.max(trimmed_values) <= np.float32(max(honest))


RULES = (
    ss.SoftmaxSGM(alpha=50.0, step_size=0.1, tolerance=0.1),
    ss.SoftmaxSGM(alpha=5.0, step_size=0.1, tolerance=0.1, alpha_scale="spread"),
    ss.HardSGM(step_size=0.1, tolerance=0.1),
    ss.AverageSGM(step_size=0.1, tolerance=0.1),
    ss.Penalty(step_size=0.1, tolerance=0.1, penalty=2.0),
)


@pytest.mark.parametrize("method", RULES, ids=str)
@settings(max_examples=30)
@given(st.lists(st.tuples(byzantine_values, byzantine_values), min_size=7, max_size=7), st.integers(1, 3))
def test_weights_are_capped(method, reports, byzantine):
    robust_method = type(method)(**{**vars(method), "robust": byzantine})
    f, g = zip(*reports, strict=True)
    decision, _ = decide(robust_method, robust_method.init(3, 1), make_reports(f, g))
    weights = np.asarray(decision.weights, float)
    np.testing.assert_allclose(weights.sum(), 1, rtol=1e-5)
    assert weights.max() <= 1 / (2 * byzantine + 1) * 1.002
    assert np.sort(weights)[-byzantine:].sum() < 0.5


def test_excess_weight_goes_to_next_worst():
    method = ss.HardSGM(step_size=0.1, tolerance=0.1, robust=1)
    decision, _ = decide(method, (), make_reports([0, 0, 0, 0, 0], [7, 5, 3, 2, 1]))
    np.testing.assert_allclose(decision.weights, [1 / 3, 1 / 3, 1 / 3, 0, 0], rtol=1e-6)  # 7 is trimmed to 5
    assert not decision.feasible
    np.testing.assert_allclose(decision.criterion, 5)


@pytest.mark.parametrize(("stalled_rounds", "clients", "share"), [(19, 12, 3), (20, 12, 4), (20, 8, 4), (20, 7, 3)])
def test_byzantine_clients_weigh_less_if_stalled(stalled_rounds, clients, share):
    method = ss.HardSGM(step_size=0.1, tolerance=0.1, robust=1)
    reports = make_reports([0] * clients, np.arange(clients, 0, -1))
    decision, _ = decide(method, (), reports, stalled_rounds)
    np.testing.assert_allclose(decision.weights, (np.arange(clients) < share) / share, atol=1e-6)


def test_sharp_softmax_uses_all_weight():
    """Weights that underflow to 0 in float32 are recomputed for the remaining clients."""
    method = ss.SoftmaxSGM(alpha=1e6, step_size=0.1, tolerance=0.1, robust=1)
    decision, _ = decide(method, (), make_reports([9, 8, 7, 6, 5, 4], [0] * 6))
    np.testing.assert_allclose(decision.weights, [1 / 3, 1 / 3, 1 / 3, 0, 0, 0], rtol=1e-5)


def test_client_mix_of_constraints_is_kept():
    method = ss.SoftmaxSGM(alpha=100.0, step_size=0.1, tolerance=0.0, robust=1)
    g = [[5, 0], [0, 5], [4, 4], [1, 0], [0, 1]]
    decision, _ = decide(method, (), make_reports([0] * 5, g))
    np.testing.assert_allclose(decision.weights, [1 / 3, 1 / 3, 1 / 3, 0, 0], atol=1e-5)
    np.testing.assert_allclose(decision.local_loss.constraint[:3], [[1, 0], [0, 1], [0.5, 0.5]], atol=1e-5)


def _reference_combination(directions, weights):
    """Compute the combination with SciPy: geometric median and directions within the median distance."""

    def total(centre):
        return weights @ np.linalg.norm(directions - centre, axis=1)

    starts = [weights @ directions, *directions]
    minimum = min(
        (
            minimize(total, start, method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12, "maxiter": 20000})
            for start in starts
        ),
        key=lambda result: result.fun,
    )
    differences = directions - minimum.x
    distance = np.linalg.norm(differences, axis=1)
    order = np.argsort(distance)
    radius = distance[order][np.argmax(np.cumsum(weights[order]) >= 0.5)]
    return minimum.x + weights @ (differences * np.minimum(1, radius / np.maximum(distance, 1e-300))[:, None])


@pytest.mark.parametrize("seed", range(3))
def test_combined_direction_matches_scipy(seed):
    generator = np.random.default_rng(seed)
    directions = generator.normal((2, 0), size=(7, 2))
    directions[0] *= -30
    weights = generator.dirichlet(np.full(7, 3.0))
    direction = combine({"w": jnp.asarray(directions)}, jnp.asarray(weights))["w"]
    # Eight iterations do not converge fully: the error is a hundredth of the directions' size.
    np.testing.assert_allclose(direction, _reference_combination(directions, weights), atol=0.02)


def test_equal_directions_are_unchanged():
    directions = {"a": jnp.ones((5, 2, 3)), "b": jnp.full((5,), 2.0)}
    direction = combine(directions, jnp.full(5, 0.2))
    np.testing.assert_allclose(direction["a"], np.ones((2, 3)), rtol=1e-6)
    np.testing.assert_allclose(direction["b"], 2.0, rtol=1e-6)
    zero = combine({"a": jnp.zeros((3, 2))}, jnp.full(3, 1 / 3))
    np.testing.assert_array_equal(zero["a"], [0, 0])


@settings(max_examples=60)
@given(
    st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=3, max_size=6),
    st.lists(byzantine_values, min_size=3, max_size=3),
)
def test_byzantine_direction_has_bounded_effect(honest, byzantine):
    """By the breakdown point of the geometric median, a client of weight 1/3 moves it by at most a multiple of the
    honest directions' spread."""
    directions = np.array([byzantine, *honest], np.float32)
    weights = np.full(len(directions), 2 / 3 / len(honest), np.float32)
    weights[0] = 1 / 3
    direction = np.asarray(combine({"w": jnp.asarray(directions)}, jnp.asarray(weights))["w"], float)
    honest_directions = np.array(honest, float)
    centre = honest_directions.mean(axis=0)
    spread = np.linalg.norm(honest_directions - centre, axis=1).max()
    assert np.linalg.norm(direction - centre) <= 6 * spread + 0.02 * np.linalg.norm(centre) + 1e-3


def test_robust_setting_is_validated():
    with pytest.raises(ValueError, match="robust must be an integer >= 0, but is -1"):
        ss.SoftmaxSGM(tolerance=0.1, robust=-1, step_size=None, alpha=None)
    with pytest.raises(ValueError, match="robust=1 needs the criterion 'softmax'"):
        ss.SoftmaxSGM(tolerance=0.1, criterion="pooled", robust=1, step_size=None, alpha=None)
    assert ss.SoftmaxSGM(tolerance=0.1, robust=0, step_size=None, alpha=None) == ss.SoftmaxSGM(
        tolerance=0.1, step_size=None, alpha=None
    )
    assert "robust=2" in str(ss.SoftmaxSGM(tolerance=0.1, robust=2, step_size=None, alpha=None))


def test_too_few_clients_are_rejected_before_training():
    method = ss.SoftmaxSGM(tolerance=0.1, robust=2, step_size=None, alpha=None)
    robust.check_robust(method, 5)
    with pytest.raises(
        ValueError, match="robust=2 needs at least 2·2 \\+ 1 = 5 clients in every round, but 4 take part"
    ):
        robust.check_robust(method, 4)


@pytest.mark.parametrize("number", [int, np.int64, np.int32])
def test_robust_setting_accepts_numpy_integers(number):
    method = ss.SoftmaxSGM(alpha=1.0, step_size=1.0, tolerance=0.1, robust=number(2))
    assert (method.robust, type(method.robust)) == (2, int)
    assert ss.SoftmaxSGM(alpha=1.0, step_size=1.0, tolerance=0.1, robust=number(0)).robust is None
    with pytest.raises(ValueError, match="robust must be an integer >= 0"):
        ss.SoftmaxSGM(alpha=1.0, step_size=1.0, tolerance=0.1, robust=number(-1))
