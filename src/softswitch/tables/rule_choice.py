"""The method that a file of settings asks for; what is "auto" there is left out, for ``solve`` to fill in."""

from __future__ import annotations

from typing import Any

import optax

from softswitch.engines.choosing.choice import SHARPNESS
from softswitch.method import rules
from softswitch.method.memory import Memory
from softswitch.method.rules import Rule
from softswitch.tables.settings import AUTO, Config, MethodSection, given

ALPHA_BY_SCALE = {"spread": 10.0, "change": SHARPNESS}
"""α where only its scale is given. In raw values no number fits all tasks."""
OPTIMIZERS = {AUTO: None, "sgd": optax.sgd, "adam": optax.adam}


def rule_by(config: Config) -> Rule:
    """The method with those settings that are given."""
    method = config.method
    common: dict[str, Any] = {
        "tolerance": config.task.at_most,
        "optimizer": OPTIMIZERS[method.optimizer],
        "robust": method.robust,
        **{
            name: given(getattr(method, name))
            for name in ("step_size", "criterion", "slack", "threshold", "local_step_size")
        },
    }
    if method.name == "softmax":
        alpha = given(method.alpha, ALPHA_BY_SCALE.get(method.alpha_scale))
        return rules.SoftmaxSGM(alpha=alpha, alpha_scale=given(method.alpha_scale, "raw"), **common)
    if method.name == "penalty":
        return rules.Penalty(penalty=method.penalty, **common)
    if method.name == "primal-dual":
        return rules.PrimalDual(multiplier=method.multiplier, dual_step_size=method.dual_step_size, **common)
    return {"average": rules.AverageSGM, "hard": rules.HardSGM}[method.name](**common)


def memory_by(method: MethodSection) -> Memory | str | None:
    """The server's memory, as ``solve`` takes it."""
    if isinstance(method.memory, str):
        known: dict[str, Memory | str | None] = {
            AUTO: AUTO,
            "on": Memory(),
            "off": None,
            "corrected": Memory(corrected=True),
        }
        return known[method.memory]
    return Memory(smoothing=method.memory)
