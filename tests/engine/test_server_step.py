"""State updates of a round: averages, kept iterates, void rounds, dropouts and divergence."""

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


def make_reports(f, g, mask=None):
    f, g = jnp.asarray(f, float), jnp.asarray(g, float)[:, None]
    return Reports(f, g, None, jnp.ones(len(f), bool) if mask is None else jnp.asarray(mask))


def advance(state, k, received, direction, averaging_from=0, method=RULE):
    setup, clients = server_step.Setup(None, method), jnp.arange(len(received.mask))
    round_result = server_step.decide(setup, state, jnp.int32(k), clients, received)
    evaluated, cost = server_step.Evaluated(ClientSummary.missing()), server_step.Cost()
    return server_step.apply(setup, averaging_from, state, round_result, Update(direction), evaluated, cost, False)[0]


def surviving_weights(method, state, received, decision, survived):
    setup, initial = server_step.Setup(None, method), initial_state(method=method)._replace(method=state)
    round_result = Round(jnp.int32(0), jnp.arange(len(received.mask)), received, received, decision, state, {})
    return server_step.surviving_weights(setup, initial, round_result, received, survived)


def initial_state(w=0.0, method=RULE):
    return first_state(jnp.float32(w), method, (), 0, 1)


def test_average_includes_feasible_iterates_only():
    state = initial_state(1.0)
    state = advance(state, 0, make_reports([3.0, 1.0], [0.0, 0.0]), jnp.float32(2.0))  # feasible at w = 1
    state = advance(state, 1, make_reports([5.0, 1.0], [9.0, 9.0]), jnp.float32(2.0))  # infeasible at w = 0
    state = advance(state, 2, make_reports([2.0, 1.0], [0.0, 0.0]), jnp.float32(2.0))  # feasible at w = −1
    state = advance(state, 3, make_reports([4.0, 1.0], [-5.0, -5.0]), jnp.float32(2.0))  # feasible at w = −2
    assert float(state.params) == -3
    assert int(state.average.rounds) == 3
    assert float(state.average.mean()) == pytest.approx(-2 / 3)
    assert (float(state.best.params), float(state.best.score)) == (-1, 2), "the smallest reported worst objective"
    assert float(state.best.criterion) == -5, "the smallest criterion of any round"


def test_nearest_iterate_is_kept_until_one_is_feasible():
    state = advance(initial_state(1.0), 0, make_reports([3.0], [7.0]), jnp.float32(2.0))  # at w = 1
    state = advance(state, 1, make_reports([2.0], [4.0]), jnp.float32(2.0))  # closer, at w = 0
    state = advance(state, 2, make_reports([1.0], [5.0]), jnp.float32(2.0))  # less close, at w = −1
    assert (float(state.best.params), float(state.best.score), float(state.best.criterion)) == (0, np.inf, 4)
    state = advance(state, 3, make_reports([9.0], [0.0]), jnp.float32(2.0))  # feasible, at w = −2
    state = advance(state, 4, make_reports([9.5], [-1.0]), jnp.float32(2.0))  # closer, but worse
    assert (float(state.best.params), float(state.best.score), float(state.best.criterion)) == (-2, 9, -1)


def test_averaging_window():
    state = initial_state(1.0)
    for k in range(4):
        state = advance(state, k, make_reports([0.0], [0.0]), jnp.float32(2.0), averaging_from=2)
    assert float(state.average.mean()) == pytest.approx((-1 - 2) / 2)


def test_void_round_changes_nothing():
    method = ss.PrimalDual(multiplier=1.0, dual_step_size=0.5, step_size=0.5, tolerance=1.0)
    state = advance(initial_state(method=method), 0, make_reports([1.0], [0.0]), jnp.float32(1.0), method=method)
    no_reports = make_reports([jnp.nan], [jnp.nan], [False])
    state_after = advance(state, 1, no_reports, jnp.float32(0.0), method=method)
    for actual, expected in zip(jax.tree.leaves(state_after), jax.tree.leaves(state), strict=True):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("alpha", [1.0, 1e6])
