"""Clients that report their regret."""

import jax.numpy as jnp
import numpy as np
import pytest

import softswitch as ss
import softswitch.flower as fl
from benchmarks import flat
from flower_clients import quadratic, simulated, zeros

pytestmark = pytest.mark.usefixtures("quiet")


def minimum_of(client):
    """Return the minimum ½ mean‖x − x̄‖²."""
    x = client._data["x"].astype(float)
    return 0.5 * np.square(x - x.mean(axis=0)).sum(axis=1).mean()


def test_client_reports_regret():
    base_client, params = quadratic(0), {"w": np.ones(3, np.float32)}
    client, task = fl.RegretClient(base_client, 0.25), fl.Task(0, 0, 1, 0.1, True)
    assert client.client_optimum == 0.25
    for objective_value, regret_value in (
        (base_client.evaluate(params), client.evaluate(params)),
        (base_client.report(params, task), client.report(params, task)),
    ):
        assert regret_value.objective == pytest.approx(objective_value.objective - client.client_optimum)
        assert regret_value.constraint == objective_value.constraint
    assert client.name == base_client.name
    assert isinstance(client, fl.LocalOracle)


def test_run_matches_solve_with_regret():
    count, method = 3, ss.SoftmaxSGM(alpha=20.0, step_size=0.1, tolerance=0.1)

    def factory(context):
        client = quadratic(int(context.node_config["partition-id"]))
        return fl.RegretClient(client, minimum_of(client))

    app = simulated(factory)
    strategy = fl.SwitchingStrategy(method)
    strategy.start(fl.InProcessGrid(app, count), zeros(), 12)
    numpy_clients = [quadratic(i) for i in range(count)]
    clients = ss.ClientData.from_list([{"x": numpy_client._data["x"]} for numpy_client in numpy_clients])
    problem = ss.Problem(
        lambda w, b: jnp.average(0.5 * jnp.square(w - b["x"]).sum(axis=1), weights=b["weight"]),
        lambda w, b: w.sum() - 0.2,
        jnp.zeros(3),
    )
    reference = flat.solve(
        problem,
        clients,
        method,
        rounds=12,
        batch_size=None,
        regret=[minimum_of(numpy_client) for numpy_client in numpy_clients],
    )
    np.testing.assert_allclose(strategy.result.params["w"], reference.params, rtol=1e-4)
    np.testing.assert_allclose(strategy.result.client_objective, reference.client_objective, atol=1e-5)


def test_invalid_client_optimum_is_rejected():
    with pytest.raises(ValueError, match="client_optimum must be a finite number"):
        fl.RegretClient(quadratic(0), np.nan)
    with pytest.raises(TypeError, match="LocalOracle"):
        fl.RegretClient("a client", 1.0)
    private = ss.RecordPrivacy(epsilon=3.0)
    with pytest.raises(TypeError, match="PerRowOracle"):
        fl.PrivateClient(fl.RegretClient(quadratic(0), 1.0), private, budget_file="nowhere", rounds=1)


def test_private_client_is_rejected(tmp_path):
    private = fl.PrivateClient(quadratic(0), ss.RecordPrivacy(noise=1.0), budget_file=tmp_path / "spent.json", rounds=2)
    with pytest.raises(ValueError, match="must not be a PrivateClient"):
        fl.RegretClient(private, 0.25)
