"""The methods, and what a rule reads and answers. Each has a file of its own in ``softswitch.method.rules``."""

from typing import TYPE_CHECKING

from softswitch.support.lazy import on_first_use

if TYPE_CHECKING:
    from softswitch.method.at_clients import AtClients as AtClients
    from softswitch.method.at_clients import Compression as Compression
    from softswitch.method.at_clients import Consensus as Consensus
    from softswitch.method.at_clients import ControlVariates as ControlVariates
    from softswitch.method.at_clients import RoundAtClients as RoundAtClients
    from softswitch.method.compressors import Compressor as Compressor
    from softswitch.method.compressors import Quantised as Quantised
    from softswitch.method.compressors import TopK as TopK
    from softswitch.method.directions import Direction as Direction
    from softswitch.method.directions import Optimistic as Optimistic
    from softswitch.method.directions import Spider as Spider
    from softswitch.method.proximal import Proximal as Proximal
    from softswitch.method.rules import TERM as TERM
    from softswitch.method.rules import Agnostic as Agnostic
    from softswitch.method.rules import AugmentedLagrangian as AugmentedLagrangian
    from softswitch.method.rules import AverageSGM as AverageSGM
    from softswitch.method.rules import Decision as Decision
    from softswitch.method.rules import ExactPenalty as ExactPenalty
    from softswitch.method.rules import FedAvg as FedAvg
    from softswitch.method.rules import HardSGM as HardSGM
    from softswitch.method.rules import HingePenalty as HingePenalty
    from softswitch.method.rules import LocalLoss as LocalLoss
    from softswitch.method.rules import NuPI as NuPI
    from softswitch.method.rules import Penalty as Penalty
    from softswitch.method.rules import PrimalDual as PrimalDual
    from softswitch.method.rules import ProxAL as ProxAL
    from softswitch.method.rules import QFedAvg as QFedAvg
    from softswitch.method.rules import Reports as Reports
    from softswitch.method.rules import Rule as Rule
    from softswitch.method.rules import ScaffPD as ScaffPD
    from softswitch.method.rules import SoftmaxSGM as SoftmaxSGM
    from softswitch.method.rules.switching import switch as switch
    from softswitch.method.steps import FallingStep as FallingStep
    from softswitch.method.steps import NormalizedAdam as NormalizedAdam
    from softswitch.problem.words import CRITERIA as CRITERIA

_PLACES = {
    "Agnostic": "method.rules",
    "AtClients": "method.at_clients",
    "AugmentedLagrangian": "method.rules",
    "AverageSGM": "method.rules",
    "CRITERIA": "problem.words",
    "Compression": "method.at_clients",
    "Compressor": "method.compressors",
    "Consensus": "method.at_clients",
    "ControlVariates": "method.at_clients",
    "Decision": "method.rules",
    "Direction": "method.directions",
    "ExactPenalty": "method.rules",
    "FallingStep": "method.steps",
    "FedAvg": "method.rules",
    "HardSGM": "method.rules",
    "HingePenalty": "method.rules",
    "LocalLoss": "method.rules",
    "NormalizedAdam": "method.steps",
    "NuPI": "method.rules",
    "Optimistic": "method.directions",
    "Penalty": "method.rules",
    "PrimalDual": "method.rules",
    "ProxAL": "method.rules",
    "Proximal": "method.proximal",
    "QFedAvg": "method.rules",
    "Quantised": "method.compressors",
    "Reports": "method.rules",
    "RoundAtClients": "method.at_clients",
    "Rule": "method.rules",
    "ScaffPD": "method.rules",
    "SoftmaxSGM": "method.rules",
    "Spider": "method.directions",
    "TERM": "method.rules",
    "TopK": "method.compressors",
    "switch": "method.rules.switching",
}
"""Where each name lives."""

__all__ = list(_PLACES)
__getattr__, __dir__ = on_first_use(__name__, _PLACES)
