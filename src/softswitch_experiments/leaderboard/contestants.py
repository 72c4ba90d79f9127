"""The methods of the leaderboard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from softswitch.methods.agnostic import Agnostic
from softswitch.methods.augmented_lagrangian import AugmentedLagrangian
from softswitch.methods.average_sgm import AverageSGM
from softswitch.methods.base import Method
from softswitch.methods.client_state import Consensus
from softswitch.methods.directions import Optimistic, Spider
from softswitch.methods.exact_penalty import ExactPenalty
from softswitch.methods.fed_avg import FedAvg
from softswitch.methods.hard_sgm import HardSGM
from softswitch.methods.hinge_penalty import HingePenalty
from softswitch.methods.nu_pi import NuPI
from softswitch.methods.penalty import Penalty
from softswitch.methods.primal_dual import PrimalDual
from softswitch.methods.prox_al import ProxAL
from softswitch.methods.proximal import Proximal
from softswitch.methods.q_fed_avg import QFedAvg
from softswitch.methods.scaff_pd import ScaffPD
from softswitch.methods.softmax_sgm import SoftmaxSGM
from softswitch.methods.term import TERM
from softswitch_experiments.leaderboard.bench_method import BenchMethod, Between, OneOf, Settings

DEFAULT = "softswitch, default"
SHARP = Between(1.0, 3000.0)
"""α of a softmax, per unit of f and g."""
LEAN: dict[str, Any] = {"alpha": OneOf((None, 3.0, 30.0, 300.0))}
"""Published methods minimise the clients' mean; they may also aim at the worst client, by a softmax."""
PRICE = Between(0.3, 100.0)
DUAL = Between(1e-3, 10.0)


def _switching(**more: Callable[[Settings], Any]) -> Callable[[Settings, dict[str, Any]], Method]:
    """SoftmaxSGM with α as it was tuned, and an extension."""

    def rule(settings: Settings, common: dict[str, Any]) -> Method:
        extension = {name: make(settings) for name, make in more.items()}
        return SoftmaxSGM(alpha=settings["alpha"], **extension, **common)

    return rule


_optimistic = _switching(direction=lambda settings: Optimistic(carry=settings["carry"]))
CARRIED: dict[str, Any] = {"alpha": SHARP, "carry": OneOf((0.5, 1.0))}
"""What an optimistic direction is tuned by."""


def _proximal(settings: Settings, common: dict[str, Any]) -> Method:
    rounds = max(1, common["step_size"].rounds // settings["stages"])
    about = Proximal(strength=settings["strength"], rounds=rounds)
    return SoftmaxSGM(alpha=settings["alpha"], proximal=about, **common)


def _primal_dual(settings: Settings, common: dict[str, Any]) -> Method:
    return PrimalDual(multiplier=1.0, dual_step_size=settings["dual"], **common)


METHODS: tuple[BenchMethod, ...] = (
    BenchMethod(
        DEFAULT,
        "this library: SoftmaxSGM with nothing set but the tolerance",
        lambda settings, common: SoftmaxSGM(**common),
        tuned=False,
        corrects=True,
    ),
    BenchMethod("softmax SGM", "the paper's method", _switching(), {"alpha": SHARP}),
    BenchMethod("softmax SGM, remembering", "with a server's memory", _switching(), {"alpha": SHARP}, remembers=True),
    BenchMethod(
        "softmax SGM, corrected",
        "with a memory that is corrected",
        _switching(),
        {"alpha": SHARP},
        corrects=True,
    ),
    BenchMethod(
        "softmax SGM, corrected, optimistic",
        "both",
        _optimistic,
        CARRIED,
        corrects=True,
    ),
    BenchMethod(
        "softmax SGM, optimistic",
        "arXiv 2505.09146",
        _optimistic,
        CARRIED,
    ),
    BenchMethod(
        "softmax SGM, proximal",
        "about a proximal centre, arXiv 1908.02734",
        _proximal,
        {"alpha": SHARP, "strength": Between(0.01, 10.0), "stages": OneOf((3, 10, 30))},
    ),
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
        {"price": PRICE},
    ),
    BenchMethod("primal–dual", "one multiplier on the clients' mean", _primal_dual, {"dual": DUAL}),
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
        {"dual": DUAL, "proportional": OneOf((0.0, 1.0, 10.0)), **LEAN},
    ),
    BenchMethod(
        "augmented Lagrangian",
        "arXiv 2507.04033",
        lambda settings, common: AugmentedLagrangian(
            penalty=settings["price"], dual_step_size=settings["dual"], alpha=settings["alpha"], **common
        ),
        {"price": Between(0.1, 30.0), "dual": DUAL, **LEAN},
    ),
    BenchMethod(
        "exact penalty, SPIDER",
        "arXiv 2501.19214",
        lambda settings, common: ExactPenalty(
            penalty=settings["price"], alpha=settings["alpha"], direction=Spider(), **common
        ),
        {"price": PRICE, **LEAN},
        sends=2.0,
        simulators=False,
    ),
    BenchMethod(
        "hinge penalty, running estimate",
        "arXiv 2504.15243",
        lambda settings, common: HingePenalty(
            penalty=settings["price"], share=settings["share"], alpha=settings["alpha"], **common
        ),
        {"price": PRICE, "share": OneOf((0.1, 0.3)), **LEAN},
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
