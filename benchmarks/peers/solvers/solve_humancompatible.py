"""humancompatible-train: its augmented Lagrangian, the worst client's objective as the loss."""

from __future__ import annotations

import torch
from humancompatible.train.dual_optim import ALM

from models_noted import CaseFile, Trace, solve
from torch_case import SETTINGS, TorchCase, run


def method(case: CaseFile, trace: Trace) -> None:
    """A run for every setting."""
    problem = TorchCase(case)
    for primal, dual, part, problem.margin in SETTINGS:
        w = torch.zeros(case.x.shape[1], requires_grad=True)
        adam = torch.optim.Adam([w], lr=primal)
        multipliers = ALM(m=len(problem.values(w)[1]), lr=dual, penalty=1.0, is_ineq=True)

        def step(w: torch.Tensor = w, adam: torch.optim.Adam = adam, multipliers: ALM = multipliers) -> None:
            f, g = problem.values(w)
            lagrangian = multipliers.forward_update(f.max(), g)
            adam.zero_grad()
            lagrangian.backward()
            adam.step()

        run(problem, trace, f"Adam {primal:g}, multipliers {dual:g}, bound × {problem.margin:g}", part, w, adam, step)


if __name__ == "__main__":
    solve(method)
