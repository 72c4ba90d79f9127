"""A round of which some clients may lie: what they can do is bounded by what the honest say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

import softswitch as ss
from softswitch.methods import Reports, robust

combined, trimmed = jax.jit(robust.combine), jax.jit(robust.trim)


@jax.jit
def decide(method, state, reports):
    if method.robust is None:
        return method.decide(state, reports)
    return robust.RobustAggregation(method.robust).wrap(method.decide, None, None)(state, reports)


numbers = st.floats(-100, 100, width=32)
lies = st.floats(-(2.0**40), 2.0**40, width=32)


def told(objective, constraint, mask=None):
    objective, constraint = jnp.asarray(objective, jnp.float32), jnp.asarray(constraint, jnp.float32)
    everyone = jnp.ones(len(objective), bool)
    return Reports(objective, constraint.reshape(len(objective), -1), None, everyone if mask is None else mask)


def test_the_largest_and_smallest_are_moved_to_their_neighbours():
    reports = trimmed(told([5, 1, 9, 3, -7], [[0, 1], [9, 1], [2, -8], [3, 1], [4, 7]]), 1)
    np.testing.assert_array_equal(reports.objective, [5, 1, 5, 3, 1])
    np.testing.assert_array_equal(reports.constraint, [[2, 1], [4, 1], [2, 1], [3, 1], [4, 1]])


def test_what_a_client_does_not_have_and_who_did_not_report_are_left_out():
    absent = -jnp.inf
    reports = trimmed(told([absent, 1, 2, 3, 4, 900], [1, 2, 3, absent, 5, 6], jnp.array([1, 1, 1, 1, 1, 0], bool)), 1)
    np.testing.assert_array_equal(reports.objective[:5], [absent, 2, 2, 3, 3])
    np.testing.assert_array_equal(reports.constraint[:5, 0], [2, 2, 3, absent, 3])


@given(st.lists(numbers, min_size=4, max_size=9), st.lists(lies, min_size=1, max_size=3))
def test_whatever_liars_say_no_number_leaves_the_honest_range(honest, lying):
    liars = len(lying)
    if len(honest) < liars + 1:
        honest = honest * 2
    values = np.array([*lying, *honest], np.float32)
    reports = trimmed(told(values, values), liars)
    for found in (reports.objective, reports.constraint[:, 0]):
        assert np.min(found) >= np.float32(min(honest))
        assert np.max(found) <= np.float32(max(honest))


RULES = (
    ss.SoftmaxSGM(alpha=50.0, step_size=0.1, tolerance=0.1),
    ss.SoftmaxSGM(alpha=5.0, step_size=0.1, tolerance=0.1, alpha_scale="spread"),
    ss.HardSGM(step_size=0.1, tolerance=0.1),
    ss.AverageSGM(step_size=0.1, tolerance=0.1),
    ss.Penalty(step_size=0.1, tolerance=0.1, penalty=2.0),
)


@pytest.mark.parametrize("method", RULES, ids=str)
@settings(max_examples=30)
@given(st.lists(st.tuples(lies, lies), min_size=7, max_size=7), st.integers(1, 3))
def test_nobody_weighs_more_than_liars_may(method, reports, liars):
    careful = type(method)(**{**vars(method), "robust": liars})
    f, g = zip(*reports, strict=True)
    decision, _ = decide(careful, careful.init(3, 1), told(f, g))
    weights = np.asarray(decision.weights, float)
    np.testing.assert_allclose(weights.sum(), 1, rtol=1e-5)
    assert weights.max() <= 1 / (2 * liars + 1) * 1.002
    assert np.sort(weights)[-liars:].sum() < 0.5


def test_the_next_worst_share_what_the_worst_may_not_weigh():
    method = ss.HardSGM(step_size=0.1, tolerance=0.1, robust=1)
    decision, _ = decide(method, (), told([0, 0, 0, 0, 0], [7, 5, 3, 2, 1]))
    np.testing.assert_allclose(decision.weights, [1 / 3, 1 / 3, 1 / 3, 0, 0], rtol=1e-6)  # 7 is moved to 5
    assert not decision.feasible
    np.testing.assert_allclose(decision.criterion, 5)


def test_a_sharp_softmax_leaves_no_weight_unused():
    """Weights that are 0 in float32 are found again among those who are left."""
    method = ss.SoftmaxSGM(alpha=1e6, step_size=0.1, tolerance=0.1, robust=1)
    decision, _ = decide(method, (), told([9, 8, 7, 6, 5, 4], [0] * 6))
    np.testing.assert_allclose(decision.weights, [1 / 3, 1 / 3, 1 / 3, 0, 0, 0], rtol=1e-5)


def test_with_several_constraints_a_client_keeps_its_own_mix():
    method = ss.SoftmaxSGM(alpha=100.0, step_size=0.1, tolerance=0.0, robust=1)
    g = [[5, 0], [0, 5], [4, 4], [1, 0], [0, 1]]
    decision, _ = decide(method, (), told([0] * 5, g))
    np.testing.assert_allclose(decision.weights, [1 / 3, 1 / 3, 1 / 3, 0, 0], atol=1e-5)
    np.testing.assert_allclose(decision.local_loss.constraint[:3], [[1, 0], [0, 1], [0.5, 0.5]], atol=1e-5)


def _in_numpy(directions, weights):
    """The same by SciPy: the geometric median, and everyone within the median distance of it."""

    def total(middle):
        return weights @ np.linalg.norm(directions - middle, axis=1)

    starts = [weights @ directions, *directions]
    found = min(
        (
            minimize(total, one, method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12, "maxiter": 20000})
            for one in starts
        ),
        key=lambda result: result.fun,
    )
    apart = directions - found.x
    distance = np.linalg.norm(apart, axis=1)
    order = np.argsort(distance)
    half = distance[order][np.argmax(np.cumsum(weights[order]) >= 0.5)]
    return found.x + weights @ (apart * np.minimum(1, half / np.maximum(distance, 1e-300))[:, None])


@pytest.mark.parametrize("seed", range(3))
def test_directions_are_combined_as_scipy_finds_it(seed):
    generator = np.random.default_rng(seed)
    directions = generator.normal((2, 0), size=(7, 2))
    directions[0] *= -30
    weights = generator.dirichlet(np.full(7, 3.0))
    found = combined({"w": jnp.asarray(directions)}, jnp.asarray(weights))["w"]
    # Eight steps towards the middle are not all of the way: a hundredth of the directions' size.
    np.testing.assert_allclose(found, _in_numpy(directions, weights), atol=0.02)


def test_equal_directions_are_their_own_combination():
    same = {"a": jnp.ones((5, 2, 3)), "b": jnp.full((5,), 2.0)}
    found = combined(same, jnp.full(5, 0.2))
    np.testing.assert_allclose(found["a"], np.ones((2, 3)), rtol=1e-6)
    np.testing.assert_allclose(found["b"], 2.0, rtol=1e-6)
    nothing = combined({"a": jnp.zeros((3, 2))}, jnp.full(3, 1 / 3))
    np.testing.assert_array_equal(nothing["a"], [0, 0])


@settings(max_examples=60)
@given(
    st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=3, max_size=6),
    st.lists(lies, min_size=3, max_size=3),
)
def test_however_far_a_liar_points_the_step_stays_near_the_honest(honest, lie):
    """By the breakdown point of the geometric median: a liar of weight 1/3 moves it by no more than some times the
    honest directions' own spread, wherever it points."""
    directions = np.array([lie, *honest], np.float32)
    weights = np.full(len(directions), 2 / 3 / len(honest), np.float32)
    weights[0] = 1 / 3
    found = np.asarray(combined({"w": jnp.asarray(directions)}, jnp.asarray(weights))["w"], float)
    others = np.array(honest, float)
    centre = others.mean(axis=0)
    spread = np.linalg.norm(others - centre, axis=1).max()
    assert np.linalg.norm(found - centre) <= 6 * spread + 0.02 * np.linalg.norm(centre) + 1e-3


