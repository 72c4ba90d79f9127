"""evaluate(): parameters at every client, wherever its rows lie."""

from __future__ import annotations

import numpy as np

from softswitch.clients import evaluation
from softswitch.clients.client_data import ClientData
from softswitch.clients.losses import Losses
from softswitch.clients.streamed.block_values import BlockValues
from softswitch.clients.streamed.outline import Outline
from softswitch.clients.streamed.streamed_data import StreamedData
from softswitch.problem.parameters import Params, checked_params, float_dtype
from softswitch.problem.problem import Problem
from softswitch.support import checks


def evaluate(problem: Problem, clients: ClientData | StreamedData, params: Params) -> tuple[np.ndarray, np.ndarray]:
    """f_i and g_i of every client on all of its rows: one entry a client, and clients × constraints.

    For held-out data as well: make a ``ClientData`` of it, or ``StreamedData``.

    Args:
        problem: whose objective and constraint.
        clients: on whose data; all rows of it, or of ``StreamedData`` those that it looks at.
        params: parameters, any tree of floating arrays.
    """
    if not isinstance(clients, StreamedData):
        return evaluation.evaluate(problem, clients, params)
    checks.expect("problem", problem, Problem)
    params = checked_params("params", params)
    traced = problem.trace(Outline(clients).batch_shapes(int(clients.sizes.max()), float_dtype(params)), params)
    found = BlockValues(clients, Losses.of(problem), traced.ignore_weight, params).judged(params)
    return found.objective, found.constraint
