"""Fine-tune a small transformer over hospitals with low-rank adapters: ``python examples/fine_tuning.py``.

The model reads notes, here sequences of 16 tokens, and predicts whether a note reports an event. It was trained on
notes of other places. Every hospital writes with a few words of its own, so that its events are missed. The adapters
(LoRA: Hu and others, 2021) are trained over all hospitals, such that the loss on events is at most 0.35 at each.

Only the adapters are parameters of the run: the server, checkpoints and directions have 1,057 numbers of 28,513.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import nn
from torch.nn.functional import softplus
from torch.utils.data import TensorDataset

import softswitch as ss

WORDS, LENGTH, WIDTH, RANK = 64, 16, 32, 4
EVENTS = torch.arange(4)  # words that report an event
BOUND = 0.35


class Adapted(nn.Module):
    """A frozen linear layer plus a product of two small matrices, which is 0 at the start."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(RANK, layer.in_features) / layer.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(layer.out_features, RANK))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs of the layer and of the adapter."""
        return self.layer(x) + x @ self.down.T @ self.up.T


class Block(nn.Module):
    """Self-attention and a feed-forward network, each with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the new state of every word."""
        y = self.norms[0](x)
        query, key, value = (
            layer(y).unflatten(-1, (4, -1)).transpose(-2, -3) for layer in (self.query, self.key, self.value)
        )
        attended = (query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5).softmax(dim=-1) @ value
        x = x + self.out(attended.transpose(-2, -3).flatten(-2))
        return x + self.feed(self.norms[1](x))


class Transformer(nn.Module):
    """A transformer that returns the log odds of an event."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, notes: torch.Tensor) -> torch.Tensor:
        """Return one number for each note."""
        return self.head(self.blocks(self.words(notes)).mean(dim=-2))[..., 0]


def write_notes(count: int, own: int, seed: int) -> TensorDataset:
    """Return notes and whether they report an event; ``own`` shifts the words of events that a hospital uses."""
    generator = torch.Generator().manual_seed(seed)
    notes = torch.randint(32, WORDS, (count, LENGTH), generator=generator)
    reports = torch.rand(count, generator=generator) < 0.4
    places = torch.randint(LENGTH, (count, 3), generator=generator)
    words = EVENTS[torch.randint(len(EVENTS), (count, 3), generator=generator)] + 4 * own
    events = notes.scatter(1, places, words)
    return TensorDataset(torch.where(reports[:, None], events, notes), reports.float())


def pretrain(module: Transformer, steps: int) -> None:
    """Train all parameters on notes of other places."""
    notes, reports = write_notes(4000, 0, seed=0).tensors
    optimizer = torch.optim.Adam(module.parameters(), lr=0.003)
    for step in range(steps):
        rows = torch.arange(64 * step, 64 * (step + 1)) % len(notes)
        optimizer.zero_grad()
        softplus(torch.where(reports[rows] == 1, -1, 1) * module(notes[rows])).mean().backward()
        optimizer.step()


def add_adapters(module: Transformer) -> None:
    """Freeze all parameters but the head, and adapt queries and values."""
    module.requires_grad_(False)
    module.head.requires_grad_(True)
    for block in module.blocks:
        block.query, block.value = Adapted(block.query), Adapted(block.value)


def class_loss(module: nn.Module, batch: Any, label: int) -> torch.Tensor:
    """Return the mean log loss of the notes with a label."""
    notes, reports = batch
    chosen = (reports == label).float()
    return (softplus((1 - 2 * label) * module(notes)) * chosen).sum() / chosen.sum()


def false_alarms(module: nn.Module, batch: Any) -> torch.Tensor:
    """Return the loss of notes without an event, the objective."""
    return class_loss(module, batch, 0)


def missed_events(module: nn.Module, batch: Any) -> torch.Tensor:
    """Return the loss of notes with an event, the constraint."""
    return class_loss(module, batch, 1)


def main(rounds: int, hospitals: int, rows: int, pretraining: int) -> ss.Result:
    """Train the adapters and print the result."""
    torch.manual_seed(0)
    module = Transformer()
    pretrain(module, pretraining)
    add_adapters(module)
    count = sum(weight.numel() for weight in module.parameters())
    trained = sum(weight.numel() for weight in module.parameters() if weight.requires_grad)
    print(f"{trained:,} of {count:,} parameters are trained")
    clients = {f"hospital {i}": write_notes(rows, 1 + i % 4, seed=1 + i) for i in range(hospitals)}
    module.eval()
    with torch.no_grad():
        before = max(float(missed_events(module, client.tensors)) for client in clients.values())
    print(f"Loss on events before, at the worst hospital: {before:.2f}")
    result = ss.solve(
        ss.Problem(false_alarms, missed_events, module),
        ss.TorchData(clients, optimizer=torch.optim.Adam),
        ss.SoftmaxSGM(alpha=20, step_size=0.05, tolerance=BOUND),
        sampling=ss.Sampling(batch_size=64, local_steps=5),
        output=ss.Output(iterate="best"),
        rounds=rounds,
    )
    print(f"Loss on events now, at the worst hospital: {result.worst_constraint:.2f}. {result.status}")
    print(f"Clients: {result.auto_settings['clients']}; {result.auto_settings['memory of a client']}")
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rounds", 60), ("hospitals", 8), ("rows", 400), ("pretraining", 200)):
        parser.add_argument(f"--{name}", type=int, default=default)
    main(**vars(parser.parse_args()))
