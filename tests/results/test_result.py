"""Results on disk: run folders, with models and reports."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import softswitch as ss
from benchmarks import flat
from problems import client_data, least_squares, regression, softplus_level
from softswitch.results.folder import open_run, write_result

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


def test_result_round_trip(result, tmp_path):
    write_result(tmp_path / "it", result)
    run = open_run(tmp_path / "it")
    params = run.restore_params(TREE)
    assert jax.tree.structure(params) == jax.tree.structure(result.params)
    for a, b in zip(jax.tree.leaves(result.params), jax.tree.leaves(params), strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype
    saved, loaded = result.history.to_arrays(), run.history.to_arrays()
    assert saved.keys() == loaded.keys()
    for name, array in saved.items():
        np.testing.assert_array_equal(array, loaded[name])
    assert run.about["answer"] == result.selected
    assert run.about["status"] == {"code": result.status.code, "message": result.status.message}
    assert (run.about["seed"], run.about["violating"]) == (result.seed, [str(name) for name in result.violating])
    np.testing.assert_array_equal(run.clients["constraint"], result.client_constraint[:, 0])


def test_labels_are_saved_as_text(tmp_path):
    problem = ss.Problem(least_squares, softplus_level, jnp.zeros(4))
    data, owner = regression(clients=3)
    labels = [("north", 1), np.int64(7), "west"]
    parts = [{key: column[owner == i] for key, column in data.items()} for i in range(3)]
    clients = ss.ClientData.from_list(parts, names=labels)
    write_result(tmp_path, flat.solve(problem, clients, RULE, rounds=10))
    assert open_run(tmp_path).clients["client"] == ["('north', 1)", "7", "west"]


def test_invalid_folders_are_rejected(result, tmp_path):
    write_result(tmp_path, result)
    with pytest.raises(ValueError, match=r"must be the folder of a run, but has no run\.json"):
        open_run(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"params\.safetensors"):
        open_run(tmp_path).restore_params({"other": jnp.zeros(2)})
    run_json = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps(run_json | {"format": "softswitch run 9"}))
    with pytest.raises(ValueError, match="has the format 'softswitch run 9'"):
        open_run(tmp_path)


def test_diverged_run_can_be_saved(tmp_path):
    problem = ss.Problem(lambda w, b: jnp.log(w) * b["x"].mean(), lambda w, b: -1.0 + 0 * w, jnp.float32(1.0))
    clients = ss.ClientData.from_arrays({"x": np.ones(3)}, client=[0, 0, 0])
    result = flat.solve(problem, clients, ss.HardSGM(step_size=2.0, tolerance=0.1), rounds=30)
    assert result.status.code is ss.StatusCode.DIVERGED
    write_result(tmp_path, result)
    assert open_run(tmp_path).about["status"]["message"] == result.status.message


@pytest.mark.parametrize("options", [{}, {"participation": 0.5}], ids=["all", "remembered"])
def test_auto_settings_round_trip(tmp_path, options):
    problem, clients = ss.Problem(least_squares, softplus_level, jnp.zeros(4)), client_data(*regression())
    method = ss.Automatic(tolerance=0.1, method=ss.SoftmaxSGM)
    auto_result = flat.solve(problem, clients, method, rounds=100, eval_every=0, lower_bound=False, **options)
    assert len(auto_result.restarts) > 1
    write_result(tmp_path, auto_result)
    assert tuple(open_run(tmp_path).restarts) == auto_result.restarts
