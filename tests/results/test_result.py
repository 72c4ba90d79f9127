"""A result on disk: everything comes back, and nothing is pickled."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import softswitch as ss
from benchmarks import flat
from problems import client_data, least_squares, regression, softplus_level
from softswitch.results.certificate import Verdict

RULE = ss.SoftmaxSGM(alpha=20.0, step_size=0.01, tolerance=0.1, optimizer=optax.adam)
TREE = {"first": [jnp.zeros(2), jnp.zeros(2)], "none": None, "pair": (jnp.float32(0.0), jnp.zeros((1, 1)))}


def objective(params, batch):
    return least_squares(jnp.concatenate(params["first"]), batch)


def constraint(params, batch):
    return softplus_level(jnp.concatenate(params["first"]), batch)


@pytest.fixture(scope="module")
def result():
    problem = ss.Problem(objective, constraint, TREE)
    return flat.solve(problem, client_data(*regression()), RULE, rounds=80, record_clients=True)


def test_everything_comes_back(result, tmp_path):
    result.save(tmp_path / "it")
    back = ss.Result.load(tmp_path / "it")
    for name in ("params", "last", "best", "state"):
        one, other = getattr(result, name), getattr(back, name)
        assert jax.tree.structure(one) == jax.tree.structure(other), name
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
            np.testing.assert_array_equal(a, b)
            assert a.dtype == b.dtype
    for entry in dataclasses.fields(result.history):
        one, other = getattr(result.history, entry.name), getattr(back.history, entry.name)
        if entry.name == "per_client":
            one, other = one.clients, other.clients
        if one is not None:
            np.testing.assert_array_equal(one, other)
    for name in ("selected", "status", "diagnostics", "names", "method", "seed", "seconds"):
        assert getattr(result, name) == getattr(back, name), name
    np.testing.assert_array_equal(result.client_constraint, back.client_constraint)
    assert (back.explain(), back.violating) == (result.explain(), result.violating)
    problem, clients = ss.Problem(objective, constraint, TREE), client_data(*regression())
    on = [flat.solve(problem, clients, RULE, rounds=20, warm_start=start).last for start in (result, back)]
    np.testing.assert_array_equal(*(jax.tree.leaves(last)[0] for last in on))


def test_a_rule_with_functions_of_ones_own_is_handed_in(tmp_path):
    falling = ss.SoftmaxSGM(alpha=20.0, step_size=optax.cosine_decay_schedule(0.1, 30), tolerance=0.1)
    problem = ss.Problem(least_squares, softplus_level, jnp.zeros(4))
    result = flat.solve(problem, client_data(*regression()), falling, rounds=30)
    result.save(tmp_path)
    with pytest.raises(
        ValueError, match="has custom functions for step_size, which cannot be saved; pass it as method"
    ):
        ss.Result.load(tmp_path)
    assert ss.Result.load(tmp_path, method=falling).method is falling
    with pytest.raises(ValueError, match="method must be a SoftmaxSGM, as was saved"):
        ss.Result.load(tmp_path, method=ss.HardSGM(step_size=0.1, tolerance=0.1))
    with pytest.raises(ValueError, match=r"method must have tolerance = 0\.1, as was saved"):
        ss.Result.load(tmp_path, method=dataclasses.replace(falling, tolerance=1e-9))


def test_labels_of_any_kind_come_back_as_text_or_numbers(tmp_path):
    problem = ss.Problem(least_squares, softplus_level, jnp.zeros(4))
    data, owner = regression(clients=3)
    labels = [("north", 1), np.int64(7), "west"]
    parts = [{key: column[owner == i] for key, column in data.items()} for i in range(3)]
    clients = ss.ClientData.from_list(parts, names=labels)
    result = flat.solve(problem, clients, RULE, rounds=10)
    result.save(tmp_path)
    back = ss.Result.load(tmp_path)
    assert back.names == ("('north', 1)", 7, "west")
    verdicts = [client.verdict for client in ss.certify(back, problem, clients).clients]
    assert len(verdicts) == 3
    assert Verdict.UNKNOWN not in verdicts


def test_a_folder_is_written_once_and_read_with_care(result, tmp_path):
    result.save(tmp_path)
    with pytest.raises(ValueError, match="already holds a result"):
        result.save(tmp_path)
    with pytest.raises(ValueError, match=r"must be a folder that Result\.save has written, but has no result\.json"):
        ss.Result.load(tmp_path / "elsewhere")
    words = json.loads((tmp_path / "result.json").read_text())
    (tmp_path / "result.json").write_text(json.dumps(words | {"format": "softswitch result 9"}))
    with pytest.raises(ValueError, match="has the format 'softswitch result 9'"):
        ss.Result.load(tmp_path)


def test_a_diverged_run_is_saved_too(tmp_path):
    problem = ss.Problem(lambda w, b: jnp.log(w) * b["x"].mean(), lambda w, b: -1.0 + 0 * w, jnp.float32(1.0))
    one = ss.ClientData.from_arrays({"x": np.ones(3)}, client=[0, 0, 0])
    result = flat.solve(problem, one, ss.HardSGM(step_size=2.0, tolerance=0.1), rounds=30)
    assert result.status.code is ss.StatusCode.DIVERGED
    result.save(tmp_path)
    assert str(ss.Result.load(tmp_path).status) == str(result.status)


@pytest.mark.parametrize("options", [{}, {"participation": 0.5}], ids=["all", "remembered"])
def test_what_a_run_chose_comes_back(tmp_path, options):
    """The cycles, and a rule whose steps fall and whose optimiser has settings of its own."""
    problem, clients = ss.Problem(least_squares, softplus_level, jnp.zeros(4)), client_data(*regression())
    bare = ss.Automatic(tolerance=0.1)
    chosen = flat.solve(problem, clients, bare, rounds=100, eval_every=0, lower_bound=False, **options)
    assert len(chosen.restarts) > 1
    chosen.save(tmp_path)
    back = ss.Result.load(tmp_path)
    for name in ("restarts", "method", "selected", "status", "diagnostics", "seconds"):
        assert getattr(chosen, name) == getattr(back, name), name
    assert [str(cycle) for cycle in back.restarts] == [str(cycle) for cycle in chosen.restarts]
    assert back.method.step_size(back.restarts[-1].begin) == pytest.approx(back.restarts[-1].step_size)
    np.testing.assert_array_equal(back.params, chosen.params)
    for kept in ("params", "optimizer", "method", "average", "best"):
        one, other = (jax.tree.leaves(getattr(result.state, kept)) for result in (chosen, back))
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)
    handed_in = ss.Result.load(tmp_path, method=chosen.method)
    assert handed_in.method is chosen.method
    with pytest.raises(ValueError, match="method must have"):
        ss.Result.load(tmp_path, method=dataclasses.replace(chosen.method, alpha=0.7))
    on = [
        flat.solve(problem, clients, bare, rounds=30, eval_every=0, lower_bound=False, warm_start=start, **options).last
        for start in (chosen, back)
    ]
    np.testing.assert_array_equal(*on)
