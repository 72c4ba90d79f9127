"""Intervals of PyTorch modules."""

import numpy as np
import torch
from torch.utils.data import TensorDataset

from softswitch.certification.intervals import ErrorLevels, intervals_from_function
from softswitch.certification.torch import module_intervals
from softswitch.oracles.torch_functions import ModuleFunctions, TorchRows, parameters


def test_intervals_are_those_of_the_given_parameters():
    """The objective is the same on all rows, so other parameters are tried; the constraint is not a mean over rows."""
    torch.manual_seed(0)
    module = torch.nn.Linear(2, 1)

    def constant(module, batch):
        return (0.0 * module(batch[0])).mean() + 1.0

    def largest(module, batch):
        return module(batch[0]).max()

    functions = ModuleFunctions(module, constant, largest)
    rows = TorchRows("held_out", TensorDataset(torch.randn(40, 2)), torch.device("cpu"))
    levels, ranges, params = ErrorLevels(0.05, 0.05, 0.5), [None, None], parameters(module)
    found = module_intervals(functions, params, rows, levels, ranges)
    functions.load(params)
    expected = intervals_from_function(lambda _, at: functions.values(rows.take(at)), params, len(rows), levels, ranges)
    for one, other in zip(found[1:], expected[1:], strict=True):
        np.testing.assert_allclose(one.deviation, other.deviation, rtol=1e-6)
        np.testing.assert_allclose(one.estimate, other.estimate, rtol=1e-6)
