"""What rules are made of where settings choose themselves: α by the change, steps that fall, directions of length 1."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import softswitch as ss
from benchmarks import flat
from compilations import COMPILATIONS
from softswitch.methods import Reports
from softswitch.methods.schedules import FallingStep, NormalizedAdam
from softswitch.methods.softmax_sgm import Change

CHANGING = ss.SoftmaxSGM(alpha=0.3, alpha_scale="change", step_size=0.1, tolerance=0.1, threshold=0.1)
ROUNDS = (  # objective and constraint of three clients, round by round; two are feasible, the third is not
    ([1.0, 2.0, 4.0], [-0.5, 0.05, -0.1]),
    ([1.5, 2.5, 3.0], [-0.4, 0.0, 0.08]),
    ([1.4, 2.8, 2.6], [-0.4, 0.5, 0.3]),
)


def softmax(values):
    e = np.exp(values - values.max())
    return e / e.sum()


def expected_rounds():
    """The weights and the criterion of those rounds: the change is a running mean of |max_k − max_{k−1}|."""
    sizes = {}
    for name, series in (("f", [f for f, _ in ROUNDS]), ("g", [g for _, g in ROUNDS])):
        a, b, c = (np.array(values) for values in series)
        begin = 0.1 * (a.max() - a.min()) + 1e-3 * abs(a.max())
        second = begin  # no round before the first: nothing has changed yet
        third = 0.9 * second + 0.1 * abs(b.max() - a.max())
        fourth = 0.9 * third + 0.1 * abs(c.max() - b.max())
        sizes[name] = (begin, second, third, fourth)
    told = []
    for k, (f, g) in enumerate(ROUNDS):
        f, g = np.array(f), np.array(g)
        q = softmax(0.3 / sizes["g"][k] * g)
        criterion = q @ g
        feasible = criterion <= 0.1
        told.append((softmax(0.3 / sizes["f"][k] * f) if feasible else q, criterion, feasible))
    return told, sizes


def decided(method, array, jit):
    """Three rounds of decisions, and what is remembered after them."""
    step = jax.jit(method.decide) if jit else method.decide
    state, told = method.init(3, 1), []
    if array is np.asarray:
        state = jax.tree.map(np.asarray, state)
    for f, g in ROUNDS:
        heard = Reports(array(f), array(g)[:, None], None, array([True] * 3))
        decision, state = step(state, heard)
        told.append((decision.weights, decision.criterion, decision.feasible))
    return told, state


@pytest.mark.parametrize(("array", "jit"), [(np.asarray, False), (jnp.asarray, False), (jnp.asarray, True)])
def test_alpha_by_the_change_by_hand(x64, array, jit):
    wanted, sizes = expected_rounds()
    assert [feasible for _, _, feasible in wanted] == [True, True, False], "both branches are seen"
    told, after = decided(CHANGING, array, jit)
    for (weights, criterion, feasible), (w, c, bit) in zip(told, wanted, strict=True):
        np.testing.assert_allclose(weights, w, rtol=1e-12)
        np.testing.assert_allclose(criterion, c, rtol=1e-12)
        assert bool(feasible) == bit
    for change, name, largest in zip(after, ("f", "g"), (2.8, 0.5), strict=True):
        np.testing.assert_allclose(change.mean, sizes[name][3], rtol=1e-12)
        np.testing.assert_allclose(change.largest, largest, rtol=1e-12)


def test_alpha_by_the_change_knows_no_units():
    """f in other units: once a change is known it alone counts, and it has f's units."""
    known = Change(jnp.float32(2.0), jnp.float32(0.5))
    scaled = Change(jnp.float32(2000.0), jnp.float32(500.0))
    f = jnp.array([1.0, 2.0, 1.5])
    g = jnp.full((3, 1), -1.0)
    one = CHANGING.decide(
        (known, Change(jnp.float32(jnp.nan), jnp.float32(jnp.nan))), Reports(f, g, None, jnp.ones(3, bool))
    )[0]
    other = CHANGING.decide(
        (scaled, Change(jnp.float32(jnp.nan), jnp.float32(jnp.nan))), Reports(1000 * f, g, None, jnp.ones(3, bool))
    )[0]
    np.testing.assert_allclose(one.weights, other.weights, rtol=1e-6)
    np.testing.assert_allclose(one.weights, softmax(0.3 / 0.5 * np.array(f)), rtol=1e-6)


def test_clients_that_do_not_take_part_change_nothing():
    f, g = [1.0, np.nan, 2.0], [[-1.0], [np.nan], [-2.0]]
    absent = Reports(np.array(f), np.array(g), None, np.array([True, False, True]))
    present = Reports(np.array([1.0, 2.0]), np.array([[-1.0], [-2.0]]), None, np.ones(2, bool))
    state = CHANGING.init(3, 1)
    for _ in range(2):
        one, state_one = CHANGING.decide(state, absent)
        other, state_other = CHANGING.decide(state, present)
        np.testing.assert_array_equal(one.weights, np.insert(other.weights, 1, 0))
        for a, b in zip(jax.tree.leaves(state_one), jax.tree.leaves(state_other), strict=True):
            np.testing.assert_array_equal(a, b)
            assert np.isfinite(a)
        state = state_one


@pytest.mark.parametrize("f", [[3.0, 3.0], [0.0, 0.0], [1e30, -1e30], [-np.inf, 2.0]])
def test_alpha_by_the_change_without_any_change(f):
    """Values that stay the same make the change fall to 0 and α grow: weights stay finite and sum to 1."""
    heard = Reports(jnp.array(f, jnp.float32), jnp.full((2, 1), -1.0), None, jnp.ones(2, bool))
    state, step = CHANGING.init(3, 1), jax.jit(CHANGING.decide)
    for _ in range(3000):
        decision, state = step(state, heard)
    assert np.isfinite(decision.weights).all()
    np.testing.assert_allclose(decision.weights.sum(), 1, rtol=1e-6)
    assert decision.weights[np.argmax(f)] >= 0.5


