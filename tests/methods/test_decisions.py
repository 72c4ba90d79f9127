"""Each rule's decision, by hand and against its neighbours."""

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


def test_softmax_switches_and_weighs_by_hand():
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


def test_several_constraints_weigh_pairs():
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


def test_another_alpha_for_the_constraint():
    method = ss.SoftmaxSGM(alpha=1.0, constraint_alpha=2.0, **COMMON)
    np.testing.assert_allclose(decide(method, [0, 0], [0, np.log(3)]).weights, [0.1, 0.9])
    np.testing.assert_allclose(decide(method, [0, np.log(3)], [-1, -1]).weights, [0.25, 0.75])


REPORTED = hnp.arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(1, 3)), elements=st.floats(-3, 3))


@given(REPORTED, st.data())
def test_average_is_softmax_at_zero(g, data):
    f = data.draw(hnp.arrays(np.float64, len(g), elements=st.floats(-3, 3)))
    same(decide(ss.AverageSGM(**COMMON), f, g), decide(ss.SoftmaxSGM(alpha=0.0, **COMMON), f, g))


@given(REPORTED, st.data())
def test_hard_is_the_limit_of_softmax(g, data):
    """Values on a grid of 0.01, so that at α = 1e5 only ties remain."""
    f = np.round(data.draw(hnp.arrays(np.float64, len(g), elements=st.floats(-3, 3))), 2)
    same(decide(ss.HardSGM(**COMMON), f, g.round(2)), decide(ss.SoftmaxSGM(alpha=1e5, **COMMON), f, g.round(2)))
    softmax_word = ss.HardSGM(criterion="softmax", **COMMON)
    same(decide(softmax_word, f, g.round(2)), decide(ss.HardSGM(**COMMON), f, g.round(2)))


def same(one, other):
    assert bool(one.feasible) == bool(other.feasible)
    np.testing.assert_allclose(one.criterion, other.criterion, atol=1e-9)
    np.testing.assert_allclose(one.weights, other.weights, atol=1e-9)
    np.testing.assert_allclose(
        one.weights[:, None] * one.local_loss.constraint,
        other.weights[:, None] * other.local_loss.constraint,
        atol=1e-9,
    )


def test_penalty_by_hand():
    decision = decide(ss.Penalty(penalty=2.5, **COMMON), [1.0, 2.0], [0.0, 1.0])
    np.testing.assert_array_equal(decision.weights, [0.5, 0.5])
    loss = decision.local_loss
    assert (loss.objective, loss.penalty, loss.tolerance) == (1, 2.5, 0.11)
    np.testing.assert_array_equal(loss.constraint, [[0], [0]])
    assert not bool(decision.feasible)


def test_primal_dual_by_hand():
    """μ_0 = (2, 2), means (0.5, −9), η_d = 0.1, ε = 0.11: μ_1 = (2.039, 1.089), and later the second is 0."""
    method = ss.PrimalDual(multiplier=2.0, dual_step_size=0.1, **COMMON)
    state = method.init(3, 2)
    heard = reports([0, 0], [[0.0, -8.0], [1.0, -10.0]])
    decision, state = method.decide(state, heard)
    np.testing.assert_array_equal(decision.local_loss.constraint, [[2, 2], [2, 2]])
    np.testing.assert_allclose(state, [2.039, 1.089], rtol=1e-6)
    for _ in range(3):
        _, state = method.decide(state, heard)
    assert state[1] == 0


RULES = {
    "softmax": ss.SoftmaxSGM(alpha=3.0, **COMMON),
    "average": ss.AverageSGM(**COMMON),
    "hard": ss.HardSGM(**COMMON),
    "penalty": ss.Penalty(penalty=1.0, **COMMON),
    "primal-dual": ss.PrimalDual(multiplier=1.0, dual_step_size=0.1, **COMMON),
}


@pytest.mark.parametrize("name", RULES)
def test_absent_clients_count_nothing(name):
    method = RULES[name]
    present = method.decide(method.init(3, 1), reports([1.0, 2.0], [0.5, 0.2]))
    masked = method.decide(method.init(3, 1), reports([1.0, np.nan, 2.0], [0.5, np.nan, 0.2], mask=[True, False, True]))
    np.testing.assert_allclose(masked[0].weights, np.insert(present[0].weights, 1, 0))
    assert masked[0].criterion == pytest.approx(present[0].criterion)
    np.testing.assert_allclose(masked[1], present[1])


