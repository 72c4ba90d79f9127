"""A method of the leaderboard: its rule, what of it is tuned, and what it sends."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import optax
from scipy.stats import qmc

from softswitch.methods.base import Method
from softswitch.methods.schedules import FallingStep

Settings = Mapping[str, Any]
OPTIMIZERS = {"sgd": optax.sgd, "adam": optax.adam}
USUAL = {"sgd": 0.1, "adam": 0.02}
"""Every method's server takes plain steps or Adam's, falling to 0 over the run by a cosine from a multiple of this."""


@dataclass(frozen=True)
class Between:
    """A number between two others, drawn by its logarithm."""

    low: float
    high: float

    def at(self, place: float) -> float:
        """The number at a place in [0, 1)."""
        return float(self.low * (self.high / self.low) ** place)


@dataclass(frozen=True)
class OneOf:
    """One of several."""

    choices: tuple[Any, ...]

    def at(self, place: float) -> Any:
        """The one at a place in [0, 1)."""
        return self.choices[int(place * len(self.choices))]


STEP: dict[str, Between | OneOf] = {"optimizer": OneOf(tuple(OPTIMIZERS)), "step": Between(0.0625, 16.0)}
"""What every method tunes: the optimiser, and the step in units of the usual one."""


@dataclass(frozen=True)
class BenchMethod:
    """A method to be compared. One of your own goes into a list, as those in ``contestants.py`` do.

    Attributes:
        name: for tables and files.
        source: where it is from.
        rule: makes the rule of settings, the tolerance, a step size and an optimiser.
        space: what is tuned beside the step.
        tuned: whether anything is; the library's default is not.
        sends: how many vectors as long as the parameters a client sends in a round,
        receives: and how many it is sent.
        remembers: whether the server remembers its clients' reports where some do not take part,
        corrects: and whether it corrects what it remembers by its steps, where batches are noisy.
        simulators: whether it can be played with simulated clients.
    """

    name: str
    source: str
    rule: Callable[[Settings, dict[str, Any]], Method]
    space: Mapping[str, Between | OneOf] = field(default_factory=dict)
    tuned: bool = True
    sends: float = 1.0
    receives: float = 1.0
    remembers: bool = False
    corrects: bool = False
    simulators: bool = True

    def points(self, many: int) -> list[dict[str, Any]]:
        """So many settings, spread evenly over the space; the same for all methods that have the same one."""
        if not self.tuned:
            return [{}]
        space = {**STEP, **self.space}
        draws = qmc.Halton(len(space), seed=np.random.default_rng(zlib.crc32(repr(space).encode()))).random(many)
        return [{name: axis.at(place) for (name, axis), place in zip(space.items(), row, strict=True)} for row in draws]

    def made(self, settings: Settings, tolerance: float, rounds: int) -> Method:
        """The rule with these settings, for so many rounds."""
        common: dict[str, Any] = {"tolerance": tolerance}
        if self.tuned:
            kind = settings["optimizer"]
            common["optimizer"] = OPTIMIZERS[kind]
            common["step_size"] = FallingStep(first=USUAL[kind] * settings["step"], rounds=rounds)
        return self.rule(settings, common)
