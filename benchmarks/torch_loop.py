"""The same algorithm as people write it in PyTorch: a loop over rounds, a loop over clients.

Two versions. ``federated`` is the usual idiom of federated code: a module, a copy of it for each client, an SGD
optimiser. ``lean`` does only what the mathematics needs, on a bare vector.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

Client = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Setting:
    """The Neyman–Pearson run that is compared."""

    rounds: int
    local_steps: int
    participants: int
    alpha: float = 6400.0
    step_size: float = 0.5
    threshold: float = 0.1 / 1.1
    batch_size: int = 32


def class_loss(scores: torch.Tensor, y: torch.Tensor, label: int) -> torch.Tensor:
    """Mean logistic loss over the rows of one class."""
    chosen = (y == label).float()
    return (binary_cross_entropy_with_logits(scores, y, reduction="none") * chosen).sum() / chosen.sum()


def draw(client: Client, size: int, generator: torch.Generator) -> Client:
    """A batch with replacement."""
    x, y = client
    rows = torch.randint(len(x), (size,), generator=generator)
    return x[rows], y[rows]


def decide(f: torch.Tensor, g: torch.Tensor, setting: Setting) -> tuple[bool, torch.Tensor]:
    """The switch bit and the server's weights."""
    q = torch.softmax(setting.alpha * g, 0)
    feasible = bool(q @ g <= setting.threshold)
    return feasible, torch.softmax(setting.alpha * f, 0) if feasible else q


def lean(clients: list[Client], setting: Setting, seed: int = 0) -> torch.Tensor:
    """The loop on a bare parameter vector; returns the feasible average."""
    generator = torch.Generator().manual_seed(seed)
    w = torch.zeros(clients[0][0].shape[1])
    total, passed = torch.zeros_like(w), 0
    for _ in range(setting.rounds):
        chosen = torch.randperm(len(clients), generator=generator)[: setting.participants].tolist()
        f, g = torch.empty(len(chosen)), torch.empty(len(chosen))
        with torch.no_grad():
            for j, i in enumerate(chosen):
                x, y = draw(clients[i], setting.batch_size, generator)
                scores = x @ w
                f[j], g[j] = class_loss(scores, y, 0), class_loss(scores, y, 1)
        feasible, weights = decide(f, g, setting)
        if feasible:
            total, passed = total + w, passed + 1
        direction = torch.zeros_like(w)
        for weight, i in zip(weights, chosen, strict=True):
            local = w
            for _ in range(setting.local_steps):
                x, y = draw(clients[i], setting.batch_size, generator)
                local = local.detach().requires_grad_()
                (gradient,) = torch.autograd.grad(class_loss(x @ local, y, 0 if feasible else 1), local)
                local = local.detach() - setting.step_size * gradient
            direction += weight * (w - local) / (setting.step_size * setting.local_steps)
        w = w - setting.step_size * direction
    return total / max(passed, 1)


def federated(clients: list[Client], setting: Setting, seed: int = 0) -> torch.Tensor:
    """The loop in the idiom of federated tutorials; returns the feasible average."""
    generator = torch.Generator().manual_seed(seed)
    model = torch.nn.Linear(clients[0][0].shape[1], 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    total, passed = torch.zeros_like(model.weight), 0
    for _ in range(setting.rounds):
        chosen = torch.randperm(len(clients), generator=generator)[: setting.participants].tolist()
        f, g = [], []
        with torch.no_grad():
            for i in chosen:
                x, y = draw(clients[i], setting.batch_size, generator)
                scores = model(x).squeeze(1)
                f.append(class_loss(scores, y, 0))
                g.append(class_loss(scores, y, 1))
        feasible, weights = decide(torch.stack(f), torch.stack(g), setting)
        if feasible:
            total, passed = total + model.weight.detach(), passed + 1
        directions = []
        for i in chosen:
            local = copy.deepcopy(model)
            optimizer = torch.optim.SGD(local.parameters(), lr=setting.step_size)
            for _ in range(setting.local_steps):
                x, y = draw(clients[i], setting.batch_size, generator)
                optimizer.zero_grad()
                class_loss(local(x).squeeze(1), y, 0 if feasible else 1).backward()
                optimizer.step()
            change = model.weight.detach() - local.weight.detach()
            directions.append(change / (setting.step_size * setting.local_steps))
        with torch.no_grad():
            for weight, direction in zip(weights, directions, strict=True):
                model.weight -= setting.step_size * weight * direction
    return (total / max(passed, 1)).squeeze(0)