@pytest.mark.parametrize("name", RULES)
def test_a_void_round_is_not_feasible(name):
    method = RULES[name]
    decision, state = method.decide(method.init(3, 1), reports([np.nan] * 2, [np.nan] * 2, mask=[False, False]))
    assert not bool(decision.feasible)
    np.testing.assert_array_equal(decision.weights, [0, 0])
    np.testing.assert_array_equal(state, method.init(3, 1))


def test_numbers_are_leaves_and_words_are_not():
    leaves, structure = jax.tree.flatten(ss.SoftmaxSGM(alpha=1, step_size=2, tolerance=3))
    assert sorted(leaves) == [1, 2, 3], "what is left out is no number"
    assert sorted(jax.tree.leaves(ss.SoftmaxSGM(alpha=1, step_size=2, tolerance=3, slack=10))) == [1, 2, 3, 10]
    assert structure == jax.tree.structure(ss.SoftmaxSGM(alpha=7, step_size=8, tolerance=9))
    assert structure != jax.tree.structure(ss.SoftmaxSGM(alpha=7, step_size=8, tolerance=9, criterion="max"))
    assert structure != jax.tree.structure(ss.SoftmaxSGM(alpha=7, step_size=optax.constant_schedule(8), tolerance=9))
    doubled = jax.tree.map(lambda x: 2 * x, RULES["softmax"])
    assert (doubled.alpha, doubled.criterion, doubled.switches_on) == (6.0, None, "softmax")


def test_text_is_short():
    assert str(RULES["softmax"]) == "SoftmaxSGM(tolerance=0.11, step_size=0.1, alpha=3.0)"
    assert str(ss.AverageSGM(optimizer=optax.adam, **COMMON)).endswith("optimizer=adam)")


def test_decisions_on_jax_arrays_match_numpy(x64):
    f, g = np.array([0.3, 0.1, 0.7]), np.array([[0.2, 0.0], [0.4, 0.1], [0.1, 0.3]])
    for method in RULES.values():
        on_numpy = method.decide(np.asarray(method.init(3, 2)), reports(f, g))[0]
        on_jax = method.decide(method.init(3, 2), Reports(jnp.asarray(f), jnp.asarray(g), None, jnp.ones(3, bool)))[0]
        for one, other in zip(jax.tree.leaves(on_numpy), jax.tree.leaves(on_jax), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12)


NOTHING = -np.inf


def test_a_client_without_a_function_has_no_weight_in_it():
    f, g = [0.0, np.log(3), NOTHING], [NOTHING, 0.5, 0.5 + np.log(3)]
    softmax = ss.SoftmaxSGM(alpha=1.0, **COMMON)
    infeasible = decide(softmax, f, g)
    np.testing.assert_allclose(infeasible.weights, [0, 0.25, 0.75])
    assert infeasible.criterion == pytest.approx(0.5 + 0.75 * np.log(3))
    feasible = decide(softmax, f, [NOTHING, -1.0, -2.0])
    np.testing.assert_allclose(feasible.weights, [0.25, 0.75, 0])
    average = decide(ss.AverageSGM(**COMMON), f, g)
    np.testing.assert_allclose(average.weights, [0, 0.5, 0.5])
    assert average.criterion == pytest.approx(0.5 + np.log(3) / 2)
    np.testing.assert_array_equal(decide(ss.HardSGM(**COMMON), f, g).weights, [0, 0, 1])
    assert decide(ss.HardSGM(**COMMON), f, g).criterion == pytest.approx(0.5 + np.log(3))


def test_multipliers_rise_with_those_who_have_the_constraint():
    method = ss.PrimalDual(multiplier=1.0, dual_step_size=0.5, **COMMON)
    asked = reports([0, 0, 0], [[0.31, NOTHING], [0.51, NOTHING], [NOTHING, NOTHING]])
    _, after = method.decide(jnp.array([1.0, 2.0]), asked)
    np.testing.assert_allclose(after, [1 + 0.5 * (0.41 - 0.11), 2.0], rtol=1e-6, err_msg="nobody has the second")


@pytest.mark.parametrize("method", [ss.SoftmaxSGM(alpha=1.0, **COMMON), ss.AverageSGM(**COMMON), ss.HardSGM(**COMMON)])
def test_a_round_without_evidence_is_void_and_not_feasible(method):
    assert not bool(decide(method, [0.0, 0.0], [NOTHING, NOTHING]).feasible)
    assert not bool(decide(method, [NOTHING, NOTHING], [-1.0, -1.0]).feasible)


