"""What runs at a hospital."""

from pathlib import Path

from flwr.app import Context

from hospitals.task import false_alarms, misses, network, rows
from softswitch.flower import RefusalError, TorchClient, client_app


def hospital(context: Context) -> TorchClient:
    """This hospital, with the file that its node was started with: --node-config 'file="…"'."""
    file = context.node_config.get("file")
    if file is None:  # a simulation: one machine plays all hospitals
        number = int(context.node_config["partition-id"]) + 1
        file = Path(str(context.run_config["data"])) / f"hospital-{number}.csv"
    if not Path(str(file)).exists():
        raise RefusalError(f"there is no file {file}")
    train, held_out = rows(str(file))
    return TorchClient(
        network(),
        false_alarms,
        misses,
        train,
        name=Path(str(file)).stem,
        batch_size=None,
        held_out=held_out,
        classes=train.tensors[1],
        held_out_classes=held_out.tensors[1],
    )


app = client_app(hospital)
"""By default a hospital answers on no class of fewer than ten rows."""
