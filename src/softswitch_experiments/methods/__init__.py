"""Published methods that the leaderboard compares with, and states that their clients keep."""

from softswitch_experiments.methods.client_state import Consensus, ControlVariates
from softswitch_experiments.methods.multipliers import AugmentedLagrangian, NuPI, ProxAL
from softswitch_experiments.methods.penalties import ExactPenalty, HingePenalty
from softswitch_experiments.methods.unconstrained import TERM, Agnostic, QFedAvg, ScaffPD

__all__ = [
    "TERM",
    "Agnostic",
    "AugmentedLagrangian",
    "Consensus",
    "ControlVariates",
    "ExactPenalty",
    "HingePenalty",
    "NuPI",
    "ProxAL",
    "QFedAvg",
    "ScaffPD",
]
