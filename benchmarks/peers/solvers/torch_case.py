"""A case in PyTorch, and the loop that methods with multipliers share: Adam on all rows, steps that fall to nothing."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from itertools import product

import torch

from models_noted import CaseFile, Trace

PARTS = (1 / 15, 1 / 4, 1)
"""Of the time: a run of each length, since a step that falls over a long time is late at the goal."""
STEPS = ((0.05, 0.1), (0.2, 0.1), (0.2, 1.0))
"""Adam's first step, and the multipliers'; each has runs of its own, and the best counts."""
MARGINS = (0.998, 0.9997)
"""Shares of the bound that are requested: constraints oscillate around it, and only models within the bound count."""
SETTINGS = tuple((*steps, part, margin) for steps, margin, part in product(STEPS, MARGINS, PARTS))
NOTES = 300
"""Models noted in a run, at most about."""


class TorchCase:
    """Objectives and constraints as functions of w."""

    def __init__(self, case: CaseFile) -> None:
        self.margin = MARGINS[0]
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
        self.x, self.y = torch.from_numpy(case.x).float(), torch.from_numpy(case.y).float()
        self.case = case
        self._objectives, self._constraints = (
            (torch.from_numpy(mean).long(), torch.from_numpy(row).long(), torch.from_numpy(weight).float())
            for mean, row, weight in (case.objectives, case.constraints)
        )

    def values(self, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """All f_i, and all g_j less their bound."""
        score = self.x @ w
        loss = torch.nn.functional.softplus(score) - self.y * score
        f = _means(self._objectives, loss)
        g = _means(self._constraints, loss if self.case.of_loss else torch.sigmoid(score))
        g = torch.cat([g, -g]) if self.case.both_sides else g
        return f, g - self.margin * self.case.tolerance


def _means(shares: tuple[torch.Tensor, ...], values: torch.Tensor) -> torch.Tensor:
    mean, row, weight = shares
    return torch.zeros(int(mean.max()) + 1).index_add(0, mean, weight * values[row])


def run(
    problem: TorchCase,
    trace: Trace,
    setting: str,
    part: float,
    w: torch.Tensor,
    optimizer: torch.optim.Optimizer,
    step: Callable[[], None],
) -> None:
    """Steps until this part of the time is over; Adam's step falls by a cosine over that time."""
    seconds = part * problem.case.seconds
    trace.begin(f"{setting}, {seconds:.2g} s")
    (group,) = optimizer.param_groups
    first, noted = group["lr"], 0.0
    while (now := trace.seconds) < seconds:
        group["lr"] = first * 0.5 * (1 + math.cos(math.pi * now / seconds))
        step()
        if trace.seconds - noted >= seconds / NOTES:
            trace.note(lambda: w.detach().numpy().copy())
            noted = trace.seconds
    trace.note(lambda: w.detach().numpy().copy())
