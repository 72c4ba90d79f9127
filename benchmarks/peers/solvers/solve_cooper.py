"""Cooper: a multiplier for every constraint, the worst client's objective as the loss."""

from __future__ import annotations

from functools import partial

import cooper
import torch

from models_noted import CaseFile, Trace, solve
from torch_case import SETTINGS, TorchCase, run


class WorstClient(cooper.ConstrainedMinimizationProblem):
    """The worst objective under all constraints."""

    def __init__(self, problem: TorchCase, constraints: int) -> None:
        super().__init__()
        self.problem = problem
        self.bounds = cooper.Constraint(
            constraint_type=cooper.ConstraintType.INEQUALITY,
            multiplier=cooper.multipliers.DenseMultiplier(num_constraints=constraints),
        )

    def compute_cmp_state(self, w: torch.Tensor) -> cooper.CMPState:
        """Loss and violations at w."""
        f, g = self.problem.values(w)
        return cooper.CMPState(loss=f.max(), observed_constraints={self.bounds: cooper.ConstraintState(violation=g)})


def method(case: CaseFile, trace: Trace) -> None:
    """A run for every setting."""
    problem = TorchCase(case)
    for primal, dual, part, problem.margin in SETTINGS:
        w = torch.zeros(case.x.shape[1], requires_grad=True)
        constraints = len(problem.values(w)[1])
        bounded = WorstClient(problem, constraints)
        adam = torch.optim.Adam([w], lr=primal)
        both = cooper.optim.AlternatingDualPrimalOptimizer(
            cmp=bounded,
            primal_optimizers=adam,
            dual_optimizers=torch.optim.SGD(bounded.dual_parameters(), lr=dual, maximize=True),
        )
        step = partial(both.roll, compute_cmp_state_kwargs={"w": w})
        run(problem, trace, f"Adam {primal:g}, multipliers {dual:g}, bound × {problem.margin:g}", part, w, adam, step)


if __name__ == "__main__":
    solve(method)
