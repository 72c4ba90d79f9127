"""The methods: each turns a round's reports into a decision. One file a method."""

from softswitch.method.messages import Decision, LocalLoss, Reports
from softswitch.method.rules.agnostic import Agnostic
from softswitch.method.rules.augmented_lagrangian import AugmentedLagrangian
from softswitch.method.rules.average_sgm import AverageSGM
from softswitch.method.rules.base import Rule
from softswitch.method.rules.exact_penalty import ExactPenalty
from softswitch.method.rules.fed_avg import FedAvg
from softswitch.method.rules.hard_sgm import HardSGM
from softswitch.method.rules.hinge_penalty import HingePenalty
from softswitch.method.rules.nu_pi import NuPI
from softswitch.method.rules.penalty import Penalty
from softswitch.method.rules.primal_dual import PrimalDual
from softswitch.method.rules.prox_al import ProxAL
from softswitch.method.rules.q_fed_avg import QFedAvg
from softswitch.method.rules.scaff_pd import ScaffPD
from softswitch.method.rules.softmax_sgm import SoftmaxSGM
from softswitch.method.rules.term import TERM

__all__ = [
    "TERM",
    "Agnostic",
    "AugmentedLagrangian",
    "AverageSGM",
    "Decision",
    "ExactPenalty",
    "FedAvg",
    "HardSGM",
    "HingePenalty",
    "LocalLoss",
    "NuPI",
    "Penalty",
    "PrimalDual",
    "ProxAL",
    "QFedAvg",
    "Reports",
    "Rule",
    "ScaffPD",
    "SoftmaxSGM",
]
