"""The method that a file of settings asks for."""

from __future__ import annotations

from typing import Any

import optax

from softswitch.method import rules
from softswitch.method.rules import Rule
from softswitch.tables.kinds import default_alpha
from softswitch.tables.settings import Config

ALPHA_PER_SPREAD = 10.0
"""By default, where α is measured per spread."""


def rule_by(config: Config, clients: int) -> Rule:
    """The method with its settings; what is not given gets the defaults that the settings' comments tell."""
    method, tolerance = config.method, config.task.at_most
    optimizer = method.optimizer or ("adam" if config.model.hidden else "sgd")
    common: dict[str, Any] = {
        "step_size": {"sgd": 0.5, "adam": 0.001}[optimizer] if method.step_size is None else method.step_size,
        "tolerance": tolerance,
        "optimizer": {"sgd": optax.sgd, "adam": optax.adam}[optimizer],
    }
    if method.criterion is not None:
        common["criterion"] = method.criterion
    if method.name == "softmax":
        alpha = method.alpha
        if alpha is None:
            spread = method.alpha_scale == "spread"
            alpha = ALPHA_PER_SPREAD if spread else default_alpha(clients, tolerance)
        return rules.SoftmaxSGM(alpha=alpha, alpha_scale=method.alpha_scale, **common)
    if method.name == "penalty":
        return rules.Penalty(penalty=method.penalty, **common)
    if method.name == "primal-dual":
        return rules.PrimalDual(multiplier=method.multiplier, dual_step_size=method.dual_step_size, **common)
    return {"average": rules.AverageSGM, "hard": rules.HardSGM}[method.name](**common)