def test_robust_is_a_whole_number_and_not_for_sums():
    with pytest.raises(ValueError, match="robust must be an integer >= 0, but is -1"):
        ss.SoftmaxSGM(tolerance=0.1, robust=-1, step_size=None, alpha=None)
    with pytest.raises(ValueError, match="robust=1 needs the criterion 'softmax'"):
        ss.SoftmaxSGM(tolerance=0.1, criterion="pooled", robust=1, step_size=None, alpha=None)
    assert ss.SoftmaxSGM(tolerance=0.1, robust=0, step_size=None, alpha=None) == ss.SoftmaxSGM(
        tolerance=0.1, step_size=None, alpha=None
    )
    assert "robust=2" in str(ss.SoftmaxSGM(tolerance=0.1, robust=2, step_size=None, alpha=None))


def test_too_few_are_refused_before_any_work():
    method = ss.SoftmaxSGM(tolerance=0.1, robust=2, step_size=None, alpha=None)
    robust.check_robust(method, 5)
    with pytest.raises(
        ValueError, match="robust=2 needs at least 2·2 \\+ 1 = 5 clients in every round, but 4 take part"
    ):
        robust.check_robust(method, 4)


@pytest.mark.parametrize("number", [int, np.int64, np.int32])
def test_a_number_of_liars_is_checked_whatever_its_type(number):
    method = ss.SoftmaxSGM(alpha=1.0, step_size=1.0, tolerance=0.1, robust=number(2))
    assert (method.robust, type(method.robust)) == (2, int)
    assert ss.SoftmaxSGM(alpha=1.0, step_size=1.0, tolerance=0.1, robust=number(0)).robust is None
    with pytest.raises(ValueError, match="robust must be an integer >= 0"):
        ss.SoftmaxSGM(alpha=1.0, step_size=1.0, tolerance=0.1, robust=number(-1))
