"""The round's bookkeeping: averages, kept iterates, void rounds, dropouts, divergence."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softswitch as ss
from softswitch.engine import server_step
from softswitch.methods import Reports
from softswitch.methods.parts import Round, Update
from softswitch.methods.state import Average, first_state
from softswitch.oracles.evaluation import ClientSummary

RULE = ss.SoftmaxSGM(alpha=1.0, step_size=0.5, tolerance=1.0, threshold=1.0)


def reports(f, g, mask=None):
    f, g = jnp.asarray(f, float), jnp.asarray(g, float)[:, None]
    return Reports(f, g, None, jnp.ones(len(f), bool) if mask is None else jnp.asarray(mask))


def advance(state, k, heard, direction, averaging_from=0, method=RULE):
    setup, clients = server_step.Setup(None, method), jnp.arange(len(heard.mask))
    played = server_step.decide(setup, state, jnp.int32(k), clients, heard)
    evaluated, cost = server_step.Evaluated(ClientSummary.missing()), server_step.Cost()
    return server_step.apply(setup, averaging_from, state, played, Update(direction), evaluated, cost, False)[0]


def surviving_weights(method, state, told, decision, survived):
    setup, begun = server_step.Setup(None, method), begin(method=method)._replace(method=state)
    played = Round(jnp.int32(0), jnp.arange(len(told.mask)), told, told, decision, state, {})
    return server_step.surviving_weights(setup, begun, played, told, survived)


def begin(w=0.0, method=RULE):
    return first_state(jnp.float32(w), method, (), 0, 1)


def test_only_feasible_iterates_before_their_step_are_averaged():
    state = begin(1.0)
    state = advance(state, 0, reports([3.0, 1.0], [0.0, 0.0]), jnp.float32(2.0))  # feasible at w = 1
    state = advance(state, 1, reports([5.0, 1.0], [9.0, 9.0]), jnp.float32(2.0))  # infeasible at w = 0
    state = advance(state, 2, reports([2.0, 1.0], [0.0, 0.0]), jnp.float32(2.0))  # feasible at w = −1
    state = advance(state, 3, reports([4.0, 1.0], [-5.0, -5.0]), jnp.float32(2.0))  # feasible at w = −2
    assert float(state.params) == -3
    assert int(state.average.rounds) == 3
    assert float(state.average.mean()) == pytest.approx(-2 / 3)
    assert (float(state.best.params), float(state.best.score)) == (-1, 2), "the smallest reported worst objective"
    assert float(state.best.criterion) == -5, "the smallest criterion of any round"


def test_while_nothing_is_feasible_the_nearest_iterate_is_kept():
    state = advance(begin(1.0), 0, reports([3.0], [7.0]), jnp.float32(2.0))  # at w = 1
    state = advance(state, 1, reports([2.0], [4.0]), jnp.float32(2.0))  # nearer, at w = 0
    state = advance(state, 2, reports([1.0], [5.0]), jnp.float32(2.0))  # less near, at w = −1
    assert (float(state.best.params), float(state.best.score), float(state.best.criterion)) == (0, np.inf, 4)
    state = advance(state, 3, reports([9.0], [0.0]), jnp.float32(2.0))  # feasible, at w = −2
    state = advance(state, 4, reports([9.5], [-1.0]), jnp.float32(2.0))  # nearer still, but worse
    assert (float(state.best.params), float(state.best.score), float(state.best.criterion)) == (-2, 9, -1)


def test_averaging_may_begin_late():
    state = begin(1.0)
    for k in range(4):
        state = advance(state, k, reports([0.0], [0.0]), jnp.float32(2.0), averaging_from=2)
    assert float(state.average.mean()) == pytest.approx((-1 - 2) / 2)


def test_a_void_round_changes_nothing():
    method = ss.PrimalDual(multiplier=1.0, dual_step_size=0.5, step_size=0.5, tolerance=1.0)
    state = advance(begin(method=method), 0, reports([1.0], [0.0]), jnp.float32(1.0), method=method)
    nobody = reports([jnp.nan], [jnp.nan], [False])
    after = advance(state, 1, nobody, jnp.float32(0.0), method=method)
    for one, other in zip(jax.tree.leaves(after), jax.tree.leaves(state), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("alpha", [1.0, 1e6])
@pytest.mark.parametrize("feasible", [True, False])
def test_survivors_are_weighed_again_by_their_reports(alpha, feasible):
    """Also where the worst client weighed all there was: the others' weights have underflowed to 0."""
    method = ss.SoftmaxSGM(alpha=alpha, step_size=0.5, tolerance=1.0 if feasible else 0.0)
    told = reports([1.0, 3.0, 2.0], [0.1, 0.5, 0.3])
    decision, state = method.decide((), told)
    assert bool(decision.feasible) == feasible
    survived = jnp.array([True, False, True])
    weights = surviving_weights(method, state, told, decision, survived)
    gap = (1.0 if feasible else 0.2) * alpha  # of f, or of g, between the two that are left
    np.testing.assert_allclose(
        weights, [1 / (1 + np.exp(min(gap, 700))), 0, 1 / (1 + np.exp(-gap))], rtol=1e-5, atol=1e-30
    )
    np.testing.assert_array_equal(surviving_weights(method, state, told, decision, jnp.zeros(3, bool)), [0, 0, 0])


