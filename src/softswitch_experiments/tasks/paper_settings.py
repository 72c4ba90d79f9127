"""The paper's settings by their names, so that its figures stay the same whatever the library does by default.

A rule is made of its own numbers, ``steps``, and one of the two dicts; a run of ``RUN``, rounds and a batch size:

    SoftmaxSGM(alpha=6400.0, tolerance=0.1, **steps(0.5), **SOFTMAX_SWITCH)
"""

from __future__ import annotations

from typing import Any

import optax

MEAN_SWITCH: dict[str, Any] = {"criterion": "mean", "slack": 10.0, "optimizer": optax.sgd}
"""For Average SGM and the baselines: λ = ε/1.1 on the clients' mean, plain gradient steps."""
SOFTMAX_SWITCH: dict[str, Any] = MEAN_SWITCH | {"criterion": "softmax", "alpha_scale": "raw"}
"""For Softmax SGM: the same on the softmax mean, α per unit of f and g."""
ANSWER: dict[str, Any] = {"average_last": 1.0, "answer": "average", "memory": None}
"""The answer is w̄, the average of all feasible iterates, and the server remembers no client."""
RUN: dict[str, Any] = ANSWER | {
    "local_steps": 1,
    "participation": 1.0,
    "value_batch_size": "same",
    "replace": True,
}
"""Of clients that hold rows: every client in every round with one local step; as many rows for a report as for a
gradient, drawn with replacement."""


def steps(size: Any) -> dict[str, Any]:
    """The server's η and the clients' γ, which are the same in the paper: a number, or a schedule of the round."""
    return {"step_size": size, "local_step_size": size}
