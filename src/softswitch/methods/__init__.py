"""Optimisation methods, and the classes to write a new one. They are imported on first use."""

from typing import TYPE_CHECKING

from softswitch.support.startup import lazy_attributes

if TYPE_CHECKING:
    from softswitch.methods.base import Method as Method
    from softswitch.methods.base import switch as switch
    from softswitch.methods.client_state import AtClients as AtClients
    from softswitch.methods.client_state import Consensus as Consensus
    from softswitch.methods.client_state import ControlVariates as ControlVariates
    from softswitch.methods.client_state import RoundAtClients as RoundAtClients
    from softswitch.methods.compression import Compression as Compression
    from softswitch.methods.compressors import TopK as TopK
    from softswitch.methods.directions import Optimistic as Optimistic
    from softswitch.methods.messages import Decision as Decision
    from softswitch.methods.messages import LocalLoss as LocalLoss
    from softswitch.methods.messages import Reports as Reports
    from softswitch.methods.multipliers import AugmentedLagrangian as AugmentedLagrangian
    from softswitch.methods.multipliers import NuPI as NuPI
    from softswitch.methods.multipliers import PrimalDual as PrimalDual
    from softswitch.methods.multipliers import ProxAL as ProxAL
    from softswitch.methods.penalties import ExactPenalty as ExactPenalty
    from softswitch.methods.penalties import HingePenalty as HingePenalty
    from softswitch.methods.penalties import Penalty as Penalty
    from softswitch.methods.schedules import FallingStep as FallingStep
    from softswitch.methods.schedules import NormalizedAdam as NormalizedAdam
    from softswitch.methods.softmax_sgm import AverageSGM as AverageSGM
    from softswitch.methods.softmax_sgm import HardSGM as HardSGM
    from softswitch.methods.softmax_sgm import SoftmaxSGM as SoftmaxSGM
    from softswitch.methods.sqp import SQP as SQP
    from softswitch.methods.unconstrained import TERM as TERM
    from softswitch.methods.unconstrained import Agnostic as Agnostic
    from softswitch.methods.unconstrained import FedAvg as FedAvg
    from softswitch.methods.unconstrained import QFedAvg as QFedAvg
    from softswitch.methods.unconstrained import ScaffPD as ScaffPD
    from softswitch.problem.choices import CRITERIA as CRITERIA

__all__, __getattr__, __dir__ = lazy_attributes(__name__)
