"""Federated averaging in plain PyTorch, three ways.

Words on the command line: "usual", as tutorials write it, a copied module and an optimiser for each client; "lean",
only what the mathematics needs, on bare tensors; "vmap", all clients of a round at once by ``torch.func``.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from serve import Arrays, Clock, Watch, Work, serve, versions
from torch_models import Module, Params, labels, loss, tensors

Rows = tuple[torch.Tensor, torch.Tensor]


class Torch:
    """A loop over rounds; clients one after the other, or side by side."""

    def __init__(self, work: Work, how: str) -> None:
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
        self.versions = versions("torch")
        self.work = work
        self.x, self.y = torch.from_numpy(work.x), torch.from_numpy(work.y).long()
        ways: dict[str, Callable[..., Params]] = {"usual": self.usual, "lean": self.lean, "vmap": self.vmap}
        self.round = ways[how]
        gradient = torch.func.grad(partial(loss, work.model))
        self.gradients = torch.func.vmap(gradient)

    def predict(self, params: Any, x: np.ndarray) -> np.ndarray:
        """Of all rows at once."""
        return labels(self.work.model, params, torch.from_numpy(x)).numpy()

    def train(self, rounds: int, whole: bool, seed: int, watch: Watch | None, every: int) -> tuple[Arrays, float]:
        """Rounds, each of clients drawn at random."""
        work, clock = self.work, Clock()
        generator = torch.Generator().manual_seed(seed)
        params = tensors(work.start)
        many = work.clients if whole else work.participants
        for k in range(rounds):
            chosen = torch.randperm(work.clients, generator=generator)[:many]
            params = self.round(params, chosen, whole, generator)
            if watch is not None and (k + 1) % every == 0:
                with clock.stopped():
                    ends = watch(params)
                if ends:
                    break
        return {name: tensor.numpy() for name, tensor in params.items()}, clock.seconds

    def drawn(self, client: int, whole: bool, generator: torch.Generator) -> Rows:
        """Rows of one client for a step."""
        if whole:
            return self.x[client], self.y[client]
        rows = torch.randint(self.work.rows, (self.work.batch,), generator=generator)
        return self.x[client][rows], self.y[client][rows]

    def usual(self, params: Params, chosen: torch.Tensor, whole: bool, generator: torch.Generator) -> Params:
        """A copy of the module and an optimiser for each client."""
        module = Module(self.work.model, params)
        total: Params = {name: torch.zeros_like(tensor) for name, tensor in params.items()}
        for client in chosen.tolist():
            local = copy.deepcopy(module)
            optimizer = torch.optim.SGD(local.parameters(), lr=self.work.step_size)
            for _ in range(self.work.steps):
                x, y = self.drawn(client, whole, generator)
                optimizer.zero_grad()
                local.loss(x, y).backward()
                optimizer.step()
            for name, tensor in local.state_dict().items():
                total[name] += tensor
        return {name: tensor / len(chosen) for name, tensor in total.items()}

    def lean(self, params: Params, chosen: torch.Tensor, whole: bool, generator: torch.Generator) -> Params:
        """On bare tensors."""
        total: Params = {name: torch.zeros_like(tensor) for name, tensor in params.items()}
        for client in chosen.tolist():
            local = params
            for _ in range(self.work.steps):
                x, y = self.drawn(client, whole, generator)
                local = {name: tensor.detach().requires_grad_() for name, tensor in local.items()}
                slopes = torch.autograd.grad(loss(self.work.model, local, x, y), list(local.values()))
                pairs = zip(local.items(), slopes, strict=True)
                local = {name: tensor.detach() - self.work.step_size * slope for (name, tensor), slope in pairs}
            for name, tensor in local.items():
                total[name] += tensor
        return {name: tensor / len(chosen) for name, tensor in total.items()}

    def vmap(self, params: Params, chosen: torch.Tensor, whole: bool, generator: torch.Generator) -> Params:
        """All clients of the round at once."""
        many = len(chosen)
        local = {name: tensor.expand(many, *tensor.shape) for name, tensor in params.items()}
        for _ in range(self.work.steps):
            if whole:
                x, y = self.x[chosen], self.y[chosen]
            else:
                rows = torch.randint(self.work.rows, (many, self.work.batch), generator=generator)
                x, y = self.x[chosen[:, None], rows], self.y[chosen[:, None], rows]
            slopes = self.gradients(local, x, y)
            local = {name: tensor - self.work.step_size * slopes[name] for name, tensor in local.items()}
        return {name: tensor.mean(0) for name, tensor in local.items()}


if __name__ == "__main__":
    serve(Torch)
