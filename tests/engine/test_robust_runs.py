"""Runs with liars among the clients, in the compiled engine and over Flower's grid."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softswitch as ss
from benchmarks import flat
from problems import client_data, least_squares, regression, softplus_level
from softswitch.methods import robust
from softswitch.testing import ATTACKS, with_attack
from softswitch_experiments.tasks.neyman_pearson import breast_cancer

LIAR = 3
ROUNDS = 160
OF_ALL = {"alpha": 100.0, "step_size": 0.5, "tolerance": 0.1}
RUINED = {
    "inflate-objective": lambda f, g: f > 5,
    "block-constraint": lambda f, g: g > 0.5,
    "sign-flip": lambda f, g: g > 0.15,
    "scale": lambda f, g: g > 0.5,
    "hide-constraint": lambda f, g: g > 0.3,
}
"""What these do to the honest where everyone is trusted."""


@pytest.fixture(scope="module")
def federation():
    data = breast_cancer(10, seed=1)
    return flat.federation_of(data.problem, data.train, batch_size=None)


@pytest.fixture(scope="module")
def solved(federation):
    """Return a function that runs an attack, each with the same number of liars only once."""
    return cache(partial(run_attack, federation))


def run_attack(federation, attack, liars):
    settings = dict(OF_ALL)
    if attack == "hide-constraint":  # the smallest report matters where α is measured by the spread
        settings |= {"alpha": 5.0, "alpha_scale": "spread"}
    hostile = with_attack(federation, [federation.names[LIAR]], attack)
    result = flat.solve_federation(hostile, ss.SoftmaxSGM(**settings, robust=liars), rounds=ROUNDS)
    return result, hostile.oracle.evaluate_honest(result.params)


QUICK = ("inflate-objective", "block-constraint", "sign-flip", "adaptive-inner-product")


def mark_slow(attacks):
    return [pytest.param(attack, marks=[] if attack in QUICK else pytest.mark.slow) for attack in attacks]


@pytest.mark.parametrize("attack", mark_slow(ATTACKS))
def test_one_liar_does_not_ruin_the_others(solved, attack):
    """The honest end about where they are without a liar, F = 0.17 and G = 0.11: one of them may be above the bound."""
    if attack in RUINED:
        _, honest = solved(attack, None)
        assert RUINED[attack](honest.objective.max(), honest.constraint.max())
    result, honest = solved(attack, 1)
    assert honest.objective.max() < 0.7
    assert np.sort(honest.constraint[:, 0])[-2] <= 0.1  # all but one of the honest
    assert result.status.ok


CAUGHT = {
    "inflate-objective": "inconsistent-updates",
    "block-constraint": "outlier-values",
    "hide-constraint": "outlier-values",
    "sign-flip": "inconsistent-updates",
    "scale": "update-scale-mismatch",
    "inner-product": "inconsistent-updates",
}


@pytest.mark.parametrize("attack", mark_slow(CAUGHT))
def test_the_liar_is_named(federation, solved, attack):
    result, _ = solved(attack, 1)
    findings = [finding for finding in result.diagnostics if finding.code == CAUGHT[attack]]
    assert findings, result.diagnostics
    assert str(federation.names[LIAR]) in findings[0].evidence


@pytest.mark.parametrize("batch_size", [None, pytest.param(4, marks=pytest.mark.slow)])
def test_the_honest_are_not_suspected(batch_size):
    data = breast_cancer(10, seed=1)
    method = ss.SoftmaxSGM(**OF_ALL, robust=1)
    result = flat.solve(data.problem, data.train, method, rounds=ROUNDS, batch_size=batch_size)
    known = result.state.parts["consistency"]
    if batch_size is None:  # convex, and reports of all rows: nobody can report to be better off where it is hurt
        assert np.asarray(known.contradictions).sum() == 0
        assert np.asarray(known.predicted_increases).sum() > 100
    suspected = {finding.code for finding in result.diagnostics} & set(CAUGHT.values())
    assert not suspected


def test_set_aside_means_told(federation, solved):
    result, _ = solved("block-constraint", 1)
    name = federation.names[LIAR]
    assert result.status.ok
    assert "trimmed as robust=1 allows" in result.status.message
    assert result.worst_constraint <= 0.1 < 1e5 < result.client_constraint.max()
    assert result.violating[0] == name
    assert any(finding.code == "trimmed-violation" for finding in result.diagnostics)
    trusting, _ = solved("block-constraint", None)
    assert not trusting.status.ok


@pytest.mark.slow
@pytest.mark.parametrize(("local_steps", "participation"), [(3, 0.75), (1, 1.0)])
def test_both_engines_take_the_same_course(x64, local_steps, participation):
    problem = ss.Problem(least_squares, softplus_level, jnp.zeros(4))
    clients = client_data(*regression(clients=8, sizes=(20, 21)))  # of equal size: one program serves all clients
    method = ss.SoftmaxSGM(alpha=20.0, step_size=0.2, tolerance=0.05, robust=2)
    how = {"rounds": 30, "batch_size": None, "local_steps": local_steps, "participation": participation}
    here, there = (flat.solve(problem, clients, method, engine=engine, **how) for engine in ("compiled", "grid"))
    np.testing.assert_array_equal(here.history.feasible, there.history.feasible)
    np.testing.assert_allclose(here.params, there.params, rtol=1e-9, atol=1e-12)
    known = (jax.tree.leaves(result.state.parts["consistency"]) for result in (here, there))
    for ours, theirs in zip(*known, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-12)


def test_a_round_is_what_numpy_makes_of_it(x64):
    """One step at a time, by a plain loop: trimmed reports, capped weights, directions combined."""
    generator = np.random.default_rng(0)
    centres, level = generator.normal(size=(6, 3)) + 1, 0.4
    problem = ss.Problem(
        lambda w, batch: 0.5 * jnp.square(w - batch["x"][0]).sum(),
        lambda w, batch: w.sum() - level * batch["x"][0, 0],
        jnp.zeros(3),
    )
    clients = ss.ClientData.from_list([{"x": centre[None]} for centre in centres])
    method = ss.SoftmaxSGM(alpha=3.0, step_size=0.1, tolerance=0.1, robust=1)
    result = flat.solve(problem, clients, method, rounds=25, batch_size=None, answer="last")

    w, switched = np.zeros(3), []
    for _ in range(25):
        f, g = 0.5 * ((w - centres) ** 2).sum(axis=1), w.sum() - level * centres[:, 0]
        f, g = (np.clip(v, np.sort(v)[1], np.sort(v)[-2]) for v in (f, g))
        q = np.exp(3 * g) / np.exp(3 * g).sum()
        feasible = q @ g <= 0.1 / 1.1
        values, held, weights = (f if feasible else g), np.zeros(6, bool), np.zeros(6)
        while True:
            part = np.exp(3 * values) * ~held
            weights = np.where(held, 1 / 3, (1 - held.sum() / 3) * part / part.sum())
            if not (weights[~held] > 1 / 3 * 1.001).any():
                break
            held |= weights > 1 / 3
        u = w - centres if feasible else np.ones((6, 3))
        w = w - 0.1 * np.asarray(robust.combine(jnp.asarray(u), jnp.asarray(weights)))
        switched.append(feasible)
    np.testing.assert_array_equal(result.history.feasible, switched)
    assert 0 < sum(switched) < 25
    np.testing.assert_allclose(result.params, w, rtol=1e-12)


IN_TURN = ROUNDS * 2 / 10  # two of the five places of a round go by turns


@pytest.fixture
def liar_among_few():
    data = breast_cancer(10, seed=1)
    few = flat.federation_of(data.problem, data.train, batch_size=None, participation=0.5)
    return with_attack(few, [few.names[LIAR]], "adaptive-inner-product")


def test_few_a_round_with_a_liar_who_claims_to_be_the_worst(liar_among_few):
    method = ss.SoftmaxSGM(**OF_ALL, robust=1)
    result = flat.solve_federation(liar_among_few, method, rounds=ROUNDS, record_clients=True)
    assert "memory" in result.state.parts  # chosen by itself, where few take part and some may lie
    asked = (result.history.per_client.clients == LIAR).sum(axis=1)
    assert asked.sum() <= ROUNDS / 2 + IN_TURN + 5  # by need in every other round at most


@pytest.mark.slow
def test_a_liar_who_claims_to_be_the_worst_where_all_are_trusted(liar_among_few):
    trusting = flat.solve_federation(
        liar_among_few, ss.SoftmaxSGM(**OF_ALL), rounds=ROUNDS, memory=ss.Memory(), record_clients=True
    )
    assert (trusting.history.per_client.clients == LIAR).sum() > 0.95 * ROUNDS


@pytest.mark.slow
def test_two_liars_of_seven_and_cycles_that_choose():
    data = breast_cancer(9, seed=2)
    hostile = with_attack(flat.federation_of(data.problem, data.train, batch_size=None), [1, 5], "inflate-objective")
    result = flat.solve_federation(hostile, ss.Automatic(tolerance=0.1, robust=2), rounds=300)
    honest = hostile.oracle.evaluate_honest(result.params)
    assert len(result.restarts) > 1
    assert honest.objective.max() < 0.7
    assert np.sort(honest.constraint[:, 0])[-3] <= 0.1
    assert any(finding.code == "inconsistent-updates" for finding in result.diagnostics)


def test_resumed_in_the_middle_with_the_same_bits(tmp_path):
    data = breast_cancer(6, seed=0)
    method = ss.SoftmaxSGM(**OF_ALL, robust=1)
    whole = flat.solve(data.problem, data.train, method, rounds=60, batch_size=None)
    kept = ss.Checkpoints(tmp_path / "kept")
    flat.solve(data.problem, data.train, method, rounds=30, batch_size=None, checkpoints=kept)
    resumed = flat.solve(data.problem, data.train, method, rounds=60, batch_size=None, checkpoints=kept)
    np.testing.assert_array_equal(whole.last, resumed.last)
    np.testing.assert_array_equal(
        whole.state.parts["consistency"].predicted_increases, resumed.state.parts["consistency"].predicted_increases
    )


def test_bad_input_is_refused_by_its_name(federation):
    with pytest.raises(ValueError, match="robust=5 needs at least 2·5 \\+ 1 = 11 clients in every round, but 10"):
        flat.solve_federation(federation, ss.SoftmaxSGM(**OF_ALL, robust=5), rounds=3)
    with pytest.raises(ValueError, match="attack must be"):
        with_attack(federation, [3], "unkind")
    with pytest.raises(ValueError, match=r"byzantine must be .*nobody"):
        with_attack(federation, ["nobody"], "scale")
