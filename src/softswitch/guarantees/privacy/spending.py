"""What clients spent, round by round and in the end."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from softswitch.clients.private.record_privacy import RecordPrivacy
from softswitch.clients.private.releases import Drawing, NoiseLevels, Releases
from softswitch.guarantees.privacy.accountant import epsilon_of
from softswitch.results.history import ClientHistory

POINTS = 12
"""ε is computed after so many different numbers of rounds at most, and taken from the next larger one between."""


def spent_by_rounds(
    privacy: RecordPrivacy, levels: NoiseLevels, drawing: Drawing, rounds: int, local_steps: int
) -> np.ndarray:
    """ε of a client that took part in 0, 1, … rounds, no judging included; between computed points an upper bound.

    Args:
        privacy: the settings.
        levels: the noise.
        drawing: how rows are drawn.
        rounds: the most.
        local_steps: E.
    """
    points = sorted({0, 1, rounds, *(math.ceil(rounds ** (i / POINTS)) for i in range(POINTS)), *_even(rounds)})
    found = [
        epsilon_of(Releases.planned(privacy, many, local_steps, 0), levels, drawing, privacy.delta) for many in points
    ]
    at = np.searchsorted(points, np.arange(rounds + 1))
    return np.maximum.accumulate(np.asarray(found))[at]


def _even(rounds: int) -> set[int]:
    return {math.ceil(rounds * i / POINTS) for i in range(1, POINTS)}


def with_spending(told: ClientHistory, curves: np.ndarray, kinds: np.ndarray) -> tuple[ClientHistory, np.ndarray]:
    """The rounds with what each participant had spent after them; and in how many rounds each client took part.

    Args:
        told: who took part in which round.
        curves: what so many rounds cost, one row a kind of client.
        kinds: of which kind each client is.
    """
    so_far = np.zeros(len(kinds), int)
    spent = np.full(told.clients.shape, np.nan)
    for k, participants in enumerate(told.clients):
        own = participants[participants >= 0]
        so_far[own] += 1
        spent[k, participants >= 0] = curves[kinds[own], so_far[own]]
    return replace(told, epsilon=spent), so_far
