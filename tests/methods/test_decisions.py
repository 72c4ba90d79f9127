"""Decisions of each method: analytical values and relations between methods."""

import dataclasses
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import softswitch as ss
from benchmarks import flat
from softswitch.methods import Method, Reports
from softswitch.methods.base import switch
from softswitch.methods.weighting import softmax_weights

COMMON = {"step_size": 0.1, "tolerance": 0.11}  # λ = 0.1


def reports(f, g, mask=None, pooled=None):
    f, g = np.asarray(f, float), np.asarray(g, float)
    g = g[:, None] if g.ndim == 1 else g
    return Reports(f, g, pooled, np.ones(len(f), bool) if mask is None else np.asarray(mask))


def decide(method, *args, state=(), **kwargs):
    return method.decide(state, reports(*args, **kwargs))[0]


def test_softmax_switch_and_weights():
    method = ss.SoftmaxSGM(alpha=1.0, **COMMON)
    feasible = decide(method, [0.0, np.log(3)], [-1.0, -1.0])
    assert bool(feasible.feasible)
    np.testing.assert_allclose(feasible.weights, [0.25, 0.75])
    assert feasible.local_loss.objective == 1
    np.testing.assert_array_equal(feasible.local_loss.constraint, [[0], [0]])

    infeasible = decide(method, [5.0, 0.0], [0.0, np.log(3)])
    assert not bool(infeasible.feasible)
    assert infeasible.criterion == pytest.approx(0.75 * np.log(3))
    np.testing.assert_allclose(infeasible.weights, [0.25, 0.75])
    assert infeasible.local_loss.objective == 0
    np.testing.assert_array_equal(infeasible.local_loss.constraint, [[1], [1]])


def test_several_constraints_weight_pairs():
    """q over the four pairs, exp(g) = 1, 3, 2, 2 of 8: client weights 1/2 and 1/2, mixes (1/4, 3/4) and (1/2, 1/2)."""
    decision = decide(ss.SoftmaxSGM(alpha=1.0, **COMMON), [0, 0], np.log([[1, 3], [2, 2]]))
    np.testing.assert_allclose(decision.weights, [0.5, 0.5])
    np.testing.assert_allclose(decision.local_loss.constraint, [[0.25, 0.75], [0.5, 0.5]])
    assert decision.criterion == pytest.approx((3 * np.log(3) + 4 * np.log(2)) / 8)


def test_vanishing_weights_do_not_divide_by_zero():
    decision = decide(ss.SoftmaxSGM(alpha=1e6, **COMMON), [0, 0], [[5.0, 4.0], [-1e8, -1e8]])
    np.testing.assert_array_equal(decision.weights, [1, 0])
    np.testing.assert_array_equal(decision.local_loss.constraint, [[1, 0], [0.5, 0.5]])


def test_threshold():
    assert ss.AverageSGM(step_size=1, tolerance=0.1).switch_at == pytest.approx(0.1 / 1.1)
    assert ss.AverageSGM(step_size=1, tolerance=0.1, slack=1).switch_at == pytest.approx(0.05)
    assert ss.AverageSGM(step_size=1, tolerance=0.1, threshold=-5).switch_at == -5
    at_lambda = ss.AverageSGM(step_size=1, tolerance=1, threshold=0.5)
    assert bool(decide(at_lambda, [0.0], [0.5]).feasible), "G_k <= λ includes equality"
    assert not bool(decide(at_lambda, [0.0], [0.7]).feasible), "λ < G_k <= ε is not feasible"


@pytest.mark.parametrize(
    ("criterion", "expected"),
    [("softmax", 0.75 * np.log(3)), ("max", np.log(3)), ("mean", np.log(3) / 2), ("pooled", 0.07)],
)
def test_criteria(criterion, expected):
    method = ss.SoftmaxSGM(alpha=1.0, criterion=criterion, **COMMON)
    decision = decide(method, [0, 0], [0.0, np.log(3)], pooled=np.array([0.02, 0.07]))
    assert decision.criterion == pytest.approx(expected)
    assert bool(decision.feasible) == (expected <= 0.1)
    if not decision.feasible:
        np.testing.assert_allclose(decision.weights, [0.25, 0.75], err_msg="the criterion must not change the weights")


def test_constraint_alpha():
    method = ss.SoftmaxSGM(alpha=1.0, constraint_alpha=2.0, **COMMON)
    np.testing.assert_allclose(decide(method, [0, 0], [0, np.log(3)]).weights, [0.1, 0.9])
    np.testing.assert_allclose(decide(method, [0, np.log(3)], [-1, -1]).weights, [0.25, 0.75])