def test_a_rule_of_ones_own_is_a_plain_dataclass():
    """Registered by itself: its numbers are traced, its words, truth values and functions compiled in."""

    @dataclass(frozen=True, kw_only=True)
    class Mine(Method):
        sharpness: float
        careful: bool = False
        kind: str = "gentle"

        def decide(self, state, reports):
            alpha = self.sharpness if self.careful else 0.0
            assert self.kind == "gentle"
            weights = softmax_weights(reports.objective, alpha, reports.has_objective)
            pairs = softmax_weights(reports.constraint, alpha, reports.has_constraint)
            return switch(self, reports, self.measure(reports), weights, pairs), state

    leaves, structure = jax.tree.flatten(Mine(sharpness=2.0, careful=True, **COMMON))
    assert 2.0 in leaves
    assert True not in [leaf for leaf in leaves if isinstance(leaf, bool)]
    assert structure != jax.tree.structure(Mine(sharpness=2.0, **COMMON)), "another truth value, another program"
    assert structure == jax.tree.structure(Mine(sharpness=3.0, careful=True, **COMMON))
    two = ss.ClientData.from_arrays({"sign": np.array([1.0, -1.0])}, client=["up", "down"])
    problem = ss.Problem(lambda w, b: (w - b["sign"][0]) ** 2, lambda w, b: -1.0 + 0 * w, jnp.float32(0.3))
    options = {"rounds": 60, "batch_size": None, "eval_every": 0}
    own = flat.solve(problem, two, Mine(sharpness=4.0, careful=True, **COMMON), **options)
    known = flat.solve(problem, two, ss.SoftmaxSGM(alpha=4.0, criterion="mean", **COMMON), **options)
    np.testing.assert_array_equal(own.params, known.params)
    careless = flat.solve(problem, two, Mine(sharpness=4.0, **COMMON), **options)
    average = flat.solve(problem, two, ss.AverageSGM(**COMMON), **options)  # another program, so equal to rounding
    np.testing.assert_allclose(careless.params, average.params, rtol=1e-6)


APART = hnp.arrays(float, st.integers(2, 6), elements=st.floats(-10, 10)).filter(lambda x: np.ptp(x) > 1e-3)


@given(APART, st.floats(0, 20), st.floats(1e-3, 1e3), st.floats(-100, 100), st.data())
def test_per_spread_neither_unit_nor_offset_matters(f, alpha, unit, offset, data):
    """f in other units, and g in others again: the same weights, and the criterion in g's units."""
    g = data.draw(hnp.arrays(float, (len(f), 2), elements=st.floats(-10, 10)).filter(lambda x: np.ptp(x) > 1e-3))
    method = ss.SoftmaxSGM(alpha=alpha, alpha_scale="spread", step_size=0.1, tolerance=0.1)
    for level in (1e9, -1e9):  # both branches
        switched = dataclasses.replace(method, threshold=level)
        plain = decide(switched, f, g)
        other = decide(switched, f / unit - offset, unit * g + offset)
        np.testing.assert_allclose(other.weights, plain.weights, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(other.criterion, unit * plain.criterion + offset, rtol=1e-7, atol=1e-7)


@given(APART, st.floats(0, 20))
def test_per_spread_the_worst_weighs_e_to_the_alpha_times_the_best(f, alpha):
    method = ss.SoftmaxSGM(alpha=alpha, alpha_scale="spread", step_size=0.1, tolerance=0.1, threshold=1e9)
    weights = decide(method, f, np.zeros(len(f))).weights
    np.testing.assert_allclose(weights[f.argmax()] / weights[f.argmin()], np.exp(alpha), rtol=1e-6)
    criterion = decide(method, f, f).criterion
    assert f.max() - np.ptp(f) * np.log(len(f)) / max(alpha, 1e-9) - 1e-9 <= criterion <= f.max() + 1e-9


@pytest.mark.parametrize("f", [[3.0, 3.0], [3.0], [1e-45, 0.0], [-np.inf, 2.0], [1e30, -1e30]])
def test_per_spread_without_a_spread_or_with_a_vast_one(f):
    f = np.array(f, np.float32)
    method = ss.SoftmaxSGM(alpha=1e30, alpha_scale="spread", step_size=0.1, tolerance=0.1, threshold=1e9)
    decision = decide(method, jnp.asarray(f), jnp.zeros(len(f)))
    assert np.isfinite(decision.weights).all()
    np.testing.assert_allclose(decision.weights.sum(), 1, rtol=1e-6)


def test_per_spread_needs_a_word_that_is_known():
    with pytest.raises(ValueError, match=r"alpha_scale must be one of .*'spread'.*, but is 'range'"):
        ss.SoftmaxSGM(alpha=1.0, alpha_scale="range", step_size=0.1, tolerance=0.1)