def test_survivors_keep_the_rounds_bit():
    """The one that violates is lost: the round stays one of the constraint."""
    method = ss.HardSGM(step_size=0.5, tolerance=0.2)
    told = reports([1.0, 1.0, 5.0], [0.1, 0.5, 0.0])  # by f it would be the third
    decision, state = method.decide((), told)
    assert not bool(decision.feasible)
    weights = surviving_weights(method, state, told, decision, jnp.array([True, False, True]))
    np.testing.assert_array_equal(weights, [1, 0, 0], err_msg="the worst by g that is left")


@pytest.mark.parametrize(
    ("method", "wanted"),
    [
        (ss.SoftmaxSGM(alpha=0.0, step_size=1.0, tolerance=1.0), 2.0),  # the mean of f
        (ss.SoftmaxSGM(alpha=0.0, step_size=1.0, tolerance=0.1, threshold=0.1), 0.5 - 0.1),  # of g, above λ
        (ss.Penalty(penalty=2.0, step_size=1.0, tolerance=0.4), 2.0 + 2.0 * (0.2 + 0.0) / 2),
        (ss.PrimalDual(multiplier=3.0, dual_step_size=1.0, step_size=1.0, tolerance=0.4), 2.0 + 3.0 * 0.5),
    ],
)
def test_an_optimiser_that_wants_a_value_is_given_that_of_what_is_descended_on(method, wanted):
    told = reports([1.0, 3.0], [0.6, 0.4])
    decision, _ = method.decide(method.init(3, 1), told)
    np.testing.assert_allclose(server_step.local_value(method, told, decision), wanted, rtol=1e-6)


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
@pytest.mark.parametrize("where", ["objective", "constraint", "direction"])
def test_what_is_not_finite_never_enters(bad, where):
    state = advance(begin(1.0), 0, reports([0.0, 0.0], [0.0, 0.0]), jnp.float32(1.0))
    f = [0.0, bad] if where == "objective" else [0.0, 0.0]
    g = [bad, 0.0] if where == "constraint" else [0.0, 0.0]
    direction = jnp.float32(bad if where == "direction" else 1.0)
    state = advance(state, 1, reports(f, g), direction)
    assert int(state.diverged_at) == 1
    assert float(state.params) == 0.5
    # What comes later changes nothing any more.
    later = advance(state, 2, reports([0.0, 0.0], [0.0, 0.0]), jnp.float32(1.0))
    assert float(later.params) == 0.5
    assert int(later.average.rounds) == (2 if where == "direction" else 1), "w_1 counts where its report was sound"
    assert np.isfinite(float(later.average.mean()))


def test_the_average_keeps_its_digits_over_many_rounds():
    """A million additions of 0.1 in float32: a plain sum would be off by 1%, a running mean by as much."""
    zero, joins = jnp.float32(0.0), jnp.bool_(True)
    empty = Average(zero, zero, jnp.int32(0))
    average = jax.lax.fori_loop(0, 1_000_000, lambda _, average: average.add(jnp.float32(0.1), joins), empty)
    assert int(average.rounds) == 1_000_000
    assert float(average.mean()) == pytest.approx(np.float32(0.1), rel=1e-6)


def test_who_has_no_such_function_counts_nothing():
    """−∞ is not a number to average: the client has no objective, or no constraint, and the others decide."""
    nothing = -jnp.inf
    state = advance(begin(1.0), 0, reports([0.0, nothing], [nothing, 0.5]), jnp.float32(1.0))
    assert int(state.diverged_at) == -1
    assert float(state.params) == 0.5
    for f, g in (([nothing, nothing], [0.0, 0.0]), ([0.0, 0.0], [nothing, nothing])):
        void = advance(state, 1, reports(f, g), jnp.float32(1.0))
        for one, other in zip(jax.tree.leaves(void), jax.tree.leaves(state), strict=True):
            np.testing.assert_array_equal(one, other)
