"""humancompatible-train's dual optimisers with plain gradient steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from humancompatible.train.dual_optim import ALM, SSG, nuPI

from case_file import LEVEL, OFFSET, CaseFile, answer

torch.set_default_dtype(torch.float64)


def values(case: CaseFile) -> Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """Every client's objective, and all constraints in a row, ε taken off."""
    clients = [{name: torch.tensor(column) for name, column in rows.items()} for rows in case.clients]

    def both(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        f = [0.5 * ((rows["a"] @ w - rows["b"]) ** 2).mean() for rows in clients]
        g = [
            part
            for rows in clients
            for part in (torch.nn.functional.softplus(rows["c"] @ w).mean() - LEVEL, (rows["h"] @ w).mean() - OFFSET)
        ]
        return torch.stack(f), torch.stack(g) - case.tolerance

    return both


def stepped(
    case: CaseFile, dual: Any, worst: bool = False, after: Callable[[int], None] | None = None
) -> list[np.ndarray]:
    """Surrogate, its gradient, then the multipliers: both sides move by what w_k says."""
    w = torch.zeros(case.parameters, requires_grad=True)
    descent, both = torch.optim.SGD([w], lr=case.step), values(case)
    iterates = [w.detach().numpy().copy()]
    for k in range(case.rounds):
        f, g = both(w)
        descent.zero_grad()
        dual.forward(f.max() if worst else f.mean(), g).backward()
        dual.update(g.detach())
        if after is not None:
            after(k)
        descent.step()
        iterates.append(w.detach().numpy().copy())
    return iterates


def pairs(case: CaseFile) -> int:
    """Two constraints a client."""
    return 2 * len(case.clients)


def switching(case: CaseFile) -> list[np.ndarray]:
    """The worst client's objective, or the largest constraint where it is above λ."""
    dual = SSG(pairs(case), constraint_tol=case.numbers["threshold"] - case.tolerance)
    return stepped(case, dual, worst=True)


def augmented(case: CaseFile) -> list[np.ndarray]:
    """The Hestenes–Powell–Rockafellar form, which is its default."""
    own, many = case.numbers, pairs(case)
    first = torch.full((many,), own["multiplier"])
    return stepped(case, ALM(many, lr=own["dual"], init_duals=first, penalty=own["penalty"], is_ineq=True))


def controlled(case: CaseFile) -> nuPI:
    """νPI."""
    own = case.numbers
    return nuPI(pairs(case), nu=own["smoothing"], ki=own["integral"], kp=own["proportional"], is_ineq=True)


def nu_pi(case: CaseFile) -> list[np.ndarray]:
    """As it is."""
    return stepped(case, controlled(case))


def nu_pi_from_zero(case: CaseFile) -> list[np.ndarray]:
    """Its running mean set back to 0 after the first step."""
    dual = controlled(case)

    def back(k: int) -> None:
        if k == 0:
            dual.param_groups[0]["momentum_buffer"].zero_()

    return stepped(case, dual, after=back)


if __name__ == "__main__":
    answer({"switching": switching, "augmented": augmented, "nu_pi": nu_pi, "nu_pi_from_zero": nu_pi_from_zero})
