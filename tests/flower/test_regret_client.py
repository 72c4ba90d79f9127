"""A client that tells its regret, whatever it computes with."""

import jax.numpy as jnp
import numpy as np
import pytest

import softswitch as ss
import softswitch.flower as fl
from benchmarks import flat
from flower_clients import quadratic, simulated, zeros

pytestmark = pytest.mark.usefixtures("quiet")


def least_of(client):
    """½ mean‖x − x̄‖², by hand."""
    x = client._data["x"].astype(float)
    return 0.5 * np.square(x - x.mean(axis=0)).sum(axis=1).mean()


def test_what_it_tells_is_less_by_its_client_optimum():
    plain, told = quadratic(0), {"w": np.ones(3, np.float32)}
    client, task = fl.RegretClient(plain, 0.25), fl.Task(0, 0, 1, 0.1, True)
    assert client.client_optimum == 0.25
    for before, after in (
        (plain.evaluate(told), client.evaluate(told)),
        (plain.report(told, task), client.report(told, task)),
    ):
        assert after.objective == pytest.approx(before.objective - client.client_optimum)
        assert after.constraint == before.constraint
    assert client.name == plain.name
    assert isinstance(client, fl.LocalOracle)


def test_a_run_of_them_is_that_of_solve_with_regret():
    many, method = 3, ss.SoftmaxSGM(alpha=20.0, step_size=0.1, tolerance=0.1)

    def factory(context):
        client = quadratic(int(context.node_config["partition-id"]))
        return fl.RegretClient(client, least_of(client))

    app = simulated(factory)
    strategy = fl.SwitchingStrategy(method)
    strategy.start(fl.InProcessGrid(app, many), zeros(), 12)
    plain = [quadratic(i) for i in range(many)]
    clients = ss.ClientData.from_list([{"x": one._data["x"]} for one in plain])
    problem = ss.Problem(
        lambda w, b: jnp.average(0.5 * jnp.square(w - b["x"]).sum(axis=1), weights=b["weight"]),
        lambda w, b: w.sum() - 0.2,
        jnp.zeros(3),
    )
    here = flat.solve(problem, clients, method, rounds=12, batch_size=None, regret=[least_of(one) for one in plain])
    np.testing.assert_allclose(strategy.result.params["w"], here.params, rtol=1e-4)
    np.testing.assert_allclose(strategy.result.client_objective, here.client_objective, atol=1e-5)


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="client_optimum must be a finite number"):
        fl.RegretClient(quadratic(0), np.nan)
    with pytest.raises(TypeError, match="LocalOracle"):
        fl.RegretClient("a client", 1.0)
    private = ss.RecordPrivacy(epsilon=3.0)
    with pytest.raises(TypeError, match="PerRowOracle"):
        fl.PrivateClient(fl.RegretClient(quadratic(0), 1.0), private, budget_file="nowhere", rounds=1)


def test_a_private_client_is_refused(tmp_path):
    private = fl.PrivateClient(quadratic(0), ss.RecordPrivacy(noise=1.0), budget_file=tmp_path / "spent.json", rounds=2)
    with pytest.raises(ValueError, match="must not be a PrivateClient"):
        fl.RegretClient(private, 0.25)
