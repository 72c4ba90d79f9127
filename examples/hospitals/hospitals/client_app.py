"""The client of a hospital."""

from pathlib import Path

from flwr.app import Context

from softswitch.flower import ClientPolicy, JaxClient, LocalOracle, RefusalError, TorchClient, client_app


def hospital(context: Context) -> LocalOracle:
    """Return this hospital, with the file of its node: --node-config 'file="…"'."""
    file = context.node_config.get("file")
    if file is None:  # a simulation: all hospitals are on one machine
        number = int(context.node_config["partition-id"]) + 1
        file = Path(str(context.run_config["data"])) / f"hospital-{number}.csv"
    if not Path(str(file)).exists():
        raise RefusalError(f"there is no file {file}")
    model = str(context.run_config.get("model", "linear"))
    return {"linear": linear_client, "network": network_client}[model](str(file))


def linear_client(file: str) -> JaxClient:
    """Return a client with the linear model."""
    from hospitals.linear import PROBLEM, read_rows

    train, held_out = read_rows(file)
    return JaxClient(PROBLEM, train, name=Path(file).stem, batch_size=None, held_out=held_out, classes="y")


def network_client(file: str) -> TorchClient:
    """Return a client with the network."""
    from hospitals.network import datasets, false_alarms, misses, network

    train, held_out = datasets(file)
    labels = {"classes": train.tensors[1], "held_out_classes": held_out.tensors[1]}
    name = Path(file).stem
    return TorchClient(network(), false_alarms, misses, train, name=name, batch_size=None, held_out=held_out, **labels)


app = client_app(hospital, ClientPolicy(second_order=True, max_distance=20.0))
"""A hospital sends second derivatives if each class has at least 62 rows, twice the number of parameters.

It refuses parameters that are far from the start. With standardised features, runs end within a distance of 10. By
default it computes nothing on a class of fewer than ten rows, and counts its answers.
"""
