"""Methods of the leaderboard: how each is built, what is tuned, and what it sends."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import optax
from scipy.stats import qmc

from softswitch.methods.automatic import Automatic
from softswitch.methods.base import Method
from softswitch.methods.client_state import Consensus
from softswitch.methods.directions import Optimistic
from softswitch.methods.multipliers import AugmentedLagrangian, NuPI, PrimalDual, ProxAL
from softswitch.methods.penalties import HingePenalty, Penalty
from softswitch.methods.schedules import FallingStep
from softswitch.methods.softmax_sgm import AverageSGM, HardSGM, SoftmaxSGM
from softswitch.methods.unconstrained import TERM, Agnostic, FedAvg, QFedAvg, ScaffPD

Settings = Mapping[str, Any]
OPTIMIZERS = {"sgd": optax.sgd, "adam": optax.adam}
BASE_STEPS = {"sgd": 0.1, "adam": 0.02}
"""Unit of the tuned step size. The step decays to 0 over the run by a cosine."""


@dataclass(frozen=True)
class Between:
    """A number between two bounds, uniform in its logarithm."""

    low: float
    high: float

    def at(self, position: float) -> float:
        """Return the number at a position in [0, 1)."""
        return float(self.low * (self.high / self.low) ** position)


@dataclass(frozen=True)
class OneOf:
    """One of several values."""

    choices: tuple[Any, ...]

    def at(self, position: float) -> Any:
        """Return the value at a position in [0, 1)."""
        return self.choices[int(position * len(self.choices))]


STEP: dict[str, Between | OneOf] = {"optimizer": OneOf(tuple(OPTIMIZERS)), "step": Between(0.0625, 16.0)}
"""Settings that every method tunes: the server's optimizer and its step size in units of ``BASE_STEPS``."""


@dataclass(frozen=True)
class BenchMethod:
    """A method of the leaderboard.

    Attributes:
        name: Name in tables and files.
        source: Reference to the publication.
        build: Function that returns the method for its settings and the common arguments (tolerance, step size and
            optimizer).
        space: Settings that are tuned in addition to the step.
        tuned: Whether anything is tuned.
        sends: Vectors of the length of the parameters that a client sends per round.
        receives: Vectors of that length that a client receives per round.
        remembers: Whether the server remembers the reports of absent clients.
        corrects: Whether the server also applies drift correction to noisy reports.
        simulators: Whether the method works with simulated clients.
    """

    name: str
    source: str
    build: Callable[[Settings, dict[str, Any]], Method | Automatic]
    space: Mapping[str, Between | OneOf] = field(default_factory=dict)
    tuned: bool = True
    sends: float = 1.0
    receives: float = 1.0
    remembers: bool = False
    corrects: bool = False
    simulators: bool = True

    def draw_settings(self, count: int) -> list[dict[str, Any]]:
        """Return settings that cover the space evenly. Methods with equal spaces get equal settings."""
        if not self.tuned:
            return [{}]
        space = {**STEP, **self.space}
        draws = qmc.Halton(len(space), seed=np.random.default_rng(zlib.crc32(repr(space).encode()))).random(count)
        return [
            {name: axis.at(position) for (name, axis), position in zip(space.items(), row, strict=True)}
            for row in draws
        ]

    def make(self, settings: Settings, tolerance: float, rounds: int) -> Method | Automatic:
        """Return the method with these settings for a run of this many rounds."""
        common: dict[str, Any] = {"tolerance": tolerance}
        if self.tuned:
            optimizer = settings["optimizer"]
            common["optimizer"] = OPTIMIZERS[optimizer]
            common["step_size"] = FallingStep(first=BASE_STEPS[optimizer] * settings["step"], rounds=rounds)
        return self.build(settings, common)


DEFAULT = "softswitch, default"
ALPHA = Between(1.0, 3000.0)
"""α of the softmax, per unit of f and g."""
SOFTMAX: dict[str, Any] = {"alpha": OneOf((None, 3.0, 30.0, 300.0))}
"""Methods published for the mean over clients may also weight clients by a softmax."""
PENALTY = Between(0.3, 100.0)
DUAL_STEP = Between(1e-3, 10.0)


def _softmax_sgm(**extensions: Callable[[Settings], Any]) -> Callable[[Settings, dict[str, Any]], Method]:
    """Return a builder of SoftmaxSGM with the tuned α and the given extensions."""

    def build(settings: Settings, common: dict[str, Any]) -> Method:
        parts = {name: make(settings) for name, make in extensions.items()}
        return SoftmaxSGM(alpha=settings["alpha"], **parts, **common)

    return build


_optimistic = _softmax_sgm(direction=lambda settings: Optimistic(carry=settings["carry"]))
OPTIMISTIC: dict[str, Any] = {"alpha": ALPHA, "carry": OneOf((0.5, 1.0))}


