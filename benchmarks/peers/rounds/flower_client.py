"""A client for Flower: local steps in PyTorch on bare tensors. Imported by Flower's workers."""

from __future__ import annotations

import os
from functools import lru_cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from serve import Work
from torch_models import loss

WORK = "PEERS_WORK"
WHOLE = "whole"
app = ClientApp()


@lru_cache(maxsize=1)
def work_of(path: str) -> Work:
    """Read once a worker: rows are at hand in every round but its first."""
    torch.set_num_threads(1)  # there is a worker on each core
    return Work(path)


@app.train()
def train(message: Message, context: Context) -> Message:
    """E local steps from the server's parameters."""
    work = work_of(os.environ[WORK])
    client, whole = int(context.node_config["partition-id"]), bool(message.content.config_records["config"][WHOLE])
    local = {
        name: torch.from_numpy(array.numpy().copy()) for name, array in message.content.array_records["arrays"].items()
    }
    x, y = torch.from_numpy(work.x[client]), torch.from_numpy(work.y[client]).long()
    for _ in range(work.steps):
        rows = slice(None) if whole else torch.randint(work.rows, (work.batch,))
        local = {name: tensor.detach().requires_grad_() for name, tensor in local.items()}
        slopes = torch.autograd.grad(loss(work.model, local, x[rows], y[rows]), list(local.values()))
        pairs = zip(local.items(), slopes, strict=True)
        local = {name: tensor.detach() - work.step_size * slope for (name, tensor), slope in pairs}
    answer = RecordDict({"arrays": ArrayRecord(local), "metrics": MetricRecord({"num-examples": work.rows})})
    return Message(content=answer, reply_to=message)