REPORTED = hnp.arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(1, 3)), elements=st.floats(-3, 3))


@given(REPORTED, st.data())
def test_average_is_softmax_at_zero(g, data):
    f = data.draw(hnp.arrays(np.float64, len(g), elements=st.floats(-3, 3)))
    assert_same_decision(decide(ss.AverageSGM(**COMMON), f, g), decide(ss.SoftmaxSGM(alpha=0.0, **COMMON), f, g))


@given(REPORTED, st.data())
def test_hard_is_limit_of_softmax(g, data):
    """Values are on a grid of 0.01, so that at α = 1e5 only ties remain."""
    f = np.round(data.draw(hnp.arrays(np.float64, len(g), elements=st.floats(-3, 3))), 2)
    assert_same_decision(
        decide(ss.HardSGM(**COMMON), f, g.round(2)), decide(ss.SoftmaxSGM(alpha=1e5, **COMMON), f, g.round(2))
    )
    softmax_word = ss.HardSGM(criterion="softmax", **COMMON)
    assert_same_decision(decide(softmax_word, f, g.round(2)), decide(ss.HardSGM(**COMMON), f, g.round(2)))


def assert_same_decision(actual, expected):
    assert bool(actual.feasible) == bool(expected.feasible)
    np.testing.assert_allclose(actual.criterion, expected.criterion, atol=1e-9)
    np.testing.assert_allclose(actual.weights, expected.weights, atol=1e-9)
    np.testing.assert_allclose(
        actual.weights[:, None] * actual.local_loss.constraint,
        expected.weights[:, None] * expected.local_loss.constraint,
        atol=1e-9,
    )


def test_penalty():
    decision = decide(ss.Penalty(penalty=2.5, **COMMON), [1.0, 2.0], [0.0, 1.0])
    np.testing.assert_array_equal(decision.weights, [0.5, 0.5])
    loss = decision.local_loss
    assert (loss.objective, loss.penalty, loss.tolerance) == (1, 2.5, 0.11)
    np.testing.assert_array_equal(loss.constraint, [[0], [0]])
    assert not bool(decision.feasible)


def test_primal_dual():
    """μ_0 = (2, 2), means (0.5, −9), η_d = 0.1, ε = 0.11: μ_1 = (2.039, 1.089), and later the second is 0."""
    method = ss.PrimalDual(multiplier=2.0, dual_step_size=0.1, **COMMON)
    state = method.init(3, 2)
    received = reports([0, 0], [[0.0, -8.0], [1.0, -10.0]])
    decision, state = method.decide(state, received)
    np.testing.assert_array_equal(decision.local_loss.constraint, [[2, 2], [2, 2]])
    np.testing.assert_allclose(state, [2.039, 1.089], rtol=1e-6)
    for _ in range(3):
        _, state = method.decide(state, received)
    assert state[1] == 0


RULES = {
    "softmax": ss.SoftmaxSGM(alpha=3.0, **COMMON),
    "average": ss.AverageSGM(**COMMON),
    "hard": ss.HardSGM(**COMMON),
    "penalty": ss.Penalty(penalty=1.0, **COMMON),
    "primal-dual": ss.PrimalDual(multiplier=1.0, dual_step_size=0.1, **COMMON),
}


@pytest.mark.parametrize("name", RULES)
def test_absent_clients_are_ignored(name):
    method = RULES[name]
    present = method.decide(method.init(3, 1), reports([1.0, 2.0], [0.5, 0.2]))
    masked = method.decide(method.init(3, 1), reports([1.0, np.nan, 2.0], [0.5, np.nan, 0.2], mask=[True, False, True]))
    np.testing.assert_allclose(masked[0].weights, np.insert(present[0].weights, 1, 0))
    assert masked[0].criterion == pytest.approx(present[0].criterion)
    np.testing.assert_allclose(masked[1], present[1])


@pytest.mark.parametrize("name", RULES)
def test_void_round_is_not_feasible(name):
    method = RULES[name]
    decision, state = method.decide(method.init(3, 1), reports([np.nan] * 2, [np.nan] * 2, mask=[False, False]))
    assert not bool(decision.feasible)
    np.testing.assert_array_equal(decision.weights, [0, 0])
    np.testing.assert_array_equal(state, method.init(3, 1))


