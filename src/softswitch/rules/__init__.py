"""The methods: each turns a round's reports into a decision. One file a method."""

from softswitch.reports import Decision, LocalLoss, Reports
from softswitch.rules.average_sgm import AverageSGM
from softswitch.rules.base import CRITERIA, Rule
from softswitch.rules.hard_sgm import HardSGM
from softswitch.rules.penalty import Penalty
from softswitch.rules.primal_dual import PrimalDual
from softswitch.rules.softmax_sgm import SoftmaxSGM

__all__ = [
    "CRITERIA",
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
