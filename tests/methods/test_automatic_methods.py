"""Parts of automatic methods: α scaled by the change, falling steps and normalized directions."""

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

METHOD = ss.SoftmaxSGM(alpha=0.3, alpha_scale="change", step_size=0.1, tolerance=0.1, threshold=0.1)
ROUNDS = (  # objective and constraint of three clients; two rounds are feasible, the third is not
    ([1.0, 2.0, 4.0], [-0.5, 0.05, -0.1]),
    ([1.5, 2.5, 3.0], [-0.4, 0.0, 0.08]),
    ([1.4, 2.8, 2.6], [-0.4, 0.5, 0.3]),
)


def softmax(values):
    e = np.exp(values - values.max())
    return e / e.sum()


def expected_rounds():
    """Return the weights and criterion of those rounds. The change is a running mean of |max_k − max_{k−1}|."""
    sizes = {}
    for name, series in (("f", [f for f, _ in ROUNDS]), ("g", [g for _, g in ROUNDS])):
        a, b, c = (np.array(values) for values in series)
        first_change = 0.1 * (a.max() - a.min()) + 1e-3 * abs(a.max())
        second = first_change  # no change before the first round
        third = 0.9 * second + 0.1 * abs(b.max() - a.max())
        fourth = 0.9 * third + 0.1 * abs(c.max() - b.max())
        sizes[name] = (first_change, second, third, fourth)
    rounds = []
    for k, (f, g) in enumerate(ROUNDS):
        f, g = np.array(f), np.array(g)
        q = softmax(0.3 / sizes["g"][k] * g)
        criterion = q @ g
        feasible = criterion <= 0.1
        rounds.append((softmax(0.3 / sizes["f"][k] * f) if feasible else q, criterion, feasible))
    return rounds, sizes


def decide_rounds(method, array, jit):
    """Return the decisions of three rounds and the final state."""
    step = jax.jit(method.decide) if jit else method.decide
    state, decisions = method.init(3, 1), []
    if array is np.asarray:
        state = jax.tree.map(np.asarray, state)
    for f, g in ROUNDS:
        reports = Reports(array(f), array(g)[:, None], None, array([True] * 3))
        decision, state = step(state, reports)
        decisions.append((decision.weights, decision.criterion, decision.feasible))
    return decisions, state


@pytest.mark.parametrize(("array", "jit"), [(np.asarray, False), (jnp.asarray, False), (jnp.asarray, True)])
def test_alpha_scaled_by_change(x64, array, jit):
    expected, sizes = expected_rounds()
    assert [feasible for _, _, feasible in expected] == [True, True, False], "both branches must occur"
    decisions, final_changes = decide_rounds(METHOD, array, jit)
    for (weights, criterion, feasible), (w, c, is_feasible) in zip(decisions, expected, strict=True):
        np.testing.assert_allclose(weights, w, rtol=1e-12)
        np.testing.assert_allclose(criterion, c, rtol=1e-12)
        assert bool(feasible) == is_feasible
    for change, name, largest in zip(final_changes, ("f", "g"), (2.8, 0.5), strict=True):
        np.testing.assert_allclose(change.mean, sizes[name][3], rtol=1e-12)
        np.testing.assert_allclose(change.largest, largest, rtol=1e-12)


def test_alpha_scaled_by_change_is_scale_invariant():
    """Once a change is known, only the change scales α, and it has the units of f."""
    change = Change(jnp.float32(2.0), jnp.float32(0.5))
    scaled = Change(jnp.float32(2000.0), jnp.float32(500.0))
    f = jnp.array([1.0, 2.0, 1.5])
    g = jnp.full((3, 1), -1.0)
    unscaled_decision = METHOD.decide(
        (change, Change(jnp.float32(jnp.nan), jnp.float32(jnp.nan))), Reports(f, g, None, jnp.ones(3, bool))
    )[0]
    scaled_decision = METHOD.decide(
        (scaled, Change(jnp.float32(jnp.nan), jnp.float32(jnp.nan))), Reports(1000 * f, g, None, jnp.ones(3, bool))
    )[0]
    np.testing.assert_allclose(unscaled_decision.weights, scaled_decision.weights, rtol=1e-6)
    np.testing.assert_allclose(unscaled_decision.weights, softmax(0.3 / 0.5 * np.array(f)), rtol=1e-6)


def test_absent_clients_do_not_affect_change():
    f, g = [1.0, np.nan, 2.0], [[-1.0], [np.nan], [-2.0]]
    absent = Reports(np.array(f), np.array(g), None, np.array([True, False, True]))
    present = Reports(np.array([1.0, 2.0]), np.array([[-1.0], [-2.0]]), None, np.ones(2, bool))
    state = METHOD.init(3, 1)
    for _ in range(2):
        masked_decision, masked_state = METHOD.decide(state, absent)
        present_decision, present_state = METHOD.decide(state, present)
        np.testing.assert_array_equal(masked_decision.weights, np.insert(present_decision.weights, 1, 0))
        for a, b in zip(jax.tree.leaves(masked_state), jax.tree.leaves(present_state), strict=True):
            np.testing.assert_array_equal(a, b)
            assert np.isfinite(a)
        state = masked_state


@pytest.mark.parametrize("f", [[3.0, 3.0], [0.0, 0.0], [1e30, -1e30], [-np.inf, 2.0]])
def test_alpha_scaled_by_change_for_constant_values(f):
    """For constant values the change falls to 0 and α grows, but weights stay finite and sum to 1."""
    reports = Reports(jnp.array(f, jnp.float32), jnp.full((2, 1), -1.0), None, jnp.ones(2, bool))
    state, step = METHOD.init(3, 1), jax.jit(METHOD.decide)
    for _ in range(3000):
        decision, state = step(state, reports)
    assert np.isfinite(decision.weights).all()
    np.testing.assert_allclose(decision.weights.sum(), 1, rtol=1e-6)
    assert decision.weights[np.argmax(f)] >= 0.5


