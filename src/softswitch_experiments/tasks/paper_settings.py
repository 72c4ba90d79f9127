"""The settings of the paper, independent of the defaults of the library.

A method takes its own numbers, ``steps``, and one of the two dicts. A run takes ``RUN``, rounds and a batch size:

    SoftmaxSGM(alpha=6400.0, tolerance=0.1, **steps(0.5), **SOFTMAX_SWITCH)
"""

from __future__ import annotations

from typing import Any

import optax

MEAN_SWITCH: dict[str, Any] = {"criterion": "mean", "slack": 10.0, "optimizer": optax.sgd}
"""For Average SGM and the baselines: λ = ε/1.1 on the mean over clients, and plain gradient steps."""
SOFTMAX_SWITCH: dict[str, Any] = MEAN_SWITCH | {"criterion": "softmax", "alpha_scale": "raw"}
"""For Softmax SGM: the same on the softmax mean, α per unit of f and g."""
ANSWER: dict[str, Any] = {"average_last": 1.0, "answer": "average", "memory": None}
"""The answer is w̄, the average of all feasible iterates. The server has no client memory."""
RUN: dict[str, Any] = ANSWER | {"local_steps": 1, "participation": 1.0, "value_batch_size": "same", "replace": True}
"""All clients in every round, one local step, and the same batch size for reports and gradients, with replacement."""


def steps(size: Any) -> dict[str, Any]:
    """Return the server's η and the clients' γ, which are equal in the paper: a number, or a schedule."""
    return {"step_size": size, "local_step_size": size}
