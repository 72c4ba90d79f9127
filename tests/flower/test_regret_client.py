"""A client that tells its regret, whatever it computes with."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

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
    given, found = fl.RegretClient(plain, 0.25), fl.RegretClient(plain)
    task = fl.Task(0, 0, 1, 0.1, True)
    assert given.client_optimum == 0.25
    assert found.client_optimum == pytest.approx(least_of(plain), abs=1e-6)
    for client in (given, found):
        for before, after in (
            (plain.evaluate(told), client.evaluate(told)),
            (plain.report(told, task), client.report(told, task)),
        ):
            assert after.objective == pytest.approx(before.objective - client.client_optimum)
            assert after.constraint == before.constraint
    assert found.name == plain.name
    assert isinstance(found, fl.LocalOracle)


def test_a_run_of_them_is_that_of_solve_with_regret():
    many, method = 3, ss.SoftmaxSGM(alpha=20.0, step_size=0.1, tolerance=0.1)
    app = simulated(lambda context: fl.RegretClient(quadratic(int(context.node_config["partition-id"]))))
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


def test_clients_of_jax_and_torch_find_theirs(x64):
    x, y = np.random.default_rng(0).normal(size=(20, 2)), np.random.default_rng(1).normal(size=20)
    least = np.linalg.lstsq(x, y)[1][0] / 20
    problem = ss.Problem(
        lambda w, b: jnp.average((b["x"] @ w - b["y"]) ** 2, weights=b["weight"]), lambda w, b: w[0], jnp.zeros(2)
    )
    module = torch.nn.Linear(2, 1, bias=False).double()
    clients = [
        fl.JaxClient(problem, {"x": x, "y": y}, name="a", batch_size=None),
        fl.TorchClient(
            module,
            lambda module, b: ((module(b[0])[:, 0] - b[1]) ** 2).mean(),
            lambda module, b: module.weight[0, 0],
            TensorDataset(torch.tensor(x), torch.tensor(y)),
            name="a",
            batch_size=None,
        ),
    ]
    for client in clients:
        assert fl.RegretClient(client).client_optimum == pytest.approx(least, rel=1e-8)


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="client_optimum is required for client 'site 0'"):
        fl.RegretClient(quadratic(0, batch_size=4))
    assert fl.RegretClient(quadratic(0, batch_size=4), 1.0).client_optimum == 1.0
    with pytest.raises(ValueError, match="client_optimum must be a finite number"):
        fl.RegretClient(quadratic(0), np.nan)
    with pytest.raises(TypeError, match="LocalOracle"):
        fl.RegretClient("a client")
    private = ss.RecordPrivacy(epsilon=3.0)
    with pytest.raises(TypeError, match="PerRowOracle"):
        fl.PrivateClient(fl.RegretClient(quadratic(0), 1.0), private, budget_file="nowhere", rounds=1)


def test_where_its_best_is_not_to_be_had_it_is_refused(tmp_path):
    private = fl.PrivateClient(quadratic(0), ss.RecordPrivacy(noise=1.0), budget_file=tmp_path / "spent.json", rounds=2)
    with pytest.raises(ValueError, match="must not be a PrivateClient"):
        fl.RegretClient(private, 0.25)
    within = ss.Problem(lambda w, b: ((w - b["x"]) ** 2).mean(), lambda w, b: w[0], jnp.zeros(2), ss.Ball(1.0))
    client = fl.JaxClient(within, {"x": np.ones((4, 2), np.float32)}, name="a", batch_size=None)
    with pytest.raises(ValueError, match="its problem has a domain"):
        fl.RegretClient(client)
    assert fl.RegretClient(client, 0.5).client_optimum == 0.5
