"""What is chosen for a private run that its user left out: without a look at any row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from softswitch.clients.private.private_oracle import PrivateOracle
from softswitch.engines.choice import size_of
from softswitch.engines.completing import as_in_paper
from softswitch.engines.request import RunSettings
from softswitch.method.memory import Memory
from softswitch.method.rules import Rule, SoftmaxSGM
from softswitch.method.steps import FallingStep, NormalizedAdam
from softswitch.problem.problem import Problem

ROUNDS = 100
"""More rounds mean more noise in each."""
SMOOTHING = 0.8
"""Of remembered reports: what is made of what was told costs nothing."""
FIRST_STEP = 0.3
MARGIN = 1.0
"""λ is below the tolerance by so many deviations of the noise on the client that has most."""


def private_settings(told: Mapping[str, Any]) -> RunSettings:
    """The settings of a run with nothing left out.

    Args:
        told: as far as they are told.
    """
    answer = "average" if told["answer"] == "auto" else told["answer"]
    memory = Memory(smoothing=SMOOTHING) if isinstance(told["memory"], str) else told["memory"]
    return RunSettings(
        rounds=ROUNDS if told["rounds"] is None else told["rounds"],
        average_last=0.5 if told["average_last"] is None else told["average_last"],
        answer=answer,
        eval_every=0,
        record_clients=True,
        memory=memory,
    )


def private_rule(rule: Rule, problem: Problem, oracle: PrivateOracle, settings: RunSettings) -> Rule:
    """The rule with nothing left out.

    Args:
        rule: as it was given.
        problem: what to solve.
        oracle: the clients.
        settings: of the run.
    """
    chosen: dict[str, Any] = {}
    if rule.threshold is None and rule.slack is None:
        deviations = oracle.report_deviations[:, 1:]
        chosen["threshold"] = rule.tolerance - MARGIN * float(deviations.max(where=np.isfinite(deviations), initial=0))
    if rule.step_size is None:
        chosen["step_size"] = FallingStep(first=FIRST_STEP, rounds=settings.rounds)
        if rule.optimizer is None:
            chosen["optimizer"] = NormalizedAdam()
        if isinstance(rule, SoftmaxSGM) and rule.criterion is None:
            chosen["criterion"] = "max"
    return as_in_paper(replace(rule, **chosen), oracle.client_count)