def test_a_falling_step_by_hand():
    step = FallingStep(first=0.4, rounds=4, begin=10)
    half = np.sqrt(0.5)
    told = [0.4, 0.2 * (1 + half), 0.2, 0.2 * (1 - half), 0.0]
    np.testing.assert_allclose([step(k) for k in range(10, 15)], told, atol=1e-7)
    np.testing.assert_allclose([step(0), step(99)], [0.4, 0.0], atol=1e-7, err_msg="before it begins, and after")
    method = ss.SoftmaxSGM(tolerance=0.1, alpha=1.0, step_size=step)
    assert method.step_size_at(12) == pytest.approx(0.2)
    assert method.local_step_size_at(12, 4) == pytest.approx(0.05), "γ = η/E in every round"


def adam_by_hand(gradients, step, momentum):
    """Adam on gradients of length 1, in NumPy: its updates."""
    m, v, updates = 0.0, 0.0, []
    for t, gradient in enumerate(gradients, 1):
        direction = gradient / np.linalg.norm(gradient)
        m = momentum * m + (1 - momentum) * direction
        v = 0.999 * v + 0.001 * direction**2
        updates.append(-step * (m / (1 - momentum**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8))
    return np.array(updates)


@pytest.mark.parametrize("momentum", [0.9, 0.99])
def test_normalized_adam_by_hand(x64, momentum):
    gradients = np.array([[3.0, 4.0], [-300.0, 1.0], [1e-6, -2e-6]])
    optimizer = NormalizedAdam(momentum=momentum)(0.1)
    state, updates = optimizer.init(jnp.zeros(2)), []
    for gradient in gradients:
        update, state = optimizer.update(jnp.asarray(gradient), state)
        updates.append(update)
    np.testing.assert_allclose(updates, adam_by_hand(gradients, 0.1, momentum), rtol=1e-6)
    still, _ = optimizer.update(jnp.zeros(2), state)
    assert np.isfinite(still).all(), "a direction of length 0 is no direction, and no division by 0"


def test_normalized_adam_measures_all_parameters_together(x64):
    """The direction's length is that of the whole tree, not of each leaf."""
    tree = {"a": jnp.array([3.0]), "b": jnp.array([[4.0]])}
    optimizer = NormalizedAdam()(1.0)
    state = optimizer.init(tree)
    for gradient in (tree, {"a": jnp.array([1.0]), "b": jnp.array([[0.0]])}):
        update, state = optimizer.update(gradient, state)
    flat = adam_by_hand(np.array([[3.0, 4.0], [1.0, 0.0]]), 1.0, 0.9)[1]
    np.testing.assert_allclose([update["a"][0], update["b"][0, 0]], flat, rtol=1e-6)


CHOSEN = ss.SoftmaxSGM(
    tolerance=0.1,
    step_size=FallingStep(first=0.1, rounds=40, begin=3),
    local_step_size=FallingStep(first=0.02, rounds=40, begin=3),
    threshold=0.09,
    criterion="max",
    optimizer=NormalizedAdam(momentum=0.9),
    alpha=0.3,
    alpha_scale="change",
)


def test_their_numbers_are_leaves():
    leaves, structure = jax.tree.flatten(CHOSEN)
    assert sorted(leaves) == sorted([0.1, 0.1, 40, 3, 0.02, 40, 3, 0.09, 0.9, 0.3])
    other = dataclasses.replace(
        CHOSEN, step_size=FallingStep(first=3.0, rounds=7), optimizer=NormalizedAdam(momentum=0.99)
    )
    assert jax.tree.structure(other) == structure
    assert jax.tree.structure(dataclasses.replace(CHOSEN, optimizer=optax.adam)) != structure
    rebuilt = jax.tree.unflatten(structure, leaves)
    assert rebuilt == CHOSEN


def test_another_number_of_theirs_compiles_nothing():
    two = ss.ClientData.from_arrays({"sign": np.array([1.0, -1.0])}, client=["up", "down"])
    problem = ss.Problem(lambda w, b: (w - b["sign"][0]) ** 2, lambda w, b: w - 0.5, jnp.float32(0.3))
    options = {"rounds": 6, "batch_size": None, "eval_every": 0}
    first = flat.solve(problem, two, CHOSEN, **options)
    before = COMPILATIONS.count
    assert before > 0, "the counter must count"
    others = dataclasses.replace(
        CHOSEN,
        step_size=FallingStep(first=0.4, rounds=9, begin=1),
        local_step_size=FallingStep(first=0.1, rounds=8),
        optimizer=NormalizedAdam(momentum=0.5),
        alpha=0.7,
        threshold=0.05,
    )
    second = flat.solve(problem, two, others, **options)
    assert COMPILATIONS.count == before
    assert float(first.last) != float(second.last), "the numbers are not compiled in"


def test_a_rule_without_a_step_size_says_so_where_one_is_needed():
    with pytest.raises(ValueError, match="step_size must be given unless it is chosen during a run"):
        ss.SoftmaxSGM(tolerance=0.1, step_size=None, alpha=None).step_size_at(3)
    with pytest.raises(ValueError, match="alpha must be given unless it is chosen during a run"):
        ss.SoftmaxSGM(tolerance=0.1, step_size=None, alpha=None).decide(
            (), Reports(np.zeros(2), np.zeros((2, 1)), None, np.ones(2, bool))
        )
