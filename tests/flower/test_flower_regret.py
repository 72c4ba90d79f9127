"""Clients that subtract their own optimum in the objective."""

import jax.numpy as jnp
import numpy as np
import pytest

import softswitch as ss
import softswitch.flower as fl
from benchmarks import flat
from flower_clients import objective, quadratic, simulated, zeros

pytestmark = pytest.mark.usefixtures("quiet")


def minimum_of(client):
    """Return the minimum ½ mean‖x − x̄‖²."""
    x = client._data["x"].astype(float)
    return 0.5 * np.square(x - x.mean(axis=0)).sum(axis=1).mean()


def test_run_matches_solve_with_regret():
    count, method = 3, ss.SoftmaxSGM(alpha=20.0, step_size=0.1, tolerance=0.1)

    def factory(context):
        i = int(context.node_config["partition-id"])
        optimum = minimum_of(quadratic(i))

        def regret(params, batch):
            value, gradient = objective(params, batch)
            return value - optimum, gradient

        return quadratic(i, objective=regret)

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
