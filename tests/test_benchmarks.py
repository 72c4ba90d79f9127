"""What the benchmarks compare is the same algorithm."""

import numpy as np
import torch
from benchmarks.neyman_pearson import torch_clients
from benchmarks.torch_loop import Setting, federated, lean

from softswitch import evaluate
from softswitch.tasks.neyman_pearson import breast_cancer


def test_both_loops_compute_the_same():
    clients = torch_clients(breast_cancer(20).train)
    for setting in (Setting(30, 1, 20, alpha=50.0), Setting(30, 3, 10, alpha=50.0)):
        np.testing.assert_allclose(lean(clients, setting), federated(clients, setting), rtol=1e-3, atol=1e-4)


def test_the_loop_reaches_what_solve_reaches():
    """The full loop on breast cancer ends feasible at every client, as solve does."""
    task = breast_cancer(20)
    found = lean(torch_clients(task.train), Setting(400, 1, 20))
    objective, constraint = evaluate(task.problem, task.train, found.numpy())
    assert constraint.max() <= 0.1
    assert objective.max() < 0.6
    assert torch.isfinite(found).all()
