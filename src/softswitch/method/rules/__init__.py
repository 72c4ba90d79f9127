"""The methods: each turns a round's reports into a decision. One file a method."""

from softswitch.method.messages import Decision, LocalLoss, Reports
from softswitch.method.rules.average_sgm import AverageSGM
from softswitch.method.rules.base import Rule
from softswitch.method.rules.hard_sgm import HardSGM
from softswitch.method.rules.penalty import Penalty
from softswitch.method.rules.primal_dual import PrimalDual
from softswitch.method.rules.softmax_sgm import SoftmaxSGM

__all__ = [
    "AverageSGM",
    "Decision",
    "HardSGM",
    "LocalLoss",
    "Penalty",
    "PrimalDual",
    "Reports",
    "Rule",
    "SoftmaxSGM",
]