def test_falling_step():
    step = FallingStep(first=0.4, rounds=4, begin=10)
    cosine = np.sqrt(0.5)
    expected = [0.4, 0.2 * (1 + cosine), 0.2, 0.2 * (1 - cosine), 0.0]
    np.testing.assert_allclose([step(k) for k in range(10, 15)], expected, atol=1e-7)
    np.testing.assert_allclose(
        [step(0), step(99)], [0.4, 0.0], atol=1e-7, err_msg="before the start, and after the end"
    )
    method = ss.SoftmaxSGM(tolerance=0.1, alpha=1.0, step_size=step)
    assert method.step_size_at(12) == pytest.approx(0.2)
    assert method.local_step_size_at(12, 4) == pytest.approx(0.05), "γ = η/E in every round"


def reference_adam(gradients, step, momentum):
    """Return the updates of Adam on gradients of length 1, in NumPy."""
    m, v, updates = 0.0, 0.0, []
    for t, gradient in enumerate(gradients, 1):
        direction = gradient / np.linalg.norm(gradient)
        m = momentum * m + (1 - momentum) * direction
        v = 0.999 * v + 0.001 * direction**2
        updates.append(-step * (m / (1 - momentum**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8))
    return np.array(updates)


@pytest.mark.parametrize("momentum", [0.9, 0.99])
def test_normalized_adam_matches_reference(x64, momentum):
    gradients = np.array([[3.0, 4.0], [-300.0, 1.0], [1e-6, -2e-6]])
    optimizer = NormalizedAdam(momentum=momentum)(0.1)
    state, updates = optimizer.init(jnp.zeros(2)), []
    for gradient in gradients:
        update, state = optimizer.update(jnp.asarray(gradient), state)
        updates.append(update)
    np.testing.assert_allclose(updates, reference_adam(gradients, 0.1, momentum), rtol=1e-6)
    zero_update, _ = optimizer.update(jnp.zeros(2), state)
    assert np.isfinite(zero_update).all(), "a zero direction must not divide by 0"


def test_normalized_adam_uses_norm_of_all_params(x64):
    """The direction is normalized over the whole tree, not each leaf."""
    tree = {"a": jnp.array([3.0]), "b": jnp.array([[4.0]])}
    optimizer = NormalizedAdam()(1.0)
    state = optimizer.init(tree)
    for gradient in (tree, {"a": jnp.array([1.0]), "b": jnp.array([[0.0]])}):
        update, state = optimizer.update(gradient, state)
    flat = reference_adam(np.array([[3.0, 4.0], [1.0, 0.0]]), 1.0, 0.9)[1]
    np.testing.assert_allclose([update["a"][0], update["b"][0, 0]], flat, rtol=1e-6)


AUTO_SETTINGS = ss.SoftmaxSGM(
    tolerance=0.1,
    step_size=FallingStep(first=0.1, rounds=40, begin=3),
    local_step_size=FallingStep(first=0.02, rounds=40, begin=3),
    threshold=0.09,
    criterion="max",
    optimizer=NormalizedAdam(momentum=0.9),
    alpha=0.3,
    alpha_scale="change",
)


def test_settings_are_leaves():
    leaves, structure = jax.tree.flatten(AUTO_SETTINGS)
    assert sorted(leaves) == sorted([0.1, 0.1, 40, 3, 0.02, 40, 3, 0.09, 0.9, 0.3])
    changed = dataclasses.replace(
        AUTO_SETTINGS, step_size=FallingStep(first=3.0, rounds=7), optimizer=NormalizedAdam(momentum=0.99)
    )
    assert jax.tree.structure(changed) == structure
    assert jax.tree.structure(dataclasses.replace(AUTO_SETTINGS, optimizer=optax.adam)) != structure
    rebuilt = jax.tree.unflatten(structure, leaves)
    assert rebuilt == AUTO_SETTINGS


def test_changed_settings_do_not_recompile():
    clients = ss.ClientData.from_arrays({"sign": np.array([1.0, -1.0])}, client=["up", "down"])
    problem = ss.Problem(lambda w, b: (w - b["sign"][0]) ** 2, lambda w, b: w - 0.5, jnp.float32(0.3))
    options = {"rounds": 6, "batch_size": None, "eval_every": 0}
    first = flat.solve(problem, clients, AUTO_SETTINGS, **options)
    compiled_before = COMPILATIONS.count
    assert compiled_before > 0, "the counter must be active"
    other_method = dataclasses.replace(
        AUTO_SETTINGS,
        step_size=FallingStep(first=0.4, rounds=9, begin=1),
        local_step_size=FallingStep(first=0.1, rounds=8),
        optimizer=NormalizedAdam(momentum=0.5),
        alpha=0.7,
        threshold=0.05,
    )
    second = flat.solve(problem, clients, other_method, **options)
    assert COMPILATIONS.count == compiled_before
    assert float(first.last) != float(second.last), "the numbers must not be compiled in"


def test_missing_step_size_is_reported():
    with pytest.raises(ValueError, match="step_size must be given unless it is chosen during a run"):
        ss.SoftmaxSGM(tolerance=0.1, step_size=None, alpha=None).step_size_at(3)
    with pytest.raises(ValueError, match="alpha must be given unless it is chosen during a run"):
        ss.SoftmaxSGM(tolerance=0.1, step_size=None, alpha=None).decide(
            (), Reports(np.zeros(2), np.zeros((2, 1)), None, np.ones(2, bool))
        )