def test_only_numbers_are_leaves():
    leaves, structure = jax.tree.flatten(ss.SoftmaxSGM(alpha=1, step_size=2, tolerance=3))
    assert sorted(leaves) == [1, 2, 3], "None must not be a leaf"
    assert sorted(jax.tree.leaves(ss.SoftmaxSGM(alpha=1, step_size=2, tolerance=3, slack=10))) == [1, 2, 3, 10]
    assert structure == jax.tree.structure(ss.SoftmaxSGM(alpha=7, step_size=8, tolerance=9))
    assert structure != jax.tree.structure(ss.SoftmaxSGM(alpha=7, step_size=8, tolerance=9, criterion="max"))
    assert structure != jax.tree.structure(ss.SoftmaxSGM(alpha=7, step_size=optax.constant_schedule(8), tolerance=9))
    doubled = jax.tree.map(lambda x: 2 * x, RULES["softmax"])
    assert (doubled.alpha, doubled.criterion, doubled.switches_on) == (6.0, None, "softmax")


def test_repr_is_short():
    assert str(RULES["softmax"]) == "SoftmaxSGM(tolerance=0.11, step_size=0.1, alpha=3.0)"
    assert str(ss.AverageSGM(optimizer=optax.adam, **COMMON)).endswith("optimizer=adam)")


def test_decisions_on_jax_arrays_match_numpy(x64):
    f, g = np.array([0.3, 0.1, 0.7]), np.array([[0.2, 0.0], [0.4, 0.1], [0.1, 0.3]])
    for method in RULES.values():
        on_numpy = method.decide(np.asarray(method.init(3, 2)), reports(f, g))[0]
        on_jax = method.decide(method.init(3, 2), Reports(jnp.asarray(f), jnp.asarray(g), None, jnp.ones(3, bool)))[0]
        for numpy_leaf, jax_leaf in zip(jax.tree.leaves(on_numpy), jax.tree.leaves(on_jax), strict=True):
            np.testing.assert_allclose(numpy_leaf, jax_leaf, rtol=1e-12)


MISSING = -np.inf


def test_client_without_function_has_no_weight():
    f, g = [0.0, np.log(3), MISSING], [MISSING, 0.5, 0.5 + np.log(3)]
    softmax = ss.SoftmaxSGM(alpha=1.0, **COMMON)
    infeasible = decide(softmax, f, g)
    np.testing.assert_allclose(infeasible.weights, [0, 0.25, 0.75])
    assert infeasible.criterion == pytest.approx(0.5 + 0.75 * np.log(3))
    feasible = decide(softmax, f, [MISSING, -1.0, -2.0])
    np.testing.assert_allclose(feasible.weights, [0.25, 0.75, 0])
    average = decide(ss.AverageSGM(**COMMON), f, g)
    np.testing.assert_allclose(average.weights, [0, 0.5, 0.5])
    assert average.criterion == pytest.approx(0.5 + np.log(3) / 2)
    np.testing.assert_array_equal(decide(ss.HardSGM(**COMMON), f, g).weights, [0, 0, 1])
    assert decide(ss.HardSGM(**COMMON), f, g).criterion == pytest.approx(0.5 + np.log(3))


def test_multipliers_use_clients_with_constraint():
    method = ss.PrimalDual(multiplier=1.0, dual_step_size=0.5, **COMMON)
    received = reports([0, 0, 0], [[0.31, MISSING], [0.51, MISSING], [MISSING, MISSING]])
    _, multipliers = method.decide(jnp.array([1.0, 2.0]), received)
    np.testing.assert_allclose(multipliers, [1 + 0.5 * (0.41 - 0.11), 2.0], rtol=1e-6, err_msg="nobody has the second")


@pytest.mark.parametrize("method", [ss.SoftmaxSGM(alpha=1.0, **COMMON), ss.AverageSGM(**COMMON), ss.HardSGM(**COMMON)])
def test_round_without_values_is_void(method):
    assert not bool(decide(method, [0.0, 0.0], [MISSING, MISSING]).feasible)
    assert not bool(decide(method, [MISSING, MISSING], [-1.0, -1.0]).feasible)