@pytest.mark.parametrize("feasible", [True, False])
def test_survivors_are_reweighted_by_their_reports(alpha, feasible):
    """This holds even if the worst client had all the weight and the weights of the others underflowed to 0."""
    method = ss.SoftmaxSGM(alpha=alpha, step_size=0.5, tolerance=1.0 if feasible else 0.0)
    received = make_reports([1.0, 3.0, 2.0], [0.1, 0.5, 0.3])
    decision, state = method.decide((), received)
    assert bool(decision.feasible) == feasible
    survived = jnp.array([True, False, True])
    weights = surviving_weights(method, state, received, decision, survived)
    gap = (1.0 if feasible else 0.2) * alpha  # of f or g between the two survivors
    np.testing.assert_allclose(
        weights, [1 / (1 + np.exp(min(gap, 700))), 0, 1 / (1 + np.exp(-gap))], rtol=1e-5, atol=1e-30
    )
    np.testing.assert_array_equal(surviving_weights(method, state, received, decision, jnp.zeros(3, bool)), [0, 0, 0])


def test_dropouts_do_not_change_feasibility_of_round():
    """The violating client drops out, and the round still descends on the constraint."""
    method = ss.HardSGM(step_size=0.5, tolerance=0.2)
    received = make_reports([1.0, 1.0, 5.0], [0.1, 0.5, 0.0])  # by f it would be the third
    decision, state = method.decide((), received)
    assert not bool(decision.feasible)
    weights = surviving_weights(method, state, received, decision, jnp.array([True, False, True]))
    np.testing.assert_array_equal(weights, [1, 0, 0], err_msg="the worst survivor by g")


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (ss.SoftmaxSGM(alpha=0.0, step_size=1.0, tolerance=1.0), 2.0),  # the mean of f
        (ss.SoftmaxSGM(alpha=0.0, step_size=1.0, tolerance=0.1, threshold=0.1), 0.5 - 0.1),  # of g, above λ
        (ss.Penalty(penalty=2.0, step_size=1.0, tolerance=0.4), 2.0 + 2.0 * (0.2 + 0.0) / 2),
        (ss.PrimalDual(multiplier=3.0, dual_step_size=1.0, step_size=1.0, tolerance=0.4), 2.0 + 3.0 * 0.5),
    ],
)
def test_optimizer_receives_value_of_descended_function(method, expected):
    received = make_reports([1.0, 3.0], [0.6, 0.4])
    decision, _ = method.decide(method.init(3, 1), received)
    np.testing.assert_allclose(server_step.local_value(method, received, decision), expected, rtol=1e-6)


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
@pytest.mark.parametrize("location", ["objective", "constraint", "direction"])
def test_nonfinite_values_are_ignored(bad, location):
    state = advance(initial_state(1.0), 0, make_reports([0.0, 0.0], [0.0, 0.0]), jnp.float32(1.0))
    f = [0.0, bad] if location == "objective" else [0.0, 0.0]
    g = [bad, 0.0] if location == "constraint" else [0.0, 0.0]
    direction = jnp.float32(bad if location == "direction" else 1.0)
    state = advance(state, 1, make_reports(f, g), direction)
    assert int(state.diverged_at) == 1
    assert float(state.params) == 0.5
    # Later rounds change nothing.
    after = advance(state, 2, make_reports([0.0, 0.0], [0.0, 0.0]), jnp.float32(1.0))
    assert float(after.params) == 0.5
    assert int(after.average.rounds) == (2 if location == "direction" else 1), "w_1 counts if its report was finite"
    assert np.isfinite(float(after.average.mean()))


def test_average_keeps_precision_over_many_rounds():
    """Add 0.1 a million times in float32; a naive sum or running mean has an error of 1%."""
    zero, is_included = jnp.float32(0.0), jnp.bool_(True)
    empty = Average(zero, zero, jnp.int32(0))
    average = jax.lax.fori_loop(0, 1_000_000, lambda _, average: average.add(jnp.float32(0.1), is_included), empty)
    assert int(average.rounds) == 1_000_000
    assert float(average.mean()) == pytest.approx(np.float32(0.1), rel=1e-6)


def test_clients_without_function_are_not_counted():
    """−∞ is not averaged: the client has no objective or no constraint, and the other clients decide."""
    missing = -jnp.inf
    state = advance(initial_state(1.0), 0, make_reports([0.0, missing], [missing, 0.5]), jnp.float32(1.0))
    assert int(state.diverged_at) == -1
    assert float(state.params) == 0.5
    for f, g in (([missing, missing], [0.0, 0.0]), ([0.0, 0.0], [missing, missing])):
        after = advance(state, 1, make_reports(f, g), jnp.float32(1.0))
        for actual, expected in zip(jax.tree.leaves(after), jax.tree.leaves(state), strict=True):
            np.testing.assert_array_equal(actual, expected)