def _primal_dual(settings: Settings, common: dict[str, Any]) -> Method:
    return PrimalDual(multiplier=1.0, dual_step_size=settings["dual"], **common)


METHODS: tuple[BenchMethod, ...] = (
    BenchMethod(
        DEFAULT,
        "this library: SoftmaxSGM with nothing set but the tolerance",
        lambda settings, common: Automatic(**common),
        tuned=False,
        corrects=True,
    ),
    BenchMethod("softmax SGM", "the paper's method", _softmax_sgm(), {"alpha": ALPHA}),
    BenchMethod("softmax SGM, remembering", "with a server's memory", _softmax_sgm(), {"alpha": ALPHA}, remembers=True),
    BenchMethod(
        "softmax SGM, corrected", "with a memory that is corrected", _softmax_sgm(), {"alpha": ALPHA}, corrects=True
    ),
    BenchMethod("softmax SGM, corrected, optimistic", "both", _optimistic, OPTIMISTIC, corrects=True),
    BenchMethod("softmax SGM, optimistic", "arXiv 2505.09146", _optimistic, OPTIMISTIC),
    BenchMethod("hard SGM", "α → ∞", lambda settings, common: HardSGM(**common)),
    BenchMethod("FedSGM", "arXiv 2601.16897", lambda settings, common: AverageSGM(**common)),
    BenchMethod(
        "FedSGM, soft switch",
        "arXiv 2601.16897",
        lambda settings, common: AverageSGM(soft=settings["soft"], **common),
        {"soft": Between(1.0, 100.0)},
    ),
    BenchMethod(
        "penalty",
        "f + ρ max(0, g − ε), clients averaged",
        lambda settings, common: Penalty(penalty=settings["price"], **common),
        {"price": PENALTY},
    ),
    BenchMethod("primal–dual", "one multiplier on the clients' mean", _primal_dual, {"dual": DUAL_STEP}),
    BenchMethod(
        "νPI multipliers",
        "arXiv 2406.04558",
        lambda settings, common: NuPI(
            integral=settings["dual"],
            proportional=settings["proportional"] * settings["dual"],
            smoothing=0.5,
            alpha=settings["alpha"],
            **common,
        ),
        {"dual": DUAL_STEP, "proportional": OneOf((0.0, 1.0, 10.0)), **SOFTMAX},
    ),
    BenchMethod(
        "augmented Lagrangian",
        "arXiv 2507.04033",
        lambda settings, common: AugmentedLagrangian(
            penalty=settings["price"], dual_step_size=settings["dual"], alpha=settings["alpha"], **common
        ),
        {"price": Between(0.1, 30.0), "dual": DUAL_STEP, **SOFTMAX},
    ),
    BenchMethod(
        "hinge penalty, running estimate",
        "arXiv 2504.15243",
        lambda settings, common: HingePenalty(
            penalty=settings["price"], share=settings["share"], alpha=settings["alpha"], **common
        ),
        {"price": PENALTY, "share": OneOf((0.1, 0.3)), **SOFTMAX},
        simulators=False,
    ),
    BenchMethod(
        "federated proximal AL",
        "arXiv 2310.10117",
        lambda settings, common: ProxAL(
            penalty=settings["price"], at_clients=Consensus(pull=settings["pull"]), **common
        ),
        {"price": Between(0.1, 30.0), "pull": Between(0.1, 10.0)},
        simulators=False,
    ),
    BenchMethod("FedAvg", "arXiv 1602.05629", lambda settings, common: FedAvg(**common)),
    BenchMethod(
        "TERM",
        "arXiv 2007.01162",
        lambda settings, common: TERM(tilt=settings["tilt"], **common),
        {"tilt": Between(0.1, 100.0)},
    ),
    BenchMethod(
        "q-FedAvg",
        "arXiv 1905.10497",
        lambda settings, common: QFedAvg(power=settings["power"], **common),
        {"power": Between(0.1, 10.0)},
    ),
    BenchMethod(
        "AFL",
        "arXiv 1902.00146",
        lambda settings, common: Agnostic(dual_step_size=settings["dual"], **common),
        {"dual": Between(1e-4, 1.0)},
    ),
    BenchMethod(
        "DRFA",
        "arXiv 2102.12660",
        lambda settings, common: Agnostic(dual_step_size=settings["dual"], draws=True, **common),
        {"dual": Between(1e-4, 1.0)},
        sends=1.0,
        receives=2.0,
        simulators=False,
    ),
    BenchMethod(
        "Scaff-PD",
        "openreview mxJEX6w5uN",
        lambda settings, common: ScaffPD(dual_step_size=settings["dual"], **common),
        {"dual": Between(1e-4, 1.0)},
        receives=2.0,
        simulators=False,
    ),
)