def test_custom_method_is_dataclass():
    """Subclasses are registered automatically: numbers are traced; text, booleans and functions are static."""

    @dataclass(frozen=True, kw_only=True)
    class CustomMethod(Method):
        sharpness: float
        use_softmax: bool = False
        kind: str = "gentle"

        def decide(self, state, reports):
            alpha = self.sharpness if self.use_softmax else 0.0
            assert self.kind == "gentle"
            weights = softmax_weights(reports.objective, alpha, reports.has_objective)
            pairs = softmax_weights(reports.constraint, alpha, reports.has_constraint)
            return switch(self, reports, self.measure(reports), weights, pairs), state

    leaves, structure = jax.tree.flatten(CustomMethod(sharpness=2.0, use_softmax=True, **COMMON))
    assert 2.0 in leaves
    assert True not in [leaf for leaf in leaves if isinstance(leaf, bool)]
    assert structure != jax.tree.structure(CustomMethod(sharpness=2.0, **COMMON)), (
        "another boolean must give another program"
    )
    assert structure == jax.tree.structure(CustomMethod(sharpness=3.0, use_softmax=True, **COMMON))
    clients = ss.ClientData.from_arrays({"sign": np.array([1.0, -1.0])}, client=["up", "down"])
    problem = ss.Problem(lambda w, b: (w - b["sign"][0]) ** 2, lambda w, b: -1.0 + 0 * w, jnp.float32(0.3))
    options = {"rounds": 60, "batch_size": None, "eval_every": 0}
    custom = flat.solve(problem, clients, CustomMethod(sharpness=4.0, use_softmax=True, **COMMON), **options)
    softmax = flat.solve(problem, clients, ss.SoftmaxSGM(alpha=4.0, criterion="mean", **COMMON), **options)
    np.testing.assert_array_equal(custom.params, softmax.params)
    other_branch = flat.solve(problem, clients, CustomMethod(sharpness=4.0, **COMMON), **options)
    average = flat.solve(
        problem, clients, ss.AverageSGM(**COMMON), **options
    )  # another program, so equal up to rounding
    np.testing.assert_allclose(other_branch.params, average.params, rtol=1e-6)


SPREAD_VALUES = hnp.arrays(float, st.integers(2, 6), elements=st.floats(-10, 10)).filter(lambda x: np.ptp(x) > 1e-3)


@given(SPREAD_VALUES, st.floats(0, 20), st.floats(1e-3, 1e3), st.floats(-100, 100), st.data())
def test_spread_scale_is_invariant_to_units_and_offset(f, alpha, unit, offset, data):
    """Units of f and g do not change the weights, and the criterion has the units of g."""
    g = data.draw(hnp.arrays(float, (len(f), 2), elements=st.floats(-10, 10)).filter(lambda x: np.ptp(x) > 1e-3))
    method = ss.SoftmaxSGM(alpha=alpha, alpha_scale="spread", step_size=0.1, tolerance=0.1)
    for level in (1e9, -1e9):  # both branches
        with_threshold = dataclasses.replace(method, threshold=level)
        expected = decide(with_threshold, f, g)
        rescaled = decide(with_threshold, f / unit - offset, unit * g + offset)
        np.testing.assert_allclose(rescaled.weights, expected.weights, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(rescaled.criterion, unit * expected.criterion + offset, rtol=1e-7, atol=1e-7)


@given(SPREAD_VALUES, st.floats(0, 20))
def test_spread_scale_weight_ratio(f, alpha):
    method = ss.SoftmaxSGM(alpha=alpha, alpha_scale="spread", step_size=0.1, tolerance=0.1, threshold=1e9)
    weights = decide(method, f, np.zeros(len(f))).weights
    np.testing.assert_allclose(weights[f.argmax()] / weights[f.argmin()], np.exp(alpha), rtol=1e-6)
    criterion = decide(method, f, f).criterion
    assert f.max() - np.ptp(f) * np.log(len(f)) / max(alpha, 1e-9) - 1e-9 <= criterion <= f.max() + 1e-9


@pytest.mark.parametrize("f", [[3.0, 3.0], [3.0], [1e-45, 0.0], [-np.inf, 2.0], [1e30, -1e30]])
def test_spread_scale_for_zero_and_huge_spread(f):
    f = np.array(f, np.float32)
    method = ss.SoftmaxSGM(alpha=1e30, alpha_scale="spread", step_size=0.1, tolerance=0.1, threshold=1e9)
    decision = decide(method, jnp.asarray(f), jnp.zeros(len(f)))
    assert np.isfinite(decision.weights).all()
    np.testing.assert_allclose(decision.weights.sum(), 1, rtol=1e-6)


def test_unknown_alpha_scale_is_rejected():
    with pytest.raises(ValueError, match=r"alpha_scale must be one of .*'spread'.*, but is 'range'"):
        ss.SoftmaxSGM(alpha=1.0, alpha_scale="range", step_size=0.1, tolerance=0.1)
