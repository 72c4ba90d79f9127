"""What is chosen for a private run that its user left out: without a look at any row."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from softswitch.clients.private.tells_with_noise import TellsWithNoise
from softswitch.engines.choosing.choice import SMOOTHING
from softswitch.engines.choosing.completing import as_in_paper
from softswitch.engines.request import RunSettings
from softswitch.method.memory import Memory
from softswitch.method.rules import Rule, SoftmaxSGM
from softswitch.method.steps import FallingStep

ROUNDS = 100
"""More rounds mean more noise in each."""
FIRST_WAY = 2.0
"""How far a direction of clipped rows can take the parameters in the first round; steps fall to 0 from there."""
MARGIN = 0.5
"""λ is below the tolerance by so many deviations of what noise remembered reports have, at the client that has most.
It need not be more: the largest of noisy numbers is above the largest without noise on average, so that the switch is
careful already."""


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


def _left_by(memory: Memory | None) -> float:
    """What is left of the noise on reports by smoothing: the deviation of a running mean of many."""
    smoothing = 0.0 if memory is None else float(memory.smoothing)
    return math.sqrt((1 - smoothing) / (1 + smoothing))


def private_rule(rule: Rule, oracle: TellsWithNoise, settings: RunSettings) -> Rule:
    """The rule with nothing left out.

    Args:
        rule: as it was given.
        oracle: the clients.
        settings: of the run.
    """
    chosen: dict[str, Any] = {}
    if rule.threshold is None and rule.slack is None:
        deviations = oracle.report_deviations[:, 1:]
        largest = float(deviations.max(where=np.isfinite(deviations), initial=0))
        chosen["threshold"] = rule.tolerance - MARGIN * largest * _left_by(settings.memory)
    if rule.step_size is None:
        first = FIRST_WAY / float(oracle.clip_gradient)
        chosen["step_size"] = FallingStep(first=first, rounds=settings.rounds)
        if isinstance(rule, SoftmaxSGM) and rule.criterion is None:
            chosen["criterion"] = "max"
    return as_in_paper(replace(rule, **chosen), oracle.client_count)
