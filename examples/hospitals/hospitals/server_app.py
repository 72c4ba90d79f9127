"""The server of the coordinator, which has no data."""

import os
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from hospitals.linear import MAX_MISS_LOSS, PROBLEM
from softswitch import SQP, SoftmaxSGM
from softswitch.flower import parameters, server_app
from softswitch.trackers import PrometheusTracker

METRICS = os.environ.get("HOSPITALS_METRICS")
"""File for Prometheus' node exporter, whose name ends in .prom. Default: none is written."""
CLIENTS = os.environ.get("HOSPITALS_CLIENTS", "")
"""Default of the run config's ``clients``: the folder of the public keys of the hospitals that may take part."""

SETTINGS: dict[str, Any] = {
    "name": "hospitals",
    "names": [f"hospital-{i}" for i in range(1, 6)],
    "constraints": 1,
    "min_clients": 3,
    "wait": 300.0,
    "report_timeout": 120.0,
    "update_timeout": 120.0,
    "callbacks": [PrometheusTracker(METRICS, run="hospitals")] if METRICS else [],
}


def linear_app() -> ServerApp:
    """Return the server of the linear model: second order, with an optimality gap."""
    return server_app(SQP(tolerance=MAX_MISS_LOSS), PROBLEM.start, convex=True, **SETTINGS)


def network_app() -> ServerApp:
    """Return the server of the network: first order, with ten local steps in a round."""
    from hospitals.network import network

    method = SoftmaxSGM(alpha=50.0, step_size=2.0, local_step_size=0.5, tolerance=MAX_MISS_LOSS)
    return server_app(method, parameters(network()), local_steps=10, average_last=0.5, **SETTINGS)


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the model of the run config, with the hospitals whose keys are in the folder ``clients``."""
    config = context.run_config = {**context.run_config}
    config["clients"] = config.get("clients") or CLIENTS
    if not (config["clients"] or config.get("data")):
        problem = "clients must be the folder of the hospitals' public keys, or data the folder of a simulation"
        raise ValueError(f"{problem}, but the run config has neither")
    model = str(config.get("model", "linear"))
    {"linear": linear_app, "network": network_app}[model]()(grid, context)
